"""The memory pool that finds leaks, for tests and debugging: it knows who holds each byte that is booked, and tells who does not keep to it.

What it finds is counted as a fault of the place ``pool``, with who held the bytes; it is put right as well as it can be, and the traffic goes on:

- Bytes that are given back twice, or by somebody who does not hold them: they are not.
- Bytes that are given back to another listener's account: they go to the right one.
- A run whose lease nobody gave back: its finalizer does.
- Who holds bytes for a connection when it is closed: they are given back then.

A lease on its way is booked for its account, whoever has it: runs are joined and replaced, and their leases with them. Only the run that the receive
made knows whether it gave its own back.

A dict entry for each holder and a call for each run with a lease: traffic in small frames that come whole costs nothing more, large ones little.
"""

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from framegate.proxy.network.framing import Framing
from framegate.proxy.network.memory_pool import BEGUN, PENDING, Account, MemoryPool
from framegate.proxy.network.run import Buffer, Run

__all__ = ["LeakFindingAccount", "LeakFindingPool", "LentRun"]

KINDS: Final = ("begun", "pending", "tls")
MAX_KEPT: Final = 100  # texts


class Book:
    """What one holder has of one kind. The holder lives as long as its book, so that the key stays its own."""

    def __init__(self, holder: object, kind: i64, account: "LeakFindingAccount") -> None:
        self.holder: Final = holder
        self.kind: Final[i64] = kind
        self.account: Final = account
        self.held: i64 = 0


class LeakFindingPool(MemoryPool):
    """A bounded pool that looks after its holders.

    Attributes:
        found: what was found, in words; the first hundred.
        count: how often something was.
    """

    def __init__(self, size: i64, now_ns: Callable[[], int]) -> None:
        self.found: Final[list[str]] = []
        self.count: i64 = 0
        self._books: Final[dict[tuple[int, int], Book]] = {}  # by identity of the holder, and kind
        self._labels: Final[dict[int, str]] = {}  # of watched holders, by identity
        self._watched: Final[dict[int, tuple[object, ...]]] = {}  # by the first of each connection
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
        """Something is wrong."""
        self.count += 1
        if len(self.found) < MAX_KEPT:
            self.found.append(text)
        if self.faults is not None:
            self.faults.note_text("pool", text)

    def name(self, holder: object) -> str:
        """Who that is, in words."""
        if isinstance(holder, Account):
            return "somebody"
        label = self._labels.get(id(holder))
        kind = type(holder).__name__
        return kind if label is None else f"{kind} of {label}"

    def take_in(self, account: "LeakFindingAccount", kind: i64, size: i64, holder: object) -> None:
        """Write down what somebody holds."""
        holder = bearer(account, holder)
        key = (id(holder), int(kind))
        book = self._books.get(key)
        if book is None:
            book = self._books[key] = Book(holder, kind, account)
        elif book.account is not account:
            self.report_leak(f"{self.name(holder)} books {size} bytes ({KINDS[kind]}) at a second account")
        book.held += size

    def take_out(self, account: "LeakFindingAccount", kind: i64, size: i64, holder: object) -> "LeakFindingAccount | None":
        """Strike out what somebody gives back; whose account it was booked at, or None when it does not hold so much, which is told."""
        if isinstance(holder, LentRun):
            if holder.given:
                self.report_leak(f"a run of {holder.lender} gives back {size} bytes of its lease again")
                return None
            holder.given = True
            account = holder.account
        holder = bearer(account, holder)
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
    """What one listener's channels hold, and which of their parts."""

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
        if owner is None:  # the taker needs it all the same
            super().charge(BEGUN, size, None)
        elif owner is not self:
            self.leaks.report_leak(f"{self.leaks.name(giver)} hands over {size} bytes of another account")
            owner.give_back(BEGUN, size)
            super().charge(BEGUN, size, None)
        super().transfer(size, giver, taker)
        self.leaks.take_in(self, PENDING, size, taker)

    def put_right(self, kind: i64, size: i64, holder: object) -> None:
        """Give back what a holder has forgotten."""
        self.leaks.take_out(self, kind, size, holder)
        self.give_back(kind, size)

    def give_back(self, kind: i64, size: i64) -> None:
        """Release bytes that were struck out."""
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
        """A run that takes over what a receive holds."""
        self.leaks.take_out(self, BEGUN, lease, receive)
        self.leaks.take_in(self, BEGUN, lease, None)
        return LentRun(self, self.leaks.name(receive), Run(head, head_size, data, first, end, frames, lease, part, framing))


class LentRun(Run):
    """A run whose lease must be given back, once, before it is gone; or taken over, which leaves it with none.

    Args:
        account: at which the lease is booked.
        lender: whose it was, in words.
        like: the run that it is.

    Attributes:
        given: it was given back, or to a send.
    """

    def __init__(self, account: LeakFindingAccount, lender: str, like: Run) -> None:
        super().__init__(like.head, like.head_size, like.data, like.first, like.end, like.frames, like.lease, like.part, like.framing)
        self.account: Final = account
        self.lender: Final = lender
        self.given: bool = False

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


def bearer(account: LeakFindingAccount, holder: object) -> object:
    """Who a booking is written down for: a run, or nobody, stands for all leases of the account that are on their way."""
    return account if holder is None or isinstance(holder, Run) else holder
