"""The Parquet files of the tables: their places, how they are published and how they are deleted.

Layout of an output folder::

    <output>/<table>/date=YYYY-MM-DD/hour=HH/<name>.parquet   the present files of the table, for readers of folders (DuckDB, pandas, pyarrow)
    <output>/<table>/date=1970-01-01/hour=00/empty.parquet    without rows, for a table that had none when the job began
    <output>/_files/<table>/date=…/hour=…/<name>.parquet      the same files (hard links) and, for a grace time, those that compaction or expiry took
                                                              out of the tables, for readers of the manifest
    <output>/_manifest                                        the list of the tables' files (``manifest``)
    <output>/_staging/, _merging/                             being written; never read
    <output>/_progress.json                                   the last published batch and the row counts so far; for people
    <output>/_checkpoint/                                     Spark's log of offsets and commits (unless the job has another place for it)

Date and hour are UTC, of ``capture_time`` (of the minute in tables by minute). Folders have mode 0750 and files 0640, like the log.

A reader of the manifest (``views``) sees a batch in all tables or in none, and each row once, at any moment and after any crash: a file is on the
disk, under its name in ``_files``, before the manifest names it, and stays there for a grace time after the manifest has dropped it. A reader of the
tables' folders sees whole files, and each row once, except in the milliseconds in which the folders follow the manifest: then a batch may be there in
part, and rows that are being compacted twice. After a crash this lasts until the job starts again and corrects the folders. A file may vanish between
listing and opening; the query then fails and must be repeated.
"""

import contextlib
import datetime
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from framegate.proxy.pipeline.manifest import DataFile, Manifest, ManifestError, ManifestLog, sync_folders
from framegate.proxy.pipeline.partial_sums import hours
from framegate.proxy.tap.record import FILE_MODE, FOLDER_MODE

__all__ = ["FILES", "MERGING", "STAGING", "HourFiles", "ParquetStore", "data_file"]

FILES: Final = "_files"
STAGING: Final = "_staging"
MERGING: Final = "_merging"
_SUFFIX: Final = ".parquet"
_NO_ROWS: Final = f"date=1970-01-01/hour=00/empty{_SUFFIX}"
_HOUR_US: Final = 3_600_000_000
_EPOCH: Final = datetime.datetime(1970, 1, 1)


