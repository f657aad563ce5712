"""Reads the tap's log: its streams, segments, blocks and frames.

Theory of operation. A reader needs no word from the writer. A block is believed when it lies wholly inside the file's size (asked *before*
its header is read, so that a tail that is cut and written anew meanwhile never passes) and its header's CRC fits; reading it checks the
body's CRC too. What follows the last such block is not there yet, or is a torn tail that never will be: both read as the end. A segment is
sealed by a rename, so its path may go stale between listing and opening; the other name is tried then.

Planning walks headers only (``walk``): 128 bytes for each block. Reading (``read_block``) gives the whole block, verified. Both take
logical offsets. An offset that retention deleted raises ``OffsetVanishedError``; a damaged block with intact ones behind it (in a later
segment) raises ``DamagedBlockError``; neither is skipped silently.
"""

import dataclasses
import itertools
import json
import os
import zlib
from collections.abc import Iterator
from typing import Final

from proxy.tap.record import (
    BLOCK_HEADER_BYTES,
    CHUNK_ROW,
    CHUNK_ROW_BYTES,
    DIRECTION_REQUEST,
    DIRECTION_RESPONSE,
    DIRECTIONS,
    FLAG_ANSWERS,
    FLAG_SIZES,
    FRAME_HEADER_BYTES,
    KIND_GAP,
    OPEN_SUFFIX,
    REASONS,
    SEALED_SUFFIX,
    SEGMENT_HEADER_BYTES,
    BlockHeader,
    ChunkRow,
    FormatError,
    decode_block_header,
    decode_segment_header,
)

START: Final = 0
LISTINGS: Final = 3


class LogError(Exception):
    """The log does not hold what was asked for. ``stream`` names where."""

    def __init__(self, stream: str, message: str) -> None:
        super().__init__(f"{stream}: {message}")
        self.stream = stream


class OffsetVanishedError(LogError):
    """The blocks at an offset were deleted. ``offset`` was asked for; ``available`` is the next one that exists, None when nothing does."""

    def __init__(self, stream: str, offset: int, available: int | None) -> None:
        rest = "nothing is left" if available is None else f"the log begins again at {available}"
        super().__init__(stream, f"offset {offset} is gone: {rest}")
        self.offset = offset
        self.available = available


class DamagedBlockError(LogError):
    """The block at ``offset`` is not what its CRC says; ``available`` is where the next segment begins, None when there is none."""

    def __init__(self, stream: str, offset: int, available: int | None, detail: str) -> None:
        super().__init__(stream, f"block at {offset} is damaged: {detail}")
        self.offset = offset
        self.available = available


@dataclasses.dataclass(frozen=True, slots=True)
class Segment:
    """One file of a stream.

    Attributes:
        stream: the folder's name.
        path: as it was when listed; ``open_segment`` finds it after a rename.
        base: the logical offset of its first block.
        sealed: it will not grow any more.
        size: bytes of the file when listed, header included.
        modified_ns: when it was last written, wall clock.
    """

    stream: str
    path: str
    base: int
    sealed: bool
    size: int
    modified_ns: int

    @property
    def limit(self) -> int:
        """The logical offset of the end of the file: no block of it lies beyond."""
        return self.base + max(0, self.size - SEGMENT_HEADER_BYTES)


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


@dataclasses.dataclass(frozen=True, slots=True)
class Frame:
    """One frame out of the log, with its chunk's facts in words.

    Attributes:
        stream: the folder's name.
        capture_ns: wall clock.
        connection: id of the pair.
        listener, direction, principal, peer, rule: words.
        number: the frame's number on its connection and direction, from 0.
        size: bytes of the body on the wire.
        body: what was kept of it: all, a part, nothing, or a hash.
        request_key: ``api key << 16 | version`` of the request that this answers; -1 unknown, None not paired.
        latency_us: from request to answer; -1 unknown, None not paired.
        flags: of the chunk.
    """

    stream: str
    capture_ns: int
    connection: int
    listener: str
    direction: str
    principal: str | None
    peer: str | None
    rule: str | None
    number: int
    size: int
    body: bytes
    request_key: int | None
    latency_us: int | None
    flags: int


