"""A token bucket: one rate, in bytes or frames per second, that channels share.

Tokens come at the rate, up to a burst of ``BURST_MS``. A channel is read while there is a token, and pays afterwards for what came, which may be
more than there was: then no channel is read until that is paid for. So in a second no more passes than its allowance, the burst (2 %) and the last
read (``quantum``: 1 %), unless that read began a frame, which is finished.

A channel that finds no token, or others waiting, waits. The first in the queue is let in first, for one read. A timer lets in as many as the tokens
are enough for, by ``quantum``; when they took less, more are let in with the next poll.

The process may run late, since the machine is busy. Then the tokens of that time, up to ``LATE_MS``, come all the same if a channel waited for them.

``part`` is the millionth parts of the rate that are this processor's; the rest is other processors'.
"""

import abc
from collections import OrderedDict
from typing import Final

from librt.vecs import vec
from mypy_extensions import i64, mypyc_attr

from framegate.proxy.network.selector import Selector
from framegate.proxy.network.timer import NEVER, Timer

__all__ = ["BURST_MS", "LATE_MS", "NO_KEY", "WHOLE", "Bucket", "RateKey", "Waiter", "Waits"]

WHOLE: Final = 1_000_000
BURST_MS: Final = 20
LATE_MS: Final = 500
LATE_NS: Final = LATE_MS * 1_000_000
QUANTA: Final = 100  # reads that a second's allowance is enough for
LEAST_BYTES: Final = 16  # of one read
STEP_NS: Final = 1_000_000  # tokens are counted no more often than this while there are some
CROWDED: Final = 100  # channels that wait on average, in thousandths, where the rate is what stops them
SOONEST_NS: Final = 500_000
LATEST_NS: Final = 3_600_000_000_000
PLENTY: Final = 1 << 60  # of one read, where there is no rate
NO_END: Final = 1e30  # tokens, likewise

RateKey = tuple[str, str, str]
"""Level, name and counter of one rate; see ``quotas``."""
NO_KEY: Final = ("", "", "")


@mypyc_attr(allow_interpreted_subclasses=True)
class Waiter(abc.ABC):
    """Waits for a token."""

    @abc.abstractmethod
    def let_in(self, late_ns: i64) -> None:
        """It may read once, and could have been let in so much earlier if the process had run. Does not raise."""


class Waits:
    """The buckets of one level that are waited for.

    Args:
        keys: those that are waited for are noted there.
        cells, at: the cell that shows how many there are.
    """

    def __init__(self, keys: dict[RateKey, None], cells: "vec[i64]", at: i64) -> None:
        self._keys: Final = keys
        self._cells: vec[i64] = cells
        self._at: Final[i64] = at

    def begin(self, key: RateKey) -> None:
        """A bucket is waited for."""
        self._cells[self._at] += 1
        self._keys[key] = None

    def end(self) -> None:
        """A bucket is not waited for any more."""
        self._cells[self._at] -= 1


