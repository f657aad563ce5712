"""A bucket: one rate, in bytes or frames a second, and who shares it.

Tokens come at the rate, up to a burst of ``BURST_MS``. Who reads is let in while there is a token, and pays afterwards for what came, which may be
more than there was: then nobody is let in until that is paid for. So a second passes no more than its allowance, the burst (2 %) and the last
read, which is limited (``QUANTUM``: 1 %), unless that read began a frame, which is finished.

Who finds the bucket empty, or others waiting, waits. *Fair queueing*: a stake's ``tag`` is how much it had of this bucket, and the one with the least
is let in first, the oldest of equals. The bucket's virtual time is the tag of who was let in last; who was away goes on from there, so that nobody
saves up for later, and who is new comes a read behind, so that each of them moves it on: nobody can be overtaken for ever. Who took a large
frame is behind until the others had as much; where nobody waits nothing is owed to anybody. Who is let in makes one read. A timer lets in as many
as the tokens allow by what such a read takes of late; when they have read, and tokens are left, more are let in in the next poll: who has little to
say leaves the rest to others.

*Late*: who runs late, since the machine is busy, has not saved up either; tokens of ``LATE_MS`` come all the same while somebody waits for them.

Integers throughout. ``part`` is the millionth parts of the rate that are this processor's; the rest is others'.
"""

import abc
import heapq
from typing import Final

from librt.vecs import vec
from mypy_extensions import i64, mypyc_attr

from proxy.network.event_loop import EventLoop
from proxy.network.timer import NEVER, Timer

__all__ = ["BURST_MS", "WHOLE", "Bucket", "Demand", "Stake", "Tally", "Waiter"]

WHOLE: Final = 1_000_000
BURST_MS: Final = 20
BURST_NS: Final = BURST_MS * 1_000_000
LATE_MS: Final = 500  # tokens of so long come all the same while somebody waits for them and we do not run
LATE_NS: Final = LATE_MS * 1_000_000
SURE_QUANTA: Final = 4
QUANTA: Final = 100  # reads that a second's allowance is enough for
LEAST_BYTES: Final = 16  # of one read
STEP_NS: Final = 1_000_000  # tokens are counted no more often than this while there are some
SOONEST_NS: Final = 500_000
LATEST_US: Final = 3_600_000_000
TOKEN: Final = 1_000_000_000  # in thousandths times microseconds
MOST_EARNED: Final = 4_000_000_000_000_000_000  # thousandths of tokens times microseconds, well below 2^63
MOST_OWED: Final = 4_000_000_000  # tokens that one wait is reckoned for; a timer that comes too early is armed again
PLENTY: Final = 1 << 60
CROWDED_MILLI: Final = 100  # who waits on average, in thousandths, where the rate is what holds readers up

OUT: Final = 0  # does not wait
WAITING: Final = 1
LET_IN: Final = 2  # may read once although others wait
KEPT: Final = 3  # was let through here, and waits for another bucket: may read whatever comes


@mypyc_attr(allow_interpreted_subclasses=True)
class Waiter(abc.ABC):
    """Who waits for a token."""

    @abc.abstractmethod
    def let_in(self, late_ns: i64) -> None:
        """It is its turn, which could have been so much earlier if we had run. Does not raise."""


class Stake:
    """One reader's part in one bucket.

    Attributes:
        bucket: whose tokens it uses.
        state: OUT, WAITING, LET_IN or KEPT.
        tag: what it had, on the bucket's virtual time; -1: nothing yet.
        ticket: of its place in the queue; 0: none.
    """

    def __init__(self, bucket: "Bucket", waiter: Waiter) -> None:
        self.bucket: Final = bucket
        self.waiter: Final = waiter
        self.state: i64 = OUT
        self.tag: i64 = -1
        self.ticket: i64 = 0


class Tally:
    """How many buckets of one level hold somebody up, kept in a cell."""

    def __init__(self, cells: "vec[i64]", at: i64) -> None:
        self._cells: vec[i64] = cells
        self._at: Final[i64] = at

    def add(self, count: i64) -> None:
        """So many more."""
        self._cells[self._at] += count


class Demand:
    """What was asked of a bucket since the last look.

    Attributes:
        passed: tokens used, per second.
        waiting: how many waited here, on average, in thousandths; 0 when hardly anybody did.
        wanting: likewise, here or for another bucket that holds for them, too.
    """

    def __init__(self, passed: i64, waiting: i64, wanting: i64) -> None:
        self.passed: Final[i64] = passed
        self.waiting: Final[i64] = waiting
        self.wanting: Final[i64] = wanting


