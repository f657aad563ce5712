"""How far consumers of the log are behind."""

import os
from pathlib import Path

import pytest

from framegate.proxy.tap import lag as module
from framegate.proxy.tap.lag import MAX_NAMED, OTHERS, Lag, Lags
from framegate.proxy.tap.log_reader import segments, streams
from tests.fakes.tap_files import segment_files
from tests.fakes.tap_log import FakeProcessor

S = 1_000_000_000


def listed(root: Path) -> dict[str, list[module.Segment]]:
    return {stream: segments(str(root), stream) for stream in streams(str(root))}


def limits(root: Path) -> list[int]:
    """The offset behind each block of the one stream."""
    (found,) = listed(root).values()
    return [ref.header.end for segment in found for ref in module.walk_segment(segment, segment.base)]


@pytest.fixture
def writer(tmp_path: Path) -> FakeProcessor:
    """Three blocks, captured at 10, 20 and 30 s."""
    processor = FakeProcessor(tmp_path)
    for second in (10, 20, 30):
        processor.block([b"frame"], at_ns=second * S)
    return processor


def test_what_lies_behind_the_offset_is_unread_and_as_old_as_its_first_block(tmp_path: Path, writer: FakeProcessor) -> None:
    first, second, end = limits(tmp_path)
    stands = {"new": {}, "one": {writer.stream: first}, "two": {writer.stream: second}, "all": {writer.stream: end}, "more": {writer.stream: end + 9}}
    assert Lags().measure(listed(tmp_path), stands) == {
        "new": Lag(end, 10 * S),
        "one": Lag(end - first, 20 * S),
        "two": Lag(end - second, 30 * S),
        "all": Lag(0, 0),
        "more": Lag(0, 0),
    }


def test_what_was_deleted_unread_is_no_lag_any_more(tmp_path: Path, writer: FakeProcessor) -> None:
    writer.close()
    again = FakeProcessor(tmp_path, boot_id="b1")
    again.block([b"later"], at_ns=40 * S)
    for path in segment_files(tmp_path, writer.stream):
        path.unlink()
    (unread,) = [found[-1].limit for stream, found in listed(tmp_path).items() if stream == again.stream]
    assert Lags().measure(listed(tmp_path), {"job": {}})["job"] == Lag(unread, 40 * S)


def test_of_several_streams_bytes_are_summed_and_the_oldest_counts(tmp_path: Path, writer: FakeProcessor) -> None:
    (end,) = limits(tmp_path)[-1:]
    other = FakeProcessor(tmp_path, slot=1)
    other.block([b"early"], at_ns=5 * S)
    total = sum(found[-1].limit for found in listed(tmp_path).values())
    assert Lags().measure(listed(tmp_path), {"job": {}})["job"] == Lag(total, 5 * S)
    assert Lags().measure(listed(tmp_path), {"job": {other.stream: 2**40}})["job"] == Lag(end, 10 * S)


def test_a_block_is_looked_at_once_as_long_as_nothing_moves(tmp_path: Path, writer: FakeProcessor, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    real = module._captured

    def captured(segment: module.Segment, offset: int) -> int:
        looks.append(offset)
        return real(segment, offset)

    monkeypatch.setattr(module, "_captured", captured)
    lags, first = Lags(), limits(tmp_path)[0]
    for offset in (0, 0, 0, first, first):
        lags.measure(listed(tmp_path), {"a": {writer.stream: offset}, "b": {writer.stream: offset}})
    assert looks == [0, first]


def test_a_block_that_cannot_be_read_is_as_old_as_its_file(tmp_path: Path, writer: FakeProcessor) -> None:
    writer.close()
    (path,) = segment_files(tmp_path)
    os.utime(path, (77, 77))
    found = Lags().measure(listed(tmp_path), {"job": {writer.stream: 1}})["job"]
    assert found == Lag(limits(tmp_path)[-1] - 1, 77 * S)


@pytest.mark.parametrize("count", [MAX_NAMED - 1, MAX_NAMED, MAX_NAMED + 1, MAX_NAMED + 2])
def test_consumers_beyond_a_bound_stand_together(tmp_path: Path, writer: FakeProcessor, count: int) -> None:
    end = limits(tmp_path)[-1]
    found = Lags().measure(listed(tmp_path), {f"job-{number:03}": {} for number in range(count)})
    assert len(found) == min(count, MAX_NAMED + 1)
    assert found.get(OTHERS) == (Lag((count - MAX_NAMED) * end, 10 * S) if count > MAX_NAMED else None)


def test_a_name_that_is_no_text_is_shown_as_one(tmp_path: Path, writer: FakeProcessor) -> None:
    (shown,) = Lags().measure(listed(tmp_path), {"job-\udcff": {}})
    assert shown == "job-?"
