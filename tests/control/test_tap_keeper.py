import queue
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from control import tap_keeper as module
from control.errors import StartError
from control.guard import Guard
from control.meters import Meters
from control.slot_cells import Life
from control.tap_keeper import Death, TapKeeper, split_missing
from proxy.config.model import ListenerConfig, ProxyConfig, TapConfig, TapRule, UpstreamConfig
from proxy.tap import log_reader
from proxy.tap.block import BlockBuilder
from proxy.tap.consumer import write_consumer
from proxy.tap.gap import Gap
from proxy.tap.record import segment_file, stream_name
from proxy.tap.segment import SegmentLog
from tests.fakes.fleet import MemoryLog


def keeper(directory: Path, **tap: Any) -> tuple[TapKeeper, MemoryLog, Meters]:
    log, meters = MemoryLog(), Meters()
    config = ProxyConfig(
        node="n",
        listeners=(ListenerConfig(name="a", address="127.0.0.1:0", upstream="u"),),
        upstreams=(UpstreamConfig(name="u", endpoints=("127.0.0.1:1",)),),
        tap=TapConfig(**{"directory": str(directory), "rules": (TapRule(name="all"),), **tap}),
    )
    assert config.tap is not None
    return TapKeeper(config, config.tap, meters, log, Guard(log, meters)), log, meters


def death(boot_id: str, matched: int, unproven: int, request: int = 0, response: int = 0) -> Death:
    return Death(0, boot_id, time.time_ns(), Life({}, matched, unproven, {"request": request, "response": response}))


def test_missing_frames_are_divided_by_what_the_log_does_not_know() -> None:
    both = {"request", "response"}
    known = {"request": 0, "response": 0}
    assert split_missing(20, {"request": 10, "response": 10}, known, both) == {"request": 10, "response": 10}
    assert split_missing(5, {"request": 10, "response": 10}, {"request": 10, "response": 5}, both) == {"request": 0, "response": 5}
    assert split_missing(7, {"request": 10, "response": 10}, known, {"request"}) == {"request": 7, "response": 0}
    assert split_missing(7, {"request": 0, "response": 0}, known, both) == {"request": 7, "response": 0}
    assert split_missing(7, {"request": 0, "response": 0}, known, {"response"}) == {"request": 0, "response": 7}


def test_a_death_with_frames_unaccounted_leaves_a_gap_record(tmp_path: Path) -> None:
    tap, log, _ = keeper(tmp_path)
    tap.born(0, "boot")
    tap.died(death("boot", matched=12, unproven=12, request=6, response=6))
    tap.stop()
    (stream,) = log_reader.streams(str(tmp_path))
    assert stream == "n.recovery.boot"
    assert log_reader.stream_totals(str(tmp_path), stream).missing == {"request": 6, "response": 6}
    (row,) = log.events("tap_gap")
    assert (row["recovery"], row["frames"]) == ("n.recovery.boot", {"request": 6, "response": 6})


def test_a_death_with_everything_in_the_log_leaves_nothing(tmp_path: Path) -> None:
    tap, log, _ = keeper(tmp_path)
    tap.born(0, "boot")
    tap.died(death("boot", matched=12, unproven=0, request=6, response=6))
    tap.stop()
    assert log_reader.streams(str(tmp_path)) == []
    assert log.rows == []


def test_a_segment_that_a_dead_processor_left_open_is_sealed_and_a_living_ones_is_not(tmp_path: Path) -> None:
    tap, log, _ = keeper(tmp_path)
    for name in ("dead", "living"):
        tap.born(0, name)  # as the supervisor does it, before the folder exists: control seals what it does not know when it starts
        folder = tmp_path / stream_name("n", "0", name)
        log_of = SegmentLog(str(folder), {"node": "n", "slot": "0", "stream": folder.name, "boot_id": name}, 1 << 20, 1 << 62)
        gap = BlockBuilder()
        gap.add_gap(Gap(-1, 0, 1, 1, 0, 0, "a", None, None, None, -1, 0))
        log_of.append(gap.finish(), 0)
    tap.died(death("dead", matched=0, unproven=0))
    tap.stop()
    assert [path.parent.name for path in tmp_path.rglob("*.open")] == ["n.0.living"]
    assert [path.parent.name for path in tmp_path.rglob("*.seg")] == ["n.0.dead"]
    assert [row["stream"] for row in log.events("tap_sealed")] == ["n.0.dead"]


