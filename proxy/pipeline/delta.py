"""The tables as Delta Lake tables, wherever Spark can write: ``<output>/<table>``, partitioned by date and hour.

Each batch is in a table exactly once: its append names the streaming query and the batch (``txnAppId``, ``txnVersion``), and Delta passes over a
batch that it has. The tables of a batch are committed one after the other: after a job is killed in between, some tables lack the batch until the
replay. Readers see each version of a table whole.

Compaction is OPTIMIZE, expiry is a DELETE of whole partitions, and VACUUM, once an hour, removes old files after the grace time: all in a thread of
the job.

Delta Lake follows Spark release by release: ``PACKAGES`` has the pairs that work, and another Spark is refused before anything starts.
"""

import functools
import importlib.metadata
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import DataFrame

from framegate.proxy.pipeline import derived, tables, transforms
from framegate.proxy.pipeline.compaction import TARGET_BYTES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["PACKAGES", "DeltaMissingError", "DeltaWriter", "delta_settings"]

# The Delta Lake that was tried with a release of Spark. With 4.3 none works yet: 4.4.0 fails in LogicalRDD (NoSuchMethodError).
PACKAGES: Final = {"4.2": "io.delta:delta-spark_4.2_2.13:4.4.0"}
_EXTENSION: Final = "io.delta.sql.DeltaSparkSessionExtension"
_CATALOG: Final = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
_HOUR_S: Final = 3600
_STOP_S: Final = 10.0


class DeltaMissingError(ValueError):
    """Delta Lake does not work with this Spark or session. The message is one line."""


