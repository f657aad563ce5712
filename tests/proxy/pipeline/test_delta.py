"""The tables without Spark: what is committed, what other programs read, and what goes again."""

import contextlib
import datetime
import errno
import os
import threading
import time
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from framegate.proxy.pipeline import columns, delta
from framegate.proxy.pipeline.columns import TABLE_SCHEMAS, TIME_COLUMNS, arrow_schema
from framegate.proxy.pipeline.delta import APPLICATION, DeltaTables, Maintenance, TableError, batch_of, files_of, open_table
from framegate.proxy.pipeline.kafka_tables import State
from framegate.proxy.pipeline.sql import open_tables

START = datetime.datetime(2023, 11, 14, 22, 13, 20, 999_999, tzinfo=datetime.UTC)
HOUR = datetime.timedelta(hours=1)
MICROSECOND = datetime.timedelta(microseconds=1)


def rows(*times: datetime.datetime, table: str = "frames", **more: Any) -> pa.Table:
    """Rows of a table with these times, and null in the other columns."""
    schema = pa.schema([field for field in arrow_schema(table) if field.name not in ("date", "hour")])
    return pa.Table.from_pylist([dict.fromkeys(schema.names) | {TIME_COLUMNS[table]: at} | more for at in times], schema=schema)


def write(tables: DeltaTables, batch: int, *times: datetime.datetime, table: str = "frames", query: str = "query", **more: Any) -> int:
    """Add a batch to a table."""
    tables.clear_staging()
    if times:
        tables.stage(table, rows(*times, table=table, **more))
    return tables.commit(table, batch, query)


def frames(output: Path) -> list[dict[str, Any]]:
    read: list[dict[str, Any]] = DeltaTable(output / "frames").to_pyarrow_table().to_pylist()
    return read


def on_disk(output: Path) -> set[str]:
    """The Parquet files in the folder of ``frames``."""
    return {str(path.relative_to(output / "frames")) for path in (output / "frames").glob("*/*/*.parquet")}


def test_rows_are_in_their_hours_and_the_log_says_what_the_files_have(tmp_path: Path) -> None:
    tables = DeltaTables(tmp_path)
    assert write(tables, 0, START, START + HOUR, START + 2 * HOUR, START + MICROSECOND, payload=b"x") == 4
    assert sorted(path.rpartition("/")[0] for path in on_disk(tmp_path)) == [
        "date=2023-11-14/hour=22", "date=2023-11-14/hour=23", "date=2023-11-15/hour=0",
    ]  # fmt: skip
    assert {(row["capture_time"], row["date"], row["hour"]) for row in frames(tmp_path)} == {
        (at, at.date(), at.hour) for at in (START, START + HOUR, START + 2 * HOUR, START + MICROSECOND)
    }
    assert tables.rows() == {**dict.fromkeys(TABLE_SCHEMAS, 0), "frames": 4}
    assert not list(tables.staging.rglob("*.parquet"))


@pytest.mark.parametrize("compacted", [False, True])
def test_files_without_rows_of_the_time_are_left_out(tmp_path: Path, compacted: bool) -> None:
    tables = DeltaTables(tmp_path)
    for batch in range(2):
        write(tables, batch, START, START + 1000 * MICROSECOND)
    if compacted:
        delta.compact(DeltaTable(tmp_path / "frames"), tmp_path / "frames")
    table, count, last = DeltaTable(tmp_path / "frames"), 1 if compacted else 2, START + 1000 * MICROSECOND
    for since, until, found in (
        (None, None, count),
        (START, START + MICROSECOND, count),
        (None, START.replace(microsecond=999_000), 0),  # delta-rs states times in whole milliseconds
        (last, None, count),
        (last + datetime.timedelta(milliseconds=1), None, 0),
    ):
        assert len(files_of(table, "capture_time", since, until)) == found


def test_a_commit_names_its_batch_and_its_query_even_without_rows(tmp_path: Path) -> None:
    tables = DeltaTables(tmp_path)
    assert (batch_of(tmp_path), tables.batches(), tables.batches("query")) == (-1, {}, {})
    assert (write(tables, 0), write(tables, 1, START, query=""), tables.commit("gaps", 5, "other")) == (0, 1, 0)
    assert batch_of(tmp_path) == 1
    assert (tables.batches(), tables.batches("query"), tables.batches("other")) == ({"frames": 1, "gaps": 5}, {"frames": 0}, {"gaps": 5})
    assert DeltaTables(tmp_path).batches() == tables.batches()


