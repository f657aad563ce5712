"""framegate.control.fleet.connections: each connection has one closed row and ends on no books, in whatever order it is heard of."""

import dataclasses
import socket
import time

import pytest

from framegate.control.accept.acceptor import PassedConnection
from framegate.control.events import Event
from framegate.control.fleet.connections import end_cause, lost_connection_row
from framegate.control.fleet.processor import AssignedConnection
from framegate.control.service.convert import channel_message
from framegate.proxy.cause import ORDERLY_CAUSES, Cause
from framegate.proxy.config.limits import LimitsConfig, RateLimits
from framegate.proxy.config.log import AccessConfig, LogConfig
from framegate.proxy.network.connection_id import format_connection_id, make_connection_id
from framegate.proxy.server.link import Handover, LinkError
from tests.fakes.fleet import Fleet, open_channels, run, until
from tests.fakes.rows import access_row, closed_row, line_of
from tests.fakes.scenario import run_by


@run_by(run, 1)
async def test_each_connection_has_one_closed_row_with_the_id_it_was_listed_under(made: Fleet) -> None:
    """Number 177."""

    ids = await open_channels(made, 3)
    await made.steering.channels.act("close", ids[:1])
    made.supervisor.running[0].kill("died")
    await until(lambda: len([row for row in made.events if row["event"] == "closed"]) >= 3)
    await until(lambda: made.supervisor.status()[0].state == "running" and made.supervisor.status()[0].restarts == 1)
    assert sorted(row["id"] for row in made.events if row["event"] == "closed") == ids
    assert made.acceptor.listeners["a"].open == 0


@run_by(run, 1)
async def test_a_row_that_overtakes_the_booking_of_its_connection_leaves_nothing_open(made: Fleet) -> None:
    processor = made.supervisor.running[0]
    handover = Handover(5, socket.AF_INET, "a", "192.0.2.1:1")
    row = closed_row(id=1, listener="a", peer=handover.peer)
    made.supervisor._notice(processor, {"type": "closed", "rows": [line_of(row, handover.accepted_ns)]})
    made.acceptor.handed.append(PassedConnection(made.supervisor.connections.token(processor), handover))
    made.supervisor.connections.count_handed()
    assert processor.open == {}
    assert [event["id"] for event in made.events] == [1]


@run_by(run, 1)
async def test_a_closed_row_is_published_unread_if_its_connection_is_known(made: Fleet) -> None:
    """What a processor says of the listener and the peer is nothing new: the books have it."""

    processor = made.supervisor.running[0]
    token = made.supervisor.connections.token(processor)
    for accepted_ns in (5, 6):
        made.acceptor.listeners["a"].count.handed += 1
        made.acceptor.handed.append(PassedConnection(token, Handover(accepted_ns, socket.AF_INET, "a", "192.0.2.1:1")))
    lines = [line_of(closed_row(id=1, listener="a"), 5), line_of(closed_row(id=2, listener="a"), 6).replace("frames", "framez")]
    made.supervisor._notice(processor, {"type": "closed", "rows": lines})
    assert made.acceptor.listeners["a"].open == 0
    assert processor.open == {}
    first, second = (item for item in made._subscription.take() if isinstance(item, Event) and item.name == "closed")
    assert (first.subject, first.row["id"], second.subject) == (1, 1, 2)
    with pytest.raises(LinkError, match=r"closed\.frames is missing"):
        assert second.row


@run_by(run, 1)
async def test_a_connection_passed_to_a_processor_that_has_ended_has_a_closed_row(made: Fleet) -> None:
    """The acceptor's thread says so when the processor is forgotten already."""

    processor = made.supervisor.running[0]
    token = made.supervisor.connections.token(processor)
    processor.kill("died")
    await until(lambda: made.supervisor.status()[0].state == "running" and made.supervisor.status()[0].restarts == 1)
    made.acceptor.listeners["a"].count.handed += 1
    made.acceptor.handed.append(PassedConnection(token, Handover(5, socket.AF_INET, "a", "192.0.2.1:1")))
    made.supervisor.connections.count_handed()
    (row,) = made.log.events("closed")
    assert (row["id"], row["peer"], row["cause"]) == (f"0-{processor.generation}-1", "192.0.2.1:1", "processor_died")
    assert "broker" not in row
    made.acceptor.handed.append(PassedConnection(token, Handover(6, socket.AF_INET, "a", "192.0.2.1:1", 7)))
    made.supervisor.connections.count_handed()
    assert made.log.events("closed")[1]["broker"] == 7
    assert made.acceptor.listeners["a"].open == 0


