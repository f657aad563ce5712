"""The memory of closed channels is bounded and in order."""

from control.events import Event, Gap, Row
from control.service.closed import ClosedChannels
from proxy.network.connection_id import format_connection_id, parse_connection_id
from tests.fakes.plane import closed_row


def event(row: Row) -> Event:
    return Event(1, 0, "closed", "info", row)


def texts(closed: ClosedChannels, **chosen: str) -> list[str]:
    return [format_connection_id(row["id"]) for row in closed.latest(**chosen)]


def test_the_oldest_goes_when_it_is_full() -> None:
    closed = ClosedChannels(capacity=2)
    for number in (1, 2, 3):
        closed.record(event(closed_row(f"0-1-{number}", "idle")))
    assert texts(closed) == ["0-1-3", "0-1-2"]
    assert closed.get(parse_connection_id("0-1-1")) is None


def test_of_a_gap_nothing_is_kept() -> None:
    closed = ClosedChannels()
    closed.record(event(closed_row("0-1-1", "idle")))
    closed.record(Gap(1, 3, 2))
    assert texts(closed) == ["0-1-1"]


def test_listener_and_cause_choose() -> None:
    closed = ClosedChannels()
    closed.record(event(closed_row("0-1-1", "idle", "kafka")))
    closed.record(event(closed_row("0-1-2", "idle", "plain")))
    closed.record(event(closed_row("0-1-3", "admin", "plain")))
    assert texts(closed, listener="plain", cause="idle") == ["0-1-2"]
