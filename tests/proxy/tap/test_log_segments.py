import os
from collections.abc import Callable
from pathlib import Path

import pytest

from framegate.proxy.tap.log_segments import segment_seal, segments, streams
from framegate.proxy.tap.record import SEAL_FINAL
from tests.fakes.tap_log import FakeProcessor


def test_streams_are_folders_of_the_right_name_and_nothing_else(tmp_path: Path) -> None:
    good = ["a.0.x", "b-1.example.org.12.5f3a", "b.recovery.x"]
    for name in (*good, "_consumers", ".hidden", "lost+found", "backup", "a.b.c", "a.0.", "a.0", ".0.x", "a.0.x y", "a.0.x~", "a b.0.x", "a.٣.x"):
        (tmp_path / name).mkdir()
    (tmp_path / "file.0.x").touch()
    assert streams(str(tmp_path)) == good


def test_segments_are_files_of_the_right_name_and_nothing_else(tmp_path: Path) -> None:
    processor = FakeProcessor(tmp_path)
    processor.block([b"x"])
    processor.close()
    folder = tmp_path / processor.stream
    for name in ("7.seg", "²²²²²²²²²²²²²²²²²²²².seg", "lost+found", "0" * 20, "0" * 21 + ".seg"):
        (folder / name).touch()
    (folder / f"{1 << 20:020d}.open").mkdir()
    assert [segment.base for segment in segments(str(tmp_path), processor.stream)] == [0]


def test_a_seal_says_what_is_in_the_segment_and_whether_the_stream_ends(tmp_path: Path) -> None:
    processor = FakeProcessor(tmp_path)
    for body in (b"one", b"two", b"three"):
        processor.block([body])
    processor.close()
    (segment,) = segments(str(tmp_path), processor.stream)
    seal = segment_seal(segment)
    assert seal is not None
    assert (seal.end, seal.blocks, seal.request_frames, seal.response_frames, seal.lost_frames) == (segment.limit, 4, 3, 0, 0)
    assert seal.flags == SEAL_FINAL


def test_a_segment_sealed_while_it_is_listed_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processor = FakeProcessor(tmp_path)
    processor.block([b"one"])
    real: Callable[[str], list[str]] = os.listdir

    def listdir(path: str) -> list[str]:
        names = real(path)
        if processor.writer.queued_bytes == 0 and names == ["00000000000000000000.open"]:
            processor.close()
        return names

    monkeypatch.setattr(os, "listdir", listdir)
    (segment,) = segments(str(tmp_path), processor.stream)
    assert segment.sealed
