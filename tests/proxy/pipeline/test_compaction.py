import errno
import os
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from framegate.proxy.pipeline import compaction
from framegate.proxy.pipeline.compaction import FANOUT, Compactor, merge, plan
from framegate.proxy.pipeline.layout import ParquetStore
from framegate.proxy.pipeline.manifest import DataFile, Manifest, read_manifest
from tests.fakes.table_files import HOUR_US, RULES, START_US, by_folders, by_manifest, publish, store_of

MINUTE_US = 60_000_000


@pytest.fixture(autouse=True)
def no_power_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here is about what a disk has kept."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(os, "fdatasync", lambda fd: None)


def manifest(*files: DataFile) -> Manifest:
    return Manifest(files={file.path: file for file in files})


def file(number: int, *, hour: int = 7, size: int = 1, level: int = 0, table: str = "frames") -> DataFile:
    first = hour * HOUR_US + number
    return DataFile(f"{table}/date=1970-01-01/hour={hour:02d}/{number}.parquet", 1, size, first, first + 1, number, level)


def compactor(store: ParquetStore, **facts: float) -> Compactor:
    return Compactor(store, RULES, **{"every_s": 0, "expire_after_s": None, "grace_s": 0, **facts})  # type: ignore[arg-type]


def test_an_hour_in_hand_is_merged_by_levels() -> None:
    assert plan(manifest(*(file(number) for number in range(FANOUT - 1)))) == []
    (group,) = plan(manifest(*(file(number) for number in range(FANOUT + 3))))
    assert [part.batch for part in group] == list(range(FANOUT + 3))
    mixed = manifest(*(file(number) for number in range(FANOUT - 1)), *(file(100 + number, level=1) for number in range(FANOUT)))
    assert [[part.level for part in group] for group in plan(mixed)] == [[1] * FANOUT]


def test_tables_and_hours_stay_apart() -> None:
    groups = plan(manifest(*(file(number, hour=hour, table=table) for number in range(FANOUT) for hour in (7, 8) for table in ("frames", "gaps"))))
    assert sorted({part.folder for part in group}.pop() for group in groups) == sorted({part.folder for group in groups for part in group})
    assert len(groups) == 4


def test_an_hour_that_is_over_becomes_one_file() -> None:
    over = [file(0, level=2), file(1, level=1), file(2), file(3)]
    settled = file(0, hour=9)
    assert plan(manifest(*over, file(0, hour=8))) == [], "late rows may come"
    assert plan(manifest(*over, settled)) == [over]
    assert plan(manifest(*over[:3], settled)) == [], "late rows gather before all is written again"


def test_big_files_stay_and_groups_have_a_size() -> None:
    assert plan(manifest(*(file(number, size=50) for number in range(20))), target=100) == []
    groups = plan(manifest(*(file(number, size=40) for number in range(7))), target=100)
    assert [[part.batch for part in group] for group in groups] == [[0, 1], [2, 3], [4, 5]]