def delta_settings(spark_version: str | None = None) -> dict[str, str]:
    """The settings of a session with Delta Lake. Spark takes its jars from Maven Central, or from ``spark.jars`` if the user names them there.

    Raises:
        DeltaMissingError: no Delta Lake works with this version of PySpark; the installed one when None.
    """
    version = spark_version or importlib.metadata.version("pyspark")
    release = ".".join(version.split(".")[:2])
    if release not in PACKAGES:
        fits = " or ".join(f"Spark {known} (pip install 'pyspark=={known}.*') with {package}" for known, package in PACKAGES.items())
        raise DeltaMissingError(f"--format delta does not work with Spark {version}: it needs {fits}")
    return {
        "spark.jars.packages": PACKAGES[release],
        "spark.sql.extensions": _EXTENSION,
        "spark.sql.catalog.spark_catalog": _CATALOG,
        "spark.databricks.delta.snapshotPartitions": "2",  # tasks for each look at a table's log: 50 are for logs of millions of files
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",  # tasks of VACUUM's listing: 10,000 take minutes
        "spark.databricks.delta.optimize.minFileSize": str(TARGET_BYTES // 4),  # what has come to this is not written again with each pass
        "spark.databricks.delta.optimize.maxFileSize": str(TARGET_BYTES),
    }


class DeltaWriter:
    """The writer of Delta tables; a ``tables.Writer``.

    A batch reads its source twice, for the frames with their payload and for the tables that are made without it, and a third time when it has gaps
    or totals.
    """

    def __init__(
        self,
        output: str,
        *,
        compact_ms: int = tables.COMPACT_MS,
        expire_after_s: float | None = None,
        grace_s: float = tables.GRACE_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Read and write nothing yet; arguments as of ``tables.TableWriter``, but the output is any path of Spark's (``s3a://…``, ``hdfs://…``),
        too.
        """
        nothing = dict.fromkeys(tables.TABLE_SCHEMAS, 0)
        self.progress = tables.Progress(-1, nothing, dict(nothing))
        self.rows_of: dict[int, dict[str, int]] = {}
        self.states_of: dict[int, dict[str, int]] = {}  # none: Spark would need another job to count them
        self._output = output.rstrip("/")
        self._compact_s = compact_ms / 1000
        self._expire_after_s = expire_after_s
        self._grace_h = grace_s / _HOUR_S
        self._clock = clock
        self._versions: dict[str, int] = {}
        self._vacuumed = -float(_HOUR_S)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __call__(self, chunks: "DataFrame", batch: int) -> None:
        """Add a batch to every table that lacks it. Raises DeltaMissingError: the session has no Delta Lake."""
        spark = chunks.sparkSession
        if self.progress.batch < 0:
            self._begin(spark)
        rows = self._append_all(spark, chunks, batch)
        total = {table: self.progress.total[table] + count for table, count in rows.items()}
        self.progress = tables.Progress(batch, rows, total)
        self.rows_of[batch] = rows
        self.rows_of.pop(batch - tables.KEPT_RESULTS, None)

    def close(self) -> None:
        """End compaction after its current statement. The end of the session breaks that off without harm."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_STOP_S)

    def path(self, table: str) -> str:
        """The path of a table."""
        return f"{self._output}/{table}"

    def _begin(self, spark: "SparkSession") -> None:
        """Make the tables, count their rows, start compaction."""
        if spark.conf.get("spark.sql.catalog.spark_catalog", "") != _CATALOG:
            raise DeltaMissingError(f"the session has no Delta Lake: spark.sql.catalog.spark_catalog is not {_CATALOG}")
        total = {}
        for table, columns in tables.TABLE_SCHEMAS.items():
            spark.sql(f"CREATE TABLE IF NOT EXISTS {self._name(table)} ({columns}, {tables.PARTITIONS}) USING delta PARTITIONED BY (date, hour)")
            self._versions[table] = int(self._history(spark, table)[0]["version"])
            total[table] = int(spark.sql(f"SELECT count(*) FROM {self._name(table)}").collect()[0][0])
        self.progress = tables.Progress(-1, dict.fromkeys(total, 0), total)
        if self._compact_s > 0:
            self._thread = threading.Thread(target=self._run, args=(spark,), name="compaction", daemon=True)
            self._thread.start()

    def _name(self, table: str) -> str:
        return f"delta.`{self.path(table)}`"

    def _append_all(self, spark: "SparkSession", chunks: "DataFrame", batch: int) -> dict[str, int]:
        application = tables.query_id(spark) or "framegate"
        rows = dict.fromkeys(tables.TABLE_SCHEMAS, 0)
        frames = transforms.frames(chunks)
        rows["frames"] = self._append("frames", frames, application, batch)
        kept = frames.drop("payload").persist()
        stated = transforms.gaps_and_totals(chunks).persist()
        try:
            parts = [(table, kept, make) for table, make in derived.OF_FRAMES.items()]
            if stated.head(1):
                parts += [(table, stated, make) for table, make in derived.OF_GAPS_AND_TOTALS.items()]
            for table in tables.TABLE_SCHEMAS:
                made = [source.mapInArrow(derived.on_batches(make), tables.TABLE_SCHEMAS[table]) for name, source, make in parts if name == table]
                if made:
                    rows[table] = self._append(table, functools.reduce(DataFrame.unionByName, made).coalesce(1), application, batch)
        finally:
            kept.unpersist()
            stated.unpersist()
        return rows

    def _append(self, table: str, rows: "DataFrame", application: str, batch: int) -> int:
        """Append to a table, unless it has the batch. Returns the number of rows that were added."""
        spark = rows.sparkSession
        hour = transforms.hour_columns(tables.TIME_COLUMNS[table])
        split = rows.selectExpr("*", f"{hour['date']} as date", f"cast({hour['hour']} as int) as hour")
        options = {"txnAppId": f"framegate/{application}", "txnVersion": str(batch), "mergeSchema": "true"}  # columns that an older version had not
        split.write.format("delta").mode("append").options(**options).save(self.path(table))
        fresh = [step for step in self._history(spark, table) if step["version"] > self._versions[table]]
        self._versions[table] = max([self._versions[table], *(int(step["version"]) for step in fresh)])
        return sum(int(step["operationMetrics"].get("numOutputRows", 0)) for step in fresh if step["operation"] == "WRITE")

    def _history(self, spark: "SparkSession", table: str) -> list[Any]:
        """The last changes of a table, the last first; compaction makes a few between two batches."""
        return spark.sql(f"DESCRIBE HISTORY {self._name(table)} LIMIT 20").collect()

    def compact(self, spark: "SparkSession") -> None:
        """One pass over all tables: expire, OPTIMIZE; once an hour VACUUM, which lists all files."""
        now = self._clock()
        vacuum = self._grace_h > 0 and now - self._vacuumed >= _HOUR_S
        if vacuum:
            self._vacuumed = now
        for table in tables.TABLE_SCHEMAS:
            if self._stop.is_set():
                return
            if self._expire_after_s is not None:
                end = int(now - self._expire_after_s) // _HOUR_S  # hours of the epoch before this one have expired
                spark.sql(f"DELETE FROM {self._name(table)} WHERE date < {_date(end)} OR (date = {_date(end)} AND hour < {end % 24})")
            spark.sql(f"OPTIMIZE {self._name(table)}")
            if vacuum:
                spark.sql(f"VACUUM {self._name(table)} RETAIN {self._grace_h:.4f} HOURS")

    def _run(self, spark: "SparkSession") -> None:
        session = spark.newSession()
        session.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
        while not self._stop.wait(self._compact_s):
            try:
                self.compact(session)
            except Exception as error:
                if not self._stop.is_set():
                    sys.stderr.write(f"framegate pipeline: compaction waits: {str(error).splitlines()[0]}\n")


def _date(hours: int) -> str:
    """SQL for the date of an hour of the epoch."""
    return f"date_from_unix_date({hours // 24})"
