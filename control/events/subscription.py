"""One subscriber's own queue: published events wait here until the subscriber takes them, at its own pace.

A slow subscriber finds a gap with the numbers that it missed, in place of events that did not fit; others are not affected. Nothing
of a subscriber's runs where the event is published, so it cannot fail there either.

A watch over gRPC is this: subscribe; give a snapshot, as of ``after``; then the bookmark ``after``; then what the subscription gives. What
happened while the snapshot was made waits in the queue, and may be in the snapshot already. A client that comes back subscribes behind the last
number that it saw, and needs no snapshot as long as the bus still keeps what came after it.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Final

from framegate.control.events.backlog import Backlog
from framegate.control.events.event import Event, Gap
from framegate.control.events.subscriber import Subscriber

__all__ = ["Subscription"]

_SLICE: Final = 64
"""About how many events a handler gets in one iteration of the loop."""


class Subscription(Subscriber):
    """Made by ``Bus.subscribe``. Any thread may take; only one task at a time waits.

    Args:
        lock: the bus'.
        after: the number behind which it begins.
        names: the events that it wants; empty: all.
        backlog: where they wait.
        on_close: takes it off the bus; called with the lock held.
        on_failure: called with a handler's exception (``each``).

    Attributes:
        after: as given: a snapshot that is made from now on has seen everything up to it.
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
        self.after: Final = after
        self._lock = lock
        self._names = frozenset(names)
        self._backlog = backlog
        self._on_close = on_close
        self._on_failure = on_failure
        self._ended = False
        self._waiter: asyncio.Future[None] | None = None

    def offer(self, event: Event, line: object, size: int) -> None:
        """See ``Subscriber``."""
        if not self._names or event.name in self._names:
            self._backlog.append(event, size)
            self._wake()

    def offer_lines(self, events: Sequence[Event], lines: Sequence[str]) -> None:
        """See ``Subscriber``: one waking for all of them."""
        if not self._names or events[0].name in self._names:
            self._backlog.extend(events, [len(line) for line in lines])
            self._wake()

    def end(self) -> None:
        """Nothing more comes; what waits can be taken. The bus' lock is held."""
        self._ended = True
        self._wake()

    def close(self) -> None:
        """End the subscription: drop what waits, and end iterations. May be called again."""
        with self._lock:
            self._on_close(self)
            self._backlog.clear()
            self.end()

    def take(self) -> list[Event | Gap]:
        """All that waits, oldest first, without waiting for more."""
        taken: list[Event | Gap] = []
        with self._lock:
            while (item := self._backlog.pop()) is not None:
                taken.append(item)
        return taken

    def _take_slice(self) -> list[Event | Gap]:
        taken: list[Event | Gap] = []
        with self._lock:
            while len(taken) < _SLICE and (item := self._backlog.pop()) is not None:
                taken.append(item)
        return taken

    def __aiter__(self) -> "Subscription":
        return self

    async def __anext__(self) -> Event | Gap:
        """The next, waited for; cancelled, it has taken nothing. The iteration ends with ``close``, or the bus', when nothing waits any more."""
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
        """Call a handler for each event until the end. It must not block; an exception costs it that event, and is reported."""
        async for item in self:
            more = self._take_slice()
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
