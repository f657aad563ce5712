"""The tables as Delta Lake tables: Spark and Arrow write the Parquet files, delta-rs commits them. No jar is needed.

Layout of an output folder::

    <output>/<table>/_delta_log/                          Delta's log: which files a table has
    <output>/<table>/date=YYYY-MM-DD/hour=H/….parquet     the files, by the UTC date and hour of the rows' time
    <output>/_staging/                                    the batch that is being written; never read
    <output>/_requests/<batch>.arrow                      requests without an answer behind a batch; never read by others
    <output>/_checkpoint/                                 Spark's log of offsets and commits (unless the job has another place for it)

The commit of a batch carries its number as the version of two application transactions: ``framegate``, by which readers know the last batch of a
table, and the id of the streaming query, by which the job knows its own tables. The tables of a batch are committed one after the other, ``frames``
last. So a batch that ``frames`` has is in all tables, and after a kill in between the replay commits it to those that lack it.

A batch's files are on the disk before its commit, and its commits before Spark's. Folders and files are for owner and group, by the umask of the job.
"""

import contextlib
import datetime
import json
import os
import secrets
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
import pyarrow.parquet as pq
from deltalake import ColumnProperties, CommitProperties, DeltaTable, Schema, Transaction, WriterProperties
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction

from framegate.proxy.pipeline.columns import TABLE_SCHEMAS, TIME_COLUMNS, arrow_schema
from framegate.proxy.pipeline.kafka_tables import State
from framegate.proxy.pipeline.partial_sums import plain

APPLICATION: Final = "framegate"
STAGING: Final = "_staging"
STATES: Final = "_requests"
PARTITION_COLUMNS: Final = ["date", "hour"]
GRACE_S: Final = 900  # files that are in no table any more stay this long for readers that began before
VERSIONS_S: Final = 300
"""Old versions of a table stay this long. A commit lists all of them: it takes twice as long with a thousand as with a hundred."""
# A commit reads the versions since the last checkpoint, with the statistics of all files: with 100 versions, and statistics of all columns, it took
# three times as much processor time.
TARGET_BYTES: Final = 64 << 20
_PROPERTIES: Final = {
    "delta.deletedFileRetentionDuration": f"interval {GRACE_S} seconds",
    "delta.logRetentionDuration": f"interval {VERSIONS_S} seconds",
    "delta.checkpointInterval": "10",
}
_COMPACTED: Final = WriterProperties(
    compression="ZSTD", compression_level=1, column_properties={"payload": ColumnProperties(dictionary_enabled=False)}
)
_HOUR_S: Final = 3600
_STATED_WITHIN: Final = datetime.timedelta(milliseconds=1)  # the log may state the greatest time in whole milliseconds


class TableError(ValueError):
    """The tables of an output cannot be opened, or are of an earlier format. The message is one line."""


@contextlib.contextmanager
def _one_line(path: Path) -> Iterator[None]:
    """An error of delta-rs within the block becomes a TableError."""
    try:
        yield
    except DeltaError as error:
        raise TableError(f"{path}: {' '.join(str(error).split())}") from error


def open_table(output: str | Path, name: str, newest: int | None = None) -> DeltaTable | None:
    """A table as of now, or before the first batch behind ``newest``; None when there is none. Raises TableError: its log cannot be read."""
    path = Path(output, name).absolute()
    with _one_line(path):
        if not DeltaTable.is_deltatable(str(path)):
            return None
        table = DeltaTable(path)
        while newest is not None and _batch(table) > newest:
            table.load_as_version(table.version() - 1)
        return table


def batch_of(output: str | Path) -> int:
    """The last batch that all tables of an output have; -1 before the first. Raises TableError: as ``open_table``."""
    frames = open_table(output, "frames")
    return -1 if frames is None else _batch(frames)


def _batch(table: DeltaTable, application: str = APPLICATION) -> int:
    """The last batch of a table; -1 before the first."""
    batch = table.transaction_version(application)
    return -1 if batch is None else batch


def files_of(table: DeltaTable, column: str, since: datetime.datetime | None, until: datetime.datetime | None) -> list[str]:
    """The paths of the files of a table that may have rows with a time in ``[since, until)``."""
    rows = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    return [
        row["path"]
        for row in rows
        if (since is None or row[f"max.{column}"] + _STATED_WITHIN > since) and (until is None or row[f"min.{column}"] < until)
    ]


def has_batches(output: Path) -> bool:
    """Whether an output has batches. Raises TableError: it has tables of an earlier format, or they cannot be read."""
    old = next((path for pattern in ("_manifest", "*/batch_id=*") for path in output.glob(pattern)), None)
    if old is not None:
        raise TableError(f"{output} has tables of an earlier format ({old.relative_to(output)}); name a new folder")
    tables = [open_table(output, name) for name in TABLE_SCHEMAS]
    return any(_batch(table) >= 0 for table in tables if table is not None)


