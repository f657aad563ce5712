"""Reads the tables with Spark, without Delta Lake's jar: delta-rs reads the log, Spark the files.

A table is opened as the list of files that it has at that moment; no folder is listed. Files that leave the table meanwhile stay on the disk for 15
minutes. After that, and to see later batches, open the table again.

``since`` and ``until`` take only files with rows of that time, before Spark sees any. With a predicate on ``date`` and ``hour`` (partition columns,
UTC) Spark leaves files out while it plans. With one on ``capture_time`` or ``minute`` alone it reads the footer of every file, and then only the row
groups with such times; a day has some hundred footers after compaction. ``date = '2026-11-22' AND hour = 7 AND capture_time >= …`` is best.

Of a URL, tasks read the files themselves, with the credentials of their environment, because Spark has no client for object stores without Hadoop's
jars. They read all columns of a file: give ``since`` and ``until``, or ask with ``framegate pipeline sql``, which reads what a query needs.

``python -m framegate.proxy.pipeline.views DIR`` answers questions for callers that have no Spark of their own: it reads a JSON object of names and
SELECT statements from standard input, and writes one of names and rows, each an object, to standard output.
"""

import contextlib
import datetime
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as f

from framegate.proxy.pipeline.columns import PARTITIONS, TABLE_SCHEMAS, TIME_COLUMNS, arrow_schema
from framegate.proxy.pipeline.delta import batch_of, files_of, open_table
from framegate.proxy.pipeline.place import place_of
from framegate.proxy.pipeline.queries import PARTS, queries
from framegate.proxy.pipeline.session import local_session
from framegate.proxy.tap.store import is_url

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_LISTING: Final = "spark.sql.sources.parallelPartitionDiscovery.threshold"


def register_views(
    spark: "SparkSession", output: str | Path, *, since: datetime.datetime | None = None, until: datetime.datetime | None = None
) -> None:
    """Make the tables of an output known to a session as views, all as of the same batch; call again to see later batches.

    The tables have their names, but for ``traffic_by_minute_parts``, ``completeness_parts`` and ``nodes_parts``. The views are those of ``queries``:
    ``traffic_by_minute`` has one row for a minute, node, listener, principal and direction; ``completeness`` one for a stream, listener, direction
    and minute, with its ``state``; ``minutes`` one for a minute of the fleet: complete, lost, or open, because nodes were not heard since; ``nodes``
    one for a node in an object store; ``requests_by_api`` counts requests and gives their latency by listener, API and version.

    ``since``, ``until``: rows of ``[since, until)`` only, with a time zone. ``completeness`` has all minutes nevertheless: its judgement needs them.

    Raises TableError: the log of a table cannot be read; ValueError: a time without a zone.
    """
    newest = batch_of(output)
    for table in TABLE_SCHEMAS:
        bounds = (None, None) if table in ("completeness", "nodes") else (since, until)
        _open(spark, output, table, *bounds, newest).createOrReplaceTempView(PARTS.get(table, table))
    for name, query in queries("spark").items():
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {name} AS {query}")


def read_table(
    spark: "SparkSession", output: str | Path, table: str, *, since: datetime.datetime | None = None, until: datetime.datetime | None = None
) -> "DataFrame":
    """The rows of one table, with the columns ``date`` and ``hour``, as of now; arguments and errors as of ``register_views``."""
    return _open(spark, output, table, since, until)


def _open(
    spark: "SparkSession",
    output: str | Path,
    name: str,
    since: datetime.datetime | None,
    until: datetime.datetime | None,
    newest: int | None = None,
) -> "DataFrame":
    """``newest``: the last batch to read; None: all."""
    columns = f"{TABLE_SCHEMAS[name]}, {PARTITIONS}"
    for bound in (since, until):
        if bound is not None and bound.tzinfo is None:
            raise ValueError(f"{bound.isoformat()} has no time zone")
    table = open_table(output, name, newest)
    paths = [] if table is None else files_of(table, TIME_COLUMNS[name], since, until)
    if not paths:
        pairs = (column.split() for column in columns.split(","))
        return spark.range(0).selectExpr(*(f"cast(null as {kind}) as {name}" for name, kind in pairs))
    address = place_of(output).address(name)
    if is_url(address):
        rows = (
            spark.createDataFrame([(path,) for path in paths], "path string").repartition(len(paths)).mapInArrow(_FileReader(address, name), columns)
        )
    else:
        with _listed_here(spark, len(paths)):
            rows = spark.read.schema(columns).option("basePath", address).parquet(*(f"{address}/{path}" for path in paths))
    time = f.col(TIME_COLUMNS[name])
    rows = rows if since is None else rows.where(time >= since)
    return rows if until is None else rows.where(time < until)


class _FileReader:
    """The function of tasks that read files of a table from a store, by ranges."""

    def __init__(self, address: str, name: str) -> None:
        self._address = address
        self._name = name

    def __call__(self, batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa
        import pyarrow.parquet as pq
        from deltalake.fs import DeltaStorageHandler
        from pyarrow.fs import PyFileSystem

        store, schema = PyFileSystem(DeltaStorageHandler(self._address)), arrow_schema(self._name).remove_metadata()
        for path in (path for batch in batches for path in batch["path"].to_pylist()):
            date, hour = (part.partition("=")[2] for part in path.split("/")[:2])
            parts = {"date": datetime.date.fromisoformat(date), "hour": int(hour)}
            with store.open_input_file(path) as file, pq.ParquetFile(file) as rows:
                for batch in rows.iter_batches():
                    known = {field.name: pa.repeat(pa.scalar(parts.get(field.name), field.type), batch.num_rows) for field in schema}
                    columns = {**known, **{name: batch[name] for name in batch.schema.names if name in known}}
                    yield pa.RecordBatch.from_pydict(columns).cast(schema)


@contextlib.contextmanager
def _listed_here(spark: "SparkSession", count: int) -> Iterator[None]:
    """Within the block Spark lists up to ``count`` paths in the driver; a job for that takes longer."""
    before = spark.conf.get(_LISTING)
    spark.conf.set(_LISTING, str(count + 1))
    try:
        yield
    finally:
        spark.conf.set(_LISTING, str(before))


def ask(spark: "SparkSession", output: str | Path, statements: Mapping[str, str]) -> dict[str, list[dict[str, Any]]]:
    """The rows of each statement, SQL by name. Results must be small: they come to the driver."""
    register_views(spark, output)
    return {name: [row.asDict() for row in spark.sql(statement).collect()] for name, statement in statements.items()}


def main(arguments: list[str]) -> int:
    """Answer the statements of standard input."""
    statements = json.load(sys.stdin)
    with local_session("framegate query") as spark:
        print(json.dumps(ask(spark, arguments[0], statements), default=str))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
