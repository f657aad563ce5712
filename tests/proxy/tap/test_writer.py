import errno
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from framegate.proxy.config.model import TapRule
from framegate.proxy.network.run import Buffer
from framegate.proxy.tap.completeness import verify
from framegate.proxy.tap.gap import MAX_PENDING_ENDS, NO_CONNECTION
from framegate.proxy.tap.log_reader import segments
from framegate.proxy.tap.record import KIND_CONNECTION, KIND_TOTALS, KINDS, REASONS, WINDOW_NS
from framegate.proxy.tap.rules import TapRules
from framegate.proxy.tap.writer import SAMPLED_GAPS_NS
from framegate.proxy.tap.writer_thread import RETRY_NS
from tests.fakes.disk import FakeDisk
from tests.fakes.runs import run_of
from tests.fakes.tap_read import read_blocks, read_ends, read_frames
from tests.fakes.writer import MS, Log


def test_a_block_is_written_when_its_first_chunk_is_old_enough(tmp_path: Path) -> None:
    log = Log(tmp_path, flush_ms=20)
    assert log.tick() == 0
    log.send(b"a")
    assert log.tick() == log.now + 20 * MS
    log.send(b"b")
    assert log.tick(20 * MS - 1) == log.now + 1
    log.writer.write_queued()
    assert log.numbers() == []
    assert log.tick(1) > log.now + 10_000 * MS  # the end of the window
    log.writer.write_queued()
    assert log.numbers() == [0, 1]
    assert log.writer.blocks_handed == 1


def test_a_block_is_handed_over_when_it_is_large_enough(tmp_path: Path) -> None:
    log = Log(tmp_path, flush_size=64 << 10)
    for _ in range(10):
        log.send(bytes(16 << 10))
    assert log.writer.blocks_handed == 2
    log.writer.write_queued()
    assert log.numbers() == list(range(8))
    assert log.writer.flush_and_close(1000)
    assert log.numbers() == list(range(10))


def test_closing_writes_and_seals_and_an_idle_writer_leaves_nothing(tmp_path: Path) -> None:
    idle = Log(tmp_path)
    idle.writer.start()
    assert idle.writer.flush_and_close(5000)
    assert list(tmp_path.iterdir()) == []
    log = Log(tmp_path)
    log.writer.start()
    for _ in range(100):
        log.send(b"x" * 100, frames=3)
    assert log.writer.flush_and_close(5000)
    log.assert_settled()
    assert log.flushed == 300
    assert [segment.sealed for segment in segments(log.root, log.writer.stream)] == [True]
    assert log.writer.queued_bytes == 0
    assert log.writer.thread.bytes_flushed == segments(log.root, log.writer.stream)[0].size - 4096


def test_a_full_queue_drops_and_says_so_in_the_next_block(tmp_path: Path) -> None:
    large = Log(tmp_path / "large", queue_size=64 << 10)
    assert large.send(bytes(1 << 20)), "a chunk larger than the queue passes when the queue is empty"
    large.writer.write_queued()
    assert large.numbers() == [0]
    log = Log(tmp_path / "log", flush_size=64 << 10, queue_size=128 << 10)
    for _ in range(20):
        assert log.send(bytes(16 << 10), frames=2)
    assert log.writer.dropped_queue_full == 2 * (20 - 4)
    assert log.writer.queued_bytes <= (128 << 10) + (33 << 10)
    log.writer.write_queued()
    log.send(b"after")
    log.flush()
    (gap,) = log.gaps()
    assert (gap.reason, gap.connection, gap.frames, gap.first_frame, gap.rule) == ("queue_full", 1, 32, 8, "all")
    assert gap.bytes == 32 * ((16 << 10) + 4)
    assert log.numbers() == [*range(8), 40]
    log.assert_settled()


def test_gaps_are_written_without_any_further_traffic(tmp_path: Path) -> None:
    log = Log(tmp_path, flush_size=64 << 10, queue_size=64 << 10)
    log.send(bytes(64 << 10))
    log.send(b"lost")
    assert log.tick() > 0
    log.writer.write_queued()
    log.flush()
    assert [(gap.reason, gap.frames) for gap in log.gaps()] == [("queue_full", 1)]


def test_mute_keeps_every_frame_and_tells_when_to_stop_and_go_on(tmp_path: Path) -> None:
    log = Log(tmp_path, on_full="mute", flush_size=64 << 10, queue_size=128 << 10)
    answers = [log.send(bytes(32 << 10)) for _ in range(6)]
    assert answers == [True, True, True, False, False, False]
    assert not log.writer.accepts()
    log.writer.write_queued()
    assert log.writer.accepts()
    assert log.writer.flush_and_close(1000)
    assert log.numbers() == list(range(6))
    assert log.writer.frames_dropped == 0


