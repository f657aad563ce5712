"""What was seen is stated by window, what was lost is in the window it was lost in, and the clock may do what it likes."""

from pathlib import Path
from typing import Any

import pytest

from framegate.proxy.config.model import TapConfig, TapRule
from framegate.proxy.tap.gap import MAX_PENDING_GAPS
from framegate.proxy.tap.log_block import GapRecord, TotalsRecord
from framegate.proxy.tap.point import TapPoint
from framegate.proxy.tap.record import KIND_CLOCK, WINDOW_NS
from framegate.proxy.tap.rules import TapRules
from framegate.proxy.tap.tallies import RESERVE_FRAMES, Reserve, Tally
from framegate.proxy.tap.writer import CLOCK_STEP_NS, STATE_AFTER_NS, TapWriter
from tests.fakes.disk import FakeDisk
from tests.fakes.runs import run_of
from tests.fakes.tap_read import read_blocks, read_gaps

MS = 1_000_000
SECOND = 1000 * MS
MINUTE = WINDOW_NS
HOUR = 60 * MINUTE
AHEAD = 10 * 365 * 24 * HOUR
START = 1_700_000_040 * SECOND  # a window begins


class Told(Reserve):
    """Notes what is reserved."""

    def __init__(self) -> None:
        self.values: list[tuple[int, int]] = []

    def reserve(self, tally: Tally) -> None:
        self.values.append((int(tally.frames), int(tally.reserved)))


