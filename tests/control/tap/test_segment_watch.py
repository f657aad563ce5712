"""Which segments began and ended."""

from pathlib import Path

import pytest

from framegate.control.tap.segment_watch import SegmentWatch
from framegate.proxy.tap.headers import Seal
from framegate.proxy.tap.log_reader import Segment, segments, streams
from framegate.proxy.tap.recovery import seal_stream
from tests.fakes.tap_keeper import keeper
from tests.fakes.tap_log import FakeProcessor
from tests.fakes.waiting import until

Told = list[tuple[Segment, int, Seal | None]]


class Bench:
    """A watch over a folder, and what it told: (base, end or None while it is open)."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.all: Told = []
        self.failures: list[str] = []
        self.watch = SegmentWatch(lambda *facts: self.all.append(facts), self.failures.append)

    def look(self) -> list[tuple[int, int | None]]:
        before = len(self.all)
        root = str(self.directory)
        self.watch.look({stream: segments(root, stream) for stream in streams(root)})
        return [(segment.base, None if seal is None else seal.end) for segment, _, seal in self.all[before:]]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_segment_is_told_when_it_begins_and_when_it_is_sealed_and_never_again(bench: Bench) -> None:
    assert bench.look() == []
    processor = FakeProcessor(bench.directory)
    processor.block([b"one", b"two"])
    assert bench.look() == [(0, None)]
    processor.block([b"three"])
    assert bench.look() == []
    processor.close()
    ((_, end),) = bench.look()
    segment, created_ns, seal = bench.all[-1]
    assert seal is not None
    assert (segment.stream, seal.request_frames, seal.response_frames) == (processor.stream, 3, 0)
    assert end == seal.end > 0
    assert 0 < created_ns <= seal.sealed_ns
    assert bench.look() == []


def test_one_that_began_and_ended_between_two_looks_is_told_twice(bench: Bench) -> None:
    assert bench.look() == []
    processor = FakeProcessor(bench.directory, segment_size=1)  # each block is a segment
    processor.block([b"one"])
    processor.block([b"two"])
    processor.close()  # writes the totals: a third one
    told = bench.look()
    assert [end is None for _, end in told] == [True, False] * 3
    assert [base for base, _ in told[::2]] == [base for base, _ in told[1::2]] == [0, *[end for _, end in told[1::2]][:2]]


def test_what_was_there_at_the_first_look_is_only_told_if_it_ends_later(bench: Bench) -> None:
    old, left = FakeProcessor(bench.directory, boot_id="old"), FakeProcessor(bench.directory, boot_id="left")
    for processor in (old, left):
        processor.block([b"one"])
    old.close()
    assert bench.look() == []
    seal_stream(str(bench.directory), left.stream, 5)
    (told,) = bench.look()
    assert (bench.all[0][0].stream, told[0]) == (left.stream, 0)


def test_one_without_a_header_yet_is_told_once_it_has_one(bench: Bench) -> None:
    assert bench.look() == []
    processor = FakeProcessor(bench.directory)
    processor.block([b"one"])
    (path,) = bench.directory.glob("*/*.open")
    whole = path.read_bytes()
    path.write_bytes(b"")
    assert bench.look() == []
    path.write_bytes(whole)
    assert bench.look() == [(0, None)]
    assert bench.failures == []
    processor.close()


def test_one_that_is_damaged_is_told_as_a_failure_once_and_costs_no_other(bench: Bench) -> None:
    assert bench.look() == []
    for name in ("a", "b"):
        processor = FakeProcessor(bench.directory, boot_id=name)
        processor.block([b"one"])
        processor.close()
    path = next(bench.directory.glob("*.a/*.seg"))
    path.write_bytes(b"x" * 5000)
    assert len(bench.look()) == 2  # of the other stream
    assert len(bench.failures) == 1
    assert bench.look() == []
    assert len(bench.failures) == 1


def test_the_keeper_tells_what_its_processors_wrote_up_to_the_end_and_the_end_of_what_an_earlier_run_left(tmp_path: Path) -> None:
    FakeProcessor(tmp_path, boot_id="earlier", node="n").block([b"one"])
    told: Told = []
    tap, _, _ = keeper(tmp_path, on_segment=lambda *facts: told.append(facts))
    tap.born(0, "b")
    processor = FakeProcessor(tmp_path, boot_id="b", node="n")
    processor.block([b"one"])
    until(lambda: any(segment.stream == "n.0.b" for segment, _, _ in told))  # at the next sweep, a second later
    processor.close()
    tap.stop()
    found = {stream: [seal is None for segment, _, seal in told if segment.stream == stream] for stream in ("n.0.earlier", "n.0.b")}
    assert found == {"n.0.earlier": [False], "n.0.b": [True, False]}
