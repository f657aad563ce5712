"""Rows on their way to stdout: which are written, which are dropped and counted, and log records of libraries."""

import contextlib
import datetime
import errno
import fcntl
import json
import logging
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from framegate.control.errors import InvalidArgumentError
from framegate.control.events import Bus, Event, Row
from framegate.control.logs import Levels, LibraryRows, RowLog, check_silenced
from framegate.control.logs import row_log as module
from framegate.proxy.config.log import LEVELS, LogLevel
from tests.fakes.cases import each_of
from tests.fakes.waiting import until

Pipe = tuple[int, int]


@contextlib.contextmanager
def open_pipe() -> Iterator[Pipe]:
    """Reader and writer of a pipe."""
    both = os.pipe()
    yield both
    for descriptor in both:
        os.close(descriptor)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    with open_pipe() as both:
        yield both


def lines(descriptor: int) -> list[dict[str, object]]:
    return [json.loads(line) for line in os.read(descriptor, 1 << 20).splitlines()]


def test_rows_are_json_lines_in_order_with_time_level_and_event_first(pipe: Pipe) -> None:
    reader, writer = pipe
    log = RowLog(writer)
    log.write("one", listener="a")
    log.write("two", level="error", path=os.sep, strange={1, 2}.__class__)
    log.close()
    rows = lines(reader)
    assert [list(row)[:3] for row in rows] == [["time", "level", "event"]] * 2
    assert [(row["level"], row["event"]) for row in rows] == [("info", "one"), ("error", "two")]
    assert str(rows[0]["time"]).endswith("Z")
    assert rows[1]["strange"] == "<class 'set'>"


def test_a_row_that_is_json_already_looks_like_any_other(pipe: Pipe) -> None:
    reader, writer = pipe
    log = RowLog(writer, capacity=0)
    log.write_encoded("lost", "{}")
    log._capacity = 10
    log.write_encoded("closed", '{"id": "0-1-2", "detail": "said \\"no\\""}')
    log.write_encoded("closed", '{"id": "0-1-3"}')
    log.close()
    first, second = lines(reader)
    assert list(first) == ["time", "level", "event", "rows_dropped", "id", "detail"]
    assert (first["level"], first["event"], first["rows_dropped"], first["detail"]) == ("info", "closed", 1, 'said "no"')
    assert list(second) == ["time", "level", "event", "id"]
    assert datetime.datetime.fromisoformat(str(first["time"])).tzinfo == datetime.UTC


def test_each_row_is_published_as_it_is_in_the_log_also_when_stdout_takes_none(pipe: Pipe) -> None:
    reader, writer = pipe
    for capacity in (0, 10):
        log = RowLog(writer, capacity=capacity, levels=Levels("info"))
        log.levels.silenced = frozenset(["opened"])
        log.write("one", level="error", slot=1)
        log.write("quiet", level="debug")
        log.write_lines("opened", ['{"id": "0-1-1"}'])
        log.write_lines("closed", ['{"id": "0-1-2"}', '{"id": "0-1-3"}'])
        assert log.reserve()
        log.write_reserved("audit", {"who": "ada"})
        log.close()
        published = log.written.subscribe(after=0, only_kept=True).take()
        assert [(event.level, event.name, {**event.row, "event": event.name}) for event in published if isinstance(event, Event)] == [
            ("error", "one", {"event": "one", "slot": 1}),
            ("info", "closed", {"event": "closed", "id": "0-1-2"}),
            ("info", "closed", {"event": "closed", "id": "0-1-3"}),
            ("info", "audit", {"event": "audit", "who": "ada"}),
        ]
        assert len(lines(reader)) == (1, 4)[capacity > 0]


def test_a_reader_that_is_gone_stops_rows_and_nothing_else() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    log = RowLog(writer)
    log.write("nobody hears")
    log.write("nobody hears")
    log.close()
    os.close(writer)


def fill_pipe(descriptor: int) -> None:
    """Make a pipe small and fill it, so that the next write to it waits for its reader."""
    fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(descriptor, False)
    for size in (4096, 1):  # to the last byte
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(descriptor, b"\n" * size)
    os.set_blocking(descriptor, True)


