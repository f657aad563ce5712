"""A bounded queue of events: when it is full the oldest events are dropped, and a gap reports them."""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from framegate.control.events.event import Event, Gap

__all__ = ["MAX_BYTES", "MAX_EVENTS", "Backlog"]

MAX_EVENTS: Final = 1_024
MAX_BYTES: Final = 4 * 1024 * 1024
"""Of rows as JSON."""


class Backlog:
    """Events, oldest first; at its head, if some were dropped, the gap that stands for them. No lock of its own.

    Args:
        max_events: how many it holds, at least 1.
        max_bytes: how large their rows are together. One that is larger alone is held alone.
    """

    def __init__(self, max_events: int = MAX_EVENTS, max_bytes: int = MAX_BYTES) -> None:
        assert max_events > 0, "a queue that holds nothing has nothing to give"
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._events: deque[tuple[Event, int]] = deque()
        self._bytes = 0
        self._first_dropped = self._last_dropped = self._dropped = 0

    def __len__(self) -> int:
        return len(self._events)

    def __iter__(self) -> Iterator[tuple[Event, int]]:
        """What it holds, each with its size."""
        return iter(self._events)

    @property
    def gap(self) -> Gap | None:
        """What was dropped and not taken yet."""
        return Gap(self._first_dropped, self._last_dropped, self._dropped) if self._dropped else None

    def append(self, event: Event, size: int) -> None:
        """Put an event at the end; ``size`` is what its row has as JSON, in bytes."""
        self._events.append((event, size))
        self._bytes += size
        self._trim()

    def extend(self, events: Sequence[Event], sizes: Sequence[int]) -> None:
        """Put events at the end, as ``append`` does one after the other."""
        self._events.extend(zip(events, sizes, strict=True))
        self._bytes += sum(sizes)
        self._trim()

    def _trim(self) -> None:
        while len(self._events) > self._max_events or (self._bytes > self._max_bytes and len(self._events) > 1):
            self._last_dropped = self._popleft().sequence
            if not self._dropped:
                self._first_dropped = self._last_dropped
            self._dropped += 1

    def pop(self) -> Event | Gap | None:
        """Take the first: the gap, the oldest event, or None when there is nothing."""
        if self._dropped:
            gap, self._dropped = self.gap, 0
            return gap
        return self._popleft() if self._events else None

    def clear(self) -> None:
        """Forget everything, the gap, too."""
        self._events.clear()
        self._bytes = self._dropped = 0

    def _popleft(self) -> Event:
        event, size = self._events.popleft()
        self._bytes -= size
        return event
