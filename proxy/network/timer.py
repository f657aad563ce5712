"""Timers: one heap for each selector. A timer that is armed again or cancelled leaves a stale entry behind, which is skipped when it is due."""

import abc
import heapq
from collections.abc import Callable
from typing import Final

from mypy_extensions import i64, mypyc_attr

from framegate.proxy.network.faults import Faults

__all__ = ["NEVER", "CallbackTimer", "Timer", "TimerHeap"]

NEVER: Final = 1 << 62
BUDGET_NS: Final = 2_000_000
CLOCK_EACH: Final = 8  # timers between two readings of the clock
COMPACT_FROM: Final = 1024  # below this many entries stale ones do no harm


@mypyc_attr(allow_interpreted_subclasses=True)
class Timer(abc.ABC):
    """Something that happens at a time.

    Attributes:
        deadline_ns: when, on the selector's clock; NEVER when it is not armed.
    """

    def __init__(self) -> None:
        self.deadline_ns: i64 = NEVER

    @abc.abstractmethod
    def fire(self, now_ns: i64) -> None:
        """The deadline is reached. The timer is no longer armed, and may be armed again from here. What raises is a fault, and stays disarmed."""


class CallbackTimer(Timer):
    """Calls a function. ``release`` drops the reference to it and to its object."""

    def __init__(self, callback: Callable[[], None]) -> None:
        super().__init__()
        self._callback: Callable[[], None] | None = callback

    def fire(self, now_ns: i64) -> None:
        if self._callback is not None:
            self._callback()

    def release(self) -> None:
        """Drop the function. A cancelled timer stays in the heap until it would have been due."""
        self._callback = None


class TimerHeap:
    """Timers by deadline. Two of the same deadline fire in the order in which they were armed."""

    def __init__(self, clock_ns: Callable[[], int], faults: Faults) -> None:
        self._clock_ns: Final = clock_ns
        self._faults: Final = faults
        self._entries: list[tuple[int, int, Timer]] = []
        self._sequence: i64 = 0
        self._armed: i64 = 0

    def __len__(self) -> int:
        return self._armed

    def arm(self, timer: Timer, deadline_ns: i64) -> None:
        """Let a timer fire at ``deadline_ns``, instead of when it was to fire before."""
        if timer.deadline_ns == NEVER:
            self._armed += 1
        timer.deadline_ns = deadline_ns
        self._sequence += 1
        heapq.heappush(self._entries, (deadline_ns, self._sequence, timer))
        size: i64 = len(self._entries)
        if size > COMPACT_FROM and size > 2 * self._armed:
            self._compact()

    def cancel(self, timer: Timer) -> None:
        """Disarm; harmless when it is not armed."""
        if timer.deadline_ns != NEVER:
            timer.deadline_ns = NEVER
            self._armed -= 1

    def next_ns(self) -> i64:
        """The nearest deadline, or NEVER."""
        while self._entries:
            deadline_ns, _, timer = self._entries[0]
            if timer.deadline_ns == deadline_ns:
                return deadline_ns
            heapq.heappop(self._entries)
        return NEVER

    def fire_due(self, now_ns: i64) -> None:
        """Fire what is due, for about ``BUDGET_NS``; what is left stays due. Timers that are armed meanwhile wait for the next call, however early
        their deadline.
        """
        last = self._sequence
        fired: i64 = 0
        until_ns: i64 = NEVER
        while self._entries:
            deadline_ns, sequence, timer = self._entries[0]
            if timer.deadline_ns != deadline_ns:
                heapq.heappop(self._entries)
                continue
            if deadline_ns > now_ns or sequence > last:
                return
            heapq.heappop(self._entries)
            timer.deadline_ns = NEVER
            self._armed -= 1
            try:
                timer.fire(now_ns)
            except Exception as error:
                self._faults.note("timer", error)
            fired += 1
            if fired % CLOCK_EACH == 0:
                clock_ns: i64 = self._clock_ns()
                if clock_ns >= until_ns:
                    return
                if fired == CLOCK_EACH:
                    until_ns = clock_ns + BUDGET_NS

    def _compact(self) -> None:
        self._entries = [entry for entry in self._entries if entry[2].deadline_ns == entry[0]]
        heapq.heapify(self._entries)
