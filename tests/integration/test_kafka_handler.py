"""A handler that is a Kafka server: librdkafka and Kafka's own Java client are answered by the user's Python, without a broker."""

import shutil
import subprocess
from collections.abc import Iterator

import pytest

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

from confluent_kafka.admin import AdminClient

from framegate.control.demo.processes import find_java
from tests.demo import broker
from tests.fakes import kafka_server
from tests.fakes.framegate import Framegate
from tests.fakes.real_kafka import HAS_BROKER

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Framegate]:
    folder = tmp_path_factory.mktemp("handled")
    (folder / "code").mkdir()
    shutil.copy(kafka_server.__file__, folder / "code" / "served.py")
    config = {
        "handlers": {"processes": 2, "path": ["code"]},
        "listeners": [{"name": "kafka", "address": "127.0.0.1:0", "protocol": "kafka", "handler": "served:KafkaServer", "max_receive_size": "1MiB"}],
    }
    with Framegate(folder, config) as started:
        (folder / "code" / "port").write_text(str(started.address("kafka")[1]))
        yield started


def address(proxy: Framegate) -> str:
    return "{}:{}".format(*proxy.address("kafka"))


def test_librdkafka_is_answered(proxy: Framegate) -> None:
    found = AdminClient({"bootstrap.servers": address(proxy)}).list_topics(timeout=20)
    assert found.cluster_id == kafka_server.CLUSTER
    assert [f"{node.host}:{node.port}" for node in found.brokers.values()] == [address(proxy)]
    assert {name: len(topic.partitions) for name, topic in found.topics.items()} == {kafka_server.TOPIC: 1}
    assert proxy.metric("framegate_handler_requests_total", framegate_handler_action="answer") >= 2


@pytest.mark.extended
@pytest.mark.kafka
@HAS_BROKER
def test_kafkas_own_client_reads_the_handlers_versions(proxy: Framegate) -> None:
    java = find_java()
    assert java is not None, "the mark asks for it"
    tool = "org.apache.kafka.tools.BrokerApiVersionsCommand"
    command = [java, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", f"{broker.prepare()}/jars/*", tool, "--bootstrap-server", address(proxy)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    lines = [line.strip(" \t,") for line in done.stdout.splitlines()]
    assert lines[0].startswith(f"{address(proxy)} (id: 1 rack: null")
    supported = [line for line in lines[1:-1] if "UNSUPPORTED" not in line and line != ")"]
    assert supported == ["Metadata(3): 8 [usable: 8]", "ApiVersions(18): 0 to 4 [usable: 4]"]
