"""Merges the small files of a stream, beside the stream: files of one table and hour become few, and old hours are removed.

Compaction is a thread of the job that uses pyarrow and not Spark, so it takes no task slot and no heap from the stream. It reads row group by row
group, so it needs the memory of one; it writes on one core, and rests after each merge as long as the merge took.

In an hour that is still being written, ``FANOUT`` files of one level become one of the next level; so each row is written once for each level. In an
hour that is over, all small files become one. A file of half of ``TARGET_BYTES`` or more stays as it is. With a batch a second and a pass a minute,
an hour of a table has some 16 files after a pass, and one to three when it is over, unless it has more than ``TARGET_BYTES``.

Partial sums are added up in a merge; the views of their tables add up the rest.
"""

import dataclasses
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from framegate.proxy.pipeline.layout import ParquetStore
from framegate.proxy.pipeline.manifest import DataFile
from framegate.proxy.tap.record import FOLDER_MODE

if TYPE_CHECKING:
    from framegate.proxy.pipeline.manifest import Manifest

__all__ = ["FANOUT", "TARGET_BYTES", "Compactor", "Rules", "merge", "plan"]

FANOUT: Final = 6
TARGET_BYTES: Final = 256 << 20
# Of a merged file; a reader that wants five minutes of an hour reads the groups that have them.
ROW_GROUP_BYTES: Final = 32 << 20
# An hour is over when the tables have rows this much younger.
SETTLED_US: Final = 300_000_000
LATE_FILES: Final = 3
_HOUR_US: Final = 3_600_000_000


@dataclasses.dataclass(frozen=True, slots=True)
class Rules:
    """How a table's rows are merged.

    Attributes:
        merge: adds partial sums up, to a row for each key; None: rows stay as they are.
        plain: columns without dictionary and statistics, because their values neither repeat nor are searched for.
    """

    time_column: str
    merge: Callable[[pa.Table], pa.Table] | None = None
    plain: tuple[str, ...] = ()


def plan(manifest: "Manifest", target: int = TARGET_BYTES, fanout: int = FANOUT) -> list[list[DataFile]]:
    """The groups of files to merge now: at least two files of one table and hour, together about ``target`` bytes at most."""
    newest = max((file.last_us for file in manifest.files.values()), default=0)
    folders: dict[str, list[DataFile]] = {}
    for file in manifest.files.values():
        if file.size < target // 2:
            folders.setdefault(file.folder, []).append(file)
    groups: list[list[DataFile]] = []
    for _, files in sorted(folders.items()):
        over = (files[0].first_us // _HOUR_US + 1) * _HOUR_US + SETTLED_US < newest
        if over:
            groups += _bins(files, target) if len(files) > LATE_FILES else []
            continue
        levels = [[file for file in files if file.level == level] for level in sorted({file.level for file in files})]
        groups += _bins(next((same for same in levels if len(same) >= fanout), []), target)
    return groups


def _bins(files: Iterable[DataFile], target: int) -> list[list[DataFile]]:
    """Groups of files in order of time, of ``target`` bytes at most; one file is no group."""
    bins: list[list[DataFile]] = [[]]
    for file in sorted(files, key=lambda file: (file.first_us, file.path)):
        if bins[-1] and sum(other.size for other in bins[-1]) + file.size > target:
            bins.append([])
        bins[-1].append(file)
    return [group for group in bins if len(group) > 1]


def merge(store: ParquetStore, files: Sequence[DataFile], rules: Rules) -> None:
    """Replace several files of one table and hour by one with the same rows."""
    store.merging.mkdir(FOLDER_MODE, exist_ok=True)
    target = store.merging / "merged.parquet"
    paths = [store.file(file.path) for file in files]
    schema = pa.unify_schemas([pq.read_schema(path).remove_metadata() for path in paths])
    names = [name for name in schema.names if name not in rules.plain]
    with pq.ParquetWriter(
        target, schema, compression="zstd", compression_level=1, use_dictionary=names, write_statistics=names, write_page_index=True
    ) as writer:
        pieces = _pieces(paths, schema)
        if rules.merge is not None:
            sums = rules.merge(pa.concat_tables(pieces)).select(schema.names).cast(schema)
            pieces = iter([sums.sort_by(rules.time_column)])
        for table in pieces:
            writer.write_table(table, row_group_size=max(1, table.num_rows))
    store.replace(files, target, rules.time_column, level=max(file.level for file in files) + 1)


def _pieces(paths: Iterable[Path], schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows of files in order, in tables of the size of a row group; columns that a file of an older version lacks are null."""
    waiting: list[pa.Table] = []
    size = 0
    for path in paths:
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                rows = file.read_row_group(group, use_threads=False).replace_schema_metadata()
                waiting.append(pa.concat_tables([schema.empty_table(), rows], promote_options="default").cast(schema))
                size += rows.nbytes
                if size >= ROW_GROUP_BYTES:
                    yield pa.concat_tables(waiting)
                    waiting, size = [], 0
    if waiting:
        yield pa.concat_tables(waiting)


class Compactor:
    """The thread of compaction, from ``start`` to ``close``, with a pass every ``every_s``.

    Attributes:
        passes: the number of passes so far.
    """

    def __init__(
        self,
        store: ParquetStore,
        tables: Mapping[str, Rules],
        *,
        every_s: float,
        expire_after_s: float | None,
        grace_s: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Start nothing yet.

        Args:
            tables: the rules by table; other tables are left alone.
            every_s: between two passes; 0: no thread, the caller calls ``run_once``.
            expire_after_s, grace_s: as of ``tables.TableWriter``.
            clock: wall clock, seconds of the epoch.
        """
        self.passes = 0
        self._store = store
        self._tables = tables
        self._every_s = every_s
        self._expire_after_s = expire_after_s
        self._grace_ns = int(grace_s * 1e9)
        self._clock = clock
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._fault: BaseException | None = None
        self._reported = ""

    def start(self) -> None:
        """Start the thread."""
        if self._every_s > 0:
            self._thread = threading.Thread(target=self._run, name="compaction", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End after the current merge."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def check(self) -> None:
        """Raise the error that ended the thread, if any."""
        if self._fault is not None:
            raise self._fault

    def run_once(self) -> int:
        """One pass: expire, merge until nothing is left to merge, sweep. Returns the number of merges."""
        merges = 0
        self._expire()
        while (groups := plan(self._store.manifest)) and not self._stop.is_set():
            for group in groups:
                began = time.monotonic()
                merge(self._store, group, self._tables[group[0].table])
                merges += 1
                if self._thread is not None:
                    self._stop.wait(time.monotonic() - began)
                if self._stop.is_set():
                    return merges
        self._store.sweep(self._grace_ns)
        self.passes += 1
        return merges

    def _expire(self) -> None:
        if self._expire_after_s is None:
            return
        limit = int((self._clock() - self._expire_after_s) * 1e6)
        for table in self._tables:
            # by whole hours, so that a minute keeps all its partial sums or none
            old = [file for file in self._store.manifest.of(table) if (file.first_us // _HOUR_US + 1) * _HOUR_US <= limit]
            if old:
                self._store.replace(old)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.run_once()
            except OSError as error:  # such as a full disk: the tables stay as they are until the next pass
                self._report(f"compaction waits: {error}")
            except BaseException as error:
                self._report(f"compaction ended: {error!r}")
                self._fault = error
                return
            self._stop.wait(self._every_s)

    def _report(self, text: str) -> None:
        """Write a line to standard error, unless it is the last one again."""
        if text != self._reported:
            self._reported = text
            sys.stderr.write(f"framegate pipeline: {text}\n")
