"""Gathers chunks into a block on the loop thread.

Theory of operation. The loop thread must spend little time on a chunk. The writer thread must rarely take the interpreter's lock, because after each
``crc32`` or ``pwritev`` it competes for it with the loop. Therefore rows and starts are written into byte buffers that are reused for every block.
Payload below ``COPY_BELOW`` bytes is copied once, into a buffer that is written to disk and then returned; larger pieces are kept by reference. At
256 KiB or 20 ms the block is handed over in one queue operation. The writer thread joins what is below ``JOIN_BELOW`` (``block``), so that most
blocks are one CRC and one write.
"""

import io
from collections import deque
from typing import Final

from librt.strings import BytesWriter, write_i32_le, write_i64_le
from librt.vecs import vec
from mypy_extensions import i32, i64

from framegate.proxy.network.run import Buffer
from framegate.proxy.tap.block import Block, Part
from framegate.proxy.tap.gap import NO_CONNECTION, Gap
from framegate.proxy.tap.record import (
    BLOCK_PIECES,
    BLOCK_REQUESTS,
    BLOCK_TOTALS,
    CHUNK_ROW_BYTES,
    DIRECTION_REQUEST,
    KIND_CLOCK,
    KIND_CONNECTION,
    KIND_GAP,
    KIND_RULES,
    KIND_TOTALS,
)

# Smaller payload is copied on the loop thread into a reused buffer, so that the next read gets the same warm memory from the allocator. For all
# sizes that a read of small frames gives this saved more than the copy cost (4 to 30 us of processor time per 64 KiB).
COPY_BELOW: Final = 32768
# Most unused buffers for copied payload that are kept. More are in use only while the disk is slower than the traffic.
SPARE_BUFFERS: Final = 2
# Memory of a block beside its sections: its objects, measured, rounded up. It matters for many small blocks while the disk hangs.
BLOCK_OVERHEAD: Final = 2048


