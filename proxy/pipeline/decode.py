"""Turns blocks of the tap's log into Arrow record batches: a row for each chunk, without copying the payload.

The chunk table of a block is a numpy array over the file's bytes. Neighbouring blocks are joined up to ``_JOIN_BELOW``: a batch costs some 2 ms
beside its bytes, and the columns of many blocks are made at once (512 MB took a third of the processor time of batches of 1 MiB). ``data`` is an
Arrow binary array for Spark: joining copies the payload once. For frames (``chunk_rows``) it is a list view, which tells where in the memory of the
file each chunk is, and nothing is copied.

Where only a part of the payload is wanted, frames are cut here, so that Spark never sees the rest; their sizes stay those on the wire.
"""

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from framegate.proxy.pipeline.fleet_planner import Heard
from framegate.proxy.pipeline.loss import Loss, Pairs
from framegate.proxy.pipeline.slices import CHUNK_DTYPE, Block
from framegate.proxy.pipeline.wanted import EVERYTHING, Wanted
from framegate.proxy.tap import record

if TYPE_CHECKING:
    from numpy.typing import NDArray

_COUNTING: Final = (record.KIND_GAP, record.KIND_TOTALS)
HEARD: Final = "heard"  # the kind of a row that is in no block: when a node in a store was heard
NOBODY: Final = "ANONYMOUS"  # the proxy's name of a client that has not authenticated; no certificate's name has this form
_JOIN_BELOW: Final = 8 << 20
IN_PLACE: Final = pa.list_view(pa.uint8())  # the type of ``data`` as views of the memory where the log was read
_REQUEST_HEADER: Final = np.dtype([("key", ">i2"), ("version", ">i2"), ("correlation", ">i4")])  # how each of Kafka's requests begins


