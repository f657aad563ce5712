"""Reads the tap's log in order of time.

Streams are merged by capture time; records of one stream keep their order, also when the clock was set back. A stream is opened when the merge
reaches its first time, and only the current block of a stream is in memory, so the cost depends on the streams written at the same time, not on all.

A part that cannot be read is a record (``Trouble``), too. Reading continues at the next block, which is found by its alignment, offset and CRC.
"""

import contextlib
import fnmatch
import heapq
import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Final

from framegate.control.cli.tap_records import Entry, Timed, Trouble, Wanted
from framegate.proxy.tap.headers import Seal, decode_block_header
from framegate.proxy.tap.ledger import read_ledger
from framegate.proxy.tap.log_block import LogBlock
from framegate.proxy.tap.log_reader import (
    BlockRef,
    DamagedBlockError,
    Joiner,
    LogError,
    OffsetVanishedError,
    Segment,
    open_segment,
    read_block,
    segment_seal,
    segments,
    walk,
    walk_segment,
)
from framegate.proxy.tap.record import BLOCK_ALIGNMENT, BLOCK_HEADER_BYTES, SEGMENT_HEADER_BYTES, FormatError

_SCAN: Final = 1 << 20
_MAGIC: Final = b"FGB"
_DELETED: Final = "its segment was deleted"


class Cursor:
    """Reads one stream; may be called again to read what was appended."""

    def __init__(self, root: str, stream: str, offset: int) -> None:
        self.stream = stream  # the folder's name
        self.offset = offset  # where the next block begins
        self.tail = 0  # bytes after ``offset`` in an open segment that are not a complete block: it is being written, or its processor died
        self._root = root
        self._joiner = Joiner()
        self._gone = False
        self._sealed_to = 0
        self._reported: set[tuple[int, int | None]] = set()

    def rows(self, wanted: Wanted, limit: int | None = None) -> Generator[Timed, None, None]:
        """The wanted records from ``offset`` to the end of the stream or ``limit``. A row without an item and with the block's first time comes
        before each block, so that the merge reads the block only when it is due.
        """
        last_ns = 0
        for ref in self.blocks(limit):
            if isinstance(ref, Trouble):
                yield Timed(last_ns, ref)
            elif wanted.block(ref.header):
                yield Timed(ref.header.first_ns, None)
                yield from self._rows_of(ref, wanted)
                last_ns = ref.header.last_ns

    def _rows_of(self, ref: BlockRef, wanted: Wanted) -> Iterator[Timed]:
        block = self.read(ref)
        if isinstance(block, Trouble):
            yield Timed(ref.header.first_ns, block)
        elif block is not None:
            yield from (Timed(row.capture_ns, Entry(row, block)) for row in block.rows if wanted.chunk(block, row))

    def blocks(self, limit: int | None = None) -> Iterator[BlockRef | Trouble]:
        """The blocks from ``offset`` on, and the unreadable parts, once each. ``offset`` passes a block when the next one is requested."""
        self.tail = 0
        listed = segments(self._root, self.stream)
        if not listed and self.offset < self._sealed_to:
            yield from self._trouble(None, "all of it was deleted", vanished=True)
        self._sealed_to = max([self._sealed_to, *(segment.limit for segment in listed if segment.sealed)])
        while len(listed) > 1 and listed[1].base <= self.offset:
            listed.pop(0)
        for index, segment in enumerate(listed):
            following = listed[index + 1].base if index + 1 < len(listed) else None
            if segment.base > self.offset:
                yield from self._trouble(segment.base, "the segments before were deleted", vanished=True)
            yield from self._blocks_of(segment, following, limit)
            if limit is not None and self.offset >= limit:
                return

    def _blocks_of(self, segment: Segment, following: int | None, limit: int | None) -> Iterator[BlockRef | Trouble]:
        self._gone = False
        try:
            seal = segment_seal(segment)
        except OffsetVanishedError:
            yield from self._trouble(following, _DELETED, vanished=True)
            return
        except LogError as error:
            yield from self._trouble(following, error.detail if isinstance(error, DamagedBlockError) else str(error))
            return
        end = following if seal is None else seal.end
        while True:
            yield from self._run(segment, limit)
            if self._gone:
                yield from self._trouble(following, _DELETED, vanished=True)
                return
            if self.offset == end or (limit is not None and self.offset >= limit):
                return
            found = _block_behind(segment, self.offset)
            if found is None:
                break
            yield from self._trouble(found, "there is no valid block here, but others follow")
        yield from self._ended(segment, following, seal)

    def _run(self, segment: Segment, limit: int | None) -> Iterator[BlockRef]:
        """The blocks up to the end, or to the first place without a valid block."""
        try:
            for ref in walk_segment(segment, self.offset, limit):
                yield ref
                if self._gone:
                    return
                self.offset = ref.header.end
        except OffsetVanishedError:
            self._gone = True
        except DamagedBlockError:
            return

    def _ended(self, segment: Segment, following: int | None, seal: Seal | None) -> Iterator[Trouble]:
        """The segment has no further valid block, but should not end here."""
        left = segment.limit - self.offset
        if seal is not None:
            yield from self._trouble(following, f"it was sealed with blocks up to {seal.end}")
        elif not segment.sealed and following is None:
            self.tail = max(0, left)
        elif left > 0:
            yield from self._trouble(following, f"{left} bytes after its last block are not a block")

    def _trouble(self, available: int | None, detail: str, *, vanished: bool = False) -> Iterator[Trouble]:
        problem = (self.offset, available)
        if problem not in self._reported:
            self._reported.add(problem)
            yield Trouble(self.stream, self.offset, available, vanished, detail, vanished and self.is_taken(available))
        self.offset = max(self.offset, available or 0)

    def is_taken(self, available: int | None) -> bool:
        """Whether retention deleted the part from ``offset`` to ``available``; the ledger has a row about that before it is deleted."""
        ledger = read_ledger(self._root)
        stream_record = ledger.streams.get(self.stream)
        if stream_record is None:  # never noted, or removed when the whole stream was deleted
            return ledger.present and not ledger.damage and not segments(self._root, self.stream)
        return stream_record.deleted_to >= (available or stream_record.end or self.offset + 1)

    def read(self, ref: BlockRef) -> LogBlock | Trouble | None:
        """Read a block of ``blocks``, with frames joined; None when its segment was deleted, which ``blocks`` reports. A block that its writer has
        truncated and is writing again is read later.
        """
        try:
            try:
                return read_block(ref, self._joiner)
            except DamagedBlockError:
                return read_block(next(walk(self._root, self.stream, ref.header.offset)), self._joiner)
        except OffsetVanishedError:
            self._gone = True
            return None
        except (LogError, FormatError, StopIteration) as damage:
            detail = "its header is not what it was" if isinstance(damage, StopIteration) else "its body's CRC does not fit"
            return Trouble(self.stream, ref.header.offset, ref.header.end, False, detail)