def test_sampled_gaps_are_written_once_a_second(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.rules = TapRules((TapRule(name="none", sample_connections=0.0),), log.writer)
    log.tick(SAMPLED_GAPS_NS)
    log.send(b"a")
    due = log.tick(0)
    log.flush()
    written = len(log.gaps())
    log.send(b"b")
    assert log.tick(0) > log.now + 100 * MS
    log.tick(SAMPLED_GAPS_NS)
    log.flush()
    assert due > 0
    assert written == 1
    assert sum(gap.frames for gap in log.gaps()) == log.writer.dropped_sampled == 2


BODY = bytes(range(250)) * 4
END = len(BODY) + 4


class OnceBrokenDisk(FakeDisk):
    """A disk that fails so many writes, and then works again.

    Attributes:
        faults: writes that fail from now on.
        fault: with what.
    """

    def __init__(self) -> None:
        super().__init__()
        self.faults = 0
        self.fault: Exception = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def write(self, fd: int, parts: list[Buffer], position: int) -> int:
        if self.faults:
            self.faults -= 1
            raise self.fault
        return super().write(fd, parts, position)


def test_a_queue_that_is_full_within_a_frame_makes_it_a_gap_and_copies_no_more(tmp_path: Path) -> None:
    log = Log(tmp_path, flush_size=64 << 10, queue_size=128 << 10)
    body = bytes(1 << 20)
    for start in range(0, 1 << 20, 32 << 10):
        assert log.part(body, start, start + (32 << 10))
        assert log.writer.queued_bytes <= (128 << 10) + (33 << 10)
    assert (log.matched, log.writer.frames_dropped) == (0, 0), "it counts when its last piece has passed"
    log.writer.write_queued()
    assert log.part(body, 1 << 20, (1 << 20) + 4), "there is room again, but the frame has a hole"
    log.send(b"after")
    log.flush()
    (gap,) = log.gaps()
    assert (gap.reason, gap.frames, gap.bytes, gap.first_frame) == ("queue_full", 1, (1 << 20) + 4, 0)
    assert log.numbers() == [1]
    log.assert_settled()


@pytest.mark.parametrize("fault", ["disk_full", "disk_error"])
@pytest.mark.parametrize("last", [False, True])
def test_a_frame_of_which_a_piece_was_not_written_becomes_one_gap_at_its_end(tmp_path: Path, fault: str, last: bool) -> None:
    disk = OnceBrokenDisk()
    log = Log(tmp_path, disk)
    log.part(BODY, 0, 300)
    log.flush()
    disk.faults = 1
    if fault == "disk_error":
        disk.fault = OSError(errno.EIO, os.strerror(errno.EIO))
    log.part(BODY, 300, END if last else 600)
    if not last:
        log.send(b"in the same block", connection=2)
        log.flush()
    log.writer.write_queued()
    for _ in range(2):
        log.tick(RETRY_NS)
        log.tick(RETRY_NS)
        log.writer.write_queued()
    assert log.writer.error == ""
    if not last:
        log.part(BODY, 600, 900)
        assert log.writer.builder.chunk_count == 0, "nothing more is copied"
        log.part(BODY, 900, END)
        log.flush()
    assert [(gap.reason, gap.frames, gap.bytes) for gap in log.gaps() if gap.connection == 1] == [(fault, 1, END)]
    assert log.numbers() == []
    log.assert_settled()


@pytest.mark.parametrize("fault", [OSError(errno.EIO, "broken"), RuntimeError("a bug")], ids=["disk", "bug"])
def test_a_frame_that_was_handed_over_when_its_piece_failed_says_what_is_missing(tmp_path: Path, fault: Exception) -> None:
    disk = OnceBrokenDisk()
    log = Log(tmp_path, disk)
    log.send(b"first")
    log.flush()
    log.part(BODY, 0, 300)
    log.tick(0)
    log.tick()
    log.part(BODY, 300, 600)
    log.tick(0)
    log.tick()
    log.part(BODY, 600, END)
    assert log.writer.blocks_handed == 4
    disk.faults, disk.fault = 1, fault
    log.writer.start()
    assert log.writer.flush_and_close(5000)
    assert [(frame.number, len(frame.body), frame.size) for frame in read_frames(log.root)] == [(0, 5, 5), (1, 0, len(BODY))]
    log.assert_settled()
    assert (log.matched, log.writer.frames_dropped) == (2, 0)


def test_mute_keeps_every_piece_and_tells_when_to_stop(tmp_path: Path) -> None:
    disk = OnceBrokenDisk()
    log = Log(tmp_path, disk, on_full="mute", flush_size=4000, queue_size=9000)
    body = bytes(20_000)
    answers = [log.part(body, start, start + 2500) for start in range(0, 20_000, 2500)]
    assert answers[0]
    assert not answers[-1]
    assert not log.part(body, 20_000, 20_004)
    disk.faults = 2
    log.writer.start()
    assert log.writer.flush_and_close(5000)
    assert [frame.body for frame in read_frames(log.root)] == [body]
    log.assert_settled()
    assert log.writer.frames_dropped == 0


def test_the_last_piece_ends_its_block(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.part(BODY, 0, 300)
    log.part(BODY, 300, END)
    assert log.writer.blocks_handed == 1
    log.part(BODY, 0, END)
    assert log.writer.blocks_handed == 1, "a frame in one piece has nothing to be joined"
    log.flush()
    assert [frame.body for frame in read_frames(log.root)] == [BODY, BODY]


WRITER = """
import struct, sys
from framegate.proxy.config.model import TapConfig, TapRule
from framegate.proxy.network.run import Run
from framegate.proxy.tap.rules import TapRules
from framegate.proxy.tap.writer import TapWriter
import time
writer = TapWriter(TapConfig(directory=sys.argv[1], segment_size=1 << 20, queue_size=1 << 30), "edge", "0", "b0")
point = TapRules((TapRule(name="all"),), writer).match("main", "framed", 0, None, None, 1)
writer.start()
number = 0
while True:
    body = struct.pack(">q", number) * 50
    run = struct.pack(">i", len(body)) + body
    point.append(Run(None, 0, run, 0, len(run), 1, 0), number, 1)
    number += 1
    if number % 100 == 0:
        writer.poll_due(time.monotonic_ns())
        while writer.queued_bytes > 1 << 20:
            time.sleep(0.0002)
        if number > 20000:
            time.sleep(0.01)  # else there is much to read
    if number == 20000:
        print("far enough", flush=True)
"""


@pytest.mark.slow
@pytest.mark.timeout(30)
def test_a_writer_killed_in_the_middle_leaves_whole_blocks_only(tmp_path: Path) -> None:
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, env=paths) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"far enough\n"
        partial = [frame.number for frame in read_frames(str(tmp_path))]
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    found = list(read_frames(str(tmp_path)))
    assert partial == list(range(len(partial)))
    assert [frame.number for frame in found] == list(range(len(found)))
    assert len(found) >= len(partial) > 1000
    assert all(frame.body == frame.number.to_bytes(8, "big") * 50 for frame in found)
    listed = segments(str(tmp_path), "edge.0.b0")
    assert [segment.sealed for segment in listed[:-1]] == [True] * (len(listed) - 1)


PRELUDE = """
import resource, sys
from pathlib import Path
from tests.fakes.tap_log import FakeProcessor
from tests.fakes.tap_read import read_frames, read_gaps
"""
LIMITED = """
resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
processor = FakeProcessor(Path(sys.argv[1]))
for number in range(8):
    processor.block([bytes([number]) * 4000])
assert processor.writer.thread.write_errors > 0, processor.writer.thread.write_errors
assert "File too large" in processor.writer.error
print([frame.body[0] for frame in read_frames(sys.argv[1])])
"""
FIRST_BLOCK = """
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
processor = FakeProcessor(Path(sys.argv[1]), segment_age_ms=1)
processor.block([bytes(4000)])
assert processor.writer.thread.write_errors == 1, processor.writer.thread.write_errors
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
for _ in range(2):
    processor.writer.poll_due(1 << 40)  # the gap, when the disk is tried again
    processor.writer.poll_due(1 << 50)
processor.writer.write_queued()
processor.block([b"seen"])
print([bytes(frame.body) for frame in read_frames(sys.argv[1])], [gap.frames for gap in read_gaps(sys.argv[1])])
"""


@pytest.mark.slow
@pytest.mark.parametrize(("program", "printed"), [(LIMITED, "[0, 1, 2]\n"), (FIRST_BLOCK, "[b'seen'] [1]\n")], ids=["full", "first block"])
def test_the_real_system_calls_report_a_write_that_does_not_fit_and_what_follows_is_seen(tmp_path: Path, program: str, printed: str) -> None:
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    root = str(Path(__file__).resolve().parents[3])
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, root])}
    done = subprocess.run([sys.executable, "-c", PRELUDE + program, str(tmp_path)], env=paths, capture_output=True, text=True)
    assert done.stdout == printed, done.stderr


