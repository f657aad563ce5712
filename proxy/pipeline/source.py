"""The Python Data Source ``framegate``: the tap's log as a table of chunks, for streams and for batches.

Spark makes one reader in a planner process beside the driver, which plans offsets and partitions as long as the query lives, and a second one that
it pickles into every task. So a reader holds options and a schema, and nothing that is open; a partition holds what its task needs; numpy and
pyarrow are imported where rows are read.

Options; any other is refused, by batches and streams alike:

- ``path`` (or ``load(path)``): the tap's directory; or the URL of a fleet, or of a node, in an object store (``proxy.tap.store``): segments are read
  where the task runs, by ranges. Each process takes its credentials from its environment.
- ``rows``: chunks (default, ``schema.CHUNK_SCHEMA``), or frames: the columns of the table ``frames`` (``columns``), a row for each frame; what is no
  frame has no row.
- ``startingOffsets``: earliest (default), latest, or a time (RFC 3339): from the first block of each stream with something captured then or later.
  For a batch (not latest), and for a query without a checkpoint.
- ``maxBytesPerTrigger``: bytes of log in a batch of a stream, at least one block of each stream that lags; of a store at least one segment. Default:
  unlimited.
- ``failOnDataLoss``: true (default): the query fails when data that it was to read is gone or damaged, or when the ledger cannot tell that; false:
  the query goes on, and each range that it skips is rows of kind gap, reason vanished or damaged, certainty unknown, but with ``rows`` = frames no
  row. A store that does not answer fails the query in any case.
- ``node``, ``listener``, ``direction``: only rows of these, separated by commas. Gaps that may be about any listener stay.
- ``since``, ``until``: only rows captured from the one time on and before the other (RFC 3339). What these five leave out is not read, where the
  ledger, the list of segments or the headers of blocks tell. Batches take the same from ``where``, on these columns and ``capture_time``, if
  ``spark.sql.python.filterPushdown.enabled`` is set.
- ``payload``: full (default), none, or a number of bytes of each frame's body: the rest is cut before Spark sees it; sizes stay those on the wire.
- ``consumer``: the name under which the reader tells retention its position. Default: it does not. ``owner``: who has that name. If retention
  cannot be told, standard error says so once, and the query goes on. Not for a store: nothing is written to it.
- ``parallelism``: the number of partitions to aim at. Default: the processors of the driver's machine.
- ``maxPartitionBytes``: of log in a partition. Default: 256m.
- ``output``: of the job alone, the place of its tables. Tasks write the frames into files there, and the rows are what its driver needs
  (``batch_task``).
"""

import ctypes
import dataclasses
import functools
import gc
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from framegate.proxy.pipeline.fleet_planner import FleetPlanner, Heard
from framegate.proxy.pipeline.planner import Part, Planner
from framegate.proxy.pipeline.position import FleetPosition, Position, PositionError
from framegate.proxy.pipeline.schema import CHUNK_SCHEMA, CHUNK_TYPES, JOB_SCHEMA, RESULT_SCHEMA, check_projection
from framegate.proxy.pipeline.settings import OptionError, SourceOptions
from framegate.proxy.pipeline.wanted import Wanted
from framegate.proxy.tap.store import is_url, package_fault

if TYPE_CHECKING:
    import pyarrow as pa

_MMAP_THRESHOLD: Final = -3  # M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of mallopt(3)
_TRIM_THRESHOLD: Final = -1
_PUSHING: str = "pyspark.sql.worker.data_source_pushdown_filters"


class SlicePartition(InputPartition):
    """Ranges of segments that one task reads, in order, and the losses between them."""

    def __init__(self, parts: Sequence[Part | Heard]) -> None:
        self.parts = parts


class FramegateDataSource(DataSource):
    """``spark.readStream.format("framegate").load(directory)``, ``spark.read`` likewise."""

    @classmethod
    def name(cls) -> str:
        return "framegate"

    def schema(self) -> StructType | str:
        if "rows" in self.options and SourceOptions.parse(self.options).frames:
            from framegate.proxy.pipeline.columns import TABLE_SCHEMAS

            return TABLE_SCHEMAS["frames"]
        return RESULT_SCHEMA if "output" in self.options else CHUNK_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Spark refuses a reader with ``pushFilters`` where pushdown is off, and says which only by the module that it runs."""
        kind = PushingReader if _PUSHING in sys.modules else BatchReader
        return kind(*self._asked(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return StreamReader(*self._asked(schema))

    def _asked(self, schema: StructType) -> tuple[SourceOptions, StructType]:
        """The options, and the columns of the rows that are read; for the job, of the chunks."""
        options = SourceOptions.parse(self.options)
        if options.output:
            return options, JOB_SCHEMA
        if options.frames:
            from framegate.proxy.pipeline.columns import TABLE_SCHEMAS

            return options, check_projection(schema, dict(column.split() for column in TABLE_SCHEMAS["frames"].split(", ")))
        return options, check_projection(schema, CHUNK_TYPES)


class _Reader:
    """What readers of batches and of streams have in common."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._planner: Any = self._planning(options.wanted)  # each of the two with its own positions

    def _planning(self, wanted: Wanted) -> Planner | FleetPlanner:
        options = self._options
        facts: dict[str, Any] = {"parallelism": options.parallelism, "fail_on_data_loss": options.fail_on_data_loss, "wanted": wanted}
        facts["max_partition_bytes"] = options.max_partition_bytes
        if is_url(options.path):
            return FleetPlanner(options.path, **facts)
        return Planner(options.path, consumer=options.consumer, owner=options.owner, **facts)

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        """The rows of a partition, in the task."""
        return _read(partition, self._schema, self._options)

    def _first(self) -> Position | FleetPosition:
        path = self._options.path
        if is_url(path) and package_fault():
            raise OptionError(f"path: {path} {package_fault()}")
        if not is_url(path) and not os.path.isdir(path):
            raise OptionError(f"path: no directory {path}")
        first: Position | FleetPosition = self._planner.first(from_latest=self._options.from_latest, since_ns=self._options.since_ns)
        return first


