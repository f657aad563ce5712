"""Chunks gathered for one write, finished: what the writer thread puts on disk, and the frames that lie in several of them.

``weight`` is what a block keeps in memory, not what it says: a view counts with all of the buffer that it keeps alive, and is copied when it is
less than half of that; a buffer handed over counts with its room.
"""

import io
import json
from typing import TYPE_CHECKING, Final

from librt.strings import read_i32_le, read_i64_le
from mypy_extensions import i64

from framegate.proxy.network.run import Buffer
from framegate.proxy.tap.gap import Gap
from framegate.proxy.tap.headers import BlockHeader
from framegate.proxy.tap.record import (
    BLOCK_ALIGNMENT,
    BLOCK_HEADER_BYTES,
    CHUNK_ROW_BYTES,
    SECTION_ALIGNMENT,
    padding,
)
from framegate.proxy.tap.redaction import Redactor

# Payload under this is joined on the writer thread: giving the interpreter's lock away and getting it back for one more CRC costs more.
JOIN_BELOW: Final = 65536

if TYPE_CHECKING:
    import hashlib

_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


class Part:
    """A frame that is cut through, and what of it is in the log so far: one object for each such frame, known to its ``TapPoint`` and to the
    blocks that its pieces are in.

    Attributes:
        number: the frame's, on its connection and direction.
        header: as it came.
        body: bytes of the body.
        size: all its bytes.
        first_ns: when its first piece was received, wall clock.
        pieces_from: a logical offset of the log, before all of its pieces.
        room: how many of its bytes may be kept as they are, header included; 0: none, and the header is added in the end.
        stored: how many have been added to the log.
        passed: how many have passed.
        withheld: the body carries credentials.
        digest: of the body so far, when that is what the log keeps.
        redactor: replaces ranges of the body, when the rule says so.
        serial: number of the last block that knows it.
        lost: reason code for which the frame cannot be in the log any more; 0 while it can. Both threads may say so.
    """

    def __init__(self, number: i64, header: bytes, body: i64, first_ns: i64, pieces_from: i64, room: i64, withheld: bool) -> None:
        self.number: i64 = number
        self.header = header
        self.body: i64 = body
        self.size: i64 = len(header) + body
        self.first_ns: i64 = first_ns
        self.pieces_from: i64 = pieces_from
        self.room: i64 = room
        self.withheld = withheld
        self.stored: i64 = 0
        self.passed: i64 = 0
        self.digest: hashlib.blake2b | None = None
        self.redactor: Redactor | None = None
        self.serial: i64 = -1
        self.lost: i64 = 0


