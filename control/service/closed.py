"""The channels that closed last, so that an operator can still ask why."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, cast

from framegate.control.events import Event, Gap
from framegate.proxy.server.rows import ClosedRow

__all__ = ["CAPACITY", "ClosedChannels"]

CAPACITY: Final = 1_024
"""Rows kept; about 1 KiB each."""
_SLICE: Final = 64
"""Rows that are read in one turn of the loop: others have theirs in between."""


class ClosedChannels:
    """A bounded memory of closed rows, by channel id; the oldest goes first. Belongs to the event loop.

    What closed waits in the queue, and its row is not read, until somebody asks: thousands may close a second, and nobody ask all day.

    Args:
        take: gives the events ``closed`` that came since it was called last; its queue holds ``capacity``.
        capacity: rows that are kept.
    """

    def __init__(self, take: Callable[[], list[Event | Gap]], capacity: int = CAPACITY) -> None:
        self._take = take
        self._capacity = capacity
        self._events: OrderedDict[int, Event] = OrderedDict()

    def _catch_up(self) -> None:
        """Of a gap, nothing is left to keep: what came behind it takes its place."""
        for item in self._take():
            if isinstance(item, Event):
                self._record(item)

    def _record(self, item: Event) -> None:
        number = item.subject or item.row["id"]
        self._events[number] = item
        self._events.move_to_end(number)
        while len(self._events) > self._capacity:
            self._events.popitem(last=False)

    def get(self, channel: int) -> ClosedRow | None:
        """The row of one channel; None when it is not known (any more)."""
        self._catch_up()
        event = self._events.get(channel)
        return None if event is None else self._row(channel, event)

    async def latest(self, listener: str | None = None, cause: str | None = None) -> list[ClosedRow]:
        """The rows, latest first, of one listener and with one cause when these are given."""
        self._catch_up()
        chosen: list[ClosedRow] = []
        for count, (channel, event) in enumerate(reversed(tuple(self._events.items())), 1):
            row = self._row(channel, event)
            if (listener is None or row["listener"] == listener) and (cause is None or row["cause"] == cause):
                chosen.append(row)
            if count % _SLICE == 0:
                await asyncio.sleep(0)
        return chosen

    def _row(self, channel: int, event: Event) -> ClosedRow:
        """A row that cannot be read fails who asked, and is kept no longer: it shall not fail everybody who asks."""
        try:
            return cast(ClosedRow, event.row)
        except Exception:
            self._events.pop(channel, None)
            raise
