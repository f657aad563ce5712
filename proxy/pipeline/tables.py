"""The tables, and the writers that turn micro-batches into them. Read this module first.

    frames             a row for each captured frame
    requests           a row for each Kafka answer whose request is known
    gaps               a row for each gap
    traffic_by_minute  partial sums by minute, listener, principal and direction
    completeness       partial sums by stream, listener, direction and minute: frames that were seen, stored, withheld and lost

There are two layouts with one interface (``Writer``): Parquet files with a manifest on a local disk (``layout``; the
default), and Delta Lake tables wherever Spark can write (``delta``). ``views`` reads both.

Each batch is in the tables exactly once. Spark logs the offsets of batch N, hands the batch over, and logs its commit; after a crash in between it
hands over the same offsets as the same N again. The writer publishes a batch in one piece, under its number, and passes over a number that it has.

No row waits for a watermark, and no late row is dropped: the tables by minute hold partial sums, and their views add them up.
"""

import contextlib
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Observation
from pyspark.sql import functions as f

from framegate.proxy.pipeline import completeness, derived, transforms
from framegate.proxy.pipeline.compaction import Compactor, Rules
from framegate.proxy.pipeline.layout import HourFiles, ParquetStore
from framegate.proxy.pipeline.manifest import Manifest, ManifestError, reason_for_refusal
from framegate.proxy.pipeline.partial_sums import MICROSECONDS
from framegate.proxy.pipeline.session import open_private

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    *("PARTITIONS", "RULES", "TABLE_SCHEMAS", "TIME_COLUMNS"),
    *("BatchError", "Progress", "TableWriter", "Writer", "arrow_schema", "query_id"),
]

PROGRESS: Final = "_progress.json"
KEPT_RESULTS: Final = 100
COMPACT_MS: Final = 60_000
GRACE_S: Final = 900.0
_NOT_ITS_OWN: Final = "the checkpoint is not the one they came from"
PARTITIONS: Final = "date date, hour int"
_PLACE: Final = (
    "stream string, offset bigint, chunk_index int, capture_time timestamp, connection string, connection_id bigint, listener string, "
    "principal string, peer string, rule string, protocol string, framing string, direction string"
)
# Columns as the files have them; Spark adds date and hour, from the folders' names (``PARTITIONS``).
TABLE_SCHEMAS: Final = {
    "frames": f"{_PLACE}, capture string, reason string, transfer_us bigint, frame_index int, sequence bigint, size int, kept_size int, "
    "payload binary, api_key int, api_version int, latency_us int, request_size int, correlation_id int",
    "traffic_by_minute": "minute timestamp, listener string, principal string, direction string, frames bigint, bytes bigint, "
    "cut_bytes bigint, lost_frames bigint, lost_bytes bigint",
    "requests": f"{_PLACE}, frame_index int, sequence bigint, api_key int, api_version int, correlation_id int, request_time timestamp, "
    "request_size int, answer_size int, latency_us int, transfer_us bigint",
    "gaps": f"{_PLACE}, first_sequence bigint, lost_from timestamp, lost_until timestamp, lost_frames bigint, lost_bytes bigint, "
    "reason string, certainty string",
    "completeness": completeness.SCHEMA,
}
TIME_COLUMNS: Final = {
    "frames": "capture_time",
    "traffic_by_minute": "minute",
    "requests": "capture_time",
    "gaps": "capture_time",
    "completeness": "minute",
}
_MERGES: Final = {"traffic_by_minute": derived.merge_traffic, "completeness": completeness.merge}
RULES: Final = {table: Rules(column, _MERGES.get(table), ("payload",)) for table, column in TIME_COLUMNS.items()}
_ARROW: Final = {"string": pa.string(), "bigint": pa.int64(), "int": pa.int32(), "binary": pa.binary(), "timestamp": MICROSECONDS}
_PIECE_ROWS: Final = 1 << 16
# Timestamps that every reader knows, with the statistics by which files are left out; and no file _SUCCESS, which nothing reads.
_WRITE_SETTINGS: Final = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}


