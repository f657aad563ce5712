import errno
import os
import select
import tempfile
import threading
from pathlib import Path

import pytest

from framegate.proxy.config.model import OnFull
from framegate.proxy.network.run import Buffer
from framegate.proxy.tap.log_reader import segments
from framegate.proxy.tap.writer_thread import RETRY_NS
from tests.fakes.cases import each_of
from tests.fakes.disk import FakeDisk
from tests.fakes.tap_read import segment_facts
from tests.fakes.writer import MS, Log


def test_a_full_disk_drops_then_writing_resumes_by_itself(tmp_path: Path) -> None:
    disk = FakeDisk()
    log = Log(tmp_path, disk)
    log.send(b"before")
    log.flush()
    disk.room = 50
    log.send(b"dropped with its block", frames=2)
    log.flush()
    assert log.writer.thread.write_errors == 1
    assert "No space" in log.writer.error
    log.tick(0)
    assert log.writer.dropped_disk_full == 2
    for _ in range(3):
        assert log.send(b"dropped at once")
    assert log.writer.dropped_disk_full == 5
    log.tick(RETRY_NS)
    log.writer.write_queued()
    assert log.writer.thread.write_errors == 2
    disk.room = None
    log.tick(0)
    log.tick(RETRY_NS)
    log.writer.write_queued()
    assert log.writer.error == ""
    log.send(b"after")
    log.flush()
    (gap,) = log.gaps()
    assert (gap.reason, gap.frames, gap.first_frame, gap.connection) == ("disk_full", 5, 1, 1)
    assert log.numbers() == [0, 6]
    log.assert_settled()


def test_while_the_disk_fails_it_is_not_asked_at_every_flush(tmp_path: Path) -> None:
    disk = FakeDisk()
    disk.broken = errno.EIO
    log = Log(tmp_path, disk)
    log.send(b"x")
    for _ in range(1000):
        log.tick(1 * MS)
        log.writer.write_queued()
    assert 5 <= log.writer.thread.write_errors <= 12
    assert log.writer.dropped_disk_error == 1


def test_each_try_to_write_a_block_is_measured_by_what_became_of_it(tmp_path: Path) -> None:
    disk = FakeDisk()
    log = Log(tmp_path, disk)
    thread = log.writer.thread
    log.send(b"good")
    log.flush()
    assert ([histogram.count for histogram in thread.appends], thread.appends[0].sum > 0) == ([1, 0, 0], True)
    for broken in (errno.ENOSPC, errno.EIO):
        disk.broken = broken
        log.send(b"bad")
        log.flush()
        disk.broken = 0
        log.tick(0)
        log.tick(RETRY_NS)
        log.writer.write_queued()
    tries = [int(histogram.count) for histogram in thread.appends]
    assert tries[1:] == [1, 1]
    assert sum(tries) == thread.handed == thread.settled, "all were tried once, and none waits"
    log.send(b"waits")
    log.tick(0)
    log.tick()
    assert thread.handed - thread.settled == 1


def test_mute_and_a_failing_disk_try_the_block_again(tmp_path: Path) -> None:
    disk = FakeDisk()
    disk.broken = errno.EIO
    wakeup = os.eventfd(0, os.EFD_NONBLOCK)
    try:
        log = Log(tmp_path, disk, on_full="mute", wakeup_fd=wakeup)
        log.writer.start()
        log.send(b"kept")
        log.tick(0)
        log.tick()
        while not log.writer.thread.write_errors:
            threading.Event().wait(0.001)
        assert not log.send(b"kept too")
        assert not log.writer.accepts()
        disk.broken = 0
        assert select.select([wakeup], [], [], 5)[0] == [wakeup]
        assert os.eventfd_read(wakeup) == 1
        assert log.writer.accepts()
        assert log.writer.flush_and_close(5000)
        assert log.numbers() == [0, 1]
        log.assert_settled()
    finally:
        os.close(wakeup)


