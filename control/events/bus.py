"""The bus: numbers events, keeps the last ones, and delivers them to subscribers."""

import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Final

from framegate.control.errors import FailedPreconditionError
from framegate.control.events.backlog import MAX_BYTES, MAX_EVENTS, Backlog
from framegate.control.events.event import Event, Line, Row
from framegate.control.events.subscriber import Subscriber
from framegate.control.events.subscription import Subscription

__all__ = ["Bus"]

_ROW_BYTES: Final = 1_024
"""Unknown values in the row of a closed connection or a dead processor."""


class Bus:
    """One order of everything that happens. Any thread may call any method.

    Args:
        subscribers: get every event as it is published, also after ``close``: the log.
        on_failure: called with a subscriber's exception, without the lock; it must not raise.
        max_events, max_bytes: of the last events, which are kept for those that come back.

    Attributes:
        subscriptions: those that are open.
    """

    def __init__(
        self,
        subscribers: Sequence[Subscriber] = (),
        *,
        on_failure: Callable[[Exception], None],
        max_events: int = MAX_EVENTS,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self.subscriptions: list[Subscription] = []
        self._subscribers = self._everybody = tuple(subscribers)
        self._on_failure = on_failure
        self._history = Backlog(max_events, max_bytes)
        self._lock = threading.Lock()
        self._newest = 0
        self._closed = False

    @property
    def newest(self) -> int:
        """The number of the last event; 0 before the first."""
        return self._newest

    def publish(self, row: Row, *, level: str = "info", line: Row | str | None = None, size: int = _ROW_BYTES, reserved: bool = False) -> int:
        """Publish an event and return its number.

        Args:
            row: what happened, its name under ``event``; it is the bus' from here on.
            level: ``info``, ``warning`` or ``error``.
            line: the fields that the log writes, or their JSON text; None: those of the row.
            size: about how long they are as JSON, unless ``line`` is that.
            reserved: a place was taken for it in the log (``RowLog.reserve``).
        """
        if line is None:
            line = {key: value for key, value in row.items() if key not in ("event", "level")}
        elif isinstance(line, str):
            size = len(line)
        failures: list[Exception] = []
        with self._lock:
            self._newest += 1
            event = Event(self._newest, time.time_ns(), str(row["event"]), level, row, reserved)
            self._history.append(event, size)
            for subscriber in self._everybody:
                try:
                    subscriber.offer(event, line, size)
                except Exception as error:
                    failures.append(error)
        for failure in failures:
            self._on_failure(failure)
        return event.sequence

    def publish_lines(self, name: str, lines: Sequence[Line], *, level: str = "info") -> None:
        """Publish events of one name together, in their order; rows are decoded only when a subscriber reads them."""
        if not lines:
            return
        failures: list[Exception] = []
        texts = [text for _, text, _ in lines]
        sizes = [len(text) for text in texts]
        with self._lock:
            now_ns = time.time_ns()
            first = self._newest + 1
            self._newest += len(lines)
            events = [Event(sequence, now_ns, name, level, read, False, subject) for sequence, (subject, _, read) in enumerate(lines, first)]
            self._history.extend(events, sizes)
            for subscriber in self._everybody:
                try:
                    subscriber.offer_lines(events, texts)
                except Exception as error:
                    failures.append(error)
        for failure in failures:
            self._on_failure(failure)

    def subscribe(
        self, names: Collection[str] = (), after: int | None = None, *, max_events: int = MAX_EVENTS, max_bytes: int = MAX_BYTES
    ) -> Subscription:
        """A queue of what is published from now on, or behind a number that was seen before. On a bus that is closed it has an end.

        Args:
            names: the events that are wanted; empty: all.
            after: the last number that was seen, 0 for none; None: the newest there is.
            max_events, max_bytes: of the queue.

        Raises:
            FailedPreconditionError: some of what came after it is no longer kept (EVENTS_TOO_OLD), or there never was such a number: it is of
                another process (EVENTS_UNKNOWN). To go on, take a snapshot and subscribe again.
        """
        with self._lock:
            start = self._newest if after is None else self._checked(after)
            made = Subscription(self._lock, start, names, Backlog(max_events, max_bytes), self._remove, self._on_failure)
            for event, size in self._history:
                if event.sequence > start:
                    made.offer(event, "", size)
            if self._closed:
                made.end()
            else:
                self._set_subscriptions([*self.subscriptions, made])
            return made

    def attach(self, subscriber: Subscriber) -> None:
        """Tell a subscriber of what is still kept, without the log's lines, and then of everything as it is published, to the end and beyond
        ``close``; as those that are given at the beginning.
        """
        with self._lock:
            for event, size in self._history:
                subscriber.offer(event, "", size)
            self._subscribers = (*self._subscribers, subscriber)
            self._set_subscriptions(self.subscriptions)

    def _checked(self, after: int) -> int:
        facts = {"newest": str(self._newest), "oldest": str(self._newest - len(self._history) + 1)}
        if not 0 <= after <= self._newest:
            raise FailedPreconditionError(f"there is no event {after} of this process", reason="EVENTS_UNKNOWN", **facts)
        if after < self._newest - len(self._history):
            text = f"the events after {after} are not kept any more: the oldest is {facts['oldest']}"
            raise FailedPreconditionError(text, reason="EVENTS_TOO_OLD", **facts)
        return after

    def close(self) -> None:
        """The end of every subscription, once what waits there is taken. What is published later still reaches ``subscribers``."""
        with self._lock:
            self._closed = True
            for subscription in self.subscriptions:
                subscription.end()
            self._set_subscriptions([])

    def _remove(self, subscription: Subscription) -> None:
        self._set_subscriptions([item for item in self.subscriptions if item is not subscription])

    def _set_subscriptions(self, subscriptions: list[Subscription]) -> None:
        self.subscriptions = subscriptions
        self._everybody = (*self._subscribers, *subscriptions)
