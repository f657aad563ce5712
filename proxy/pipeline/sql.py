"""Asks the tables in SQL without Spark: delta-rs opens them, and its DataFusion, which comes with it, runs the statement.

The tables have their names, as of the same batch. ``traffic_by_minute``, ``completeness``, ``nodes``, ``minutes`` and ``requests_by_api`` are the
views of ``queries``.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pyarrow as pa
from deltalake import QueryBuilder
from deltalake.exceptions import DeltaError

from framegate.proxy.pipeline.columns import PARTITIONS, TABLE_SCHEMAS
from framegate.proxy.pipeline.delta import TableError, batch_of, open_table
from framegate.proxy.pipeline.queries import PARTS, queries

_QUERY: Final = re.compile(r"(\s|--[^\n]*\n|/\*.*?\*/)*(select|with|explain|values|\()", re.IGNORECASE | re.DOTALL)


class QueryError(ValueError):
    """A statement that is no query, or cannot be run. The message is one line."""


def open_tables(output: str | Path) -> Callable[[str], pa.Table]:
    """A function that runs a query on the tables of an output as they are now, and gives its rows. Raises TableError: there are none, or the log of
    one cannot be read. The function raises QueryError.
    """
    newest = batch_of(output)
    builder = QueryBuilder()
    for name in TABLE_SCHEMAS:
        table = open_table(output, name, newest)
        if table is not None:
            builder.register(PARTS.get(name, name), table)
        elif newest >= 0:  # of an earlier version, which did not have it
            columns = (column.split() for column in f"{TABLE_SCHEMAS[name]}, {PARTITIONS}".split(", "))
            nothing = ", ".join(f"CAST(NULL AS {kind}) AS {column}" for column, kind in columns)
            _run(builder, f"CREATE VIEW {PARTS.get(name, name)} AS SELECT {nothing} WHERE FALSE")
        else:
            raise TableError(f"{output} has no table {name}; framegate pipeline run writes the tables")

    def ask(statement: str) -> pa.Table:
        if not _QUERY.match(statement):
            raise QueryError("not a query: write SELECT …")
        return _run(builder, statement)

    for name, query in queries("datafusion").items():
        _run(builder, f"CREATE VIEW {name} AS {query}")
    return ask


def _run(builder: QueryBuilder, statement: str) -> pa.Table:
    try:
        return pa.table(builder.execute(statement))
    except (DeltaError, OSError) as error:
        text = " ".join(str(error).split())
        unknown = re.search(r"table 'datafusion\.public\.(.+)' not found", text)
        known = ", ".join(sorted({*TABLE_SCHEMAS, *queries("datafusion")}))
        raise QueryError(f"no table {unknown[1]}: there are {known}" if unknown else text) from error
