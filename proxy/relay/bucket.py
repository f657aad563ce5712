"""A token bucket: one rate, in bytes or frames per second, that channels share.

Tokens are added at the rate, up to a burst of ``BURST_MS``. A channel may be read while the bucket has a token. What was read is charged afterwards,
and may be more than there was: then no channel is read until the debt is paid. So within a second no more passes than the rate, the burst (2 %) and
one read (``quantum``: 1 %), except that a frame that was begun is read to its end.

A channel that finds no token, or other channels in the queue, waits in the queue. Channels are admitted in the order of the queue, each for one read.
A timer admits as many as there are tokens for, ``quantum`` tokens each; if they read less than that, more are admitted at the next poll.

When the process runs late because the machine is busy, the tokens of that time are added nevertheless, up to ``LATE_MS``, if a channel waited.

``part`` says which millionths of the rate this processor has; the rest is for other processors.
"""

import abc
from collections import OrderedDict
from typing import Final

from librt.vecs import vec
from mypy_extensions import i64, mypyc_attr

from framegate.proxy.network.selector import Selector
from framegate.proxy.network.timer import NEVER, Timer

WHOLE: Final = 1_000_000
BURST_MS: Final = 20
LATE_MS: Final = 500
LATE_NS: Final = LATE_MS * 1_000_000
QUANTA: Final = 100  # reads per second, each of a quantum, that use up the rate
LEAST_BYTES: Final = 16  # of one read
STEP_NS: Final = 1_000_000  # the least time between two additions of tokens while there are some
CROWDED: Final = 100  # channels that wait on average, in thousandths, from which on the rate counts as used up
SOONEST_NS: Final = 500_000
LATEST_NS: Final = 3_600_000_000_000
PLENTY: Final = 1 << 60  # bytes or frames of one read, where there is no rate
NO_END: Final = 1e30  # tokens, where there is no rate

RateKey = tuple[str, str, str]  # Level, name and counter of one rate; see ``quotas``
NO_KEY: Final = ("", "", "")


@mypyc_attr(allow_interpreted_subclasses=True)
class Waiter(abc.ABC):
    """Waits in the queue of a bucket."""

    @abc.abstractmethod
    def let_in(self, late_ns: i64) -> None:
        """It is admitted for one read. ``late_ns``: how much earlier that would have been had the process not run late. Does not raise."""


class Waits:
    """The buckets of one level in whose queue a channel waits."""

    def __init__(self, keys: dict[RateKey, None], cells: "vec[i64]", at: i64) -> None:
        self._keys: Final = keys
        self._cells: vec[i64] = cells
        self._at: Final[i64] = at

    def begin(self, key: RateKey) -> None:
        self._cells[self._at] += 1
        self._keys[key] = None

    def end(self) -> None:
        self._cells[self._at] -= 1


