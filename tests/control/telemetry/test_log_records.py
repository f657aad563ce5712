"""Rows as log records, as a receiver of the protocol gets them."""

import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.context import Context
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, SeverityNumber
from opentelemetry.trace import SpanKind, use_span

from framegate.control.events import Bus
from framegate.control.logs import LibraryRows, RowCopy, RowLog
from framegate.control.telemetry.log_records import LogRecords
from framegate.control.telemetry.traces import trace_fields
from framegate.proxy.config.log import LogLevel
from tests.fakes.otlp_receiver import OtlpReceiver, attributes_of
from tests.fakes.tracing import recording, tracing
from tests.fakes.waiting import until


def rows(log: RowLog, folder: Path) -> list[dict[str, Any]]:
    log.close()
    return [json.loads(line) for line in (folder / "rows").read_text().splitlines()]


def exported(log: RowLog, write: Callable[[], None], **batch: int) -> list[LogRecord]:
    """What a receiver gets of rows."""
    with recording(**batch) as (records, receiver, _):
        log.copy_to = records.take
        write()
        records.stop()
        return receiver.logs


def test_a_row_is_a_record_with_its_time_level_name_fields_and_text(log: RowLog, tmp_path: Path) -> None:
    fields: dict[str, Any] = {"slot": 3, "ok": True, "share": 0.5, "files": ["a", "b"], "tls": {"version": "1.3"}, "nothing": None}
    before = time.time_ns()
    (record,) = exported(log, lambda: log.write("processor_died", level="error", **fields))
    assert before - 1_000_000 <= record.time_unix_nano <= time.time_ns()
    assert (record.event_name, record.severity_text, record.severity_number) == (
        "framegate.processor_died",
        "error",
        SeverityNumber.SEVERITY_NUMBER_ERROR,
    )
    assert attributes_of(record) == {f"framegate.{key}": value for key, value in fields.items() if value is not None}
    assert json.loads(record.body.string_value) == fields
    assert (record.trace_id, record.span_id) == (b"", b"")
    (row,) = rows(log, tmp_path)
    assert row == {"time": row["time"], "level": "error", "event": "processor_died", **fields}


def test_rows_that_are_not_written_are_no_records(log: RowLog) -> None:
    def write() -> None:
        log.write("quiet", level="debug", a=1)
        log.write_lines("quiet", ['{"a": 1}'], level="debug")
        log.write_encoded("quiet", '{"a": 1}', level="debug")
        log.write("loud", a=1)

    assert [record.event_name for record in exported(log, write)] == ["framegate.loud"]


@pytest.mark.parametrize(("level", "number"), [("debug", 5), ("info", 9), ("warning", 13), ("error", 17)])
def test_levels_are_severities(log: RowLog, level: LogLevel, number: int) -> None:
    log.levels.level = "debug"
    (record,) = exported(log, lambda: log.write("x", level=level, a=1))
    assert (record.severity_text, int(record.severity_number)) == (level, number)


def test_rows_that_are_text_already_and_rows_that_happened_together_are_records_each(log: RowLog, tmp_path: Path) -> None:
    def write() -> None:
        log.write_encoded("closed", '{"id": "0-1-1", "frames": {"request": 3}}')
        log.write_lines("closed", ['{"id": "0-1-2"}', '{"id": "0-1-3"}'])

    records = exported(log, write)
    assert [attributes_of(record)["framegate.id"] for record in records] == ["0-1-1", "0-1-2", "0-1-3"]
    assert attributes_of(records[0])["framegate.frames"] == {"request": 3}
    assert [record.event_name for record in records] == ["framegate.closed"] * 3
    assert [row["id"] for row in rows(log, tmp_path)] == ["0-1-1", "0-1-2", "0-1-3"]