@each_of(
    ("on_full", "broken", "in_pieces"),
    [("drop", errno.ENOSPC, False), ("mute", errno.EIO, False), ("mute", errno.EIO, True)],
    fresh={"folder": tempfile.TemporaryDirectory},
)
def test_closing_on_a_failing_disk_counts_what_is_lost_and_does_not_wait_for_what_must_be_kept(
    folder: str, on_full: OnFull, broken: int, in_pieces: bool
) -> None:
    disk = FakeDisk()
    disk.broken = broken
    log = Log(Path(folder), disk, on_full=on_full)
    log.writer.start()
    if in_pieces:
        log.part(bytes(1000), 0, 300)
        log.tick(0)
        log.tick()
        log.part(bytes(1000), 300, 1004)
    else:
        log.send(b"x", frames=4)
    assert not log.writer.flush_and_close(50)
    assert log.matched == (1 if in_pieces else 4)
    assert (log.writer.dropped_disk_full if broken == errno.ENOSPC else log.writer.dropped_disk_error) == log.matched
    assert os.strerror(broken) in log.writer.error


def test_closing_on_a_full_disk_still_says_what_is_lost_when_that_fits(tmp_path: Path) -> None:
    disk = FakeDisk()
    log = Log(tmp_path, disk)
    log.writer.start()
    log.send(b"kept")
    log.tick(0)
    log.tick()
    while not log.flushed:
        threading.Event().wait(0.001)
    disk.room = 1000
    log.send(bytes(5000), frames=4)
    assert log.writer.flush_and_close(5000)
    assert [(gap.reason, gap.frames) for gap in log.gaps()] == [("disk_full", 4)]
    log.assert_settled()


class FaultyDisk(FakeDisk):
    """A disk under which a bug of ours shows."""

    def write(self, fd: int, parts: list[Buffer], position: int) -> int:
        if self.broken:
            raise RuntimeError("a bug")
        return super().write(fd, parts, position)


def test_a_bug_under_a_write_costs_its_block_and_not_the_thread(tmp_path: Path) -> None:
    disk = FaultyDisk()
    disk.broken = 1
    log = Log(tmp_path, disk)
    log.writer.start()
    log.send(b"lost", frames=3)
    log.tick(0)
    log.tick()
    while not log.writer.thread.write_errors:
        threading.Event().wait(0.001)
    assert "a bug" in log.writer.error
    disk.broken = 0
    log.tick(RETRY_NS)
    log.tick(RETRY_NS)
    while log.writer.error:
        threading.Event().wait(0.001)
    log.send(b"kept")
    assert log.writer.flush_and_close(5000)
    assert [(gap.reason, gap.frames) for gap in log.gaps()] == [("disk_error", 3)]
    assert log.numbers() == [3]
    assert segment_facts(segments(log.root, log.writer.stream)[0].path)["base"] == 0
    log.assert_settled()


def test_a_segment_that_cannot_be_renamed_costs_no_frame_and_is_named_later(tmp_path: Path) -> None:
    disk = FakeDisk()
    disk.failing = {"rename"}
    log = Log(tmp_path, disk, segment_size=1000)
    for _ in range(3):
        log.send(bytes(900))
        log.flush()
    assert "Input/output error" in log.writer.error
    assert log.numbers() == [0, 1, 2]
    disk.failing.clear()
    log.send(bytes(900))
    log.flush()
    assert log.writer.error == ""
    assert [segment.sealed for segment in segments(log.root, log.writer.stream)] == [True, True, True, False]
    disk.failing = {"rename"}
    assert log.writer.flush_and_close(1000), "every frame is accounted for; the name is given when the processor has ended"
    log.assert_settled()


class StuckDisk(FakeDisk):
    """A disk whose writes do not return until they are let go."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = threading.Event()

    def write(self, fd: int, parts: list[Buffer], position: int) -> int:
        self.let_go.wait(10)
        return super().write(fd, parts, position)


@pytest.mark.slow
def test_closing_does_not_wait_for_a_disk_that_does_not_answer(tmp_path: Path) -> None:
    disk = StuckDisk()
    log = Log(tmp_path, disk)
    log.writer.start()
    for _ in range(2):
        log.send(b"x")
        log.tick(0)
        log.tick()
    try:
        assert not log.writer.flush_and_close(10)
        assert log.writer.dropped_closed == 1
        assert "in time" in log.writer.error
    finally:
        disk.let_go.set()
