"""Events, gaps that stand for dropped events, and the interface of those that receive both."""

import abc
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, overload

Row = dict[str, Any]


Read = Callable[[int, str], Row]
"""Returns the row, with the event's name under ``event``, of the subject (see ``Event``) and the text. It may raise; after it succeeded it is not
called again for the same event.
"""


class Event:
    """Something that happened. ``row``: the row, or a function that returns it; it may raise, and is not called again after it succeeded."""

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
        row = self._row  # read once: another thread may set it
        if not isinstance(row, dict):
            row = self._row = row()
        return row


class EventLines(Sequence[Event]):
    """Events of one name that were published together. An event is made when it is asked for, because there are thousands a second, and most are only
    written as text.

    Args:
        first: the number of the first.
        texts: the fields of each as the text of a JSON object.
        subjects: see ``Event``.
        read: returns the row of one.
    """

    __slots__ = ("_made", "_read", "_subjects", "_texts", "first", "level", "name", "time_ns")

    def __init__(self, first: int, time_ns: int, name: str, level: str, texts: Sequence[str], subjects: Sequence[int], read: Read) -> None:
        self.first = first
        self.time_ns = time_ns
        self.name = name
        self.level = level
        self._texts = texts
        self._subjects = subjects
        self._read = read
        self._made: dict[int, Event] = {}  # so that a row is decoded once for all subscribers

    def __len__(self) -> int:
        return len(self._texts)

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Event]: ...
    def __getitem__(self, index: int | slice) -> Event | Sequence[Event]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        found = self._made.get(index)
        if found is None:
            subject = self._subjects[index]
            read = partial(self._read, subject, self._texts[index])
            found = self._made[index] = Event(self.first + index, self.time_ns, self.name, self.level, read, False, subject)
        return found


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
