"""A run: the whole frames that one read completed. They move through the proxy together."""

from typing import Final

from librt.vecs import append, vec
from mypy_extensions import i64, mypyc_attr

from framegate.proxy.network.framing import Framing
from framegate.proxy.network.int32 import INT32

Buffer = bytes | memoryview
Body = bytes | memoryview | list[bytes | memoryview]  # a frame's body, or the pieces of it

COPY_BELOW: Final = 4096  # a view costs more than copying fewer bytes than this

# The bits of ``Run.part``, for a run that is a piece of one frame.
PART: Final = 1
PART_FIRST: Final = 2  # it begins with the frame's size header
PART_LAST: Final = 4  # it completes the frame


@mypyc_attr(free_list_len=1)
class Run:
    """Whole frames, or a piece of one frame, in the bytes that were read. In the common case ``head`` is None and the run is ``data[:end]``, where
    ``data`` is the object that ``recv`` returned. If earlier reads returned the beginning of the first frame, ``head`` has its pieces, and ``data``
    begins with the rest of that frame.
    """

    def __init__(
        self,
        head: list[Buffer] | None,
        head_size: i64,
        data: bytes,
        first: i64,
        end: i64,
        frames: i64,
        lease: i64,
        part: i64 = 0,
        framing: Framing = INT32,
    ) -> None:
        self.head: Final = head  # pieces of the first frame from earlier reads, or None
        self.head_size: Final = head_size  # bytes in ``head``
        self.data: Final = data  # the bytes of the last read
        self.first: Final = first  # the position in ``data`` of the first header that lies in ``data``; 0 without a head
        self.end: Final = end  # the position in ``data`` where the run ends
        self.frames: Final = frames  # whole frames; at least 1 unless the run is a piece
        self.size: Final = head_size + end  # bytes, headers included: ``head_size + end``
        self.lease: i64 = lease  # bytes booked at the memory pool that move with the run; the consumer releases them. 0 for a run without a head.
        # 0 for whole frames; else the run is a piece of a frame that is cut through: ``PART``, with ``PART_FIRST`` and ``PART_LAST``. ``frames`` is
        # then 1 with ``PART_LAST``, else 0; ``first`` is ``end``, because no header follows.
        self.part: Final[i64] = part
        self.framing: Final = framing  # the framing that found the frames

    def give_lease(self, run: "Run") -> "Run":
        """Move the lease to another run. Use the returned run, which may be another object."""
        run.lease = self.lease
        self.lease = 0
        return run

    def tail(self) -> Buffer:
        """Return ``data[:end]``; ``data`` itself if the run ends there."""
        if self.end == len(self.data):
            return self.data
        if self.end < COPY_BELOW:
            return self.data[: self.end]
        return memoryview(self.data)[: self.end]

    def pieces(self) -> list[Buffer]:
        """Return all bytes of the run, in order, in a new list."""
        if self.head is None:
            return [self.tail()]
        return [*self.head, self.tail()] if self.end != 0 else list(self.head)

    def starts(self) -> vec[i64]:
        """Return the start of each frame, counted from the start of the run."""
        starts = vec[i64](capacity=self.frames + 1)
        if self.head is not None:
            starts = append(starts, i64(0))
        return self.framing.frame_starts(self.data, self.first, self.end, self.head_size, starts)

    def first_frames(self, count: i64) -> "Run":
        """Return the first frames, 0 < count <= frames, as a run without a lease."""
        if count == self.frames:
            end = self.end
        else:
            end = self.starts()[count] - self.head_size
        return Run(self.head, self.head_size, self.data, self.first, end, count, 0, 0, self.framing)

    def frames_between(self, first: i64, last: i64, starts: vec[i64]) -> "Run":
        """Return the frames from ``first`` up to ``last``, which is not included, as a run without a lease. ``starts``: of this run."""
        end = self.end if last == self.frames else starts[last] - self.head_size
        if first == 0:
            return Run(self.head, self.head_size, self.data, self.first, end, last, 0, 0, self.framing)
        data = self.data[starts[first] - self.head_size : end]
        return Run(None, 0, data, 0, i64(len(data)), last - first, 0, 0, self.framing)

    def first_sizes(self) -> tuple[i64, i64]:
        """Return the sizes of the header and the body of the first frame. The run may be a first piece."""
        framing = self.framing
        if framing.tail != 0:
            return 0, framing.body_size(self.data, 0) if self.head is None else self.head_size + self.first - framing.tail
        header = self.prefix(framing.most_header)
        return framing.header_size(header, 0), framing.body_size(header, 0)

    def prefix(self, size: i64) -> bytes:
        """Return the first bytes of the run, at most ``size``."""
        if self.head is None:
            return self.data[: min(size, self.end)]
        pieces: list[Buffer] = []
        left = size
        for piece in self.pieces():
            pieces.append(piece[:left])
            left -= len(piece)
            if left <= 0:
                break
        return b"".join(pieces)


def held(piece: Buffer) -> i64:
    """Return how many bytes a piece keeps in memory, which must be booked: for a view those of the whole buffer."""
    if isinstance(piece, bytes):
        return len(piece)
    return memoryview(piece.obj).nbytes


def keep(piece: Buffer) -> Buffer:
    """Return a piece for keeping: a copy if it is a view of less than half of its buffer, else the piece itself. A copy of 200 KiB that are not in
    the processor's cache costs 37 µs.
    """
    if isinstance(piece, bytes) or 2 * i64(len(piece)) >= held(piece):
        return piece
    return bytes(piece)


def shorten(piece: Buffer, taken: i64) -> Buffer:
    """Return the rest of a piece behind its first ``taken`` bytes, for keeping."""
    return keep(piece if taken == 0 else memoryview(piece)[taken:])
