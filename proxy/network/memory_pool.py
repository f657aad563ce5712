"""The memory pool: what a processor may retain, and who waits for it.

Two verbs book bytes. ``try_lease`` asks before bytes are read, and may refuse; ``charge`` books bytes already in hand, and never refuses.
``release`` gives back what either booked. The pool is not strict, as Kafka's is not: while anything is available, one lease of any size is
granted, so that a large frame is never starved by small ones; usage may thus exceed the size by one frame.

What somebody who asks has booked already, the beginning of its frame, does not count against it, and what those who wait have booked counts
against nobody who asks: it goes only when they go on. So no number of beginnings can use the pool up and wait for each other.

What is booked is what is kept for somebody, and an overhead for each piece. A piece may be a view of a read of up to 256 KiB that was passed on
otherwise; it is copied when it is less than half of it (``run.keep``). So what is held in memory is at most twice what is booked.

The pool holds no bytes, it counts them. One thread uses it. While anybody waits, a dry spell lasts: that is what ``release`` looks at, so that a
release which wakes nobody costs one comparison.
"""

import abc
from collections import deque
from collections.abc import Callable
from typing import Final

from mypy_extensions import i64, mypyc_attr

__all__ = ["MemoryPool", "MemoryWaiter"]

PIECE_OVERHEAD: Final = 64  # charged for each retained piece on top of its bytes


@mypyc_attr(allow_interpreted_subclasses=True)
class MemoryWaiter(abc.ABC):
    """Who was refused, and is told when it makes sense to ask again."""

    @abc.abstractmethod
    def memory_available(self) -> None:
        """Ask again, now. Called from within a release or a resize: no I/O and no callbacks from here, only booking and interest."""


class MemoryPool:
    """A byte budget with waiters, oldest first.

    Attributes:
        size: the budget in bytes; see ``resize``.
        used: bytes booked now; the sum of ``begun``, ``pending`` and ``tls``.
        pending, tls: of them, those of pending sends, and of ciphertext that waits; who books them says so.
        evicted: connections closed since they held what others waited for.
        depleted_ns: time spent with somebody refused and nothing available; a spell is added when it ends.
        refused: leases refused.
        waits, wait_ns: leases that had to wait and were granted, and the sum of their waits.
        longest_wait_ns: the longest of them.
    """

    def __init__(self, size: i64, now_ns: Callable[[], int]) -> None:
        if size <= 0:
            raise ValueError(f"a pool of {size} bytes")
        self.size: i64 = size
        self.used: i64 = 0
        self.pending: i64 = 0
        self.tls: i64 = 0
        self.evicted: i64 = 0
        self.depleted_ns: i64 = 0
        self.refused: i64 = 0
        self.waits: i64 = 0
        self.wait_ns: i64 = 0
        self.longest_wait_ns: i64 = 0
        self._now_ns: Final = now_ns
        self._depleted_since: i64 = -1  # -1: no spell, and nobody waits
        self._waiters: Final[deque[tuple[MemoryWaiter, int, int]]] = deque()
        self._parked: i64 = 0  # booked by those who wait
        self._waking: bool = False

    @property
    def begun(self) -> i64:
        """Of ``used``: of frames begun, and of those on their way to a send."""
        return self.used - self.pending - self.tls

    @property
    def available(self) -> i64:
        """Bytes left; zero or below means that nothing is granted."""
        return self.size - self.used

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiters)

    def depleted_total_ns(self) -> i64:
        """``depleted_ns`` with the spell that lasts now."""
        if self._depleted_since < 0:
            return self.depleted_ns
        return self.depleted_ns + self._now_ns() - self._depleted_since

    def try_lease(self, size: i64, held: i64 = 0) -> bool:
        """Book ``size`` bytes that are to be read, or refuse. Refusing books nothing.

        Args:
            size: at least 1.
            held: what the asker has booked for the same frame.

        Raises:
            ValueError: ``size`` is below 1: a frame without a body asks for nothing.
        """
        if size < 1:
            raise ValueError(f"a lease of {size} bytes")
        if self.used - self._parked - held >= self.size:
            self.refused += 1
            if self._depleted_since < 0:
                self._depleted_since = self._now_ns()
            return False
        self.used += size
        if self._depleted_since >= 0 and not self._waiters:
            self._end_spell()
        return True

    def charge(self, size: i64) -> None:
        """Book ``size`` bytes that are already in hand."""
        assert size >= 0, "a charge is not negative"
        self.used += size

    def release(self, size: i64) -> None:
        """Give back ``size`` bytes, and wake who waits when that made some available."""
        assert 0 <= size <= self.used, "what is given back was booked before"
        self.used -= size
        if self._depleted_since >= 0 and self.used - self._parked < self.size:
            self._end_spell()
            self._wake()

    def resize(self, size: i64) -> None:
        """Change the budget. Growing wakes who waits; shrinking takes nothing back, but grants nothing until usage is below it.

        Raises:
            ValueError: the size is not positive.
        """
        if size <= 0:
            raise ValueError(f"a pool of {size} bytes")
        self.size = size
        if self._depleted_since >= 0 and self.used - self._parked < self.size:
            self._end_spell()
            self._wake()

    def wait(self, waiter: MemoryWaiter, held: i64 = 0) -> None:
        """Queue somebody who was refused. Each waiter stands in the queue once; it is taken out before it is told, which may be at once:
        what kept it from its lease may be gone since it asked.

        Args:
            held: what the waiter has booked; it must not change while it waits.
        """
        self._waiters.append((waiter, self._now_ns(), held))
        self._parked += held
        if self.used - self._parked < self.size:
            self._wake()
        elif self._depleted_since < 0:  # the spell of its refusal is over, and a charge has used up what came back
            self._depleted_since = self._now_ns()

    def leave(self, waiter: MemoryWaiter) -> None:
        """Take a waiter out of the queue; harmless when it is not in it."""
        for entry in self._waiters:
            if entry[0] is waiter:
                self._waiters.remove(entry)
                self._parked -= entry[2]
                return

    def _wake(self) -> None:
        if self._waking:
            return
        self._waking = True
        try:
            while self._waiters and self.used - self._parked < self.size:
                waiter, since_ns, held = self._waiters.popleft()
                self._parked -= held
                waited_ns: i64 = self._now_ns() - since_ns
                self.waits += 1
                self.wait_ns += waited_ns
                self.longest_wait_ns = max(self.longest_wait_ns, waited_ns)
                waiter.memory_available()
        finally:
            self._waking = False
            if self._waiters and self._depleted_since < 0:
                self._depleted_since = self._now_ns()

    def _end_spell(self) -> None:
        self.depleted_ns += self._now_ns() - self._depleted_since
        self._depleted_since = -1
