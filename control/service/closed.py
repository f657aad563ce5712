"""The channels that closed last, so that an operator can still ask why."""

from collections import OrderedDict
from typing import Final, cast

from control.events import Event, Gap
from proxy.server.rows import ClosedRow

__all__ = ["CAPACITY", "ClosedChannels"]

CAPACITY: Final = 1_024
"""Rows kept; about 1 KiB each."""


class ClosedChannels:
    """A bounded memory of closed rows, by channel id; the oldest goes first. Belongs to the event loop."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._rows: OrderedDict[int, ClosedRow] = OrderedDict()

    def record(self, item: Event | Gap) -> None:
        """Keep the row of an event ``closed``. Of a gap, nothing is left to keep: the queue holds as many as are kept here."""
        if not isinstance(item, Event):
            return
        row = cast(ClosedRow, item.row)
        self._rows[row["id"]] = row
        self._rows.move_to_end(row["id"])
        while len(self._rows) > self._capacity:
            self._rows.popitem(last=False)

    def get(self, channel: int) -> ClosedRow | None:
        """The row of one channel; None when it is not known (any more)."""
        return self._rows.get(channel)

    def latest(self, listener: str | None = None, cause: str | None = None) -> list[ClosedRow]:
        """The rows, latest first, of one listener and with one cause when these are given."""
        return [
            row
            for row in reversed(self._rows.values())
            if (listener is None or row["listener"] == listener) and (cause is None or row["cause"] == cause)
        ]
