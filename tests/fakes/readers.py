"""Readers of a bucket on a clock of the test's: each has frames to read, as a channel that is read before each event would, and pays for them."""

from collections import deque
from collections.abc import Callable, Iterable

from framegate.proxy.network.memory_pool import MemoryPool
from framegate.proxy.network.selector import Selector
from framegate.proxy.relay.bucket import WHOLE, Bucket, Waiter
from tests.fakes.clock import FakeClock

LARGEST_READ = 262144


class Reader(Waiter):
    """One connection.

    ``frames``: sizes of what it has to read, header counted; ``more`` gives further ones as long as it is asked.

    Attributes:
        waits: it is throttled; reads nothing but the frame begun.
    """

    def __init__(self, buckets: Iterable[Bucket], frames: Iterable[int] = (), more: Callable[[], int] | None = None) -> None:
        self.buckets = list(buckets)
        self.frames = deque(frames)
        self.more = more
        # bytes, whole: what it has read
        self.bytes = 0
        self.whole = 0
        self.turns = 0
        self._waits_for: Bucket | None = None
        self._at = 0
        self._let_in = False
        self._within = 0

    @property
    def waits(self) -> bool:
        return self._waits_for is not None

    def let_in(self, late_ns: int) -> None:
        assert self.waits, "only a reader that waits is let in"
        for bucket in self.buckets:
            if bucket is not self._waits_for:
                bucket.make_good(late_ns)
        self._want(-1)
        self._waits_for = None
        self._let_in = True
        self.turns += 1

    def _want(self, count: int) -> None:
        for bucket in self.buckets:
            bucket.want(count, bucket._loop.now_ns)

    def _has_more(self) -> bool:
        if not self._within and not self.frames and self.more is not None:
            self.frames.append(self.more())
        return bool(self._within or self.frames)

    def read(self, now_ns: int) -> int:
        if not self._has_more():
            return 0
        if not self.waits:
            self._ask(now_ns)
        if self.waits and not self._within:
            return 0
        size, frames = self._take()
        self.bytes += size
        self.whole += frames
        if not self.waits:
            self._at, self._let_in = 0, False
        for bucket in self.buckets:
            amount = frames if bucket.frames else size
            if amount:
                bucket.charge(amount, now_ns)
        return size

    def _ask(self, now_ns: int) -> None:
        for at, bucket in enumerate(self.buckets):
            let_in = self._let_in and at == self._at
            if at >= self._at and not bucket.admits(now_ns, let_in=let_in):
                bucket.wait(self, now_ns, first=let_in)
                self._waits_for, self._at, self._let_in = bucket, at, False
                self._want(1)
                return

    def _take(self) -> tuple[int, int]:
        """Of what there is: as much as one read may have. Bytes, and frames that they complete."""
        buckets = self.buckets
        limit = min([LARGEST_READ, *(int(bucket.quantum) for bucket in buckets if not bucket.frames)])
        most = min([1 << 60, *(max(int(min(bucket.level, bucket.quantum)), 1) for bucket in buckets if bucket.frames)])
        if self.waits:
            limit, most = min(self._within, LARGEST_READ), 1
        size = frames = 0
        while size < limit and frames < most and self._has_more():
            if not self._within:
                self._within = self.frames.popleft()
            piece = min(self._within, limit - size)
            size += piece
            self._within -= piece
            frames += self._within == 0
        return size, frames

    def leave(self) -> None:
        if self._waits_for is not None:
            self._want(-1)
            self._waits_for.leave(self)
            self._waits_for = None
        self.frames.clear()
        self.more = None
        self._within = 0


class ReaderBench:
    """A selector, for its timers, on a stepped clock."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.selector = Selector(self.clock, MemoryPool(1, self.clock.now_ns))
        self.readers: list[Reader] = []
        self._first = 0

    def bucket(self, rate: int, part: int = WHOLE, *, frames: bool = False) -> Bucket:
        return Bucket(self.selector, rate, part, frames=frames)

    def add(self, *buckets: Bucket, frames: Iterable[int] = (), more: Callable[[], int] | None = None) -> Reader:
        reader = Reader(buckets, frames, more)
        self.readers.append(reader)
        return reader

    def events(self, most: int) -> None:
        """Up to ``most`` events of each, in turn, as long as anybody reads."""
        idle = 0
        for _ in range(most):
            moved = False
            self._first += 1
            count = len(self.readers)
            for number in range(count):
                moved |= self.readers[(self._first + number) % count].read(self.clock.now) != 0
            self.selector.poll(0)
            idle = 0 if moved else idle + 1
            if idle == 2:  # a poll may let somebody in
                return

    def run(self, seconds: float, *, step_ms: float = 1, most: int = 4) -> None:
        """Let time pass; between two steps each reader has up to ``most`` events."""
        until = self.clock.now + int(seconds * 1e9)
        while self.clock.now < until:
            self.events(most)
            self.clock.advance_ms(step_ms)
            self.selector.poll(0)
        assert self.selector.faults.total == 0, self.selector.faults.take()

    def close(self) -> None:
        self.selector.close()
