"""The brokers of all clusters: looked for at the start, at failures and when an answer names others; shown and counted."""

import asyncio
import json
from pathlib import Path

import pytest

from framegate.control.errors import NotFoundError
from framegate.control.steering.brokers import Brokers
from framegate.control.steering.cluster import PACE, Pace
from framegate.proxy.config.model import ProxyConfig, UpstreamConfig
from framegate.proxy.config.sasl import UpstreamIdentity, UpstreamSasl
from framegate.proxy.server.rows import EndpointDownRow, SeenBrokerRow
from tests.control.steering.test_cluster import look, of, rows, run, told, with_pace
from tests.fakes.brokers import FakeBroker
from tests.fakes.fleet import Fleet, until
from tests.fakes.fleet import run as run_fleet
from tests.fakes.scenario import run_by

QUICK = Pace(look_s=60, resolve_s=60, pause_s=0.01, most_pause_s=0.01, missing_s=0)


def started(made: Fleet, pace: Pace = QUICK) -> Brokers:
    brokers = with_pace(made, pace)
    brokers.start()
    return brokers


@run_by(run)
async def test_a_start_waits_for_the_first_look_and_for_a_silent_cluster_no_longer_than_a_while(made: Fleet, broker: FakeBroker) -> None:
    broker.brokers = "silent"
    brokers, clock = started(made), asyncio.get_running_loop().time
    began = clock()
    await brokers.looked(0.05)
    assert 0.04 < clock() - began < 2
    assert told(made) == {}
    broker.brokers = [broker.named(0)]
    brokers = started(made)
    await brokers.looked(10)
    assert sorted(told(made)) == [0]


@run_by(run)
async def test_a_failed_connection_or_another_list_in_an_answer_is_a_reason_to_look(made: Fleet, broker: FakeBroker) -> None:
    broker.brokers = [broker.named(0)]
    await started(made).looked(10)
    broker.brokers = [broker.named(0), broker.named(1)]
    down = EndpointDownRow(upstream="u", endpoint="127.0.0.1:1", broker=0, failures=1, reason="refused", detail="", backoff_ms=1)
    made.steering.events.publish({"event": "endpoint_down", "generation": 1, "slot": 0, **down, "upstream": "other"}, level="warning")
    made.steering.events.publish({"event": "endpoint_down", "generation": 1, "slot": 0, **down}, level="warning")
    await until(lambda: sorted(told(made)) == [0, 1])
    broker.brokers = [broker.named(1)]
    named = [{"id": 1, "host": "127.0.0.1", "port": broker.port, "rack": ""}]
    client = await made.connect()
    await client.echo(b"seen " + json.dumps(named).encode())
    await until(lambda: sorted(told(made)) == [1] == list(of(made).brokers))
    of(made)._wanted.clear()
    made.steering.brokers.seen("u", [SeenBrokerRow(id=1, host="127.0.0.1", port=broker.port, rack="")])
    assert not of(made)._wanted.is_set(), "what is in force is no news"
    await client.echo(b"seen " + json.dumps([{**named[0], "port": 0}]).encode())
    await until(lambda: of(made).error)
    assert "for node 1 no usable address: port 0" in of(made).error
    made.steering.brokers.seen("other", [])


@run_by(run, mode="broker_down")
async def test_a_broker_is_down_when_all_its_addresses_are(made: Fleet, broker: FakeBroker) -> None:
    await look(made, broker, broker.named(0), broker.named(1)._replace(host="localhost"))
    row = made.desired.brokers["u"]["brokers"][1]
    row["addresses"] = [row["addresses"][0], ["localhost", 2, "127.0.0.2", broker.port]]
    states = {item.node: (item.state, item.reason) for item in await made.steering.brokers.statuses("u")}
    assert states == {0: ("down", "refused: says 0"), 1: ("up", "")}
    with pytest.raises(NotFoundError, match="none"):
        await made.steering.brokers.statuses("none")


@run_by(run)
async def test_a_broker_whose_name_has_no_address_is_down(made: Fleet, broker: FakeBroker) -> None:
    await look(made, broker, broker.named(0)._replace(host="no-such-host.invalid"))
    ((state, reason),) = [(item.state, item.reason) for item in await made.steering.brokers.statuses()]
    assert state == "down"
    assert "no-such-host.invalid" in reason
    (row,) = rows(made, "resolve_failed")
    assert row["upstream"] == "u"


@run_by(run, mode="broker_down")
async def test_metrics_have_states_and_connections_by_broker(made: Fleet, broker: FakeBroker, *, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("framegate.control.steering.brokers.COUNT_S", 0.01)

    def values(name: str) -> dict[tuple[str, ...], float]:
        return {tuple(item for _, item in key): value for (found, key), value in made.meters.snapshot().items() if found == f"framegate.{name}"}

    broker.brokers = "silent"
    made.steering.brokers.start()
    nothing = dict.fromkeys((("u", state) for state in ("up", "gone", "down", "no_port")), 0)
    await until(lambda: values("broker.count") == nothing)
    assert values("broker.connections") == {}
    broker.brokers = [*map(broker.named, (0, 1, 7))]
    await look(made, broker, *broker.brokers)
    states = {0: "down", 1: "down", 7: "no_port"}
    await until(lambda: len(values("broker.connections")) == 3)
    assert values("broker.count") == {
        ("u", str(node), state): state == now for node, now in states.items() for state in ("up", "gone", "down", "no_port")
    }
    # The fakes say that each broker has two connections.
    assert values("broker.connections") == {("u", str(node)): 2 * len(made.supervisor.running) for node in states}


@run_by(run_fleet)
async def test_without_a_cluster_nothing_is_looked_for(made: Fleet) -> None:
    made.steering.brokers.start()
    await made.steering.brokers.looked()
    assert await made.steering.brokers.statuses() == []
    assert await made.steering.brokers.statuses("u") == []
    assert made.desired.start_message(0, 1, "b").get("brokers") is None


@run_by(run)
async def test_the_login_of_a_look_is_the_one_for_all_clients(made: Fleet, broker: FakeBroker, *, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("secret")
    secret = {"mechanism": "PLAIN", "user": "me", "password_file": str(tmp_path / "password")}
    for_some, for_all = UpstreamIdentity(**secret, principals=("alice",)), UpstreamIdentity(**{**secret, "user": "all"})

    def login(sasl: UpstreamSasl | None) -> str | None:
        config: ProxyConfig = made.desired.config
        upstream = UpstreamConfig(name="u", sasl=sasl)
        ask = made.steering.brokers._asking(config, upstream)
        if ask is None:
            return None
        found = ask.keywords["login"]  # type: ignore[attr-defined]
        return "" if found is None else str(found.settings.user)

    assert login(None) == ""
    assert login(UpstreamSasl(**secret)) == "me"
    assert login(UpstreamSasl(identities=(for_some, for_all))) == "all"
    assert login(UpstreamSasl(identities=(for_some,))) is None
    assert PACE.look_s == 60