class Block:
    """A finished block, without its place in a stream. Immutable; handed whole from the loop thread to the writer thread.

    Attributes:
        strings: the string table.
        rows, starts, sizes, answers: the sections as they go to disk.
        pieces: the data section, back to back.
        copied: the buffer that the copied payload is in, with ``views`` of it among the pieces; None when there was too little to give it away.
        data_len: bytes of all pieces.
        request_frames, response_frames: frames in it, by direction.
        lost_frames: the sum over the gap chunks.
        first_ns, last_ns: capture time of the first and last chunk.
        weight: bytes it keeps in memory, for the bound of the queue.
        must_keep: a rule with ``on_full: mute`` put chunks in; a failed write is tried again, not dropped.
        parts: the frames of which it holds pieces.
        flags: BLOCK_* of its header.
        failure: the reason code for which it was dropped; 0 while it was not.
    """

    def __init__(
        self,
        *,
        strings: list[str],
        rows: bytes,
        starts: bytes,
        sizes: bytes,
        answers: bytes,
        pieces: list[Buffer],
        copied: io.BytesIO | None,
        views: list[memoryview],
        data_len: i64,
        request_frames: i64,
        response_frames: i64,
        lost_frames: i64,
        first_ns: i64,
        last_ns: i64,
        weight: i64,
        must_keep: bool,
        parts: list[Part],
        flags: i64,
    ) -> None:
        self.strings = strings
        self.rows = rows
        self.starts = starts
        self.sizes = sizes
        self.answers = answers
        self.pieces = pieces
        self.copied = copied
        self.views = views
        self.data_len: i64 = data_len
        self.request_frames: i64 = request_frames
        self.response_frames: i64 = response_frames
        self.lost_frames: i64 = lost_frames
        self.first_ns: i64 = first_ns
        self.last_ns: i64 = last_ns
        self.weight: i64 = weight
        self.must_keep = must_keep
        self.parts = parts
        self.flags: i64 = flags
        self.failure: i64 = 0

    @property
    def chunk_count(self) -> int:
        """Rows of the chunk table."""
        return len(self.rows) // CHUNK_ROW_BYTES

    def fail(self, reason: i64) -> None:
        """The block will not be written: it says why, and so do the frames of which it holds pieces. Either thread."""
        self.failure = reason
        for part in self.parts:
            part.lost = reason

    def gap(self, at: i64, reason: i64) -> Gap:
        """A gap for the chunk whose row begins at byte ``at`` of the table: of its place and its first frame, with nothing counted yet."""
        rows = self.rows
        strings = self.strings
        codes = read_i64_le(rows, at + 96)
        listener = i64(read_i32_le(rows, at + 80))
        principal = i64(read_i32_le(rows, at + 84))
        peer = i64(read_i32_le(rows, at + 88))
        rule = i64(read_i32_le(rows, at + 92))
        return Gap(
            connection=read_i64_le(rows, at + 8),
            direction=codes & 0xFF,
            reason=reason,
            framing=(codes >> 32) & 0xFF,
            protocol=(codes >> 40) & 0xFF,
            capture=(codes >> 16) & 0xFF,
            listener=strings[listener] if listener >= 0 else None,
            principal=strings[principal] if principal >= 0 else None,
            peer=strings[peer] if peer >= 0 else None,
            rule=strings[rule] if rule >= 0 else None,
            first_frame=read_i64_le(rows, at + 16),
            from_ns=read_i64_le(rows, at),
        )


class Layout:
    """A block's bytes but for its header.

    Attributes:
        parts: everything behind the header, padding included, in order; ready for a CRC and a gathering write.
        block_len: bytes of the block, its header included.
    """

    def __init__(self, block: Block) -> None:
        strings = _ENCODER.encode(block.strings).encode()
        tables = [strings, block.rows, block.starts, block.sizes, block.answers]
        places: list[int] = []
        parts: list[Buffer] = []
        position = BLOCK_HEADER_BYTES
        for table in tables:
            places.append(position)
            pad = padding(len(table), SECTION_ALIGNMENT)
            parts.append(table)
            parts.append(bytes(pad))
            position += len(table) + pad
        end = position + int(block.data_len)
        tail = padding(end, BLOCK_ALIGNMENT)
        parts += block.pieces
        parts.append(bytes(tail))
        self.parts = joined(parts)
        self.block_len: i64 = end + tail
        self._block = block
        self._strings_len = len(strings)
        self._places = places
        self._data_at = position

    def header(self, offset: i64, sequence: i64, body_crc: int) -> BlockHeader:
        """The header, for the block's place in its stream and the CRC of ``parts``."""
        block = self._block
        places = self._places
        return BlockHeader(
            BLOCK_HEADER_BYTES,
            int(block.flags),
            block.chunk_count,
            int(self.block_len),
            int(offset),
            int(sequence),
            int(block.first_ns),
            int(block.last_ns),
            int(block.request_frames),
            int(block.response_frames),
            int(block.lost_frames),
            self._strings_len,
            places[1],
            places[2],
            places[3],
            places[4],
            self._data_at,
            int(block.data_len),
            len(block.starts) // 4,
            len(block.sizes) // 4,
            len(block.answers) // 16,
            body_crc,
        )


def joined(parts: list[Buffer]) -> list[Buffer]:
    """The same bytes in fewer parts: neighbours below ``JOIN_BELOW`` become one, empty ones go."""
    found: list[Buffer] = []
    small: list[Buffer] = []
    for part in parts:
        if len(part) < JOIN_BELOW:
            small.append(part)
            continue
        found.append(b"".join(small))
        small.clear()
        found.append(part)
    found.append(b"".join(small))
    return [part for part in found if len(part) > 0]