class BatchError(RuntimeError):
    """A batch that is not the next one: output and checkpoint do not belong together. The message is one line."""


@dataclasses.dataclass(frozen=True, slots=True)
class Progress:
    """The last published batch (-1 before the first), its rows by table, and the rows of all batches, expired ones included."""

    batch: int
    rows: dict[str, int]
    total: dict[str, int]

    @classmethod
    def of(cls, manifest: Manifest) -> "Progress":
        """The progress that a manifest states."""
        nothing = dict.fromkeys(TABLE_SCHEMAS, 0)
        return cls(manifest.batch, {**nothing, **manifest.rows}, {**nothing, **manifest.total})

    def write(self, output: Path) -> None:
        """Replace ``_progress.json`` in ``output`` atomically. The file is for people and for ``jq``; the manifest decides."""
        fresh = output / f"{PROGRESS}.new"
        with open_private(fresh) as file:
            file.write(json.dumps(dataclasses.asdict(self), sort_keys=True))
        fresh.replace(output / PROGRESS)


class Writer(Protocol):
    """Writes micro-batches; the ``foreachBatch`` function of the job. An output has one at a time.

    Attributes:
        rows_of: the rows by table, for each of the last batches that this object wrote.
        states_of: for these batches, the rows of the table ``completeness`` by state (``completeness.states``), where this writer knows them.
    """

    progress: Progress
    rows_of: dict[int, dict[str, int]]
    states_of: dict[int, dict[str, int]]

    def __call__(self, chunks: "DataFrame", batch: int) -> None:
        """Add a batch of chunk rows to every table, unless it is there already."""

    def close(self) -> None:
        """End the work beside the stream, within seconds. The tables are whole at any moment, also when a killed job does not call this."""


def arrow_schema(columns: str) -> pa.Schema:
    """The Arrow schema of columns written as in ``TABLE_SCHEMAS``."""
    return pa.schema([(name, _ARROW[kind]) for name, kind in (column.split() for column in columns.split(", "))])


def query_id(spark: "SparkSession") -> str:
    """The id of the streaming query that runs in this thread; it stays the same as long as its checkpoint. "" outside of a query."""
    return spark.sparkContext.getLocalProperty("sql.streaming.queryId") or ""


