"""The Python Data Source ``framegate``: the tap's log as a table of chunks, for streams and for batches.

Where its parts run. Spark makes one reader in a planner process beside the driver, which answers for offsets and partitions as long as the
query lives, and a second one that it pickles into every task. So a reader holds options and a schema, nothing open; what a task needs is in
its partition; numpy and pyarrow are imported where rows are read.

Options: ``path`` (or ``load(path)``): the tap's directory. ``startingOffsets``: earliest (default) or latest, for a stream without a
checkpoint. ``maxBytesPerTrigger``: bytes of log in a batch, at least one block of each stream that lags; unlimited when not given.
``failOnDataLoss``: true (default): the query fails when frames it was to read are gone or damaged; false: it goes on without them.
``consumer``: the name under which the reader tells retention how far it has come; nothing is told when not given. ``parallelism``: partitions
to aim at, the processors of the driver's machine when not given.
"""

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from proxy.pipeline.planner import Planner, Slice
from proxy.pipeline.schema import CHUNK_SCHEMA, check_projection

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FramegateDataSource", "OptionError", "SourceOptions"]

OFFSET_VERSION: Final = 1
_UNITS: Final = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


class OptionError(ValueError):
    """An option of the source that is missing or cannot be; the message names it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options, judged. The module's docstring says what each does."""

    path: Path
    from_latest: bool = False
    max_bytes_per_trigger: int | None = None
    fail_on_data_loss: bool = True
    consumer: str | None = None
    parallelism: int = 2

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
        if starting not in ("earliest", "latest"):
            raise OptionError(f"startingOffsets: earliest or latest, not {starting}")
        fail = options.get("failondataloss", "true").lower()
        if fail not in ("true", "false"):
            raise OptionError(f"failOnDataLoss: true or false, not {fail}")
        consumer = options.get("consumer")
        if consumer is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", consumer):
            raise OptionError(f"consumer: letters, digits, dot, dash and underscore, not {consumer}")
        limit = options.get("maxbytespertrigger")
        return cls(
            path=Path(path),
            from_latest=starting == "latest",
            max_bytes_per_trigger=None if limit is None else _size(limit),
            fail_on_data_loss=fail == "true",
            consumer=consumer,
            parallelism=_count(options.get("parallelism", str(os.cpu_count() or 1))),
        )


def _size(text: str) -> int:
    """Bytes as Spark writes them: 1048576, 64m, 1g."""
    found = re.fullmatch(r"(\d+)\s*([kmg]?)(?:i?b)?", text.strip().lower())
    if found is None or int(found[1]) == 0:
        raise OptionError(f"maxBytesPerTrigger: bytes above 0, like 67108864 or 64m, not {text}")
    return int(found[1]) * _UNITS[found[2]]


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise OptionError(f"parallelism: a whole number from 1, not {text}")
    return int(text)


class SlicePartition(InputPartition):
    """Ranges of segments that one task reads, in order."""

    def __init__(self, slices: Sequence[Slice]) -> None:
        self.slices = tuple(slices)


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
        return [SlicePartition(slices) for slices in planner.partitions(planner.starts(), planner.ends())]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        return _read(partition, self._schema, self._options)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The log as it grows. Offsets are JSON: a version, and for each stream the logical offset behind the last block read.

    Spark compares offsets as text: keys are always sorted.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._planner = _planner(options)
        self._target: dict[str, int] | None = None

    def initialOffset(self) -> dict[str, object]:  # noqa: N802 - Spark's name
        _expect_directory(self._options.path)
        first = self._planner.ends() if self._options.from_latest else self._planner.starts()
        if self._options.consumer is not None:
            self._planner.register(self._options.consumer, first)
        return _offset(first)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        limit = self._options.max_bytes_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxBytes(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._target = self._planner.ends()

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:  # noqa: N802 - Spark's name
        budget = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        return _offset(self._planner.advance(_streams(start), budget, self._target))

    def reportLatestOffset(self) -> dict[str, object]:  # noqa: N802 - Spark's name
        return _offset(self._planner.ends())

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> Sequence[InputPartition]:
        return [SlicePartition(slices) for slices in self._planner.partitions(_streams(start), _streams(end))]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        return _read(partition, self._schema, self._options)

    def commit(self, end: dict[str, object]) -> None:
        """Tell retention: what lies before ``end`` is committed by the query and never asked for again."""
        if self._options.consumer is not None:
            self._planner.register(self._options.consumer, _streams(end))


def _expect_directory(path: Path) -> None:
    if not path.is_dir():
        raise OptionError(f"path: no directory {path}")


def _planner(options: SourceOptions) -> Planner:
    return Planner(options.path, parallelism=options.parallelism, fail_on_data_loss=options.fail_on_data_loss)


def _offset(streams: Mapping[str, int]) -> dict[str, object]:
    return {"streams": {name: streams[name] for name in sorted(streams)}, "version": OFFSET_VERSION}


def _streams(offset: Mapping[str, object]) -> dict[str, int]:
    """The offsets of each stream.

    Raises:
        OptionError: the checkpoint was written by a later version.
    """
    streams = offset["streams"]
    if offset["version"] != OFFSET_VERSION or not isinstance(streams, dict):
        raise OptionError(f"checkpoint with offsets of version {offset['version']}, this source knows {OFFSET_VERSION}")
    return streams


def _read(partition: InputPartition, schema: StructType, options: SourceOptions) -> Iterator["pa.RecordBatch"]:
    """The rows of a partition, in the task."""
    from pyspark.sql.pandas.types import to_arrow_schema

    from proxy.pipeline.decode import read_slice, record_batches
    from proxy.tap.log_reader import Joiner

    assert isinstance(partition, SlicePartition), "Spark hands back the partitions it was given"
    columns = to_arrow_schema(schema, timezone="UTC")
    joiner = Joiner()
    for part in partition.slices:
        yield from record_batches(part.stream, read_slice(part, fail_on_data_loss=options.fail_on_data_loss, joiner=joiner), columns)
