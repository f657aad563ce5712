"""Ranges of a run: where its frames are, and the parts that a rule keeps."""

from typing import TYPE_CHECKING

from librt.strings import BytesWriter, write_i32_le
from librt.vecs import append, vec
from mypy_extensions import i32, i64

from framegate.proxy.network.run import PART_FIRST, Buffer, Run
from framegate.proxy.tap.block import Part
from framegate.proxy.tap.block_builder import BlockBuilder
from framegate.proxy.tap.record import (
    FLAG_REPLACED,
    FLAG_TRUNCATED,
    FLAG_WITHHELD,
    HASH_BYTES,
    MAX_CHUNK_BYTES,
    REASON_CAPTURE,
    REASON_NONE,
    REASON_OVERSIZE,
    REASON_WITHHELD,
)
from framegate.proxy.tap.redaction import Redaction, Redactor, new_digest

if TYPE_CHECKING:
    import hashlib


class PieceCursor:
    """Reads ranges of a run that is a list of pieces, from front to back."""

    def __init__(self, pieces: list[Buffer]) -> None:
        self._pieces = pieces
        self._index: i64 = 0
        self._base: i64 = 0

    def parts(self, start: i64, end: i64) -> list[Buffer]:
        """The bytes from ``start`` to ``end``; ``start`` never goes back."""
        found: list[Buffer] = []
        while start < end:
            piece = self._pieces[self._index]
            length: i64 = len(piece)
            if start >= self._base + length:
                self._base += length
                self._index += 1
                continue
            stop = end - self._base
            if stop > length:
                stop = length
            found.append(piece[start - self._base : stop])
            start = self._base + stop
        return found

    def copy(self, start: i64, end: i64, builder: BlockBuilder) -> None:
        """Append a range to the block's data."""
        for part in self.parts(start, end):
            builder.add_piece(part)

    def digest(self, start: i64, end: i64) -> bytes:
        """The hash that is stored in place of a body: ``HASH_BYTES`` of BLAKE2b."""
        state = new_digest()
        for part in self.parts(start, end):
            state.update(part)
        return state.digest()


def hash_body(digest: "hashlib.blake2b", run: Run) -> None:
    """Add a piece of a frame, without the frame's header."""
    start: i64 = run.first_sizes()[0] if run.part & PART_FIRST != 0 else 0
    for part in PieceCursor(run.pieces()).parts(start, run.size):
        digest.update(part)


def write_starts(run: Run, starts: BytesWriter) -> None:
    """Append the start of each frame of the run."""
    if run.head is not None:
        write_i32_le(starts, 0)
    run.framing.write_starts(run.data, run.first, run.end, run.head_size, starts)


def find_frames(run: Run) -> "tuple[vec[i64], vec[i64]]":
    """The start of each frame of the run and, last, the end of the run; and the size of each body. Positions count from the start of the run."""
    framing = run.framing
    positions = run.starts()
    sizes = vec[i64](capacity=run.frames)
    index: i64 = 0
    if run.head is not None:
        sizes = append(sizes, run.first_sizes()[1])
        index = 1
    while index < run.frames:
        sizes = append(sizes, framing.body_size(run.data, positions[index] - run.head_size))
        index += 1
    return append(positions, run.size), sizes