class Group:
    """Some neighbouring blocks of one stream, their tables joined; each method makes a column. ``keep``: bytes of each body to keep; None: all."""

    def __init__(self, stream: str, blocks: Sequence[Block], keep: int | None = None, node: str = "") -> None:
        self.stream = stream
        self.node = node or node_of(stream)
        self.blocks = blocks
        self._keep = keep
        self._facts: dict[int, tuple[NDArray[np.bool_], NDArray[np.int32]]] = {}
        self.counts = np.array([block.header.chunk_count for block in blocks], dtype="i8")
        # joined as bytes: numpy's own concatenate compares the fields of every pair of tables first
        self.rows = np.frombuffer(blocks[0].table if len(blocks) == 1 else b"".join(block.table for block in blocks), dtype=CHUNK_DTYPE)
        self.flags = self.rows["flags"]

    @functools.cached_property
    def cut(self) -> "_Cut | None":
        """The payload, cut; None: no body is longer than ``keep``."""
        if self._keep is None or int(self.rows["data_length"].max(initial=0)) <= self._keep:
            return None
        return self._cut(self._keep)

    def ints(self, values: "Callable[[Block], NDArray[np.int32]]") -> "NDArray[np.int32]":
        sections = [values(block) for block in self.blocks]
        return sections[0] if len(sections) == 1 else np.concatenate(sections)

    @functools.cached_property
    def memory(self) -> "tuple[pa.Buffer, NDArray[np.int32]]":
        """Memory that has the payload, and where in it the data of each chunk begins. It is that of the blocks where they are slices of one object;
        otherwise a copy.
        """
        first = self.blocks[0].body.obj
        sections = [pa.py_buffer(block.data) for block in self.blocks]
        if all(block.body.obj is first for block in self.blocks):
            whole, address = pa.py_buffer(first), sections[0].address
            memory, begins = whole.slice(address - whole.address), np.array([section.address - address for section in sections])
        else:
            memory, begins = pa.py_buffer(b"".join(sections)), _offsets(np.array([section.size for section in sections]))[:-1]
        offsets, stored = _offsets(self.rows["data_length"]), _offsets(np.array([section.size for section in sections]))
        _expect_dense(self.rows["data_offset"], offsets, np.repeat(stored[:-1], self.counts), self.rows["data_length"] > 0, "data")
        if offsets[-1] != stored[-1]:
            raise record.FormatError("the chunks of a block do not fill its data section")
        return memory, (np.repeat(begins, self.counts) + self.rows["data_offset"]).astype("i4")

    def __len__(self) -> int:
        return len(self.rows)

    @functools.cached_property
    def bodies(self) -> "tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]":
        """Where each frame's body begins and ends in ``memory``, as far as it is stored, and its size on the wire."""
        begins, ends = self._frames()
        begins = begins + np.int32(record.FRAME_HEADER_BYTES)
        sizes = ends - begins
        sizes[np.repeat(self.flags & record.FLAG_SIZES != 0, self.rows["frame_count"])] = self.ints(_sizes)
        return begins, ends, sizes

    def decoded(self) -> pa.Array:
        """The contents of Kafka's frames."""
        from framegate.proxy.pipeline.frame_contents import contents_of  # only the job asks for it

        return contents_of(self)

    def offset(self) -> pa.Array:
        return pa.array(np.repeat(np.array([block.header.offset for block in self.blocks], dtype="i8"), self.counts))

    def chunk_index(self) -> pa.Array:
        return pa.array(np.concatenate([np.arange(count, dtype="i4") for count in self.counts]))

    def text(self, field: str, null: str | None = None) -> pa.Array:
        """A column of strings that the rows name by index into their block's table; -1 is null, and so is the word ``null``."""
        words, shifts = self.words
        if null is not None:
            words = pc.if_else(pc.equal(words, null), pa.scalar(None, pa.string()), words)
        index = self.rows[field]
        return words.take(pa.array(index + shifts, mask=index < 0))

    def principal(self) -> pa.Array:
        return self.text("principal", null=NOBODY)

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

    def time(self, field: str, kinds: Sequence[int] = ()) -> pa.Array:
        """Nanoseconds as microseconds, rounded down, UTC. With ``kinds``: of such rows only, and null at 0."""
        values = self.rows[field]
        return pa.array(values // 1000, type=pa.timestamp("us", tz="UTC"), mask=(values == 0) | ~self.is_of(*kinds) if kinds else None)

    def until(self) -> pa.Array:
        """When the last frame of a gap was lost, or of totals seen, or a connection ended; before version 3 a gap knew only when it was written."""
        values = np.where(self.rows["original_bytes"] == 0, self.rows["capture_ns"], self.rows["original_bytes"])
        return pa.array(values // 1000, type=pa.timestamp("us", tz="UTC"), mask=~self.is_of(*_COUNTING, record.KIND_CONNECTION))

    def is_of(self, *kinds: int) -> "NDArray[np.bool_]":
        found: NDArray[np.bool_] = np.logical_or.reduce([self.rows["kind"] == kind for kind in kinds])
        return found

    def count(self, field: str, *kinds: int) -> pa.Array:
        """A number that means what its column says in rows of these kinds; 0 in others."""
        return pa.array(np.where(self.is_of(*kinds), self.rows[field], 0))

    def seen(self, field: str) -> pa.Array:
        return pa.array(np.ascontiguousarray(self.rows[field]), mask=~self.is_of(record.KIND_TOTALS))

    def certainty(self) -> pa.Array:
        codes = np.where(self.flags & record.FLAG_UNKNOWN, 2, np.where(self.flags & record.FLAG_AT_MOST, 1, 0)).astype("i4")
        return pa.array(record.CERTAINTIES, type=pa.string()).take(pa.array(codes, mask=~self.is_of(record.KIND_GAP)))

    def transfer(self) -> pa.Array:
        first = self.rows["lost_from_ns"]
        return pa.array((self.rows["capture_ns"] - first) // 1000, mask=(first == 0) | (self.rows["kind"] != record.KIND_FRAMES))

    def data(self, kind: pa.DataType) -> pa.Array:
        """The payload: for ``IN_PLACE`` where each chunk is in ``memory``, else back to back, which copies it unless it is one data section."""
        memory, begins = self.memory
        lengths = self.rows["data_length"]
        if self.cut is not None:
            memory, begins, lengths = self.cut.data, self.cut.offsets[:-1], np.diff(self.cut.offsets)
        if kind == IN_PLACE:
            values = pa.Array.from_buffers(pa.uint8(), memory.size, [None, memory])
            return pa.Array.from_buffers(
                kind, len(self), [None, pa.py_buffer(begins), pa.py_buffer(np.ascontiguousarray(lengths))], children=[values]
            )
        if self.cut is None and len(self.blocks) > 1 and memory.size != int(lengths.sum()):  # it has what lies between, too
            memory = pa.py_buffer(b"".join(block.data for block in self.blocks))
        return pa.Array.from_buffers(kind, len(self), [None, pa.py_buffer(_offsets(lengths)), memory])

    def starts(self, kind: pa.DataType) -> pa.Array:
        if self.cut is not None:
            return _list_array(kind, len(self), None, _offsets(self.rows["frame_count"]), self.cut.starts)
        return self._lists(kind, self.rows["frame_count"], "starts_index", _starts, nullable=False)

    def sizes(self, kind: pa.DataType) -> pa.Array:
        if self.cut is not None:
            stored = self.ints(_sizes)
            frames = self.rows["frame_count"]
            has = np.repeat(self.flags & record.FLAG_SIZES != 0, frames)
            sizes = self.cut.sizes.copy()
            sizes[has] = stored
            return _list_array(kind, len(self), frames > 0, _offsets(frames), sizes)
        return self._lists(kind, self._flagged(record.FLAG_SIZES), "sizes_index", _sizes)

    def answers(self, kind: pa.DataType, part: int) -> pa.Array:
        """A part of ``facts`` as lists."""
        has, values = self.facts(part)
        return _list_array(kind, len(self), has, _offsets(np.where(has, self.rows["frame_count"], 0)), values)

    def facts(self, part: int) -> "tuple[NDArray[np.bool_], NDArray[np.int32]]":
        """The chunks that have it, and the values of their frames: ``part`` 0: keys of requests or of those that are answered; 1: latencies; 2:
        request sizes; 3: correlation ids. The last two are in blocks with BLOCK_REQUESTS only. Requests under protocol kafka have the first and the
        last by their own headers; -1 where they are not stored.
        """
        if part in self._facts:
            return self._facts[part]
        stored = [part < 2 or bool(block.header.flags & record.BLOCK_REQUESTS) for block in self.blocks]
        lengths = np.where(np.repeat(stored, self.counts), self._flagged(record.FLAG_ANSWERS), np.int32(-1))
        has, values = lengths >= 0, self._dense(lengths, "answers_index", functools.partial(_answers, part=part))
        if part in (0, 3):
            asked, key, correlation = self._own_keys
            if len(key):
                has |= asked
                of_asked = np.repeat(asked[has], self.rows["frame_count"][has])
                told, values = values, np.empty(len(of_asked), dtype="i4")
                values[of_asked], values[~of_asked] = correlation if part else key, told
        self._facts[part] = has, values
        return has, values

    @functools.cached_property
    def _own_keys(self) -> "tuple[NDArray[np.bool_], NDArray[np.int32], NDArray[np.int32]]":
        """The chunks of requests under protocol kafka; and of each of their frames key << 16 | version, and the correlation id."""
        asked = (
            (self.rows["kind"] == record.KIND_FRAMES)
            & (self.rows["direction"] == record.DIRECTION_REQUEST)
            & (self.rows["protocol"] == record.PROTOCOL_KAFKA)
            & (self.rows["capture"] == record.CAPTURE_FULL)
            & (self.rows["reason"] != record.REASON_PIECES_LOST)
            & (self.flags & (record.FLAG_ANSWERS | record.FLAG_REPLACED) == 0)
        )
        if not bool(asked.any()):
            return asked, np.empty(0, dtype="i4"), np.empty(0, dtype="i4")
        begins, ends, _ = self.bodies
        of_asked = np.repeat(asked, self.rows["frame_count"])
        begins, ends = begins[of_asked], ends[of_asked]
        key, correlation = (np.full(len(begins), -1, dtype="i4") for _ in range(2))
        stored = np.flatnonzero(ends - begins >= _REQUEST_HEADER.itemsize)
        if len(stored):
            memory, _ = self.memory
            places = memory.size - _REQUEST_HEADER.itemsize + 1
            headers = np.ndarray(places, dtype="V8", buffer=memory, strides=(1,))[begins[stored]].view(_REQUEST_HEADER)
            known = headers["key"] >= 0
            key[stored[known]] = headers["key"][known].astype("i4") << 16 | headers["version"][known].astype("i4") & 0xFFFF
            correlation[stored[known]] = headers["correlation"][known]
        return asked, key, correlation

    def _frames(self) -> "tuple[NDArray[np.int32], NDArray[np.int32]]":
        """Where each frame begins and ends in ``memory``."""
        frames = self.rows["frame_count"]
        _, chunks = self.memory
        begins = self.ints(_starts) + np.repeat(chunks, frames)
        ends = np.append(begins[1:], np.int32(0))
        ends[_offsets(frames)[1:][frames > 0] - 1] = (chunks + self.rows["data_length"])[frames > 0]
        return begins, ends

    def _cut(self, keep: int) -> "_Cut | None":
        frames = self.rows["frame_count"]
        begins, ends = self._frames()
        kept = np.minimum(ends - begins, np.int32(min(keep, record.MAX_CHUNK_BYTES)) + record.FRAME_HEADER_BYTES)
        if not bool((kept < ends - begins).any()):
            return None
        moved = _offsets(kept)
        offsets = moved[_offsets(frames)]
        data = copied(self.memory[0], begins, begins + kept).buffers()[2]
        return _Cut(data, offsets, moved[:-1] - np.repeat(offsets[:-1], frames), ends - begins - record.FRAME_HEADER_BYTES)

    def _flagged(self, flag: int) -> "NDArray[np.int32]":
        return np.where(self.flags & flag != 0, self.rows["frame_count"], np.int32(-1))

    def _lists(
        self, kind: pa.DataType, lengths: "NDArray[np.int32]", index: str, values: Callable[[Block], "NDArray[np.int32]"], *, nullable: bool = True
    ) -> pa.Array:
        """A list for each chunk over the int32 of a section; a length below 0 is null."""
        valid = lengths >= 0 if nullable and bool((lengths < 0).any()) else None
        return _list_array(kind, len(self), valid, _offsets(np.maximum(lengths, 0)), self._dense(lengths, index, values))

    def _dense(self, lengths: "NDArray[np.int32]", index: str, values: Callable[[Block], "NDArray[np.int32]"]) -> "NDArray[np.int32]":
        """The int32 of a section, of which each chunk has ``lengths`` in turn."""
        sections = [values(block) for block in self.blocks]
        offsets = _offsets(np.maximum(lengths, 0))
        begins = _offsets(np.array([len(section) for section in sections]))
        _expect_dense(self.rows[index], offsets, np.repeat(begins[:-1], self.counts), lengths > 0, index)
        if offsets[-1] != begins[-1]:
            raise record.FormatError(f"{index}: the chunks name {offsets[-1]} entries of {begins[-1]}")
        return sections[0] if len(sections) == 1 else np.concatenate(sections)


class _Cut(NamedTuple):
    """The payload of some chunks, cut: the ``data`` that is kept, the ``offsets`` of the chunks in it, the ``starts`` of the frames, each relative to
    its chunk, and the ``sizes`` of the bodies before the cut.
    """

    data: pa.Buffer
    offsets: "NDArray[np.int32]"
    starts: "NDArray[np.int32]"
    sizes: "NDArray[np.int32]"


def copied(memory: pa.Buffer, begins: "NDArray[np.int32]", ends: "NDArray[np.int32]") -> pa.Array:
    """The bytes from each begin to its end, in order; each begins behind the end of the one before."""
    if not len(begins):
        return pa.array([], pa.binary())
    edges = np.stack([begins, ends], axis=1).ravel()  # of values that are what is copied, and what lies between, in turn
    both = pa.Array.from_buffers(pa.binary(), len(edges) - 1, [None, pa.py_buffer(edges), memory])
    return both.take(pa.array(np.arange(0, len(edges), 2, dtype="i4")))


def _starts(block: Block) -> "NDArray[np.int32]":
    return block.ints(block.header.starts_at, block.header.starts_count)


def _sizes(block: Block) -> "NDArray[np.int32]":
    return block.ints(block.header.sizes_at, block.header.sizes_count)


def _answers(block: Block, part: int) -> "NDArray[np.int32]":
    count = block.header.answers_count if part < 2 or block.header.flags & record.BLOCK_REQUESTS else 0
    return block.ints(block.header.answers_at + 4 * part * count, count)


def _list_array(
    kind: pa.DataType, length: int, valid: "NDArray[np.bool_] | None", offsets: "NDArray[np.int32]", values: "NDArray[np.int32]"
) -> pa.Array:
    bits = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.ListArray.from_buffers(kind, length, [bits, pa.py_buffer(offsets)], children=[pa.array(values, type=pa.int32())])


@functools.lru_cache(maxsize=64)
def _words(strings: bytes) -> pa.Array:
    """A block's table of strings; cached, because blocks of the same connections have the same one."""
    return pa.array(json.loads(strings or b"[]"), type=pa.string())


def _offsets(lengths: "NDArray[Any]") -> "NDArray[np.int32]":
    offsets = np.zeros(len(lengths) + 1, dtype="i4")
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _expect_dense(stored: "NDArray[Any]", offsets: "NDArray[Any]", base: "NDArray[Any]", used: "NDArray[Any]", what: str) -> None:
    """Raise FormatError unless the chunks lie back to back in their section, in order; zero-copy arrays depend on it."""
    if bool((used & (stored + base != offsets[:-1])).any()):
        raise record.FormatError(f"{what}: the chunks of a block do not lie back to back")


_MAKERS: Final[dict[str, Callable[[Group, pa.DataType], pa.Array]]] = {
    "stream": lambda group, kind: pa.repeat(pa.scalar(group.stream, pa.string()), len(group)),
    "offset": lambda group, kind: group.offset(),
    "chunk_index": lambda group, kind: group.chunk_index(),
    "capture_time": lambda group, kind: group.time("capture_ns"),
    "connection_id": lambda group, kind: group.number("connection", null_below_zero=True),
    "listener": lambda group, kind: group.text("listener"),
    "principal": lambda group, kind: group.principal(),
    "peer": lambda group, kind: group.text("peer"),
    "rule": lambda group, kind: group.text("rule"),
    "direction": lambda group, kind: group.word("direction", record.DIRECTIONS),
    "protocol": lambda group, kind: group.word("protocol", record.PROTOCOLS),
    "framing": lambda group, kind: group.word("framing", record.FRAMINGS),
    "kind": lambda group, kind: group.word("kind", record.KINDS),
    "capture": lambda group, kind: group.word("capture", record.CAPTURES),
    "first_sequence": lambda group, kind: group.number("first_frame", null_below_zero=True),
    "frame_count": lambda group, kind: group.number("frame_count"),
    "original_bytes": lambda group, kind: group.count("original_bytes", record.KIND_FRAMES),
    "reason": lambda group, kind: group.word("reason", record.REASONS),
    "lost_frames": lambda group, kind: group.count("lost_frames", record.KIND_GAP, record.KIND_CONNECTION),
    "lost_bytes": lambda group, kind: group.count("lost_bytes", record.KIND_FRAMES, record.KIND_GAP),
    "lost_from": lambda group, kind: group.time("lost_from_ns", (*_COUNTING, record.KIND_CLOCK, record.KIND_CONNECTION)),
    "lost_until": lambda group, kind: group.until(),
    "certainty": lambda group, kind: group.certainty(),
    "seen_frames": lambda group, kind: group.seen("lost_frames"),
    "seen_bytes": lambda group, kind: group.seen("lost_bytes"),
    "data": lambda group, kind: group.data(kind),
    "starts": lambda group, kind: group.starts(kind),
    "sizes": lambda group, kind: group.sizes(kind),
    "request_key": lambda group, kind: group.answers(kind, 0),
    "latency_us": lambda group, kind: group.answers(kind, 1),
    "request_size": lambda group, kind: group.answers(kind, 2),
    "correlation_id": lambda group, kind: group.answers(kind, 3),
    "transfer_us": lambda group, kind: group.transfer(),
    "node": lambda group, kind: pa.repeat(pa.scalar(group.node, pa.string()), len(group)),
    "decoded": lambda group, kind: group.decoded(),
}


def record_batch(stream: str, blocks: Sequence[Block], schema: pa.Schema, *, keep: int | None = None, node: str = "") -> pa.RecordBatch:
    """The chunks of some neighbouring blocks, one row each.

    Args:
        blocks: at least one, in order; together under 2 GiB of data.
        schema: columns of ``schema.CHUNK_SCHEMA`` with Spark's Arrow types; only these are made.
        keep: bytes of each body to keep; None: all. Without the column data nothing is cut.

    Raises FormatError: a block's table contradicts its sections.
    """
    group = Group(stream, blocks, keep if "data" in schema.names else None, node)
    return pa.RecordBatch.from_arrays([_MAKERS[field.name](group, field.type) for field in schema], schema=schema)


def node_of(stream: str) -> str:
    """The node in the name of a stream."""
    return stream.rsplit(".", 2)[0]


def heard_batch(heard: Heard, schema: pa.Schema) -> pa.RecordBatch:
    """A row that says that a node was heard."""
    times = {"capture_time": heard.heard_ns, "lost_from": None, "lost_until": heard.until_ns}
    values = {"stream": "", "offset": 0, "kind": HEARD, "node": heard.node, "reason": record.REASONS[0], "certainty": None}
    return _stated(values, times, ((None, record.DIRECTIONS[0]),), schema)


def loss_batch(loss: Loss, schema: pa.Schema) -> pa.RecordBatch:
    """A loss as gaps, one for each listener and direction that it may be about."""
    times = {"capture_time": loss.until_ns or loss.from_ns, "lost_from": loss.from_ns or None, "lost_until": loss.until_ns or None}
    values = {"stream": loss.stream, "offset": loss.offset, "reason": record.REASONS[loss.reason], "certainty": record.CERTAINTIES[2]}
    values |= {"kind": record.KINDS[record.KIND_GAP], "node": loss.node or node_of(loss.stream)}
    return _stated(values, times, loss.pairs, schema)


def _stated(facts: Mapping[str, Any], times: Mapping[str, int | None], pairs: Pairs, schema: pa.Schema) -> pa.RecordBatch:
    """Rows that no block has, one for each listener and direction."""
    values = {**facts, **{name: None if ns is None else ns // 1000 for name, ns in times.items()}}
    values |= {"protocol": record.PROTOCOLS[0], "framing": record.FRAMINGS[0], "capture": record.CAPTURES[0]}
    values |= {"frame_count": 0, "original_bytes": 0, "lost_frames": 0, "lost_bytes": 0, "data": b"", "starts": []}
    columns: dict[str, list[Any]] = {
        "chunk_index": list(range(len(pairs))),
        "listener": [listener for listener, _ in pairs],
        "direction": [direction for _, direction in pairs],
    }
    return pa.RecordBatch.from_arrays(
        [pa.array(columns.get(field.name, [values.get(field.name)] * len(pairs)), type=field.type) for field in schema], schema=schema
    )


def record_batches(
    stream: str, blocks: Iterable[Block | Loss], schema: pa.Schema, *, keep: int | None = None, node: str = "", wanted: Wanted = EVERYTHING
) -> Iterator[pa.RecordBatch]:
    """Record batches of all the blocks; small neighbours share one. A loss is one of its own. ``stream``, ``blocks``, ``schema``, ``keep``, ``node``:
    as for ``record_batch``. ``wanted``: rows, by columns that the schema has.
    """
    group: list[Block] = []
    size = 0

    def batches() -> Iterator[pa.RecordBatch]:
        found = wanted.rows(record_batch(stream, group, schema, keep=keep, node=node)) if group else None
        if found:
            yield found

    for block in blocks:
        # blocks that are left out between two of a group lie in its memory, too
        if isinstance(block, Loss) or max(size + len(block.body), block.header.offset - group[0].header.offset if group else 0) > _JOIN_BELOW:
            yield from batches()
            group, size = [], 0
        if isinstance(block, Loss):
            yield loss_batch(block, schema)
        elif block.header.chunk_count:  # otherwise it has pieces only
            group.append(block)
            size += len(block.body)
    yield from batches()