def test_while_stdout_is_blocked_rows_are_dropped_except_those_with_a_reserved_place(pipe: Pipe) -> None:
    reader, writer = pipe
    fill_pipe(writer)
    log = RowLog(writer, capacity=4, places=3)
    for number in range(50):
        log.write("closed", number=number)
    places = [log.reserve() for _ in range(5)]
    assert places == [True, True, True, False, False]
    for number in range(3):
        log.write_reserved("audit", {"number": number})
    assert not log.reserve(), "a place is free when its row is written, not when it is queued"
    rows: list[dict[str, object]] = []
    data = b""

    def read() -> bool:
        nonlocal data
        data += os.read(reader, 65536)
        rows[:] = [json.loads(line) for line in data.splitlines() if line]
        return len([row for row in rows if row["event"] == "audit"]) == 3

    until(read)
    assert [row["number"] for row in rows if row["event"] == "audit"] == [0, 1, 2]
    assert log.dropped == 50 - len([row for row in rows if row["event"] == "closed"])
    assert log.dropped > 40
    assert sum(int(str(row.get("rows_dropped", 0))) for row in rows) == log.dropped
    until(log.reserve)
    log.write_reserved("audit", {"number": 3})
    log.close()


def test_what_is_below_the_level_takes_no_room(pipe: Pipe) -> None:
    reader, writer = pipe
    fill_pipe(writer)
    log = RowLog(writer, capacity=4, levels=Levels("warning"))
    log.write("first", level="error")
    until(lambda: log._queue.qsize() == 0)
    for _ in range(50):
        log.write("closed")
        log.write_lines("closed", ['{"id": "0-1-2"}', '{"id": "0-1-3"}'])
    assert (log.dropped, log.is_behind) == (0, False)
    for behind in (False, False, True, True):
        log.write("stopped", level="warning")
        assert log.is_behind is behind
    assert log.dropped == 0
    log.write("stopped", level="warning")
    assert log.dropped == 1
    until(lambda: bool(os.read(reader, 4096).strip(b"\n")))
    log.close()


def test_places_are_bounded_in_bytes_too(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = pipe
    monkeypatch.setattr(module, "_PLACE_BYTES", 100)
    fill_pipe(writer)
    log = RowLog(writer)
    assert log.reserve()
    log.write_reserved("audit", {"request": "x" * 100})
    assert not log.reserve()
    until(lambda: bool(os.read(reader, 4096).strip(b"\n")))
    until(log.reserve)
    log.write_reserved("audit", {"a": 1})
    log.close()


def test_rows_wait_while_the_disk_is_full_and_none_is_torn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "_RETRY_S", 0.01)
    full, write = True, os.write

    def limited(descriptor: int, data: bytes) -> int:
        if descriptor == 2 or not full:
            return write(descriptor, data)
        if os.fstat(descriptor).st_size < 10:
            return write(descriptor, bytes(data[:10]))
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", limited)
    with (tmp_path / "log").open("wb") as file:
        log = RowLog(file.fileno())
        assert log.reserve()
        log.write_reserved("audit", {"who": "root"})
        until(lambda: log.fault)
        log.write("serving")
        assert (log.fault, log.reserve(), log.dropped) == ("[Errno 28] No space left on device", False, 0)
        full = False
        until(lambda: not log.fault)
        assert log.reserve()
        log.release()
        log.close()
    assert [json.loads(line)["event"] for line in (tmp_path / "log").read_text().splitlines()] == ["audit", "serving"]
    assert capfd.readouterr().err == "framegate: rows cannot be written, changes are refused: [Errno 28] No space left on device\n"


