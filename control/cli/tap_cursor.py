"""The tap's log in order of time, for who looks at it without a proxy.

Order. Over streams by capture time, within a stream by offset: where the clock was set back, times of a stream go back too, and its records are never
sorted anew. A stream is opened when the others have come to its first time, and only the block that is being shown is in memory: a thousand
streams cost what those cost that were written at the same time.

What cannot be read is a record as well (``Trouble``), in its place; behind it the log goes on at the next block that can be told from noise: blocks
are aligned, say where they are, and carry a CRC.
"""

import heapq
import os
from collections.abc import Generator, Iterable, Iterator
from typing import Final

from control.cli.tap_records import Entry, Timed, Trouble, Wanted
from proxy.tap.headers import Seal, decode_block_header
from proxy.tap.ledger import read_ledger
from proxy.tap.log_block import LogBlock
from proxy.tap.log_reader import (
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
from proxy.tap.record import BLOCK_ALIGNMENT, BLOCK_HEADER_BYTES, SEGMENT_HEADER_BYTES, FormatError

__all__ = ["Cursor", "merged", "start_offset"]

_SCAN: Final = 1 << 20
_MAGIC: Final = b"FGB"
_DELETED: Final = "its segment was deleted"


class Cursor:
    """Reads one stream, once or again and again.

    Attributes:
        stream: the folder's name.
        offset: behind what was read; where the next block begins.
        tail: bytes behind it in an open segment, that are no whole block: one that is being written, or was torn.
    """

    def __init__(self, root: str, stream: str, offset: int) -> None:
        self.stream = stream
        self.offset = offset
        self.tail = 0
        self._root = root
        self._joiner = Joiner()
        self._gone = False
        self._sealed_to = 0
        self._reported: set[tuple[int, int | None]] = set()

    def rows(self, wanted: Wanted, limit: int | None = None) -> Generator[Timed, None, None]:
        """What is to be shown between ``offset`` and the end of what is there, or ``limit``.

        Before a block is read a row without an item says when it begins, so that it is read only when its time has come.
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
        """The blocks from ``offset`` on, and, once each, what cannot be read between them; ``offset`` moves behind one when the next is asked for."""
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
                yield from self._trouble(segment.base, "the segments between were deleted", vanished=True)
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
            yield from self._trouble(found, "no block begins here, though others follow")
        yield from self._ended(segment, following, seal)

    def _run(self, segment: Segment, limit: int | None) -> Iterator[BlockRef]:
        """The blocks up to the end, or to where there should be one and is none."""
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
        """No whole block follows in a segment, which has not come to the end that is known of it."""
        left = segment.limit - self.offset
        if seal is not None:
            yield from self._trouble(following, f"it was sealed with blocks up to {seal.end}")
        elif not segment.sealed and following is None:
            self.tail = max(0, left)
        elif left > 0:
            yield from self._trouble(following, f"{left} bytes behind its last whole block are none")

    def _trouble(self, available: int | None, detail: str, *, vanished: bool = False) -> Iterator[Trouble]:
        problem = (self.offset, available)
        if problem not in self._reported:
            self._reported.add(problem)
            yield Trouble(self.stream, self.offset, available, vanished, detail, vanished and self.is_taken(available))
        self.offset = max(self.offset, available or 0)

    def is_taken(self, available: int | None) -> bool:
        """Whether retention took what is not there, from ``offset`` up to where the log goes on: it tells the ledger first."""
        ledger = read_ledger(self._root)
        fate = ledger.streams.get(self.stream)
        if fate is None:  # never known, or forgotten when all of it was gone
            return ledger.present and not ledger.damage and not segments(self._root, self.stream)
        return fate.deleted_to >= (available or fate.end or self.offset + 1)

    def read(self, ref: BlockRef) -> LogBlock | Trouble | None:
        """A block of ``blocks``, frames joined; None: its segment is gone, which ``blocks`` tells.

        One that its writer has cut off and is writing anew is looked at again.
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
            for at in _candidates(data[:_SCAN]):
                if _is_block(data, at, segment.base + position + at - SEGMENT_HEADER_BYTES, size - position):
                    return segment.base + position + at - SEGMENT_HEADER_BYTES
            position += _SCAN
    finally:
        os.close(fd)
    return None


def _candidates(data: bytes) -> Iterator[int]:
    """Where a block might begin in bytes whose own place is aligned."""
    at = data.find(_MAGIC)
    while at >= 0:
        if at % BLOCK_ALIGNMENT == 0:
            yield at
        at = data.find(_MAGIC, at + 1)


def _is_block(data: bytes, at: int, offset: int, room: int) -> bool:
    try:
        header = decode_block_header(data, at)
    except FormatError:
        return False
    return header.offset == offset and at + header.block_len <= room


def start_offset(root: str, stream: str, since_ns: int | None) -> int:
    """Where to begin for what was captured since a time: at a segment, as far as the first blocks of the stream's segments tell; they tell nothing
    when the clock was set back between them.
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
    """What the streams hold from their cursors on, in order; ``limits``: up to which offset of each, by stream."""
    runs = [_lazily(cursor, wanted, None if limits is None else limits[cursor.stream]) for cursor in cursors]
    for row in heapq.merge(*runs, key=lambda row: row.at_ns):
        if row.item is not None:
            yield row.item


def _lazily(cursor: Cursor, wanted: Wanted, limit: int | None) -> Iterator[Timed]:
    """The rows of a stream; before its turn comes no file of it stays open."""
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