class DeltaTables:
    """The tables of one output folder on a local disk; one process writes to them."""

    def __init__(self, output: Path) -> None:
        """Make the tables that are missing, and add the columns that are new in this version. Raises TableError: as ``has_batches``; OSError: the
        output cannot be written to.
        """
        has_batches(output)
        self.output = output
        self.staging = output / STAGING  # files of the next batch are written here, as ``<table>/date=…/hour=…/….parquet``
        # held by a commit, from when its files are in their table's folder; by a deletion of rows; and by a removal of files
        self.lock = threading.Lock()
        self._tables = {name: self._prepare(name) for name in TABLE_SCHEMAS}
        self._synced: set[Path] = set()
        self._batches: dict[str, dict[str, int]] = {}

    def _prepare(self, name: str) -> DeltaTable:
        path, schema = (self.output / name).absolute(), Schema.from_arrow(arrow_schema(name))
        with _one_line(path):
            table = open_table(self.output, name)
            if table is None:
                properties = {**_PROPERTIES, "delta.dataSkippingStatsColumns": TIME_COLUMNS[name]}
                return DeltaTable.create(path, schema, partition_by=PARTITION_COLUMNS, name=name, configuration=properties)
            known = {field.name for field in table.schema().fields}
            new = [field for field in schema.fields if field.name not in known]
            if new:
                table.alter.add_columns(new)
                table.update_incremental()
            return table

    def batches(self, application: str = APPLICATION) -> dict[str, int]:
        """The last batch of each table that has some. It is read once: nobody else commits batches."""
        if application not in self._batches:
            found = {name: _batch(table, application) for name, table in self._tables.items()}
            self._batches[application] = {name: batch for name, batch in found.items() if batch >= 0}
        return self._batches[application]

    def rows(self) -> dict[str, int]:
        return {name: pc.sum(pa.table(table.get_add_actions())["num_records"]).as_py() or 0 for name, table in self._tables.items()}

    def read_state(self, batch: int) -> State:
        """What ``write_state`` wrote for the last batch before this one."""
        found = [path for number, path in self._states() if number < batch]
        return State.decode(found[-1].read_bytes()) if found else State()

    def write_state(self, batch: int, state: State) -> None:
        """Keep the state behind a batch on the disk, and that of the batch before."""
        folder = self.output / STATES
        folder.mkdir(exist_ok=True)
        for _, old in self._states()[:-2]:
            old.unlink()
        path, new = folder / f"{batch}.arrow", folder / "new"
        new.write_bytes(state.encode())
        sync([new])
        new.rename(path)
        sync([folder, self.output])

    def _states(self) -> list[tuple[int, Path]]:
        return sorted((int(path.stem), path) for path in (self.output / STATES).glob("*.arrow"))

    def clear_staging(self) -> None:
        shutil.rmtree(self.staging, ignore_errors=True)

    def stage(self, name: str, rows: pa.Table) -> None:
        """Write rows of a table to the staging folder; their columns are those of the table, in any order."""
        times = plain(rows[TIME_COLUMNS[name]])
        dates, hours = pc.floor_temporal(times, unit="day").cast(pa.date32()), pc.hour(times).cast(pa.int32())
        schema = arrow_schema(name).remove_metadata()
        pyarrow.dataset.write_dataset(
            rows.append_column("date", dates).append_column("hour", hours).select(schema.names).cast(schema),
            self.staging / name,
            basename_template=f"{secrets.token_hex(16)}-{{i}}.parquet",
            format="parquet",
            existing_data_behavior="overwrite_or_ignore",  # names are new each time
            partitioning=pyarrow.dataset.partitioning(pa.schema([schema.field(column) for column in PARTITION_COLUMNS]), flavor="hive"),
            use_threads=False,
        )

    def commit(self, name: str, batch: int, query: str) -> int:
        """Add the staged files of a batch to a table. Returns the number of rows. ``query``: id of the streaming query; "" for none."""
        table, root = self._tables[name], self.output / name
        with self.lock:
            added = [_adopt(path, root / path.relative_to(self.staging / name)) for path in sorted((self.staging / name).glob("*/*/*.parquet"))]
            files = [root / action.path for action in added]
            hours = {file.parent for file in files}
            above = {folder for hour in hours for folder in (hour.parent, root)} if hours - self._synced else set()
            sync([*files, *hours, *above])
            self._synced |= hours
            applications = [application for application in (APPLICATION, query) if application]
            properties = CommitProperties(app_transactions=[Transaction(application, batch) for application in applications])
            table.update_incremental()  # a commit cannot cross a deletion, nor versions that are gone
            before = table.version()
            table.create_write_transaction([*added], "append", table.schema(), PARTITION_COLUMNS, commit_properties=properties)
            table.update_incremental()
        sync_log(root, before, table.version())
        for application in applications:
            self.batches(application)[name] = batch
        return sum(json.loads(action.stats)["numRecords"] for action in added)


