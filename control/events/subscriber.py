"""What the bus gives its events to."""

import abc
from collections.abc import Sequence

from framegate.control.events.event import Event, Row

__all__ = ["Subscriber"]


class Subscriber(abc.ABC):
    """Gets each event in the thread that publishes it, before the next one has its number."""

    @abc.abstractmethod
    def offer(self, event: Event, line: Row | str, size: int) -> None:
        """Take an event, into a queue with a bound. It must not block or publish; an exception is reported; other subscribers still get it.

        Args:
            line: the fields that the log writes of it, or their JSON text.
            size: about how long that text is, in bytes.
        """

    def offer_lines(self, events: Sequence[Event], lines: Sequence[str]) -> None:
        """Take events of one name and level that happened together, with their lines as JSON text; otherwise as ``offer``, one after the other."""
        for event, line in zip(events, lines, strict=True):
            self.offer(event, line, len(line))
