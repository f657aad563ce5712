from pathlib import Path

import pipeline_log
import pytest
from pipeline_latency import Watch
from pipeline_log import SHAPES, Shape, write_set

from framegate.proxy.tap.log_reader import segments
from tests.fakes.tap_read import read_frames, segment_facts


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_a_set_is_a_log_with_the_frames_that_it_says(shape: Shape, tmp_path: Path) -> None:
    made = write_set(tmp_path / "log", shape, 300_000)
    frames = list(read_frames(str(made.directory)))
    assert len(frames) == made.frames
    assert sum(len(frame.body) for frame in frames) == made.size >= 300_000
    assert {len(frame.body) for frame in frames} == {shape.size}
    assert {frame.direction for frame in frames} == {"request", "response"}


def test_a_set_rolls_and_its_segments_are_sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_log, "SEGMENT_SIZE", 1 << 20)
    made = write_set(tmp_path / "log", SHAPES[1], 3 << 20)
    listed = segments(str(made.directory), "bench.0.b0")
    assert len(listed) > 2
    assert all(segment.sealed for segment in listed)
    assert [segment_facts(segment.path)["base"] for segment in listed] == [segment.base for segment in listed]
    assert len(list(read_frames(str(made.directory)))) == made.frames


def test_a_block_is_seen_when_as_many_frames_are(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([1_000_000_000, 2_500_000_000])
    monkeypatch.setattr("time.time_ns", lambda: next(clock))
    watch = Watch()
    for frames in (0, 8, 8, 24):
        watch.note(frames)
    assert watch.frames == 24
    assert watch.delays([(500_000_000, 8), (1_500_000_000, 16), (2_000_000_000, 24)]) == [0.5, 1.0, 0.5]
