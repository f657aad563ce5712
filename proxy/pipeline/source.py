"""The Python Data Source ``framegate``: the tap's log as a table of chunks, for streams and for batches.

Where its parts run. Spark makes one reader in a planner process beside the driver, which answers for offsets and partitions as long as the
query lives, and a second one that it pickles into every task. So a reader holds options and a schema, nothing open; what a task needs is in
its partition; numpy and pyarrow are imported where rows are read.

Options; any other is refused: ``path`` (or ``load(path)``): the tap's directory. ``startingOffsets``: earliest (default), latest, or a time (RFC
3339): from the first block of each stream that has something of then or later; for a batch (not latest), and for a query without a checkpoint.
``maxBytesPerTrigger``: bytes of log in a batch of a stream, at least one block of each stream that lags; unlimited when not given.
``failOnDataLoss``: true (default): the query fails when something that it was to read is gone or damaged, or when the ledger cannot tell that;
false: it goes on, and each range that it skips is rows of kind gap, reason vanished or damaged, certainty unknown. ``payload``: full (default),
none, or so many bytes of each frame's body: the rest is cut before Spark sees it, and sizes stay those on the wire. ``consumer``: the name under
which the reader tells retention how far it has come; nothing is told when not given; ``owner``: who has that name. Where it cannot be told, that
is said once on standard error, and the query goes on. ``parallelism``: partitions to aim at, the processors of the driver's machine when not
given. ``maxPartitionBytes``: of log in a partition, 256m when not given.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from framegate.proxy.pipeline.options import OptionError, SourceOptions
from framegate.proxy.pipeline.planner import Part, Planner, Target
from framegate.proxy.pipeline.position import Position, PositionError
from framegate.proxy.pipeline.schema import CHUNK_SCHEMA, check_projection

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FramegateDataSource"]


class SlicePartition(InputPartition):
    """Ranges of segments that one task reads, in order, and what is lost between them."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = tuple(parts)


class FramegateDataSource(DataSource):
    """``spark.readStream.format("framegate").load(directory)``, ``spark.read`` likewise."""

    @classmethod
    def name(cls) -> str:
        return "framegate"

    def schema(self) -> StructType:
        return CHUNK_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(SourceOptions.parse(self.options), check_projection(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return StreamReader(SourceOptions.parse(self.options), check_projection(schema))


class BatchReader(DataSourceReader):
    """All that is in the log when the query is planned."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        _expect_directory(self._options.path)
        if self._options.from_latest:
            raise OptionError("startingOffsets: a batch from latest on has nothing; earliest, or a time like 2026-05-01T08:00:00Z")
        planner = _planner(self._options)
        start = planner.first(since_ns=self._options.since_ns)
        return [SlicePartition(parts) for parts in planner.partitions(start, planner.advance(start))]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        return _read(partition, self._schema, self._options)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The log as it grows. Offsets are those of ``position``."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._planner = _planner(options)
        self._target: Target | None = None
        self._reported = ""

    def initialOffset(self) -> dict[str, object]:  # noqa: N802 - Spark's name
        _expect_directory(self._options.path)
        first = self._planner.first(from_latest=self._options.from_latest, since_ns=self._options.since_ns)
        self._register(first)
        return first.encode()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        limit = self._options.max_bytes_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxBytes(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._target = self._planner.target()

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:  # noqa: N802 - Spark's name
        budget = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        return self._planner.advance(_position(start), budget, self._target).encode()

    def reportLatestOffset(self) -> dict[str, object]:  # noqa: N802 - Spark's name
        return Position(self._planner.ends()).encode()

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> Sequence[InputPartition]:
        return [SlicePartition(parts) for parts in self._planner.partitions(_position(start), _position(end))]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        return _read(partition, self._schema, self._options)

    def commit(self, end: dict[str, object]) -> None:
        """Tell retention: what lies before ``end`` is committed by the query and never asked for again."""
        self._register(_position(end))

    def _register(self, position: Position) -> None:
        """Tell retention, where it can be told: what it does not hear keeps more than is needed, never less."""
        if not self._options.consumer:
            return
        try:
            self._planner.register(position)
        except OSError as error:
            if self._reported != str(error):
                self._reported = str(error)
                sys.stderr.write(f"framegate: retention is not told how far {self._options.consumer} has read: {error}\n")


def _expect_directory(path: Path) -> None:
    if not path.is_dir():
        raise OptionError(f"path: no directory {path}")


def _planner(options: SourceOptions) -> Planner:
    return Planner(
        options.path,
        parallelism=options.parallelism,
        fail_on_data_loss=options.fail_on_data_loss,
        consumer=options.consumer,
        owner=options.owner,
        max_partition_bytes=options.max_partition_bytes,
    )


def _position(offset: Mapping[str, object]) -> Position:
    """Of what Spark kept.

    Raises:
        OptionError: the checkpoint was written by a later version.
    """
    try:
        return Position.decode(offset)
    except PositionError as error:
        raise OptionError(str(error)) from error


def _read(partition: InputPartition, schema: StructType, options: SourceOptions) -> Iterator["pa.RecordBatch"]:
    """The rows of a partition, in the task."""
    from pyspark.sql.pandas.types import to_arrow_schema

    from framegate.proxy.pipeline.decode import loss_batch, record_batches
    from framegate.proxy.pipeline.loss import Loss
    from framegate.proxy.pipeline.slices import read_slice
    from framegate.proxy.tap.log_reader import Joiner

    assert isinstance(partition, SlicePartition), "Spark hands back the partitions it was given"
    columns = to_arrow_schema(schema, timezone="UTC")
    joiner = Joiner()
    for part in partition.parts:
        if isinstance(part, Loss):
            yield loss_batch(part, columns)
            continue
        blocks = read_slice(part, fail_on_data_loss=options.fail_on_data_loss, joiner=joiner)
        yield from record_batches(part.stream, blocks, columns, keep=options.keep)
