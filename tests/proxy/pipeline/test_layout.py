import collections
import contextlib
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from framegate.proxy.pipeline.compaction import Compactor
from framegate.proxy.pipeline.layout import FILES, HourFiles, data_file
from framegate.proxy.pipeline.manifest import ManifestError, read_manifest
from tests.fakes.table_files import HOUR_US, RULES, START_US, by_folders, by_manifest, publish, stage, store_of

BATCHES = 3


class PowerCutError(BaseException):
    """The process is gone here."""


def rows_of(batches: int) -> tuple[list[int], int]:
    return [batch for batch in range(batches) for _ in range(3)], 3 * batches


def test_a_published_batch_is_in_all_tables_by_both_ways(tmp_path: Path, no_umask: None) -> None:
    store = store_of(tmp_path)
    publish(store, 0, files=2)
    publish(store, 1, at_us=START_US + HOUR_US)
    assert by_manifest(tmp_path) == by_folders(tmp_path) == rows_of(2)
    folders = collections.Counter(file.folder for file in store.manifest.files.values())
    assert folders == {
        "rows/date=2023-11-14/hour=23": 2,
        "rows/date=2023-11-15/hour=00": 1,
        "sums/date=2023-11-14/hour=23": 1,
        "sums/date=2023-11-15/hour=00": 1,
    }
    first = store.manifest.of("rows")[0]
    assert (first.first_us, first.rows, first.batch, first.level) == (START_US, 2, 0, 0)
    assert store.manifest.rows == {"rows": 3, "sums": 1}
    assert store.manifest.total == {"rows": 6, "sums": 2}
    kept = [path for path in tmp_path.rglob("*") if path.is_dir() or path.suffix == ".parquet"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in kept if "_staging" not in path.parts} == {0o750, 0o640}


def test_a_file_without_statistics_of_its_time_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"capture_time": pa.array([1], type=pa.timestamp("us"))}), tmp_path / "x", write_statistics=False)
    with pytest.raises(ValueError, match="no statistics of the column capture_time"):
        data_file(tmp_path / "x", "rows/x", 0, "capture_time")


