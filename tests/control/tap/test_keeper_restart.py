"""framegate.control.tap.keeper: control and its processors ended together; the next start settles their streams."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from framegate.control.tap import keeper as module
from framegate.proxy.config.model import TapRule
from framegate.proxy.tap import log_reader
from framegate.proxy.tap.completeness import verify
from framegate.proxy.tap.ledger import read_ledger
from framegate.proxy.tap.ledger_writer import LedgerWriter
from framegate.proxy.tap.retention import Sweep
from tests.fakes.tap_keeper import crash, death, gaps, keeper, processor, written
from tests.fakes.tap_log import START_NS, FakeProcessor
from tests.fakes.tap_read import read_blocks, read_gaps
from tests.fakes.waiting import until


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
    assert all(stream_record.settled for stream_record in read_ledger(str(tmp_path)).streams.values())
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
    stream_record = read_ledger(str(tmp_path)).streams["n.0.boot"]
    assert (stream_record.settled, stream_record.end) == (True, log_reader.end_offset(str(tmp_path), "n.0.boot"))


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
    assert {name: stream_record.settled for name, stream_record in read_ledger(str(tmp_path)).streams.items()} == {
        "n.0.boot": True,
        "n.recovery.boot": True,
    }


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


def test_a_folder_of_the_file_system_is_no_stream_neither_now_nor_where_an_earlier_version_took_it_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SWEEP_INTERVAL_S", 0.01)
    (tmp_path / "lost+found").mkdir(mode=0o700)
    earlier = LedgerWriter(str(tmp_path))
    earlier.adopted("lost+found", 0, START_NS)
    earlier.close()
    tap, log, _ = keeper(tmp_path)
    tap.born(0, "boot")
    processor(tmp_path, "boot").close()
    swept: list[Sweep] = []
    monkeypatch.setattr(tap._retention, "sweep", lambda *of, real=tap._retention.sweep: swept.append(real(*of)) or swept[-1])
    until(lambda: len(swept) > 1)
    tap.died(death("boot", orderly=True))
    tap.stop()
    assert (tmp_path / "lost+found").is_dir()
    assert list(read_ledger(str(tmp_path)).streams) == ["n.0.boot"]
    assert log.rows == []
    assert verify(str(tmp_path)).faults == []


@pytest.mark.parametrize("left", ["nothing", "an empty file", "the first line", "all but the last line"])
def test_a_ledger_that_was_lost_is_a_fault_for_ever(tmp_path: Path, left: str) -> None:
    tap, log, _ = keeper(tmp_path)
    for name in ("a", "b"):
        written(tap, tmp_path, name)
    tap.stop()
    assert log.rows == []
    assert verify(str(tmp_path)).complete
    path = tmp_path / "_ledger.jsonl"
    content = path.read_bytes().splitlines(keepends=True)
    shutil.rmtree(tmp_path / "n.0.b")
    path.write_bytes(b"".join({"the first line": content[:1], "all but the last line": content[:-1]}.get(left, [])))
    if left == "nothing":
        path.unlink()
    for start in range(3):
        tap, log, _ = keeper(tmp_path)
        tap.born(0, f"later{start}")
        tap.died(death(f"later{start}"))
        tap.stop()
        assert len(log.events("tap_ledger_lost")) == (start == 0)
        verdict = verify(str(tmp_path))
        assert ("the ledger was lost" in verdict.faults[0], verdict.complete) == (True, False)
        assert read_ledger(str(tmp_path)).damage == ""
        writer = LedgerWriter(str(tmp_path))
        writer.compact({}, START_NS)
        writer.close()


def test_a_sealed_stream_that_the_ledger_does_not_know_is_a_fault_for_ever(tmp_path: Path) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    for folder, name in ((here, "a"), (elsewhere, "b")):
        tap, _, _ = keeper(folder)
        written(tap, folder, name)
        tap.stop()
    shutil.copytree(elsewhere / "n.0.b", here / "n.0.b")
    assert not verify(str(here)).complete
    for start in range(2):
        tap, log, _ = keeper(here)
        tap.stop()
        assert len(log.events("tap_ledger_lost")) == (start == 0)
        verdict = verify(str(here))
        assert (verdict.complete, [fault.partition(",")[0] for fault in verdict.faults]) == (
            False,
            ["the ledger was lost: n.0.b was not in the ledger"],
        )


def test_a_line_that_a_crash_tore_off_is_no_loss(tmp_path: Path) -> None:
    tap, _, _ = keeper(tmp_path)
    tap.born(0, "boot")
    crash(tap)
    with (tmp_path / "_ledger.jsonl").open("ab") as file:
        file.write(b"01234567 {")
    tap, log, _ = keeper(tmp_path)
    tap.stop()
    assert log.events("tap_ledger_lost") == []
    assert read_ledger(str(tmp_path)).lost == ""


def test_what_is_lost_of_a_ledger_is_said_once_the_disk_takes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SWEEP_INTERVAL_S", 0.005)
    processor(tmp_path, "old").block([b"x"])
    refused: list[int] = []

    def lost(self: LedgerWriter, now_ns: int, real: Callable[..., None] = LedgerWriter.lost) -> None:
        refused.append(now_ns)
        if len(refused) < 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(self, now_ns)

    monkeypatch.setattr(LedgerWriter, "lost", lost)
    tap, _, _ = keeper(tmp_path)
    tap.born(0, "boot")
    until(lambda: "n.0.boot" in read_ledger(str(tmp_path)).streams)
    tap.stop()
    assert "streams found: 1" in read_ledger(str(tmp_path)).lost
