import os
from pathlib import Path

import pytest

from framegate.proxy.config.model import TapRule
from framegate.proxy.tap.block_builder import BlockBuilder
from framegate.proxy.tap.gap import Gap
from framegate.proxy.tap.log_reader import LogError, segments, walk_segment
from framegate.proxy.tap.record import CHUNK_ROW_BYTES, REASON_DISK_FULL, SEGMENT_HEADER_BYTES, WINDOW_NS
from framegate.proxy.tap.segment import SegmentLog
from framegate.proxy.tap.sums import PairSums, StreamSums, WindowSums, segment_times, sum_stream
from tests.fakes.tap_log import START_NS, FakeProcessor

MINUTE = START_NS // WINDOW_NS
REQUEST, RESPONSE = ("main", "request"), ("main", "response")


def blocks(root: Path, count: int) -> FakeProcessor:
    """A stream of as many blocks, each in a segment of its own."""
    processor = FakeProcessor(root, segment_size=1000)
    for _ in range(count):
        processor.block([bytes(600)])
    return processor


def test_frames_are_added_up_by_listener_direction_and_window(tmp_path: Path) -> None:
    processor = FakeProcessor(tmp_path)
    processor.send([b"one", b"two"])
    processor.send([b"more"], connection=2)
    processor.send([b"three"], direction="response", at_ns=START_NS + 5)
    processor.flush()
    processor.send([b"four"], at_ns=START_NS + WINDOW_NS)
    processor.flush()
    sums, trouble = sum_stream(str(tmp_path), processor.stream)
    assert trouble == ""
    assert set(sums.pairs) == {REQUEST, RESPONSE}
    assert sums.of(REQUEST).windows == {
        MINUTE: WindowSums(3, 22, 3, 22, START_NS),
        MINUTE + 1: WindowSums(1, 8, 0, 0, START_NS + WINDOW_NS),
    }
    assert (sums.of(REQUEST).frames, sums.of(REQUEST).stated, sums.of(REQUEST).last_ns) == (4, 3, START_NS + WINDOW_NS)
    assert sums.of(RESPONSE).windows == {MINUTE: WindowSums(1, 9, 1, 9, START_NS + 5)}
    assert sums.of(("other", "request")) == PairSums()


def test_gaps_count_where_they_lie_and_those_over_windows_for_none(tmp_path: Path) -> None:
    processor = FakeProcessor(tmp_path, rule=TapRule(name="none", sample_connections=0.0))
    processor.send([b"out"] * 5)
    processor.close()
    sums, _ = sum_stream(str(tmp_path), processor.stream)
    assert sums.of(REQUEST).windows == {MINUTE: WindowSums(5, 35, 5, 35, START_NS)}
    assert sums.of(REQUEST).shared == 0
    log = SegmentLog(str(tmp_path / "edge.0.b1"), {}, 1 << 20, 1 << 62)
    builder = BlockBuilder()
    gap = Gap(connection=-1, direction=0, reason=REASON_DISK_FULL, listener="main", from_ns=START_NS)
    gap.add(7, 70, START_NS + WINDOW_NS)
    partial = Gap(connection=3, direction=1, reason=REASON_DISK_FULL, listener="main", first_frame=3, from_ns=START_NS)
    partial.add(0, 12, START_NS + 1)
    builder.add_gap(gap)
    builder.add_gap(partial)
    log.append(builder.finish(), 0)
    sums, _ = sum_stream(str(tmp_path), "edge.0.b1")
    assert sums.of(REQUEST) == PairSums({}, 7, START_NS + WINDOW_NS, START_NS + WINDOW_NS)
    assert sums.of(RESPONSE).frames == 0, "of a frame that never was whole none is counted"


def test_what_was_added_before_it_was_deleted_counts_and_counts_once(tmp_path: Path) -> None:
    processor = blocks(tmp_path, 4)
    first = segments(str(tmp_path), processor.stream)[0]
    for deleted in (False, True):
        carried = StreamSums()
        for ref in walk_segment(first, first.base):
            carried.add(ref)
        assert carried.end == first.limit
        if deleted:
            os.unlink(first.path)
        assert sum_stream(str(tmp_path), processor.stream, carried)[0].of(REQUEST).frames == 4
    assert sum_stream(str(tmp_path), processor.stream)[0].of(REQUEST).frames == 3


