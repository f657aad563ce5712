"""The memory pool counts the bytes that a processor holds, and tells when memory is short. ``MEMORY.md`` gives the reasons.

Bytes are booked when they are here, by kind: frames in progress, pending sends, waiting ciphertext. A booking is never refused. A channel asks before
each read whether memory is *short*. If it is, the channel reads only what it can pass on at once (``low_memory_reader``), and large frames that pass
whole, which need an admission slot (``admission_slots``).

An ``Account`` counts the bytes of one listener. It may have a guaranteed part of the pool, whose unused rest counts as used for the others.

The memory that pieces keep is booked, with an overhead for each piece. A piece may be a view of a read of up to 256 KiB whose rest was passed on:
then the whole read is booked (``run.held``). A view of less than half of its read is copied instead (``run.keep``).

Callers of ``charge`` and ``release`` name the holder of the bytes, which only a leak-finding pool uses (``pool_kinds``). One thread uses a pool.
"""

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from framegate.proxy.network.admission_slots import ONE_READ, MemoryBudget
from framegate.proxy.network.faults import Faults

PIECE_OVERHEAD: Final = 64  # bytes charged for each held piece in addition to its own
SPARE_PART: Final = 8  # 1/8 of the pool is kept for answers, and for the part of a read that exceeds the line

# The kinds of bookings.
BEGUN: Final = 0  # the beginning of a frame
PENDING: Final = 1  # a send that the socket did not take
TLS: Final = 2  # ciphertext that the socket did not take


def with_overhead(size: i64) -> i64:
    """Return the largest booking for the rest of a frame of ``size`` bytes. At worst it comes in two pieces for each 4097 bytes."""
    return size + (size >> 5) + 2 * PIECE_OVERHEAD if size != 0 else 0


class MemoryPool(MemoryBudget):
    """A byte budget.

    Attributes:
        size: the budget in bytes; see ``resize``.
        used: bytes booked now; the sum of ``begun``, ``pending`` and ``tls``.
        requests, answers: the admission slots of large frames that pass whole.
    """

    def __init__(self, size: i64, now_ns: Callable[[], int]) -> None:
        if size <= 0:
            raise ValueError(f"a pool of {size} bytes")
        super().__init__(size, now_ns)
        # line, answer_line: memory is short for requests, or for answers, while at least so many bytes are held or promised
        self.line: i64 = 0
        self.answer_line: i64 = 0
        self.most_used: i64 = 0  # the maximum of ``used``
        self.faults: Faults | None = None  # where a leak-finding pool notes errors; set by the selector
        self.finds_leaks: bool = False  # ``watch`` and ``check_released`` must be called for each channel
        self.begun: i64 = 0
        self.pending: i64 = 0
        self.tls: i64 = 0
        self.evicted: i64 = 0  # channels that the stall evictor closed
        self._accounts: list[Account] = []
        self.common: Final = self.new_account(0)  # the account of channels without a listener
        self._set_lines()

    @property
    def refused(self) -> i64:
        """Requests for slots that were not granted at once."""
        return self.requests.refused + self.answers.refused

    @property
    def bound(self) -> i64:
        """The upper bound of ``used``: the budget, the largest frame of each direction that passes whole, with its overhead, and one read, which may
        be booked twice: by the channel that keeps its rest and by the one that sends the rest on. Beside it, each connection may hold the header of a
        large frame while memory is short, and over TLS one record.
        """
        return self.size + self.requests.largest + self.answers.largest + 2 * ONE_READ

    def account(self, percent: int) -> "Account":
        """Make an account with a guaranteed percentage of the pool. Raises ValueError: the percentage is not within 0 to 100, or all together exceed
        100.
        """
        if not 0 <= percent <= 100 - sum(account.percent for account in self._accounts):
            raise ValueError(f"a share of {percent} %")
        account = self.new_account(percent)
        self._accounts.append(account)
        account.set_guaranteed()
        return account

    def divide(self, percents: "list[tuple[Account, int]]") -> None:
        """Let these accounts, and no others, have these guaranteed percentages. Raises ValueError: all together exceed 100."""
        if [(account, account.percent) for account in self._accounts] == percents:
            return
        if sum([percent for _, percent in percents]) > 100:
            raise ValueError("shares of more than 100 %")
        for account in self._accounts:
            account.percent = 0
            account.set_guaranteed()
        self._accounts = [account for account, _ in percents]
        for account, percent in percents:
            account.percent = percent
            account.set_guaranteed()
        self.changed()

    def new_account(self, percent: int) -> "Account":
        """Make an account of this kind of pool, which is not in its list yet."""
        return Account(self, percent)

    def watch(self, label: str, receive: object, *others: object) -> None:
        """Register the holders of bytes of one connection; see ``finds_leaks``."""

    def check_released(self, receive: object) -> None:
        """Check that a closed connection holds nothing; see ``finds_leaks``."""

    def resize(self, size: i64) -> None:
        """Change the budget. A larger one wakes waiting requests. A smaller one takes nothing back: memory is short until enough is released. Raises
        ValueError: the size is not positive.
        """
        if size <= 0:
            raise ValueError(f"a pool of {size} bytes")
        self.size = size
        self._set_lines()

    def set_largest(self, request: i64, answer: i64) -> None:
        """Set the size of the largest request and answer that pass whole, in bytes with headers; 0: none does."""
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
    """The bytes that the channels of one listener hold."""

    def __init__(self, pool: MemoryPool, percent: int) -> None:
        self.pool: Final = pool  # the pool of the account
        self.percent: int = percent  # the guaranteed percentage of the pool
        self.used: i64 = 0  # bytes booked now
        self._guaranteed: i64 = 0

    @property
    def _unspent(self) -> i64:
        return max(self._guaranteed - self.used, 0)

    def set_guaranteed(self) -> None:
        """Compute the guaranteed bytes, after a change of the pool's size."""
        self.pool.unspent -= self._unspent
        self._guaranteed = self.pool.line * self.percent // 100
        self.pool.unspent += self._unspent

    def is_short(self, *, answers: bool) -> bool:
        """Whether memory is short for this account's requests, or answers."""
        pool = self.pool
        held = pool.used + pool.promised
        if pool.unspent != 0:
            held += pool.unspent - self._unspent
        return held >= (pool.answer_line if answers else pool.line)

    def charge(self, kind: i64, size: i64, holder: object = None) -> None:
        """Book ``size`` bytes of a kind for ``holder``."""
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
        """Release ``size`` bytes of a kind that are booked for ``holder``, and wake waiting requests."""
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
        """Change a booking from BEGUN, for ``giver``, to PENDING, for ``taker``."""
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
