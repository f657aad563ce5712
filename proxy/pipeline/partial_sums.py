"""Partial sums by key, in Arrow, from rows and from one another. A table of them has several rows for a key, and its view adds them up."""

from collections.abc import Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

MICROSECONDS: Final = pa.timestamp("us", "UTC")


def minute(times: pa.ChunkedArray) -> pa.ChunkedArray:
    """The minute of each time."""
    return pc.floor_temporal(plain(times), unit="minute").cast(MICROSECONDS)


def plain(times: pa.ChunkedArray) -> pa.ChunkedArray:
    """The times without their zone, so that Arrow needs no time zone database, which a small image may not have."""
    return times.cast(MICROSECONDS).cast(pa.int64()).cast(pa.timestamp("us"))


def count(condition: pa.ChunkedArray) -> pa.ChunkedArray:
    """1 where the condition holds, 0 where it does not or is null."""
    return pc.fill_null(condition, False).cast(pa.int64())


def add_up(rows: pa.Table, how: Mapping[str, str]) -> pa.Table:
    """A row for each key. ``rows``: key columns, in which null is a value like others, and some of the columns of ``how``. ``how``: by name: sum, min
    or max. Returns the keys, then the columns of ``how``, int64; 0 in those that ``rows`` lacks.
    """
    have = [name for name in how if name in rows.column_names]
    keys = [name for name in rows.column_names if name not in how]
    added = rows.group_by(keys, use_threads=False).aggregate([(name, how[name]) for name in have])
    nothing = pa.repeat(pa.scalar(0, pa.int64()), added.num_rows)
    columns = {name: added[f"{name}_{how[name]}"].cast(pa.int64()) if name in have else nothing for name in how}
    return pa.table({**{name: added[name] for name in keys}, **columns})
