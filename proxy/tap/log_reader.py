"""Reads the tap's log: its streams, segments and blocks. What a reader imports is here; ``log_segments`` finds and opens the files.

Theory of operation. A reader needs no word from the writer. A block is believed when it lies wholly inside the file's size (asked *before*
its header is read, so that a tail that is cut and written anew meanwhile never passes) and its header's CRC fits; reading it checks the
body's CRC too. What follows the last such block is not there yet, or is a torn tail that never will be: both read as the end, while the segment
is being written. A sealed one ends where its seal says, and is damaged when it does not; older ones than ``SEALED_SINCE`` have no seal.

Planning walks headers only (``walk``): 128 bytes for each block. Reading (``read_block``) gives the whole block, verified, with the frames
whose pieces it completes joined (``Joiner``; ``read_raw`` leaves it as it lies). Both take logical offsets. An offset that retention deleted
raises ``OffsetVanishedError``; a damaged block with intact ones behind it (in a later segment) raises ``DamagedBlockError``; neither is skipped
silently. Where pieces that lie before what is read are gone, their frame says so itself.
"""

import dataclasses
import os
import zlib
from collections.abc import Callable, Iterator

from framegate.proxy.tap.headers import BlockHeader, decode_block_header
from framegate.proxy.tap.log_block import LogBlock
from framegate.proxy.tap.log_segments import (
    START,
    DamagedBlockError,
    LogError,
    OffsetVanishedError,
    Segment,
    UnknownVersionError,
    first_offset,
    next_base,
    open_segment,
    seal_at,
    segment_seal,
    segments,
    streams,
)
from framegate.proxy.tap.pieces import PieceIndex, Place, chunk_rows, joined
from framegate.proxy.tap.record import BLOCK_HEADER_BYTES, BLOCK_PIECES, SEGMENT_HEADER_BYTES, FormatError

__all__ = [
    "START",
    "BlockRef",
    "DamagedBlockError",
    "Joiner",
    "LogError",
    "OffsetVanishedError",
    "Segment",
    "UnknownVersionError",
    "end_offset",
    "first_offset",
    "open_segment",
    "read_block",
    "read_raw",
    "segment_seal",
    "segments",
    "streams",
    "vanished",
    "walk",
    "walk_past",
    "walk_segment",
]


@dataclasses.dataclass(frozen=True, slots=True)
class BlockRef:
    """A block found by its header; its body was not looked at.

    Attributes:
        stream: the folder's name.
        path: of the segment, as it was when listed.
        base: of the segment.
        position: in the file.
        header: what the block says of itself; ``header.offset`` and ``header.end`` are logical.
    """

    stream: str
    path: str
    base: int
    position: int
    header: BlockHeader


def end_offset(root: str, stream: str, offset: int = START) -> int:
    """Where the next block will go: the end of the last whole block, by headers. ``offset``: a known block to walk from.

    Raises:
        LogError: as ``walk``.
    """
    if not offset:
        listed = segments(root, stream)
        offset = listed[-1].base if listed else START
    for block in walk(root, stream, offset):
        offset = block.header.end
    return offset


def walk(root: str, stream: str, offset: int = START, limit: int | None = None) -> Iterator[BlockRef]:
    """The blocks of a stream from an offset on, by their headers.

    Args:
        root: the tap directory.
        stream: a stream's name.
        offset: where a block begins; ``first_offset`` is the oldest that exists.
        limit: stop at this logical offset; None: at the end of what is there.

    Raises:
        OffsetVanishedError: the blocks at the offset, or some behind it, were deleted.
        DamagedBlockError: no block begins here, though later ones exist, or the seal of its segment says so.
        UnknownVersionError: a later framegate wrote the segment.
    """
    listed = segments(root, stream)
    if not listed or listed[0].base > offset:
        listed = segments(root, stream)
    while len(listed) > 1 and listed[1].base <= offset:
        listed.pop(0)  # however long: what lies behind the next one's beginning is no part of the log
    for index, segment in enumerate(listed):
        following = listed[index + 1].base if index + 1 < len(listed) else None
        if segment.base > offset:
            raise OffsetVanishedError(stream, offset, segment.base)
        try:
            for block in walk_segment(segment, offset, limit, following):
                yield block
                offset = block.header.end
        except OffsetVanishedError:
            raise OffsetVanishedError(stream, offset, next_base(root, stream, offset)) from None
        if limit is not None and offset >= limit:
            return
        if following is not None and following > offset:
            _explain(segment, offset, following)
    if not listed and offset > START:
        raise OffsetVanishedError(stream, offset, None)


