"""The tables as Delta Lake tables: tasks write the Parquet files, delta-rs commits them. No jar is needed, and no folder that machines share.

Layout of an output, a folder or a URL::

    <output>/<table>/_delta_log/                          Delta's log: which files a table has
    <output>/<table>/date=YYYY-MM-DD/hour=H/….parquet     the files, by the UTC date and hour of the rows' time
    <output>/_requests/<batch>.arrow                      requests without an answer behind a batch, ``<batch>.<n>.arrow`` of another attempt at it
                                                          that found others; never read by others
    <output>/_jobs/<number>                               of the job that began last
    <output>/_checkpoint/                                 Spark's log of offsets and commits, in a folder (unless the job has another place for it)

The commit of a batch carries its number as the version of two application transactions: ``framegate``, by which readers know the last batch of a
table, and the id of the streaming query, by which the job knows its own tables. The tables of a batch are committed in any order, ``frames`` behind
all others. So a batch that ``frames`` has is in all tables, and after a kill in between the replay commits it to those that lack it.

Files have new names each time, and belong to a table by its log alone: those of a batch that was not committed are removed when they are old. A job
removes files that it has found before it looked whether another one has begun: so none of them is that one's. And it removes none before it has
committed a batch: what an earlier job has written and not committed is in no table from then on, because the batch of that one is there. In a
folder, a batch's files are on the disk before its commit, and its commits before Spark's. A store takes a version of a log from one writer only, also
if a job that was thought dead goes on: its commit fails, because another one has its batch. The files in ``_requests`` are never replaced, so
such a job cannot change what the others go on from. Folders and files are for owner and group, by the umask
of the job.
"""

import contextlib
import datetime
import json
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import ColumnProperties, CommitProperties, DeltaTable, Schema, Transaction, WriterProperties
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction

from framegate.proxy.pipeline.columns import TABLE_SCHEMAS, TIME_COLUMNS, arrow_schema
from framegate.proxy.pipeline.kafka_tables import State
from framegate.proxy.pipeline.place import UNFINISHED, Folder, Place, one_line, place_of
from framegate.proxy.pipeline.table_files import PARTITION_COLUMNS, TableFile, TableFiles
from framegate.proxy.tap.store import ConflictError

APPLICATION: Final = "framegate"
STATES: Final = "_requests"
JOBS: Final = "_jobs"
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
def _one_line(address: str) -> Iterator[None]:
    """An error of delta-rs within the block, or of a store, becomes a TableError."""
    try:
        yield
    except (DeltaError, OSError) as error:
        raise TableError(f"{address}: {one_line(error)}") from error


def open_table(output: str | Path, name: str, newest: int | None = None) -> DeltaTable | None:
    """A table as of now, or before the first batch behind ``newest``; None when there is none. Raises TableError: its log cannot be read."""
    address = place_of(output).address(name)
    with _one_line(address):
        try:
            table = DeltaTable(address)
        except TableNotFoundError:
            return None
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


def has_batches(output: Path | str) -> bool:
    """Whether an output has batches. Raises TableError: it has tables of an earlier format, or they cannot be read."""
    place = place_of(output)
    if isinstance(place, Folder):
        old = next((path for pattern in ("_manifest", "*/batch_id=*") for path in place.root.glob(pattern)), None)
        if old is not None:
            raise TableError(f"{output} has tables of an earlier format ({old.relative_to(place.root)}); name a new folder")
    tables = [open_table(output, name) for name in TABLE_SCHEMAS]
    return any(_batch(table) >= 0 for table in tables if table is not None)


class BatchState(NamedTuple):
    """What is known of requests when a batch is made."""

    before: State  # behind the batch before
    # behind this one, by an earlier attempt at it; None: there was none. The next attempt has to take the same ``known_ends``: some tables may have
    # its rows.
    earlier: State | None
    name: str  # of the file of this attempt
    old: list[str]  # files that nobody needs any longer


