"""Streams and segments by their headers."""

from pathlib import Path

import pytest

from framegate.control.cli import tap_listing
from framegate.control.cli.tap_listing import list_segments
from framegate.proxy.tap.log_reader import segments
from framegate.proxy.tap.record import FLAG_AT_MOST, REASON_PROCESSOR_DIED
from framegate.proxy.tap.settlement import Entry, write_settlement
from tests.fakes.tap_files import as_version, chop, flip, segment_files
from tests.fakes.tap_log import START_NS, FakeProcessor


def write(root: Path, count: int = 12, *, seal: bool = True) -> str:
    processor = FakeProcessor(root, segment_size=1500)
    for number in range(count):
        processor.block([bytes(300)], at_ns=START_NS + number)
    if seal:
        processor.close()
    return processor.stream


def states(root: Path) -> list[str]:
    return [state.state for state in list_segments(str(root))]


def test_counts_are_those_of_the_blocks(tmp_path: Path) -> None:
    write(tmp_path)
    found = list_segments(str(tmp_path))
    assert sum(state.requests for state in found) == 12
    assert [state.first_ns for state in found] == sorted(state.first_ns or 0 for state in found)
    assert (found[0].first_ns, found[-1].last_ns) == (START_NS, START_NS + 11)
    assert [left.end for left in found[:-1]] == [right.base for right in found[1:]]


def test_gaps_are_counted_by_what_is_known_of_them(tmp_path: Path) -> None:
    lossy = FakeProcessor(tmp_path, flush_size=64 << 10, queue_size=64 << 10)
    lossy.send([b"kept"])
    for _ in range(4):
        lossy.send([bytes(40_000)])
    lossy.flush()
    lossy.close()
    gap = Entry("main", "request", REASON_PROCESSOR_DIED, FLAG_AT_MOST, 7, 0, START_NS, START_NS + 5)
    write_settlement(str(tmp_path), "edge.0.b0", [gap])
    state, recovery = list_segments(str(tmp_path))
    assert (state.requests + state.lost, state.lost > 0) == (5, True)
    assert (state.at_most, state.unknown, state.sampled) == (0, 0, 0)
    assert (recovery.lost, recovery.at_most) == (0, 7)


@pytest.mark.parametrize("version", [2, 3])
def test_the_state_says_how_a_segment_ends(tmp_path: Path, version: int) -> None:
    write(tmp_path)
    for path in segment_files(tmp_path):
        if version == 2:
            as_version(path, 2)
    sound = states(tmp_path)
    assert sound == ["sealed"] * (len(sound) - 1) + ["final" if version == 3 else "sealed"]
    chop(segment_files(tmp_path)[-1], segment_files(tmp_path)[-1].stat().st_size - 10)
    assert states(tmp_path) == [*sound[:-1], "damaged"]


def test_a_damaged_segment_hides_no_other(tmp_path: Path) -> None:
    write(tmp_path)
    count = len(segment_files(tmp_path))
    flip(segment_files(tmp_path)[1], 20)
    as_version(segment_files(tmp_path)[2], 9)
    found = list_segments(str(tmp_path))
    assert [state.state for state in found[:3]] == ["sealed", "damaged", "damaged"]
    assert "damaged" in found[1].fault
    assert "version 9" in found[2].fault
    assert len(found) == count


def test_a_segment_that_goes_meanwhile_is_not_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = write(tmp_path)
    listed = segments(str(tmp_path), stream)
    segment_files(tmp_path)[0].unlink()
    monkeypatch.setattr(tap_listing, "segments", lambda root, name: listed)
    assert [state.base for state in list_segments(str(tmp_path))] == [segment.base for segment in listed[1:]]
