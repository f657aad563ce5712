"""Blocks of the tap's log as Arrow record batches: a row for each chunk, and no copy of the payload.

The chunk table of a block is a numpy array over the file's bytes, and ``data`` is an Arrow binary array whose buffer *is* the data section
of the block: chunks lie back to back, so their offsets are all it takes. Neighbouring blocks are joined up to ``_JOIN_BELOW``: a batch costs
some 2 ms beside its bytes, and the columns of many blocks are made at once (512 MB took a third of the processor time of batches of 1 MiB).
Joining copies their payload once. So does making anew a block that holds pieces of frames that were cut through: the chunk that completes one
holds all of it then, and pieces are no rows.
"""

import dataclasses
import functools
import json
import mmap
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from proxy.pipeline.planner import DataLossError, Slice
from proxy.tap import record
from proxy.tap.log_reader import BlockRef, Joiner, open_segment

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Block", "read_slice", "record_batch", "record_batches"]

CHUNK_DTYPE: Final = np.dtype(
    {
        "names": [name for name, _, _ in record.CHUNK_FIELDS],
        "formats": [kind for _, kind, _ in record.CHUNK_FIELDS],
        "offsets": [offset for _, _, offset in record.CHUNK_FIELDS],
        "itemsize": record.CHUNK_ROW_BYTES,
    }
)
INT32: Final = np.dtype(np.int32)
_JOIN_BELOW: Final = 8 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class Block:
    """A block whose CRCs were found good.

    Attributes:
        header: its header.
        body: all bytes of it, header included; usually a slice of a memory map, which lives as long as an array over it does.
    """

    header: record.BlockHeader
    body: memoryview

    def ints(self, position: int, count: int) -> "NDArray[np.int32]":
        """``count`` int32 at ``position`` of the block."""
        return np.frombuffer(self.body, dtype=INT32, count=count, offset=position)

    @property
    def chunks(self) -> "NDArray[Any]":
        """The chunk table."""
        return np.frombuffer(self.table, dtype=CHUNK_DTYPE)

    @property
    def table(self) -> memoryview:
        """The chunk table's bytes."""
        start = self.header.chunks_at
        return self.body[start : start + self.header.chunk_count * record.CHUNK_ROW_BYTES]

    @property
    def strings(self) -> bytes:
        """What the rows name by index, a JSON array; ``_words`` reads it."""
        start = self.header.header_len
        return bytes(self.body[start : start + self.header.strings_len])

    @property
    def data(self) -> memoryview:
        """The data section."""
        return self.body[self.header.data_at : self.header.data_at + self.header.data_len]