def _block_behind(segment: Segment, offset: int) -> int | None:
    """The next offset behind one at which a whole block begins in a segment."""
    try:
        fd = open_segment(segment.path)
    except FileNotFoundError:
        return None
    try:
        size = os.fstat(fd).st_size
        position = offset - segment.base + SEGMENT_HEADER_BYTES + BLOCK_ALIGNMENT
        while position < size:
            data = os.pread(fd, _SCAN + BLOCK_HEADER_BYTES, position)
            for at in range(0, min(_SCAN, len(data)), BLOCK_ALIGNMENT):
                if data.startswith(_MAGIC, at):
                    begin = segment.base + position + at - SEGMENT_HEADER_BYTES
                    with contextlib.suppress(FormatError):
                        header = decode_block_header(data, at)
                        if header.offset == begin and position + at + header.block_len <= size:
                            return begin
            position += _SCAN
    finally:
        os.close(fd)
    return None


def matching(names: Iterable[str], patterns: Sequence[str]) -> list[str]:
    """The names that match one of the shell patterns; all when there is no pattern."""
    return [name for name in names if not patterns or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]


def start_offset(root: str, stream: str, since_ns: int | None) -> int:
    """The first offset to read for records captured since a time: the begin of a segment, found by the first blocks of the segments. It is the
    begin of the stream when the clock was set back between segments.
    """
    listed = segments(root, stream)
    if not listed:
        return 0
    if since_ns is None or len(listed) == 1:
        return listed[0].base
    begins = [_first_ns(segment) for segment in listed]
    known = [begin for begin in begins if begin is not None]
    if len(known) < len(begins) or known != sorted(known):
        return listed[0].base
    return max([listed[0].base, *(segment.base for segment, begin in zip(listed, known, strict=True) if begin < since_ns)])


def _first_ns(segment: Segment) -> int | None:
    try:
        first = next(walk_segment(segment, segment.base), None)
    except LogError:
        return None
    return None if first is None else first.header.first_ns


def merged(cursors: Iterable[Cursor], wanted: Wanted, limits: dict[str, int] | None = None) -> Iterator[Entry | Trouble]:
    """The wanted records of all cursors, in order of time. ``limits``: the offset at which each stream ends."""
    runs = [_lazily(cursor, wanted, None if limits is None else limits[cursor.stream]) for cursor in cursors]
    for row in heapq.merge(*runs, key=lambda row: row.at_ns):
        if row.item is not None:
            yield row.item


def _lazily(cursor: Cursor, wanted: Wanted, limit: int | None) -> Iterator[Timed]:
    """The rows of a stream. Its file is closed until the merge reaches the first block."""
    rows = cursor.rows(wanted, limit)
    first = next(rows, None)
    if first is None:
        return
    if first.item is None:
        rows.close()
        yield first
        yield from cursor.rows(wanted, limit)
    else:
        yield first
        yield from rows
