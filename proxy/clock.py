"""The interface of clocks: code that needs the time gets a ``Clock``, so that tests can set the time."""

import abc
import time


class Clock(abc.ABC):
    """A monotonic clock in nanoseconds."""

    @abc.abstractmethod
    def now_ns(self) -> int:
        """CLOCK_MONOTONIC in nanoseconds; comparable between the processes of one machine."""


class MonotonicClock(Clock):
    """The system's clock. ``now_ns`` is the system's function itself, so that a call costs no Python frame."""

    now_ns = staticmethod(time.monotonic_ns)
