"""Gathers chunks for one write: what the loop thread builds, to hand it whole to the writer thread.

Theory of operation. The loop thread must spend next to nothing on a chunk, and the writer thread must take the interpreter's lock rarely,
because each time it comes back from ``crc32`` or ``pwritev`` it competes with the loop for it. So rows and starts go into byte buffers
that are used again for every block, a handful of native stores each. Payload below ``COPY_BELOW`` bytes is copied, once, into a buffer that
goes to disk as it is and then comes back; larger pieces are kept by reference. At 256 KiB or 20 ms the whole block changes hands in one
queue operation and the builder starts over. The thread joins what is below ``JOIN_BELOW`` (``block``) with one copy, so that most blocks are one
CRC and one write.
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
    KIND_GAP,
    KIND_RULES,
    KIND_TOTALS,
)

# Payload under this is copied on the loop thread, into a buffer that is used again: the next read then gets the same warm memory from the
# allocator, which was worth more than the copy for all sizes that a read of small frames gives (4 to 30 us of processor time per 64 KiB).
COPY_BELOW: Final = 32768
# Buffers for copied payload that wait to be used again; more than these are in use only while the disk is behind.
SPARE_BUFFERS: Final = 2
# What a block keeps in memory beside its sections: its objects, measured, rounded up. A trickle while the disk hangs makes many small blocks.
BLOCK_OVERHEAD: Final = 2048


class BlockBuilder:
    """Gathers chunks; reused for block after block. Loop thread only, but for ``reuse``.

    Attributes:
        serial: number of the block being built; string indexes hold within one.
        starts, sizes: sections that callers append to directly, counting in ``starts_count`` and ``sizes_count``.
        data_len: bytes of payload added so far; the next chunk's ``data_offset``.
        weight: bytes that the block keeps in memory so far; its buffer for copied payload counts only as far as it is filled.
        last_ns: the latest capture time ever added; never decreases, not even from one block to the next.
    """

    def __init__(self, room: int = 0) -> None:
        """``room``: bytes of payload to have room for from the start."""
        self._room = room
        self.serial: i64 = 0
        self.last_ns: i64 = 0
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
        """Append to the answers section; all are equally long, -1 stands for None."""
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
        """Append one frame's to the answers section."""
        write_i32_le(self._keys, key)
        write_i32_le(self._latencies, latency_us)
        write_i32_le(self._request_sizes, request_size)
        write_i32_le(self._correlation_ids, correlation_id)
        self.answers_count += 1
        self._flags |= BLOCK_REQUESTS
        self.weight += 16

    def add_part(self, part: Part) -> None:
        """Note that a piece of a frame, or the chunk that completes it, is in this block."""
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
        """Close a frames chunk, or a piece: everything since ``data_offset`` is its data.

        Args:
            capture_ns: at least ``last_ns``.
            pieces_from, first_ns: of the ``Part`` that the chunk completes; 0 for frames that came whole.
            codes: the row's last eight bytes as one little-endian integer, from ``pack_codes``.
            others: as in ``record``.
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
        """Add a gap chunk, as of when its last frame was lost or of ``last_ns``, and mark the gap written."""
        self._lost_frames += gap.frames
        self._add_row(gap, gap.until_ns, KIND_GAP, self.string(gap.rule))

    def add_totals(self, totals: Gap) -> None:
        """Add a totals row; as ``add_gap``."""
        self._flags |= BLOCK_TOTALS
        self._add_row(totals, totals.until_ns, KIND_TOTALS, -1)

    def add_clock(self, from_ns: i64, to_ns: i64) -> None:
        """Say that the wall clock was set back; capture times go on from ``to_ns``."""
        self.last_ns = to_ns
        self._add_row(Gap(connection=NO_CONNECTION, direction=0, reason=0, from_ns=from_ns), to_ns, KIND_CLOCK, -1)

    def _add_row(self, gap: Gap, capture_ns: i64, kind: i64, rule: i32) -> None:
        """A row without frames and without data."""
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
        """Say by which rules what follows is chosen, as of ``last_ns``; ``text``: the rules in force, as JSON."""
        self._add_row(Gap(connection=NO_CONNECTION, direction=0, reason=0, from_ns=0), self.last_ns, KIND_RULES, self.string(text))

    def finish(self) -> Block:
        """The block built so far; the builder starts the next one."""
        # A buffer with much room left stays here, so that a queue of many small blocks does not consist of room.
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
        """The data section; ``views`` gets what of it is from ``copied``."""
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
        """Let go of the payload of a block that is on disk, or given up, and take its buffer back. Any thread; nobody looks at its pieces now."""
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
    """What was written; the writer is empty afterwards and keeps its room."""
    value = writer.getvalue()
    writer.truncate(0)
    return value