def ended(log: Log, connection: int, at_ns: int = 2000) -> None:
    log.rules.note_end(json.dumps({"id": str(connection)}), "main", "framed", None, f"10.0.0.1:{connection}", connection, 1000, at_ns)


def ids(log: Log) -> list[int]:
    return [int(end["id"]) for end in read_ends(log.root)]


def lost_ends(log: Log) -> dict[tuple[str, str | None], int]:
    found: dict[tuple[str, str | None], int] = {}
    for block in read_blocks(log.root, log.writer.stream):
        for row in block.rows:
            if row.kind == KIND_CONNECTION and row.connection == NO_CONNECTION:
                key = (REASONS[row.reason], block.word(row.listener))
                found[key] = found.get(key, 0) + row.lost_frames
    return found


def test_an_end_of_a_connection_is_written_once_without_other_traffic(tmp_path: Path) -> None:
    log = Log(tmp_path, flush_ms=20)
    log.rules.begin(1)
    ended(log, 7)
    assert log.tick() == log.now + 20 * MS
    log.flush()
    (block,) = read_blocks(log.root, log.writer.stream)
    assert [KINDS[row.kind] for row in block.rows] == ["rules", "connection"], "the rules come first in a stream"
    row = block.rows[1]
    assert (row.connection, row.capture_ns, row.lost_from_ns, row.original_bytes, row.frame_count, row.lost_frames) == (7, 2000, 1000, 2000, 0, 0)
    assert [block.word(index) for index in (row.listener, row.principal, row.peer)] == ["main", None, "10.0.0.1:7"]
    assert list(read_ends(log.root)) == [{"tap_rule": "all", "id": "7"}]
    log.send(b"a")
    assert log.writer.flush_and_close(1000)
    assert ids(log) == [7]
    log.assert_settled()