class ParquetStore:
    """The files of one output folder. One process writes: ``publish`` in one thread, ``replace`` and ``sweep`` in another.

    Attributes:
        output: the folder.
        staging, merging: a batch, and a merged file, is written here, as ``<table>/date=…/hour=…/….parquet``.
    """

    def __init__(self, output: Path, tables: Iterable[str], *, now_ns: Callable[[], int] = time.time_ns) -> None:
        """Take over the folder, which is made when missing, and complete or undo what a crash has interrupted.

        Raises:
            ManifestError: the manifest is damaged, or names a file that is gone.
            OSError: the folder cannot be written to, or its file system has no hard links.
        """
        self.output = output
        self.staging = output / STAGING
        self.merging = output / MERGING
        self._files = output / FILES
        self._tables = tuple(tables)
        self._now_ns = now_ns
        self._folders = threading.Lock()  # so that no empty folder is removed between its making and its first file
        _make(output)
        self._log = ManifestLog(output)
        self._recover()

    @property
    def manifest(self) -> Manifest:
        """The present manifest."""
        return self._log.state

    def clear_staging(self) -> None:
        """Delete what was staged."""
        shutil.rmtree(self.staging, ignore_errors=True)

    def publish(self, batch: int, query: str, time_columns: dict[str, str]) -> None:
        """Publish the staged rows as a batch of a query, in every table at once. The batch's number is above the manifest's; ``time_columns`` has the
        column with the rows' time by table.
        """
        added = [file for table, column in time_columns.items() for file in self._take(self.staging / table, table, batch, column)]
        rows = dict.fromkeys(self._tables, 0)
        for file in added:
            rows[file.table] += file.rows
        before = self.manifest.total
        total = {table: before.get(table, 0) + count for table, count in rows.items()}
        self._log.commit(batch=batch, query=query, rows=rows, total=total, add=added)
        self._show(added)

    def replace(self, files: Sequence[DataFile], new: Path | None = None, column: str = "", *, level: int = 0) -> None:
        """Replace files of one table, date and hour by a file in ``merging`` with the same rows; None: the files of a table expire.

        Args:
            column: the one with the rows' time.
            level: of the new file.
        """
        added = []
        if new is not None:
            file = data_file(new, f"{files[0].folder}/{_name('c')}", max(file.batch for file in files), column, level=level)
            added.append(self._adopt(new, file))
        self._sync(added)
        self._log.commit(add=added, remove=[file.path for file in files], at=self._now_ns())
        self._show(added)
        self._hide(file.path for file in files)

    def sweep(self, grace_ns: int) -> int:
        """Delete the files that were removed longer ago than ``grace_ns``. Returns their number."""
        limit = self._now_ns() - grace_ns
        due = [path for path, removed_ns in self.manifest.removed.items() if removed_ns <= limit]
        for path in due:
            self.file(path).unlink(missing_ok=True)
        if due:
            self._log.commit(gone=due)
            self._prune(self._files, due)
        return len(due)

    def show_columns(self, table: str, schema: pa.Schema) -> None:
        """Give a table without files one without rows, which is not in the manifest: readers of folders fail without a file that has the columns."""
        if not self.manifest.of(table):
            path = self.output / table / _NO_ROWS
            with self._folders:
                _make(path.parent)
                pq.write_table(schema.empty_table(), path)
            os.chmod(path, FILE_MODE)

    def file(self, path: str) -> Path:
        """The place of a file of the manifest, for readers of the manifest."""
        return self._files / path

    def close(self) -> None:
        """Close the manifest."""
        self._log.close()

    def _take(self, folder: Path, table: str, batch: int, column: str) -> list[DataFile]:
        """Move the staged files of a table to ``_files``."""
        added = []
        for path in sorted(folder.glob(f"date=*/hour=*/*{_SUFFIX}")):
            place = f"{table}/{path.parent.parent.name}/{path.parent.name}/{_name('b')}"
            added.append(self._adopt(path, data_file(path, place, batch, column)))
        self._sync(added)
        return added

    def _adopt(self, path: Path, file: DataFile) -> DataFile:
        """Rename a finished file into ``_files`` when its bytes are on the disk."""
        with open(path, "rb") as opened:
            os.fsync(opened.fileno())
        target = self.file(file.path)
        with self._folders:
            _make(target.parent)
            os.rename(path, target)
        return file

    def _sync(self, files: Iterable[DataFile]) -> None:
        """Write the files' names to the disk."""
        folders = {self.file(file.path).parent for file in files}
        above = {ancestor for folder in folders for ancestor in folder.parents if ancestor.is_relative_to(self._files)}
        sync_folders(sorted(folders | above))

    def _show(self, files: Iterable[DataFile]) -> None:
        """Link files into the tables' folders."""
        for file in files:
            name = self.output / file.path
            with self._folders, contextlib.suppress(FileExistsError):
                _make(name.parent)
                os.link(self.file(file.path), name)

    def _hide(self, paths: Iterable[str]) -> None:
        """Remove files from the tables' folders."""
        gone = list(paths)
        for path in gone:
            (self.output / path).unlink(missing_ok=True)
        self._prune(self.output, gone)

    def _prune(self, root: Path, paths: Iterable[str]) -> None:
        """Remove empty folders of hours and dates."""
        for hour in {(root / path).parent for path in paths}:
            for folder in (hour, hour.parent):
                with self._folders, contextlib.suppress(OSError):  # it is not empty, or gone
                    folder.rmdir()

    def _recover(self) -> None:
        """Make the folders agree with the manifest."""
        self.clear_staging()
        shutil.rmtree(self.merging, ignore_errors=True)
        state = self.manifest
        for folder in (self._files, *(root / table for root in (self.output, self._files) for table in self._tables)):
            _make(folder)
        stored, shown = set(self._walk(self._files)), set(self._walk(self.output))
        for path in stored - state.files.keys() - state.removed.keys():
            self.file(path).unlink()
        for path in shown & (state.files.keys() - stored):  # _files was deleted
            _make(self.file(path).parent)
            os.link(self.output / path, self.file(path))
        lost = sorted(state.files.keys() - stored - shown)
        if lost:
            raise ManifestError(f"{self.output}: files of the tables are gone, {len(lost)} in all: {lost[0]}")
        self._hide(shown - state.files.keys())
        self._show(state.files[path] for path in state.files.keys() - shown)

    def _walk(self, root: Path) -> Iterator[str]:
        """The Parquet files of the tables below a root, as the manifest names them."""
        for table in self._tables:
            for path in (root / table).glob(f"date=*/hour=*/*{_SUFFIX}"):
                yield str(path.relative_to(root))


