"""Timers: one heap for each selector. A timer that is armed again or cancelled leaves a void entry in the heap, which is skipped when it is due, or
thrown out with others when they are many.
"""

import abc
import heapq
from collections.abc import Callable
from typing import Final

from mypy_extensions import i64, mypyc_attr

from framegate.proxy.network.faults import Faults

NEVER: Final = 1 << 62
BUDGET_NS: Final = 2_000_000
CLOCK_EACH: Final = 8  # timers between two readings of the clock
COMPACT_FROM: Final = 1024  # a heap of fewer entries is not compacted
MAX_WAITING: Final = 1000  # delayed refusals of one selector
SPREAD: Final = 1 << 20
MIX: Final = 2_654_435_761  # 2**32 divided by the golden ratio: neighbouring numbers get times far from each other


def spread(number: int, length_ns: i64) -> i64:
    """A time from 0 to ``length_ns`` for a number, such as the id of a connection; always the same one. The times of many numbers are even."""
    part: i64 = (number * MIX >> 12) % SPREAD
    return length_ns // SPREAD * part


@mypyc_attr(allow_interpreted_subclasses=True)
class Timer(abc.ABC):
    """Base class of timers."""

    def __init__(self) -> None:
        self.deadline_ns: i64 = NEVER  # when it fires, on the selector's clock; NEVER while it is not armed

    @abc.abstractmethod
    def fire(self, now_ns: i64) -> None:
        """Called when the deadline is reached. The timer is disarmed by then, and may be armed again here. An exception is noted as a fault."""


class CallbackTimer(Timer):
    """A timer that calls a function."""

    def __init__(self, callback: Callable[[], None]) -> None:
        super().__init__()
        self._callback: Callable[[], None] | None = callback

    def fire(self, now_ns: i64) -> None:
        if self._callback is not None:
            self._callback()

    def release(self) -> None:
        """Drop the reference to the function. A cancelled timer stays in the heap until its old deadline."""
        self._callback = None


class TimerHeap:
    """Timers, ordered by deadline. Timers with equal deadlines fire in the order in which they were armed."""

    def __init__(self, clock_ns: Callable[[], int], faults: Faults) -> None:
        self._clock_ns: Final = clock_ns
        self._faults: Final = faults
        self._entries: list[tuple[int, int, Timer]] = []
        self._sequence: i64 = 0
        self._armed: i64 = 0

    def __len__(self) -> int:
        return self._armed

    def arm(self, timer: Timer, deadline_ns: i64) -> None:
        """Arm a timer for ``deadline_ns``. An earlier deadline of the same timer is void."""
        if timer.deadline_ns == NEVER:
            self._armed += 1
        timer.deadline_ns = deadline_ns
        self._sequence += 1
        heapq.heappush(self._entries, (deadline_ns, self._sequence, timer))
        size: i64 = len(self._entries)
        if size > COMPACT_FROM and size > 2 * self._armed:
            self._compact()

    def cancel(self, timer: Timer) -> None:
        """Disarm a timer. No effect if it is not armed."""
        if timer.deadline_ns != NEVER:
            timer.deadline_ns = NEVER
            self._armed -= 1

    def next_ns(self) -> i64:
        """Return a time before which no timer is due, or NEVER: the nearest deadline, also if it is void. The timers of a short connection are void
        long before they are due, and to take them out of the heap one by one would cost more than to arm them.
        """
        if self._armed == 0:
            self._entries.clear()
            return NEVER
        nearest_ns: i64 = self._entries[0][0]
        return nearest_ns

    def fire_due(self, now_ns: i64) -> None:
        """Fire due timers for about ``BUDGET_NS``; the others stay due. Timers that are armed meanwhile wait for the next call."""
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


class DelayedRefusals:
    """The timers of refused peers whose answer is delayed. Their number is bounded, because each peer keeps a descriptor and memory. When one more is
    added than may wait, the oldest is fired at once: in a flood of refusals the delay becomes shorter.
    """

    def __init__(self, most: i64 = MAX_WAITING) -> None:
        self._most: Final[i64] = most
        self._waiting: Final[dict[Timer, None]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, timer: Timer, now_ns: i64) -> None:
        """Add a timer, which its owner arms. Firing the oldest must do no I/O and close nothing."""
        if len(self._waiting) >= self._most:
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            oldest.fire(now_ns)
        self._waiting[timer] = None

    def remove(self, timer: Timer) -> None:
        """Remove a timer. No effect if it is not waiting."""
        self._waiting.pop(timer, None)
