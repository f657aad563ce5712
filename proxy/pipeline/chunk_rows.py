"""Makes rows of the table ``frames``, rows of gaps, totals and heard nodes, and ends of connections, from chunk rows, in Arrow.

A chunk's frames lie one behind the other, and ``data`` tells where chunks are in the memory of the log: the bodies of many chunks are one copy of
their bytes.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from framegate.proxy.pipeline.columns import FRAME_COLUMNS, PLACE
from framegate.proxy.pipeline.decode import IN_PLACE, copied
from framegate.proxy.tap.record import FRAME_HEADER_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

_END: Final = "connection"
_STATED: Final = pa.array(["gap", "totals", "heard"])
_STATED_COLUMNS: Final = (
    *("kind", *PLACE, "first_sequence", "lost_from", "lost_until", "lost_frames", "lost_bytes", "reason", "certainty", "seen_frames"),
)
_SOURCES: Final = {"connection": "connection_id", "sequence": "first_sequence", "api_key": "request_key", "api_version": "request_key"}
_OF_DATA: Final = ("data", "starts", "sizes")


def needed(names: Sequence[str]) -> set[str]:
    """The columns of chunk rows from which these columns of ``frames`` are made."""
    return {*_OF_DATA, *(_SOURCES.get(name, name) for name in names if name not in ("frame_index", "size", "kept_size", "payload"))}


def in_place(fields: Iterable[StructField]) -> pa.Schema:
    """The Arrow schema for columns of chunk rows, with ``data`` as ``frames`` takes it."""
    columns = to_arrow_schema(StructType(list(fields)), timezone="UTC")
    return columns.set(columns.get_field_index("data"), pa.field("data", IN_PLACE))


def frames(chunks: pa.RecordBatch, names: Sequence[str] = FRAME_COLUMNS) -> pa.Table:
    """Columns of the table ``frames``, which ``columns`` describes: a row for each frame of chunk rows whose ``data`` is ``decode.IN_PLACE``. Columns
    that the source was not asked for are null.
    """
    starts = chunks["starts"]
    counts = starts.value_lengths().to_numpy(zero_copy_only=False)
    chunk = np.repeat(np.arange(chunks.num_rows, dtype="i4"), counts)
    index = np.arange(len(chunk), dtype="i4") - np.repeat(np.cumsum(counts) - counts, counts).astype("i4")
    begins, ends = _bodies(chunks["data"], starts.flatten().to_numpy(), chunk)
    rows = pa.array(chunk)

    def size() -> pa.Array:
        sizes, known = _values(chunks, "sizes", counts)
        return pa.array(np.where(known, sizes, ends - begins))

    def listed(name: str, part: "Callable[[NDArray[np.int32]], NDArray[np.int32]]" = lambda values: values) -> pa.Array:
        values, known = _values(chunks, name, counts)
        return pa.array(part(values), mask=~known)

    makers: dict[str, Callable[[], pa.Array]] = {
        "frame_index": lambda: pa.array(index),
        "sequence": lambda: pc.add(_column(chunks, "first_sequence").take(rows), pa.array(index)),
        "size": size,
        "kept_size": lambda: pa.array(ends - begins),
        "payload": lambda: copied(chunks["data"].values.buffers()[1], begins, ends),
        "api_key": lambda: listed("request_key", lambda key: key >> 16),
        "api_version": lambda: listed("request_key", lambda key: key & 0xFFFF),
        **{name: functools.partial(listed, name) for name in ("latency_us", "request_size", "correlation_id")},
    }
    return pa.table({name: makers[name]() if name in makers else _column(chunks, name).take(rows) for name in names})


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


def _bodies(data: pa.ListViewArray, starts: "NDArray[np.int32]", chunk: "NDArray[np.int32]") -> "tuple[NDArray[np.int32], NDArray[np.int32]]":
    """Where the body of each frame begins and ends in the memory of ``data``, as far as it is there."""
    offsets = data.offsets.to_numpy()
    begins = starts + offsets[chunk]
    ends = (offsets + data.sizes.to_numpy())[chunk]
    follows = chunk[1:] == chunk[:-1]
    ends[:-1][follows] = begins[1:][follows]
    begins += np.int32(FRAME_HEADER_BYTES)
    return begins, np.maximum(begins, ends)


def _values(chunks: pa.RecordBatch, name: str, counts: "NDArray[np.int32]") -> "tuple[NDArray[np.int32], NDArray[np.bool_]]":
    """The values of each frame in a column of lists, and whether they are known."""
    found = np.full(int(counts.sum()), -1, dtype="i4")
    if name in chunks.schema.names:
        lists = chunks[name]
        has = lists.is_valid().to_numpy(zero_copy_only=False)
        found[np.repeat(has, counts)] = lists.flatten().to_numpy()
    return found, found != -1