def _make(folder: Path) -> None:
    """Make a folder for owner and group, and those above it."""
    if not folder.parent.exists():
        _make(folder.parent)
    folder.mkdir(FOLDER_MODE, exist_ok=True)


def _name(kind: str) -> str:
    """A new file name, from the time and a random number."""
    return f"{kind}{time.time_ns():019d}-{secrets.token_hex(4)}{_SUFFIX}"


class HourFiles:
    """Writes rows of one table to a folder of its own, as ``date=…/hour=…/rows.parquet``: a file for each hour that has rows."""

    def __init__(self, folder: Path, schema: pa.Schema, time_column: str) -> None:
        """``folder``: of the table, in ``staging``; ``schema``: of the files, rows are cast to it; ``time_column``: its hour decides."""
        self._folder = folder
        self._schema = schema
        self._time_column = time_column
        self._writers: dict[int, pq.ParquetWriter] = {}
        self._adopted = 0

    def write(self, rows: pa.Table) -> None:
        """Add rows; their columns are those of the schema, in any order."""
        if not rows.num_rows:
            return
        rows = rows.select(self._schema.names).cast(self._schema)
        of_rows = hours(rows[self._time_column])
        for hour in pc.unique(of_rows).to_pylist():
            self._writer(hour).write_table(rows.filter(pc.equal(of_rows, hour)))

    def adopt(self, path: Path) -> None:
        """Take a finished file of the table. It is moved when its rows are of one hour, otherwise divided."""
        footer = pq.read_metadata(path)
        if not footer.num_rows:
            path.unlink()
            return
        first, last = (bound // _HOUR_US for bound in _time_bounds(path, footer, self._time_column))
        if first == last:
            self._adopted += 1
            path.rename(self._place(first) / f"whole-{self._adopted}{_SUFFIX}")
            return
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                self.write(file.read_row_group(group, use_threads=False))
        path.unlink()

    def close(self) -> None:
        """Finish the files."""
        for writer in self._writers.values():
            writer.close()

    def _writer(self, hour: int) -> pq.ParquetWriter:
        if hour not in self._writers:
            self._writers[hour] = pq.ParquetWriter(self._place(hour) / f"rows{_SUFFIX}", self._schema)
        return self._writers[hour]

    def _place(self, hour: int) -> Path:
        folder = self._folder / (_EPOCH + datetime.timedelta(hours=hour)).strftime("date=%Y-%m-%d/hour=%H")
        _make(folder)
        return folder


def data_file(path: Path, place: str, batch: int, column: str, *, level: int = 0) -> DataFile:
    """The manifest's entry of a finished file, which is made readable for its group; arguments as of ``DataFile``.

    Raises:
        ValueError: the file has no statistics of ``column``, the timestamp in microseconds of its rows.
    """
    os.chmod(path, FILE_MODE)
    footer = pq.read_metadata(path)
    first, last = _time_bounds(path, footer, column)
    return DataFile(place, footer.num_rows, path.stat().st_size, first, last, batch, level)


def _time_bounds(path: Path, footer: pq.FileMetaData, column: str) -> tuple[int, int]:
    index = footer.schema.names.index(column)
    bounds = [footer.row_group(group).column(index).statistics for group in range(footer.num_row_groups)]
    if not bounds or any(bound is None or not bound.has_min_max for bound in bounds):
        raise ValueError(f"{path}: no statistics of the column {column}")
    return min(bound.min_raw for bound in bounds), max(bound.max_raw for bound in bounds)