def test_a_merged_file_has_all_rows_in_order(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    for batch in (2, 0, 1):
        publish(store, batch, at_us=START_US + batch)
    before = by_manifest(tmp_path)
    merge(store, store.manifest.of("rows"), RULES["rows"])
    (merged,) = store.manifest.of("rows")
    assert by_manifest(tmp_path) == by_folders(tmp_path) == before
    assert (merged.rows, merged.level, merged.batch, merged.first_us, merged.last_us) == (9, 1, 2, START_US, START_US + 4)
    assert pq.read_table(store.file(merged.path))["batch"].to_pylist() == [0] * 3 + [1] * 3 + [2] * 3
    footer = pq.read_metadata(store.file(merged.path))
    assert footer.row_group(0).column(footer.schema.names.index("payload")).statistics is None


def test_partial_sums_are_added_up(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    for batch in range(3):
        publish(store, batch, at_us=START_US + batch * MINUTE_US // 2, rows=batch + 1)
    merge(store, store.manifest.of("sums"), RULES["sums"])
    (merged,) = store.manifest.of("sums")
    rows = pq.read_table(store.file(merged.path)).drop(["minute"]).to_pylist()
    assert rows == [{"listener": None, "frames": 3, "first": 0, "last": 1}, {"listener": None, "frames": 3, "first": 2, "last": 2}]


def test_files_of_an_older_version_lack_a_column(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    publish(store, 0)
    publish(store, 1)
    new = store.manifest.of("rows")[1]
    table = pq.read_table(store.file(new.path))
    pq.write_table(table.append_column("why", pa.array(["x"] * 3)), store.file(new.path))
    merge(store, store.manifest.of("rows"), RULES["rows"])
    (merged,) = store.manifest.of("rows")
    assert pq.read_table(store.file(merged.path))["why"].to_pylist() == [None] * 3 + ["x"] * 3


def test_row_groups_have_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "ROW_GROUP_BYTES", 20_000)
    store = store_of(tmp_path)
    for batch in range(6):
        publish(store, batch, payload=b"y" * 4000)
    merge(store, store.manifest.of("rows"), RULES["rows"])
    footer = pq.read_metadata(store.file(store.manifest.of("rows")[0].path))
    assert [footer.row_group(number).num_rows for number in range(footer.num_row_groups)] == [6, 6, 6]


def test_an_hour_of_3600_batches_stays_under_100_files() -> None:
    """The plan alone, for two files of a batch, a pass a minute: five tables have five times as many."""
    files: dict[str, DataFile] = {}
    behind, written = [], 0
    for batch in range(3600):
        for part in (file(2 * batch, size=1000), file(2 * batch + 1, size=1000)):
            files[part.path] = part
        if batch % 60 == 59:
            while groups := plan(manifest(*files.values())):
                for group in groups:
                    for part in group:
                        del files[part.path]
                    size = sum(part.size for part in group)
                    written += size
                    first, level = min(part.first_us for part in group), max(part.level for part in group) + 1
                    merged = DataFile(f"{group[0].folder}/m{written}-{batch}.parquet", 1, size, first, first + 1, batch, level)
                    files[merged.path] = merged
            behind.append(len(files))
    assert max(behind) <= 20
    assert sum(part.size for part in files.values()) == 7_200_000
    assert written <= 4 * 7_200_000, "each row is written again three times or so"


def test_hours_that_ended_long_ago_expire_whole(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    for batch, at in enumerate((START_US, START_US + HOUR_US - 9, START_US + HOUR_US, START_US + 2 * HOUR_US)):
        publish(store, batch, at_us=at, rows=1)
    now = START_US / 1e6 + 3 * 3600
    for ago, left in ((2 * 3600 + 1, [0, 1, 2, 3]), (2 * 3600, [2, 3]), (3600, [3])):
        Compactor(store, RULES, every_s=0, expire_after_s=ago, grace_s=0, clock=lambda: now).run_once()
        assert by_manifest(tmp_path) == by_folders(tmp_path) == (left, len(left))
    assert not (tmp_path / "rows" / "date=2023-11-14").exists()
    assert store.manifest.total == {"rows": 4, "sums": 4}
    assert store.manifest.removed == {}


def test_the_thread_works_beside_and_ends_when_it_is_told(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    work = compactor(store, every_s=0.001)
    work.start()
    for batch in range(40):
        publish(store, batch)
    behind = work.passes + 2
    while work.passes < behind:
        work.check()
    work.close()
    assert by_manifest(tmp_path) == by_folders(tmp_path)
    assert len(by_manifest(tmp_path)[0]) == 120
    assert len(read_manifest(tmp_path).of("rows")) < 2 * FANOUT
    assert "compaction" not in {thread.name for thread in threading.enumerate()}


def test_a_full_disk_is_said_once_and_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    store = store_of(tmp_path)
    for batch in range(FANOUT):
        publish(store, batch)
    tries = threading.Semaphore(0)

    def full(*_: object) -> None:
        tries.release()
        raise OSError(errno.ENOSPC, "No space left on device")

    work = compactor(store, every_s=0.001)
    with monkeypatch.context() as patch:
        patch.setattr(compaction, "merge", full)
        work.start()
        for _ in range(3):
            assert tries.acquire(timeout=10)
    while work.passes == 0:
        work.check()
    work.close()
    assert capsys.readouterr().err == "framegate pipeline: compaction waits: [Errno 28] No space left on device\n"
    assert len(store.manifest.of("rows")) == 1


def test_what_ends_the_thread_ends_the_job(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    for batch in range(FANOUT):
        publish(store, batch)
    store.file(store.manifest.of("rows")[0].path).write_bytes(b"damaged")
    work = compactor(store, every_s=60)
    work.start()
    work._thread.join(10)  # type: ignore[union-attr]
    with pytest.raises(pa.ArrowInvalid):
        work.check()
    work.close()
