"""The Python Data Source ``framegate``: the tap's log as a table of chunks, for streams and for batches.

Where its parts run. Spark makes one reader in a planner process beside the driver, which answers for offsets and partitions as long as the
query lives, and a second one that it pickles into every task. So a reader holds options and a schema, nothing open; what a task needs is in
its partition; numpy and pyarrow are imported where rows are read.

Options: ``path`` (or ``load(path)``): the tap's directory. ``startingOffsets``: earliest (default), latest, or a time (RFC 3339): from the first
block of each stream that has something of then or later; for a query without a checkpoint. ``maxBytesPerTrigger``: bytes of log in a batch, at
least one block of each stream that lags; unlimited when not given. ``failOnDataLoss``: true (default): the query fails when something that it
was to read is gone or damaged; false: it goes on, and each range that it skips is rows of kind gap, reason vanished or damaged, certainty
unknown. ``payload``: full (default), none, or so many bytes of each frame's body: the rest is cut before Spark sees it, and sizes stay those on
the wire. ``consumer``: the name under which the reader tells retention how far it has come; nothing is told when not given; ``owner``: who has
that name. Where it cannot be told, that is said once on standard error, and the query goes on. ``parallelism``: partitions to aim at, the
processors of the driver's machine when not given. ``maxPartitionBytes``: of log in a partition, 256m when not given.
"""

import dataclasses
import datetime
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from proxy.pipeline.planner import MAX_PARTITION_BYTES, Part, Planner, Target
from proxy.pipeline.position import Position, PositionError
from proxy.pipeline.schema import CHUNK_SCHEMA, check_projection

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["CONSUMER_NAME", "FramegateDataSource", "OptionError", "SourceOptions", "parse_payload", "parse_time"]

CONSUMER_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
_UNITS: Final = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class OptionError(ValueError):
    """An option of the source that is missing or cannot be; the message names it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options, judged. The module's docstring says what each does."""

    path: Path
    from_latest: bool = False
    since_ns: int = 0
    max_bytes_per_trigger: int | None = None
    fail_on_data_loss: bool = True
    keep: int | None = None
    consumer: str = ""
    owner: str = ""
    parallelism: int = 2
    max_partition_bytes: int = MAX_PARTITION_BYTES

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "SourceOptions":
        """Judge Spark's options, whose keys are lower case (or do not care).

        Raises:
            OptionError: the first one that cannot be.
        """
        path = options.get("path")
        if not path:
            raise OptionError("path: name the tap's directory")
        starting = options.get("startingoffsets", "earliest")
        fail = options.get("failondataloss", "true").lower()
        if fail not in ("true", "false"):
            raise OptionError(f"failOnDataLoss: true or false, not {fail}")
        consumer = options.get("consumer", "")
        if consumer and not re.fullmatch(CONSUMER_NAME, consumer):
            raise OptionError(f"consumer: letters, digits, dot, dash and underscore, not {consumer}")
        limit = options.get("maxbytespertrigger")
        room = options.get("maxpartitionbytes")
        return cls(
            path=Path(path),
            from_latest=starting == "latest",
            since_ns=0 if starting in ("earliest", "latest") else parse_time(starting),
            max_bytes_per_trigger=None if limit is None else _size("maxBytesPerTrigger", limit),
            fail_on_data_loss=fail == "true",
            keep=parse_payload(options.get("payload", "full")),
            consumer=consumer,
            owner=options.get("owner", ""),
            parallelism=_count(options.get("parallelism", str(os.cpu_count() or 1))),
            max_partition_bytes=MAX_PARTITION_BYTES if room is None else _size("maxPartitionBytes", room),
        )


def parse_time(text: str) -> int:
    """Nanoseconds of the wall clock at an RFC 3339 time.

    Raises:
        OptionError: it is none, or says no offset from UTC.
    """
    try:
        at = datetime.datetime.fromisoformat(text)
        if at.tzinfo is None:
            raise ValueError("no offset")
    except ValueError:
        raise OptionError(f"startingOffsets: earliest, latest or a time like 2026-05-01T08:00:00Z, not {text}") from None
    return round((at - _EPOCH) / datetime.timedelta(microseconds=1)) * 1000


def parse_payload(text: str) -> int | None:
    """How many bytes of each body to keep; None: all.

    Raises:
        OptionError: it says something else.
    """
    if text in ("full", "none"):
        return None if text == "full" else 0
    return _size("payload", text, "none, full or bytes like 64 or 4k")


def _size(name: str, text: str, wanted: str = "bytes above 0, like 67108864 or 64m") -> int:
    """Bytes as Spark writes them: 1048576, 64m, 1g."""
    found = re.fullmatch(r"(\d+)\s*([kmg]?)(?:i?b)?", text.strip().lower())
    if found is None or int(found[1]) == 0:
        raise OptionError(f"{name}: {wanted}, not {text}")
    return int(found[1]) * _UNITS[found[2]]


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise OptionError(f"parallelism: a whole number from 1, not {text}")
    return int(text)


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
        planner = _planner(self._options)
        return [SlicePartition(parts) for parts in planner.partitions(Position(planner.starts()), Position(planner.ends()))]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        return _read(partition, self._schema, self._options)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The log as it grows. Offsets are those of ``position``."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._planner = _planner(options)
        self._target: Target | None = None
        self._untold = ""

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
            if self._untold != str(error):
                self._untold = str(error)
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

    from proxy.pipeline.decode import loss_batch, read_slice, record_batches
    from proxy.pipeline.loss import Loss
    from proxy.tap.log_reader import Joiner

    assert isinstance(partition, SlicePartition), "Spark hands back the partitions it was given"
    columns = to_arrow_schema(schema, timezone="UTC")
    joiner = Joiner()
    for part in partition.parts:
        if isinstance(part, Loss):
            yield loss_batch(part, columns)
            continue
        blocks = read_slice(part, fail_on_data_loss=options.fail_on_data_loss, joiner=joiner)
        yield from record_batches(part.stream, blocks, columns, keep=options.keep)