@dataclasses.dataclass(frozen=True, slots=True)
class GapRecord:
    """A gap chunk in words; fields as in ``record``."""

    stream: str
    capture_ns: int
    from_ns: int
    connection: int
    listener: str | None
    direction: str
    principal: str | None
    peer: str | None
    rule: str | None
    reason: str
    first_frame: int
    frames: int
    bytes: int


class LogBlock:
    """A block whose CRCs were good.

    Attributes:
        stream: the folder's name.
        header: its header.
        data: the whole block, header included, as a view.
        strings: its string table.
        rows: its chunk table.
    """

    def __init__(self, stream: str, header: BlockHeader, data: memoryview) -> None:
        self.stream = stream
        self.header = header
        self.data = data
        strings: list[str] = json.loads(bytes(data[header.header_len : header.header_len + header.strings_len]) or b"[]")
        self.strings = strings
        table = data[header.chunks_at : header.chunks_at + header.chunk_count * CHUNK_ROW_BYTES]
        self.rows = [ChunkRow(*fields) for fields in CHUNK_ROW.iter_unpack(table)]

    def word(self, index: int) -> str | None:
        """The string that a row names; None for -1."""
        return None if index < 0 else self.strings[index]

    def starts(self, row: ChunkRow) -> memoryview:
        """Where each frame of a chunk begins in its data."""
        return self._ints(self.header.starts_at, row.starts_index, row.frame_count)

    def sizes(self, row: ChunkRow) -> memoryview | None:
        """The body sizes on the wire; None when they are those stored."""
        return self._ints(self.header.sizes_at, row.sizes_index, row.frame_count) if row.flags & FLAG_SIZES else None

    def answers(self, row: ChunkRow) -> tuple[memoryview, memoryview] | None:
        """Request keys and latencies; None when the chunk has none."""
        if not row.flags & FLAG_ANSWERS:
            return None
        keys = self._ints(self.header.answers_at, row.answers_index, row.frame_count)
        return keys, self._ints(self.header.answers_at + 4 * self.header.answers_count, row.answers_index, row.frame_count)

    def chunk_data(self, row: ChunkRow) -> memoryview:
        """A chunk's stored bytes."""
        start = self.header.data_at + row.data_offset
        return self.data[start : start + row.data_length]

    def frames(self) -> Iterator[Frame]:
        """Every stored frame, in order."""
        for row in self.rows:
            if row.kind != KIND_GAP:
                yield from self._frames_of(row)

    def gaps(self) -> Iterator[GapRecord]:
        """Every gap chunk, in order."""
        for row in self.rows:
            if row.kind == KIND_GAP:
                yield GapRecord(
                    stream=self.stream,
                    capture_ns=row.capture_ns,
                    from_ns=row.lost_from_ns,
                    connection=row.connection,
                    listener=self.word(row.listener),
                    direction=DIRECTIONS[row.direction],
                    principal=self.word(row.principal),
                    peer=self.word(row.peer),
                    rule=self.word(row.rule),
                    reason=REASONS[row.reason],
                    first_frame=row.first_frame,
                    frames=row.lost_frames,
                    bytes=row.lost_bytes,
                )

    def _frames_of(self, row: ChunkRow) -> Iterator[Frame]:
        data = self.chunk_data(row)
        ends = [*self.starts(row)[1:], row.data_length]
        answers = self.answers(row)
        for index, (start, end) in enumerate(zip(self.starts(row), ends, strict=True)):
            yield Frame(
                stream=self.stream,
                capture_ns=row.capture_ns,
                connection=row.connection,
                listener=self.strings[row.listener],
                direction=DIRECTIONS[row.direction],
                principal=self.word(row.principal),
                peer=self.word(row.peer),
                rule=self.word(row.rule),
                number=row.first_frame + index,
                size=int.from_bytes(data[start : start + FRAME_HEADER_BYTES], "big"),
                body=bytes(data[start + FRAME_HEADER_BYTES : end]),
                request_key=None if answers is None else answers[0][index],
                latency_us=None if answers is None else answers[1][index],
                flags=row.flags,
            )

    def _ints(self, section: int, index: int, count: int) -> memoryview:
        start = section + 4 * index
        return self.data[start : start + 4 * count].cast("i")


