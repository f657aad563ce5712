"""One subscriber's own queue: published events wait here until the subscriber takes them.

A slow subscriber gets a gap with the numbers that it missed in place of the events that did not fit; other subscribers are not affected. No code of
the subscriber runs in the thread that publishes.

A client that reconnects subscribes after the last number that it saw. A gap comes first if the bus does not keep all events after that number.
"""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final

from framegate.control.events.event import Event, Gap, Subscriber

MAX_EVENTS: Final = 1_024
MAX_BYTES: Final = 4 * 1024 * 1024  # of rows as JSON
_SLICE: Final = 64  # about how many events a handler gets in one iteration of the event loop


class Backlog:
    """A bounded queue of events: when it is full the oldest events are dropped, and a gap at its head reports them. Callers lock. ``max_events``: how
    many it holds, at least 1. ``max_bytes``: how large their rows are together. An event that is larger is held alone.
    """

    def __init__(self, max_events: int = MAX_EVENTS, max_bytes: int = MAX_BYTES) -> None:
        assert max_events > 0, "a queue that holds no event cannot return one"
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._parts: deque[tuple[Sequence[Event], Sequence[int]]] = deque()  # events that were put in together, and their sizes
        self._begin = 0  # the place of the oldest event in the first part
        self._count = self._bytes = 0
        self._first_dropped = self._dropped = 0
        self._last_dropped: int | tuple[Sequence[Event], int] = 0  # or its part and place there: an event is made only if it is asked for

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[Event, int]]:
        """The events, oldest first, each with its size."""
        for number, (events, sizes) in enumerate(self._parts):
            for place in range(0 if number else self._begin, len(events)):
                yield events[place], sizes[place]

    def miss(self, first: int, last: int) -> None:
        """Report the events with these numbers as dropped; before the first event is put in. None if ``last < first``."""
        if first <= last:
            self._first_dropped, self._last_dropped, self._dropped = first, last, last - first + 1

    def extend(self, events: Sequence[Event], sizes: Sequence[int]) -> None:
        """Put events at the end, at least one; ``sizes`` are the lengths of their rows as JSON, in bytes. Neither may be changed afterwards."""
        self._parts.append((events, sizes))
        self._count += len(events)
        self._bytes += sum(sizes)
        while (excess := self._count - self._max_events) > 0 or (self._bytes > self._max_bytes and self._count > 1):
            oldest, _ = self._parts[0]
            end = min(self._begin + max(excess, 1), len(oldest))
            if not self._dropped:
                self._first_dropped = oldest[self._begin].sequence
            self._dropped += end - self._begin
            self._last_dropped = oldest, end - 1
            self._take(end)

    def pop(self) -> Event | Gap | None:
        """Take the first: the gap, the oldest event, or None if the queue is empty."""
        if self._dropped:
            last = self._last_dropped
            gap = Gap(self._first_dropped, last if isinstance(last, int) else last[0][last[1]].sequence, self._dropped)
            self._last_dropped = self._dropped = 0
            return gap
        if not self._count:
            return None
        event = self._parts[0][0][self._begin]
        self._take(self._begin + 1)
        return event

    def clear(self) -> None:
        self._parts.clear()
        self._begin = self._count = self._bytes = self._dropped = self._last_dropped = 0

    def _take(self, end: int) -> None:
        """Remove the events of the first part before the place ``end``."""
        events, sizes = self._parts[0]
        self._count -= end - self._begin
        self._bytes -= sum(sizes[self._begin : end])
        self._begin = end
        if end == len(events):
            self._parts.popleft()
            self._begin = 0


class Subscription(Subscriber):
    """Made by ``Bus.subscribe``. Any thread may take events; only one task at a time may wait for them.

    Args:
        after: the number after which the subscription begins.
        names: the events to receive; empty: all.
        on_close: removes the subscription from the bus; called with the lock held.
        on_failure: called with a handler's exception (``each``).
    """

    def __init__(
        self,
        lock: threading.Lock,
        after: int,
        names: Collection[str],
        backlog: Backlog,
        on_close: Callable[["Subscription"], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self.after: Final = after  # as given: a snapshot that is made from now on includes every event up to it
        self._lock = lock
        self._names = frozenset(names)
        self._backlog = backlog
        self._on_close = on_close
        self._on_failure = on_failure
        self._ended = False
        self._waiter: asyncio.Future[None] | None = None

    def offer(self, event: Event, line: object, size: int) -> None:
        self._extend([event], [size])

    def offer_lines(self, events: Sequence[Event], lines: Sequence[str]) -> None:
        """See ``Subscriber``. The waiting task is woken once for all events."""
        self._extend(events, [len(line) for line in lines])

    def _extend(self, events: Sequence[Event], sizes: Sequence[int]) -> None:
        if not self._names or events[0].name in self._names:
            self._backlog.extend(events, sizes)
            self._wake()

    def end(self) -> None:
        """Accept no more events; those in the queue can still be taken. The caller holds the lock of the bus."""
        self._ended = True
        self._wake()

    def close(self) -> None:
        """End the subscription: drop the queued events and end iterations. May be called again."""
        with self._lock:
            self._on_close(self)
            self._backlog.clear()
            self.end()

    def take(self, most: int | None = None) -> list[Event | Gap]:
        """The queued events, oldest first and at most ``most``, without waiting for more."""
        taken: list[Event | Gap] = []
        with self._lock:
            while len(taken) != most and (item := self._backlog.pop()) is not None:
                taken.append(item)
        return taken

    def __aiter__(self) -> "Subscription":
        return self

    async def __anext__(self) -> Event | Gap:
        """Wait for the next event. A wait that is cancelled has taken nothing. The iteration ends after ``close`` of this subscription, or after
        ``close`` of the bus once the queue is empty.
        """
        while True:
            with self._lock:
                item = self._backlog.pop()
                if item is not None:
                    return item
                if self._ended:
                    raise StopAsyncIteration
                assert self._waiter is None, "one task at a time waits for events"
                self._waiter = waiter = asyncio.get_running_loop().create_future()
            try:
                await waiter
            finally:
                with self._lock:
                    if self._waiter is waiter:
                        self._waiter = None

    async def each(self, handle: Callable[[Event | Gap], None]) -> None:
        """Call a handler for each event until the end. It must not block; its exceptions are reported, and the next event follows."""
        async for item in self:
            more = self.take(_SLICE)
            for one in (item, *more):
                try:
                    handle(one)
                except Exception as error:
                    self._on_failure(error)
            if len(more) == _SLICE:
                await asyncio.sleep(0)

    def _wake(self) -> None:
        if self._waiter is not None:
            waiter, self._waiter = self._waiter, None
            with contextlib.suppress(RuntimeError):  # the loop is closed
                waiter.get_loop().call_soon_threadsafe(_set, waiter)


def _set(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
