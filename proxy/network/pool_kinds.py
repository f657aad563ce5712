"""The kinds of memory pool: ``bounded`` (``MemoryPool``), ``unbounded``, and ``leak_finding``, for tests and debugging.

A leak-finding pool knows the holder of each booked byte. It notes these errors as faults of the place ``pool``, with the holder, and corrects the
bookings as far as possible; traffic continues:

- Bytes are released twice, or by an object that does not hold them: the release is ignored.
- Bytes are released to the account of another listener: they are released to the right one.
- The lease of a run is never released: the finalizer of the run releases it.
- A holder of a connection still has bytes when the connection is closed: they are released then.

A lease that moves with a run is booked for its account, not for the run, because runs are joined and replaced. Only the run that the receive made
(``LentRun``) knows whether its lease was released.

The cost is a dict entry for each holder, and a call for each run with a lease. Small frames that arrive whole have no lease.
"""

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from framegate.proxy.network.framing import Framing
from framegate.proxy.network.memory_pool import BEGUN, PENDING, Account, MemoryPool
from framegate.proxy.network.run import Buffer, Run

KINDS: Final = ("begun", "pending", "tls")
MAX_KEPT: Final = 100  # texts of errors


class Book:
    """The bytes of one kind that one holder has. It keeps the holder alive, so that the holder's id, which is the key, is not reused."""

    def __init__(self, holder: object, kind: i64, account: "LeakFindingAccount") -> None:
        self.holder: Final = holder
        self.kind: Final[i64] = kind
        self.account: Final = account
        self.held: i64 = 0


class LeakFindingPool(MemoryPool):
    """A bounded pool that finds leaks."""

    def __init__(self, size: i64, now_ns: Callable[[], int]) -> None:
        self.found: Final[list[str]] = []  # the texts of the first hundred errors
        self.count: i64 = 0  # how many errors were found
        self._books: Final[dict[tuple[int, int], Book]] = {}  # by id of the holder, and kind
        self._labels: Final[dict[int, str]] = {}  # by id of the holder
        self._watched: Final[dict[int, tuple[object, ...]]] = {}  # the holders of a connection, by id of its receive
        super().__init__(size, now_ns)
        self.finds_leaks = True

    def new_account(self, percent: int) -> Account:
        return LeakFindingAccount(self, percent)

    def watch(self, label: str, receive: object, *others: object) -> None:
        holders = (receive, *others)
        self._watched[id(receive)] = holders
        for holder in holders:
            self._labels[id(holder)] = label

    def check_released(self, receive: object) -> None:
        for holder in self._watched.pop(id(receive), ()):
            for kind in range(i64(len(KINDS))):
                book = self._books.get((id(holder), int(kind)))
                if book is not None:
                    self.report_leak(f"{self.name(holder)} has {book.held} bytes ({KINDS[kind]}) when it is closed")
                    book.account.put_right(kind, book.held, book.holder)
            del self._labels[id(holder)]

    def report_leak(self, text: str) -> None:
        self.count += 1
        if len(self.found) < MAX_KEPT:
            self.found.append(text)
        if self.faults is not None:
            self.faults.note_text("pool", text)

    def name(self, holder: object) -> str:
        if isinstance(holder, Account):
            return "somebody"
        label = self._labels.get(id(holder))
        kind = type(holder).__name__
        return kind if label is None else f"{kind} of {label}"

    def take_in(self, account: "LeakFindingAccount", kind: i64, size: i64, holder: object) -> None:
        holder = booked_holder(account, holder)
        key = (id(holder), int(kind))
        book = self._books.get(key)
        if book is None:
            book = self._books[key] = Book(holder, kind, account)
        elif book.account is not account:
            self.report_leak(f"{self.name(holder)} books {size} bytes ({KINDS[kind]}) at a second account")
        book.held += size

    def take_out(self, account: "LeakFindingAccount", kind: i64, size: i64, holder: object) -> "LeakFindingAccount | None":
        """Subtract from the book of a holder. Returns the account of the booking, or None after an error: the holder does not have so many bytes."""
        if isinstance(holder, LentRun):
            if holder.given:
                self.report_leak(f"a run of {holder.lender} gives back {size} bytes of its lease again")
                return None
            holder.given = True
            account = holder.account
        holder = booked_holder(account, holder)
        key = (id(holder), int(kind))
        book = self._books.get(key)
        held: i64 = 0 if book is None else book.held
        if book is None or size > held:
            self.report_leak(f"{self.name(holder)} gives back {size} bytes ({KINDS[kind]}), and has {held}: twice, or what is another's")
            return None
        book.held = held - size
        if book.held == 0:
            del self._books[key]
        return book.account


