"""Makes the many small files of a stream few, beside it: merges files of one table and hour, takes away what is too old.

A thread of the job, with pyarrow and without Spark: no task slot and no heap is taken from the stream. It reads row group by row group, so its
memory is that of one, writes on one core, and rests after each merge as long as the merge took.

What is merged. Of an hour that is still being written, as soon as ``FANOUT`` files of one level are there, those become one of the next level;
each row is written again only when the files of its level have become so many. Of an hour that is over, all that is small becomes one. A file of
half of ``TARGET_BYTES`` or more stays as it is. So with a batch a second and a pass a minute an hour of a table has some 16 files behind a pass,
and one to three when it is over, unless it has more bytes than ``TARGET_BYTES`` for each.

Tables of partial sums are added up on the way; their views add up what is left.
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
        time_column: the rows' time.
        merge: puts rows that are partial sums together, a row for each key; None: rows stay rows.
        plain: columns whose values neither repeat nor are looked for: no dictionary, no statistics.
    """

    time_column: str
    merge: Callable[[pa.Table], pa.Table] | None = None
    plain: tuple[str, ...] = ()


def plan(manifest: "Manifest", target: int = TARGET_BYTES, fanout: int = FANOUT) -> list[list[DataFile]]:
    """What is to be merged now: groups of at least two files of one table and hour, together about ``target`` bytes at most."""
    newest = max((file.last_us for file in manifest.files.values()), default=0)
    folders: dict[str, list[DataFile]] = {}
    for file in manifest.files.values():
        if file.size < target // 2:
            folders.setdefault(file.folder, []).append(file)
    groups: list[list[DataFile]] = []
    for _, files in sorted(folders.items()):
        over = (files[0].first_us // _HOUR_US + 1) * _HOUR_US + SETTLED_US < newest
        groups += _bins(files, target) if over and len(files) > LATE_FILES else [] if over else _levels(files, target, fanout)
    return groups


def _levels(files: list[DataFile], target: int, fanout: int) -> list[list[DataFile]]:
    """The first level that has become too many files."""
    for level in sorted({file.level for file in files}):
        same = [file for file in files if file.level == level]
        if len(same) >= fanout:
            return _bins(same, target)
    return []


def _bins(files: Iterable[DataFile], target: int) -> list[list[DataFile]]:
    """Files in order of time, cut where a group has ``target`` bytes; a file alone is no group."""
    bins: list[list[DataFile]] = [[]]
    for file in sorted(files, key=lambda file: (file.first_us, file.path)):
        if bins[-1] and sum(other.size for other in bins[-1]) + file.size > target:
            bins.append([])
        bins[-1].append(file)
    return [group for group in bins if len(group) > 1]


def merge(store: ParquetStore, files: Sequence[DataFile], rules: Rules) -> None:
    """Put one file with the same rows in the place of several of one table and hour."""
    store.merging.mkdir(FOLDER_MODE, exist_ok=True)
    target = store.merging / "merged.parquet"
    paths = [store.file(file.path) for file in files]
    schema = pa.unify_schemas([pq.read_schema(path).remove_metadata() for path in paths])
    names = [name for name in schema.names if name not in rules.plain]
    with pq.ParquetWriter(
        target, schema, compression="zstd", compression_level=1, use_dictionary=names, write_statistics=names, write_page_index=True
    ) as writer:
        for table in _merged(paths, schema, rules) if rules.merge else _pieces(paths, schema):
            writer.write_table(table, row_group_size=max(1, table.num_rows))
    store.replace(files, [target], files[0].table, rules.time_column, level=max(file.level for file in files) + 1)


def _pieces(paths: Iterable[Path], schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows of files in order, in tables worth a row group; columns that a file of an older version lacks are null."""
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


def _merged(paths: Iterable[Path], schema: pa.Schema, rules: Rules) -> Iterator[pa.Table]:
    """One table with the files' rows put together."""
    assert rules.merge is not None, "asked before"
    rows = rules.merge(pa.concat_tables(_pieces(paths, schema)))
    yield rows.select(schema.names).cast(schema).sort_by(rules.time_column)


class Compactor:
    """The thread. Begins with ``start``, looks again every ``every_s`` and when the stream says so, ends with ``close``.

    Attributes:
        passes: how often it has looked through the tables.
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
        """Nothing is done yet.

        Args:
            store: whose files.
            tables: what is merged and how; tables that are not here are left alone.
            every_s: between two passes; 0: no thread, ``run_once`` is called by somebody.
            expire_after_s: hours that ended longer ago go; None: none.
            grace_s: how long a file that is in no table any more stays for readers of earlier manifests.
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
        """Begin, beside the caller."""
        if self._every_s > 0:
            self._thread = threading.Thread(target=self._run, name="compaction", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End behind the merge in hand."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def check(self) -> None:
        """Raise what ended the thread, if something did."""
        if self._fault is not None:
            raise self._fault

    def run_once(self) -> int:
        """One pass: expire, merge until nothing is left to merge, sweep. Returns how many merges."""
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
        for table, rules in self._tables.items():
            # by whole hours: of a minute all partial sums go or none
            old = [file for file in self._store.manifest.of(table) if (file.first_us // _HOUR_US + 1) * _HOUR_US <= limit]
            if old:
                self._store.replace(old, [], table, rules.time_column)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.run_once()
            except OSError as error:  # a full disk passes; the tables stay as they are meanwhile
                self._report(f"compaction waits: {error}")
            except BaseException as error:
                self._report(f"compaction ended: {error!r}")
                self._fault = error
                return
            self._stop.wait(self._every_s)

    def _report(self, text: str) -> None:
        """A line on standard error, not twice the same."""
        if text != self._reported:
            self._reported = text
            sys.stderr.write(f"framegate pipeline: {text}\n")