class Bucket(Timer):
    """The tokens of one rate, and the queue for them.

    Args:
        rate: tokens per second, at least 1.
        frames: its tokens are frames, not bytes.
        waits: of its level; None: its queue is not counted.
    """

    def __init__(self, loop: Selector, rate: i64, part: i64, *, frames: bool, key: RateKey = NO_KEY, waits: Waits | None = None) -> None:
        super().__init__()
        self.key: Final = key
        self.frames: Final[bool] = frames
        self.rate: i64 = 0
        self.part: i64 = 0
        self.level: float = NO_END  # tokens in the bucket; below 0: the debt. A channel may be read while it is 1 or more.
        self.quantum: i64 = 1  # the most tokens of one read
        self.passed: i64 = 0  # all tokens that were charged so far
        self._loop: Final = loop
        self._waits: Final = waits
        self._per_ns: float = 0.0  # tokens
        self._burst: float = 0.0
        self._then_ns: i64 = loop.now_ns  # up to when tokens were added
        self._due_ns: i64 = NEVER  # when the first in the queue should be admitted
        self._queue: OrderedDict[Waiter, None] = OrderedDict()
        self._wanting: i64 = 0  # channels of the bucket that wait, here or for another bucket
        self._waited_ns: i64 = 0  # channels in the queue times ns, since the last ``demand``
        self._wanted_ns: i64 = 0  # likewise ``_wanting``
        self._waited_then_ns: i64 = loop.now_ns  # up to when these two were counted
        self._seen_ns: i64 = loop.now_ns  # when ``demand`` was called last, and ``passed`` then
        self._seen_passed: i64 = 0
        self.set_rate(rate, part)
        self.level = self._burst

    @property
    def waiting(self) -> i64:
        return len(self._queue)

    def set_rate(self, rate: i64, part: i64) -> None:
        """Change the rate or the part from now on; rate 0: no limit. A debt stays."""
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
        """Whether it has the whole burst, like a new bucket."""
        self._earn(now_ns, 0)
        return self.level >= self._burst

    def admits(self, now_ns: i64, *, let_in: bool) -> bool:
        """Whether a channel may be read now; ``let_in``: it has waited in the queue, and was admitted."""
        if now_ns - self._then_ns >= STEP_NS:
            self._earn(now_ns, LATE_NS if let_in or self._queue else 0)
        return self.level >= 1 and (let_in or not self._queue)

    def wait(self, waiter: Waiter, now_ns: i64, *, first: bool) -> None:
        """Put a channel into the queue; ``first``: before the others, because it was admitted and other channels took the tokens."""
        self._count_waiting(now_ns)
        if self._waits is not None and not self._queue:
            self._waits.begin(self.key)
        self._queue[waiter] = None
        if first:
            self._queue.move_to_end(waiter, False)
        if self.deadline_ns == NEVER:
            self._arm(now_ns, 1 - self.level)

    def charge(self, amount: i64, now_ns: i64) -> None:
        self.level -= float(amount)
        self.passed += amount
        if self.level >= 1 and self._queue and self.deadline_ns > now_ns:
            self._loop.call_at(now_ns, self)  # at the next poll, after the admitted channels were read

    def leave(self, waiter: Waiter) -> None:
        """Take a channel out of the queue. No effect if it is not there."""
        if waiter in self._queue:
            self._count_waiting(self._loop.now_ns)
            del self._queue[waiter]
            self._end_waits()

    def make_good(self, late_ns: i64) -> None:
        """A channel of this bucket waited for another one, for so long only because the process ran late: add the tokens of that time."""
        self._earn(self._loop.now_ns, min(late_ns, LATE_NS))

    def fire(self, now_ns: i64) -> None:
        self._let_in(now_ns)

    def want(self, count: i64, now_ns: i64) -> None:
        """So many more of its channels wait, here or for another bucket; below 0: fewer."""
        self._count_waiting(now_ns)
        self._wanting += count

    def demand(self, now_ns: i64) -> tuple[i64, i64, i64]:
        """The use of the rate since the last call. Returns: Millionths of the rate that were used; the average number of channels in the queue, in
        thousandths, 0 below ``CROWDED``; and the average number of its channels that waited, here or for another bucket, in thousandths.
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
        """Add the tokens of the time that has passed, up to the burst and those of ``late_ns``."""
        level = self.level + self._per_ns * float(now_ns - self._then_ns)
        most = self._burst + 1 + self._per_ns * float(late_ns)  # 1: at a low rate a token that comes while another one is used is kept
        self._then_ns = now_ns
        self.level = min(level, max(self.level, most))

    def _let_in(self, now_ns: i64) -> None:
        """Admit as many channels as there are tokens for, and set the timer for the others."""
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
        """Set the timer to when so many tokens will have been added."""
        if self._per_ns > 0:
            wait_ns = min(lacks / self._per_ns, float(LATEST_NS))
            self._due_ns = now_ns + max(i64(wait_ns), SOONEST_NS)
            self._loop.call_at(self._due_ns, self)

    def _count_waiting(self, now_ns: i64) -> None:
        self._waited_ns += self.waiting * (now_ns - self._waited_then_ns)
        self._wanted_ns += self._wanting * (now_ns - self._waited_then_ns)
        self._waited_then_ns = now_ns

    def _end_waits(self) -> None:
        if self._waits is not None and not self._queue:
            self._waits.end()
