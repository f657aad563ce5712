"""The pending send of a channel: the run that its socket did not take whole, or runs that are held until they are written together.

The unsent pieces are kept as they are, except that a small view of a large read is copied. The memory that they keep is booked at the memory pool,
with an overhead for each piece, and released piece by piece; for a piece that was sent in part, when its rest was copied. A lease that came with the
run counts towards the booking.
"""

from typing import Final

from mypy_extensions import i64

from framegate.proxy.network.memory_pool import PENDING, PIECE_OVERHEAD, Account
from framegate.proxy.network.run import Buffer, held, keep, shorten
from framegate.proxy.network.transport import PLAIN_RECORD, Transport

MAX_PIECES: Final = 64  # offered to one write


class Send:
    """Bytes that wait for a socket."""

    def __init__(self, account: Account) -> None:
        self._account: Final = account
        self._pieces: list[Buffer] = []
        self._next: i64 = 0
        self.active: bool = False  # a run is being sent; no other may begin
        self.remaining: i64 = 0  # bytes that the transport has not taken. It may be 0 in an active send, while ciphertext waits.
        self.frames: i64 = 0  # the frames of the run that is being sent
        self.booked: i64 = 0  # bytes booked at the pool: the memory that the pieces keep, and their overhead
        self.number: i64 = 0  # how many sends have begun

    def begin(self, pieces: list[Buffer], taken: i64, frames: i64, lease: i64, giver: object = None) -> None:
        """Keep the rest of a first write.

        Args:
            pieces: the whole run; the send takes over the list.
            taken: how many bytes of it are written already.
            lease: bytes booked for the run as BEGUN; the send takes over the booking.
        """
        assert not self.active, "one pending send at a time"
        self.active = True
        self.number += 1
        self.frames = frames
        self.booked = lease
        self._pieces = pieces
        self._next = 0
        self.remaining = 0
        for piece in pieces:
            self.remaining += len(piece)
        if lease != 0:
            self._account.transfer(lease, giver, self)
        self._drop(taken)
        self._book(self._next, lease)

    def add(self, pieces: list[Buffer], frames: i64, lease: i64, giver: object = None) -> None:
        """Keep a further run, of which nothing is written; see ``begin``."""
        first: i64 = len(self._pieces)
        self.frames += frames
        self.booked += lease
        self._pieces += pieces
        for piece in pieces:
            self.remaining += len(piece)
        if lease != 0:
            self._account.transfer(lease, giver, self)
        self._book(first, lease)

    def _book(self, first: i64, lease: i64) -> None:
        """Keep the pieces from ``first`` on, and book their memory, to which the lease counts."""
        pieces = self._pieces
        needed: i64 = 0
        for index in range(first, i64(len(pieces))):
            piece = pieces[index] = keep(pieces[index])
            needed += held(piece) + PIECE_OVERHEAD
        if needed > lease:
            self._account.charge(PENDING, needed - lease, self)
            self.booked += needed - lease
        else:
            self._give_back(lease - needed)

    def write_to(self, transport: Transport) -> i64:
        """Write the rest, with one write. Returns how many bytes were taken."""
        left: i64 = len(self._pieces) - self._next
        if left == 0:
            return 0
        if left == 1:
            taken = transport.write(self._pieces[self._next])
        else:
            offered = left if self.remaining <= PLAIN_RECORD else MAX_PIECES  # what may be one record is offered whole
            taken = transport.write_gather(self._pieces[self._next : self._next + offered])
        self.advance(taken)
        return taken

    def advance(self, taken: i64) -> None:
        """Drop bytes that were sent, and release their booking."""
        self._give_back(self._drop(taken))

    def finish(self) -> None:
        """End the send, complete or not, and release everything booked. No effect if no send is active."""
        self._give_back(self.booked)
        self._pieces = []
        self._next = 0
        self.active = False
        self.remaining = 0
        self.frames = 0

    def _drop(self, taken: i64) -> i64:
        """Drop bytes from the front. Returns how much memory they kept, with the overhead of the finished pieces."""
        self.remaining -= taken
        freed: i64 = 0
        while taken > 0:
            piece = self._pieces[self._next]
            size: i64 = len(piece)
            if taken < size:
                rest = self._pieces[self._next] = shorten(piece, taken)
                return freed + held(piece) - held(rest)
            taken -= size
            freed += held(piece) + PIECE_OVERHEAD
            self._pieces[self._next] = b""
            self._next += 1
        return freed

    def _give_back(self, size: i64) -> None:
        self.booked -= size
        self._account.release(PENDING, size, self)
