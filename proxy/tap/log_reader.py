"""Reads the tap's log: streams, segments and blocks. Readers import this module only; ``log_segments`` finds and opens the files.

Theory of operation. A reader needs no contact with the writer. A block is valid when it lies wholly inside the file's size and its header's CRC is
correct; the size is taken before the header is read, so that a tail that is cut and written again meanwhile is never taken for a block. Reading a
block checks its body's CRC too. Bytes behind the last valid block are not written yet, or a torn tail: in a segment that is being written both are
the end. A sealed segment ends where its seal says; otherwise it is damaged. Versions before ``SEALED_SINCE`` have no seal.

Planning reads headers only (``walk``): 128 bytes for each block. ``read_block`` returns the whole block, checked, with the frames that it completes
joined with their pieces (``Joiner``); ``read_raw`` leaves pieces as they are. All take logical offsets. An offset that retention deleted raises
``OffsetVanishedError``; a damaged block with a later segment behind it raises ``DamagedBlockError``. Neither is skipped silently. A frame whose
earlier pieces are deleted says so itself.
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
    "read_bytes",
    "read_raw",
    "segment_seal",
    "segments",
    "streams",
    "walk",
    "walk_past",
    "walk_segment",
]


@dataclasses.dataclass(frozen=True, slots=True)
class BlockRef:
    """A block found by its header; its body was not read."""

    stream: str  # the folder's name
    path: str  # of the segment, as listed
    base: int  # of the segment
    position: int  # in the file
    header: BlockHeader  # of the block; ``header.offset`` and ``header.end`` are logical


def end_offset(root: str, stream: str) -> int:
    """The end of the last whole block, by headers. Raises LogError: as ``walk``."""
    listed = segments(root, stream)
    offset = listed[-1].base if listed else START
    for block in walk(root, stream, offset):
        offset = block.header.end
    return offset


def walk(root: str, stream: str, offset: int = START, limit: int | None = None) -> Iterator[BlockRef]:
    """The blocks of a stream from an offset on, by their headers.

    ``offset``: where a block begins; ``first_offset`` is the oldest that exists. ``limit``: stop at this logical offset; None: at the present end.

    Raises OffsetVanishedError: the blocks at the offset, or some behind it, were deleted; DamagedBlockError: no block begins here, though later ones
    exist, or the segment's seal says so; UnknownVersionError: a later framegate wrote the segment.
    """
    listed = segments(root, stream)
    if not listed or listed[0].base > offset:
        listed = segments(root, stream)
    while len(listed) > 1 and listed[1].base <= offset:
        listed.pop(0)  # whatever its length: bytes behind the next base are not part of the log
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
    """Like ``walk``, but continues behind what is damaged or deleted.

    Args:
        root, stream, offset, limit: as for ``walk``.
        take: gets each block, and may raise what ``read_block`` raises.
        on_error: gets an error for each part that is skipped: a block whose body is damaged, the rest of a segment, or the rest of the stream.
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
    """Raise the error for blocks that end before the next segment begins: the block is damaged, or blocks were deleted."""
    try:
        fd = open_segment(segment.path)
    except FileNotFoundError:
        size = 0
    else:
        size = os.fstat(fd).st_size
        os.close(fd)
    if segment.base + size - SEGMENT_HEADER_BYTES > offset:
        raise DamagedBlockError(segment.stream, offset, following, "its header is not a header, or it is cut short")
    raise OffsetVanishedError(segment.stream, offset, following)


def walk_segment(segment: Segment, offset: int, limit: int | None = None, following: int | None = None) -> Iterator[BlockRef]:
    """``walk`` within one segment; ends with its last whole block. ``offset``, ``limit``: as for ``walk``. Raises OffsetVanishedError: the segment
    was deleted; DamagedBlockError: it is sealed, and its blocks do not end where its seal says; or it has no seal, or its header is damaged;
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
    """The header of a block that lies wholly in the file; None when there is none."""
    size = os.fstat(fd).st_size
    if position + BLOCK_HEADER_BYTES > size:
        return None
    try:
        header = decode_block_header(os.pread(fd, BLOCK_HEADER_BYTES, position))
    except FormatError:
        return None
    return header if header.offset == offset and position + header.block_len <= size else None


def read_block(block: BlockRef, joiner: "Joiner | None" = None) -> LogBlock:
    """The block, with its body's CRC checked and its frames joined. ``block``: found by a walk. ``joiner``: that joined the blocks before this one;
    it need not look back then. Raises OffsetVanishedError: its segment was deleted since the walk; DamagedBlockError: its body's CRC is wrong.
    """
    return LogBlock(block.stream, *(joiner or Joiner()).join(block, _verified(block)))


def read_raw(block: BlockRef) -> LogBlock:
    """The block as on disk, with pieces among its rows. Raises as ``read_block``."""
    return LogBlock(block.stream, block.header, _verified(block))


def read_bytes(block: BlockRef, length: int) -> memoryview:
    """The first bytes of a block, at most ``length``. Raises OffsetVanishedError: its segment was deleted since the walk."""
    try:
        fd = open_segment(block.path)
    except FileNotFoundError:
        root = os.path.dirname(os.path.dirname(block.path))
        raise OffsetVanishedError(block.stream, block.header.offset, next_base(root, block.stream, block.header.offset)) from None
    try:
        return memoryview(os.pread(fd, length, block.position))
    finally:
        os.close(fd)


def _verified(block: BlockRef) -> memoryview:
    """A block's bytes, header included, with the body's CRC checked."""
    header = block.header
    data = read_bytes(block, header.block_len)
    if len(data) != header.block_len or zlib.crc32(data[header.header_len :]) != header.body_crc:
        raise DamagedBlockError(block.stream, header.offset, None, "its body's CRC does not fit")
    return data


class Joiner:
    """Joins frames that were cut through with their pieces, for a reader of consecutive blocks of a stream. The result depends on the log alone, not
    on the blocks read before: those only tell where pieces lie. For a frame that began before the first of them the joiner looks back, once. So a
    block gives the same chunks in every range of blocks.
    """

    def __init__(self) -> None:
        self._index = PieceIndex()
        self._stream = ""
        self._from = START
        self._to = START

    def join(self, block: BlockRef, body: memoryview) -> tuple[BlockHeader, memoryview]:
        """A block in the form of one without pieces. ``block``: its place. ``body``: its bytes, header included, checked. Returns: ``body`` itself
        when the block has no pieces; otherwise new bytes. The header has the positions of the sections in them; its offset, length and counts of
        frames are those of the block on disk.
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
        """Note the pieces from an offset on; deleted and damaged blocks are skipped."""
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
