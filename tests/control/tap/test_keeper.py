"""framegate.control.tap.keeper: a processor that died is settled, and what fails in the keeper's thread costs itself."""

import errno
import queue
import threading
from pathlib import Path
from typing import Any

import pytest

from framegate.control.errors import StartError
from framegate.control.tap import keeper as module
from framegate.control.tap import settlement
from framegate.control.tap.keeper import tapped_pairs
from framegate.proxy.config.model import TapRule
from framegate.proxy.tap import log_reader
from framegate.proxy.tap.block_builder import BlockBuilder
from framegate.proxy.tap.gap import Gap
from framegate.proxy.tap.ledger import read_ledger
from framegate.proxy.tap.record import stream_name
from framegate.proxy.tap.segment import SegmentLog
from tests.control.tap.test_settlement import count_reads
from tests.fakes.tap_keeper import death, gaps, keeper, processor
from tests.fakes.tap_log import MINUTE_NS, START_NS
from tests.fakes.tap_read import read_blocks
from tests.fakes.waiting import until


def test_pairs_that_rules_can_match() -> None:
    both = TapRule(name="b", listeners=("b",))
    answers = TapRule(name="all", directions=("response",))
    assert tapped_pairs(["a", "b"], [both, answers]) == [("a", "response"), ("b", "request"), ("b", "response")]
    assert tapped_pairs(["a", "b"], []) == []


def test_a_death_with_frames_unaccounted_leaves_a_gap_for_each_listener_and_direction(tmp_path: Path) -> None:
    tap, log, _ = keeper(tmp_path)
    tap.born(0, "boot")
    assert read_ledger(str(tmp_path)).streams["n.0.boot"].tapped == [("a", "request"), ("a", "response")], "before the processor starts"
    tap.died(death("boot", request=6, response=5))
    tap.stop()
    (stream,) = log_reader.streams(str(tmp_path))
    assert stream == "n.recovery.boot"
    assert gaps(tmp_path) == [(stream, "a", "request", 6, "processor_died", "at_most"), (stream, "a", "response", 5, "processor_died", "at_most")]
    (row,) = log.events("tap_gap")
    assert (row["recovery"], row["frames"], row["certainty"], row["slot"]) == (stream, {"request": 6, "response": 5}, "at_most", 0)
    assert row["listeners"] == {"a": {"request": 6, "response": 5}}
    ledger = read_ledger(str(tmp_path))
    assert all(stream_record.settled for stream_record in ledger.streams.values())
    assert ledger.streams["n.0.boot"].end == 0
    assert ledger.streams[stream].end == log_reader.end_offset(str(tmp_path), stream) > 0


def test_what_the_stream_has_or_says_is_missing_is_not_missing_twice_and_its_window_is_stated(tmp_path: Path) -> None:
    tap, _, _ = keeper(tmp_path)
    tap.born(0, "boot")
    writer = processor(tmp_path, "boot")
    writer.block([b"kept"] * 3)
    writer.send([b"lost"] * 4)
    tap.died(death("boot", request=7))
    tap.stop()
    assert gaps(tmp_path) == [("n.recovery.boot", "a", "request", 4, "processor_died", "at_most")]
    (block,) = read_blocks(str(tmp_path), "n.recovery.boot")
    (found,) = block.gaps()
    assert found.from_ns == START_NS
    assert [(totals.listener, totals.frames, totals.bytes) for totals in block.totals()] == [("a", 3, 24)]


def test_a_death_with_everything_in_the_log_leaves_a_line_and_no_gap_and_two_keepers_share_no_directory(tmp_path: Path) -> None:
    tap, log, _ = keeper(tmp_path)
    with pytest.raises(StartError, match="another framegate"):
        keeper(tmp_path)
    tap.born(0, "boot")
    tap.died(death("boot"))
    tap.stop()
    assert log_reader.streams(str(tmp_path)) == []
    assert log.rows == []
    assert read_ledger(str(tmp_path)).streams["n.0.boot"].settled
    keeper(tmp_path)[0].stop()


def test_after_an_orderly_end_what_the_disk_did_not_take_is_counted_exactly(tmp_path: Path) -> None:
    tap, log, _ = keeper(tmp_path)
    for name, reason in (("full", "disk_full"), ("broken", "disk_error"), ("shut", "closed"), ("whole", "disk_full")):
        tap.born(0, name)
        writer = processor(tmp_path, name)
        writer.send([b"kept"] * 3)
        writer.close()
        tap.died(death(name, request=3 if name == "whole" else 9, orderly=True, **{reason: 6}))
    tap.stop()
    assert gaps(tmp_path) == [
        ("n.recovery.broken", "a", "request", 6, "disk_error", "exact"),
        ("n.recovery.full", "a", "request", 6, "disk_full", "exact"),
        ("n.recovery.shut", "a", "request", 6, "closed", "exact"),
    ]
    assert [row["certainty"] for row in log.events("tap_gap")] == ["exact"] * 3
    (block,) = read_blocks(str(tmp_path), "n.recovery.full")
    assert sum(totals.frames for totals in block.totals()) == 6, "they were seen"


