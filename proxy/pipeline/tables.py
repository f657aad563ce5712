"""The tables: which there are, and the writers that turn micro-batches into them. The page to begin with.

    frames             a row for each captured frame
    requests           a row for each Kafka answer whose request is known
    gaps               a row for each gap
    traffic_by_minute  partial sums by minute, listener, principal and direction
    completeness       partial sums by stream, listener, direction and minute of what was seen, and what became of it

Two layouts, one interface (``Writer``, made by ``writers.make_writer``): Parquet files with a manifest on a local disk (``layout``; the default), and
Delta Lake tables wherever Spark can write (``delta``). ``views`` reads both.

Exactly once. Spark logs the offsets of batch N, hands the batch over, and logs its commit; after a crash in between it hands over the same
offsets as the same N again. What was published is published in one piece, under its number: a batch that is there already is passed over.

Nothing waits for a watermark and nothing late is dropped: the tables by minute hold partial sums, and their views add them up.
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
from framegate.proxy.pipeline.manifest import Manifest, ManifestError, read_manifest, reason_for_refusal
from framegate.proxy.pipeline.partial_sums import MICROSECONDS
from framegate.proxy.pipeline.session import open_private

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "PARTITIONS",
    "RULES",
    "TABLE_SCHEMAS",
    "TIME_COLUMNS",
    "BatchError",
    "Progress",
    "TableWriter",
    "Writer",
    "arrow_schema",
    "query_id",
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
# Timestamps that everybody reads, with the statistics by which files are left out. What Spark writes is for this process alone: no marks.
_WRITE_SETTINGS: Final = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}


class BatchError(RuntimeError):
    """A batch that is not the next one: output and checkpoint do not belong together. The message is one line."""


@dataclasses.dataclass(frozen=True, slots=True)
class Progress:
    """What has been published.

    Attributes:
        batch: the last batch; -1 before the first.
        rows: rows of that batch by table.
        total: rows of all batches by table, whatever has expired since.
    """

    batch: int
    rows: dict[str, int]
    total: dict[str, int]

    @classmethod
    def read(cls, output: Path) -> "Progress":
        """What the manifest of ``output`` says; nothing published when there is none."""
        return cls.of(read_manifest(output))

    @classmethod
    def of(cls, manifest: Manifest) -> "Progress":
        """What a manifest says."""
        nothing = dict.fromkeys(TABLE_SCHEMAS, 0)
        return cls(manifest.batch, {**nothing, **manifest.rows}, {**nothing, **manifest.total})

    def write(self, output: Path) -> None:
        """Replace ``_progress.json`` in ``output``, at once or not at all. The manifest is what counts; this is for people, and for ``jq``."""
        fresh = output / f"{PROGRESS}.new"
        with open_private(fresh) as file:
            file.write(json.dumps(dataclasses.asdict(self), sort_keys=True))
        fresh.replace(output / PROGRESS)


class Writer(Protocol):
    """Writes micro-batches; the ``foreachBatch`` function of the job. One at a time on an output.

    Attributes:
        progress: what has been published.
        rows_of: rows by table of the last batches that this object wrote.
        states_of: of these, the rows of the table ``completeness`` by what they say (``completeness.states``), where this writer knows it.
    """

    progress: Progress
    rows_of: dict[int, dict[str, int]]
    states_of: dict[int, dict[str, int]]

    def __call__(self, chunks: "DataFrame", batch: int) -> None:
        """Add a batch of chunk rows to every table, unless it is there already."""

    def close(self) -> None:
        """End what works beside the stream; at most seconds. The tables are whole at any moment, so a job that is killed does without."""


def arrow_schema(columns: str) -> pa.Schema:
    """What Arrow has for columns written as in ``TABLE_SCHEMAS``."""
    return pa.schema([(name, _ARROW[kind]) for name, kind in (column.split() for column in columns.split(", "))])


def query_id(spark: "SparkSession") -> str:
    """The id of the streaming query that runs in this thread, which stays the same as long as its checkpoint; "" outside of one."""
    return spark.sparkContext.getLocalProperty("sql.streaming.queryId") or ""


class TableWriter:
    """The writer of Parquet tables.

    One Spark job for a batch: it writes the frames, and chunks are counted on the way. The other tables come from the Parquet just written, of which
    Arrow reads the narrow columns only (``derived``); gaps and totals cost a second job, in batches that have some.
    """

    def __init__(self, output: Path, *, compact_ms: int = COMPACT_MS, expire_after_s: float | None = None, grace_s: float = GRACE_S) -> None:
        """Take over the output; arguments as of ``writers.make_writer``."""
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
        """Add a batch, unless it is there.

        Raises:
            BatchError: it is another query's, or one that came before the last.
        """
        self._compactor.check()
        state = self._store.manifest
        query = query_id(chunks.sparkSession)
        if state.query and query and state.query != query:
            raise BatchError(f"{self._output} has the batches of another query ({state.query}): {_NOT_ITS_OWN}")
        if batch < state.batch:
            raise BatchError(f"{self._output} has batches up to {state.batch}, and batch {batch} comes again: {_NOT_ITS_OWN}")
        if batch > state.batch:
            self._store.clear_staging()
            states = self._stage(chunks)
            self._publish(batch, query or state.query)
            self.states_of[batch] = states
        self.rows_of[batch] = self.progress.rows
        for kept in (self.rows_of, self.states_of):
            kept.pop(batch - KEPT_RESULTS, None)

    def close(self) -> None:
        """End compaction and let go of the manifest."""
        self._compactor.close()
        self._store.close()

    def _publish(self, batch: int, query: str) -> None:
        self._store.publish(batch, query, TIME_COLUMNS)
        self.progress = Progress.of(self._store.manifest)
        self.progress.write(self._output)
        self._store.clear_staging()

    def _stage(self, chunks: "DataFrame") -> dict[str, int]:
        """Write every table's rows to the staging folder; tables without rows get none. Returns what ``states_of`` has of a batch."""
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
    """A batch's rows on their way to the staging folder: what is added up waits for the end. Attributes: ``states``, once it is closed, as in
    ``completeness.states``.
    """

    def __init__(self, folder: Path) -> None:
        self.states: dict[str, int] = {}
        self._files = {table: HourFiles(folder / table, arrow_schema(columns), TIME_COLUMNS[table]) for table, columns in TABLE_SCHEMAS.items()}
        self._sums: dict[str, list[pa.Table]] = {}

    def add(self, rows: pa.Table, makers: dict[str, derived.Maker]) -> None:
        """Add what each maker makes of the rows to its table."""
        for table, make in makers.items():
            if table in _MERGES:
                self._sums.setdefault(table, []).append(make(rows))
            else:
                self._files[table].write(make(rows))

    def adopt(self, table: str, path: Path) -> None:
        """Take a file that Spark has written."""
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
    """Rows of the table frames in a file, piece by piece, without the payload."""
    with pq.ParquetFile(frames) as file:
        for batch in file.iter_batches(_PIECE_ROWS, columns=list(derived.COLUMNS), use_threads=False):
            yield pa.Table.from_batches([batch])
