"""The contents of Kafka's frames as an Arrow table, made where blocks are read: one row for each request or answer whose API is known.

The source has it as its column ``decoded``, which only the job asks for: bytes of an Arrow stream, in the first of the rows that were made together,
for the frames of all of them. So each task decodes what it reads, before the payload is cut and without a copy of it, and the JVM passes one value.
The metadata of its schema says how far the log was read: ``stream`` (``stream_key``), and ``end``, the offset behind the last block. If there are no
frames of Kafka, the value is these two as JSON: a stream may end with frames of another protocol, and requests wait for its end.
"""

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from framegate.proxy.kafka.contents import CODECS, NOT_KNOWN, Contents
from framegate.proxy.pipeline.partial_sums import MICROSECONDS
from framegate.proxy.tap import record

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from framegate.proxy.pipeline.decode import Group

_TYPES: Final = {"string": pa.string(), "int": pa.int32(), "bigint": pa.int64(), "time": MICROSECONDS}


def _fields(text: str) -> list[tuple[str, pa.DataType]]:
    return [(name, _TYPES[kind]) for name, kind in (pair.split(":") for pair in text.split())]


PARTITION: Final = pa.struct(
    _fields(
        "topic:string topic_id:string partition:int records:bigint record_bytes:bigint codec:string newest_record_time:time base_offset:bigint "
        "high_watermark:bigint error_code:int"
    )
)  # what ``kafka.contents`` tells of a partition
CONTENTS_SCHEMA: Final = pa.schema(
    [
        *_fields(
            "node:string stream:string offset:bigint chunk_index:int capture_time:time connection_id:bigint listener:string principal:string "
            "peer:string rule:string protocol:string framing:string direction:string transfer_us:bigint frame_index:int sequence:bigint size:int "
            "api_key:int api_version:int latency_us:int request_size:int correlation_id:int client_id:string acks:int group_id:string "
            "member_id:string generation:int error_code:int fault:string"
        ),
        ("partitions", pa.list_(PARTITION)),
    ]
)


def stream_key(node: str, stream: str) -> str:
    """The name of a stream among those of all nodes: in a store, the folders of two nodes may have streams of the same name."""
    return f"{node}/{stream}"


def contents_of(group: "Group") -> pa.Array:
    """The column ``decoded`` of the rows of some blocks; it is null in all but the first."""
    if not len(group):
        return pa.nulls(0, pa.binary())
    frames = (group.rows["protocol"] == record.PROTOCOL_KAFKA) & (group.rows["kind"] == record.KIND_FRAMES)
    header = group.blocks[-1].header
    read = {"stream": stream_key(group.node, group.stream), "end": str(header.offset + header.block_len)}
    if not frames.any():
        value = pa.py_buffer(json.dumps(read).encode())
    else:
        table = _table(group, frames)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema.with_metadata(read), options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
            writer.write_batch(table)
        value = sink.getvalue()
    offsets, valid = np.full(len(group) + 1, value.size, dtype="i4"), np.zeros(len(group), dtype=bool)
    offsets[0], valid[0] = 0, True
    return pa.Array.from_buffers(pa.binary(), len(group), [pa.py_buffer(np.packbits(valid, bitorder="little")), pa.py_buffer(offsets), value])


def read_contents(values: Iterable[bytes]) -> tuple[pa.Table, dict[str, int]]:
    """The rows of several values of the column, and how far each stream was read, by ``stream_key``."""
    tables: list[pa.Table] = []
    ends: dict[str, int] = {}
    for value in values:
        if value.startswith(b"{"):
            read = json.loads(value)
        else:
            tables.append(pa.ipc.open_stream(value).read_all())
            read = {name.decode(): text.decode() for name, text in tables[-1].schema.metadata.items()}
        ends[read["stream"]] = max(int(read["end"]), ends.get(read["stream"], 0))
    return pa.concat_tables([CONTENTS_SCHEMA.empty_table(), *(table.replace_schema_metadata() for table in tables)]), ends