def test_a_segment_that_a_dead_processor_left_open_is_sealed_and_a_living_ones_is_not(tmp_path: Path) -> None:
    tap, log, _ = keeper(tmp_path)
    for name in ("dead", "living"):
        tap.born(0, name)  # as the supervisor does it, before the folder exists: control seals what it does not know when it starts
        folder = tmp_path / stream_name("n", "0", name)
        log_of = SegmentLog(str(folder), {"node": "n", "slot": "0", "stream": folder.name, "boot_id": name}, 1 << 20, 1 << 62)
        gap = BlockBuilder()
        gap.add_gap(Gap(connection=-1, direction=0, reason=1, framing=1, listener="a", from_ns=0))
        log_of.append(gap.finish(), 0)
    tap.died(death("dead"))
    tap.stop()
    assert [path.parent.name for path in tmp_path.rglob("*.open")] == ["n.0.living"]
    assert [path.parent.name for path in tmp_path.rglob("*.seg")] == ["n.0.dead"]
    assert [row["stream"] for row in log.events("tap_sealed")] == ["n.0.dead"]


def test_trouble_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SWEEP_INTERVAL_S", 0.005)
    tap, log, _ = keeper(tmp_path)
    failures = queue.SimpleQueue[None]()

    def fail(*arguments: Any) -> None:
        failures.put(None)
        raise OSError("the disk is gone")

    monkeypatch.setattr(tap._retention, "sweep", fail)
    for _ in range(3):
        failures.get(timeout=5)
    tap.stop()
    assert [row["error"] for row in log.events("tap_keeper_failed")] == ["the disk is gone"]


def test_a_job_that_fails_unexpectedly_costs_itself_and_not_the_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = settlement.write_settlement

    def broken(*arguments: Any) -> int:
        monkeypatch.setattr(settlement, "write_settlement", sound)
        raise ValueError("our bug")

    monkeypatch.setattr(settlement, "write_settlement", broken)
    tap, log, meters = keeper(tmp_path)
    for boot_id in ("first", "second"):
        tap.born(0, boot_id)
        tap.died(death(boot_id, request=6, response=6))
    tap.stop()
    (row,) = log.events("task_failed")
    assert (row["task"], row["error"]) == ("tap_keeper", "ValueError('our bug')")
    assert meters.value("task.failures", "tap_keeper") == 1
    assert sorted(log_reader.streams(str(tmp_path))) == ["n.recovery.first", "n.recovery.second"], "what failed was tried again"


def test_a_disk_that_hangs_at_the_end_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STOP_TIMEOUT_S", 0.05)
    hangs, entered = threading.Event(), threading.Event()

    def hang(*arguments: Any) -> int:
        entered.set()
        hangs.wait(10)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(settlement, "write_settlement", hang)
    monkeypatch.setattr(module, "LAST_TRIES_S", 0.0)
    tap, log, _ = keeper(tmp_path)
    tap.died(death("boot", request=6))
    assert entered.wait(5)
    tap.stop()
    (row,) = log.events("tap_incomplete")
    assert row["frames"] == {"a": {"request": 6}}
    hangs.set()
    tap._thread.join(5)


def test_of_a_dead_processors_stream_only_what_it_had_not_sealed_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SWEEP_INTERVAL_S", 0.01)
    tap, _, _ = keeper(tmp_path)
    tap.born(0, "boot")
    writer = processor(tmp_path, "boot", segment_size=1000)
    for number in range(4):
        writer.block([bytes(600)], at_ns=START_NS + number * MINUTE_NS)
    ends = [segment.limit for segment in log_reader.segments(str(tmp_path), writer.stream)]
    until(lambda: tap._settlement.carry(writer.stream).end == ends[-2])
    (sums,) = tap._settlement.carry(writer.stream).pairs.values()
    assert (sums.frames, len(sums.windows)) == (3, 1), "minutes that are stated are not kept"
    read = count_reads(monkeypatch)
    tap.died(death("boot", request=9))
    tap.stop()
    assert (read, [gap[3] for gap in gaps(tmp_path)]) == ([ends[-2]], [5])