def test_folders_are_set_right_at_the_start(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    for batch in range(3):
        publish(store, batch)
    stage(store, 3)
    store.close()
    hidden, shown, orphan = sorted(file.path for file in read_manifest(tmp_path).files.values())[:3]
    (tmp_path / FILES / hidden).unlink()
    (tmp_path / shown).unlink()
    shutil.copy(tmp_path / orphan, tmp_path / FILES / Path(orphan).with_name("orphan.parquet"))
    shutil.copy(tmp_path / orphan, tmp_path / Path(orphan).with_name("orphan.parquet"))
    store_of(tmp_path).close()
    assert by_manifest(tmp_path) == by_folders(tmp_path) == rows_of(3)
    assert not list(tmp_path.rglob("orphan.parquet"))
    assert not (tmp_path / "_staging").exists()
    (tmp_path / FILES / hidden).unlink()
    (tmp_path / hidden).unlink()
    with pytest.raises(ManifestError, match="files of the tables are gone, 1 in all: rows/"):
        store_of(tmp_path)


def test_a_removed_file_stays_for_its_readers_until_the_grace_is_over(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    store._now_ns = lambda: 10_000
    publish(store, 0)
    (file,) = store.manifest.of("rows")
    store.replace([file])
    assert not (tmp_path / file.path).exists()
    assert not (tmp_path / file.path).parent.exists()
    assert store.file(file.path).exists()
    store._now_ns = lambda: 10_099
    assert store.sweep(100) == 0
    assert store.file(file.path).exists()
    store._now_ns = lambda: 10_100
    assert store.sweep(100) == 1
    assert not store.file(file.path).parent.exists()
    assert store.manifest.removed == {}


def job(output: Path) -> None:
    """A job that goes on where the manifest says, compacts as it goes, and forgets removed files at once."""
    store = store_of(output)
    try:
        compactor = Compactor(store, RULES, every_s=0, expire_after_s=None, grace_s=0)
        for batch in range(store.manifest.batch + 1, BATCHES):
            publish(store, batch, files=2)
            if batch % 3 == 2:
                compactor.run_once()
    finally:
        store.close()


class Cut:
    """Ends the process, so to speak, behind the n-th change of the file system."""

    SYNCS = (os.fsync, os.fdatasync)
    CALLS = ("write", "fsync", "fdatasync", "rename", "link", "unlink", "chmod")

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        self.at = -1
        for name in self.CALLS:
            patch.setattr(os, name, self._counted(getattr(os, name), torn=name == "write"))

    def _counted(self, call: Callable[..., Any], *, torn: bool) -> Callable[..., Any]:
        def counted(*words: Any, **facts: Any) -> Any:
            self.calls += 1
            if self.calls == self.at and torn:
                call(words[0], words[1][: len(words[1]) // 2])
            try:
                if call in self.SYNCS or (self.calls == self.at and torn):
                    return None  # a killed process loses nothing of what it had written
                return call(*words, **facts)
            finally:
                if self.calls == self.at:
                    raise PowerCutError

        return counted


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_whatever_moment_a_job_is_killed_at_readers_see_whole_batches_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        cut = Cut(patch)
        job(tmp_path / "whole")
    assert by_manifest(tmp_path / "whole") == by_folders(tmp_path / "whole") == rows_of(BATCHES)
    assert cut.calls > 80
    for at in range(1, cut.calls + 1, 5 if os.environ.get("FRAMEGATE_TESTS") == "short" else 1):
        output = tmp_path / str(at)
        with monkeypatch.context() as patch:
            killed = Cut(patch)
            killed.at = at
            with pytest.raises(PowerCutError):
                job(output)
        before = read_manifest(output).batch + 1
        assert by_manifest(output) == rows_of(before), f"killed at {at}"
        store_of(output).close()
        assert by_manifest(output) == by_folders(output) == rows_of(before), f"started again behind {at}"
        job(output)
        assert by_manifest(output) == by_folders(output) == rows_of(BATCHES)
        stored = {str(path.relative_to(output / FILES)) for path in (output / FILES).rglob("*.parquet")}
        state = read_manifest(output)
        assert state.files.keys() <= stored <= state.files.keys() | state.removed.keys(), "nothing is left over"
        shutil.rmtree(output)


SCHEMA = pa.schema([("at", pa.timestamp("us", "UTC")), ("number", pa.int64())])


def rows_at(*times_us: int) -> pa.Table:
    return pa.table({"number": range(len(times_us)), "at": pa.array(times_us).cast(pa.timestamp("us", "UTC"))})


def files_of(folder: Path) -> dict[str, list[int]]:
    """By date and hour, the times of the rows there."""
    found: dict[str, list[int]] = {}
    for path in sorted(folder.glob("date=*/hour=*/*.parquet")):
        times = pq.ParquetFile(path).read()["at"].cast(pa.int64()).to_pylist()
        found.setdefault(str(path.parent.relative_to(folder)), []).extend(times)
    return found


def test_rows_go_to_the_file_of_their_hour(tmp_path: Path) -> None:
    with contextlib.closing(HourFiles(tmp_path / "t", SCHEMA, "at")) as files:
        files.write(rows_at())
        assert not (tmp_path / "t").exists(), "nothing is made for nothing"
        files.write(rows_at(HOUR_US - 1, HOUR_US, 25 * HOUR_US - 1))
        files.write(rows_at(HOUR_US + 1))
    assert files_of(tmp_path / "t") == {
        "date=1970-01-01/hour=00": [HOUR_US - 1],
        "date=1970-01-01/hour=01": [HOUR_US, HOUR_US + 1],
        "date=1970-01-02/hour=00": [25 * HOUR_US - 1],
    }
    assert pq.read_schema(next((tmp_path / "t").glob("*/*/*.parquet"))).names == SCHEMA.names


@pytest.mark.parametrize("times", [(0,), (0, HOUR_US - 1), (HOUR_US - 1, HOUR_US), (0, HOUR_US, 30 * HOUR_US), ()])
def test_a_file_is_moved_as_it_is_or_split_by_hours(tmp_path: Path, times: tuple[int, ...]) -> None:
    given = tmp_path / "given.parquet"
    pq.write_table(rows_at(*times).select(SCHEMA.names).cast(SCHEMA), given, row_group_size=1)
    before = given.stat().st_ino
    with contextlib.closing(HourFiles(tmp_path / "t", SCHEMA, "at")) as files:
        files.adopt(given)
    assert not given.exists()
    found = files_of(tmp_path / "t")
    assert sorted(at for rows in found.values() for at in rows) == sorted(times)
    assert len(found) == len({at // HOUR_US for at in times})
    assert [path.stat().st_ino == before for path in (tmp_path / "t").glob("*/*/*.parquet")] == [len(found) == 1] * len(found)