class LeakFindingAccount(Account):
    """An account of a leak-finding pool."""

    def __init__(self, pool: LeakFindingPool, percent: int) -> None:
        super().__init__(pool, percent)
        self.leaks: Final = pool

    def charge(self, kind: i64, size: i64, holder: object = None) -> None:
        super().charge(kind, size, holder)
        if size != 0:
            self.leaks.take_in(self, kind, size, holder)

    def release(self, kind: i64, size: i64, holder: object = None) -> None:
        if size == 0:
            super().release(kind, 0, holder)
            return
        owner = self.leaks.take_out(self, kind, size, holder)
        if owner is None:
            return
        if owner is not self:
            self.leaks.report_leak(f"{self.leaks.name(holder)} gives back {size} bytes ({KINDS[kind]}) to another account than it has them of")
        owner.give_back(kind, size)

    def transfer(self, size: i64, giver: object = None, taker: object = None) -> None:
        owner = self.leaks.take_out(self, BEGUN, size, giver)
        if owner is None:  # the taker needs a booking all the same
            super().charge(BEGUN, size, None)
        elif owner is not self:
            self.leaks.report_leak(f"{self.leaks.name(giver)} hands over {size} bytes of another account")
            owner.give_back(BEGUN, size)
            super().charge(BEGUN, size, None)
        super().transfer(size, giver, taker)
        self.leaks.take_in(self, PENDING, size, taker)

    def put_right(self, kind: i64, size: i64, holder: object) -> None:
        """Release the bytes that a holder did not release."""
        self.leaks.take_out(self, kind, size, holder)
        self.give_back(kind, size)

    def give_back(self, kind: i64, size: i64) -> None:
        """Release bytes that are not in a book any more."""
        super().release(kind, size, None)

    def lend(
        self,
        receive: object,
        head: list[Buffer] | None,
        head_size: i64,
        data: bytes,
        first: i64,
        end: i64,
        frames: i64,
        lease: i64,
        part: i64,
        framing: Framing,
    ) -> Run:
        """Make a run that takes over the booking of a receive."""
        self.leaks.take_out(self, BEGUN, lease, receive)
        self.leaks.take_in(self, BEGUN, lease, None)
        return LentRun(self, self.leaks.name(receive), Run(head, head_size, data, first, end, frames, lease, part, framing))


class LentRun(Run):
    """A run that notices if its lease is released twice, or not before the run is deleted."""

    def __init__(self, account: LeakFindingAccount, lender: str, like: Run) -> None:
        super().__init__(like.head, like.head_size, like.data, like.first, like.end, like.frames, like.lease, like.part, like.framing)
        self.account: Final = account
        self.lender: Final = lender
        self.given: bool = False  # the lease was released, or taken over by a send

    def give_lease(self, run: Run) -> Run:
        run.lease = self.lease
        self.lease = 0
        return LentRun(self.account, self.lender, run)

    def __del__(self) -> None:
        lease = self.lease
        if lease != 0 and not self.given:
            leaks = self.account.leaks
            leaks.report_leak(f"a run of {self.lender} is gone with its lease of {lease} bytes: {self.frames} frames, {self.size} bytes")
            self.account.put_right(BEGUN, lease, None)


def booked_holder(account: LeakFindingAccount, holder: object) -> object:
    """Return the object for which a booking is noted: for a run, or no holder, the account, which stands for the leases of all its runs."""
    return account if holder is None or isinstance(holder, Run) else holder


NO_LINE: Final = 1 << 62


class UnboundedPool(MemoryPool):
    """A pool that counts bytes and is never short, so no frame waits and no channel is closed for the memory it holds. It ignores guarantees."""

    def account(self, percent: int) -> Account:
        return super().account(0)

    def _set_lines(self) -> None:
        super()._set_lines()
        self.line = NO_LINE
        self.answer_line = NO_LINE


def make_pool(kind: str, size: i64, now_ns: Callable[[], int]) -> MemoryPool:
    """Make a pool of a kind. Raises ValueError: there is no such kind, or the size is not positive."""
    if kind == "bounded":
        return MemoryPool(size, now_ns)
    if kind == "unbounded":
        return UnboundedPool(size, now_ns)
    if kind == "leak_finding":
        return LeakFindingPool(size, now_ns)
    raise ValueError(f"no kind of memory pool is called {kind}")