class Bucket(Timer):
    """Args:
        loop: for the timer.
        rate: tokens a second, at least 1.
        part: see the module.
        frames: its tokens are frames, not bytes.
        tally: of its level; None: it is not counted.

    Attributes:
        level: tokens that are there; below 0, that are owed.
        waiting: stakes that wait.
        quantum: what one read may take.
        passed: tokens used, ever.
    """

    def __init__(self, loop: EventLoop, rate: i64, part: i64, *, frames: bool, tally: Tally | None = None) -> None:
        super().__init__()
        self.frames: Final[bool] = frames
        self.rate: i64 = 0
        self.part: i64 = 0
        self.level: i64 = 0
        self.waiting: i64 = 0
        self.quantum: i64 = 1
        self.passed: i64 = 0
        self._loop: Final = loop
        self._tally: Final = tally
        self._milli: i64 = 0  # of a token, a second, that are ours
        self._chunk_us: i64 = 1  # that ``MOST_EARNED`` is enough for
        self._due_ns: i64 = NEVER  # when who waits should have been let in
        self._burst: i64 = 1
        self._most: i64 = 1  # tokens that are kept for who waits
        self._then_ns: i64 = loop.now_ns  # up to when tokens were counted
        self._rest: i64 = 0  # of a token, in ``_milli`` times microseconds
        self._virtual: i64 = 0
        self._queue: list[tuple[int, int, Stake]] = []  # by tag and ticket
        self._ticket: i64 = 0
        self._away: i64 = 0  # let in, and has not read
        self._portion: i64 = 1  # what one who was let in takes
        self._waited_ns: i64 = 0  # times stakes
        self._wanting: i64 = 0  # those whose readers wait, here or elsewhere
        self._wanted_ns: i64 = 0  # likewise
        self._waited_then_ns: i64 = loop.now_ns
        self._seen_ns: i64 = loop.now_ns  # by ``demand``; so are the next three
        self._seen_passed: i64 = 0
        self._seen_waited_ns: i64 = 0
        self._seen_wanted_ns: i64 = 0
        self._seen_virtual: i64 = 0
        self._alone: i64 = 0  # tokens used since then for which nobody waited
        self.set_rate(rate, part)
        self.level = self._burst

    def set_rate(self, rate: i64, part: i64) -> None:
        """Another rate, or part of it, from now on; 0: all may read. What was used is used."""
        now_ns = self._loop.now_ns
        if self.rate != 0:
            self._earn(now_ns)
        self._then_ns = now_ns
        self.rate = rate
        self.part = part
        if rate == 0:
            self._milli = 0
            self.level = self._burst = self._most = self.quantum = PLENTY
        else:
            self._milli = rate * part // 1000
            self._chunk_us = MOST_EARNED // max(self._milli, 1)
            self._burst = max(self._milli * BURST_MS // 1_000_000, 1)
            self._most = max(self._milli * LATE_MS // 1_000_000, 1)
            self.quantum = max(self._milli // (1000 * QUANTA), 1 if self.frames else LEAST_BYTES)
            self.level = min(self.level, self._most)
            self._portion = self.quantum
        self._loop.cancel(self)
        self._let_in(now_ns)

    def is_full(self, now_ns: i64) -> bool:
        """Whether it is as new: nothing is owed, and the burst is there."""
        self._earn(now_ns)
        return self.level >= self._burst

    def admits(self, stake: Stake, now_ns: i64) -> bool:
        """Whether a stake may read now."""
        if stake.state == KEPT:
            return True
        if now_ns - self._then_ns >= STEP_NS:
            self._earn(now_ns)
        return self.level > 0 and (self.waiting == 0 or stake.state == LET_IN)

    def wait(self, stake: Stake, now_ns: i64) -> None:
        """Have a stake wait for its turn."""
        self._count_waiting(now_ns)
        if stake.state == LET_IN:  # others were faster
            self._away -= 1
        stake.tag = self._virtual + self._portion if stake.tag < 0 else max(stake.tag, self._virtual)
        stake.state = WAITING
        self._ticket += 1
        stake.ticket = self._ticket
        self._wait_more(1)
        if i64(len(self._queue)) > 2 * self.waiting + 64:
            self._queue = [entry for entry in self._queue if entry[2].ticket == entry[1]]
            heapq.heapify(self._queue)
        heapq.heappush(self._queue, (stake.tag, stake.ticket, stake))
        if self.deadline_ns == NEVER:
            self._arm(now_ns, 1 - self.level)

    def charge(self, stake: Stake, amount: i64, now_ns: i64) -> None:
        """A stake's reader has read so much."""
        self.level -= amount
        self.passed += amount
        stake.tag = max(stake.tag, self._virtual) + amount
        if stake.state == WAITING:  # it finishes a frame
            return
        alone = stake.state != LET_IN and self._away <= 0
        if stake.state == LET_IN:
            self._away -= 1
            self._portion = min(max(self._portion + ((amount - self._portion) >> 2), self.quantum >> 1, 1), MOST_OWED)
        stake.state = OUT
        if self._away > 0:
            return
        if self.waiting == 0:
            if alone:  # what nobody waits for says nothing of how many would share
                self._seen_virtual += max(stake.tag - self._virtual, 0)
                self._alone += amount
            self._virtual = max(self._virtual, stake.tag)
        elif self.level > 0:  # once this poll's events are seen: who has just read may want to go on, and be the first again
            self._loop.call_at(now_ns, self)

    def keep(self, stake: Stake) -> None:
        """A stake that was admitted waits for another bucket: its next read is admitted, too, or two buckets could send it to and fro for ever."""
        if stake.state == LET_IN:
            self._away -= 1
        stake.state = KEPT

    def leave(self, stake: Stake, now_ns: i64) -> None:
        """A stake wants nothing any more; harmless when it does not wait."""
        if stake.state == WAITING:
            self._count_waiting(now_ns)
            self._wait_more(-1)
            stake.ticket = 0
        elif stake.state == LET_IN:
            self._away -= 1
        stake.state = OUT

    def want(self, count: i64, now_ns: i64) -> None:
        """So many more readers that have a stake wait, here or elsewhere."""
        self._count_waiting(now_ns)
        self._wanting += count

    def make_good(self, late_ns: i64) -> None:
        """Somebody who has a stake waited elsewhere, and so much of that since we ran late: its tokens come all the same."""
        if late_ns > BURST_NS:
            self._earn(self._loop.now_ns, self._burst + min(late_ns, LATE_NS) // 1000 * self._milli // TOKEN)

    def fire(self, now_ns: i64) -> None:
        self._let_in(now_ns)

    def demand(self, now_ns: i64) -> Demand:
        """What was asked of it since this was asked last."""
        self._earn(now_ns)
        self._count_waiting(now_ns)
        lasted_us = max((now_ns - self._seen_ns) // 1000, 1000)
        used = min(self.passed - self._seen_passed, MOST_OWED)
        waited_milli = (self._waited_ns - self._seen_waited_ns) // lasted_us
        wanted_milli = (self._wanted_ns - self._seen_wanted_ns) // lasted_us
        self._seen_ns = now_ns
        self._seen_passed = self.passed
        self._seen_waited_ns = self._waited_ns
        self._seen_wanted_ns = self._wanted_ns
        waiting = waited_milli if waited_milli >= CROWDED_MILLI else 0
        went = self._virtual - self._seen_virtual  # what each had who is always held up
        if waiting != 0 and went >= SURE_QUANTA * self.quantum:
            wanted_milli = min(wanted_milli, max((used - self._alone) * 1000 // went, 1000))
        self._seen_virtual = self._virtual
        self._alone = 0
        return Demand(used * 1_000_000 // lasted_us, waiting, wanted_milli)

    def _earn(self, now_ns: i64, most: i64 = 0) -> None:
        """Count the tokens that have come, up to the burst, to ``LATE_MS`` where somebody waits, or to ``most``."""
        lasted_us = (now_ns - self._then_ns) // 1000
        if lasted_us <= 0:
            return
        self._then_ns += lasted_us * 1000
        before = self.level
        chunks = lasted_us // self._chunk_us
        thousandths = self._milli * (lasted_us % self._chunk_us) + self._rest
        self.level += thousandths // TOKEN
        self._rest = thousandths % TOKEN
        if chunks != 0:
            self.level += chunks * (self._milli * self._chunk_us // TOKEN)
        served = self.waiting != 0 or (self._away > 0 and lasted_us * 1000 <= LATE_NS)
        most = max(most, self._most if served else self._burst, min(before, self._most))
        if self.level > most:
            self.level = most
            self._rest = TOKEN - 1  # at a few tokens a second, the next one must not begin to come only when this one is used

    def _let_in(self, now_ns: i64) -> None:
        """Let in who is first, as many as the tokens allow, and see that the others' turn comes."""
        if now_ns - self._then_ns >= 1000:
            self._earn(now_ns)
        if self.waiting == 0:
            return
        self._count_waiting(now_ns)
        left = self.level
        late_ns = max(now_ns - self._due_ns, 0) if self._due_ns != NEVER else 0
        self._due_ns = NEVER
        self._away = 0
        while left > 0 and self.waiting != 0:
            tag, ticket, stake = self._queue[0]
            if stake.ticket != ticket:
                heapq.heappop(self._queue)
            elif stake.tag > tag:  # it went on with its frame while it waited
                heapq.heapreplace(self._queue, (stake.tag, ticket, stake))
            else:
                heapq.heappop(self._queue)
                self._virtual = max(self._virtual, stake.tag)
                self._wait_more(-1)
                self._away += 1
                stake.state = LET_IN
                stake.ticket = 0
                left -= self._portion
                stake.waiter.let_in(late_ns)
        if self.waiting != 0:
            self._arm(now_ns, 1 - left)
        else:
            self._queue.clear()

    def _arm(self, now_ns: i64, lacks: i64) -> None:
        """Fire when so many tokens have come."""
        if self._milli != 0:
            wait_us = min((min(max(lacks, 0), MOST_OWED) * TOKEN - self._rest + self._milli - 1) // self._milli, LATEST_US)
            self._due_ns = now_ns + max(wait_us * 1000, SOONEST_NS)
            self._loop.call_at(self._due_ns, self)

    def _wait_more(self, count: i64) -> None:
        """One more waits, or one less."""
        before = self.waiting
        self.waiting = before + count
        if self._tally is not None and (before == 0 or self.waiting == 0):
            self._tally.add(count)

    def _count_waiting(self, now_ns: i64) -> None:
        self._waited_ns += self.waiting * (now_ns - self._waited_then_ns)
        self._wanted_ns += self._wanting * (now_ns - self._waited_then_ns)
        self._waited_then_ns = now_ns