class TableWriter:
    """The writer of Parquet tables.

    One Spark job for each batch writes the frames, and counts chunks on the way. Arrow makes the other tables from the Parquet that was just written;
    it reads the narrow columns only (``derived``). Gaps and totals cost a second job, in batches that have some.
    """

    def __init__(self, output: Path, *, compact_ms: int = COMPACT_MS, expire_after_s: float | None = None, grace_s: float = GRACE_S) -> None:
        """Take over the output, a folder on a local disk that is made when missing.

        Args:
            compact_ms: small files are looked for this often; 0: never.
            expire_after_s: hours that ended longer ago than this are deleted; None: never.
            grace_s: a file that is in no table any more stays on the disk this long, for readers that began before.

        Raises:
            ManifestError: the output is damaged, or of an earlier layout. One line.
            OSError: it cannot be written to.
        """
        refused = reason_for_refusal(output)
        if refused:
            raise ManifestError(refused)
        self._output = output
        self._store = ParquetStore(output, TABLE_SCHEMAS)
        self._compactor = Compactor(self._store, RULES, every_s=compact_ms / 1000, expire_after_s=expire_after_s, grace_s=grace_s)
        for table, columns in TABLE_SCHEMAS.items():
            self._store.show_columns(table, arrow_schema(columns))
        self.progress = Progress.of(self._store.manifest)
        self.progress.write(output)
        self.rows_of: dict[int, dict[str, int]] = {}
        self.states_of: dict[int, dict[str, int]] = {}
        self._compactor.start()

    def __call__(self, chunks: "DataFrame", batch: int) -> None:
        """Add a batch, unless it is there. Raises BatchError: it is another query's, or precedes the last one."""
        self._compactor.check()
        state = self._store.manifest
        query = query_id(chunks.sparkSession)
        if state.query and query and state.query != query:
            raise BatchError(f"{self._output} has the batches of another query ({state.query}): {_NOT_ITS_OWN}")
        if batch < state.batch:
            raise BatchError(f"{self._output} has batches up to {state.batch}, and batch {batch} comes again: {_NOT_ITS_OWN}")
        if batch > state.batch:
            self._store.clear_staging()
            self.states_of[batch] = self._stage(chunks)
            self._store.publish(batch, query or state.query, TIME_COLUMNS)
            self.progress = Progress.of(self._store.manifest)
            self.progress.write(self._output)
            self._store.clear_staging()
        self.rows_of[batch] = self.progress.rows
        for kept in (self.rows_of, self.states_of):
            kept.pop(batch - KEPT_RESULTS, None)

    def close(self) -> None:
        """End compaction and let go of the manifest."""
        self._compactor.close()
        self._store.close()

    def _stage(self, chunks: "DataFrame") -> dict[str, int]:
        """Write every table's rows to the staging folder. Returns the batch's entry of ``states_of``."""
        spark = chunks.sparkSession
        for key, value in _WRITE_SETTINGS.items():
            spark.conf.set(key, value)
        seen = Observation()
        stated = f.count_if(f.col("kind").isin("gap", "totals"))
        counted = chunks.observe(seen, stated.alias("gaps_and_totals"), f.count("request_key").alias("answers"))
        written = self._write_frames(counted)
        with contextlib.closing(_Staging(self._store.staging)) as staging:
            makers = {table: make for table, make in derived.OF_FRAMES.items() if table != "requests" or seen.get["answers"]}
            for path in sorted(written.glob("*.parquet")):
                for rows in _pieces(path):
                    staging.add(rows, makers)
                staging.adopt("frames", path)
            if seen.get["gaps_and_totals"]:
                staging.add(transforms.gaps_and_totals(chunks).toArrow(), derived.OF_GAPS_AND_TOTALS)
        return staging.states

    def _write_frames(self, chunks: "DataFrame") -> Path:
        """Have Spark write the frames; returns the folder of its files."""
        folder = self._store.staging / "_spark"
        transforms.frames(chunks).write.parquet(str(folder))
        return folder


class _Staging:
    """Writes a batch's rows to the staging folder; partial sums when it is closed. Then ``states`` is as in ``completeness.states``."""

    def __init__(self, folder: Path) -> None:
        self.states: dict[str, int] = {}
        self._files = {table: HourFiles(folder / table, arrow_schema(columns), TIME_COLUMNS[table]) for table, columns in TABLE_SCHEMAS.items()}
        self._sums: dict[str, list[pa.Table]] = {}

    def add(self, rows: pa.Table, makers: dict[str, derived.Maker]) -> None:
        """Give the rows to each maker, and add the result to its table."""
        for table, make in makers.items():
            if table in _MERGES:
                self._sums.setdefault(table, []).append(make(rows))
            else:
                self._files[table].write(make(rows))

    def adopt(self, table: str, path: Path) -> None:
        self._files[table].adopt(path)

    def close(self) -> None:
        """Write the sums, finish the files."""
        for table, parts in self._sums.items():
            sums = _MERGES[table](pa.concat_tables(parts))
            self._files[table].write(sums)
            if table == "completeness":
                self.states = completeness.states(sums)
        for files in self._files.values():
            files.close()


def _pieces(frames: Path) -> "Iterator[pa.Table]":
    """The rows of a file of the table frames, in pieces, without the payload."""
    with pq.ParquetFile(frames) as file:
        for batch in file.iter_batches(_PIECE_ROWS, columns=list(derived.COLUMNS), use_threads=False):
            yield pa.Table.from_batches([batch])