class BatchReader(_Reader, DataSourceReader):
    """Reads all that is in the log when the query is planned."""

    def partitions(self) -> Sequence[InputPartition]:
        if self._options.from_latest:
            raise OptionError("startingOffsets: a batch from latest on has nothing; earliest, or a time like 2026-05-01T08:00:00Z")
        _prepare()
        start = self._first()
        end = self._planner.advance(start)
        if isinstance(end, FleetPosition) and not end.nodes:
            raise OptionError(
                f"path: {self._options.path} has no such node" if self._options.wanted.node else f"path: {self._options.path} has no nodes"
            )
        return [SlicePartition(parts) for parts in self._planner.partitions(start, end)]


class PushingReader(BatchReader):
    """The same, with the filters of the query."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Read less. All filters are returned: Spark applies them to what is read."""
        wanted = self._options.wanted.narrowed(filters)
        self._options = dataclasses.replace(self._options, wanted=wanted)
        self._planner = self._planning(wanted)
        return filters


class StreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the log as it grows. Offsets are those of ``position``."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._target: Position | FleetPosition | None = None
        self._reported = ""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        first = self._first()
        self._register(first)
        return first.encode()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        limit = self._options.max_bytes_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxBytes(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._target = self._planner.target()

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        budget = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        offset: dict[str, Any] = self._planner.advance(self._position(start), budget, self._target).encode()
        return offset

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        offset: dict[str, Any] = self._planner.latest().encode()
        return offset

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> Sequence[InputPartition]:
        return [SlicePartition(parts) for parts in self._planner.partitions(self._position(start), self._position(end))]

    def commit(self, end: dict[str, object]) -> None:
        """Tell retention that the query has committed what lies before ``end``, and will not read it again."""
        self._register(self._position(end))

    def _position(self, offset: Mapping[str, object]) -> Position | FleetPosition:
        """Decode an offset of the checkpoint. Raises OptionError: a later version wrote it, or it is of another kind of log."""
        kind = FleetPosition if is_url(self._options.path) else Position
        try:
            return kind.decode(offset)
        except PositionError as error:
            raise OptionError(str(error)) from error

    def _register(self, position: Position | FleetPosition) -> None:
        """Tell retention the position, if possible; otherwise it keeps more than is needed."""
        if not self._options.consumer:
            return
        try:
            self._planner.register(position)
        except OSError as error:
            if self._reported != str(error):
                self._reported = str(error)
                sys.stderr.write(f"framegate: retention is not told how far {self._options.consumer} has read: {error}\n")


@functools.cache
def _prepare() -> None:
    """Prepare this process for tasks. What it has now is left out of garbage collections: Spark's Python processes collect behind each task, and
    their modules alone take that some 25 ms. Memory that a batch has freed is kept for the next one; glibc gives it back, and to get it again page by
    page took a fifth to a third of the time to decode frames.
    """
    gc.freeze()
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc has it
    if mallopt is not None and mallopt(_MMAP_THRESHOLD, 32 << 20):  # older versions refuse more
        mallopt(_TRIM_THRESHOLD, 128 << 20)


def _read(partition: InputPartition, schema: StructType, options: SourceOptions) -> Iterator["pa.RecordBatch"]:
    from pyspark.sql.pandas.types import to_arrow_schema

    if not (options.output or options.frames):
        more = [CHUNK_SCHEMA[name] for name in options.wanted.columns if name not in schema.names]
        for batch in read_chunks(partition, to_arrow_schema(StructType([*schema, *more]), timezone="UTC"), options):
            yield batch.select(schema.names) if more else batch
        return
    from framegate.proxy.pipeline import chunk_rows
    from framegate.proxy.pipeline.batch_task import run_task

    asked = JOB_SCHEMA.names if options.output else {*chunk_rows.needed(schema.names), *options.wanted.columns}
    chunks = read_chunks(partition, chunk_rows.in_place([field for field in JOB_SCHEMA if field.name in asked]), options)
    if options.output:
        yield from run_task(options.output, chunks)
        return
    expected = to_arrow_schema(schema, timezone="UTC")
    for batch in chunks:
        yield from chunk_rows.frames(batch, schema.names).cast(expected).to_batches()


def read_chunks(partition: InputPartition, columns: "pa.Schema", options: SourceOptions) -> Iterator["pa.RecordBatch"]:
    """The chunk rows of a partition."""
    from framegate.proxy.pipeline.decode import heard_batch, loss_batch, record_batches
    from framegate.proxy.pipeline.loss import Loss
    from framegate.proxy.pipeline.slices import read_slice
    from framegate.proxy.tap.log_reader import Joiner

    assert isinstance(partition, SlicePartition), "Spark passes the partitions that it was given"
    _prepare()
    wanted = options.wanted
    joiner = Joiner()
    for part in partition.parts:
        if isinstance(part, Loss):
            yield loss_batch(part, columns)
        elif isinstance(part, Heard):
            yield heard_batch(part, columns)
        else:
            blocks = read_slice(part, fail_on_data_loss=options.fail_on_data_loss, joiner=joiner, until_ns=wanted.until_ns)
            yield from record_batches(part.stream, blocks, columns, keep=options.keep, node=part.node, wanted=wanted)
