"""control.fleet.connections: each connection has one closed row and ends on no books, in whatever order it is heard of."""

import socket

import pytest

from control.events import Event
from control.intake.acceptor import Handed
from proxy.config.limits import LimitsConfig, RateLimits
from proxy.server.link import Handover, LinkError
from tests.fakes.fleet import Fleet, open_channels, run, until
from tests.fakes.rows import closed_row, line_of


def test_each_connection_has_one_closed_row_with_the_id_it_was_listed_under() -> None:
    """Number 177."""

    async def scenario(made: Fleet) -> None:
        ids = await open_channels(made, 3)
        await made.steering.close_channels(ids[:1])
        made.supervisor.running[0].kill("died")
        await until(lambda: len([row for row in made.events if row["event"] == "closed"]) >= 3)
        await until(lambda: made.supervisor.status()[0].state == "running" and made.supervisor.status()[0].restarts == 1)
        assert sorted(row["id"] for row in made.events if row["event"] == "closed") == ids
        assert made.acceptor.listeners["a"].open == 0

    run(scenario, 1)


def test_a_row_that_overtakes_the_booking_of_its_connection_leaves_nothing_open() -> None:
    async def scenario(made: Fleet) -> None:
        processor = made.supervisor.running[0]
        handover = Handover(5, socket.AF_INET, "a", "192.0.2.1:1")
        row = closed_row(id=1, listener="a", peer=handover.peer)
        made.supervisor._notice(processor, {"type": "closed", "rows": [line_of(row, handover.accepted_ns)]})
        made.acceptor.handed.append(Handed(made.supervisor.connections.token(processor), handover))
        made.supervisor.connections.count_handed()
        assert processor.open == {}
        assert [event["id"] for event in made.events] == [1]

    run(scenario, 1)


def test_a_row_is_told_as_it_came_and_of_who_was_handed_over_it_is_not_read() -> None:
    """What a processor says of the listener and the peer is nothing new: the books have it."""

    async def scenario(made: Fleet) -> None:
        processor = made.supervisor.running[0]
        token = made.supervisor.connections.token(processor)
        for accepted_ns in (5, 6):
            made.acceptor.listeners["a"].handed += 1
            made.acceptor.handed.append(Handed(token, Handover(accepted_ns, socket.AF_INET, "a", "192.0.2.1:1")))
        lines = [line_of(closed_row(id=1, listener="a"), 5), line_of(closed_row(id=2, listener="a"), 6).replace("mutes", "mutters")]
        made.supervisor._notice(processor, {"type": "closed", "rows": lines})
        assert made.acceptor.listeners["a"].open == 0
        assert processor.open == {}
        first, second = (item for item in made._subscription.take() if isinstance(item, Event) and item.name == "closed")
        assert (first.subject, first.row["id"], second.subject) == (1, 1, 2)
        with pytest.raises(LinkError, match=r"closed\.mutes is missing"):
            assert second.row

    run(scenario, 1)


def test_a_connection_that_was_given_to_the_dead_has_its_row_too() -> None:
    """The acceptor's thread says so when the processor is forgotten already."""

    async def scenario(made: Fleet) -> None:
        processor = made.supervisor.running[0]
        token = made.supervisor.connections.token(processor)
        processor.kill("died")
        await until(lambda: made.supervisor.status()[0].state == "running" and made.supervisor.status()[0].restarts == 1)
        made.acceptor.listeners["a"].handed += 1
        made.acceptor.handed.append(Handed(token, Handover(5, socket.AF_INET, "a", "192.0.2.1:1")))
        made.supervisor.connections.count_handed()
        (row,) = made.log.events("closed")
        assert (row["id"], row["peer"], row["cause"]) == (f"0-{processor.generation}-1", "192.0.2.1:1", "processor_died")
        assert made.acceptor.listeners["a"].open == 0

    run(scenario, 1)


def test_a_processor_that_ended_twice_in_its_slot_is_known_no_more() -> None:
    """Its token is kept until the next one ends there, and no longer."""

    async def scenario(made: Fleet) -> None:
        books = made.supervisor.connections
        await open_channels(made, 2)
        for ended in (1, 2):
            processor = made.supervisor.running[0]
            processor.kill("died")
            await until(lambda count=ended: made.supervisor.status()[0].restarts == count and made.supervisor.status()[0].state == "running")
            assert len(books._processors) == 2
            assert processor in books._processors.values()
        assert [row["connections"] for row in made.log.events("processor_died")] == [2, 0]

    run(scenario, 1)


def test_whoever_ends_gives_its_place_back_with_its_processor_too() -> None:
    limits = LimitsConfig(connections=3, per_address=RateLimits(connections=2))

    async def scenario(made: Fleet) -> None:
        quotas = made.acceptor._admission._quotas
        first, second = await made.connect(), await made.connect()
        assert [await client.echo(b"x") for client in (first, second)] == [b"x", b"x"]
        third = await made.connect()
        assert await third.reader.read(1) == b"", "an address may have two"
        await first.close()
        await until(lambda: made.acceptor.listeners["a"].open == 1)
        again = await made.connect()
        assert await again.echo(b"x") == b"x"
        for processor in made.supervisor.running:
            processor.kill("died")
        await until(lambda: all(slot.state == "running" and slot.restarts == 1 for slot in made.supervisor.status()))
        assert made.acceptor.listeners["a"].open == 0
        for _ in range(2):
            assert await (await made.connect()).echo(b"x") == b"x"
        await until(lambda: (quotas.open(), quotas.of_address("127.0.0.1")) == (2, 2))
        assert made.log.events("task_failed") == []

    run(scenario, 2, node_limits=limits)