class DeltaTables:
    """The tables of one output; one process writes to them."""

    def __init__(self, output: Path | str) -> None:
        """Make the tables that are missing, and add the columns that are new in this version. Raises TableError: as ``has_batches``, or the output
        cannot be written to.
        """
        has_batches(output)
        self.output = output
        self.place: Place = place_of(output)
        # held by a batch, from its first file to its last commit; by a deletion of rows; and by a list of files that are to be removed
        self.lock = threading.RLock()
        self._tables = {name: self._prepare(name) for name in TABLE_SCHEMAS}
        self._batches: dict[str, dict[str, int]] = {}
        self._number = self._begin()
        self.has_committed = False  # this job, a batch: earlier jobs can add none any more

    def _begin(self) -> int:
        """A number for this job, greater than those of earlier ones."""
        with _one_line(str(self.output)):
            while True:
                known = self._jobs()
                number = max(known, default=0) + 1
                with contextlib.suppress(ConflictError):
                    self.place.create(f"{JOBS}/{number}", secrets.token_bytes(8))
                    for old in known:
                        self.place.remove(f"{JOBS}/{old}")
                    return number

    def _jobs(self) -> list[int]:
        return [int(name) for name in self.place.names(JOBS) if not name.endswith(UNFINISHED)]

    def _prepare(self, name: str) -> DeltaTable:
        address, schema = self.place.address(name), Schema.from_arrow(arrow_schema(name))
        with _one_line(address):
            table = open_table(self.output, name)
            if table is None:
                properties = {**_PROPERTIES, "delta.dataSkippingStatsColumns": TIME_COLUMNS[name]}
                return DeltaTable.create(address, schema, partition_by=PARTITION_COLUMNS, name=name, configuration=properties)
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

    def read_state(self, batch: int) -> "BatchState":
        """What ``write_state`` wrote for the last batch before this one, and for this one. Raises TableError: it cannot be read."""
        found: dict[int, list[tuple[int, str]]] = {}  # by batch, the files by attempt
        old = []
        for name in self.place.names(STATES):
            number, _, attempt = name.removesuffix(".arrow").partition(".")
            if name.endswith(".arrow"):
                found.setdefault(int(number), []).append((int(attempt or 0), name))
            elif name.endswith(UNFINISHED):
                old.append(name)
        last = max((number for number in found if number < batch), default=-1)
        old += [name for number, files in found.items() if number < last for _, name in files]
        attempts = sorted(found.get(batch, []))
        name = f"{batch}.{attempts[-1][0] + 1}.arrow" if attempts else f"{batch}.arrow"
        before = self._state(max(found[last])[1]) if last in found else State()
        return BatchState(before, self._state(attempts[-1][1]) if attempts else None, f"{STATES}/{name}", [f"{STATES}/{each}" for each in old])

    def write_state(self, known: "BatchState", state: State) -> None:
        """Keep the state behind a batch. ``known``: from ``read_state``, before the batch was made. Raises TableError: another job made it since."""
        for name in known.old:
            self.place.remove(name)
        if state != known.earlier:
            try:
                self.place.create(known.name, state.encode())
            except ConflictError as error:
                raise TableError(f"{self.output}/{known.name} exists: another job writes to the output") from error

    def _state(self, name: str) -> State:
        try:
            return State.decode(self.place.read(f"{STATES}/{name}"))
        except (pa.ArrowException, ValueError, TypeError, KeyError) as error:
            raise TableError(f"{self.output}/{STATES}/{name} cannot be read: {one_line(error)}") from error

    def remove_unused(self, name: str) -> None:
        """Remove the old files that are in no table. Raises TableError: another job has begun."""
        table = DeltaTable(self.place.address(name))
        with self.lock:
            table.update_incremental()
            found = table.vacuum(dry_run=True, full=True)
        if found and max(self._jobs(), default=0) != self._number:
            raise TableError(f"{self.output}: another job writes to the output")
        for path in found:
            self.place.remove(f"{name}/{path}")

    def write(self, name: str, *rows: pa.Table) -> list[TableFile]:
        """Write rows of a table to files, which are in no table yet; their columns are those of the table, in any order."""
        with TableFiles(self.place, name) as written:
            for some in rows:
                written.add(some)
        return written.files

    def commit(self, name: str, batch: int, query: str, files: Sequence[TableFile]) -> int:
        """Add the files of a batch to a table; ``lock`` is held, and other threads may add to other tables. Returns the number of rows. ``query``: id
        of the streaming query; "" for none. Raises TableError: another job has added the batch meanwhile.
        """
        table, address = self._tables[name], self.place.address(name)
        applications = [application for application in (APPLICATION, query) if application]
        with _one_line(address):
            self.place.sync_folders(f"{name}/{file.path}" for file in files)
            properties = CommitProperties(app_transactions=[Transaction(application, batch) for application in applications])
            table.update_incremental()  # a commit cannot cross a deletion, nor versions that are gone
            if _batch(table) >= batch:
                raise TableError(f"{address}: has batch {batch} already: another job writes to the output")
            before, actions = table.version(), [_add_action(file, TIME_COLUMNS[name]) for file in files]
            table.create_write_transaction([*actions], "append", table.schema(), PARTITION_COLUMNS, commit_properties=properties)
            table.update_incremental()
        self.place.sync_files(name, _log_files(before, table.version()))
        for application in applications:
            self.batches(application)[name] = batch
        self.has_committed |= name == "frames"
        return sum(file.rows for file in files)


def _add_action(file: TableFile, column: str) -> AddAction:
    first, last = (datetime.datetime.fromtimestamp(0, datetime.UTC) + datetime.timedelta(microseconds=us) for us in (file.first_us, file.last_us))
    stats = {
        "numRecords": file.rows,
        "minValues": {column: first.isoformat()},
        "maxValues": {column: last.isoformat()},
        "nullCount": {column: 0},
    }
    return AddAction(file.path, file.size, {"date": file.date, "hour": file.hour}, file.modified_ms, True, json.dumps(stats))


def _log_files(before: int, last: int) -> list[str]:
    """The versions of a table behind ``before``."""
    return [f"_delta_log/{version:020}.json" for version in range(before + 1, last + 1)]


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
        vacuum = self._tables.has_committed and self._clock() - self._vacuumed_s >= _HOUR_S
        for name in TABLE_SCHEMAS:
            if self._stop.is_set():
                return
            table = DeltaTable(self._tables.place.address(name))
            if self._expire_after_s is not None:
                with self._tables.lock:
                    _expire(table, datetime.datetime.fromtimestamp(self._clock() - self._expire_after_s, datetime.UTC))
            compact(table, self._tables.place, name)
            if vacuum:
                self._tables.remove_unused(name)
        if vacuum:
            self._vacuumed_s = self._clock()
        self.passes += 1

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.run_once()
            except Exception as error:  # such as a full disk, or a store that refuses: the tables stay as they are until the next pass
                said = f"framegate pipeline: maintenance of the tables waits: {one_line(error)}\n"
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


def compact(table: DeltaTable, place: Place, name: str) -> None:
    """Join the files of each hour that are smaller than ``TARGET_BYTES``."""
    metrics: dict[str, Any] = table.optimize.compact(target_size=TARGET_BYTES, max_concurrent_tasks=1, writer_properties=_COMPACTED)
    if metrics["numFilesAdded"]:
        (log,) = _log_files(table.version() - 1, table.version())
        if isinstance(place, Folder):
            changes = map(json.loads, place.read(f"{name}/{log}").splitlines())
            place.sync_files(name, [*(change["add"]["path"] for change in changes if "add" in change), log])