class BlockBuilder:
    """Gathers chunks; reused for block after block. Loop thread only, except ``reuse``.

    Attributes:
        data_len: bytes of payload added so far; the next chunk's ``data_offset``.
        weight: bytes of memory that the block keeps so far; its copy buffer counts as far as it is filled.
    """

    def __init__(self, room: int = 0) -> None:
        """``room``: bytes of payload that the copy buffer holds without growing."""
        self._room = room
        self.serial: i64 = 0  # number of the block being built; string indexes are valid within one block
        self.last_ns: i64 = 0  # the latest capture time; it never decreases, not even between blocks
        # starts, sizes: sections to which callers append, while they count in ``starts_count`` and ``sizes_count``
        self.starts = BytesWriter()
        self.sizes = BytesWriter()
        self._rows = BytesWriter()
        self._keys = BytesWriter()
        self._latencies = BytesWriter()
        self._request_sizes = BytesWriter()
        self._correlation_ids = BytesWriter()
        self._spare: deque[io.BytesIO] = deque(maxlen=SPARE_BUFFERS)
        self._copied: io.BytesIO = io.BytesIO(bytes(room))
        self._reset()

    def _reset(self) -> None:
        self.serial += 1
        self.starts_count: i64 = 0
        self.sizes_count: i64 = 0
        self.answers_count: i64 = 0
        self.chunk_count: i64 = 0
        self.data_len: i64 = 0
        self.weight: i64 = 0
        self.must_keep = False
        self._copied_len: i64 = 0
        self._referenced: list[Buffer] = []
        self._cuts: list[int] = []
        self._strings: list[str] = []
        self._indexes: dict[str, int] = {}
        self._first_ns: i64 = 0
        self._request_frames: i64 = 0
        self._response_frames: i64 = 0
        self._lost_frames: i64 = 0
        self._parts: list[Part] = []
        self._flags: i64 = 0

    def string(self, text: str | None) -> i32:
        """The index of ``text`` in this block's string table; -1 for None."""
        if text is None:
            return -1
        index = self._indexes.get(text)
        if index is None:
            index = len(self._strings)
            self._indexes[text] = index
            self._strings.append(text)
            self.weight += len(text)
        return i32(index)

    def add_piece(self, piece: Buffer) -> None:
        """Append payload to the data section: copied when small, referenced when large."""
        length: i64 = len(piece)
        self.data_len += length
        if length < COPY_BELOW:
            self._copied.write(piece)
            self._copied_len += length
            return
        if isinstance(piece, memoryview):
            kept: i64 = memoryview(piece.obj).nbytes
            if 2 * length < kept:
                piece = bytes(piece)
            else:
                self.weight += kept - length
        self._referenced.append(piece)
        self._cuts.append(int(self._copied_len))

    def add_pieces(self, pieces: list[Buffer]) -> None:
        """Append payload that arrived in pieces."""
        for piece in pieces:
            self.add_piece(piece)

    def add_answers(self, keys: vec[i32], latencies: vec[i32], request_sizes: vec[i32] | None, correlation_ids: vec[i32] | None) -> None:
        """Append to the answers section; all arguments have the same length, -1 stands for None."""
        index: i64 = 0
        count: i64 = len(keys)
        while index < count:
            write_i32_le(self._keys, keys[index])
            write_i32_le(self._latencies, latencies[index])
            index += 1
        index = 0
        if request_sizes is None or correlation_ids is None:
            while index < count:
                write_i32_le(self._request_sizes, -1)
                write_i32_le(self._correlation_ids, -1)
                index += 1
        else:
            while index < count:
                write_i32_le(self._request_sizes, request_sizes[index])
                write_i32_le(self._correlation_ids, correlation_ids[index])
                index += 1
        self.answers_count += count
        self._flags |= BLOCK_REQUESTS
        self.weight += 16 * count

    def add_answer(self, key: i32, latency_us: i32, request_size: i32, correlation_id: i32) -> None:
        """Append one frame's entry to the answers section."""
        write_i32_le(self._keys, key)
        write_i32_le(self._latencies, latency_us)
        write_i32_le(self._request_sizes, request_size)
        write_i32_le(self._correlation_ids, correlation_id)
        self.answers_count += 1
        self._flags |= BLOCK_REQUESTS
        self.weight += 16

    def add_part(self, part: Part) -> None:
        """Note that the block has a piece of a frame, or the chunk that completes it."""
        if part.serial != self.serial:
            part.serial = self.serial
            self._parts.append(part)
            self._flags |= BLOCK_PIECES

    def add_frames_row(
        self,
        capture_ns: i64,
        connection: i64,
        first_frame: i64,
        original_bytes: i64,
        lost_bytes: i64,
        data_offset: i64,
        frame_count: i64,
        starts_index: i64,
        sizes_index: i64,
        answers_index: i64,
        listener: i32,
        principal: i32,
        peer: i32,
        rule: i32,
        codes: i64,
        pieces_from: i64 = 0,
        first_ns: i64 = 0,
    ) -> None:
        """Add the row of a frames chunk, or of a piece; everything since ``data_offset`` is its data.

        Args:
            capture_ns: at least ``last_ns``.
            pieces_from, first_ns: of the ``Part`` that the chunk completes; 0 for other frames.
            codes: the row's last eight bytes, from ``pack_codes``.
        """
        if self.chunk_count == 0:
            self._first_ns = capture_ns
        self.last_ns = capture_ns
        self.chunk_count += 1
        data_length = self.data_len - data_offset
        rows = self._rows
        write_i64_le(rows, capture_ns)
        write_i64_le(rows, connection)
        write_i64_le(rows, first_frame)
        write_i64_le(rows, original_bytes)
        write_i64_le(rows, pieces_from)
        write_i64_le(rows, lost_bytes)
        write_i64_le(rows, first_ns)
        write_i64_le(rows, data_offset | (data_length << 32))
        write_i64_le(rows, frame_count | (starts_index << 32))
        write_i32_le(rows, i32(sizes_index))
        write_i32_le(rows, i32(answers_index))
        write_i32_le(rows, listener)
        write_i32_le(rows, principal)
        write_i32_le(rows, peer)
        write_i32_le(rows, rule)
        write_i64_le(rows, codes)
        if codes & 0xFF == DIRECTION_REQUEST:
            self._request_frames += frame_count
        else:
            self._response_frames += frame_count
        self.weight += data_length + CHUNK_ROW_BYTES + (4 if sizes_index < 0 else 8) * frame_count

    def add_gap(self, gap: Gap) -> None:
        """Add a gap row, at the time of its last loss or at ``last_ns``, and mark the gap written."""
        self._lost_frames += gap.frames
        self._add_row(gap, gap.until_ns, KIND_GAP, self.string(gap.rule))

    def add_totals(self, totals: Gap) -> None:
        """Add a totals row, like ``add_gap``."""
        self._flags |= BLOCK_TOTALS
        self._add_row(totals, totals.until_ns, KIND_TOTALS, -1)

    def add_end(self, end: Gap) -> None:
        """Add the end of a connection, or the number of ends that are lost, like ``add_gap``."""
        self._add_row(end, end.until_ns, KIND_CONNECTION, self.string(end.rule))

    def add_clock(self, from_ns: i64, to_ns: i64) -> None:
        """Record that the wall clock was set back; capture times continue from ``to_ns``."""
        self.last_ns = to_ns
        self._add_row(Gap(connection=NO_CONNECTION, direction=0, reason=0, from_ns=from_ns), to_ns, KIND_CLOCK, -1)

    def _add_row(self, gap: Gap, capture_ns: i64, kind: i64, rule: i32) -> None:
        """Add a row without frames and data."""
        if capture_ns < self.last_ns:
            capture_ns = self.last_ns
        if self.chunk_count == 0:
            self._first_ns = capture_ns
        self.last_ns = capture_ns
        self.chunk_count += 1
        gap.written = True
        rows = self._rows
        write_i64_le(rows, capture_ns)
        write_i64_le(rows, gap.connection)
        write_i64_le(rows, gap.first_frame)
        write_i64_le(rows, gap.until_ns)
        write_i64_le(rows, gap.frames)
        write_i64_le(rows, gap.bytes)
        write_i64_le(rows, gap.from_ns)
        write_i64_le(rows, self.data_len)
        write_i64_le(rows, self.starts_count << 32)
        write_i32_le(rows, -1)
        write_i32_le(rows, -1)
        write_i32_le(rows, self.string(gap.listener))
        write_i32_le(rows, self.string(gap.principal))
        write_i32_le(rows, self.string(gap.peer))
        write_i32_le(rows, rule)
        write_i64_le(rows, pack_codes(gap.direction, kind, gap.capture, gap.reason, gap.framing, gap.protocol, gap.flags))
        self.weight += CHUNK_ROW_BYTES

    def add_rules(self, text: str) -> None:
        """Record at ``last_ns`` which rules choose the following chunks; ``text``: the rules in force, as JSON."""
        self._add_row(Gap(connection=NO_CONNECTION, direction=0, reason=0, from_ns=0), self.last_ns, KIND_RULES, self.string(text))

    def finish(self) -> Block:
        """The block built so far; the builder starts the next one."""
        # A buffer with much unused room is not handed over, so that a queue of many small blocks does not hold unused memory.
        give = self._copied_len + COPY_BELOW >= self._room
        self.weight += BLOCK_OVERHEAD
        if give and self._copied_len < self._room:
            self.weight += self._room - self._copied_len
        views: list[memoryview] = []
        with self._copied.getbuffer() as copied:
            pieces = self._in_order(copied if give else memoryview(bytes(copied[: self._copied_len])), views)
        block = Block(
            strings=self._strings,
            rows=take(self._rows),
            starts=take(self.starts),
            sizes=take(self.sizes),
            answers=take(self._keys) + take(self._latencies) + take(self._request_sizes) + take(self._correlation_ids),
            pieces=pieces,
            copied=self._copied if give else None,
            views=views,
            data_len=self.data_len,
            request_frames=self._request_frames,
            response_frames=self._response_frames,
            lost_frames=self._lost_frames,
            first_ns=self._first_ns,
            last_ns=self.last_ns,
            weight=self.weight,
            must_keep=self.must_keep,
            parts=self._parts,
            flags=self._flags,
        )
        if give:
            self._copied = self._spare.pop() if self._spare else io.BytesIO(bytes(self._room))
        else:
            self._copied.seek(0)
        self._reset()
        return block

    def _in_order(self, copied: memoryview, views: list[memoryview]) -> list[Buffer]:
        """The data section; ``views`` gets the pieces that lie in ``copied``."""
        pieces: list[Buffer] = []
        ends = [*self._cuts, int(self._copied_len)]
        start = 0
        for index, end in enumerate(ends):
            if end > start:
                views.append(copied[start:end])
                pieces.append(views[-1])
                start = end
            if index < len(self._referenced):
                pieces.append(self._referenced[index])
        return pieces

    def reuse(self, block: Block) -> None:
        """Release the payload of a block that was written or given up, and take its buffer back. Any thread; the pieces are not used again."""
        for view in block.views:
            view.release()
        block.pieces.clear()
        copied = block.copied
        block.copied = None
        if copied is not None and copied.seek(0, io.SEEK_END) <= 2 * self._room:  # one that had to grow is not kept
            copied.seek(0)
            self._spare.append(copied)


def pack_codes(direction: i64, kind: i64, capture: i64, reason: i64, framing: i64, protocol: i64, flags: i64) -> i64:
    """A chunk row's last eight bytes as one little-endian integer."""
    return direction | (kind << 8) | (capture << 16) | (reason << 24) | (framing << 32) | (protocol << 40) | (flags << 48)


def take(writer: BytesWriter) -> bytes:
    """The bytes written; the writer is empty afterwards and keeps its room."""
    value = writer.getvalue()
    writer.truncate(0)
    return value
