import os
from pathlib import Path

import pytest

from proxy.config.model import TapRule
from proxy.tap.log_reader import LogError, read_frames, read_gaps, segment_facts, segments, streams
from proxy.tap.recovery import Sealed, missing_frames, record_death, seal_dead
from tests.fakes.disk import FakeDisk
from tests.fakes.tap_log import FakeProcessor


def test_a_dead_processors_missing_frames_are_a_gap_in_a_stream_of_their_own(tmp_path: Path) -> None:
    processor = FakeProcessor(tmp_path)
    processor.block([b"kept"] * 3)
    processor.send([b"lost"] * 4)
    processor.send([b"lost too"], direction="response")
    missing = missing_frames(str(tmp_path), processor.stream, {"request": 7, "response": 1})
    assert missing == {"request": 4, "response": 1}
    stream = record_death(str(tmp_path), "edge", "b0", missing, 100, 900)
    assert stream == "edge.recovery.b0"
    assert streams(str(tmp_path)) == ["edge.0.b0", stream]
    found = list(read_gaps(str(tmp_path), stream))
    assert [(gap.direction, gap.frames, gap.reason, gap.from_ns, gap.capture_ns) for gap in found] == [
        ("request", 4, "processor_died", 100, 900),
        ("response", 1, "processor_died", 100, 900),
    ]
    assert {(gap.connection, gap.listener, gap.rule) for gap in found} == {(-1, None, None)}
    (segment,) = segments(str(tmp_path), stream)
    assert segment.sealed
    assert segment_facts(segment.path)["slot"] == "recovery"


def test_what_the_stream_already_says_is_missing_is_not_missing_twice(tmp_path: Path) -> None:
    processor = FakeProcessor(tmp_path, rule=TapRule(name="none", sample_connections=0.0))
    processor.send([b"out"] * 5)
    processor.close()
    assert missing_frames(str(tmp_path), processor.stream, {"request": 5, "response": 0}) == {"request": 0, "response": 0}


def test_cells_that_are_behind_the_log_miss_nothing(tmp_path: Path) -> None:
    processor = FakeProcessor(tmp_path)
    processor.block([b"kept"] * 3)
    assert missing_frames(str(tmp_path), processor.stream, {"request": 2}) == {"request": 0}


def test_a_processor_that_wrote_nothing_misses_all(tmp_path: Path) -> None:
    assert missing_frames(str(tmp_path), "edge.0.b9", {"request": 2}) == {"request": 2}


@pytest.mark.parametrize("failing", [{"write"}, {"rename"}, {"write", "remove", "truncate"}, {"create"}])
def test_a_record_that_the_disk_did_not_take_is_written_at_the_next_try_and_once(tmp_path: Path, failing: set[str]) -> None:
    disk = FakeDisk()
    disk.failing = failing
    missing = {"request": 3, "response": 0}
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output"):
            record_death(str(tmp_path), "edge", "b0", missing, 100, 900, disk)
        if failing == {"rename"}:
            break
    disk.failing = set()
    stream = record_death(str(tmp_path), "edge", "b0", missing, 100, 900, disk)
    assert [gap.frames for gap in read_gaps(str(tmp_path), stream)] == [3]
    assert [sealed.error for sealed in seal_dead(str(tmp_path), set())] == [""] * (failing == {"rename"})
    assert [listed.sealed for listed in segments(str(tmp_path), str(stream))] == [True]


def test_a_segment_that_cannot_be_sealed_keeps_no_other_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        FakeProcessor(tmp_path, boot_id=f"b{number}").block([b"kept"])
    real = os.rename

    def rename(source: str, target: str) -> None:
        if "b1" in source:
            raise OSError(5, "Input/output error")
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)
    sealed = seal_dead(str(tmp_path), set())
    assert [(item.stream, "Input" in item.error) for item in sealed] == [("edge.0.b0", False), ("edge.0.b1", True), ("edge.0.b2", False)]
    monkeypatch.undo()
    assert [(item.stream, item.error) for item in seal_dead(str(tmp_path), set())] == [("edge.0.b1", "")]


def test_nothing_missing_writes_nothing(tmp_path: Path) -> None:
    assert record_death(str(tmp_path), "edge", "b0", {"request": 0, "response": 0}, 1, 2) is None
    assert list(tmp_path.iterdir()) == []


def test_a_stream_with_a_hole_cannot_say(tmp_path: Path) -> None:
    processor = FakeProcessor(tmp_path, segment_size=1000)
    for _ in range(5):
        processor.block([bytes(600)])
    os.unlink(segments(str(tmp_path), processor.stream)[1].path)
    with pytest.raises(LogError):
        missing_frames(str(tmp_path), processor.stream, {"request": 5})


def test_open_segments_of_dead_streams_are_sealed_and_their_torn_tails_cut(tmp_path: Path) -> None:
    torn = FakeProcessor(tmp_path, boot_id="torn")
    torn.block([b"whole"])
    (segment,) = segments(str(tmp_path), torn.stream)
    with open(segment.path, "ab") as file:
        file.write(b"x" * 77)
    live = FakeProcessor(tmp_path, boot_id="live")
    live.block([b"live"])
    assert seal_dead(str(tmp_path), {live.stream}) == [Sealed(torn.stream, 0, 77)]
    (sealed,) = segments(str(tmp_path), torn.stream)
    assert (sealed.sealed, sealed.size) == (True, segment.size)
    assert not segments(str(tmp_path), live.stream)[0].sealed
    assert [frame.body for frame in read_frames(str(tmp_path))] == [b"live", b"whole"]
    assert seal_dead(str(tmp_path), {live.stream}) == []


def test_a_last_block_that_a_power_loss_left_unsound_is_cut(tmp_path: Path) -> None:
    processor = FakeProcessor(tmp_path)
    processor.block([b"good"])
    (before,) = segments(str(tmp_path), processor.stream)
    processor.block([bytes(500)])
    (segment,) = segments(str(tmp_path), processor.stream)
    with open(segment.path, "r+b") as file:
        file.seek(-100, os.SEEK_END)
        file.write(b"\xff" * 100)
    assert [frame.body for frame in read_frames(str(tmp_path))] == [b"good"]
    (sealed,) = seal_dead(str(tmp_path), set())
    assert sealed.cut_bytes == segment.size - before.size
    assert segments(str(tmp_path), processor.stream)[0].size == before.size


def test_an_open_segment_without_a_block_is_removed(tmp_path: Path) -> None:
    processor = FakeProcessor(tmp_path)
    processor.block([b"whole"])
    (segment,) = segments(str(tmp_path), processor.stream)
    os.truncate(segment.path, 4096)
    seal_dead(str(tmp_path), set())
    assert segments(str(tmp_path), processor.stream) == []
