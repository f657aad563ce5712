"""Makes rows of the table ``frames``, rows of gaps, totals and heard nodes, and ends of connections, from chunk rows, in Arrow.

``transforms`` does the same with Spark's expressions, for jobs of users. Here no row passes the JVM: a chunk's frames lie back to back, so the bodies
of many chunks are one copy of their bytes.
"""

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from framegate.proxy.pipeline.transforms import FRAME_COLUMNS, PLACE
from framegate.proxy.tap.record import FRAME_HEADER_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

_END: Final = "connection"
_STATED: Final = pa.array(["gap", "totals", "heard"])
_STATED_COLUMNS: Final = (
    *("kind", *PLACE, "first_sequence", "lost_from", "lost_until", "lost_frames", "lost_bytes", "reason", "certainty", "seen_frames"),
)


def frames(chunks: pa.RecordBatch) -> pa.Table:
    """The rows of the table ``frames`` that chunk rows have; columns that the source was not asked for are null. ``transforms.frames`` describes
    them.
    """
    starts = chunks["starts"]
    counts = starts.value_lengths().to_numpy(zero_copy_only=False)
    chunk = np.repeat(np.arange(chunks.num_rows, dtype="i4"), counts)
    index = np.arange(len(chunk), dtype="i4") - np.repeat(np.cumsum(counts) - counts, counts).astype("i4")
    begins, ends = _bodies(chunks["data"], starts.flatten().to_numpy(), chunk)
    stored = ends - begins
    sizes, has_size = _values(chunks, "sizes", counts)
    key, has_key = _values(chunks, "request_key", counts)
    made: dict[str, Any] = {
        "frame_index": pa.array(index),
        "sequence": pc.add(chunks["first_sequence"].take(pa.array(chunk)), pa.array(index)),
        "size": pa.array(np.where(has_size, sizes, stored)),
        "kept_size": pa.array(stored),
        "payload": _cut_out(chunks["data"], begins, ends),
        "api_key": pa.array(key >> 16, mask=~has_key),
        "api_version": pa.array(key & 0xFFFF, mask=~has_key),
    }
    for name in ("latency_us", "request_size", "correlation_id"):
        values, known = _values(chunks, name, counts)
        made[name] = pa.array(values, mask=~known)
    rows = pa.array(chunk)
    return pa.table({name: made[name] if name in made else _column(chunks, name).take(rows) for name in FRAME_COLUMNS})


def gaps_and_totals(chunks: pa.RecordBatch) -> pa.Table:
    """The chunk rows of the kinds gap, totals and heard, and those with the number of ends that are missing, as ``derived`` takes them."""
    missing = pc.and_(pc.equal(chunks["kind"], _END), pc.is_null(chunks["connection_id"]))
    found = chunks.filter(pc.or_(pc.is_in(chunks["kind"], _STATED), missing))
    return pa.table({name: _column(found, name) for name in _STATED_COLUMNS})


def ends(chunks: pa.RecordBatch) -> pa.Table:
    """The chunk rows with the ends of connections, as ``derived.connections`` takes them."""
    found = chunks.filter(pc.and_(pc.equal(chunks["kind"], _END), pc.is_valid(chunks["connection_id"])))
    return pa.table({name: _column(found, name) for name in PLACE})


def _column(chunks: pa.RecordBatch, name: str) -> pa.Array:
    """A column of the chunks; ``connection`` is the connection as logs write it."""
    if name == "connection":
        ids = chunks["connection_id"].dictionary_encode()
        words = [f"{number >> 57 & 0x7F}-{number >> 29 & 0xFFFFFFF}-{number & 0x1FFFFFFF}" for number in ids.dictionary.to_pylist()]
        return pa.array(words, pa.string()).take(ids.indices)
    return chunks[name] if name in chunks.schema.names else pa.nulls(chunks.num_rows)


def _bodies(data: pa.BinaryArray, starts: "NDArray[np.int32]", chunk: "NDArray[np.int32]") -> "tuple[NDArray[np.int32], NDArray[np.int32]]":
    """Where the body of each frame begins and ends in the buffer of ``data``, as far as it is there."""
    edges = np.frombuffer(data.buffers()[1], dtype="i4", count=len(data) + 1, offset=4 * data.offset)
    begins = starts + edges[chunk]
    ends = edges[chunk + 1]
    follows = chunk[1:] == chunk[:-1]
    ends[:-1][follows] = begins[1:][follows]
    begins += np.int32(FRAME_HEADER_BYTES)
    return begins, np.maximum(begins, ends)


def _cut_out(data: pa.BinaryArray, begins: "NDArray[np.int32]", ends: "NDArray[np.int32]") -> pa.Array:
    """The bytes from each begin to its end, in order."""
    if not len(begins):
        return pa.array([], pa.binary())
    edges = np.stack([begins, ends], axis=1).ravel()  # of values that are bodies and headers in turn
    both = pa.Array.from_buffers(pa.binary(), len(edges) - 1, [None, pa.py_buffer(edges), data.buffers()[2]])
    return both.take(pa.array(np.arange(0, len(edges), 2, dtype="i4")))


def _values(chunks: pa.RecordBatch, name: str, counts: "NDArray[np.int32]") -> "tuple[NDArray[np.int32], NDArray[np.bool_]]":
    """The values of each frame in a column of lists, and whether they are known."""
    found = np.full(int(counts.sum()), -1, dtype="i4")
    if name in chunks.schema.names:
        lists = chunks[name]
        has = lists.is_valid().to_numpy(zero_copy_only=False)
        found[np.repeat(has, counts)] = lists.flatten().to_numpy()
    return found, found != -1
