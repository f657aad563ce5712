"""``framegate doctor`` before a real Kafka broker, directly and through a framegate, on listeners with SASL and without."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

from framegate.control.doctor.finding import look_at_all
from framegate.control.doctor.surroundings import Surroundings
from framegate.control.doctor.upstreams import address_probes
from tests.demo import broker
from tests.fakes.framegate import Framegate
from tests.fakes.real_kafka import REAL_KAFKA
from tests.fakes.surroundings import config_of, levels

pytestmark = [pytest.mark.extended, *REAL_KAFKA]
MANY_APIS = 50


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[broker.Broker]:
    with broker.Broker(tmp_path_factory.mktemp("kafka") / "broker", {"alice": "canary-91b"}) as made:
        made.start({})
        yield made


def apis(port: int) -> int:
    around = Surroundings(config=config_of(f"127.0.0.1:{port}", listener={"protocol": "kafka"}))
    found, *_ = look_at_all(address_probes(around, {"up": [["", socket.AF_INET, "127.0.0.1", port]]}), around.timeout_s)
    assert levels([found]) == ["ok"], found
    count = found.figures["apis"]
    assert isinstance(count, int)
    return count


@pytest.mark.parametrize("listener", ["PLAIN", "SASL"])
def test_a_broker_answers_before_anybody_has_logged_in(real: broker.Broker, listener: str) -> None:
    assert apis(real.ports[listener]) > MANY_APIS


def test_through_a_framegate_it_is_the_same_answer(real: broker.Broker, tmp_path: Path) -> None:
    config = {
        "memory_pool": {"size": "8MiB"},
        "listeners": [{"name": "kafka", "address": "127.0.0.1:0", "upstream": "up", "protocol": "kafka", "max_receive_size": "1MiB"}],
        "upstreams": [{"name": "up", "endpoints": [f"127.0.0.1:{real.ports['PLAIN']}"]}],
    }
    with Framegate(tmp_path, config) as framegate:
        assert apis(framegate.address("kafka")[1]) == apis(real.ports["PLAIN"])
