"""Events, gaps that stand for dropped events, and the interface of those that receive both."""

import abc
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

Row = dict[str, Any]


Line = tuple[int, str, Callable[[], Row]]
"""An event whose row is decoded only on demand: the subject (see ``Event``), the fields as the text of a JSON object with at least one field, and a
function that returns the row with the event's name under ``event``. The function may raise; after it succeeded it is not called again. A plain
tuple, because there are thousands a second.
"""


class Event:
    """Something that happened. ``row``: the row, or a function that returns it, as in ``Line``."""

    __slots__ = ("_row", "level", "name", "reserved", "sequence", "subject", "time_ns")

    def __init__(
        self, sequence: int, time_ns: int, name: str, level: str, row: Row | Callable[[], Row], reserved: bool = False, subject: int = 0
    ) -> None:
        self.sequence = sequence  # 1 for the first event of this process, then one more for each
        self.time_ns = time_ns  # when it was published, CLOCK_REALTIME
        self.name = name  # ``closed``, ``processor_died``, ``audit``, …; the row has it under ``event``, too
        self.level = level  # ``info``, ``warning`` or ``error``
        self.reserved = reserved  # a place was reserved for it in the log before it happened
        self.subject = subject  # the id of the connection that it is about; 0: not known without reading the row
        self._row = row

    @property
    def row(self) -> Row:
        """All fields. Every subscriber gets the same dictionary and must not change it. A row that cannot be decoded raises each time."""
        if not isinstance(self._row, dict):
            self._row = self._row()
        return self._row


class Gap(NamedTuple):
    """Events that were dropped because a subscriber was too slow: ``dropped`` of those that it subscribed to, numbered ``first`` to ``last``."""

    first: int
    last: int
    dropped: int


class Subscriber(abc.ABC):
    """Gets each event in the thread that publishes it, before the next event gets its number."""

    @abc.abstractmethod
    def offer(self, event: Event, line: Row | str, size: int) -> None:
        """Put an event into a bounded queue. It must not block or publish; an exception is reported, and other subscribers still get the event.
        ``line``: the fields that the log writes, or their JSON text. ``size``: about how long that text is, in bytes.
        """

    def offer_lines(self, events: Sequence[Event], lines: Sequence[str]) -> None:
        """Take events of one name and level that happened together, with their lines as JSON text. The default offers each of them."""
        for event, line in zip(events, lines, strict=True):
            self.offer(event, line, len(line))
