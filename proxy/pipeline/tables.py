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
hands over the same offsets as the same N again. The writer commits a batch under its number, and passes over a table that has the number. It commits
to all tables at once, and to ``frames`` behind them.

No row waits for a watermark, and no late row is dropped: the tables by minute hold partial sums, and their views add them up.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from framegate.proxy.pipeline import completeness
from framegate.proxy.pipeline.batch_task import read_results
from framegate.proxy.pipeline.columns import TABLE_SCHEMAS
from framegate.proxy.pipeline.decode import node_of
from framegate.proxy.pipeline.delta import DeltaTables, Maintenance
from framegate.proxy.pipeline.fleet_planner import FleetPlanner
from framegate.proxy.pipeline.frame_contents import read_contents, stream_key
from framegate.proxy.pipeline.kafka_tables import make_tables
from framegate.proxy.pipeline.place import absolute
from framegate.proxy.pipeline.table_files import TableFile
from framegate.proxy.tap.ledger import read_ledger
from framegate.proxy.tap.store import is_url

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEPT_RESULTS: Final = 100
_NOT_ITS_OWN: Final = "the checkpoint is not the one they came from"


class BatchError(RuntimeError):
    """A batch that is not the next one: output and checkpoint do not belong together. The message is one line."""


def query_id(spark: "SparkSession") -> str:
    """The id of the streaming query that runs in this thread; it stays the same as long as its checkpoint. "" outside of a query."""
    return spark.sparkContext.getLocalProperty("sql.streaming.queryId") or ""


class TableWriter:
    """Writes micro-batches; the ``foreachBatch`` function of the job. An output has one at a time.

    One Spark job for each batch: its tasks write the frames, and make what the driver needs for the other tables (``batch_task``). A task needs no
    folder of the driver's if the output is a URL.

    What is known of requests without an answer so far is in a file of its own, one for each batch. A batch is made from the file of the batch before,
    so a batch that comes again is made again as it was.
    """

    def __init__(self, output: Path | str, *, compact_ms: int = 60_000, expire_after_s: float | None = None, source: str | None = None) -> None:
        """Take over the output: a folder, which is made when missing, or a URL in an object store.

        Args:
            compact_ms: small files are looked for this often; 0: never.
            expire_after_s: hours that ended longer ago than this are deleted; None: never.
            source: the log, or the URL of a fleet or a node: its ledgers say which streams have ended; None: that is not known.

        Raises TableError: the tables cannot be opened or written, or are of an earlier format. One line.
        """
        self._tables = DeltaTables(output)
        self._source = source
        self._fleet = FleetPlanner(source, parallelism=1) if source is not None and is_url(source) else None
        self.total = self._tables.rows()  # rows by table: those that were there at the begin, and those that were added since
        self.rows_of: dict[int, dict[str, int]] = {}  # the rows that were added by table, for each of the last batches that this object wrote
        self.states_of: dict[int, dict[str, int]] = {}  # for these batches, the rows of the table ``completeness`` by state (``completeness.states``)
        self._maintenance = Maintenance(self._tables, every_s=compact_ms / 1000, expire_after_s=expire_after_s)
        self._maintenance.start()

    def __call__(self, results: "DataFrame", batch: int) -> None:
        """Add a batch to every table that lacks it. ``results``: the rows of the source with the option ``output``. Raises BatchError: it is another
        query's, or precedes the last one.
        """
        query = query_id(results.sparkSession)
        last = self._tables.batches()
        if query and last.keys() - self._tables.batches(query):
            raise BatchError(f"{self._tables.output} has the batches of another query: {_NOT_ITS_OWN}")
        newest = last.get("frames", -1)
        if batch < newest:
            raise BatchError(f"{self._tables.output} has batches up to {newest}, and batch {batch} comes again: {_NOT_ITS_OWN}")
        rows = dict.fromkeys(TABLE_SCHEMAS, 0)
        if batch > newest:
            with self._tables.lock:
                files, sums = self._write(results, batch)
                lacking = [table for table, some in files.items() if table != "frames" and some and last.get(table, -1) < batch]
                with ThreadPoolExecutor(len(TABLE_SCHEMAS)) as executor:
                    added = executor.map(lambda table: self._tables.commit(table, batch, query, files[table]), lacking)
                    rows |= zip(lacking, added, strict=True)
                rows["frames"] = self._tables.commit("frames", batch, query, files["frames"])
                for table, count in rows.items():
                    self.total[table] += count
            self.states_of[batch] = {} if sums is None else completeness.states(sums)
        self.rows_of[batch] = rows
        for kept in (self.rows_of, self.states_of):
            kept.pop(batch - KEPT_RESULTS, None)

    def close(self) -> None:
        """End the work beside the stream. The tables are whole at any moment, also when a killed job does not call this."""
        self._maintenance.close()

    def _write(self, results: "DataFrame", batch: int) -> tuple[dict[str, list[TableFile]], pa.Table | None]:
        """Write the files of every table. Returns them, and the rows of ``completeness``."""
        frames, contents, made = read_results(results.toArrow(), absolute(self._tables.output))
        made |= self._of_kafka(batch, contents, made.get("gaps"))
        made = {table: rows for table, rows in made.items() if rows.num_rows}
        with ThreadPoolExecutor(len(TABLE_SCHEMAS)) as executor:
            files = dict(zip(made, executor.map(self._tables.write, made, made.values()), strict=True))
        return {**files, "frames": frames}, made.get("completeness")

    def _of_kafka(self, batch: int, decoded: list[bytes], gaps: pa.Table | None) -> dict[str, pa.Table]:
        """The rows of the tables of Kafka's requests; saves what is known of the others."""
        contents, ends = read_contents(decoded)
        known = self._tables.read_state(batch)
        known_ends = self._stream_ends() if known.earlier is None else known.earlier.known_ends
        made, state = make_tables(known.before, contents, ends, gaps, known_ends)
        self._tables.write_state(known, state)
        return made

    def _stream_ends(self) -> dict[str, int | None]:
        """Where each stream of the source ends (``make_tables``)."""
        if self._fleet is not None:
            return {stream_key(node, stream): end for node, ends in self._fleet.stream_ends().items() for stream, end in ends.items()}
        streams = {} if self._source is None else read_ledger(self._source).streams
        return {stream_key(node_of(stream), stream): found.end for stream, found in streams.items()}
