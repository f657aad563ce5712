import errno
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from control.errors import StartError
from control.fleet.slot_cells import Life
from control.guard import Guard
from control.meters import Meters
from control.tap import keeper as module
from control.tap import settlement
from control.tap.keeper import Death, TapKeeper, tapped_pairs
from proxy.config.model import ListenerConfig, ProxyConfig, TapConfig, TapRule, UpstreamConfig
from proxy.tap import ledger, ledger_writer, log_reader
from proxy.tap.block_builder import BlockBuilder
from proxy.tap.completeness import verify
from proxy.tap.consumer import write_consumer
from proxy.tap.gap import Gap
from proxy.tap.ledger import read_ledger
from proxy.tap.record import SEGMENT_HEADER_BYTES, segment_file, stream_name
from proxy.tap.segment import SegmentLog
from tests.fakes.fleet import MemoryLog
from tests.fakes.tap_log import START_NS, FakeProcessor
from tests.fakes.tap_read import read_blocks, read_gaps


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


def death(boot_id: str, request: int = 0, response: int = 0, *, orderly: bool = False, **dropped: int) -> Death:
    seen = {("a", "request"): request, ("a", "response"): response}
    reserved = dict(seen)
    none = dict.fromkeys(("disk_full", "disk_error", "closed"), 0)
    return Death(0, boot_id, time.time_ns(), Life({}, orderly, request + response, seen, reserved, {**none, **dropped}))


def processor(directory: Path, boot_id: str, **facts: Any) -> FakeProcessor:
    """A processor of listener ``a``'s that the keeper's node runs."""
    made = FakeProcessor(directory, boot_id=boot_id, node="n", **facts)
    for direction in ("request", "response"):
        made.point(1, direction, listener="a")
    return made


def gaps(directory: Path) -> list[tuple[str, str | None, str, int, str, str]]:
    found = list(read_gaps(str(directory)))
    return [(gap.stream, gap.listener, gap.direction, gap.frames, gap.reason, gap.certainty) for gap in found]


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.002)


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
    assert gaps(tmp_path) == [
        (stream, "a", "request", 6, "processor_died", "at_most"),
        (stream, "a", "response", 5, "processor_died", "at_most"),
    ]
    (row,) = log.events("tap_gap")
    assert (row["recovery"], row["frames"], row["certainty"], row["slot"]) == (stream, {"request": 6, "response": 5}, "at_most", 0)
    assert row["listeners"] == {"a": {"request": 6, "response": 5}}
    ledger = read_ledger(str(tmp_path))
    assert all(fate.settled for fate in ledger.streams.values())
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


def test_a_death_with_everything_in_the_log_leaves_a_line_and_no_gap(tmp_path: Path) -> None:
    tap, log, _ = keeper(tmp_path)
    tap.born(0, "boot")
    tap.died(death("boot"))
    tap.stop()
    assert log_reader.streams(str(tmp_path)) == []
    assert log.rows == []
    assert read_ledger(str(tmp_path)).streams["n.0.boot"].settled


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