def walk_past(
    root: str, stream: str, offset: int, take: Callable[[BlockRef], object], on_error: Callable[[LogError], object], limit: int | None = None
) -> None:
    """``walk`` for who takes what can be had: goes on behind what is damaged or gone.

    Args:
        root, stream, offset, limit: as for ``walk``.
        take: gets each block, and may raise what ``read_block`` raises.
        on_error: gets what is passed over: of a block whose body is damaged, of what lies up to the next segment, or of the rest of the stream.
    """
    at: int | None = offset
    while at is not None and (limit is None or at < limit):
        try:
            for block in walk(root, stream, at, limit):
                try:
                    take(block)
                except DamagedBlockError as damage:
                    on_error(damage)
                at = block.header.end
            return
        except (OffsetVanishedError, DamagedBlockError) as error:
            on_error(error)
            at = error.available
        except LogError as error:
            on_error(error)
            return


def _explain(segment: Segment, offset: int, following: int) -> None:
    """Blocks stop before the next segment begins: tell a hole in the log from a damaged block."""
    try:
        size = os.stat(segment.path).st_size
    except FileNotFoundError:
        size = 0
    if segment.base + size - SEGMENT_HEADER_BYTES > offset:
        raise DamagedBlockError(segment.stream, offset, following, "its header is not a header, or it is cut short")
    raise OffsetVanishedError(segment.stream, offset, following)


def walk_segment(segment: Segment, offset: int, limit: int | None = None, following: int | None = None) -> Iterator[BlockRef]:
    """``walk`` within one segment; ends where its whole blocks end.

    Args:
        segment: as listed.
        offset, limit: as for ``walk``.
        following: where the next segment begins, for the error.

    Raises:
        OffsetVanishedError: the segment was deleted.
        DamagedBlockError: it is sealed, and its blocks end elsewhere than its seal says; or it has no seal, or its header is damaged.
        UnknownVersionError: a later framegate wrote it.
    """
    try:
        fd = open_segment(segment.path)
    except FileNotFoundError:
        raise OffsetVanishedError(segment.stream, offset, None) from None
    try:
        seal = seal_at(fd, segment, following)
        end = None if seal is None else seal.end
        position = offset - segment.base + SEGMENT_HEADER_BYTES
        while (limit is None or offset < limit) and (end is None or offset < end):
            header = _header_at(fd, position, offset)
            if header is None:
                if end is None:
                    return
                raise DamagedBlockError(segment.stream, offset, following, f"{os.path.basename(segment.path)} was sealed with blocks up to {end}")
            yield BlockRef(segment.stream, segment.path, segment.base, position, header)
            position += header.block_len
            offset = header.end
    finally:
        os.close(fd)


def _header_at(fd: int, position: int, offset: int) -> BlockHeader | None:
    """The header of a block that is wholly in the file; None when there is none."""
    size = os.fstat(fd).st_size
    if position + BLOCK_HEADER_BYTES > size:
        return None
    try:
        header = decode_block_header(os.pread(fd, BLOCK_HEADER_BYTES, position))
    except FormatError:
        return None
    return header if header.offset == offset and position + header.block_len <= size else None