def test_a_table_opens_before_a_batch(tmp_path: Path) -> None:
    tables = DeltaTables(tmp_path)
    for batch in range(3):
        write(tables, batch, START)
    delta.compact(DeltaTable(tmp_path / "frames"), tmp_path / "frames")
    for newest, count in ((None, 3), (3, 3), (2, 3), (1, 2), (0, 1), (-1, 0)):
        table = open_table(tmp_path, "frames", newest)
        assert table is not None
        assert table.to_pyarrow_table().num_rows == count
    assert open_table(tmp_path / "nowhere", "frames") is None


def test_a_kill_before_the_commit_leaves_files_that_nobody_reads_and_that_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    def kill(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(delta, "sync", kill)
        with contextlib.suppress(Killed):
            write(DeltaTables(tmp_path), 0, START)
    assert (frames(tmp_path), len(on_disk(tmp_path))) == ([], 1)
    tables = DeltaTables(tmp_path)
    assert write(tables, 0, START) == len(frames(tmp_path)) == 1
    now = time.time()
    for age, left in ((delta.GRACE_S - 60, 2), (delta.GRACE_S + 1, 1)):
        for path in on_disk(tmp_path):
            os.utime(tmp_path / "frames" / path, (now - age, now - age))
        Maintenance(tables, every_s=0, expire_after_s=None).run_once()
        assert (len(on_disk(tmp_path)), len(frames(tmp_path))) == (left, 1)


def test_a_table_gets_the_columns_of_a_later_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = DeltaTables(tmp_path)
    write(tables, 0, START, size=1)
    monkeypatch.setitem(columns._COLUMNS, "colour", ("string", "of the frame"))
    with monkeypatch.context() as later:
        later.setitem(TABLE_SCHEMAS, "frames", f"{TABLE_SCHEMAS['frames']}, colour string")
        write(DeltaTables(tmp_path), 1, START, size=2, colour="red")
        assert {(row["size"], row["colour"]) for row in frames(tmp_path)} == {(1, None), (2, "red")}
        fields = {field.name: field for field in DeltaTable(tmp_path / "frames").schema().fields}
        assert fields["colour"].metadata == {"comment": "of the frame"}
    write(DeltaTables(tmp_path), 2, START, size=3)  # the version before again
    delta.compact(DeltaTable(tmp_path / "frames"), tmp_path / "frames")
    assert {(row["size"], row["colour"]) for row in frames(tmp_path)} == {(1, None), (2, "red"), (3, None)}


def test_the_tables_of_the_version_before_get_the_tables_and_columns_of_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new = ("api", "client_id", "outcome", "acks", "error_code", "fault")
    now = dict(TABLE_SCHEMAS)
    with monkeypatch.context() as before:
        for table in ("kafka_partitions", "groups", "connections"):
            before.delitem(TABLE_SCHEMAS, table)
        for table, added in (("requests", new), ("gaps", ("lost_ends",))):
            known = ", ".join(column for column in TABLE_SCHEMAS[table].split(", ") if column.split()[0] not in added)
            before.setitem(TABLE_SCHEMAS, table, known)
        old = DeltaTables(tmp_path)
        write(old, 0, START, table="requests", latency_us=7, api_key=3, request_size=1, answer_size=1, listener="main")
        write(old, 0, START, table="gaps", lost_frames=1)
        write(old, 0, table="frames")
    TABLE_SCHEMAS.clear()
    TABLE_SCHEMAS.update(now)  # in its order
    tables = DeltaTables(tmp_path)
    assert tables.rows() == {**dict.fromkeys(TABLE_SCHEMAS, 0), "requests": 1, "gaps": 1}
    write(tables, 1, START, table="connections", cause="idle", request_bytes=5)
    write(tables, 1, START, table="gaps", lost_frames=0, lost_ends=3)
    write(tables, 1, START, table="requests", outcome="acks_0", api="Produce", api_key=0, request_size=2, listener="main")
    write(tables, 1, START, table="frames", size=1)
    fields = {field.name: field.metadata.get("comment") for field in DeltaTable(tmp_path / "requests").schema().fields}
    assert all(fields[name] for name in new)
    ask = open_tables(tmp_path)
    assert ask("SELECT cause, request_bytes, detail FROM connections").to_pylist() == [{"cause": "idle", "request_bytes": 5, "detail": None}]
    assert ask("SELECT lost_frames, lost_ends FROM gaps ORDER BY 1").to_pylist() == [
        {"lost_frames": 0, "lost_ends": 3},
        {"lost_frames": 1, "lost_ends": None},
    ]
    assert ask("SELECT api_key, outcome, api FROM requests ORDER BY api_key").to_pylist() == [
        {"api_key": 0, "outcome": "acks_0", "api": "Produce"},
        {"api_key": 3, "outcome": None, "api": None},
    ]
    assert ask("SELECT api, requests, answers FROM requests_by_api ORDER BY api_key").to_pylist() == [
        {"api": "Produce", "requests": 1, "answers": 0},
        {"api": "Metadata", "requests": 1, "answers": 1},
    ]


def test_a_state_is_that_of_the_batch_before_and_two_are_kept(tmp_path: Path) -> None:
    tables = DeltaTables(tmp_path)
    assert tables.read_state(5).topics == {}
    for batch in range(12):
        tables.write_state(batch, State(topics={"id": str(batch)}))
    assert [tables.read_state(batch).topics["id"] for batch in (11, 12, 99)] == ["10", "11", "11"]
    tables.write_state(11, State(topics={"id": "again"}))
    assert (tables.read_state(11).topics["id"], tables.read_state(12).topics["id"]) == ("10", "again")
    assert len(list((tmp_path / delta.STATES).iterdir())) <= 3


def test_a_table_without_rows_for_long_takes_the_next_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(delta._PROPERTIES, "delta.logRetentionDuration", "interval 0 seconds")
    monkeypatch.setattr(delta, "sync_log", lambda *_: None)
    tables = DeltaTables(tmp_path)
    write(tables, 0, START)
    other = DeltaTables(tmp_path)  # maintenance, which has objects of its own
    for batch in range(1, 12):
        write(other, batch)
    later = time.time() - 2  # what was written in this second is not older than the retention
    for path in (tmp_path / "frames" / "_delta_log").glob("*.json"):
        os.utime(path, (later, later))
    for batch in range(12, 22):
        write(other, batch)
    assert not (tmp_path / "frames" / "_delta_log" / f"{2:020}.json").exists()
    assert write(tables, 22, START) == 1
    assert (len(frames(tmp_path)), batch_of(tmp_path)) == (2, 22)


def test_every_column_is_described_and_times_are_utc(tmp_path: Path) -> None:
    DeltaTables(tmp_path)
    for table in TABLE_SCHEMAS:
        found = DeltaTable(tmp_path / table)
        assert (found.metadata().name, found.metadata().partition_columns) == (table, ["date", "hour"])
        assert [(field.name, field.metadata["comment"]) for field in found.schema().fields] == [
            (field.name, field.metadata[b"comment"].decode()) for field in arrow_schema(table)
        ]
        assert "timestamp_ntz" not in found.schema().to_json()


@pytest.mark.parametrize("table", TABLE_SCHEMAS)
def test_other_programs_read_the_tables_with_rows_and_without(tmp_path: Path, table: str) -> None:
    tables = DeltaTables(tmp_path)
    names = arrow_schema(table).names
    for count in (0, 2):
        if count:
            tables.stage(table, rows(START, START + HOUR, table=table))
            tables.commit(table, 0, "query")
        found = DeltaTable(tmp_path / table)
        by_polars = polars.read_delta(str(tmp_path / table))
        by_pandas = found.to_pandas()
        by_duckdb = duckdb.arrow(found.to_pyarrow_dataset()).fetchall()
        assert by_polars.columns == list(by_pandas.columns) == names
        assert by_polars.height == len(by_pandas) == len(by_duckdb) == count
        times = by_polars.sort(TIME_COLUMNS[table])[TIME_COLUMNS[table]]
        assert times.to_list() == [START, START + HOUR][:count]
        assert times.dtype == polars.Datetime("us", "UTC")


def test_small_files_become_one_and_go_after_the_grace_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(delta._PROPERTIES, "delta.deletedFileRetentionDuration", "interval 0 seconds")
    now = time.time()
    tables, size = DeltaTables(tmp_path), 40_000
    for batch in range(6):
        write(tables, batch, START + batch * MICROSECOND, START + HOUR, payload=os.urandom(size))
    before = sorted(frames(tmp_path), key=str)
    work = Maintenance(tables, every_s=0, expire_after_s=None, clock=lambda: now)
    work.run_once()
    assert len(on_disk(tmp_path)) == len(DeltaTable(tmp_path / "frames").file_uris()) == 2
    assert sorted(frames(tmp_path), key=str) == before
    write(tables, 6, START)
    monkeypatch.setattr(delta, "TARGET_BYTES", 4 * size)
    for later, left in ((3599, 3), (3600, 3)):
        now += later
        work.run_once()
        assert len(on_disk(tmp_path)) == left, "a file above the target stays as it is"
    monkeypatch.setattr(delta, "TARGET_BYTES", 64 << 20)
    work.run_once()
    assert (len(on_disk(tmp_path)), len(DeltaTable(tmp_path / "frames").file_uris())) == (4, 2), "files are removed once an hour"
    now += 3600
    work.run_once()
    assert len(on_disk(tmp_path)) == 2


def test_hours_that_ended_long_ago_expire_whole(tmp_path: Path) -> None:
    tables = DeltaTables(tmp_path)
    hour = START.replace(minute=0, second=0, microsecond=0)
    times = [hour, hour + HOUR - MICROSECOND, hour + HOUR, hour + 2 * HOUR]
    for batch, at in enumerate(times):
        write(tables, batch, at)
    now = (hour + 3 * HOUR).timestamp()
    for ago_s, left in ((2 * 3600 + 1, times), (2 * 3600, times[2:]), (3600, times[3:]), (3600, times[3:])):
        Maintenance(tables, every_s=0, expire_after_s=ago_s, clock=lambda: now).run_once()
        assert sorted(row["capture_time"] for row in frames(tmp_path)) == left
    assert write(tables, 4, hour) == 1


def test_the_thread_works_beside_the_batches_and_ends_when_it_is_told(tmp_path: Path) -> None:
    tables = DeltaTables(tmp_path)
    work = Maintenance(tables, every_s=0.001, expire_after_s=None)
    work.start()
    for batch in range(20):
        write(tables, batch, START + batch * MICROSECOND)
    behind = work.passes + 2
    deadline = time.monotonic() + 30
    while work.passes < behind and time.monotonic() < deadline:
        time.sleep(0.01)
    work.close()
    assert sorted(row["capture_time"] for row in frames(tmp_path)) == [START + batch * MICROSECOND for batch in range(20)]
    assert len(DeltaTable(tmp_path / "frames").file_uris()) == 1
    assert "maintenance" not in {thread.name for thread in threading.enumerate()}


def test_a_full_disk_is_said_once_and_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    tries = threading.Semaphore(0)

    def full(*_: object) -> None:
        tries.release()
        raise OSError(errno.ENOSPC, "No space left on device")

    work = Maintenance(DeltaTables(tmp_path), every_s=0.001, expire_after_s=None)
    with monkeypatch.context() as patch:
        patch.setattr(delta, "compact", full)
        work.start()
        for _ in range(3):
            assert tries.acquire(timeout=10)
    deadline = time.monotonic() + 30
    while work.passes == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    work.close()
    assert work.passes
    assert capsys.readouterr().err == "framegate pipeline: maintenance of the tables waits: [Errno 28] No space left on device\n"


def test_a_log_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    DeltaTables(tmp_path)
    (tmp_path / "frames" / "_delta_log" / f"{0:020}.json").write_text("torn\n")
    with pytest.raises(TableError, match=f"^{tmp_path}/frames: [^\n]+$"):
        DeltaTables(tmp_path)


def test_a_retention_is_written_to_new_tables(tmp_path: Path) -> None:
    DeltaTables(tmp_path)
    assert DeltaTable(tmp_path / "gaps").metadata().configuration["delta.logRetentionDuration"] == f"interval {delta.VERSIONS_S} seconds"
    assert APPLICATION == "framegate", "readers of the tables know it"