class _Group:
    """Some neighbouring blocks of one stream, their tables joined, from which each column is made on demand."""

    def __init__(self, stream: str, blocks: Sequence[Block]) -> None:
        self.stream = stream
        self.blocks = blocks
        self.counts = np.array([block.header.chunk_count for block in blocks], dtype="i8")
        # joined as bytes: numpy's own concatenate compares the fields of every pair of tables first
        self.rows = blocks[0].chunks if len(blocks) == 1 else np.frombuffer(b"".join(block.table for block in blocks), dtype=CHUNK_DTYPE)
        self.flags = self.rows["flags"]

    def __len__(self) -> int:
        return len(self.rows)

    def offset(self) -> pa.Array:
        return pa.array(np.repeat(np.array([block.header.offset for block in self.blocks], dtype="i8"), self.counts))

    def chunk_index(self) -> pa.Array:
        return pa.array(np.concatenate([np.arange(count, dtype="i4") for count in self.counts]))

    def text(self, field: str) -> pa.Array:
        """A column of strings that the rows name by index into their block's table; -1 is null."""
        words, shifts = self.words
        index = self.rows[field]
        return words.take(pa.array(index + shifts, mask=index < 0))

    @functools.cached_property
    def words(self) -> "tuple[pa.Array, NDArray[np.int32]]":
        """The blocks' tables of strings behind each other, each different one once, and for each row where its block's begins."""
        begins: dict[bytes, int] = {}
        count = 0
        shifts = np.empty(len(self.blocks), dtype="i4")
        for position, block in enumerate(self.blocks):
            strings = block.strings
            if strings not in begins:
                begins[strings] = count
                count += len(_words(strings))
            shifts[position] = begins[strings]
        parts = [_words(strings) for strings in begins]
        return parts[0] if len(parts) == 1 else pa.concat_arrays(parts), np.repeat(shifts, self.counts)

    def word(self, field: str, words: Sequence[str]) -> pa.Array:
        """A column of words of a closed list; a code above the list is named by its number, so that an older reader still reads."""
        codes = self.rows[field]
        known = [*words, *(f"{field}-{code}" for code in range(len(words), int(codes.max(initial=0)) + 1))]
        return pa.array(known, type=pa.string()).take(pa.array(codes))

    def number(self, field: str, *, null_below_zero: bool = False) -> pa.Array:
        values = np.ascontiguousarray(self.rows[field])
        return pa.array(values, mask=values < 0 if null_below_zero else None)

    def time(self, field: str, kind: int | None = None) -> pa.Array:
        """Nanoseconds as microseconds, rounded down, UTC. With ``kind``: of such chunks only, and null at 0."""
        values = self.rows[field]
        return pa.array(values // 1000, type=pa.timestamp("us", tz="UTC"), mask=None if kind is None else (values == 0) | (self.rows["kind"] != kind))

    def transfer(self) -> pa.Array:
        """Microseconds from a frame's first bytes to its last, for chunks of a frame that was cut through."""
        first = self.rows["lost_from_ns"]
        return pa.array((self.rows["capture_ns"] - first) // 1000, mask=(first == 0) | (self.rows["kind"] != record.KIND_FRAMES))

    def data(self, kind: pa.DataType) -> pa.Array:
        """The payload: Arrow offsets over the data section itself (over its copy when several blocks are joined)."""
        lengths = self.rows["data_length"]
        offsets = _offsets(lengths)
        sections = [block.data for block in self.blocks]
        begins = _offsets(np.array([len(section) for section in sections]))
        _expect_dense(self.rows["data_offset"], offsets, np.repeat(begins[:-1], self.counts), lengths > 0, "data")
        if int(offsets[-1]) != sum(len(section) for section in sections):
            raise record.FormatError("the chunks of a block do not fill its data section")
        buffer = pa.py_buffer(sections[0]) if len(sections) == 1 else pa.py_buffer(b"".join(sections))
        return pa.Array.from_buffers(kind, len(self), [None, pa.py_buffer(offsets), buffer])

    def starts(self, kind: pa.DataType) -> pa.Array:
        return self._lists(
            kind, self.rows["frame_count"], "starts_index", lambda b: b.ints(b.header.starts_at, b.header.starts_count), nullable=False
        )

    def sizes(self, kind: pa.DataType) -> pa.Array:
        return self._lists(kind, self._flagged(record.FLAG_SIZES), "sizes_index", lambda b: b.ints(b.header.sizes_at, b.header.sizes_count))

    def answers(self, kind: pa.DataType, half: int) -> pa.Array:
        """``half`` 0: keys; 1: latencies."""

        def values(block: Block) -> "NDArray[np.int32]":
            count = block.header.answers_count
            return block.ints(block.header.answers_at + 4 * half * count, count)

        return self._lists(kind, self._flagged(record.FLAG_ANSWERS), "answers_index", values)

    def _flagged(self, flag: int) -> "NDArray[np.int32]":
        """Frame counts of the chunks with the flag, -1 for the others."""
        return np.where(self.flags & flag != 0, self.rows["frame_count"], np.int32(-1))

    def _lists(
        self,
        kind: pa.DataType,
        lengths: "NDArray[np.int32]",
        index: str,
        values: Callable[[Block], "NDArray[np.int32]"],
        *,
        nullable: bool = True,
    ) -> pa.Array:
        """A list for each chunk over the int32 of a section; a length below 0 is null."""
        sections = [values(block) for block in self.blocks]
        offsets = _offsets(np.maximum(lengths, 0))
        begins = _offsets(np.array([len(section) for section in sections]))
        _expect_dense(self.rows[index], offsets, np.repeat(begins[:-1], self.counts), lengths > 0, index)
        if offsets[-1] != begins[-1]:
            raise record.FormatError(f"{index}: the chunks name {offsets[-1]} entries of {begins[-1]}")
        valid = None
        if nullable and bool((lengths < 0).any()):
            valid = pa.py_buffer(np.packbits(lengths >= 0, bitorder="little"))
        child = pa.array(sections[0] if len(sections) == 1 else np.concatenate(sections), type=pa.int32())
        return pa.ListArray.from_buffers(kind, len(self), [valid, pa.py_buffer(offsets)], children=[child])


@functools.lru_cache(maxsize=64)
def _words(strings: bytes) -> pa.Array:
    """A block's table of strings; the same connections give block after block the same one."""
    return pa.array(json.loads(strings or b"[]"), type=pa.string())


def _offsets(lengths: "NDArray[Any]") -> "NDArray[np.int32]":
    """Arrow's offsets for values of these lengths."""
    offsets = np.zeros(len(lengths) + 1, dtype="i4")
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _expect_dense(stored: "NDArray[Any]", offsets: "NDArray[Any]", base: "NDArray[Any]", used: "NDArray[Any]", what: str) -> None:
    """Raise FormatError unless the chunks lie back to back in their section, in order; zero-copy arrays depend on it."""
    if bool((used & (stored + base != offsets[:-1])).any()):
        raise record.FormatError(f"{what}: the chunks of a block do not lie back to back")


_MAKERS: Final[dict[str, Callable[[_Group, pa.DataType], pa.Array]]] = {
    "stream": lambda group, kind: pa.repeat(pa.scalar(group.stream, pa.string()), len(group)),
    "offset": lambda group, kind: group.offset(),
    "chunk_index": lambda group, kind: group.chunk_index(),
    "capture_time": lambda group, kind: group.time("capture_ns"),
    "connection_id": lambda group, kind: group.number("connection", null_below_zero=True),
    "listener": lambda group, kind: group.text("listener"),
    "principal": lambda group, kind: group.text("principal"),
    "peer": lambda group, kind: group.text("peer"),
    "rule": lambda group, kind: group.text("rule"),
    "direction": lambda group, kind: group.word("direction", record.DIRECTIONS),
    "protocol": lambda group, kind: group.word("protocol", record.PROTOCOLS),
    "kind": lambda group, kind: group.word("kind", record.KINDS),
    "capture": lambda group, kind: group.word("capture", record.CAPTURES),
    "first_sequence": lambda group, kind: group.number("first_frame", null_below_zero=True),
    "frame_count": lambda group, kind: group.number("frame_count"),
    "original_bytes": lambda group, kind: group.number("original_bytes"),
    "reason": lambda group, kind: group.word("reason", record.REASONS),
    "lost_frames": lambda group, kind: group.number("lost_frames"),
    "lost_bytes": lambda group, kind: group.number("lost_bytes"),
    "lost_from": lambda group, kind: group.time("lost_from_ns", record.KIND_GAP),
    "data": lambda group, kind: group.data(kind),
    "starts": lambda group, kind: group.starts(kind),
    "sizes": lambda group, kind: group.sizes(kind),
    "request_key": lambda group, kind: group.answers(kind, 0),
    "latency_us": lambda group, kind: group.answers(kind, 1),
    "transfer_us": lambda group, kind: group.transfer(),
}


def read_slice(part: Slice, *, fail_on_data_loss: bool = True, joiner: Joiner | None = None) -> Iterator[Block]:
    """The blocks of a slice, mapped, each CRC checked, their frames whole.

    Args:
        part: what to read.
        fail_on_data_loss: as below.
        joiner: who joined the slices before this one, if somebody did.

    Raises:
        DataLossError: a block is damaged, or the segment is gone; with ``fail_on_data_loss`` false it is left out, and what follows a damaged
            header in its segment too, for nobody can say where the next block begins.
    """
    at = part.start
    joiner = joiner or Joiner()
    try:
        fd = open_segment(part.path)
    except FileNotFoundError as gone:
        if fail_on_data_loss:
            raise DataLossError(f"stream {part.stream}: {part.path} was deleted before offsets {at} to {part.end} were read") from gone
        return
    try:
        view = memoryview(mmap.mmap(fd, 0, prot=mmap.PROT_READ))
    finally:
        os.close(fd)
    while at < part.end:
        position = at - part.base + record.SEGMENT_HEADER_BYTES
        try:
            header = record.decode_block_header(view, position)
            if header.offset != at or position + header.block_len > len(view):
                raise record.FormatError(f"a block of {header.block_len} bytes that says it is at {header.offset}")
        except record.FormatError as fault:
            if fail_on_data_loss:
                raise DataLossError(f"stream {part.stream}: damaged at offset {at} of {part.path}: {fault}") from fault
            return
        body = view[position : position + header.block_len]
        at += header.block_len
        if zlib.crc32(body[header.header_len :]) == header.body_crc:
            yield Block(*joiner.join(BlockRef(part.stream, part.path, part.base, position, header), body))
        elif fail_on_data_loss:
            raise DataLossError(f"stream {part.stream}: the block at offset {header.offset} of {part.path} is damaged: its CRC does not fit")


def record_batch(stream: str, blocks: Sequence[Block], schema: pa.Schema) -> pa.RecordBatch:
    """The chunks of some neighbouring blocks, one row each.

    Args:
        stream: whose blocks they are.
        blocks: at least one, in order; together under 2 GiB of data.
        schema: columns of ``schema.CHUNK_SCHEMA`` as Spark spells them in Arrow; only these are made, payload is not touched unless asked for.

    Raises:
        FormatError: a block's table contradicts its sections.
    """
    group = _Group(stream, blocks)
    return pa.RecordBatch.from_arrays([_MAKERS[field.name](group, field.type) for field in schema], schema=schema)


def record_batches(stream: str, blocks: Iterable[Block], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Record batches over all the blocks; small neighbours share one."""
    group: list[Block] = []
    size = 0
    for block in blocks:
        if block.header.chunk_count == 0:
            continue  # it had pieces only
        if group and size + len(block.body) > _JOIN_BELOW:
            yield record_batch(stream, group, schema)
            group, size = [], 0
        group.append(block)
        size += len(block.body)
    if group:
        yield record_batch(stream, group, schema)
