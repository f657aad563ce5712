"""framegate.control.tap.keeper: the ledger says first what is born, deleted and tapped; the budget, the consumers."""

import errno
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from framegate.control.errors import StartError
from framegate.control.tap import keeper as module
from framegate.proxy.config.model import TapRule
from framegate.proxy.tap import ledger_writer, log_reader
from framegate.proxy.tap.completeness import verify
from framegate.proxy.tap.consumer import remove_consumer, write_consumer
from framegate.proxy.tap.ledger import read_ledger
from framegate.proxy.tap.record import SEGMENT_HEADER_BYTES, segment_file, stream_name
from tests.fakes.tap_keeper import death, gaps, keeper, processor
from tests.fakes.tap_log import START_NS, FakeProcessor
from tests.fakes.waiting import until


@pytest.mark.parametrize("disk", ["refuses", "hangs"])
def test_a_birth_that_the_disk_does_not_take_does_not_hold_up_a_start_and_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disk: str
) -> None:
    monkeypatch.setattr(module, "SWEEP_INTERVAL_S", 0.005)
    monkeypatch.setattr(module, "BORN_TIMEOUT_S", 0.02 if disk == "hangs" else 0.5)
    tap, log, _ = keeper(tmp_path)
    real, entered, hangs = tap._ledger.born, threading.Event(), threading.Event()

    def born(*arguments: Any) -> None:
        entered.set()
        if disk == "hangs":
            hangs.wait(10)
        elif not log.events("tap_keeper_failed"):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(*arguments)

    monkeypatch.setattr(tap._ledger, "born", born)
    tap.born(0, "boot")
    assert entered.wait(5)
    if disk == "hangs":
        assert "n.0.boot" not in read_ledger(str(tmp_path)).streams
        hangs.set()
    until(lambda: "n.0.boot" in read_ledger(str(tmp_path)).streams)
    tap.stop()
    assert [row["error"].partition(" is")[0] for row in log.events("tap_keeper_failed")] == (
        ["the ledger does not say what n.0.boot"] if disk == "refuses" else []
    )


def test_other_rules_are_in_the_ledger(tmp_path: Path) -> None:
    tap, _, _ = keeper(tmp_path, rules=(TapRule(name="requests", directions=("request",)),))
    tap.born(0, "boot")
    tap.tapped((TapRule(name="all"),))
    tap.tapped(())
    tap.stop()
    assert read_ledger(str(tmp_path)).streams["n.0.boot"].tapped == [("a", "request"), ("a", "response")]
    assert read_ledger(str(tmp_path)).last == 2, "less than before is nothing new"


def test_what_retention_takes_is_in_the_ledger_first_and_still_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SWEEP_INTERVAL_S", 0.005)
    tap, log, _ = keeper(tmp_path, budget=1 << 20, segment_size=1 << 16)
    tap.born(0, "boot")
    at_unlink: list[int] = []
    real = os.unlink

    def unlink(path: Any) -> None:
        if str(path).endswith(".seg"):
            at_unlink.append(read_ledger(str(tmp_path)).streams["n.0.boot"].deleted_to)
        real(path)

    monkeypatch.setattr(os, "unlink", unlink)
    writer = processor(tmp_path, "boot", segment_size=1 << 16)
    for _ in range(40):
        writer.block([bytes(50_000)])
    until(lambda: log.events("tap_deleted"))
    tap.died(death("boot", request=41))
    tap.stop()
    stream_record = read_ledger(str(tmp_path)).streams["n.0.boot"]
    assert stream_record.deleted_to >= log_reader.first_offset(str(tmp_path), "n.0.boot") > 0
    assert (stream_record.cut_from_ns, stream_record.cut_until_ns) == (START_NS, START_NS)
    assert at_unlink
    assert min(at_unlink) > 0
    assert gaps(tmp_path) == [("n.recovery.boot", "a", "request", 1, "processor_died", "at_most")]


@pytest.mark.parametrize("damaged", [False, True])
def test_a_dead_stream_that_retention_took_whole_is_cut_beside_what_control_wrote_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: bool
) -> None:
    before_ns = time.time_ns()
    tap, _, _ = keeper(tmp_path)
    tap.born(0, "boot")
    writer = processor(tmp_path, "boot")
    writer.block([b"kept"] * 3, at_ns=time.time_ns())
    tap.died(death("boot", request=3))
    tap.stop()
    (row,) = verify(str(tmp_path)).rows
    assert (row.stream, row.seen, row.stored, row.state) == ("n.0.boot", 3, 3, "complete")
    (segment,) = log_reader.segments(str(tmp_path), "n.0.boot")
    if damaged:
        with open(segment.path, "r+b") as file:
            file.seek(SEGMENT_HEADER_BYTES)
            file.write(b"none")  # instead of a block's header
    os.utime(segment.path, (0, 0))
    monkeypatch.setattr(module, "SWEEP_INTERVAL_S", 0.005)
    again, _, _ = keeper(tmp_path, max_age_ms=3_600_000)
    until(lambda: log_reader.streams(str(tmp_path)) == ["n.recovery.boot"])
    again.stop()
    verdict = verify(str(tmp_path))
    assert verdict.faults == []
    assert {(row.stream, row.listener, row.direction, row.state) for row in verdict.rows} == {
        ("n.0.boot", "a", "request", "cut"),
        ("n.0.boot", "a", "response", "cut"),
    }
    assert sorted({(row.seen, row.stored) for row in verdict.rows}) == [(0, 0), (3, 0)]
    stream_record = read_ledger(str(tmp_path)).streams["n.0.boot"]
    assert before_ns <= stream_record.cut_from_ns == stream_record.born_ns <= stream_record.cut_until_ns <= time.time_ns()


