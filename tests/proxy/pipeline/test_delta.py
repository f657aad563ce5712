"""The tables without Spark: what is committed, what other programs read, and what goes again."""

import contextlib
import datetime
import errno
import itertools
import os
import threading
import time
from collections.abc import Callable
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
from framegate.proxy.pipeline.place import UNFINISHED, Folder, place_of
from framegate.proxy.pipeline.sql import open_tables
from framegate.proxy.pipeline.table_files import TableFile
from framegate.proxy.tap.store import StoreError
from tests.fakes.jobs import table as rows_in
from tests.fakes.outputs import Output, files_in, opened
from tests.fakes.s3 import S3

START = datetime.datetime(2023, 11, 14, 22, 13, 20, 999_999, tzinfo=datetime.UTC)
HOUR = datetime.timedelta(hours=1)
MICROSECOND = datetime.timedelta(microseconds=1)


@pytest.fixture
def two_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not all of them: each costs a store some requests more, whatever is done."""
    monkeypatch.setattr(delta, "TABLE_SCHEMAS", {name: TABLE_SCHEMAS[name] for name in ("frames", "gaps")})


@pytest.fixture
def output(two_tables: None, output: Output) -> Output:
    return output


def rows(*times: datetime.datetime, table: str = "frames", **more: Any) -> pa.Table:
    """Rows of a table with these times, and null in the other columns."""
    schema = pa.schema([field for field in arrow_schema(table) if field.name not in ("date", "hour")])
    return pa.Table.from_pylist([dict.fromkeys(schema.names) | {TIME_COLUMNS[table]: at} | more for at in times], schema=schema)


def write(tables: DeltaTables, batch: int, *times: datetime.datetime, table: str = "frames", query: str = "query", **more: Any) -> int:
    """Add a batch to a table."""
    with tables.lock:
        return tables.commit(table, batch, query, tables.write(table, rows(*times, table=table, **more)) if times else [])


def compact(output: Output, table: str = "frames") -> None:
    delta.compact(opened(output, table), place_of(output), table)


def test_rows_are_in_their_hours_and_the_log_says_what_the_files_have(output: Output) -> None:
    tables = DeltaTables(output)
    assert write(tables, 0, START, START + HOUR, START + 2 * HOUR, START + MICROSECOND, payload=b"x") == 4
    assert sorted(path.rpartition("/")[0] for path in files_in(output)) == [
        "date=2023-11-14/hour=22", "date=2023-11-14/hour=23", "date=2023-11-15/hour=0",
    ]  # fmt: skip
    assert {(row["capture_time"], row["date"], row["hour"]) for row in rows_in(output, "frames")} == {
        (at, at.date(), at.hour) for at in (START, START + HOUR, START + 2 * HOUR, START + MICROSECOND)
    }
    assert tables.rows() == {"frames": 4, "gaps": 0}


@pytest.mark.parametrize("compacted", [False, True])
def test_files_without_rows_of_the_time_are_left_out(output: Output, compacted: bool) -> None:
    tables = DeltaTables(output)
    for batch in range(2):
        write(tables, batch, START, START + 1000 * MICROSECOND)
    if compacted:
        compact(output)
    table, count, last = opened(output), 1 if compacted else 2, START + 1000 * MICROSECOND
    for since, until, found in (
        (None, None, count),
        (START, START + MICROSECOND, count),
        (None, START.replace(microsecond=999_000), 0),  # delta-rs states times in whole milliseconds
        (last, None, count),
        (last + datetime.timedelta(milliseconds=1), None, 0),
    ):
        assert len(files_of(table, "capture_time", since, until)) == found


def test_a_commit_names_its_batch_and_its_query_even_without_rows(output: Output) -> None:
    tables = DeltaTables(output)
    assert (batch_of(output), tables.batches(), tables.batches("query")) == (-1, {}, {})
    assert (write(tables, 0), write(tables, 1, START, query=""), tables.commit("gaps", 5, "other", [])) == (0, 1, 0)
    assert batch_of(output) == 1
    assert (tables.batches(), tables.batches("query"), tables.batches("other")) == ({"frames": 1, "gaps": 5}, {"frames": 0}, {"gaps": 5})
    assert DeltaTables(output).batches() == tables.batches()


def test_a_table_opens_before_a_batch(output: Output) -> None:
    tables = DeltaTables(output)
    for batch in range(3):
        write(tables, batch, START)
    compact(output)
    for newest, count in ((None, 3), (3, 3), (2, 3), (1, 2), (0, 1), (-1, 0)):
        table = open_table(output, "frames", newest)
        assert table is not None
        assert table.to_pyarrow_table().num_rows == count
    assert open_table(f"{output}/nowhere", "frames") is None


def test_files_of_a_batch_that_was_not_committed_are_read_by_nobody_and_go(output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(delta._PROPERTIES, "delta.deletedFileRetentionDuration", "interval 0 seconds")
    tables = DeltaTables(output)
    tables.write("frames", rows(START))  # and killed
    assert (rows_in(output, "frames"), len(files_in(output))) == ([], 1)
    assert write(tables, 0, START) == len(rows_in(output, "frames")) == 1
    assert len(files_in(output)) == 2
    Maintenance(tables, every_s=0, expire_after_s=None).run_once()
    assert (len(files_in(output)), len(rows_in(output, "frames"))) == (1, 1)


def test_files_in_no_table_stay_for_the_grace_time(tmp_path: Path) -> None:
    tables = DeltaTables(tmp_path)
    write(tables, 0)
    tables.write("frames", rows(START))
    now = time.time()
    for age, left in ((delta.GRACE_S - 60, 1), (delta.GRACE_S + 1, 0)):
        for path in files_in(tmp_path):
            os.utime(tmp_path / "frames" / path, (now - age, now - age))
        Maintenance(tables, every_s=0, expire_after_s=None).run_once()
        assert len(files_in(tmp_path)) == left


def test_a_removal_of_files_waits_for_the_batch_that_writes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = DeltaTables(tmp_path)
    write(tables, 0, START)
    monkeypatch.setattr(delta, "TABLE_SCHEMAS", {"frames": TABLE_SCHEMAS["frames"]})  # it is opened before the batch is committed
    work = Maintenance(tables, every_s=0, expire_after_s=None)
    thread = threading.Thread(target=work.run_once)
    with tables.lock:
        (file,) = tables.write("frames", rows(START))
        os.utime(tmp_path / "frames" / file.path, (0, 0))  # the batch takes long
        thread.start()
        thread.join(0.3)
        assert thread.is_alive()
        tables.commit("frames", 1, "query", [file])
    thread.join(30)
    assert (len(rows_in(tmp_path, "frames")), work.passes) == (2, 1)


def before_call(patch: pytest.MonkeyPatch, target: Any, name: str, act: Callable[[], object]) -> None:
    """Act before the next call of a function."""
    made = getattr(target, name)

    def stopped(*args: Any, **options: Any) -> Any:
        patch.undo()
        act()
        return made(*args, **options)

    patch.setattr(target, name, stopped)


def test_a_stale_job_removes_no_file_of_the_one_that_took_its_place(output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it stands still in a removal of files. It loses nothing of what the other one has committed, nor of what that one will commit."""
    monkeypatch.setitem(delta._PROPERTIES, "delta.deletedFileRetentionDuration", "interval 0 seconds")
    batches = itertools.count()
    taken: list[tuple[DeltaTables, list[TableFile]]] = []

    def take_over() -> None:
        live = DeltaTables(output)
        write(live, next(batches), START)
        taken.append((live, live.write("frames", rows(START))))

    for call in ("DeltaTable", "vacuum", "_jobs", "remove"):
        stale = DeltaTables(output)
        write(stale, next(batches), START)
        stale.write("frames", rows(START))  # there is something to remove
        target: Any = {"DeltaTable": delta, "vacuum": DeltaTable, "_jobs": stale, "remove": stale.place}[call]
        refused = pytest.raises(TableError, match="another job writes") if call != "remove" else contextlib.nullcontext()
        with monkeypatch.context() as patch, refused:
            before_call(patch, target, call, take_over)
            stale.remove_unused("frames")
        live, files = taken.pop()
        live.commit("frames", batch := next(batches), "query", files)
        assert len(rows_in(output, "frames")) == batch + 1


