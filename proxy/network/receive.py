"""The receive: the frame that a channel has begun and not finished.

What one read gave goes to ``feed``, which finds the run of whole frames in it and stages what is left: a frame begun, or less than a size
header. Staged bytes are kept as the pieces that came, small ones joined, so that a large frame is never copied; each piece is booked at
the memory pool with its overhead. When a frame's size is known its whole size is leased; a refusal sets ``waiting``, and the channel then
reads nothing until the pool has told it to ask again.
"""

from typing import Final

from librt.strings import read_i32_be
from mypy_extensions import i64

from proxy.network.framing import HEADER, NOT_OURS, OK, foreign_protocol, judge, scan, size_bucket
from proxy.network.memory_pool import PIECE_OVERHEAD, MemoryPool
from proxy.network.run import Buffer, Run, held
from proxy.network.stats import SideStats

__all__ = ["Receive", "ReceiveLimit"]

JOIN_BELOW: Final = 4096  # pieces smaller than this are joined
VIEW_FROM: Final = 16384  # the rest of a read is kept as a view from this size on, if it is most of the read


class ReceiveLimit:
    """The max_receive_size that channels share: one store changes it for all of them.

    Attributes:
        value: bytes of a frame's body; -1 for unlimited. The value in force when a header's fourth byte is scanned decides.
    """

    def __init__(self, value: i64) -> None:
        self.value: i64 = value


class Receive:
    """Finds frames in what a channel reads, and stages the one that is not whole.

    Attributes:
        staged: bytes of the frame begun that are here, its header counted; 0 between frames.
        size: bytes of the frame begun, header counted; -1 while its header is not whole.
        waiting: the pool refused to lease the frame; read nothing before ``retry_lease`` has succeeded.
        fault: what ``feed`` found wrong (``framing.OK`` and on). Nothing may be fed afterwards.
        faulty_size: the size that was refused.
        refused_bytes: what the last read gave of the frame that was refused, and behind it; what was ``staged`` before is not in it.
        foreign: the protocol that the first bytes betray, when the fault is NOT_OURS.
    """

    def __init__(self, pool: MemoryPool, limit: ReceiveLimit, stats: SideStats) -> None:
        self._pool: Final = pool
        self._limit: Final = limit
        self._stats: Final = stats
        self._pieces: list[Buffer] | None = None
        self._booked: i64 = 0
        self._granted: bool = False
        self._first: bool = True
        self.staged: i64 = 0
        self.size: i64 = -1
        self.waiting: bool = False
        self.fault: i64 = OK
        self.faulty_size: i64 = 0
        self.refused_bytes: i64 = 0
        self.foreign: str = ""

    @property
    def leased(self) -> i64:
        """Bytes booked at the pool for the frame begun."""
        return self._booked

    def missing(self) -> i64:
        """What may be read without beginning another frame: the rest of the size header, or of the frame begun."""
        if self.size < 0:
            return HEADER - self.staged
        return self.size - self.staged

    def feed(self, data: bytes) -> Run | None:
        """Take what one read gave.

        Returns:
            The run that it completed, or None. A fault behind the run is in ``fault``; the run itself is good.
        """
        if self.staged != 0 or self._first:
            return self._feed_begun(data)
        limit = self._limit.value
        frames, end, rest, fault = scan(data, 0, limit, self._stats.frame_sizes)
        if rest != 0 or fault != OK:
            self._leave_rest(data, end, rest, fault)
        if frames == 0:
            return None
        return Run(None, 0, data, 0, end, frames, 0)

    def retry_lease(self) -> bool:
        """Ask the pool again for the frame begun; True when reading may go on."""
        self.waiting = not self._lease_frame()
        return not self.waiting

    def drop(self) -> i64:
        """Forget the frame begun, and give its bytes back; dropping twice is harmless.

        Returns:
            How many of its bytes were here: what is lost.
        """
        lost = self.staged
        booked = self._booked
        self._reset()  # before the release, which may call back
        self._pool.release(booked)
        return lost

    def _feed_begun(self, data: bytes) -> Run | None:
        """As ``feed``, when a frame is begun, or when these are the connection's first bytes."""
        length: i64 = len(data)
        if self.size < 0 and not self._take_header(data, length):
            return None
        first = self.size - self.staged
        if length < first:
            self._stage(data)
            self.waiting = not self._lease_frame()
            return None
        self._stats.frame_sizes[size_bucket(self.size - HEADER)] += 1
        frames, end, rest, fault = scan(data, first, self._limit.value, self._stats.frame_sizes)
        run = Run(self._pieces, self.staged, data, first if self.staged else 0, end, frames + 1, self._booked)
        self._reset()
        if rest != 0 or fault != OK:
            self._leave_rest(data, end, rest, fault)
        return run

    def _take_header(self, data: bytes, length: i64) -> bool:
        """Read the size from what is staged and the beginning of ``data``; False when it is not whole, or not good."""
        have = self.staged
        if have + length < HEADER:
            self._stage(data)
            return False
        header = data[:HEADER] if self._pieces is None else b"".join([*self._pieces, data[: HEADER - have]])
        if self._first:
            self._first = False
            self.foreign = foreign_protocol(header)
            if self.foreign:
                self.fault = NOT_OURS
                self.refused_bytes = length
                return False
        size = i64(read_i32_be(header, 0))
        self.fault = judge(size, self._limit.value)
        if self.fault != OK:
            self.faulty_size = size
            self.refused_bytes = length
            return False
        self.size = HEADER + size
        return True

    def _leave_rest(self, data: bytes, end: i64, rest: i64, fault: i64) -> None:
        """Stage what follows the last whole frame of ``data``, or note what is wrong with it."""
        if fault != OK:
            self.fault = fault
            self.faulty_size = i64(read_i32_be(data, end))
            self.refused_bytes = len(data) - end
            return
        length: i64 = len(data)
        left = length - end
        self._stage(memoryview(data)[end:] if left >= VIEW_FROM and 2 * left >= length else data[end:] if end else data)
        if rest > 0:
            self.size = left + rest
            self.waiting = not self._lease_frame()

    def _stage(self, piece: Buffer) -> None:
        size: i64 = len(piece)
        pieces = self._pieces
        overhead: i64 = PIECE_OVERHEAD
        if pieces is None:
            self._pieces = [piece]
        elif size < JOIN_BELOW and len(pieces[-1]) < JOIN_BELOW:
            pieces[-1] = b"".join((pieces[-1], piece))
            overhead = 0
        else:
            pieces.append(piece)
        self.staged += size
        booking = overhead + held(piece) - (size if self._granted else 0)  # a view keeps all of the read in memory
        self._pool.charge(booking)
        self._booked += booking

    def _lease_frame(self) -> bool:
        if self._granted:
            return True
        rest = self.size - self.staged
        if not self._pool.try_lease(rest, self._booked):
            return False
        self._booked += rest
        self._granted = True
        return True

    def _reset(self) -> None:
        self._pieces = None
        self._booked = 0
        self._granted = False
        self.staged = 0
        self.size = -1
        self.waiting = False
