"""A finished block, which the writer thread writes, and the frames that lie in several blocks.

``weight`` is the memory that a block keeps. A view counts with the whole buffer behind it, and is copied when it is less than half of that buffer; a
buffer that is handed over counts with its unused room.
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

# Smaller payload is joined on the writer thread: releasing and taking the interpreter's lock for one more CRC costs more.
JOIN_BELOW: Final = 65536

if TYPE_CHECKING:
    import hashlib

_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


class Part:
    """A frame that is cut through, and how much of it is in the log. Its ``TapPoint`` and the blocks with its pieces refer to it."""

    def __init__(self, number: i64, header: bytes, body: i64, first_ns: i64, pieces_from: i64, room: i64, withheld: bool) -> None:
        self.number: i64 = number  # of the frame on its connection and direction
        self.header = header  # as received
        self.body: i64 = body  # bytes of the body
        self.size: i64 = len(header) + body  # bytes of the frame
        self.first_ns: i64 = first_ns  # when the first piece was received, wall clock
        self.pieces_from: i64 = pieces_from  # a logical offset of the log before all pieces
        self.room: i64 = room  # most bytes of the frame that are stored unchanged, header included; 0: none, and the header is stored at the end
        self.withheld = withheld  # the body carries credentials
        self.stored: i64 = 0  # bytes added to the log
        self.passed: i64 = 0  # bytes received
        self.digest: hashlib.blake2b | None = None  # of the body so far, when the log stores a hash
        self.redactor: Redactor | None = None  # replaces ranges of the body, when the rule has ranges
        self.serial: i64 = -1  # of the last block that refers to it
        self.lost: i64 = 0  # reason code for which the frame cannot be stored any more; 0: it can. Both threads may set it.


class Block:
    """A finished block, without its place in a stream. Immutable; the loop thread hands it over to the writer thread."""

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
        self.strings = strings  # the string table
        # rows, starts, sizes, answers: the sections as written to disk
        self.rows = rows
        self.starts = starts
        self.sizes = sizes
        self.answers = answers
        self.pieces = pieces  # the data section, in order
        self.copied = copied  # the buffer with the copied payload; ``views`` are the pieces in it. None when it was too empty to be handed over.
        self.views = views
        self.data_len: i64 = data_len  # bytes of all pieces
        # request_frames, response_frames: frames stored, by direction
        self.request_frames: i64 = request_frames
        self.response_frames: i64 = response_frames
        self.lost_frames: i64 = lost_frames  # the sum over the gap chunks
        # first_ns, last_ns: capture time of the first and last chunk
        self.first_ns: i64 = first_ns
        self.last_ns: i64 = last_ns
        self.weight: i64 = weight  # bytes of memory that it keeps, for the bound of the queue
        self.must_keep = must_keep  # it has chunks of a rule with ``on_full: mute``; a failed write is repeated
        self.parts = parts  # the frames of which it has pieces
        self.flags: i64 = flags  # BLOCK_* of its header
        self.failure: i64 = 0  # reason code for which it was given up; 0: it was not

    @property
    def chunk_count(self) -> int:
        """Number of rows in the chunk table."""
        return len(self.rows) // CHUNK_ROW_BYTES

    def fail(self, reason: i64) -> None:
        """Note that the block will not be written, in the block and in the frames of which it has pieces. Either thread."""
        self.failure = reason
        for part in self.parts:
            part.lost = reason

    def gap(self, at: i64, reason: i64) -> Gap:
        """A gap for the chunk whose row begins at byte ``at`` of the table; its counts are 0."""
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
    """The bytes of a block without its header."""

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
        self.parts = joined(parts)  # everything behind the header in order, padding included, for the CRC and one gathering write
        self.block_len: i64 = end + tail  # bytes of the block, header included
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
    """The same bytes in fewer parts: adjacent parts below ``JOIN_BELOW`` are joined, empty ones left out."""
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