def read_block(block: BlockRef, joiner: "Joiner | None" = None) -> LogBlock:
    """The block, its body's CRC verified, its frames whole.

    Args:
        block: found by a walk.
        joiner: who joined the blocks before this one, if somebody did: it then need not look back.

    Raises:
        OffsetVanishedError: its segment was deleted since the walk.
        DamagedBlockError: the body is not what its CRC says.
    """
    return LogBlock(block.stream, *(joiner or Joiner()).join(block, _verified(block)))


def read_raw(block: BlockRef) -> LogBlock:
    """The block as it lies on the disk, pieces among its rows; for who looks at gaps, or at nothing. Raises as ``read_block``."""
    return LogBlock(block.stream, block.header, _verified(block))


def vanished(block: BlockRef) -> OffsetVanishedError:
    """The error for a block whose segment was deleted since the walk."""
    root = os.path.dirname(os.path.dirname(block.path))
    return OffsetVanishedError(block.stream, block.header.offset, next_base(root, block.stream, block.header.offset))


def _verified(block: BlockRef) -> memoryview:
    """A block's bytes, header included."""
    header = block.header
    try:
        fd = open_segment(block.path)
    except FileNotFoundError:
        raise vanished(block) from None
    try:
        data = os.pread(fd, header.block_len, block.position)
    finally:
        os.close(fd)
    if len(data) != header.block_len or zlib.crc32(memoryview(data)[header.header_len :]) != header.body_crc:
        raise DamagedBlockError(block.stream, header.offset, None, "its body's CRC does not fit")
    return memoryview(data)


class Joiner:
    """Joins the frames that were cut through with their pieces, for who reads block after block of a stream.

    What it gives depends on the log alone, not on the blocks that it saw: of those it knows where their pieces lie, and where a frame began
    before the first of them, it looks back, once. So any range of blocks gives the same chunks as it would within another.
    """

    def __init__(self) -> None:
        self._index = PieceIndex()
        self._stream = ""
        self._from = START
        self._to = START

    def join(self, block: BlockRef, body: memoryview) -> tuple[BlockHeader, memoryview]:
        """What a block holds, in the form of a block that has neither pieces nor what they complete.

        Args:
            block: where it lies.
            body: its bytes, header included, found good.

        Returns:
            ``body`` itself, when there are no pieces in it; else another one that is nowhere on disk. The header tells where the sections are in
            it; its offset, its length and its counts of frames are those of the block on disk.
        """
        header = block.header
        if (block.stream, header.offset) != (self._stream, self._to):
            self._index = PieceIndex()
            self._stream, self._from = block.stream, header.offset
        self._to = header.end
        if not header.flags & BLOCK_PIECES:
            return header, body
        rows = chunk_rows(header, body)
        places: list[Place] = []
        completing = self._index.note(block.path, block.position, header, rows)
        if completing is not None:
            if completing.lost_frames < self._from:
                self._index_earlier(block, completing.lost_frames)
            places = self._index.take(completing)
        return joined(header, body, rows, places, _read_piece)

    def _index_earlier(self, block: BlockRef, start: int) -> None:
        """Note the pieces from an offset on; what is gone, or damaged, is not noted."""
        earlier = PieceIndex()

        def note(ref: BlockRef) -> None:
            if ref.header.flags & BLOCK_PIECES:
                completing = earlier.note(ref.path, ref.position, ref.header, read_raw(ref).rows)
                if completing is not None:
                    earlier.take(completing)

        root = os.path.dirname(os.path.dirname(block.path))
        walk_past(root, block.stream, start, note, lambda error: None, self._from)
        self._index.note_before(earlier)
        self._from = start


def _read_piece(place: Place, target: memoryview) -> bool:
    try:
        fd = open_segment(place.path)
    except FileNotFoundError:
        return False
    try:
        return os.preadv(fd, [target], place.position) == len(target)
    finally:
        os.close(fd)