def _adopt(path: Path, place: Path) -> AddAction:
    """Rename a finished file into its table, and describe it."""
    date, hour = (folder.name.partition("=")[2] for folder in (path.parent.parent, path.parent))
    footer, column = pq.read_metadata(path), TIME_COLUMNS[place.parents[2].name]
    index = footer.schema.names.index(column)
    bounds = [footer.row_group(group).column(index).statistics for group in range(footer.num_row_groups)]
    stats = {
        "numRecords": footer.num_rows,
        "minValues": {column: min(bound.min for bound in bounds).isoformat()},
        "maxValues": {column: max(bound.max for bound in bounds).isoformat()},
        "nullCount": {column: 0},
    }
    size, modified_ms = path.stat().st_size, int(path.stat().st_mtime * 1000)
    place.parent.mkdir(parents=True, exist_ok=True)
    path.rename(place)
    return AddAction(str(place.relative_to(place.parents[2])), size, {"date": date, "hour": hour}, modified_ms, True, json.dumps(stats))


def sync(paths: Iterable[Path]) -> None:
    """Write files and folders to the disk."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def sync_log(table: Path, before: int, last: int) -> None:
    """Write the versions of a table behind ``before`` to the disk."""
    log = table / "_delta_log"
    sync([*(log / f"{version:020}.json" for version in range(before + 1, last + 1)), log])


class Maintenance:
    """A thread beside the stream, from ``start`` to ``close``: joins small files, deletes old hours, and removes files that are in no table."""

    def __init__(self, tables: DeltaTables, *, every_s: float, expire_after_s: float | None, clock: Callable[[], float] = time.time) -> None:
        """Start nothing yet.

        Args:
            every_s: between two passes; 0: no thread, the caller calls ``run_once``.
            expire_after_s: hours that ended longer ago than this are deleted; None: never.
            clock: wall clock, seconds of the epoch.
        """
        self.passes = 0  # the number of passes so far
        self._tables = tables
        self._every_s = every_s
        self._expire_after_s = expire_after_s
        self._clock = clock
        self._vacuumed_s = -float(_HOUR_S)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="maintenance", daemon=True)
        self._reported = ""

    def start(self) -> None:
        if self._every_s > 0:
            self._thread.start()

    def close(self) -> None:
        """End after the current table."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def run_once(self) -> None:
        """One pass over all tables; once an hour the removal of files, which lists all of them."""
        vacuum = self._clock() - self._vacuumed_s >= _HOUR_S
        for name in TABLE_SCHEMAS:
            if self._stop.is_set():
                return
            table = DeltaTable((self._tables.output / name).absolute())
            if self._expire_after_s is not None:
                with self._tables.lock:
                    _expire(table, datetime.datetime.fromtimestamp(self._clock() - self._expire_after_s, datetime.UTC))
            compact(table, self._tables.output / name)
            if vacuum:
                with self._tables.lock:
                    table.vacuum(dry_run=False, full=True)
        if vacuum:
            self._vacuumed_s = self._clock()
        self.passes += 1

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.run_once()
            except Exception as error:  # such as a full disk: the tables stay as they are until the next pass
                said = f"framegate pipeline: maintenance of the tables waits: {' '.join(str(error).split())}\n"
                if said != self._reported:
                    sys.stderr.write(said)
                self._reported = said
            self._stop.wait(self._every_s)


def _expire(table: DeltaTable, before: datetime.datetime) -> None:
    """Delete the hours that ended before a time."""
    limit = (before.date(), before.hour)
    hours = pa.table(table.get_add_actions(flatten=True)).select(["partition.date", "partition.hour"]).to_pylist()
    if any(tuple(hour.values()) < limit for hour in hours):
        table.delete(f"date < '{before.date()}' OR (date = '{before.date()}' AND hour < {before.hour})")


def compact(table: DeltaTable, root: Path) -> None:
    """Join the files of each hour that are smaller than ``TARGET_BYTES``."""
    metrics: dict[str, Any] = table.optimize.compact(target_size=TARGET_BYTES, max_concurrent_tasks=1, writer_properties=_COMPACTED)
    if metrics["numFilesAdded"]:
        log = (root / "_delta_log" / f"{table.version():020}.json").read_text()
        sync([root / change["add"]["path"] for change in map(json.loads, log.splitlines()) if "add" in change])
        sync_log(root, table.version() - 1, table.version())