class Log:
    """A writer whose thread is the test. Attributes: ``now``, monotonic."""

    def __init__(self, root: Path, disk: FakeDisk | None = None, reserve: Reserve | None = None, **rule: Any) -> None:
        self.root = str(root)
        self.writer = TapWriter(TapConfig(directory=str(root)), "n", "0", "b", disk, reserve=reserve)
        self.rules = TapRules((TapRule(name="all", **rule),), self.writer)
        self.points: dict[tuple[str, int, int], TapPoint] = {}
        self.now = 1
        self.sent = 0

    def send(self, at_ns: int, frames: int = 1, *, listener: str = "a", direction: int = 0, connection: int = 1) -> None:
        key = (listener, direction, connection)
        if key not in self.points:
            point = self.rules.match(listener, "framed", direction, None, None, connection)
            assert point is not None
            self.points[key] = point
        self.points[key].append(run_of([b"x" * 6] * frames), self.sent, at_ns)
        self.sent += frames

    def tick(self, ns: int = 200 * MS) -> int:
        self.now += ns
        due = int(self.writer.poll_due(self.now))
        self.writer.write_queued()
        return due

    def close(self) -> bool:
        return self.writer.flush_and_close(1000)

    def totals(self) -> list[TotalsRecord]:
        return [totals for block in read_blocks(self.root, self.writer.stream) for totals in block.totals()]

    def said(self) -> list[tuple[str, str, int, int]]:
        """Listener, direction, minutes since the start, frames."""
        return [(one.listener, one.direction, (one.from_ns - START) // MINUTE, one.frames) for one in self.totals()]

    def gaps(self) -> list[GapRecord]:
        return list(read_gaps(self.root))

    def times(self) -> list[int]:
        return [row.capture_ns for block in read_blocks(self.root, self.writer.stream) for row in block.rows]


def test_what_a_listener_and_direction_saw_is_said_once_for_each_window(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.send(START, 3)
    log.send(START + SECOND, 2, direction=1)
    log.send(START + MINUTE - 1, 1)
    log.send(START + MINUTE, 4)
    log.send(START + 3 * MINUTE, 5, listener="b")
    assert log.close()
    assert log.said() == [("a", "request", 0, 4), ("a", "response", 0, 2), ("a", "request", 1, 4), ("b", "request", 3, 5)]
    assert next((one.bytes, one.until_ns - one.from_ns) for one in log.totals()) == (40, MINUTE - 1)
    assert all(one.from_ns // WINDOW_NS == one.until_ns // WINDOW_NS for one in log.totals())


def test_a_window_is_stated_behind_its_end_though_nothing_follows(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.send(START + 10 * SECOND, 3)
    log.tick(1)
    assert log.tick(50 * SECOND + STATE_AFTER_NS - 1) == log.now + 1
    assert log.said() == []
    assert log.tick(1) == log.now + 20 * MS
    log.tick(20 * MS)
    assert log.said() == [("a", "request", 0, 3)]
    assert log.tick() == 0
    log.send(START + 20 * SECOND, 1)  # the wall clock was slower than ours: it is said beside
    assert log.close()
    assert log.said() == [("a", "request", 0, 3), ("a", "request", 0, 1)]


def test_frames_that_are_lost_are_seen_and_their_gaps_stay_in_their_window(tmp_path: Path) -> None:
    disk = FakeDisk(0)
    log = Log(tmp_path, disk)
    for minute in range(3):
        log.send(START + minute * MINUTE + SECOND, 2)
        log.tick()
        log.send(START + minute * MINUTE + 2 * SECOND, 5)
        log.tick()
    assert log.gaps() == []
    disk.room = None
    log.tick()
    assert log.close()
    lost = [((gap.from_ns - START) // MINUTE, (gap.until_ns - START) // MINUTE, gap.frames) for gap in log.gaps()]
    assert sorted(lost) == [(0, 0, 7), (1, 1, 7), (2, 2, 7)]
    assert {gap.certainty for gap in log.gaps()} == {"exact"}
    assert sorted(log.said()) == [("a", "request", minute, 7) for minute in range(3)]


def test_gaps_and_totals_of_many_windows_are_folded_and_nothing_is_forgotten(tmp_path: Path) -> None:
    disk = FakeDisk(0)
    log = Log(tmp_path, disk)
    windows = MAX_PENDING_GAPS + 100
    for minute in range(windows):
        log.send(START + minute * MINUTE)
        log.writer.poll_due(log.now)
        if minute == 0:
            log.tick()
            log.tick()
    disk.room = None
    log.tick()
    assert log.close()
    assert sum(gap.frames for gap in log.gaps()) == windows
    assert sum(one.frames for one in log.totals()) == windows
    spans = [gap for gap in log.gaps() if gap.from_ns // WINDOW_NS != gap.until_ns // WINDOW_NS]
    assert 0 < len(spans) < 3
    assert len(log.gaps()) <= MAX_PENDING_GAPS


@pytest.mark.parametrize("step", [1, CLOCK_STEP_NS])
def test_a_small_step_back_lets_the_time_stand_still(tmp_path: Path, step: int) -> None:
    log = Log(tmp_path)
    log.send(START + MINUTE)
    log.send(START + MINUTE - step)
    assert log.close()
    assert log.times()[:2] == [START + MINUTE] * 2
    assert log.said() == [("a", "request", 1, 2)]


def test_a_clock_set_back_goes_on_from_there_and_the_log_says_so(tmp_path: Path) -> None:
    log = Log(tmp_path)
    back = START + HOUR - CLOCK_STEP_NS - 1
    sent = [(START + HOUR, 3), (back, 1), (START, 2), (START + SECOND, 4), (START + AHEAD, 1), (START + 2 * SECOND, 5)]
    for at_ns, count in sent:
        log.send(at_ns, count)
    assert log.close()
    rows = [row for block in read_blocks(log.root, log.writer.stream) for row in block.rows]
    assert [(row.capture_ns, row.frame_count) for row in rows if row.frame_count] == sent
    clock = [(row.lost_from_ns, row.capture_ns) for row in rows if row.kind == KIND_CLOCK]
    assert clock == [(START + HOUR, back), (back, START), (START + AHEAD, START + 2 * SECOND)]
    assert [(minute, frames) for _, _, minute, frames in log.said()] == [(60, 3), (59, 1), (0, 6), (AHEAD // MINUTE, 1), (0, 5)]


def test_a_step_back_in_a_block_that_failed_is_said_with_the_next(tmp_path: Path) -> None:
    disk = FakeDisk(0)
    log = Log(tmp_path, disk)
    log.send(START + HOUR)
    log.send(START)
    log.tick()
    log.tick()
    disk.room = None
    log.tick()
    assert log.close()
    kinds = [row.kind for block in read_blocks(log.root, log.writer.stream) for row in block.rows]
    assert kinds.count(KIND_CLOCK) == 1
    assert sorted((gap.from_ns, gap.frames) for gap in log.gaps()) == [(START, 1), (START + HOUR, 1)]


def test_no_frame_passes_what_was_reserved_and_an_idle_log_reserves_nothing(tmp_path: Path) -> None:
    told = Told()
    log = Log(tmp_path, reserve=told)
    (tally,) = [log.writer.tallies.of("a", 0)]
    for _ in range(3):
        log.send(START, RESERVE_FRAMES - 1)
        log.send(START, 2)
        assert tally.frames <= tally.reserved
    assert [reserved >= frames for frames, reserved in told.values] == [True] * len(told.values)
    assert told.values[0] == (RESERVE_FRAMES - 1, 2 * RESERVE_FRAMES - 1)
    log.writer.tallies.update_reserves(MS)
    assert tally.reserved > tally.frames
    log.writer.tallies.update_reserves(2 * MS)
    assert tally.reserved == tally.frames
    log.send(START, 1)
    assert told.values[-1] == (tally.frames, tally.reserved)
    assert tally.reserved > tally.frames
    assert log.close()
    assert tally.reserved == tally.frames
