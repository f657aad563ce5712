"""What passes over the bus: events, and the gaps that say which of them did not."""

from typing import Any, NamedTuple

__all__ = ["Event", "Gap", "Row"]

Row = dict[str, Any]


class Event(NamedTuple):
    """Something that happened.

    Attributes:
        sequence: 1 for the first of this process, then one more for each.
        time_ns: when it was published, CLOCK_REALTIME.
        name: ``closed``, ``processor_died``, ``audit``, …; the row has it under ``event``, too.
        level: ``info``, ``warning`` or ``error``.
        row: all there is to know. Every subscriber gets the same one: it is not changed any more.
        reserved: the log has a place for it, taken before it happened.
    """

    sequence: int
    time_ns: int
    name: str
    level: str
    row: Row
    reserved: bool = False


class Gap(NamedTuple):
    """Events that a subscriber was too slow for: ``dropped`` of those that it wanted, numbered from ``first`` to ``last``."""

    first: int
    last: int
    dropped: int