def test_ends_in_a_later_minute_come_behind_the_totals_of_the_minute_before(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.send(b"a")
    ended(log, 1, WINDOW_NS)
    log.point(1).append(run_of([b"b"]), 1, WINDOW_NS + 5)
    assert log.writer.flush_and_close(1000)
    rows = [row for block in read_blocks(log.root, log.writer.stream) for row in block.rows]
    totals = [(row.lost_from_ns, row.original_bytes, row.lost_frames) for row in rows if row.kind == KIND_TOTALS]
    assert totals == [(1000, 1000, 1), (WINDOW_NS, WINDOW_NS + 5, 1)]
    assert [row.capture_ns for row in rows] == sorted(row.capture_ns for row in rows)


@pytest.mark.parametrize("extra", [0, 1, 2])
def test_ends_wait_for_a_full_disk_and_those_beyond_the_bound_are_counted(tmp_path: Path, extra: int) -> None:
    disk = FakeDisk(room=0)
    log = Log(tmp_path, disk)
    log.send(b"a")
    log.flush()
    for number in range(MAX_PENDING_ENDS + extra):
        ended(log, number)
    log.tick(RETRY_NS)
    log.flush()
    disk.room = None
    for _ in range(3):
        log.tick(RETRY_NS)
        log.flush()
    assert log.writer.flush_and_close(1000)
    assert sorted(ids(log)) == list(range(MAX_PENDING_ENDS))
    assert lost_ends(log) == ({("disk_full", "main"): extra} if extra else {})
    assert (log.writer.dropped_ends, verify(str(log.root)).lost_ends) == (extra, {"disk_full": extra} if extra else {})
    log.assert_settled()


def test_a_mass_of_ends_while_the_log_takes_them_is_written_whole(tmp_path: Path) -> None:
    log = Log(tmp_path)
    for number in range(2 * MAX_PENDING_ENDS + 5):
        ended(log, number)
    assert log.writer.flush_and_close(1000)
    assert ids(log) == list(range(2 * MAX_PENDING_ENDS + 5))
    assert lost_ends(log) == {}


def test_a_log_that_closes_without_its_ends_is_not_whole(tmp_path: Path) -> None:
    disk = FakeDisk(room=0)
    log = Log(tmp_path, disk)
    ended(log, 1)
    assert not log.writer.flush_and_close(1000)
    assert "No space left" in log.writer.error


def test_a_name_that_is_no_text_does_not_stop_the_log(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.rules.note_end('{"peer": "\udc80"}', "main", "framed", None, "", 1, 1000, 2000)
    assert log.writer.flush_and_close(1000)
    assert list(read_ends(log.root)) == [{"tap_rule": "all", "peer": "?"}]


def test_an_end_waits_for_a_full_queue_and_holds_nobody_up(tmp_path: Path) -> None:
    log = Log(tmp_path, on_full="mute", flush_size=64 << 10, queue_size=128 << 10)
    while log.send(bytes(32 << 10)):
        pass
    sent, before = log.sent[1], log.writer.blocks_handed
    for number in range(3):
        ended(log, number)
    assert (log.writer.blocks_handed, log.writer.accepts()) == (before, False)
    log.writer.write_queued()
    assert log.writer.accepts()
    assert log.writer.flush_and_close(1000)
    assert (ids(log), lost_ends(log), log.numbers()) == ([0, 1, 2], {}, list(range(sent)))
