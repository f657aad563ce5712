import os
from pathlib import Path

import pytest

from framegate.proxy.tap.headers import Seal, decode_seal, decode_segment_header
from framegate.proxy.tap.log_reader import segments
from framegate.proxy.tap.record import SEAL_CUT, SEAL_FINAL
from framegate.proxy.tap.recovery import Sealed, ends_finally, seal_dead, seal_stream
from tests.fakes.tap_files import as_version
from tests.fakes.tap_log import FakeProcessor
from tests.fakes.tap_read import read_frames

NOW = 1_700_000_000_000_000_000


def seal_in(root: Path, stream: str) -> Seal:
    """The seal of a stream's only segment."""
    (segment,) = segments(str(root), stream)
    found = decode_seal(Path(segment.path).read_bytes())
    assert found is not None
    return found


def test_a_segment_that_cannot_be_sealed_keeps_no_other_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        FakeProcessor(tmp_path, boot_id=f"b{number}").block([b"kept"])
    real = os.rename

    def rename(source: str, target: str) -> None:
        if "b1" in source:
            raise OSError(5, "Input/output error")
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)
    sealed = seal_dead(str(tmp_path), set(), NOW)
    assert [(item.stream, "Input" in item.error) for item in sealed] == [("edge.0.b0", False), ("edge.0.b1", True), ("edge.0.b2", False)]
    monkeypatch.undo()
    assert [(item.stream, item.error) for item in seal_dead(str(tmp_path), set(), NOW + 1)] == [("edge.0.b1", "")]
    assert seal_in(tmp_path, "edge.0.b1").sealed_ns == NOW, "it had its seal, and lacked its name only"


def test_open_segments_of_dead_streams_are_sealed_and_their_torn_tails_cut(tmp_path: Path) -> None:
    torn = FakeProcessor(tmp_path, boot_id="torn")
    torn.block([b"whole", b"wholly"])
    torn.block([b"answer"], direction="response")
    (segment,) = segments(str(tmp_path), torn.stream)
    with open(segment.path, "ab") as file:
        file.write(b"x" * 77)
    live = FakeProcessor(tmp_path, boot_id="live")
    live.block([b"live"])
    assert seal_dead(str(tmp_path), {live.stream}, NOW) == [Sealed(torn.stream, 0, 77)]
    (sealed,) = segments(str(tmp_path), torn.stream)
    assert (sealed.sealed, sealed.size) == (True, segment.size)
    assert seal_in(tmp_path, torn.stream) == Seal(sealed.limit, 2, 2, 1, 0, NOW, SEAL_CUT)
    assert not segments(str(tmp_path), live.stream)[0].sealed
    assert sorted(frame.body for frame in read_frames(str(tmp_path))) == [b"answer", b"live", b"whole", b"wholly"]
    assert seal_dead(str(tmp_path), {live.stream}, NOW) == []


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
    (sealed,) = seal_stream(str(tmp_path), processor.stream, NOW)
    assert sealed.cut_bytes == segment.size - before.size
    assert [frame.body for frame in read_frames(str(tmp_path))] == [b"good"]
    found = seal_in(tmp_path, processor.stream)
    assert (found.end, found.flags) == (before.limit, SEAL_CUT)


def test_a_segment_without_a_sound_block_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "edge.0.b0"
    folder.mkdir()
    (folder / f"{0:020d}.open").write_bytes(b"half a header")
    assert seal_dead(str(tmp_path), set(), NOW) == [Sealed("edge.0.b0", 0, 0)]
    assert list(folder.iterdir()) == []


def test_a_segment_from_before_there_were_seals_gets_none(tmp_path: Path) -> None:
    processor = FakeProcessor(tmp_path)
    processor.block([b"old"])
    (segment,) = segments(str(tmp_path), processor.stream)
    as_version(Path(segment.path), 2)
    assert decode_segment_header(Path(segment.path).read_bytes())["version"] == 2
    assert [item.error for item in seal_dead(str(tmp_path), set(), NOW)] == [""]
    (sealed,) = segments(str(tmp_path), processor.stream)
    assert sealed.sealed
    assert decode_seal(Path(sealed.path).read_bytes()) is None
    assert not ends_finally(str(tmp_path), processor.stream)


def test_only_the_seal_of_an_orderly_end_is_final(tmp_path: Path) -> None:
    orderly, killed = FakeProcessor(tmp_path, boot_id="orderly"), FakeProcessor(tmp_path, boot_id="killed")
    for processor in (orderly, killed):
        processor.block([b"x"])
        assert not ends_finally(str(tmp_path), processor.stream)
    orderly.close()
    seal_dead(str(tmp_path), set(), NOW)
    assert ends_finally(str(tmp_path), orderly.stream)
    assert not ends_finally(str(tmp_path), killed.stream)
    assert not ends_finally(str(tmp_path), "edge.0.never")
    (segment,) = segments(str(tmp_path), orderly.stream)
    with open(segment.path, "r+b") as file:
        file.seek(3970)
        file.write(b"\xff")
    assert not ends_finally(str(tmp_path), orderly.stream), "a damaged seal says nothing"


def test_a_settlement_that_could_not_be_renamed_is_final(tmp_path: Path) -> None:
    FakeProcessor(tmp_path, boot_id="b1", slot="recovery").block([b"x"])
    seal_dead(str(tmp_path), set(), NOW)
    assert seal_in(tmp_path, "edge.recovery.b1").flags == SEAL_FINAL