class Bucket(Timer):
    """Args:
        loop: for the timer.
        rate: tokens per second, at least 1.
        part: see the module.
        frames: its tokens are frames, not bytes.
        key: of its rate.
        waits: of its level; None: it is not counted.

    Attributes:
        level: tokens that are there; below 0: that are owed. A channel may read from 1 on.
        quantum: what one read may take.
        passed: tokens used, ever.
    """

    def __init__(self, loop: Selector, rate: i64, part: i64, *, frames: bool, key: RateKey = NO_KEY, waits: Waits | None = None) -> None:
        super().__init__()
        self.key: Final = key
        self.frames: Final[bool] = frames
        self.rate: i64 = 0
        self.part: i64 = 0
        self.level: float = NO_END
        self.quantum: i64 = 1
        self.passed: i64 = 0
        self._loop: Final = loop
        self._waits: Final = waits
        self._per_ns: float = 0.0  # tokens
        self._burst: float = 0.0
        self._then_ns: i64 = loop.now_ns  # up to when tokens were counted
        self._due_ns: i64 = NEVER  # when the first in the queue should have been let in
        self._queue: OrderedDict[Waiter, None] = OrderedDict()
        self._wanting: i64 = 0  # channels that wait, here or elsewhere
        self._waited_ns: i64 = 0  # times channels, since ``demand`` was asked; so is the next one
        self._wanted_ns: i64 = 0
        self._waited_then_ns: i64 = loop.now_ns  # up to when that was counted
        self._seen_ns: i64 = loop.now_ns  # when ``demand`` was asked, and what had passed
        self._seen_passed: i64 = 0
        self.set_rate(rate, part)
        self.level = self._burst

    @property
    def waiting(self) -> i64:
        """Channels that wait for its tokens."""
        return len(self._queue)

    def set_rate(self, rate: i64, part: i64) -> None:
        """Another rate, or part of it, from now on; rate 0: all may read. What was used is used."""
        now_ns = self._loop.now_ns
        self._earn(now_ns, LATE_NS if self._queue else 0)
        self.rate = rate
        self.part = part
        if rate == 0:
            self._per_ns = 0.0
            self.level = self._burst = NO_END
            self.quantum = PLENTY
        else:
            per_second = float(rate) * float(part) / float(WHOLE)
            self._per_ns = per_second / 1e9
            self._burst = max(per_second * BURST_MS / 1000, 1.0)
            self.quantum = max(rate * part // (WHOLE * QUANTA), 1 if self.frames else LEAST_BYTES)
            self.level = min(self.level, self._burst + self._per_ns * LATE_NS)
        self._loop.cancel(self)
        self._let_in(now_ns)

    def is_full(self, now_ns: i64) -> bool:
        """Whether it is as new: nothing is owed, and the burst is there."""
        self._earn(now_ns, 0)
        return self.level >= self._burst

    def admits(self, now_ns: i64, *, let_in: bool) -> bool:
        """Whether a channel, which was let in or was not, may read now."""
        if now_ns - self._then_ns >= STEP_NS:
            self._earn(now_ns, LATE_NS if let_in or self._queue else 0)
        return self.level >= 1 and (let_in or not self._queue)

    def wait(self, waiter: Waiter, now_ns: i64, *, first: bool) -> None:
        """Have a channel wait: behind the others, or, if it was let in and others were faster, before them."""
        self._count_waiting(now_ns)
        if self._waits is not None and not self._queue:
            self._waits.begin(self.key)
        self._queue[waiter] = None
        if first:
            self._queue.move_to_end(waiter, False)
        if self.deadline_ns == NEVER:
            self._arm(now_ns, 1 - self.level)

    def charge(self, amount: i64, now_ns: i64) -> None:
        """So much was read."""
        self.level -= float(amount)
        self.passed += amount
        if self.level >= 1 and self._queue and self.deadline_ns > now_ns:
            self._loop.call_at(now_ns, self)  # with the next poll, when those that were let in have read

    def leave(self, waiter: Waiter) -> None:
        """A channel waits no more; harmless when it does not wait."""
        if waiter in self._queue:
            self._count_waiting(self._loop.now_ns)
            del self._queue[waiter]
            self._end_waits()

    def make_good(self, late_ns: i64) -> None:
        """A channel of this bucket waited for another one, and so much of that since the process ran late: its tokens come all the same."""
        self._earn(self._loop.now_ns, min(late_ns, LATE_NS))

    def fire(self, now_ns: i64) -> None:
        self._let_in(now_ns)

    def want(self, count: i64, now_ns: i64) -> None:
        """So many more of its channels wait, here or for another bucket."""
        self._count_waiting(now_ns)
        self._wanting += count

    def demand(self, now_ns: i64) -> tuple[i64, i64, i64]:
        """What was asked of it since this was asked last.

        Returns:
            Millionths of the rate that were used; how many channels waited here on average, in thousandths, 0 when hardly any did; and how many of
            its channels waited, here or for another bucket, likewise.
        """
        self._count_waiting(now_ns)
        lasted_ns = max(now_ns - self._seen_ns, 1_000_000)
        used = i64(float(self.passed - self._seen_passed) * 1e9 / float(lasted_ns) / float(max(self.rate, 1)) * WHOLE)
        waiting = self._waited_ns * 1000 // lasted_ns
        wanting = self._wanted_ns * 1000 // lasted_ns
        self._seen_ns = now_ns
        self._seen_passed = self.passed
        self._waited_ns = 0
        self._wanted_ns = 0
        return min(used, WHOLE), waiting if waiting >= CROWDED else 0, wanting

    def _earn(self, now_ns: i64, late_ns: i64) -> None:
        """Count the tokens that have come, up to the burst and what comes in ``late_ns``."""
        level = self.level + self._per_ns * float(now_ns - self._then_ns)
        most = self._burst + 1 + self._per_ns * float(late_ns)  # 1: at a low rate, the token that comes while another one is used is not lost
        self._then_ns = now_ns
        self.level = min(level, max(self.level, most))

    def _let_in(self, now_ns: i64) -> None:
        """Let in as many as the tokens allow, and see that the others' turn comes."""
        if not self._queue:
            return
        self._earn(now_ns, LATE_NS)
        self._count_waiting(now_ns)
        late_ns = max(now_ns - self._due_ns, 0)
        self._due_ns = NEVER
        left = self.level
        while left >= 1 and self._queue:
            waiter, _ = self._queue.popitem(False)
            left -= float(self.quantum)
            waiter.let_in(late_ns)
        if self._queue:
            self._arm(now_ns, 1 - left)
        else:
            self._end_waits()

    def _arm(self, now_ns: i64, lacks: float) -> None:
        """Fire when so many tokens have come."""
        if self._per_ns > 0:
            wait_ns = min(lacks / self._per_ns, float(LATEST_NS))
            self._due_ns = now_ns + max(i64(wait_ns), SOONEST_NS)
            self._loop.call_at(self._due_ns, self)

    def _count_waiting(self, now_ns: i64) -> None:
        self._waited_ns += self.waiting * (now_ns - self._waited_then_ns)
        self._wanted_ns += self._wanting * (now_ns - self._waited_then_ns)
        self._waited_then_ns = now_ns

    def _end_waits(self) -> None:
        """Note it if nobody waits any more."""
        if self._waits is not None and not self._queue:
            self._waits.end()
