"""A run: the whole frames that one read completed. It counts as one receive, and moves through the proxy as one thing."""

from typing import Final

from librt.vecs import append, vec
from mypy_extensions import i64, mypyc_attr

from framegate.proxy.network.framing import Framing
from framegate.proxy.network.int32 import INT32

__all__ = ["PART", "PART_FIRST", "PART_LAST", "Body", "Buffer", "Run", "held", "keep", "shorten"]

Buffer = bytes | memoryview
Body = bytes | memoryview | list[bytes | memoryview]
"""A frame's body, or the pieces of it."""

COPY_BELOW: Final = 4096  # a view costs more than copying fewer bytes than this

# What a run that is a piece of one frame says of itself, in ``Run.part``.
PART: Final = 1
PART_FIRST: Final = 2  # it begins with the frame's size header
PART_LAST: Final = 4  # it completes the frame


@mypyc_attr(free_list_len=1)
class Run:
    """Whole frames, in the bytes that the reads gave.

    In the common case ``head`` is None and ``data[:end]`` is the whole run, ``data`` being exactly the object that one ``recv`` gave. When
    the first frame was begun by earlier reads, ``head`` holds its first bytes in pieces, and ``data`` begins with the last of it.

    Attributes:
        head: pieces of the first frame that earlier reads gave, or None.
        head_size: their bytes.
        data: what the last read gave.
        first: where in ``data`` the first frame starts whose header lies in ``data``; 0 without a head.
        end: where in ``data`` the run ends.
        frames: whole frames, at least 1 but in pieces.
        size: bytes, size headers included: ``head_size + end``.
        lease: bytes booked at the memory pool that move along with the run; the consumer of the run releases them. 0 for a run without a head.
        part: 0 for whole frames; else the run is a piece of one frame that is cut through: ``PART``, with ``PART_FIRST`` and ``PART_LAST``.
            ``frames`` is then 1 with ``PART_LAST``, else 0, and ``first`` is ``end``: no size header is to be looked for.
        framing: that found the frames.
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
        self.head: Final = head
        self.head_size: Final = head_size
        self.data: Final = data
        self.first: Final = first
        self.end: Final = end
        self.frames: Final = frames
        self.size: Final = head_size + end
        self.lease: i64 = lease
        self.part: Final[i64] = part
        self.framing: Final = framing

    def give_lease(self, run: "Run") -> "Run":
        """Have another run carry the lease from here on; it, or its like, is to be used."""
        run.lease = self.lease
        self.lease = 0
        return run

    def tail(self) -> Buffer:
        """The run's part of ``data``: the object itself when the run ends where it does."""
        if self.end == len(self.data):
            return self.data
        if self.end < COPY_BELOW:
            return self.data[: self.end]
        return memoryview(self.data)[: self.end]

    def pieces(self) -> list[Buffer]:
        """All of the run, in order. The list is the caller's."""
        if self.head is None:
            return [self.tail()]
        return [*self.head, self.tail()] if self.end != 0 else list(self.head)

    def starts(self) -> vec[i64]:
        """Where each frame starts, counted from the start of the run."""
        starts = vec[i64](capacity=self.frames + 1)
        if self.head is not None:
            starts = append(starts, i64(0))
        return self.framing.frame_starts(self.data, self.first, self.end, self.head_size, starts)

    def first_frames(self, count: i64) -> "Run":
        """The first of its frames, 0 < count <= frames, as a run without a lease."""
        if count == self.frames:
            end = self.end
        else:
            end = self.starts()[count] - self.head_size
        return Run(self.head, self.head_size, self.data, self.first, end, count, 0, 0, self.framing)

    def first_sizes(self) -> tuple[i64, i64]:
        """Bytes of the header and of the body of the run's first frame; of a piece that begins one, too."""
        framing = self.framing
        if framing.tail != 0:
            return 0, framing.body_size(self.data, 0) if self.head is None else self.head_size + self.first - framing.tail
        header = self.prefix(framing.most_header)
        return framing.header_size(header, 0), framing.body_size(header, 0)

    def prefix(self, size: i64) -> bytes:
        """The first bytes of the run, at most ``size``; for protocols that look into a frame's beginning."""
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
    """Bytes that a retained piece keeps in memory, and that must be booked: its own, or for a view those of the whole buffer."""
    if isinstance(piece, bytes):
        return len(piece)
    return memoryview(piece.obj).nbytes


def keep(piece: Buffer) -> Buffer:
    """A piece that is to be retained: as it is, unless it is a view of less than half of what it holds in memory; then a copy.

    Copying more would save no booking that is not true, and costs 37 µs for 200 KiB that are not in the processor's cache.
    """
    if isinstance(piece, bytes) or 2 * i64(len(piece)) >= held(piece):
        return piece
    return bytes(piece)


def shorten(piece: Buffer, taken: i64) -> Buffer:
    """What is left of a piece behind its first ``taken`` bytes, to be retained."""
    return keep(piece if taken == 0 else memoryview(piece)[taken:])
