"""What passes over the bus: events, and the gaps that say which of them did not."""

from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = ["Event", "Gap", "Line", "Row"]

Row = dict[str, Any]


Line = tuple[int, str, Callable[[], Row]]
"""What happened, for who wants no more than to log it: the subject (see ``Event``), the fields as a JSON object of at least one, and what reads the
row, its name under ``event``; that is not called again once it has, and may raise. A plain tuple: there are thousands a second.
"""


class Event:
    """Something that happened.

    Args:
        row: or what reads it, as in ``Line``.

    Attributes:
        sequence: 1 for the first of this process, then one more for each.
        time_ns: when it was published, CLOCK_REALTIME.
        name: ``closed``, ``processor_died``, ``audit``, …; the row has it under ``event``, too.
        level: ``info``, ``warning`` or ``error``.
        reserved: the log has a place for it, taken before it happened.
        subject: the id of the connection that it is about; 0: that is not known without reading the row.
    """

    __slots__ = ("_row", "level", "name", "reserved", "sequence", "subject", "time_ns")

    def __init__(
        self, sequence: int, time_ns: int, name: str, level: str, row: Row | Callable[[], Row], reserved: bool = False, subject: int = 0
    ) -> None:
        self.sequence = sequence
        self.time_ns = time_ns
        self.name = name
        self.level = level
        self.reserved = reserved
        self.subject = subject
        self._row = row

    @property
    def row(self) -> Row:
        """All there is to know. Every subscriber gets the same one: it is not changed any more. What cannot be read raises, each time."""
        if not isinstance(self._row, dict):
            self._row = self._row()
        return self._row


class Gap(NamedTuple):
    """Events that a subscriber was too slow for: ``dropped`` of those that it wanted, numbered from ``first`` to ``last``."""

    first: int
    last: int
    dropped: int