def test_audit_rows_are_records_too_with_the_ids_of_their_call(log: RowLog, tmp_path: Path) -> None:
    bus = Bus((log,), on_failure=lambda error: pytest.fail(str(error)))
    with tracing() as made, recording() as (records, receiver, _):
        log.copy_to, log.span_fields = records.take, trace_fields
        span = made.traces.begin("call", SpanKind.SERVER, {}, Context())
        with use_span(span, end_on_exit=True):
            assert log.reserve()
            bus.publish({"event": "audit", "who": "ada", **trace_fields()}, reserved=True)
            log.write("drain_began", accept="refuse")
        log.write("later", a=1)
        records.stop()
        found = {record.event_name: record for record in receiver.logs}
        context = span.get_span_context()
    for name in ("framegate.audit", "framegate.drain_began"):
        assert (found[name].trace_id.hex(), found[name].span_id.hex()) == (f"{context.trace_id:032x}", f"{context.span_id:016x}")
        assert not any(key.endswith("_id") for key in attributes_of(found[name]))
    assert found["framegate.later"].trace_id == b""
    shown = {row["event"]: row for row in rows(log, tmp_path)}
    assert shown["audit"]["trace_id"] == shown["drain_began"]["trace_id"] == f"{context.trace_id:032x}"
    assert not {"trace_id", "span_id"} & shown["later"].keys()


def test_rows_go_on_to_the_collector_while_stdout_is_not_read() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    log = RowLog(writer, capacity=3)
    big = "x" * 100_000
    with recording() as (records, receiver, _):
        log.copy_to = records.take
        for number in range(8):
            log.write("big", number=number, text=big)
        records.stop()
        assert [attributes_of(record)["framegate.number"] for record in receiver.logs] == list(range(8))
    os.close(reader)
    log.close()
    os.close(writer)
    assert log.dropped > 0


@pytest.mark.parametrize(("count", "dropped"), [(2, 0), (3, 0), (4, 1)])
def test_the_queue_is_bounded_and_what_finds_no_room_is_counted(log: RowLog, count: int, dropped: int) -> None:
    with recording(queue=3, size=1, delay_ms=1) as (records, receiver, account):
        log.copy_to = records.take
        receiver.hold.clear()
        for number in range(count):
            log.write("x", number=number)
        assert account.dropped["logs"] == dropped
        receiver.hold.set()
        records.stop()
        assert len(receiver.logs) == count - dropped


def test_a_collector_that_hangs_does_not_hold_up_the_end(log: RowLog) -> None:
    with recording() as (records, receiver, _):
        receiver.hold.clear()
        log.copy_to = records.take
        log.write("x", a=1)
        began = time.monotonic()
        records.stop(0.2)
        assert time.monotonic() - began < 1.5
        receiver.hold.set()


def test_what_exporters_say_is_on_stdout_only(log: RowLog, tmp_path: Path) -> None:
    """Else each export that fails would make another one."""
    handler = LibraryRows(log)

    def write() -> None:
        for name in ("opentelemetry.sdk", "framegate.control.telemetry.exporters", "grpc._cython", "asyncio"):
            handler.emit(logging.LogRecord(name, logging.WARNING, "", 0, "it fails", (), None))

    assert [attributes_of(record)["framegate.logger"] for record in exported(log, write)] == ["asyncio"]
    assert len(rows(log, tmp_path)) == 4


class Odd:
    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize("value", ["\ud800", {1: "x"}, {"a": {"b": [1, {"c": None}]}}, 1 << 80, float("nan"), b"\xff", Path("/x"), object])
def test_a_strange_value_in_a_row_does_not_lose_other_rows(log: RowLog, value: Any) -> None:
    def write() -> None:
        log.write("odd", value=value)
        log.write("good", a=1)

    assert [record.event_name for record in exported(log, write)] == ["framegate.odd", "framegate.good"]


def test_a_row_that_cannot_be_encoded_is_counted_and_others_follow(log: RowLog) -> None:
    with recording(queue=2, size=1) as (records, receiver, account):
        for _ in range(3):  # more than there is room for: each gives its room back
            records.take(RowCopy(1.0, "info", "odd", {"value": Odd()}))
            records.take(RowCopy(1.0, "info", "odd", ("no json",)))
            until(lambda: not records._room.used)
        records.take(RowCopy(1.0, "info", "good", {"a": 1}))
        records.stop()
        assert ([record.event_name for record in receiver.logs], account.dropped["logs"]) == (["framegate.good"], 6)


def test_the_resource_says_who_exports(log: RowLog) -> None:
    with recording() as (records, receiver, _):
        assert isinstance(records, LogRecords)
        assert isinstance(receiver, OtlpReceiver)
        log.copy_to = records.take
        log.write("x", a=1)
        records.stop()
        assert receiver.resources == [{"service.name": "framegate"}]
