"""framegate.control.tap.keeper: a disk that takes no settlement, or none any more, and the reserve that it is given up for."""

import errno
import os
import queue
from pathlib import Path
from typing import Any

import pytest

from framegate.control.tap import keeper as module
from framegate.control.tap import settlement
from framegate.proxy.config.model import ShipConfig
from framegate.proxy.tap.completeness import verify
from framegate.proxy.tap.consumer import read_consumers
from framegate.proxy.tap.ledger import read_ledger
from tests.fakes.tap_keeper import death, gaps, keeper
from tests.fakes.waiting import until


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


def test_the_shipper_is_registered_before_processors_can_fill_the_disk(tmp_path: Path) -> None:
    tap, _, _ = keeper(tmp_path, ship=ShipConfig(to="s3://taps/production", keep="shipped"))
    try:
        assert read_consumers(str(tmp_path)) == ({"ship": {}}, {})
        assert (tmp_path / "_consumers" / "ship.lock").exists()
    finally:
        tap.stop()


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
    stream_record = read_ledger(str(tmp_path)).streams["n.0.boot"]
    assert (stream_record.settled, stream_record.end) == (False, 0), "it ended, and nobody can say what it lacks"
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


def test_little_room_on_the_disk_is_told_once_and_again_when_it_is_over_and_a_log_at_its_budget_needs_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SWEEP_INTERVAL_S", 0.005)
    free = [(4 << 20) - 4096]
    looks: list[int] = []

    class Room:
        f_frsize, f_blocks = 4096, 1 << 20

        @property
        def f_bavail(self) -> int:
            looks.append(free[0])
            return free[0] // 4096

    monkeypatch.setattr(module.os, "statvfs", lambda path: Room())
    tap, log, _ = keeper(tmp_path, segment_size=4 << 20, budget=64 << 20)
    until(lambda: tap.disk_low and len(looks) > 3)
    assert tap.disk_low.endswith("has 4092KiB left, the log's next segment may need 4MiB"), tap.disk_low
    free[0] = 4 << 20
    until(lambda: not tap.disk_low)
    free[0] = 0
    until(lambda: tap.disk_low)
    tap._usage = 64 << 20  # the budget: retention makes room
    monkeypatch.setattr(tap, "_sweep", lambda: None)
    until(lambda: not tap.disk_low)
    tap.stop()
    assert [(row["event"], row["free"]) for row in log.rows if row["event"].startswith("tap_disk")] == [
        ("tap_disk_low", (4 << 20) - 4096),
        ("tap_disk_enough", 4 << 20),
        ("tap_disk_low", 0),
        ("tap_disk_enough", 0),
    ]
