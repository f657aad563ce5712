"""The send: the one run that a channel has begun to write and that the socket would not take whole.

The pieces that are still to go out are kept as they came, but for a small view of a large read, which is copied. What they keep in memory is
booked at the memory pool, with their overhead, and given back piece by piece: of a piece that has gone out in part, when its rest was copied.
A lease that came with the run counts towards that.
"""

from typing import Final

from mypy_extensions import i64

from framegate.proxy.network.memory_pool import PENDING, PIECE_OVERHEAD, Account
from framegate.proxy.network.run import Buffer, held, keep, shorten
from framegate.proxy.network.transport import Transport

__all__ = ["Send"]

MAX_PIECES: Final = 64  # offered to one write


class Send:
    """Bytes that wait for a socket.

    Attributes:
        active: a run is being sent; no other may begin.
        remaining: bytes that the transport has not taken. A send may be active with none remaining, while ciphertext waits.
        frames: of the run being sent.
        booked: bytes booked at the pool: what the pieces keep in memory, and their overhead.
        number: counts the sends that began.
    """

    def __init__(self, account: Account) -> None:
        self._account: Final = account
        self._pieces: list[Buffer] = []
        self._next: i64 = 0
        self.active: bool = False
        self.remaining: i64 = 0
        self.frames: i64 = 0
        self.booked: i64 = 0
        self.number: i64 = 0

    def begin(self, pieces: list[Buffer], taken: i64, frames: i64, lease: i64, giver: object = None) -> None:
        """Keep what a first write left.

        Args:
            pieces: the run; the list now belongs to the send.
            taken: its bytes that are written already.
            frames: its frames.
            lease: bytes booked for the run as a frame begun; they become the send's.
            giver: who has the lease: the run.
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
        needed: i64 = 0
        for index in range(self._next, i64(len(pieces))):
            piece = pieces[index] = keep(pieces[index])
            needed += held(piece) + PIECE_OVERHEAD
        if needed > lease:
            self._account.charge(PENDING, needed - lease, self)
            self.booked = needed
        else:
            self._give_back(lease - needed)

    def write_to(self, transport: Transport) -> i64:
        """Offer what is left, in one write; how many bytes were taken."""
        left: i64 = len(self._pieces) - self._next
        if left == 0:
            return 0
        if left == 1:
            taken = transport.write(self._pieces[self._next])
        else:
            taken = transport.write_gather(self._pieces[self._next : self._next + MAX_PIECES])
        self.advance(taken)
        return taken

    def advance(self, taken: i64) -> None:
        """Drop the bytes that went out, and give back what that has freed."""
        self._give_back(self._drop(taken))

    def finish(self) -> None:
        """The run is out, or is given up: everything booked goes back. Harmless when nothing is active."""
        self._give_back(self.booked)
        self._pieces = []
        self._next = 0
        self.active = False
        self.remaining = 0
        self.frames = 0

    def _drop(self, taken: i64) -> i64:
        """Drop bytes from the front; what they kept in memory, with the overhead of the pieces that are done."""
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