def test_a_job_removes_what_an_earlier_one_has_not_committed_only_when_that_one_cannot_commit_it(
    output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(delta._PROPERTIES, "delta.deletedFileRetentionDuration", "interval 0 seconds")
    for first in ("stale", "live"):
        stale = DeltaTables(f"{output}-{first}")
        late = stale.write("frames", rows(START))
        live = DeltaTables(stale.output)
        work = Maintenance(live, every_s=0, expire_after_s=None)
        work.run_once()
        if first == "live":
            write(live, 0, START)
            work.run_once()
        with contextlib.nullcontext() if first == "stale" else pytest.raises(TableError, match="has batch 0 already"):
            stale.commit("frames", 0, "query", late)
        assert len(rows_in(stale.output, "frames")) == len(files_in(Path(stale.output) if isinstance(output, Path) else stale.output)) == 1


def test_a_batch_is_added_once_though_another_job_goes_on_that_was_thought_dead(output: Output) -> None:
    thought_dead, now = DeltaTables(output), DeltaTables(output)
    late, files = thought_dead.write("frames", rows(START)), now.write("frames", rows(START))
    assert now.commit("frames", 0, "query", files) == 1
    with pytest.raises(TableError, match="has batch 0 already: another job writes"):
        thought_dead.commit("frames", 0, "query", late)
    table: Any = thought_dead._tables["frames"]
    late = thought_dead.write("frames", rows(START))
    assert now.commit("frames", 1, "query", now.write("frames", rows(START))) == 1
    with pytest.MonkeyPatch.context() as patch:  # between its look at the table and its commit
        patch.setattr(thought_dead, "_tables", {"frames": _Unmoved(table)})
        with pytest.raises(TableError, match=r"frames: Failed to commit .*[Cc]oncurrent transaction"):
            thought_dead.commit("frames", 1, "query", late)
    assert len(rows_in(output, "frames")) == 2


class _Unmoved:
    """A table that does not learn of new versions."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def update_incremental(self) -> None:
        """Nothing."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)


@pytest.mark.extended
def test_a_store_that_refuses_or_loses_its_answers_gets_each_row_once(s3: S3, two_tables: None) -> None:
    """Wherever a request is refused, or done and refused, for a while: the job ends with an error, and the next one adds what is missing."""
    output = f"{s3.url}/tables"
    batch, said = 0, list[str]()
    DeltaTables(output)
    for done in (False, True):
        for method, part in (("PUT", ".parquet"), ("PUT", "_delta_log"), ("GET", "_delta_log"), ("PUT", "_requests"), ("GET", "?list")):
            left = [1, 4][batch % 2]  # of them within the client's own attempts, or more

            def fault(found: str, path: str, method: str = method, part: str = part) -> int | None:
                nonlocal left
                if found == method and (part in path or (part == "?list" and path == "/taps")) and left:
                    left -= 1
                    return 503
                return None

            s3.refuses_done = done
            s3.fault = fault
            for _ in range(9):  # the job is started again
                try:
                    tables = DeltaTables(output)
                    if tables.batches().get("frames", -1) < batch:
                        tables.write_state(tables.read_state(batch), State(topics={"id": str(batch)}))
                        write(tables, batch, START, size=batch)
                    break
                except (TableError, StoreError) as error:
                    said.append(str(error))
            s3.fault = lambda method, path: None
            assert sorted(row["size"] for row in rows_in(output, "frames", "size")) == list(range(batch + 1)), (done, method, part)
            assert DeltaTables(output).read_state(batch + 1).before.topics["id"] == str(batch)
            batch += 1
    assert said
    assert not any("\n" in text or "\x1b" in text for text in said)


def test_a_table_gets_the_columns_of_a_later_version(output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = DeltaTables(output)
    write(tables, 0, START, size=1)
    monkeypatch.setitem(columns._COLUMNS, "colour", ("string", "of the frame"))
    with monkeypatch.context() as later:
        later.setitem(TABLE_SCHEMAS, "frames", f"{TABLE_SCHEMAS['frames']}, colour string")
        write(DeltaTables(output), 1, START, size=2, colour="red")
        assert {(row["size"], row["colour"]) for row in rows_in(output, "frames")} == {(1, None), (2, "red")}
        fields = {field.name: field for field in opened(output).schema().fields}
        assert fields["colour"].metadata == {"comment": "of the frame"}
    write(DeltaTables(output), 2, START, size=3)  # the version before again
    compact(output)
    assert {(row["size"], row["colour"]) for row in rows_in(output, "frames")} == {(1, None), (2, "red"), (3, None)}


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
    fields = {field.name: field.metadata.get("comment") for field in opened(tmp_path, "requests").schema().fields}
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


def test_a_state_is_that_of_the_batch_before_and_of_its_last_attempt_and_two_are_kept(output: Output) -> None:
    tables = DeltaTables(output)

    def keep(batch: int, **state: Any) -> None:
        tables.write_state(tables.read_state(batch), State(**state))

    assert tables.read_state(5)[:2] == (State(), None)
    for batch in range(12):
        keep(batch, topics={"id": str(batch)})
    assert [tables.read_state(batch).before.topics["id"] for batch in (11, 12, 99)] == ["10", "11", "11"]
    for number in range(11):  # attempts at the last batch
        keep(11, topics={"id": f"again {number}"})
    keep(11, topics={"id": "again 10"})
    assert (tables.read_state(11).before.topics["id"], tables.read_state(12).before.topics["id"]) == ("10", "again 10")
    assert len(tables.place.names(delta.STATES)) == 1 + 12
    tables.place.create(f"{delta.STATES}/killed{UNFINISHED}", b"")
    for ends in ({"edge/a": 7, "edge/b": None}, {"edge/a": 8}):
        keep(12, known_ends=ends)
        found = DeltaTables(output).read_state(12).earlier
        assert found is not None
        assert found.known_ends == ends, "the next attempt at the batch takes the same"
    assert len(tables.place.names(delta.STATES)) == 12 + 2, "the batches 11 and 12"
    tables.place.create(f"{delta.STATES}/13.arrow", b"torn")
    with pytest.raises(TableError, match=r"_requests/13.arrow cannot be read: [^\n]+$"):
        tables.read_state(14)


def test_a_table_without_rows_for_long_takes_the_next_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(delta._PROPERTIES, "delta.logRetentionDuration", "interval 0 seconds")
    monkeypatch.setattr(Folder, "sync_files", lambda *_: None)
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
    assert (len(rows_in(tmp_path, "frames")), batch_of(tmp_path)) == (2, 22)


def test_every_column_is_described_and_times_are_utc(tmp_path: Path) -> None:
    DeltaTables(tmp_path)
    for table in TABLE_SCHEMAS:
        found = opened(tmp_path, table)
        assert (found.metadata().name, found.metadata().partition_columns) == (table, ["date", "hour"])
        assert [(field.name, field.metadata["comment"]) for field in found.schema().fields] == [
            (field.name, field.metadata[b"comment"].decode()) for field in arrow_schema(table)
        ]
        assert "timestamp_ntz" not in found.schema().to_json()


@pytest.mark.parametrize("table", TABLE_SCHEMAS)
def test_other_programs_read_the_tables_with_rows_and_without(tmp_path: Path, table: str) -> None:
    check_readers(tmp_path, table)


def test_other_programs_read_the_tables_of_a_url(s3: S3, two_tables: None) -> None:
    check_readers(f"{s3.url}/tables", "frames")


def check_readers(output: Output, table: str) -> None:
    tables = DeltaTables(output)
    names = arrow_schema(table).names
    for count in (0, 2):
        if count:
            write(tables, 0, START, START + HOUR, table=table)
        found = opened(output, table)
        by_polars = polars.read_delta(place_of(output).address(table))
        by_pandas = found.to_pandas()
        by_duckdb = duckdb.arrow(found.to_pyarrow_dataset()).fetchall()
        assert by_polars.columns == list(by_pandas.columns) == names
        assert by_polars.height == len(by_pandas) == len(by_duckdb) == count
        times = by_polars.sort(TIME_COLUMNS[table])[TIME_COLUMNS[table]]
        assert times.to_list() == [START, START + HOUR][:count]
        assert times.dtype == polars.Datetime("us", "UTC")


def test_small_files_become_one_and_go_after_the_grace_time(output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(delta._PROPERTIES, "delta.deletedFileRetentionDuration", "interval 0 seconds")
    now = time.time()
    tables, size = DeltaTables(output), 40_000
    for batch in range(6):
        write(tables, batch, START + batch * MICROSECOND, START + HOUR, payload=os.urandom(size))
    before = sorted(rows_in(output, "frames"), key=str)
    work = Maintenance(tables, every_s=0, expire_after_s=None, clock=lambda: now)
    work.run_once()
    assert len(files_in(output)) == len(opened(output).file_uris()) == 2
    assert sorted(rows_in(output, "frames"), key=str) == before
    write(tables, 6, START)
    monkeypatch.setattr(delta, "TARGET_BYTES", 4 * size)
    for later, left in ((3599, 3), (3600, 3)):
        now += later
        work.run_once()
        assert len(files_in(output)) == left, "a file above the target stays as it is"
    monkeypatch.setattr(delta, "TARGET_BYTES", 64 << 20)
    work.run_once()
    assert (len(files_in(output)), len(opened(output).file_uris())) == (4, 2), "files are removed once an hour"
    now += 3600
    work.run_once()
    assert len(files_in(output)) == 2


def test_hours_that_ended_long_ago_expire_whole(output: Output) -> None:
    tables = DeltaTables(output)
    hour = START.replace(minute=0, second=0, microsecond=0)
    times = [hour, hour + HOUR - MICROSECOND, hour + HOUR, hour + 2 * HOUR]
    for batch, at in enumerate(times):
        write(tables, batch, at)
    now = (hour + 3 * HOUR).timestamp()
    for ago_s, left in ((2 * 3600 + 1, times), (2 * 3600, times[2:]), (3600, times[3:]), (3600, times[3:])):
        Maintenance(tables, every_s=0, expire_after_s=ago_s, clock=lambda: now).run_once()
        assert sorted(row["capture_time"] for row in rows_in(output, "frames")) == left
    assert write(tables, 4, hour) == 1


def test_the_thread_works_beside_the_batches_and_ends_when_it_is_told(output: Output) -> None:
    tables = DeltaTables(output)
    work = Maintenance(tables, every_s=0.001, expire_after_s=None)
    work.start()
    for batch in range(20):
        write(tables, batch, START + batch * MICROSECOND)
    behind = work.passes + 2
    deadline = time.monotonic() + 30
    while work.passes < behind and time.monotonic() < deadline:
        time.sleep(0.01)
    work.close()
    assert sorted(row["capture_time"] for row in rows_in(output, "frames")) == [START + batch * MICROSECOND for batch in range(20)]
    assert len(opened(output).file_uris()) == 1
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