def streams(root: str) -> list[str]:
    """Names of the streams in a tap directory, sorted; a directory that does not exist has none."""
    try:
        with os.scandir(root) as entries:
            return sorted(entry.name for entry in entries if entry.name[0] not in "._" and entry.is_dir())
    except FileNotFoundError:
        return []


def segments(root: str, stream: str) -> list[Segment]:
    """The segments of a stream in order; a stream that does not exist (any more) has none.

    A listing is no snapshot: a file renamed meanwhile may be missing from it. So one with a hole is made again.
    """
    found: list[Segment] = []
    for _ in range(LISTINGS):
        found = _list(root, stream)
        if all(left.limit >= right.base for left, right in itertools.pairwise(found)):
            break
    return found


def _list(root: str, stream: str) -> list[Segment]:
    found: dict[int, Segment] = {}
    try:
        names = os.listdir(os.path.join(root, stream))
    except FileNotFoundError:
        return []
    for name in names:
        stem, suffix = os.path.splitext(name)
        if suffix in (OPEN_SUFFIX, SEALED_SUFFIX) and stem.isdigit():
            segment = _look_at(root, stream, stem, suffix)
            if segment is not None and (segment.base not in found or segment.size > found[segment.base].size):
                found[segment.base] = segment
    return [found[base] for base in sorted(found)]


def _look_at(root: str, stream: str, stem: str, suffix: str) -> Segment | None:
    """One segment, sealed or not since it was listed; None when it was deleted."""
    for sealed in (suffix == SEALED_SUFFIX, True):
        path = os.path.join(root, stream, stem + (SEALED_SUFFIX if sealed else OPEN_SUFFIX))
        try:
            status = os.stat(path)
        except FileNotFoundError:
            continue
        return Segment(stream, path, int(stem), sealed, status.st_size, status.st_mtime_ns)
    return None


def open_segment(path: str) -> int:
    """A descriptor for reading; a segment sealed since it was listed is found under its new name.

    Raises:
        FileNotFoundError: it was deleted.
    """
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        if not path.endswith(OPEN_SUFFIX):
            raise
        return os.open(path.removesuffix(OPEN_SUFFIX) + SEALED_SUFFIX, os.O_RDONLY | os.O_CLOEXEC)


def segment_facts(path: str) -> dict[str, str | int]:
    """What a segment's header says: node, slot, stream, boot_id, created_ns, base, version.

    Raises:
        FormatError: not a segment.
        FileNotFoundError: it was deleted.
    """
    fd = open_segment(path)
    try:
        return decode_segment_header(os.pread(fd, SEGMENT_HEADER_BYTES, 0))
    finally:
        os.close(fd)


