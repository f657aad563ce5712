"""The bus: numbers events, keeps the last ones, and delivers them to subscribers."""

import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Final

from framegate.control.errors import FailedPreconditionError
from framegate.control.events.event import Event, EventLines, Read, Row, Subscriber
from framegate.control.events.subscription import MAX_BYTES, MAX_EVENTS, Backlog, Subscription

_ROW_BYTES: Final = 1_024  # the assumed size of a row that is not JSON text yet


class Bus:
    """One sequence of all events. Any thread may call any method.

    Args:
        subscribers: get every event as it is published, also after ``close``: the log.
        on_failure: called with a subscriber's exception, without the lock; it must not raise.
        max_events, max_bytes: bounds of the last events, which are kept for subscribers that reconnect.
    """

    def __init__(
        self,
        subscribers: Sequence[Subscriber] = (),
        *,
        on_failure: Callable[[Exception], None],
        max_events: int = MAX_EVENTS,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self.subscriptions: list[Subscription] = []  # the open ones
        self._subscribers = self._receivers = tuple(subscribers)
        self._on_failure = on_failure
        self._history = Backlog(max_events, max_bytes)
        self._lock = threading.Lock()
        self.newest = 0  # the number of the last event; 0 before the first
        self._closed = False

    @property
    def oldest(self) -> int:
        """The number of the oldest event that is kept; one more than the newest if there is none."""
        with self._lock:
            return self.newest - len(self._history) + 1

    def publish(self, row: Row, *, level: str = "info", line: Row | str | None = None, size: int = _ROW_BYTES, reserved: bool = False) -> int:
        """Publish an event and return its number.

        Args:
            row: the fields, with the event's name under ``event``; the caller must not change it afterwards.
            level: ``info``, ``warning`` or ``error``.
            line: the fields that the log writes, or their JSON text; None: those of the row.
            size: about how long they are as JSON; ignored if ``line`` is text.
            reserved: a place was reserved for it in the log (``RowLog.reserve``).
        """
        if line is None:
            line = {key: value for key, value in row.items() if key not in ("event", "level")}
        elif isinstance(line, str):
            size = len(line)
        with self._lock:
            self.newest += 1
            event = Event(self.newest, time.time_ns(), str(row["event"]), level, row, reserved)
            self._history.extend([event], [size])
            failures = self._deliver(lambda subscriber: subscriber.offer(event, line, size))
        for failure in failures:
            self._on_failure(failure)
        return event.sequence

    def publish_lines(self, name: str, texts: Sequence[str], read: Read, *, subjects: Sequence[int] = (), level: str = "info") -> None:
        """Publish events of one name together, in their order; a row is decoded only when a subscriber reads it. See ``EventLines``. The caller must
        not change ``texts`` and ``subjects`` afterwards. Without ``subjects`` they are not known.
        """
        if not texts:
            return
        sizes = list(map(len, texts))
        with self._lock:
            events = EventLines(self.newest + 1, time.time_ns(), name, level, texts, subjects or [0] * len(texts), read)
            self.newest += len(texts)
            self._history.extend(events, sizes)
            failures = self._deliver(lambda subscriber: subscriber.offer_lines(events, texts))
        for failure in failures:
            self._on_failure(failure)

    def _deliver(self, offer: Callable[[Subscriber], None]) -> list[Exception]:
        failures = []
        for subscriber in self._receivers:
            try:
                offer(subscriber)
            except Exception as error:
                failures.append(error)
        return failures

    def subscribe(
        self,
        names: Collection[str] = (),
        after: int | None = None,
        *,
        max_events: int = MAX_EVENTS,
        only_kept: bool = False,
    ) -> Subscription:
        """A queue of the events that are published from now on, or after a given number. On a closed bus its iteration ends. ``names``: the events to
        receive; empty: all. ``after``: the last number that was seen, 0 for none; None: the newest there is. If events after it are no longer kept, a
        gap comes first. Raises FailedPreconditionError: there is no such event in this process (EVENTS_UNKNOWN).
        """
        with self._lock:
            start = self.newest if after is None else self._checked(after)
            backlog = Backlog(max_events)
            backlog.miss(start + 1, self.newest - len(self._history))
            made = Subscription(self._lock, start, names, backlog, self._remove, self._on_failure)
            for event, size in self._history if start < self.newest else ():
                if event.sequence > start:
                    made.offer(event, "", size)
            if self._closed or only_kept:
                made.end()
            else:
                self._set_subscriptions([*self.subscriptions, made])
            return made

    def attach(self, subscriber: Subscriber, *, kept: bool = True) -> None:
        """Give a subscriber the events that are still ``kept``, without the log's lines, and then every event as it is published, also after
        ``close``, like the subscribers of the constructor, and before those.
        """
        with self._lock:
            for event, size in self._history if kept else ():
                subscriber.offer(event, "", size)
            self._subscribers = (subscriber, *self._subscribers)
            self._set_subscriptions(self.subscriptions)

    def detach(self, subscriber: Subscriber) -> None:
        with self._lock:
            self._subscribers = tuple(item for item in self._subscribers if item is not subscriber)
            self._set_subscriptions(self.subscriptions)

    def _checked(self, after: int) -> int:
        if not 0 <= after <= self.newest:
            text = f"there is no event {after} of this process"
            raise FailedPreconditionError(text, reason="EVENTS_UNKNOWN", newest=str(self.newest))
        return after

    def close(self) -> None:
        """End every subscription once its queue is empty. Later events still reach ``subscribers``."""
        with self._lock:
            self._closed = True
            for subscription in self.subscriptions:
                subscription.end()
            self._set_subscriptions([])

    def _remove(self, subscription: Subscription) -> None:
        self._set_subscriptions([item for item in self.subscriptions if item is not subscription])

    def _set_subscriptions(self, subscriptions: list[Subscription]) -> None:
        self.subscriptions = subscriptions
        self._receivers = (*self._subscribers, *subscriptions)
