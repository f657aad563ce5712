"""framegate.control.tap.keeper: processors that outlive their control are left alone until they are gone."""

import errno
import os
import queue
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from framegate.control.tap import keeper as module
from framegate.proxy.tap import ledger, log_reader
from framegate.proxy.tap.completeness import verify
from framegate.proxy.tap.ledger import read_ledger
from tests.fakes.tap_keeper import crash, death, gaps, keeper, processor
from tests.fakes.tap_read import read_gaps
from tests.fakes.waiting import until


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
        self.born = self.stream_record

    @property
    def stream_record(self) -> ledger.StreamRecord:
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
    assert orphan.stream_record == orphan.born, "what is ours is settled meanwhile, nothing else"
    (row,) = log.events("tap_orphans")
    assert (row["level"], row["streams"]) == ("warning", ["n.0.boot"])
    orphan.writer.send([b"more"] * 4)
    orphan.writer.close()
    orphan.end()
    until(lambda: orphan.stream_record.settled)
    tap.stop()
    assert [row["streams"] for row in log.events("tap_orphans_gone")] == [["n.0.boot"]]
    assert [row["stream"] for row in log.events("tap_gap")] == ["n.0.mine"]
    assert log.events("tap_sealed") == [], "it did that itself"
    assert orphan.stream_record.end == log_reader.end_offset(str(tmp_path), "n.0.boot")
    rows = [row for row in verify(str(tmp_path)).rows if row.stream == "n.0.boot"]
    assert [(row.seen, row.stored, row.state) for row in rows] == [(7, 7, "complete")]


def test_an_orphan_that_is_killed_is_settled_up_to_then(tmp_path: Path, orphan: Orphan) -> None:
    tap, log, _ = keeper(tmp_path)
    until(lambda: log.events("tap_orphans"))
    os.utime(tmp_path / ".framegate.lock", ns=(1, 1))
    killed_ns = time.time_ns()
    orphan.end()
    until(lambda: orphan.stream_record.settled)
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
        assert orphan.stream_record == orphan.born
    tap, log, _ = keeper(tmp_path)
    until(lambda: log.events("tap_orphans"))
    tap._jobs.put(orphan.end)  # after the last look
    tap.stop()
    assert orphan.stream_record.settled


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
        assert orphan.stream_record == orphan.born
    until(lambda: orphan.stream_record.settled)
    tap.stop()
    (row,) = log.events("tap_keeper_failed")
    assert row["error"] == "nobody knows whether processors of earlier runs live: [Errno 5] Input/output error"


def test_a_file_system_that_does_not_tell_of_orphans_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.DirectoryLock, "_guard", lambda lock: "No locks available")
    tap, log, _ = keeper(tmp_path)
    tap.stop()
    (row,) = log.events("tap_orphans_unknown")
    assert (row["level"], row["error"]) == ("warning", "No locks available")