def test_when_stdout_is_broken_no_place_can_be_reserved_and_the_end_reports_lost_rows(capfd: pytest.CaptureFixture[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    log = RowLog(writer)
    assert log.reserve()
    log.write_reserved("audit", {"who": "root"})
    until(lambda: log.dropped)
    assert (log.fault, log.reserve()) == ("[Errno 32] Broken pipe", False)
    log.close()
    os.close(writer)
    assert capfd.readouterr().err.splitlines() == [
        "framegate: rows can no longer be written, changes are refused: [Errno 32] Broken pipe",
        "framegate: rows not written: 1, of them about changes: 1",
    ]


class Unspeakable:
    def __str__(self) -> str:
        raise ZeroDivisionError("no words")

    __repr__ = __str__


def test_a_row_that_cannot_be_encoded_is_replaced_and_reported(pipe: Pipe) -> None:
    reader, writer = pipe
    failures: list[BaseException] = []
    log = RowLog(writer)
    log.on_failure = failures.append
    log.write("odd", value=Unspeakable())
    log.write("odder", value={(1, 2): 3})
    assert log.reserve()
    log.write_reserved("audit", {"who": "root", "value": {(1, 2): 3}})
    log.write("good")
    assert log.reserve()
    log.write_reserved("audit", {"who": "ada", "value": Unspeakable()})
    log.span_fields = lambda: dict([1 // 0])
    assert log.reserve()
    log.write_reserved("audit", {"who": "bob"})
    log.close()
    assert log._taken == 0
    rows = lines(reader)
    told = [("row_failed", "odd"), ("row_failed", "odder"), ("audit", None), ("good", None), ("audit", None), ("audit", None)]
    assert [(row["event"], row.get("row")) for row in rows] == told
    assert ["'who': 'ada'" in str(rows[4]["unreadable"]), "'who': 'bob'" in str(rows[5]["unreadable"])] == [True, True]
    assert rows[0]["error"] == "ZeroDivisionError('no words')"
    assert "'who': 'root'" in str(rows[2]["unreadable"])
    assert [type(failure) for failure in sorted(failures, key=repr)] == [TypeError, TypeError, *[ZeroDivisionError] * 3]


def test_the_writer_survives_a_bug_of_its_own(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = pipe
    failures: list[BaseException] = []
    log = RowLog(writer)
    log.on_failure = failures.append

    def broken(data: bytes) -> None:
        del log._write
        raise ValueError("our bug")

    log._write = broken  # type: ignore[method-assign]
    log.write("lost")
    until(lambda: bool(failures))
    log.write("kept")
    log.close()
    assert [row["event"] for row in lines(reader)] == ["kept"]


def test_rows_that_happened_together_are_lines_with_one_time_in_order(pipe: Pipe) -> None:
    reader, writer = pipe
    log = RowLog(writer, capacity=0)
    log.write("lost")
    log._capacity = 10
    log.write_lines("closed", ['{"id": "0-1-2", "detail": "naïve"}', '{"id": "0-1-3"}', '{"id": "0-1-4"}'])
    log.write("after")
    log.close()
    rows = lines(reader)
    assert [(row["event"], row.get("id"), row.get("rows_dropped")) for row in rows] == [
        ("closed", "0-1-2", 1),
        ("closed", "0-1-3", None),
        ("closed", "0-1-4", None),
        ("after", None, None),
    ]
    assert list(rows[0]) == ["time", "level", "event", "rows_dropped", "id", "detail"]
    assert (rows[0]["level"], rows[0]["detail"], len({row["time"] for row in rows[:3]})) == ("info", "naïve", 1)


@each_of(("room", "kept"), [(0, 0), (1, 1), (2, 2), (3, 3), (4, 3)], fresh={"pipe": open_pipe})
def test_of_rows_that_happened_together_as_many_are_kept_as_fit(pipe: Pipe, room: int, kept: int) -> None:
    """Each counts, also those that wait together: the bound is one of rows."""
    reader, writer = pipe
    fill_pipe(writer)
    log = RowLog(writer, capacity=1000)
    log.write("first")
    until(lambda: log._queue.qsize() == 0)  # the thread has it, and cannot write it
    log.write_lines("closed", ['{"n": 1}', '{"n": 2}'])
    log._capacity = 2 + room
    log.write_lines("closed", ['{"n": 3}', '{"n": 4}', '{"n": 5}'])
    log.write("last")
    assert log.dropped == 3 - kept + (0 if room > 3 else 1)
    data = b""
    while f'"n": {2 + kept}'.encode() not in data:
        data += os.read(reader, 65536)
    while room > 3 and b"last" not in data:
        data += os.read(reader, 65536)
    log._capacity = 1000
    log.write("end")
    log.close()
    data += os.read(reader, 65536)
    rows = [json.loads(line) for line in data.splitlines() if line]
    assert [row["n"] for row in rows if row["event"] == "closed"] == list(range(1, 3 + kept))
    assert sum(row.get("rows_dropped", 0) for row in rows) == log.dropped
    assert log._together == 0


def test_what_a_library_logs_becomes_a_row_with_its_error(pipe: Pipe) -> None:
    reader, writer = pipe
    log = RowLog(writer)
    logger = logging.Logger("opentelemetry.exporter")
    logger.addHandler(LibraryRows(log))
    logger.info("not worth a row")
    logger.error("the client has gone", exc_info=type("ExecuteBatchError", (Exception,), {})("failed"))
    try:
        raise ConnectionRefusedError("nobody there")
    except ConnectionRefusedError:
        logger.exception("export to %s failed", "collector")
    log.close()
    (row,) = lines(reader)
    assert (row["event"], row["level"], row["logger"]) == ("library_log", "error", "opentelemetry.exporter")
    assert (row["message"], row["error"]) == ("export to collector failed", "ConnectionRefusedError: nobody there")


def test_a_log_record_with_wrong_arguments_is_a_row_and_exceptions_are_counted(pipe: Pipe) -> None:
    reader, writer = pipe
    log = RowLog(writer)
    counted: list[int] = []
    logger = logging.Logger("grpc")
    logger.addHandler(LibraryRows(log, lambda: counted.append(1)))
    logger.error("%d of %s", "x")
    assert counted == []
    logger.error("callback failed", exc_info=ValueError("no"))
    log.close()
    assert [row["message"] for row in lines(reader)] == ["%d of %s ('x',)", "callback failed"]
    assert counted == [1]


@each_of(("level", "shown"), [(logging.WARNING, "warning"), (logging.ERROR, "error"), (logging.CRITICAL, "error")], fresh={"pipe": open_pipe})
def test_levels_of_libraries_become_warning_or_error(pipe: Pipe, level: int, shown: str) -> None:
    reader, writer = pipe
    log = RowLog(writer)
    logger = logging.Logger("grpc")
    logger.addHandler(LibraryRows(log))
    logger.log(level, "said")
    log.close()
    assert [row["level"] for row in lines(reader)] == [shown]


@each_of("least", LEVELS)
def test_rows_from_the_level_on_are_written_and_those_below_are_not(least: LogLevel) -> None:
    levels = Levels(least)
    assert [levels.passes("closed", level) for level in LEVELS] == [LEVELS.index(level) >= LEVELS.index(least) for level in LEVELS]


def test_rows_about_changes_are_always_written() -> None:
    levels = Levels("error")
    assert levels.passes("audit", "info")
    with pytest.raises(InvalidArgumentError, match="audit are always written"):
        check_silenced({"closed", "audit"})


def test_an_event_is_silenced_whatever_its_level() -> None:
    levels = Levels("debug")
    levels.silenced = frozenset({"closed", "access"})
    assert [levels.passes(event, "error") for event in ("closed", "access", "opened")] == [False, False, True]
    check_silenced(levels.silenced)


def test_an_event_that_does_not_exist_is_not_silenced() -> None:
    with pytest.raises(InvalidArgumentError, match="there is no event 'clsoed'"):
        check_silenced({"clsoed"})


def test_sampled_rows_stand_for_those_left_out_and_bad_ones_are_always_written(pipe: Pipe) -> None:
    reader, writer = pipe
    total = 400
    good = [f'{{"id":"0-1-{number}","cause":"peer_closed"}}' for number in range(total)]
    random.seed(28)

    def unread(number: int, text: str) -> Row:
        raise AssertionError("the log writes the text")

    for share, least, most in ((0.0, 0, 0), (0.25, 60, 140), (1.0, total, total)):
        log = RowLog(writer, levels=Levels("info", share))
        failures: list[Exception] = []
        bus = Bus((log,), on_failure=failures.append)
        bus.publish_lines("closed", good, unread)
        bus.publish_lines("closed", good[:3], unread, level="warning")
        bus.publish_lines("closed", [f'{good[0][:-1]},"lost":{{"bytes":7}}}}'], unread)
        log.close()
        rows = lines(reader)
        bad = [row for row in rows if row["level"] == "warning" or "lost" in row]
        well = [row for row in rows if row not in bad]
        assert (len(bad), any("sampled" in row for row in bad), failures) == (4, False, [])
        assert least <= len(well) <= most
        assert sum(row.get("sampled", 1) for row in well) + log._alike == total
