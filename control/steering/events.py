"""Who is told what happens: event rows go from the fleet to everybody that subscribed."""

import contextlib
from collections.abc import Callable

from control.logs import RowLog
from control.plane import Row, Subscriber

__all__ = ["Events"]


class Events:
    """Those who want to see event rows. A subscriber that raises is our bug: it is logged, and the others still get the row."""

    def __init__(self, log: RowLog) -> None:
        self._log = log
        self._subscribers: list[Subscriber] = []

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """See ``ControlPlane.subscribe``."""
        self._subscribers.append(subscriber)

        def cancel() -> None:
            with contextlib.suppress(ValueError):
                self._subscribers.remove(subscriber)

        return cancel

    def publish(self, row: Row) -> None:
        """Give a row to everybody."""
        for subscriber in tuple(self._subscribers):
            try:
                subscriber(row)
            except Exception as error:
                self._log.write("subscriber_failed", level="error", error=repr(error))