def test_a_record_that_a_full_disk_does_not_take_is_tried_again_and_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SWEEP_INTERVAL_S", 0.005)
    failures = queue.SimpleQueue[None]()
    full = threading.Event()
    full.set()
    real = module.record_death

    def record(*arguments: Any) -> str | None:
        if full.is_set():
            failures.put(None)
            raise OSError(28, "No space left on device")
        return real(*arguments)

    monkeypatch.setattr(module, "record_death", record)
    tap, log, _ = keeper(tmp_path)
    tap.born(0, "boot")
    tap.died(death("boot", matched=12, unproven=12, request=6, response=6))
    for _ in range(3):
        failures.get(timeout=5)
    full.clear()
    tap.stop()
    assert log_reader.stream_totals(str(tmp_path), "n.recovery.boot").missing == {"request": 6, "response": 6}
    assert len(log.events("tap_gap")) == 1
    (row,) = log.events("tap_keeper_failed")
    assert "n.0.boot" in row["error"]
    assert "No space" in row["error"]


def test_a_consumer_file_that_cannot_be_read_is_told_and_shown_until_it_is_good_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SWEEP_INTERVAL_S", 0.005)
    write_consumer(str(tmp_path), "job", {}, 0)
    (tmp_path / "_consumers" / "job.json").write_text("{")
    tap, log, meters = keeper(tmp_path)

    def until(count: float) -> None:
        deadline = time.monotonic() + 5
        while meters.snapshot()["framegate.tap.consumer.unreadable", ()] != count:
            assert time.monotonic() < deadline
            time.sleep(0.002)

    until(1)
    write_consumer(str(tmp_path), "job", {}, 0)
    until(0)
    tap.stop()
    (row,) = log.events("tap_consumer_unreadable")
    assert (row["consumer"], row["level"]) == ("job", "error")
    assert "job.json" in row["error"]
    assert [row["consumer"] for row in log.events("tap_consumer_readable")] == ["job"]


def test_a_bug_in_one_job_does_not_end_the_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> None:
        raise RuntimeError("a bug")

    tap, log, _ = keeper(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(tap, "_missing", fail)
        tap.died(death("one", matched=1, unproven=1))
        deadline = time.monotonic() + 5
        while not log.events("tap_keeper_failed") and time.monotonic() < deadline:
            time.sleep(0.002)
    tap.died(death("two", matched=2, unproven=2))
    tap.stop()
    assert "a bug" in log.events("tap_keeper_failed")[0]["error"]
    assert {row["stream"] for row in log.events("tap_gap")} == {"n.0.one", "n.0.two"}


def test_the_directory_is_kept_within_its_budget_and_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SWEEP_INTERVAL_S", 0.01)
    folder = tmp_path / stream_name("n", "0", "old")
    folder.mkdir()
    for number in range(3):
        (folder / segment_file(number * 100_000, sealed=True)).write_bytes(bytes(104_096))
    tap, _, meters = keeper(tmp_path, budget=1 << 20, segment_size=1 << 16)
    values = meters.snapshot()
    assert values["framegate.tap.limit", ()] == 1 << 20
    deadline = time.monotonic() + 5
    while meters.snapshot()["framegate.tap.usage", ()] == 0 and time.monotonic() < deadline:
        time.sleep(0.005)
    assert meters.snapshot()["framegate.tap.usage", ()] == 3 * 104_096
    tap.stop()


def test_two_keepers_cannot_share_a_directory(tmp_path: Path) -> None:
    tap, _, _ = keeper(tmp_path)
    with pytest.raises(StartError, match="another framegate"):
        keeper(tmp_path)
    tap.stop()
    keeper(tmp_path)[0].stop()


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
    sound = module.record_death

    def broken(*arguments: Any) -> str:
        monkeypatch.setattr(module, "record_death", sound)
        raise ValueError("our bug")

    monkeypatch.setattr(module, "record_death", broken)
    tap, log, meters = keeper(tmp_path)
    for boot_id in ("first", "second"):
        tap.born(0, boot_id)
        tap.died(death(boot_id, matched=12, unproven=12, request=6, response=6))
    tap.stop()
    (row,) = log.events("task_failed")
    assert (row["task"], row["error"]) == ("tap_keeper", "ValueError('our bug')")
    assert meters.value("task.failures", "tap_keeper") == 1
    assert sorted(log_reader.streams(str(tmp_path))) == ["n.recovery.first", "n.recovery.second"], "what failed was tried again"
