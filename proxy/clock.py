"""Time, as a collaborator: what asks for the time is given a ``Clock``, so that tests own it."""

import abc
import time

__all__ = ["Clock", "MonotonicClock"]


class Clock(abc.ABC):
    """Nanoseconds that never go back."""

    @abc.abstractmethod
    def now_ns(self) -> int:
        """CLOCK_MONOTONIC in nanoseconds; comparable between the processes of one machine."""


class MonotonicClock(Clock):
    """The system's clock. ``now_ns`` is the system's function itself, so that a caller who keeps it pays for no frame of ours."""

    now_ns = staticmethod(time.monotonic_ns)
