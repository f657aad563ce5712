"""What is appended, live."""

import array
import fcntl
import os
import shutil
import signal
import subprocess
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from framegate.control.cli import tap_follow
from framegate.control.cli.tap_follow import Follower
from framegate.control.cli.tap_records import Wanted
from tests.fakes.cli import start_cli
from tests.fakes.tap_files import segment_files
from tests.fakes.tap_log import START_NS, FakeProcessor

ALL = Wanted()


class Following:
    """Builds followers of a directory that write into a pipe."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.ours, self._theirs = os.pipe()
        os.set_blocking(self.ours, False)

    def __call__(self, wanted: Wanted = ALL, **given: Any) -> Follower:
        facts = {"patterns": (), "since_ns": None, "payload": 16, "limit": None, "encoding": "ascii", **given}
        return Follower(str(self.root), wanted, output=self._theirs, **facts)

    def take(self) -> list[str]:
        """What came since, as numbers of frames, or as it is."""
        try:
            lines = os.read(self.ours, 1 << 20).decode().splitlines()
        except BlockingIOError:
            return []
        return [line if line.startswith("--") else line.partition("|")[2].partition("|")[0] for line in lines]

    def close(self) -> None:
        for descriptor in (self.ours, self._theirs):
            os.close(descriptor)


@pytest.fixture
def following(tmp_path: Path) -> Iterator[Following]:
    made = Following(tmp_path)
    yield made
    made.close()


def write(processor: FakeProcessor, *numbers: int, size: int = 0) -> None:
    for number in numbers:
        processor.block([f"{number:<16}".encode() + bytes(size)], at_ns=START_NS + number)


def numbers(taken: list[str]) -> list[int]:
    return [int(text) for text in taken]


def test_only_what_is_appended_is_shown(tmp_path: Path, following: Following) -> None:
    processor = FakeProcessor(tmp_path)
    write(processor, 1, 2)
    follower = following()
    follower.show_appended()
    assert following.take() == []
    write(processor, 3, 4)
    follower.show_appended()
    assert numbers(following.take()) == [3, 4]
    follower.show_appended()
    assert following.take() == []


def test_new_streams_and_rolled_segments_are_shown_from_their_beginning(tmp_path: Path, following: Following) -> None:
    follower = following()
    follower.show_appended()
    processor = FakeProcessor(tmp_path, segment_size=1500)
    write(processor, *range(12), size=300)
    assert len(segment_files(tmp_path)) >= 3
    follower.show_appended()
    assert numbers(following.take()) == list(range(12))
    write(processor, *range(12, 24), size=300)
    processor.close()
    follower.show_appended()
    assert numbers(following.take()) == list(range(12, 24))


def test_since_shows_what_was_there(tmp_path: Path, following: Following) -> None:
    write(FakeProcessor(tmp_path), *range(20))
    following(Wanted(since_ns=START_NS + 5), since_ns=START_NS + 5, limit=15).run()
    assert numbers(following.take()) == list(range(5, 20))


def test_the_limit_ends_it(tmp_path: Path, following: Following) -> None:
    follower = following(limit=3)
    write(FakeProcessor(tmp_path), *range(10))
    follower.run()
    assert numbers(following.take()) == [0, 1, 2]


@pytest.mark.parametrize(("wanted", "word"), [(ALL, "-- "), (Wanted(min_size=1), "-- at most ")])
def test_a_log_that_is_too_far_ahead_is_passed_over_by_its_headers(
    tmp_path: Path, following: Following, monkeypatch: pytest.MonkeyPatch, wanted: Wanted, word: str
) -> None:
    monkeypatch.setattr(tap_follow, "MAX_BEHIND", 5000)
    follower = following(wanted)
    processor = FakeProcessor(tmp_path, segment_size=65536)
    write(processor, *range(100), size=1000)
    follower.show_appended()
    told, *shown = following.take()
    assert numbers(shown) == list(range(100 - len(shown), 100))
    assert told == f"{word}{100 - len(shown)} frames not shown"
    assert 2 <= len(shown) <= 5


def test_a_stream_that_is_deleted_unread_is_told_and_one_that_was_read_is_not(tmp_path: Path, following: Following) -> None:
    read, unread = FakeProcessor(tmp_path, boot_id="read"), FakeProcessor(tmp_path, boot_id="unread")
    follower = following()
    write(read, 1)
    write(unread, 2)
    read.close()
    for _ in range(2):
        follower.show_appended()
    assert sorted(numbers(following.take())) == [1, 2]
    for processor in (read, unread):
        shutil.rmtree(tmp_path / processor.stream)
    follower.show_appended()
    (line,) = following.take()
    assert line.startswith(f"-- unknown frames lost: vanished (unknown), {unread.stream} at ")
    follower.show_appended()
    assert following.take() == []


def test_a_torn_tail_is_told_once_it_cannot_be_a_block_any_more(tmp_path: Path, following: Following) -> None:
    processor = FakeProcessor(tmp_path)
    write(processor, 1)
    follower = following()
    write(processor, 2)
    (path,) = segment_files(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    follower.show_appended()
    assert following.take() == [], "it may be being written"
    path.write_bytes(whole)
    follower.show_appended()
    assert numbers(following.take()) == [2]
    path.write_bytes(whole + bytes(100))
    path.rename(path.with_suffix(".seg"))
    follower.show_appended()
    follower.show_appended()
    (line,) = following.take()
    assert "damaged (unknown)" in line


def test_a_torn_tail_is_not_read_again_and_again(tmp_path: Path, following: Following, monkeypatch: pytest.MonkeyPatch) -> None:
    processor = FakeProcessor(tmp_path)
    write(processor, 1)
    follower = following()
    (path,) = segment_files(tmp_path)
    with path.open("ab") as file:
        file.write(bytes(1000))
    for _ in range(tap_follow._LISTINGS + 1):
        follower.show_appended()
    read: list[str] = []
    real = tap_follow.Cursor.blocks
    monkeypatch.setattr(tap_follow.Cursor, "blocks", lambda cursor, limit=None: read.append(cursor.stream) or real(cursor, limit))
    for _ in range(10):
        follower.show_appended()
    assert read == []
    with path.open("ab") as file:
        file.write(b"more")
    follower.show_appended()
    assert read


def test_it_ends_when_its_reader_goes(tmp_path: Path) -> None:
    ours, theirs = os.pipe()
    write(FakeProcessor(tmp_path), *range(9))
    os.close(ours)
    for since_ns in (None, START_NS):
        Follower(str(tmp_path), ALL, (), since_ns, 16, None, theirs, "utf-8").run()
    os.close(theirs)


def begin(root: Path, *words: str, **options: Any) -> "subprocess.Popen[str]":
    """A process that follows, and has shown that it does."""
    process = start_cli("tap", "follow", str(root), *words, **options)
    assert process.stdout is not None
    marker = FakeProcessor(root, boot_id=f"marker{time.monotonic_ns()}")
    deadline = time.monotonic() + 20
    seen = threading.Event()
    first: list[str] = []

    def read() -> None:
        first.append(process.stdout.readline())
        seen.set()

    threading.Thread(target=read, daemon=True).start()
    while not seen.is_set() and time.monotonic() < deadline:
        marker.block([b"marker"])
        seen.wait(0.1)
    assert "|marker|" in first[0]
    return process


@pytest.mark.slow
def test_a_line_comes_within_a_tenth_of_a_second_and_ctrl_c_is_130(tmp_path: Path) -> None:
    with begin(tmp_path, "--stream", "edge.0.*") as process:
        assert process.stdout is not None
        processor = FakeProcessor(tmp_path)
        times = []
        for number in range(10):
            write(processor, number)
            appended = time.monotonic()
            while f"|{number:<16}|" not in process.stdout.readline():
                pass
            times.append(time.monotonic() - appended)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=10)
        assert (process.returncode, err) == (130, "framegate: interrupted\n")
    assert min(times) <= 0.1


@pytest.mark.slow
def test_ctrl_c_ends_it_though_the_terminal_stands_still(tmp_path: Path) -> None:
    with begin(tmp_path) as process:
        processor = FakeProcessor(tmp_path, boot_id="many", segment_size=1 << 24)
        for _ in range(40):
            processor.block([bytes(64)] * 1000)
        assert process.stdout is not None
        deadline = time.monotonic() + 10
        waiting = array.array("i", [0])
        while time.monotonic() < deadline and waiting[0] < 60_000:  # of the 64 KiB that a pipe takes
            time.sleep(0.02)
            fcntl.ioctl(process.stdout, termios.FIONREAD, waiting)
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
        assert process.stderr is not None
        assert process.stderr.read() == "framegate: interrupted\n"
