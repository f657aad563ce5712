"""The memory pool: what a processor holds for others, and when that is too much. ``MEMORY.md`` is the whole story.

Bytes are booked when they are here, by kind: of frames begun, of pending sends, and ciphertext that waits. Booking never refuses; who is about to
read asks first whether memory is *short*, and is then careful (``low_memory_reader``): it reads nothing that would have to be held, but for large
frames that pass whole, which need a slot (``admission_slots``).

Callers of ``charge`` and ``release`` name the holder of the bytes. Only the pool that finds leaks uses it (``leak_finding``; see ``pool_kinds``).

An ``Account`` is what one listener holds. It may be guaranteed a part of the pool: what it does not use of that counts as used for the others.

The bytes kept in memory are booked, with an overhead for each piece. A piece may be a view of a read of up to 256 KiB that was
passed on otherwise: the whole read is booked then (``run.held``); a view of less than half of its read is copied instead (``run.keep``). The pool
holds no bytes, it counts them. One thread uses it.
"""

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from framegate.proxy.network.admission_slots import ONE_READ, MemoryBudget
from framegate.proxy.network.faults import Faults

__all__ = ["BEGUN", "PENDING", "PIECE_OVERHEAD", "TLS", "Account", "MemoryPool", "with_overhead"]

PIECE_OVERHEAD: Final = 64  # charged for each held piece on top of its bytes
SPARE_PART: Final = 8  # one part in so many is kept for answers, and for what a read passes the line by

# What bytes are held for.
BEGUN: Final = 0  # the beginning of a frame
PENDING: Final = 1  # a send that the socket did not take
TLS: Final = 2  # ciphertext that the socket did not take


def with_overhead(size: i64) -> i64:
    """What is booked at most for the rest of a frame of ``size`` bytes, however it comes: two pieces for each 4097 of them, at worst."""
    return size + (size >> 5) + 2 * PIECE_OVERHEAD if size != 0 else 0


