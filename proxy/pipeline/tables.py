"""The writer that turns micro-batches into the tables. Read this module first.

    frames             a row for each captured frame
    requests           a row for each Kafka request
    kafka_partitions   a row for each partition of a Produce request or a Fetch answer
    groups             a row for each request of a group's member
    gaps               a row for each gap
    connections        a row for each connection that has ended
    traffic_by_minute  partial sums by minute, node, listener, principal and direction
    completeness       partial sums by stream, listener, direction and minute: frames that were seen, stored, withheld and lost
    nodes              a row each time that a node in an object store was heard

They are Delta Lake tables (``delta``); ``columns`` describes their columns, and ``views`` reads them with Spark.

Each batch is in the tables exactly once. Spark logs the offsets of batch N, hands the batch over, and logs its commit; after a crash in between it
hands over the same offsets as the same N again. The writer commits a batch under its number, and passes over a table that has the number.

No row waits for a watermark, and no late row is dropped: the tables by minute hold partial sums, and their views add them up.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Observation
from pyspark.sql import functions as f

from framegate.proxy.pipeline import completeness, derived, transforms
from framegate.proxy.pipeline.columns import TABLE_SCHEMAS, TIME_COLUMNS
from framegate.proxy.pipeline.decode import node_of
from framegate.proxy.pipeline.delta import PARTITION_COLUMNS, DeltaTables, Maintenance
from framegate.proxy.pipeline.fleet_planner import FleetPlanner
from framegate.proxy.pipeline.frame_contents import read_contents, stream_key
from framegate.proxy.pipeline.kafka_tables import make_tables
from framegate.proxy.tap.ledger import read_ledger
from framegate.proxy.tap.store import is_url

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

KEPT_RESULTS: Final = 100
_NOT_ITS_OWN: Final = "the checkpoint is not the one they came from"
_MERGES: Final = {"traffic_by_minute": derived.merge_traffic, "completeness": completeness.merge}
_PIECE_ROWS: Final = 1 << 16
# Timestamps that every reader knows, with the statistics by which files are left out; no file _SUCCESS, which nothing reads; and a task writes the
# files of several hours at once, so that it need not sort frames.
_WRITE_SETTINGS: Final = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "spark.sql.maxConcurrentOutputFileWriters": "24",
}


class BatchError(RuntimeError):
    """A batch that is not the next one: output and checkpoint do not belong together. The message is one line."""


def query_id(spark: "SparkSession") -> str:
    """The id of the streaming query that runs in this thread; it stays the same as long as its checkpoint. "" outside of a query."""
    return spark.sparkContext.getLocalProperty("sql.streaming.queryId") or ""


class TableWriter:
    """Writes micro-batches; the ``foreachBatch`` function of the job. An output has one at a time.

    One Spark job for each batch writes the frames, and beside them what Kafka's frames say (``frame_contents``) and ends of connections, and counts
    chunks on the way. Arrow makes the other tables from the Parquet that was just written (``derived``, ``kafka_tables``); of the frames it reads the
    narrow columns only. Gaps and totals cost a second job, in batches that have some.

    What is known of requests without an answer so far is in a file of its own, one for each batch. A batch is made from the file of the batch before,
    so a batch that comes again is made again as it was.
    """

    def __init__(self, output: Path, *, compact_ms: int = 60_000, expire_after_s: float | None = None, source: str | None = None) -> None:
        """Take over the output, a folder on a local disk that is made when missing.

        Args:
            compact_ms: small files are looked for this often; 0: never.
            expire_after_s: hours that ended longer ago than this are deleted; None: never.
            source: the log, or the URL of a fleet or a node: its ledgers say which streams have ended; None: that is not known.

        Raises TableError: the tables cannot be opened, or are of an earlier format. One line; OSError: the output cannot be written to.
        """
        self._tables = DeltaTables(output)
        self._source = source
        self._fleet = FleetPlanner(source, parallelism=1) if source is not None and is_url(source) else None
        self.total = self._tables.rows()  # rows by table: those that were there at the begin, and those that were added since
        self.rows_of: dict[int, dict[str, int]] = {}  # the rows that were added by table, for each of the last batches that this object wrote
        self.states_of: dict[int, dict[str, int]] = {}  # for these batches, the rows of the table ``completeness`` by state (``completeness.states``)
        self._maintenance = Maintenance(self._tables, every_s=compact_ms / 1000, expire_after_s=expire_after_s)
        self._maintenance.start()

    def __call__(self, chunks: "DataFrame", batch: int) -> None:
        """Add a batch of chunk rows to every table that lacks it. Raises BatchError: it is another query's, or precedes the last one."""
        query = query_id(chunks.sparkSession)
        last = self._tables.batches()
        if query and last.keys() - self._tables.batches(query):
            raise BatchError(f"{self._tables.output} has the batches of another query: {_NOT_ITS_OWN}")
        newest = last.get("frames", -1)
        if batch < newest:
            raise BatchError(f"{self._tables.output} has batches up to {newest}, and batch {batch} comes again: {_NOT_ITS_OWN}")
        rows = dict.fromkeys(TABLE_SCHEMAS, 0)
        if batch > newest:
            self._tables.clear_staging()
            sums = self._stage(chunks, batch)
            for table in TABLE_SCHEMAS:  # frames is the last
                if table == "frames" or (last.get(table, -1) < batch and (self._tables.staging / table).exists()):
                    rows[table] = self._tables.commit(table, batch, query)
                    self.total[table] += rows[table]
            self._tables.clear_staging()
            self.states_of[batch] = {} if sums is None else completeness.states(sums)
        self.rows_of[batch] = rows
        for kept in (self.rows_of, self.states_of):
            kept.pop(batch - KEPT_RESULTS, None)

    def close(self) -> None:
        """End the work beside the stream. The tables are whole at any moment, also when a killed job does not call this."""
        self._maintenance.close()

    def _stage(self, chunks: "DataFrame", batch: int) -> pa.Table | None:
        """Write every table's rows to the staging folder. Returns those of ``completeness``."""
        spark = chunks.sparkSession
        for key, value in _WRITE_SETTINGS.items():
            spark.conf.set(key, value)
        seen = Observation()
        counted = chunks.observe(seen, f.count_if(f.expr(transforms.IS_GAP_OR_TOTALS)).alias("gaps_and_totals"))
        self._write_frames(counted)
        parts: dict[str, list[pa.Table]] = {}
        for piece in _pieces(self._tables.staging / "ends", derived.ENDED_COLUMNS):
            parts.setdefault("connections", []).append(derived.connections(piece))
        for piece in _pieces(self._tables.staging / "frames", derived.COLUMNS):
            for table, make in derived.OF_FRAMES.items():
                parts.setdefault(table, []).append(make(piece))
        if seen.get["gaps_and_totals"]:
            stated_rows = transforms.gaps_and_totals(chunks).toArrow()
            for table, make in derived.OF_GAPS_AND_TOTALS.items():
                parts.setdefault(table, []).append(make(stated_rows))
        made = {table: pa.concat_tables(some) for table, some in parts.items()}
        made |= {table: merge(made[table]) for table, merge in _MERGES.items() if table in made}
        made |= self._of_kafka(batch, made.get("gaps"))
        for table, rows in made.items():
            if rows.num_rows:
                self._tables.stage(table, rows)
        return made.get("completeness")

    def _of_kafka(self, batch: int, gaps: pa.Table | None) -> dict[str, pa.Table]:
        """The rows of the tables of Kafka's requests; saves what is known of the others."""
        contents, ends = read_contents(_contents(self._tables.staging / "contents"))
        made, state = make_tables(self._tables.read_state(batch), contents, ends, gaps, self._stream_ends())
        self._tables.write_state(batch, state)
        return made

    def _stream_ends(self) -> dict[str, int | None]:
        """Where each stream of the source ends (``make_tables``)."""
        if self._fleet is not None:
            return {stream_key(node, stream): end for node, ends in self._fleet.stream_ends().items() for stream, end in ends.items()}
        streams = {} if self._source is None else read_ledger(self._source).streams
        return {stream_key(node_of(stream), stream): found.end for stream, found in streams.items()}

    def _write_frames(self, chunks: "DataFrame") -> None:
        """Have Spark write the frames, the contents of Kafka's, and the ends of connections to the staging folder."""
        hour = transforms.hour_columns(TIME_COLUMNS["frames"])
        rows = transforms.frames_and_contents(chunks, **hour)
        written = self._tables.staging / "written"
        rows.write.partitionBy("part", *PARTITION_COLUMNS).parquet(str(written))
        for part in ("frames", "contents", "ends"):
            if (written / f"part={part}").exists():
                (written / f"part={part}").rename(self._tables.staging / part)


def _contents(folder: Path) -> "Iterator[bytes]":
    """The values of the column ``decoded`` that were written."""
    for path in sorted(folder.glob("*/*/*.parquet")):
        yield from pq.ParquetFile(path).read(columns=["payload"])["payload"].to_pylist()


def _pieces(folder: Path, columns: "Sequence[str]") -> "Iterator[pa.Table]":
    """Some columns of the rows that were written, in pieces."""
    for path in sorted(folder.glob("*/*/*.parquet")):
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(_PIECE_ROWS, columns=list(columns), use_threads=False):
                yield pa.Table.from_batches([batch])
