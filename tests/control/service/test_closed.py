"""The memory of closed channels is bounded and in order."""

import asyncio
from collections.abc import Callable

import pytest

from framegate.control.events import Event, Gap, Row
from framegate.control.service.closed import CAPACITY, ClosedChannels
from framegate.proxy.network.connection_id import format_connection_id, parse_connection_id
from framegate.proxy.server.link import LinkError
from tests.fakes.plane import closed_row


class Closed(ClosedChannels):
    """What is recorded waits in the queue until somebody asks."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.queue: list[Event | Gap] = []
        super().__init__(self.take, capacity)

    def take(self) -> list[Event | Gap]:
        taken, self.queue = self.queue, []
        return taken

    def record(self, item: Event | Gap) -> None:
        self.queue.append(item)


def event(row: Row) -> Event:
    return Event(1, 0, "closed", "info", row)


def unread(text: str, read: Callable[[], Row]) -> Event:
    """As a processor's rows come: nobody has read them."""
    return Event(1, 0, "closed", "info", read, subject=int(parse_connection_id(text)))


def texts(closed: ClosedChannels, **chosen: str) -> list[str]:
    return [format_connection_id(row["id"]) for row in asyncio.run(closed.latest(**chosen))]


def test_the_oldest_goes_when_it_is_full() -> None:
    closed = Closed(capacity=2)
    for number in (1, 2, 3):
        closed.record(event(closed_row(f"0-1-{number}", "idle")))
    assert texts(closed) == ["0-1-3", "0-1-2"]
    assert closed.get(parse_connection_id("0-1-1")) is None


def test_of_a_gap_nothing_is_kept() -> None:
    closed = Closed()
    closed.record(event(closed_row("0-1-1", "idle")))
    closed.record(Gap(1, 3, 2))
    assert texts(closed) == ["0-1-1"]


def test_listener_and_cause_choose() -> None:
    closed = Closed()
    closed.record(event(closed_row("0-1-1", "idle", "kafka")))
    closed.record(event(closed_row("0-1-2", "idle", "plain")))
    closed.record(event(closed_row("0-1-3", "admin", "plain")))
    assert texts(closed, listener="plain", cause="idle") == ["0-1-2"]


def test_a_row_is_read_once_and_not_before_somebody_asks() -> None:
    closed = Closed()
    asked: list[str] = []

    def read(text: str) -> Row:
        asked.append(text)
        return closed_row(text, "idle")

    for text in ("0-1-1", "0-1-2"):
        closed.record(unread(text, lambda text=text: read(text)))  # type: ignore[misc]
    assert asked == []
    row = closed.get(parse_connection_id("0-1-2"))
    assert row is not None
    assert row["cause"] == "idle"
    assert texts(closed) == ["0-1-2", "0-1-1"]
    assert texts(closed) == ["0-1-2", "0-1-1"]
    assert asked == ["0-1-2", "0-1-1"]


@pytest.mark.parametrize("by_id", [True, False])
def test_a_row_that_cannot_be_read_fails_who_asks_once(by_id: bool) -> None:
    def fail() -> Row:
        raise LinkError("a closed row cannot be read")

    closed = Closed()
    closed.record(event(closed_row("0-1-1", "idle")))
    closed.record(unread("0-1-2", fail))
    with pytest.raises(LinkError):
        closed.get(parse_connection_id("0-1-2")) if by_id else texts(closed)
    assert closed.get(parse_connection_id("0-1-2")) is None
    assert texts(closed) == ["0-1-1"]


def test_others_have_their_turn_while_many_rows_are_read() -> None:
    async def main() -> None:
        closed = Closed()
        for number in range(1, 200):
            closed.record(unread(f"0-1-{number}", lambda number=number: closed_row(f"0-1-{number}", "idle")))  # type: ignore[misc]
        reading = asyncio.ensure_future(closed.latest())
        await asyncio.sleep(0)
        assert not reading.done()
        closed.record(event(closed_row("0-1-200", "idle")))
        assert len(await reading) == 199

    asyncio.run(main())