def _table(group: "Group", frames: "NDArray[np.bool_]") -> pa.RecordBatch:
    """A row for each frame of the chunks ``frames`` whose API is known."""
    chunks = frames & group.facts(0)[0]
    counts = group.rows["frame_count"]
    per_chunk = np.where(chunks, counts, 0)

    def values(has: "NDArray[np.bool_]", known: "NDArray[np.int32]") -> "NDArray[np.int32]":
        """The values of each frame of the chunks, of those that the chunks ``has`` have; -1 where there are none."""
        found = np.full(int(per_chunk.sum()), -1, dtype="i4")
        found[np.repeat(has[chunks], counts[chunks])] = known[np.repeat(chunks[has], counts[has])]
        return found

    calls = values(*group.facts(0))
    taken: Any = calls >= 0
    if taken.all():
        taken = slice(None)  # copies nothing
    chunk = np.repeat(np.arange(len(group), dtype="i4"), per_chunk)[taken]
    before = np.cumsum(per_chunk) - per_chunk
    index = (np.arange(len(calls), dtype="i4") - np.repeat(before.astype("i4"), per_chunk))[taken]
    begins, ends, sizes = (bounds[np.repeat(chunks, counts)][taken] for bounds in group.bodies)
    replaced = (group.flags[chunk] & record.FLAG_REPLACED != 0) | (group.rows["capture"][chunk] != record.CAPTURE_FULL)
    answers = group.rows["direction"][chunk] == record.DIRECTION_RESPONSE
    contents = Contents()
    stored = np.where(replaced, begins, ends)  # nothing of them is as it passed
    memory, _ = group.memory
    first, last = (int(begins[0]), int(ends[-1])) if len(begins) else (0, 0)
    places = np.concatenate([begins - first, stored - first, sizes, calls[taken], answers], dtype="<i4", casting="unsafe")
    contents.add(memory[first:last].to_pybytes(), places.tobytes())
    texts = pa.array(contents.texts, pa.string())
    at = pa.array(chunk)
    columns: dict[str, Any] = {
        "node": pa.repeat(pa.scalar(group.node, pa.string()), len(chunk)),
        "stream": pa.repeat(pa.scalar(group.stream, pa.string()), len(chunk)),
        "offset": group.offset().take(at),
        "chunk_index": group.chunk_index().take(at),
        "capture_time": group.time("capture_ns").take(at),
        "connection_id": group.number("connection", null_below_zero=True).take(at),
        "principal": group.principal().take(at),
        **{name: group.text(name).take(at) for name in ("listener", "peer", "rule")},
        "protocol": group.word("protocol", record.PROTOCOLS).take(at),
        "framing": group.word("framing", record.FRAMINGS).take(at),
        "direction": group.word("direction", record.DIRECTIONS).take(at),
        "transfer_us": group.transfer().take(at),
        "frame_index": pa.array(index),
        "sequence": pa.array(group.rows["first_frame"][chunk] + index, mask=group.rows["first_frame"][chunk] < 0),
        "size": pa.array(sizes),
        "api_key": pa.array(calls[taken] >> 16),
        "api_version": pa.array(calls[taken] & 0xFFFF),
    }
    for part, name in enumerate(("latency_us", "request_size", "correlation_id"), 1):
        found = values(*group.facts(part))[taken]
        columns[name] = pa.array(found, mask=found == -1)
    for name in ("client_id", "group_id", "member_id", "fault"):
        columns[name] = _texts(_values(contents, name), texts)
    for name in ("acks", "generation", "error_code"):
        columns[name] = _numbers(_values(contents, name), pa.int32())
    offsets = np.zeros(len(chunk) + 1, dtype="i4")
    np.cumsum(_values(contents, "counts"), out=offsets[1:])
    columns["partitions"] = pa.ListArray.from_arrays(pa.array(offsets), _partitions(contents, texts))
    return pa.RecordBatch.from_arrays([columns[name] for name in CONTENTS_SCHEMA.names], schema=CONTENTS_SCHEMA)


def _partitions(contents: Contents, texts: pa.Array) -> pa.StructArray:
    newest = _values(contents, "newest_ms")
    codecs = pa.array([*CODECS, *(f"codec-{code}" for code in range(len(CODECS), 8))])
    columns = {
        "topic": _texts(_values(contents, "topic"), texts),
        "topic_id": _texts(_values(contents, "topic_id"), texts),
        "codec": codecs.take(_numbers(_values(contents, "codec"), pa.int32())),
        "newest_record_time": pa.array(newest * 1000, MICROSECONDS, mask=newest < 0),
        "error_code": _numbers(_values(contents, "partition_error"), pa.int32()),
    }
    numbers = {field.name: field.type for field in PARTITION if field.name not in columns}
    columns |= {name: _numbers(_values(contents, name), kind) for name, kind in numbers.items()}
    return pa.StructArray.from_arrays([columns[field.name] for field in PARTITION], fields=list(PARTITION))


def _values(contents: Contents, name: str) -> "NDArray[np.int64]":
    return np.frombuffer(contents.column(name), dtype="i8")


def _texts(indices: "NDArray[np.int64]", texts: pa.Array) -> pa.Array:
    return texts.take(_numbers(indices, pa.int32()))


def _numbers(numbers: "NDArray[np.int64]", kind: pa.DataType) -> pa.Array:
    unknown = numbers == NOT_KNOWN
    return pa.nulls(len(numbers), kind) if unknown.all() else pa.array(numbers.astype(kind.to_pandas_dtype(), copy=False), mask=unknown)