def test_a_hole_is_passed_over_and_told(tmp_path: Path) -> None:
    processor = blocks(tmp_path, 5)
    os.unlink(segments(str(tmp_path), processor.stream)[1].path)
    sums, trouble = sum_stream(str(tmp_path), processor.stream)
    assert sums.of(REQUEST).frames == 4
    assert "is gone" in trouble
    nothing, trouble = sum_stream(str(tmp_path), "edge.0.b9")
    assert (nothing.pairs, nothing.end, trouble) == ({}, 0, "")


def test_tables_that_cannot_be_read_count_for_nothing(tmp_path: Path) -> None:
    processor = FakeProcessor(tmp_path)
    for body in (b"one", b"two", b"three"):
        processor.block([body])
    (segment,) = segments(str(tmp_path), processor.stream)
    refs = list(walk_segment(segment, segment.base))
    with open(segment.path, "r+b") as file:
        file.seek(refs[1].position + refs[1].header.header_len)
        file.write(b"\xff\xff")
        file.seek(refs[2].position + refs[2].header.chunks_at + 80)
        file.write(b"\x7f")
    sums, trouble = sum_stream(str(tmp_path), processor.stream)
    assert sums.of(REQUEST).frames == 1, "a frame that cannot be told to be there is no frame that is there"
    assert "tables" in trouble


def test_payload_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processor = FakeProcessor(tmp_path)
    processor.block([bytes(100_000)])
    lengths: list[int] = []
    real = os.pread

    def pread(fd: int, length: int, position: int) -> bytes:
        lengths.append(length)
        return real(fd, length, position)

    monkeypatch.setattr(os, "pread", pread)
    assert sum_stream(str(tmp_path), processor.stream)[0].of(REQUEST).frames == 1
    assert max(lengths) < 4096 + 10 * CHUNK_ROW_BYTES


def test_between_which_times_lies_what_a_segment_speaks_of(tmp_path: Path) -> None:
    processor = FakeProcessor(tmp_path, segment_size=1 << 16)
    processor.block([b"a"], at_ns=START_NS + 5)
    processor.block([b"b"], at_ns=START_NS + WINDOW_NS)
    (segment,) = segments(str(tmp_path), processor.stream)
    assert segment_times(segment) == (START_NS + 5, START_NS + WINDOW_NS)
    processor.block([b"c"], at_ns=START_NS - WINDOW_NS)
    processor.close()
    (segment,) = segments(str(tmp_path), processor.stream)
    assert segment_times(segment) == (START_NS - WINDOW_NS, START_NS + WINDOW_NS), "the clock was set back"


def test_a_loss_before_its_block_is_of_its_own_time(tmp_path: Path) -> None:
    processor = FakeProcessor(tmp_path)
    processor.block([b"a"], at_ns=START_NS)
    processor.point(1, "request").lose(REASON_DISK_FULL, 1, 5, 1, START_NS - 3 * WINDOW_NS)
    processor.close()
    (segment,) = segments(str(tmp_path), processor.stream)
    assert segment_times(segment) == (START_NS - 3 * WINDOW_NS, START_NS)


def test_what_control_wrote_speaks_of_times_before_it(tmp_path: Path) -> None:
    stream = "edge.recovery.b0"
    builder = BlockBuilder()
    for from_ns in (START_NS, START_NS - WINDOW_NS):
        gap = Gap(connection=-1, direction=0, reason=REASON_DISK_FULL, listener="main", from_ns=from_ns)
        gap.add(7, 0, START_NS + WINDOW_NS)
        builder.add_gap(gap)
    log = SegmentLog(str(tmp_path / stream), {"stream": stream}, 1 << 20, 1 << 62)
    log.append(builder.finish(), 0)
    log.seal(final=True)
    (segment,) = segments(str(tmp_path), stream)
    assert segment_times(segment) == (START_NS - WINDOW_NS, START_NS + WINDOW_NS)


def test_a_segment_without_a_block_speaks_of_no_time_and_a_damaged_one_is_an_error(tmp_path: Path) -> None:
    processor = FakeProcessor(tmp_path)
    processor.block([b"a"])
    (segment,) = segments(str(tmp_path), processor.stream)
    with open(segment.path, "r+b") as file:
        file.truncate(SEGMENT_HEADER_BYTES)
    assert segment_times(segment) == (0, 0)
    os.rename(segment.path, segment.path.replace(".open", ".seg"))
    with pytest.raises(LogError):
        segment_times(segments(str(tmp_path), processor.stream)[0])