class Disk:
    """Decides whether settlements can be written; counts the refusals."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, code: int = errno.EIO) -> None:
        self.refuses = True
        self.failures = queue.SimpleQueue[None]()
        self._real = settlement.write_settlement
        self._code = code
        monkeypatch.setattr(settlement, "write_settlement", self._write)

    def _write(self, *arguments: Any) -> int:
        if self.refuses:
            self.failures.put(None)
            raise OSError(self._code, os.strerror(self._code))
        return self._real(*arguments)


def test_a_record_that_the_disk_does_not_take_is_tried_again_and_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SWEEP_INTERVAL_S", 0.005)
    disk = Disk(monkeypatch)
    tap, log, _ = keeper(tmp_path)
    tap.born(0, "boot")
    tap.died(death("boot", request=6, response=6))
    for _ in range(3):
        disk.failures.get(timeout=5)
    disk.refuses = False
    tap.stop()
    assert [found[3] for found in gaps(tmp_path)] == [6, 6]
    assert len(log.events("tap_gap")) == 1
    (row,) = log.events("tap_keeper_failed")
    assert "n.0.boot" in row["error"]
    assert "Input/output" in row["error"]
    assert log.events("tap_incomplete") == []


def test_a_disk_that_refuses_to_the_end_is_told_with_its_count_and_the_next_start_calls_it_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LAST_TRIES_S", 0.05)
    disk = Disk(monkeypatch, errno.ENOSPC)
    tap, log, _ = keeper(tmp_path)
    tap.born(0, "boot")
    tap.died(death("boot", request=6, response=5))
    tap.stop()
    (row,) = log.events("tap_incomplete")
    assert (row["level"], row["stream"], row["counted"], row["frames"]) == ("error", "n.0.boot", True, {"a": {"request": 6, "response": 5}})
    assert "No space" in row["error"]
    assert os.path.getsize(tmp_path / "_reserve") == 0, "all of the reserve was given up for it"
    fate = read_ledger(str(tmp_path)).streams["n.0.boot"]
    assert (fate.settled, fate.end) == (False, 0), "it ended, and nobody can say what it lacks"
    assert not verify(str(tmp_path)).complete
    disk.refuses = False
    tap, log, _ = keeper(tmp_path)
    tap.stop()
    assert [(*found[1:4], found[5]) for found in gaps(tmp_path)] == [("a", "request", 0, "unknown"), ("a", "response", 0, "unknown")]
    assert [row["certainty"] for row in log.events("tap_gap")] == ["unknown"]
    assert read_ledger(str(tmp_path)).streams["n.0.boot"].settled
    assert os.path.getsize(tmp_path / "_reserve") == 1 << 20, "and is taken again"


def test_a_full_disk_is_given_half_of_the_reserve_while_control_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch, errno.ENOSPC)
    tap, log, _ = keeper(tmp_path)
    until(lambda: (tmp_path / "_reserve").exists() and os.path.getsize(tmp_path / "_reserve") == 1 << 20)
    tap.died(death("boot", request=6))
    until(lambda: log.events("tap_keeper_failed"))
    assert os.path.getsize(tmp_path / "_reserve") == 1 << 19
    disk.refuses = False
    tap.stop()
    assert [found[3] for found in gaps(tmp_path)] == [6]


def test_a_reserve_that_cannot_be_had_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SWEEP_INTERVAL_S", 0.005)
    tries = queue.SimpleQueue[None]()

    def full(fd: int, offset: int, length: int) -> None:
        tries.put(None)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    tap, log, _ = keeper(tmp_path)
    for _ in range(3):
        tries.get(timeout=5)
    monkeypatch.undo()
    tap.stop()
    (row,) = log.events("tap_reserve_missing")
    assert row["level"] == "warning"
    assert "No space" in row["error"]


# --- control and processors ended together -------------------------------------------------------------------------------------------


def crash(tap: TapKeeper) -> None:
    """Let go of the directory as the kernel does when control is killed: nothing is finished, nothing is said."""
    tap._jobs.put(None)
    tap._thread.join(10)
    tap._lock.release()


@pytest.mark.parametrize("left", ["open", "sealed", "nothing"])
def test_streams_of_a_control_that_was_killed_get_an_unknown_gap(tmp_path: Path, left: str) -> None:
    tap, _, _ = keeper(tmp_path, rules=(TapRule(name="requests", directions=("request",)),))
    tap.born(0, "boot")
    if left != "nothing":
        writer = processor(tmp_path, "boot")
        writer.block([b"kept"] * 3, direction="response")
        if left == "sealed":
            writer.writer.thread._log.seal()
    crash(tap)
    born_ns = read_ledger(str(tmp_path)).streams["n.0.boot"].born_ns
    alive_ns = born_ns + 3_000_000_000
    os.utime(tmp_path / ".framegate.lock", ns=(alive_ns, alive_ns))
    tap, log, _ = keeper(tmp_path)
    tap.stop()
    found = {gap.direction: gap for gap in read_gaps(str(tmp_path))}
    assert {(gap.listener, gap.frames, gap.certainty, gap.reason) for gap in found.values()} == {("a", 0, "unknown", "processor_died")}
    assert found["request"].from_ns == born_ns
    assert born_ns < found["request"].until_ns <= alive_ns + module.OUTLIVED_NS
    if left == "nothing":
        assert set(found) == {"request"}, "what no rule could match is not missing"
    else:
        assert found["response"].from_ns == START_NS, "rules may have been others"
        (block,) = read_blocks(str(tmp_path), "n.recovery.boot")
        assert [(totals.direction, totals.frames) for totals in block.totals()] == [("response", 3)]
    (row,) = log.events("tap_gap")
    assert row["certainty"] == "unknown"
    assert all(fate.settled for fate in read_ledger(str(tmp_path)).streams.values())
    tap, log, _ = keeper(tmp_path)
    tap.stop()
    assert log.events("tap_gap") == [], "it is settled once"


def test_a_stream_that_its_processor_ended_in_order_after_control_was_killed_lacks_nothing(tmp_path: Path) -> None:
    tap, _, _ = keeper(tmp_path)
    tap.born(0, "boot")
    crash(tap)
    writer = processor(tmp_path, "boot")
    writer.send([b"kept"] * 3)
    writer.close()
    tap, log, _ = keeper(tmp_path)
    tap.stop()
    assert log.events("tap_gap") == []
    fate = read_ledger(str(tmp_path)).streams["n.0.boot"]
    assert (fate.settled, fate.end) == (True, log_reader.end_offset(str(tmp_path), "n.0.boot"))


def test_a_settlement_that_was_written_before_control_was_killed_is_not_written_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tap, _, _ = keeper(tmp_path)
    tap.born(0, "boot")
    with monkeypatch.context() as patch:
        patch.setattr(module, "LAST_TRIES_S", 0.0)
        patch.setattr(tap._ledger, "ended", lambda *_, **__: (_ for _ in ()).throw(OSError(errno.EIO, "Input/output error")))
        tap.died(death("boot", request=6))
        crash(tap)
    assert not read_ledger(str(tmp_path)).streams["n.0.boot"].settled
    tap, _log, _ = keeper(tmp_path)
    tap.stop()
    assert gaps(tmp_path) == [("n.recovery.boot", "a", "request", 6, "processor_died", "at_most")]
    assert {name: fate.settled for name, fate in read_ledger(str(tmp_path)).streams.items()} == {"n.0.boot": True, "n.recovery.boot": True}


def test_streams_from_before_the_ledger_are_adopted(tmp_path: Path) -> None:
    for name in ("ended", "killed"):
        writer = FakeProcessor(tmp_path, boot_id=name, node="n")
        writer.block([b"x"])
        if name == "ended":
            writer.close()
    tap, _log, _ = keeper(tmp_path)
    tap.stop()
    streams = read_ledger(str(tmp_path)).streams
    for name in ("n.0.ended", "n.0.killed"):
        assert (streams[name].adopted, streams[name].settled, streams[name].end) == (True, True, log_reader.end_offset(str(tmp_path), name))
    assert [found[:3] for found in gaps(tmp_path)] == [("n.recovery.killed", "main", "request")], "what was being written may lack its end"


def test_the_lock_shows_that_control_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SWEEP_INTERVAL_S", 0.005)
    tap, _, _ = keeper(tmp_path)
    os.utime(tmp_path / ".framegate.lock", ns=(1, 1))
    until(lambda: (tmp_path / ".framegate.lock").stat().st_mtime_ns > 1)
    tap.stop()


# --- processors that outlive their control -------------------------------------------------------------------------------------------


class Orphan:
    """A processor whose control was killed: it has the lock that it inherited, and goes on writing when it likes.

    Attributes:
        writer: its end of the log.
        born: what the ledger says of its stream before anybody settles it.
    """

    def __init__(self, directory: Path) -> None:
        tap, _, _ = keeper(directory)
        tap.born(0, "boot")
        self._inherited = os.dup(tap.writers)  # the same open file, as across a fork
        self._directory = directory
        self.writer = processor(directory, "boot")
        self.writer.block([b"kept"] * 3)
        crash(tap)
        self.born = self.fate

    @property
    def fate(self) -> ledger.Fate:
        """What the ledger says of its stream now."""
        return read_ledger(str(self._directory)).streams["n.0.boot"]

    def end(self) -> None:
        """It is gone, in whatever way."""
        if self._inherited >= 0:
            os.close(self._inherited)
            self._inherited = -1


@pytest.fixture
def orphan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Orphan]:
    """A processor of a control that was killed, with 3 frames in an open segment."""
    monkeypatch.setattr(module, "SWEEP_INTERVAL_S", 0.005)
    found = Orphan(tmp_path)
    yield found
    found.end()


def test_what_an_orphan_writes_is_settled_when_it_is_gone_and_not_before(tmp_path: Path, orphan: Orphan) -> None:
    tap, log, _ = keeper(tmp_path)
    tap.born(0, "mine")
    tap.died(death("mine", request=6))
    until(lambda: read_ledger(str(tmp_path)).streams["n.0.mine"].settled)
    assert orphan.fate == orphan.born, "what is ours is settled meanwhile, nothing else"
    (row,) = log.events("tap_orphans")
    assert (row["level"], row["streams"]) == ("warning", ["n.0.boot"])
    orphan.writer.send([b"more"] * 4)
    orphan.writer.close()
    orphan.end()
    until(lambda: orphan.fate.settled)
    tap.stop()
    assert [row["streams"] for row in log.events("tap_orphans_gone")] == [["n.0.boot"]]
    assert [row["stream"] for row in log.events("tap_gap")] == ["n.0.mine"]
    assert log.events("tap_sealed") == [], "it did that itself"
    assert orphan.fate.end == log_reader.end_offset(str(tmp_path), "n.0.boot")
    rows = [row for row in verify(str(tmp_path)).rows if row.stream == "n.0.boot"]
    assert [(row.seen, row.stored, row.state) for row in rows] == [(7, 7, "complete")]


def test_an_orphan_that_is_killed_is_settled_up_to_then(tmp_path: Path, orphan: Orphan) -> None:
    tap, log, _ = keeper(tmp_path)
    until(lambda: log.events("tap_orphans"))
    os.utime(tmp_path / ".framegate.lock", ns=(1, 1))
    killed_ns = time.time_ns()
    orphan.end()
    until(lambda: orphan.fate.settled)
    tap.stop()
    assert [(found[:3], *found[4:]) for found in gaps(tmp_path)] == [
        (("n.recovery.boot", "a", direction), "processor_died", "unknown") for direction in ("request", "response")
    ]
    assert all(gap.until_ns >= killed_ns for gap in read_gaps(str(tmp_path))), "it lived longer than its control by more than it may"
    assert [row["stream"] for row in log.events("tap_sealed")] == ["n.0.boot"]


def test_who_ends_while_orphans_live_leaves_them_to_the_next(tmp_path: Path, orphan: Orphan) -> None:
    for _ in range(2):
        tap, log, _ = keeper(tmp_path)
        tap.stop()
        assert log.events("tap_orphans")
        assert log.events("tap_incomplete") == []
        assert orphan.fate == orphan.born
    tap, log, _ = keeper(tmp_path)
    until(lambda: log.events("tap_orphans"))
    tap._jobs.put(orphan.end)  # after the last look
    tap.stop()
    assert orphan.fate.settled


def test_retention_and_sealing_leave_what_an_orphan_writes_alone(tmp_path: Path, orphan: Orphan) -> None:
    """Also a stream that the ledger does not know, and one whose folder is empty."""
    strange = processor(tmp_path, "strange")
    strange.block([b"kept"])
    (tmp_path / "n.0.empty").mkdir()
    tap, log, meters = keeper(tmp_path, max_age_ms=1)
    until(lambda: meters.snapshot()["framegate.tap.usage", ()])
    late = processor(tmp_path, "late")
    late.block([b"kept"])
    until(lambda: len(log.events("tap_orphans")) == 2)
    assert [row["streams"] for row in log.events("tap_orphans")] == [["n.0.boot", "n.0.empty", "n.0.strange"], ["n.0.late"]]
    tap.born(0, "mine")
    mine = processor(tmp_path, "mine")
    mine.block([b"kept"])
    tap.died(death("mine", request=1))
    until(lambda: read_ledger(str(tmp_path)).streams["n.0.mine"].settled)
    assert [row["stream"] for row in log.events("tap_sealed")] == ["n.0.mine"]
    assert sorted(path.parent.name for path in tmp_path.rglob("*.open")) == ["n.0.boot", "n.0.late", "n.0.strange"]
    assert (tmp_path / "n.0.empty").exists()
    orphan.end()
    until(lambda: not (tmp_path / "n.0.empty").exists())
    tap.stop()
    assert list(tmp_path.rglob("*.open")) == []
    assert {row["stream"] for row in log.events("tap_sealed")} == {"n.0.mine", "n.0.boot", "n.0.late", "n.0.strange"}
    assert {row["stream"] for row in log.events("tap_gap")} == {"n.0.boot", "n.0.late", "n.0.strange"}


def test_whether_orphans_live_is_asked_again_when_there_is_no_answer(tmp_path: Path, orphan: Orphan, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = queue.SimpleQueue[None]()

    def fails(lock: Any) -> bool:
        asked.put(None)
        raise OSError(errno.EIO, "Input/output error")

    orphan.end()
    with monkeypatch.context() as patch:
        patch.setattr(module.DirectoryLock, "others_write", fails)
        tap, log, _ = keeper(tmp_path)
        for _ in range(3):
            asked.get(timeout=5)
        assert orphan.fate == orphan.born
    until(lambda: orphan.fate.settled)
    tap.stop()
    (row,) = log.events("tap_keeper_failed")
    assert row["error"] == "nobody knows whether processors of earlier runs live: [Errno 5] Input/output error"


def test_a_file_system_that_does_not_tell_of_orphans_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.DirectoryLock, "_guard", lambda lock: "No locks available")
    tap, log, _ = keeper(tmp_path)
    tap.stop()
    (row,) = log.events("tap_orphans_unknown")
    assert (row["level"], row["error"]) == ("warning", "No locks available")


# --- the ledger ----------------------------------------------------------------------------------------------------------------------


def test_a_birth_that_the_disk_does_not_take_keeps_nobody_waiting_and_is_written_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SWEEP_INTERVAL_S", 0.005)
    tap, log, _ = keeper(tmp_path)
    real = tap._ledger.born
    refused = threading.Event()

    def born(*arguments: Any) -> None:
        if len(log.events("tap_keeper_failed")) < 1:
            refused.set()
            raise OSError(errno.ENOSPC, "No space left on device")
        real(*arguments)

    monkeypatch.setattr(tap._ledger, "born", born)
    tap.born(0, "boot")
    assert refused.is_set()
    until(lambda: "n.0.boot" in read_ledger(str(tmp_path)).streams)
    tap.stop()
    assert "does not say what n.0.boot is" in log.events("tap_keeper_failed")[0]["error"]


def test_a_disk_that_hangs_does_not_hold_up_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BORN_TIMEOUT_S", 0.02)
    tap, _, _ = keeper(tmp_path)
    hangs, entered = threading.Event(), threading.Event()
    real = tap._ledger.born

    def born(*arguments: Any) -> None:
        entered.set()
        hangs.wait(10)
        real(*arguments)

    monkeypatch.setattr(tap._ledger, "born", born)
    tap.born(0, "boot")
    assert entered.wait(5)
    assert "n.0.boot" not in read_ledger(str(tmp_path)).streams
    hangs.set()
    until(lambda: "n.0.boot" in read_ledger(str(tmp_path)).streams)
    tap.stop()


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
    fate = read_ledger(str(tmp_path)).streams["n.0.boot"]
    assert fate.deleted_to >= log_reader.first_offset(str(tmp_path), "n.0.boot") > 0
    assert (fate.cut_from_ns, fate.cut_until_ns) == (START_NS, START_NS)
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
    fate = read_ledger(str(tmp_path)).streams["n.0.boot"]
    assert before_ns <= fate.cut_from_ns == fate.born_ns <= fate.cut_until_ns <= time.time_ns()


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