def write_cut(builder: BlockBuilder, run: Run, sensitive: "vec[i32] | None", cap: i64, hashes: bool) -> tuple[i64, i64]:
    """Append what a rule keeps of each frame that it cuts, with starts and sizes. ``builder``: the caller adds to its counts of starts and sizes.
    ``cap``: body bytes kept of each frame. Returns the chunk's flags, and bytes of all bodies on the wire.
    """
    positions, sizes = find_frames(run)
    cursor = PieceCursor(run.pieces())
    masks = i64(len(sensitive)) if sensitive is not None else 0
    masked: i64 = 0
    flags: i64 = 0
    bodies: i64 = 0
    kept_from: i64 = 0
    kept_to: i64 = 0
    stored: i64 = 0
    index: i64 = 0
    while index < run.frames:
        start = positions[index]
        size = sizes[index]
        bodies += size
        header = positions[index + 1] - start - size
        keep = size if size < cap else cap
        withheld = sensitive is not None and masked < masks and i64(sensitive[masked]) == index
        if withheld:
            masked += 1
            keep = 0
            flags |= FLAG_WITHHELD
        elif keep < size and cap > 0:
            flags |= FLAG_TRUNCATED
        write_i32_le(builder.starts, i32(stored))
        write_i32_le(builder.sizes, i32(size))
        if kept_to != start:
            cursor.copy(kept_from, kept_to, builder)
            kept_from = start
        kept_to = start + header + keep
        stored += header + keep
        if hashes and not withheld:
            cursor.copy(kept_from, kept_to, builder)
            builder.add_piece(cursor.digest(kept_to, kept_to + size))
            kept_from = kept_to = positions[index + 1]
            stored += HASH_BYTES
        index += 1
    cursor.copy(kept_from, kept_to, builder)
    return flags, bodies


def write_redacted(redaction: Redaction, builder: BlockBuilder, run: Run, sensitive: "vec[i32] | None", cap: i64) -> tuple[i64, i64]:
    """Append the frames under a rule that replaces ranges of bodies, with starts and sizes. Arguments as for ``write_cut``. Returns the chunk's
    flags, and the number of bytes replaced.
    """
    positions, sizes = find_frames(run)
    cursor = PieceCursor(run.pieces())
    masks = i64(len(sensitive)) if sensitive is not None else 0
    masked: i64 = 0
    flags: i64 = 0
    stored: i64 = 0
    replaced: i64 = 0
    index: i64 = 0
    while index < run.frames:
        start = positions[index]
        size = sizes[index]
        body = positions[index + 1] - size
        keep = size if size < cap else cap
        if sensitive is not None and masked < masks and i64(sensitive[masked]) == index:
            masked += 1
            keep = 0
            flags |= FLAG_WITHHELD
        elif keep < size and cap > 0:
            flags |= FLAG_TRUNCATED
        write_i32_le(builder.starts, i32(stored))
        write_i32_le(builder.sizes, i32(size))
        cursor.copy(start, body, builder)
        redactor = Redactor(redaction, keep)
        for piece in redactor.feed(cursor.parts(body, body + keep)):
            builder.add_piece(piece)
        replaced += redactor.replaced
        stored += body - start + keep
        index += 1
    return (flags | FLAG_REPLACED if replaced > 0 else flags), replaced


def write_piece(builder: BlockBuilder, part: Part, run: Run) -> None:
    """Append the bytes of a piece for which its frame has room."""
    redactor = part.redactor
    if redactor is not None:
        start: i64 = run.first_sizes()[0] if run.part & PART_FIRST != 0 else 0
        cursor = PieceCursor(run.pieces())
        if start > 0:
            cursor.copy(0, start, builder)
            part.stored += start
        for piece in redactor.feed(cursor.parts(start, run.size)):
            builder.add_piece(piece)
            part.stored += i64(len(piece))
        return
    count = part.room - part.stored
    if count > run.size:
        count = run.size
    if count > 0:
        PieceCursor(run.pieces()).copy(0, count, builder)
        part.stored += count


def write_last_piece(builder: BlockBuilder, part: Part, run: Run) -> None:
    """Append the last piece; for a frame that is not stored unchanged, its header and its hash, if there is one."""
    if part.room > 0:
        write_piece(builder, part, run)
        return
    builder.add_piece(part.header)
    part.stored = i64(len(part.header))
    digest = part.digest
    if digest is not None:
        hash_body(digest, run)
        builder.add_piece(digest.digest())


def cut_reason(byte_count: i64, lost_bytes: i64, flags: i64) -> i64:
    """Why bytes are missing from a chunk: a reason code, or 0."""
    if byte_count > MAX_CHUNK_BYTES:
        return REASON_OVERSIZE
    if flags & FLAG_WITHHELD:
        return REASON_WITHHELD
    return REASON_CAPTURE if lost_bytes > 0 or flags & FLAG_REPLACED else REASON_NONE
