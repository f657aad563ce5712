"""One cluster: its brokers are found, listened for and put in force, in this order, and taken back in the reverse one."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from framegate.control.accept.broker_list import Broker, LoginNeededError
from framegate.control.steering import cluster as module
from framegate.control.steering.brokers import Brokers
from framegate.control.steering.cluster import AT_ONCE, Cluster, Pace, ask_any
from framegate.proxy.config.model import BrokersConfig
from framegate.proxy.errors import AuthenticationError
from tests.fakes.brokers import FakeBroker
from tests.fakes.fleet import Fleet, facts, fleet, until
from tests.fakes.ports import free_ports
from tests.fakes.scenario import run_by


def run(scenario: Callable[..., Awaitable[None]], **given: Any) -> None:
    """Beside two processors and a cluster of one broker, which answers for all. ``given``: of ``fleet``; ``brokers``: of the listener."""
    ports = free_ports(3)
    brokers = BrokersConfig(**{"ports": f"{ports[0]}-{ports[-1]}", **given.pop("brokers", {})})

    async def main() -> None:
        async with fleet(**{"processors": 2, **given}, protocol="kafka", brokers=brokers) as made, FakeBroker() as broker:
            made.desired.endpoints = {"u": [broker.wire]}
            with_pace(made, Pace(missing_s=0))
            await scenario(made, broker)

    asyncio.run(main())


def with_pace(made: Fleet, pace: Pace) -> Brokers:
    """Another part over the same fleet, which ``made`` closes."""
    made.steering.brokers.close()
    parts = made.steering
    parts.brokers = Brokers(made.supervisor, made.acceptor, parts.channels, made.log, parts.events, made.meters, made.task_monitor, pace)
    return made.steering.brokers


def of(made: Fleet) -> Cluster:
    return made.steering.brokers.clusters["u"]


async def look(made: Fleet, broker: FakeBroker, *brokers: Broker) -> bool:
    """Whether the table has changed, after the cluster has named these."""
    broker.brokers = brokers
    return await of(made).round(look=True)


def told(made: Fleet) -> dict[int, list[str | int]]:
    """What clients of the listener are told, by node."""
    return {int(node): rest for node, *rest in made.desired.brokers["u"]["listeners"]["a"]["brokers"]}  # type: ignore[misc]


def rows(made: Fleet, *names: str) -> list[dict[str, Any]]:
    """What the log has of these events, and of a slot's neighbour's no more than once."""
    return [row for row in made.log.rows if row["event"] in names]


def reaches(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except ConnectionError:  # refused; or reset, by a socket that is being closed
        return False
    return True


def ports_of(made: Fleet) -> list[int]:
    brokers = made.supervisor.desired.config.listeners[0].brokers
    assert brokers is not None
    return [int(port) for port in brokers.ports.split("-")]


@run_by(run)
async def test_every_processor_has_the_brokers_and_clients_reach_them_by_port(made: Fleet, broker: FakeBroker) -> None:
    bootstrap = ["127.0.0.1", made.acceptor.listeners["a"].port]
    assert made.desired.brokers == {"u": {"brokers": [], "listeners": {"a": {"bootstrap": bootstrap, "brokers": []}}}}
    assert await look(made, broker, broker.named(2), broker.named(0, "rack-1"))
    first = ports_of(made)[0]
    wanted = {
        "brokers": [{"id": 0, "rack": "rack-1", "addresses": [broker.wire]}, {"id": 2, "rack": "", "addresses": [broker.wire]}],
        "listeners": {"a": {"bootstrap": bootstrap, "brokers": [[0, "127.0.0.1", first], [2, "127.0.0.1", first + 2]]}},
    }
    assert [each["brokers"] for each in await facts(made)] == [{"u": wanted}] * 2
    assert made.desired.whole(0)["brokers"] == made.desired.start_message(0, 1, "b")["brokers"] == {"u": wanted}
    for port, node in ((first, 0), (first + 2, 2)):
        client = await made.connect(broker=node)
        assert client.writer.get_extra_info("peername")[1] == port
        assert await client.echo(b"x") == b"x"
    listed, _ = await made.steering.channels.page()
    assert sorted(look.row["broker"] for look in listed) == [0, 2]
    await until(lambda: made.acceptor.listeners["a"].open == 2)
    statuses = await made.steering.brokers.statuses()
    assert [(item.node, item.state, item.connections, item.rack, item.address) for item in statuses] == [
        (0, "up", 1, "rack-1", str(broker.named(0))),
        (2, "up", 1, "", str(broker.named(2))),
    ]
    assert [item.advertised for item in statuses] == [f"127.0.0.1:{first}", f"127.0.0.1:{first + 2}"]
    assert not await look(made, broker, broker.named(2), broker.named(0, "rack-1")), "the same again changes nothing"
    assert [row["broker"] for row in rows(made, "broker_joined")] == [0, 2]


@run_by(run)
async def test_a_port_is_open_before_any_processor_has_its_address_and_closed_after_all_have_lost_it(made: Fleet, broker: FakeBroker) -> None:
    first, steps = ports_of(made)[0], []
    change, remove = made.supervisor.change, made.acceptor.remove_broker

    async def changes(*given: Any, **more: Any) -> None:
        steps.append(("before", [reaches(port) for port in (first, first + 1)], sorted(told(made))))
        await change(*given, **more)
        steps.append(("after", [reaches(port) for port in (first, first + 1)], sorted(told(made))))

    def removes(listener: str, node: int) -> None:
        steps.append(("close", [node], sorted(told(made))))
        remove(listener, node)

    made.supervisor.change, made.acceptor.remove_broker = changes, removes  # type: ignore[method-assign]
    await look(made, broker, broker.named(0))
    await look(made, broker, broker.named(1))
    both = [True, True]
    assert steps == [("before", [True, False], []), ("after", [True, False], [0]), ("before", both, [0]), ("after", both, [1]), ("close", [0], [1])]
    await until(lambda: not reaches(first))


@run_by(run)
async def test_connections_to_a_broker_that_is_gone_stay_and_it_is_shown_until_the_last_ends(made: Fleet, broker: FakeBroker) -> None:
    await look(made, broker, broker.named(0), broker.named(1))
    client = await made.connect(broker=1)
    assert await client.echo(b"x") == b"x"
    await until(lambda: made.acceptor.listeners["a"].open == 1)
    await look(made, broker, broker.named(0))
    assert await client.echo(b"y") == b"y"
    assert [(row["broker"], row["address"]) for row in rows(made, "broker_left")] == [(1, str(broker.named(1)))]
    assert [(item.node, item.state, item.connections, item.advertised) for item in await made.steering.brokers.statuses()][1:] == [(1, "gone", 1, "")]
    await client.close()
    await until(lambda: made.acceptor.listeners["a"].open == 0)
    await of(made).round(look=False)
    assert [item.node for item in await made.steering.brokers.statuses()] == [0]
    assert made.acceptor.listeners["a"].counts.keys() == {-1, 0}
    await look(made, broker, broker.named(0), broker.named(1))
    assert await (await made.connect(broker=1)).echo(b"z") == b"z", "it may come back"


@run_by(run)
async def test_a_broker_that_moved_keeps_its_port(made: Fleet, broker: FakeBroker) -> None:
    await look(made, broker, broker.named(0))
    before = told(made)
    moved = Broker(0, "127.0.0.1", 9, "b")
    assert await look(made, broker, moved)
    assert told(made) == before
    (row,) = rows(made, "broker_moved")
    assert (row["broker"], row["address"], row["rack"], row["before"]) == (0, "127.0.0.1:9", "b", {"address": str(broker.named(0)), "rack": ""})
    assert made.desired.brokers["u"]["brokers"] == [{"id": 0, "rack": "b", "addresses": [["127.0.0.1", 2, "127.0.0.1", 9]]}]


@run_by(run)
async def test_a_broker_without_a_port_is_not_advertised_and_the_others_are(made: Fleet, broker: FakeBroker) -> None:
    first = ports_of(made)[0]
    with socket.create_server(("127.0.0.1", first + 1)):
        for _ in range(2):
            await look(made, broker, *map(broker.named, (0, 1, 2, 3)))
        assert sorted(told(made)) == [0, 2]
        (row,) = rows(made, "brokers_without_port")
        assert (row["listener"], row["count"]) == ("a", 2)
        assert row["brokers"]["3"] == f"the range {first}-{first + 2} has no port for it"
        assert "in use" in row["brokers"]["1"]
        states = {item.node: (item.state, item.reason) for item in await made.steering.brokers.statuses()}
        assert {node: state for node, (state, _) in states.items()} == {0: "up", 1: "no_port", 2: "up", 3: "no_port"}
        assert "in use" in states[1][1]
    assert await of(made).round(look=False), "the port is free: it is tried again"
    assert sorted(told(made)) == [0, 1, 2]


@run_by(run, mode="refuse", processors=1)
async def test_a_change_that_is_refused_leaves_no_port_open_and_is_tried_again(made: Fleet, broker: FakeBroker) -> None:
    for _ in range(2):
        assert not await look(made, broker, broker.named(0))
        await until(lambda: not reaches(ports_of(made)[0]))
    assert (told(made), of(made).brokers) == ({}, {})
    assert [row["error"] for row in rows(made, "brokers_refused")] == ["no processor has the change: processor 0: the fake was told to"]


@run_by(run, mode="dying@1")
async def test_a_processor_that_is_killed_while_the_brokers_change_starts_with_them(made: Fleet, broker: FakeBroker) -> None:
    assert await look(made, broker, broker.named(0))
    await until(lambda: len(made.supervisor.running) == 2 and made.supervisor.slots[1].restarts == 1)
    assert [sorted(each["brokers"]) for each in await facts(made)] == [["u"], ["u"]]
    assert {str(each["brokers"]) for each in await facts(made)} == {str(made.desired.brokers)}


@run_by(run, mode="silent@1")
async def test_a_processor_that_is_busy_delays_the_change_and_no_port_is_told(made: Fleet, broker: FakeBroker) -> None:
    broker.brokers = (broker.named(0),)
    task = asyncio.create_task(of(made).round(look=True))
    await until(lambda: 0 in made.acceptor.listeners["a"].brokers)
    await asyncio.sleep(0.05)
    assert (told(made), task.done()) == ({}, False)
    assert [each["brokers"]["u"]["brokers"] for each in await facts(made)] == [[], []]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@run_by(run)
async def test_known_brokers_stay_when_no_list_can_be_had_or_it_cannot_be_right(made: Fleet, broker: FakeBroker) -> None:
    await look(made, broker, broker.named(0))
    in_force = made.desired.brokers
    own = made.acceptor.listeners["a"]
    bad: dict[str, Any] = {
        "clients may have to log in": "closes",
        "list of brokers is empty": (),
        "node id 1 twice": (broker.named(1), broker.named(1)),
        "in a circle": (Broker(1, "127.0.0.1", own.port),),
        f"broker 2 is at 127.0.0.1:{own.brokers[0].port}": (Broker(2, "127.0.0.1", own.brokers[0].port),),
    }
    for reason, brokers in bad.items():
        broker.brokers = brokers
        for _ in range(2):
            assert not await of(made).round(look=True)
        assert reason in of(made).error
    found = [row["error"] for row in rows(made, "brokers_unreadable")]
    assert [reason in error for reason, error in zip(bad, found, strict=True)] == [True] * len(bad), "each once"
    await broker.stop()
    assert not await of(made).round(look=True)
    assert made.desired.brokers == in_force
    assert list(of(made).brokers) == [0]


@run_by(run)
async def test_a_bootstrap_server_is_asked_however_many_brokers_are_known_and_none_of_them_answers(made: Fleet, broker: FakeBroker) -> None:
    await look(made, broker, *(Broker(node, "127.0.0.1", 1 + node) for node in range(100)))
    assert await look(made, broker, broker.named(0))


@run_by(run)
async def test_lists_that_pass_in_answers_serve_when_framegate_may_not_ask(made: Fleet, broker: FakeBroker) -> None:
    broker.brokers = "closes"
    of(made).seen({0: broker.named(0)})
    assert await of(made).round(look=True)
    assert sorted(told(made)) == [0]
    assert not await of(made).round(look=True), "a list serves once"
    asked = broker.asked
    of(made).seen({2: broker.named(2)})
    assert await of(made).round(look=True)
    assert (sorted(told(made)), broker.asked) == ([2], asked), "a try each minute is enough, since brokers log each of them"
    broker.brokers = (broker.named(0), broker.named(1))
    assert await of(made).round(look=True)
    of(made).seen({2: broker.named(2)})
    await of(made).round(look=True)
    assert sorted(told(made)) == [0, 1], "an own look is better, once it succeeds"


@run_by(run, brokers={"ports": "", "hosts": "b{id}.kafka", "advertise": "kafka", "advertise_port": 443})
async def test_with_hosts_every_broker_has_a_name_and_no_port_of_its_own(made: Fleet, broker: FakeBroker) -> None:
    assert await look(made, broker, broker.named(0), broker.named(2_147_483_647))
    assert made.desired.brokers["u"]["listeners"]["a"] == {
        "bootstrap": ["kafka", 443],
        "brokers": [[0, "b0.kafka", 443], [2_147_483_647, "b2147483647.kafka", 443]],
    }
    assert made.acceptor.listeners["a"].brokers == {}
    assert [item.advertised for item in await made.steering.brokers.statuses()] == ["b0.kafka:443", "b2147483647.kafka:443"]


@run_by(run)
async def test_nothing_is_opened_once_the_proxy_drains(made: Fleet, broker: FakeBroker) -> None:
    await look(made, broker, broker.named(0))
    made.acceptor.stop()
    assert not reaches(ports_of(made)[0])
    assert not await look(made, broker, broker.named(0), broker.named(1))
    assert rows(made, "brokers_without_port") == []


@run_by(run)
async def test_steps_come_at_their_pace_and_sooner_when_wanted(made: Fleet, broker: FakeBroker) -> None:
    asked = 0

    async def ask(address: list[Any]) -> dict[int, Broker]:
        nonlocal asked
        asked += 1
        return {0: broker.named(0)}

    config = made.supervisor.desired.config
    slow = Pace(look_s=60, resolve_s=60, pause_s=0.02, most_pause_s=0.05)
    cluster = Cluster(config.upstreams[0], config.listeners, made.supervisor, made.acceptor, made.log, ask, slow)
    clock = asyncio.get_running_loop().time
    await cluster.step()
    assert (asked, cluster.looked.is_set(), list(cluster.brokers)) == (1, True, [0])
    task = asyncio.create_task(cluster.step())
    await asyncio.sleep(0.03)
    assert (asked, task.done()) == (1, False), "nobody wants a look before a minute has passed"
    cluster.want()
    await task
    times = []
    for _ in range(4):
        cluster.want()
        began = clock()
        await cluster.step()
        times.append(clock() - began)
    assert asked == 6
    assert times[0] >= 0.03
    assert all(0.045 <= item < 1 for item in times[1:]), "looks that change nothing are further and further apart"


@run_by(run)
async def test_a_broker_leaves_when_lists_have_lacked_it_for_a_while(made: Fleet, broker: FakeBroker) -> None:
    """Brokers that do not know of a change yet still answer with the old list."""
    with_pace(made, Pace(missing_s=0.05))
    await look(made, broker, broker.named(0), broker.named(1))
    assert not await look(made, broker, broker.named(0))
    assert not await look(made, broker, broker.named(0), broker.named(1)), "it is back"
    assert not await look(made, broker, broker.named(0)), "so it is missing anew"
    await asyncio.sleep(0.06)
    assert await look(made, broker, broker.named(0))
    assert sorted(told(made)) == [0]
    assert len(rows(made, "broker_left", "broker_joined")) == 3


@run_by(run)
async def test_a_list_in_an_answer_that_differs_from_that_of_a_look_is_a_reason_to_look_again(made: Fleet, broker: FakeBroker) -> None:
    with_pace(made, Pace(look_s=60, resolve_s=60, pause_s=0.01, most_pause_s=0.05))
    cluster = of(made)
    broker.brokers = [broker.named(0)]
    await cluster.step()
    cluster.seen({0: broker.named(0), 1: broker.named(1)})
    await cluster.step()
    assert (broker.asked, sorted(told(made))) == (2, [0]), "the broker that was asked does not know of it yet"
    broker.brokers = [broker.named(0), broker.named(1)]
    await cluster.step()
    assert (broker.asked, sorted(told(made))) == (3, [0, 1])
    cluster.seen({9: broker.named(9)})
    for _ in range(4):
        await cluster.step()
    waiting = asyncio.create_task(cluster.step())
    await asyncio.sleep(0.1)
    assert (broker.asked, waiting.done()) == (7, False), "a list that nobody else confirms is forgotten"
    waiting.cancel()


def answering(**answers: Any) -> module.Ask:
    """By address: brokers, an error, or None for silence."""

    async def ask(address: list[Any]) -> dict[int, Broker]:
        found = answers[address[0]]
        if found is None:
            await asyncio.get_running_loop().create_future()
        if isinstance(found, Exception):
            raise found
        return dict(found)

    return ask


def test_the_first_answer_of_several_brokers_counts() -> None:
    good = {1: Broker(1, "a", 1)}
    silent = dict.fromkeys("xyz"[: AT_ONCE - 1])

    async def main() -> None:
        before = asyncio.all_tasks()
        errors = {"a": OSError("no"), "b": EOFError(), "c": AuthenticationError("bad"), "d": ValueError("absurd")}
        ask = answering(**silent, **errors, g=good)
        assert await ask_any([[name] for name in (*silent, *errors, "g")], ask) == good
        with pytest.raises(ValueError, match="absurd"):
            await ask_any([[name] for name in errors], ask)
        with pytest.raises(OSError, match="no address"):
            await ask_any([], ask)
        with pytest.raises(LoginNeededError):
            await ask_any([["l"], *([name] for name in silent)], answering(**silent, l=LoginNeededError()))
        with pytest.raises(ZeroDivisionError):
            await ask_any([["l"]], answering(l=ZeroDivisionError()))
        waiting = asyncio.create_task(ask_any([[name] for name in silent], ask))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert asyncio.all_tasks() == before

    asyncio.run(main())