def test_a_ledger_without_room_does_not_keep_retention_from_making_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SWEEP_INTERVAL_S", 0.005)
    tap, log, _ = keeper(tmp_path, budget=1 << 20, segment_size=1 << 16)
    tap.born(0, "boot")
    real = tap._ledger.deleted

    def deleted(*arguments: Any) -> None:
        if not log.events("tap_deleted"):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(*arguments)

    monkeypatch.setattr(tap._ledger, "deleted", deleted)
    writer = processor(tmp_path, "boot", segment_size=1 << 16)
    for _ in range(40):
        writer.block([bytes(50_000)])
    until(lambda: read_ledger(str(tmp_path)).streams["n.0.boot"].deleted_to)
    tap.stop()
    assert log.events("tap_deleted")
    assert "what was deleted" in log.events("tap_keeper_failed")[0]["error"]


def test_a_ledger_that_grew_is_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SWEEP_INTERVAL_S", 0.005)
    monkeypatch.setattr(ledger_writer, "COMPACT_BYTES", 4096)
    tap, _, _ = keeper(tmp_path)
    for number in range(30):
        tap.born(0, f"boot{number}")
        tap.died(death(f"boot{number}"))
    until(lambda: os.path.getsize(tmp_path / "_ledger.jsonl") < 4096)
    tap.stop()
    found = read_ledger(str(tmp_path))
    assert (found.damage, found.forgotten) == ("", 0)
    assert found.last >= 60


def test_a_ledger_that_cannot_be_used_is_no_start(tmp_path: Path) -> None:
    (tmp_path / "_ledger.jsonl").mkdir()
    with pytest.raises(StartError, match="its ledger"):
        keeper(tmp_path)
    (tmp_path / "_ledger.jsonl").rmdir()
    keeper(tmp_path)[0].stop()


def test_a_consumer_file_that_cannot_be_read_is_told_and_shown_until_it_is_good_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SWEEP_INTERVAL_S", 0.005)
    write_consumer(str(tmp_path), "job", {}, 0)
    (tmp_path / "_consumers" / "job.json").write_text("{")
    tap, log, meters = keeper(tmp_path)
    until(lambda: meters.snapshot()["framegate.tap.consumer.unreadable", ()] == 1)
    write_consumer(str(tmp_path), "job", {}, 0)
    until(lambda: meters.snapshot()["framegate.tap.consumer.unreadable", ()] == 0)
    tap.stop()
    (row,) = log.events("tap_consumer_unreadable")
    assert (row["consumer"], row["level"]) == ("job", "error")
    assert "job.json" in row["error"]
    assert [row["consumer"] for row in log.events("tap_consumer_readable")] == ["job"]


def test_the_lag_of_each_consumer_is_shown_until_it_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SWEEP_INTERVAL_S", 0.005)
    processor = FakeProcessor(tmp_path, boot_id="old")
    processor.block([b"frame"], at_ns=time.time_ns() - 60 * 10**9)
    processor.close()
    write_consumer(str(tmp_path), "job", {}, 0)
    tap, _, meters = keeper(tmp_path)
    consumer = (("framegate.consumer", "job"),)
    until(lambda: ("framegate.tap.lag", consumer) in meters.snapshot())
    values = meters.snapshot()
    assert values["framegate.tap.lag", consumer] > 0
    assert 60 <= values["framegate.tap.lag.time", consumer] < 75
    write_consumer(str(tmp_path), "job", {processor.stream: 1 << 40}, 0)
    until(lambda: meters.snapshot()["framegate.tap.lag", consumer] == 0)
    assert meters.snapshot()["framegate.tap.lag.time", consumer] == 0
    remove_consumer(str(tmp_path), "job")
    until(lambda: ("framegate.tap.lag", consumer) not in meters.snapshot())
    assert ("framegate.tap.lag.time", consumer) not in meters.snapshot()
    tap.stop()


def test_the_directory_is_kept_within_its_budget_and_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SWEEP_INTERVAL_S", 0.01)
    folder = tmp_path / stream_name("n", "0", "old")
    folder.mkdir()
    for number in range(3):
        (folder / segment_file(number * 100_000, sealed=True)).write_bytes(bytes(104_096))
    tap, _, meters = keeper(tmp_path, budget=1 << 20, segment_size=1 << 16)
    values = meters.snapshot()
    assert values["framegate.tap.limit", ()] == 1 << 20
    until(lambda: meters.snapshot()["framegate.tap.usage", ()])
    assert meters.snapshot()["framegate.tap.usage", ()] == 3 * 104_096
    tap.stop()