def first_offset(root: str, stream: str) -> int:
    """Where the stream's oldest block that still exists begins; 0 for a stream without segments."""
    listed = segments(root, stream)
    return listed[0].base if listed else START


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
        DamagedBlockError: no block begins here, though later ones exist.
    """
    listed = segments(root, stream)
    if not listed or listed[0].base > offset:
        listed = segments(root, stream)
    while listed and listed[0].limit <= offset and len(listed) > 1 and listed[1].base <= offset:
        listed.pop(0)
    for index, segment in enumerate(listed):
        following = listed[index + 1].base if index + 1 < len(listed) else None
        if segment.base > offset:
            raise OffsetVanishedError(stream, offset, segment.base)
        for block in walk_segment(segment, offset, limit):
            yield block
            offset = block.header.end
        if limit is not None and offset >= limit:
            return
        if following is not None and following > offset:
            _explain(segment, offset, following)
    if not listed and offset > START:
        raise OffsetVanishedError(stream, offset, None)


def _explain(segment: Segment, offset: int, following: int) -> None:
    """Blocks stop before the next segment begins: tell a hole in the log from a damaged block."""
    try:
        size = os.stat(segment.path).st_size
    except FileNotFoundError:
        size = 0
    if segment.base + size - SEGMENT_HEADER_BYTES > offset:
        raise DamagedBlockError(segment.stream, offset, following, "its header is not a header, or it is cut short")
    raise OffsetVanishedError(segment.stream, offset, following)


def walk_segment(segment: Segment, offset: int, limit: int | None = None) -> Iterator[BlockRef]:
    """``walk`` within one segment; ends where its whole blocks end.

    Raises:
        OffsetVanishedError: the segment was deleted.
    """
    try:
        fd = open_segment(segment.path)
    except FileNotFoundError:
        raise OffsetVanishedError(segment.stream, offset, None) from None
    try:
        position = offset - segment.base + SEGMENT_HEADER_BYTES
        while limit is None or offset < limit:
            header = _header_at(fd, position, offset)
            if header is None:
                return
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


def read_block(block: BlockRef) -> LogBlock:
    """The block, its body's CRC verified.

    Raises:
        OffsetVanishedError: its segment was deleted since the walk.
        DamagedBlockError: the body is not what its CRC says.
    """
    header = block.header
    try:
        fd = open_segment(block.path)
    except FileNotFoundError:
        raise OffsetVanishedError(block.stream, header.offset, None) from None
    try:
        data = os.pread(fd, header.block_len, block.position)
    finally:
        os.close(fd)
    return verify_block(block.stream, header, memoryview(data))


def verify_block(stream: str, header: BlockHeader, data: memoryview) -> LogBlock:
    """A block from its bytes.

    Args:
        stream: for errors.
        header: as decoded during the walk.
        data: ``block_len`` bytes, header included; from a read or a memory map.

    Raises:
        DamagedBlockError: the bytes are not what the CRC says.
    """
    if len(data) != header.block_len or zlib.crc32(data[header.header_len :]) != header.body_crc:
        raise DamagedBlockError(stream, header.offset, None, "its body's CRC does not fit")
    return LogBlock(stream, header, data)


def read_blocks(root: str, stream: str, offset: int = START, limit: int | None = None) -> Iterator[LogBlock]:
    """``walk`` and ``read_block`` in one; raises what they raise.

    A damaged block with nothing behind it is the end, not an error: a power loss leaves such tails.
    """
    for ref in walk(root, stream, offset, limit):
        try:
            block = read_block(ref)
        except DamagedBlockError:
            if ref.header.end >= segments(root, stream)[-1].limit:
                return
            raise
        yield block


def read_frames(root: str, stream: str | None = None) -> Iterator[Frame]:
    """Every frame of a stream, or of all streams one after the other, from the oldest block that exists."""
    for name in streams(root) if stream is None else [stream]:
        for block in read_blocks(root, name, first_offset(root, name)):
            yield from block.frames()


def read_gaps(root: str, stream: str | None = None) -> Iterator[GapRecord]:
    """Every gap of a stream, or of all streams."""
    for name in streams(root) if stream is None else [stream]:
        for block in read_blocks(root, name, first_offset(root, name)):
            yield from block.gaps()


def count_frames(root: str) -> dict[str, int]:
    """Frames in the log by direction, counted chunk by chunk from verified blocks; does not trust the headers' totals."""
    counts = dict.fromkeys(DIRECTIONS, 0)
    for name in streams(root):
        for block in read_blocks(root, name, first_offset(root, name)):
            for row in block.rows:
                counts[DIRECTIONS[row.direction]] += row.frame_count
    return counts


@dataclasses.dataclass(frozen=True, slots=True)
class StreamTotals:
    """What one stream says of itself: frames stored and frames that its gaps miss, by direction."""

    stored: dict[str, int]
    missing: dict[str, int]


def stream_totals(root: str, stream: str) -> StreamTotals:
    """Totals from block headers; only blocks with gaps are read whole. Raises what ``walk`` raises."""
    totals = StreamTotals(dict.fromkeys(DIRECTIONS, 0), dict.fromkeys(DIRECTIONS, 0))
    for ref in walk(root, stream, first_offset(root, stream)):
        totals.stored[DIRECTIONS[DIRECTION_REQUEST]] += ref.header.request_frames
        totals.stored[DIRECTIONS[DIRECTION_RESPONSE]] += ref.header.response_frames
        if ref.header.lost_frames:
            for gap in read_block(ref).gaps():
                totals.missing[gap.direction] += gap.frames
    return totals