@run_by(run, 1)
async def test_a_processor_that_ended_twice_in_its_slot_is_known_no_more(made: Fleet) -> None:
    """Its token is kept until the next one ends there, and no longer."""

    books = made.supervisor.connections
    await open_channels(made, 2)
    for ended in (1, 2):
        processor = made.supervisor.running[0]
        processor.kill("died")
        await until(lambda count=ended: made.supervisor.status()[0].restarts == count and made.supervisor.status()[0].state == "running")
        assert len(books._processors) == 2
        assert processor in books._processors.values()
    assert [row["connections"] for row in made.log.events("processor_died")] == [2, 0]


def test_a_connection_that_ends_with_its_processor_frees_its_place() -> None:
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


@pytest.mark.parametrize(("logged", "level"), [(True, "info"), (False, "debug")])
@run_by(run, 1, start=False)
async def test_rows_of_connections_that_open_are_published_and_logged_if_configured(made: Fleet, *, logged: bool, level: str) -> None:
    """Where others want them, the log has them for who asks for rows of the level debug."""

    log = LogConfig(access=AccessConfig(open=logged))
    made.desired.config = dataclasses.replace(made.desired.config, log=log)
    made.desired.rows_at_open = True
    await made.supervisor.start_slots([0])
    made.acceptor.start()
    ids = await open_channels(made, 2)
    shown = [format_connection_id(number) for number in ids]
    opened = [event for event in made.events if event["event"] == "opened"]
    assert [row["id"] for row in opened] == ids
    assert [(row["id"], row["level"]) for row in made.log.events("opened")] == ([(number, "info") for number in shown] if logged else [])
    made.log.levels.level = "debug"
    await open_channels(made, 1)
    (*_, row) = made.log.events("opened")
    assert row["level"] == level


@run_by(run, 1)
async def test_a_row_that_cannot_be_read_is_reported_and_the_others_are_published(made: Fleet) -> None:
    processor = made.supervisor.running[0]
    lines = ["nonsense", line_of(access_row(id=1, listener="a"), 5), line_of(access_row(id=2, listener="a"), 6).replace("frames", "framez")]
    made.supervisor._notice(processor, {"type": "access", "rows": lines})
    assert made.meters.value("task.failures", "slot") == 1
    first, second = (item for item in made._subscription.take() if isinstance(item, Event) and item.name == "access")
    assert (first.name, first.subject, first.row["id"], second.subject) == ("access", 1, 1, 2)
    with pytest.raises(LinkError, match=r"access\.frames is missing"):
        assert second.row
    assert made.acceptor.listeners["a"].open == 0, "nothing is booked, and nothing taken off the books"


@pytest.mark.parametrize(("reason", "cause", "words"), [("died", "processor_died", "died"), ("stop", "drain_timeout", "was stopped by force")])
@run_by(run, 1)
async def test_the_row_of_a_lost_connection_has_its_client_and_no_counts(made: Fleet, *, reason: str, cause: str, words: str) -> None:
    processor = made.supervisor.running[0]
    processor.kill(reason)
    await processor.ended
    given = AssignedConnection(Handover(time.monotonic_ns() - 2_000_000_000, 2, "a", "192.0.2.1:7"), make_connection_id(0, 5, 42))
    row = lost_connection_row(processor, given, "u")
    assert end_cause(processor) == row["cause"] == cause
    assert row["detail"] == f"the processor {words}, exit code -9; what had passed is not known"
    assert row["closed_ns"] - row["opened_ns"] == pytest.approx(2e9, abs=1e9)
    message = channel_message(row)
    assert (message.id, message.peer_address, message.listener, message.upstream) == ("0-5-42", "192.0.2.1:7", "a", "u")
    assert not message.HasField("request")
    assert not message.HasField("response")
    assert not message.close.HasField("lost_bytes")


@run_by(run, 1)
async def test_the_level_of_a_closed_row_follows_its_cause(made: Fleet) -> None:
    processor = made.supervisor.running[0]
    faults = {Cause.INTERNAL, Cause.HANDLER_FAILED, Cause.PROCESSOR_DIED}
    lines = []
    for number, cause in enumerate(Cause, 1):
        made.acceptor.listeners["a"].count.handed += 1
        text = closed_row(id=number, listener="a", cause=str(cause), detail='"cause":"internal"')
        handover = Handover(number, socket.AF_INET, "a", "192.0.2.1:1")
        made.acceptor.handed.append(PassedConnection(made.supervisor.connections.token(processor), handover))
        lines.append(line_of(text, number))
    subscription = made.supervisor.connections._events.subscribe(("closed",))
    made.supervisor._notice(processor, {"type": "closed", "rows": lines})
    levels = {event.row["cause"]: event.level for event in subscription.take() if isinstance(event, Event)}
    assert levels == {cause: "error" if cause in faults else "info" if cause in ORDERLY_CAUSES else "warning" for cause in Cause}