class MemoryPool(MemoryBudget):
    """A byte budget.

    Attributes:
        size: the budget in bytes; see ``resize``.
        used: bytes booked now; the sum of ``begun``, ``pending`` and ``tls``.
        most_used: the most that it ever was.
        requests, answers: the slots of large frames that pass whole.
        line, answer_line: while so much is held, or promised, memory is short for requests, and for answers.
        common: the account of channels without a listener.
        evicted: channels closed because they moved too slowly for what they held while others waited.
        faults: where a kind of pool that finds errors tells them; set by the selector.
        finds_leaks: ``watch`` and ``check_released`` must be called for each channel.
    """

    def __init__(self, size: i64, now_ns: Callable[[], int]) -> None:
        if size <= 0:
            raise ValueError(f"a pool of {size} bytes")
        super().__init__(size, now_ns)
        self.line: i64 = 0
        self.answer_line: i64 = 0
        self.most_used: i64 = 0
        self.faults: Faults | None = None
        self.finds_leaks: bool = False
        self.begun: i64 = 0
        self.pending: i64 = 0
        self.tls: i64 = 0
        self.evicted: i64 = 0
        self._accounts: Final[list[Account]] = []
        self.common: Final = self.new_account(0)
        self._set_lines()

    @property
    def refused(self) -> i64:
        """Turns that were not given at once."""
        return self.requests.refused + self.answers.refused

    @property
    def bound(self) -> i64:
        """What is never passed: the budget, the largest frame of either direction that passes whole, with its overhead, and one read, which may be
        booked by who passes it on and by who keeps its rest; besides, what each connection may hold while memory is short: the header of a large
        frame, over TLS a record.
        """
        return self.size + self.requests.largest + self.answers.largest + 2 * ONE_READ

    def account(self, percent: int) -> "Account":
        """A new account that is guaranteed so many hundredths of the pool.

        Raises:
            ValueError: not within 0 to 100, or more than there is together with the others'.
        """
        if not 0 <= percent <= 100 - sum(account.percent for account in self._accounts):
            raise ValueError(f"a share of {percent} %")
        account = self.new_account(percent)
        self._accounts.append(account)
        account.set_guaranteed()
        return account

    def new_account(self, percent: int) -> "Account":
        """An account of this kind of pool, not yet in its list."""
        return Account(self, percent)

    def watch(self, label: str, receive: object, *others: object) -> None:
        """Name the holders of bytes of one connection; see ``finds_leaks``."""

    def check_released(self, receive: object) -> None:
        """The connection is closed and must hold nothing; see ``finds_leaks``."""

    def resize(self, size: i64) -> None:
        """Change the budget. Growing wakes waiting requests. Shrinking takes nothing back; memory is short until enough is released.

        Raises:
            ValueError: the size is not positive.
        """
        if size <= 0:
            raise ValueError(f"a pool of {size} bytes")
        self.size = size
        self._set_lines()

    def set_largest(self, request: i64, answer: i64) -> None:
        """Say how large the frames are that pass whole, in bytes, headers counted; 0: none does."""
        self.requests.largest = with_overhead(request)
        self.answers.largest = with_overhead(answer)
        self.changed()

    def _set_lines(self) -> None:
        self.spare = max(self.size // SPARE_PART, min(ONE_READ, self.size // 2))
        self.line = self.size - self.spare
        self.answer_line = self.size
        for account in self._accounts:
            account.set_guaranteed()
        self.changed()


class Account:
    """What one listener's channels hold.

    Attributes:
        pool: the pool of the account.
        percent: guaranteed hundredths.
        used: bytes.
    """

    def __init__(self, pool: MemoryPool, percent: int) -> None:
        self.pool: Final = pool
        self.percent: Final = percent
        self.used: i64 = 0
        self._guaranteed: i64 = 0

    @property
    def _unspent(self) -> i64:
        return max(self._guaranteed - self.used, 0)

    def set_guaranteed(self) -> None:
        """The pool has another size."""
        self.pool.unspent -= self._unspent
        self._guaranteed = self.pool.line * self.percent // 100
        self.pool.unspent += self._unspent

    def is_short(self, *, answers: bool) -> bool:
        """Whether nothing more should be held for this account's requests, or answers."""
        pool = self.pool
        held = pool.used + pool.promised
        if pool.unspent != 0:
            held += pool.unspent - self._unspent
        return held >= (pool.answer_line if answers else pool.line)

    def charge(self, kind: i64, size: i64, holder: object = None) -> None:
        """Book ``size`` bytes that are in hand, of a kind, for ``holder``."""
        assert size >= 0, "a charge is not negative"
        self._add(size)
        pool = self.pool
        if kind == BEGUN:
            pool.begun += size
        elif kind == PENDING:
            pool.pending += size
            pool.sends += size
        else:
            pool.tls += size
            pool.sends += size

    def release(self, kind: i64, size: i64, holder: object = None) -> None:
        """Release ``size`` bytes of a kind that ``holder`` has, and wake waiting requests."""
        assert 0 <= size <= self.used, "what is given back was booked before"
        pool = self.pool
        if kind == BEGUN:
            pool.begun -= size
        elif kind == PENDING:
            pool.pending -= size
            pool.sends -= size
        else:
            pool.tls -= size
            pool.sends -= size
        self._add(-size)
        if pool.requests.waiting + pool.answers.waiting != 0:
            pool.changed()

    def transfer(self, size: i64, giver: object = None, taker: object = None) -> None:
        """What was booked for a frame begun, for ``giver``, is now booked for a pending send, for ``taker``."""
        pool = self.pool
        pool.begun -= size
        pool.pending += size
        pool.sends += size

    def _add(self, size: i64) -> None:
        pool = self.pool
        if self._guaranteed != 0:
            before = self._unspent
            self.used += size
            pool.unspent += self._unspent - before
        else:
            self.used += size
        pool.used += size
        if pool.used > pool.most_used:
            pool.most_used = pool.used
