import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from framegate.proxy.tap import log_reader
from framegate.proxy.tap.log_reader import (
    BlockRef,
    DamagedBlockError,
    OffsetVanishedError,
    UnknownVersionError,
    end_offset,
    first_offset,
    read_block,
    segments,
    streams,
    walk,
    walk_past,
)
from tests.fakes.cases import each_of
from tests.fakes.tap_files import flip
from tests.fakes.tap_log import FakeProcessor
from tests.fakes.tap_read import frames_in, read_blocks, read_frames

BODY = 300


def body(number: int) -> bytes:
    return number.to_bytes(4, "big") * (BODY // 4)


def write(root: Path, blocks: int = 3, *, seal: bool = False, **sizes: int) -> FakeProcessor:
    processor = FakeProcessor(root, **sizes)
    for number in range(blocks):
        processor.block([body(number)])
    if seal:
        processor.close()
    return processor


def numbers(root: Path, stream: str, offset: int = 0, limit: int | None = None) -> list[int]:
    return [frame.number for block in read_blocks(str(root), stream, offset, limit) for frame in frames_in(block)]


def only_file(root: Path) -> Path:
    (path,) = [path for path in root.rglob("*") if path.is_file()]
    return path


def test_no_directory_has_no_streams(tmp_path: Path) -> None:
    assert streams(str(tmp_path / "none")) == []
    assert segments(str(tmp_path), "none") == []
    assert list(walk(str(tmp_path), "none")) == []
    assert (first_offset(str(tmp_path), "none"), end_offset(str(tmp_path), "none")) == (0, 0)


@pytest.mark.parametrize("seal", [False, True])
def test_blocks_are_found_from_any_block_on(tmp_path: Path, seal: bool) -> None:
    stream = write(tmp_path, 5, seal=seal).stream
    refs = list(walk(str(tmp_path), stream))
    assert [ref.header.sequence for ref in refs] == [0, 1, 2, 3, 4, 5][: 5 + seal]  # the last one has totals only
    for index, ref in enumerate(refs[:5]):
        assert numbers(tmp_path, stream, ref.header.offset) == list(range(index, 5))
        assert numbers(tmp_path, stream, 0, ref.header.end) == list(range(index + 1))
    assert end_offset(str(tmp_path), stream) == refs[-1].header.end
    assert numbers(tmp_path, stream, refs[-1].header.end) == []


def test_offsets_survive_rolling(tmp_path: Path) -> None:
    stream = write(tmp_path, 9, segment_size=1200).stream
    listed = segments(str(tmp_path), stream)
    assert len(listed) >= 3
    assert [left.limit for left in listed[:-1]] == [right.base for right in listed[1:]]
    refs = list(walk(str(tmp_path), stream))
    assert [left.header.end for left in refs[:-1]] == [right.header.offset for right in refs[1:]]
    for index, ref in enumerate(refs):
        assert numbers(tmp_path, stream, ref.header.offset) == list(range(index, 9))


@pytest.mark.slow
def test_a_tail_torn_at_any_byte_is_never_read(tmp_path: Path) -> None:
    stream = write(tmp_path, 3).stream
    ends = [ref.header.end + 4096 for ref in walk(str(tmp_path), stream)]
    path = only_file(tmp_path)
    for size in range(path.stat().st_size - 1, -1, -1):
        os.truncate(path, size)
        whole = sum(end <= size for end in ends)
        assert numbers(tmp_path, stream) == list(range(whole))
        assert end_offset(str(tmp_path), stream) == ([0, *ends][whole] - 4096 if whole else 0)


def test_a_sealed_segment_that_is_cut_at_any_byte_is_damaged(tmp_path: Path) -> None:
    stream = write(tmp_path, 3, seal=True).stream
    begins = [ref.header.offset for ref in walk(str(tmp_path), stream)]
    path = only_file(tmp_path)
    for size in (*range(path.stat().st_size - 1, 4095, -1), 4095, 3968, 20, 1, 0):
        os.truncate(path, size)
        with pytest.raises(DamagedBlockError) as caught:
            numbers(tmp_path, stream)
        assert caught.value.offset == max([begin for begin in begins if begin <= size - 4096], default=0)


@pytest.mark.parametrize("sealed", [False, True])
def test_a_later_version_is_told_and_not_read(tmp_path: Path, sealed: bool) -> None:
    stream = write(tmp_path, 1, seal=sealed).stream
    data = bytearray(only_file(tmp_path).read_bytes())
    data[8] += 1
    only_file(tmp_path).write_bytes(data)
    with pytest.raises(UnknownVersionError, match="version 5"):
        numbers(tmp_path, stream)


@pytest.mark.parametrize("version", [1, 2])
def test_sealed_segments_of_older_versions_need_no_seal(tmp_path: Path, version: int) -> None:
    stream = write(tmp_path, 2).stream
    path = only_file(tmp_path)
    data = bytearray(path.read_bytes())
    data[8] = version
    path.unlink()
    path.with_suffix(".seg").write_bytes(data)
    assert numbers(tmp_path, stream) == [0, 1]


def test_a_tail_of_zeros_is_never_read_and_a_seal_that_is_only_begun_is_none_yet(tmp_path: Path) -> None:
    stream = write(tmp_path, 2).stream
    with only_file(tmp_path).open("r+b") as file:
        file.seek(3968)
        file.write(b"FGSEA")
        file.seek(0, os.SEEK_END)
        file.write(bytes(1000))
    assert numbers(tmp_path, stream) == [0, 1]
    only_file(tmp_path).rename(only_file(tmp_path).with_suffix(".seg"))
    with pytest.raises(DamagedBlockError, match="seal is damaged"):
        numbers(tmp_path, stream)


def test_a_segment_under_another_ones_name_is_damaged(tmp_path: Path) -> None:
    stream = write(tmp_path, 1, seal=True).stream
    path = only_file(tmp_path)
    path.rename(path.with_name(f"{64:020d}.seg"))
    with pytest.raises(DamagedBlockError, match="begins at 0"):
        numbers(tmp_path, stream, 64)


@pytest.mark.slow
def test_a_changed_byte_anywhere_in_a_block_is_found(tmp_path: Path) -> None:
    stream = write(tmp_path, 2, seal=True).stream
    path = only_file(tmp_path)
    good = path.read_bytes()
    begins = [ref.position for ref in walk(str(tmp_path), stream)]
    assert len(begins) == 3
    for position in range(begins[0], len(good)):
        path.write_bytes(good[:position] + bytes([good[position] ^ 0x40]) + good[position + 1 :])
        with pytest.raises(DamagedBlockError, match=r"CRC|was sealed") as caught:
            numbers(tmp_path, stream)
        assert caught.value.offset == max(begin for begin in begins if begin <= position) - 4096


@each_of(("position", "longer"), [(4096, 0), (20, 5000)], fresh={"folder": tempfile.TemporaryDirectory})
def test_a_damaged_header_with_segments_behind_it_is_an_error_that_says_where_to_go_on(folder: str, position: int, longer: int) -> None:
    """Also when the damaged file runs into the next one."""
    stream = write(Path(folder), 9, segment_size=1200).stream
    first, second = segments(folder, stream)[:2]
    with Path(first.path).open("r+b") as file:
        file.seek(position)
        file.write(b"\xff")
        file.truncate(first.size + longer)
    with pytest.raises(DamagedBlockError) as caught:
        numbers(Path(folder), stream)
    assert (caught.value.offset, caught.value.available) == (0, second.base)
    assert numbers(Path(folder), stream, second.base)


@each_of("gone", [0, 1], fresh={"folder": tempfile.TemporaryDirectory})
def test_a_deleted_segment_is_an_error_that_says_where_the_log_goes_on(folder: str, gone: int) -> None:
    stream = write(Path(folder), 9, segment_size=1200).stream
    listed = segments(folder, stream)
    os.unlink(listed[gone].path)
    found = []
    with pytest.raises(OffsetVanishedError) as caught:
        found.extend(walk(folder, stream))
    assert [0, *(ref.header.end for ref in found)][-1] == listed[gone].base == caught.value.offset
    assert caught.value.available == listed[gone + 1].base
    assert first_offset(folder, stream) == (0 if gone else listed[1].base)
    assert numbers(Path(folder), stream, listed[gone + 1].base)[0] > 0
    if gone:
        assert next(walk(folder, stream, 0, listed[1].base)).header.offset == 0
    else:
        assert [frame.number for frame in read_frames(folder)] == numbers(Path(folder), stream, listed[1].base)


def test_what_was_deleted_since_it_was_found_vanished(tmp_path: Path) -> None:
    stream = write(tmp_path, 1, seal=True).stream
    ref, _ = walk(str(tmp_path), stream)
    shutil.rmtree(tmp_path / stream)
    with pytest.raises(OffsetVanishedError):
        read_block(ref)
    with pytest.raises(OffsetVanishedError, match="nothing is left"):
        list(walk(str(tmp_path), stream, ref.header.end))


def test_a_segment_sealed_between_walk_and_read_is_found(tmp_path: Path) -> None:
    processor = write(tmp_path, 1)
    (ref,) = walk(str(tmp_path), processor.stream)
    (listed,) = segments(str(tmp_path), processor.stream)
    processor.close()
    assert not os.path.exists(ref.path)
    assert next(frames_in(read_block(ref))).body == body(0)
    assert [found.header for found in log_reader.walk_segment(listed, 0)][:1] == [ref.header]


def test_a_listing_that_missed_a_file_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processor = write(tmp_path, 9, segment_size=1200)
    names = sorted(os.listdir(tmp_path / processor.stream))
    answers = [names[1:], names, [names[0], *names[2:]], names]
    monkeypatch.setattr(os, "listdir", lambda path: answers.pop(0) if answers else names)
    assert numbers(tmp_path, processor.stream) == list(range(9))
    assert numbers(tmp_path, processor.stream) == list(range(9))


@pytest.mark.slow
def test_reading_while_writing_sees_whole_frames_in_order_and_in_the_end_all(tmp_path: Path) -> None:
    processor = FakeProcessor(tmp_path, segment_size=64 << 10, flush_size=8 << 10)
    done = threading.Event()

    def produce() -> None:
        for number in range(3000):
            processor.send([body(number)])
            if number % 7 == 0:
                processor.flush()
        processor.close()
        done.set()

    thread = threading.Thread(target=produce)
    thread.start()
    offset, seen = 0, 0
    while True:
        last = done.is_set()
        for ref in walk(str(tmp_path), processor.stream, offset):
            for frame in frames_in(read_block(ref)):
                assert (frame.number, frame.body) == (seen, body(seen))
                seen += 1
            offset = ref.header.end
        if last:
            break
    thread.join()
    assert seen == 3000


def test_what_vanished_says_where_the_log_goes_on_now(tmp_path: Path) -> None:
    """Not where it went on when it was listed: retention takes several segments at once."""
    root, stream = str(tmp_path), write(tmp_path, 5, seal=True, segment_size=1).stream
    listed = segments(root, stream)
    found = walk(root, stream)
    first = next(found)

    def vanished(read: Callable[[], object]) -> tuple[int, int | None]:
        with pytest.raises(OffsetVanishedError) as gone:
            read()
        return gone.value.offset, gone.value.available

    for segment in listed[:3]:
        os.unlink(segment.path)
    assert vanished(lambda: read_block(first)) == (0, listed[3].base)
    assert vanished(lambda: next(found)) == (listed[1].base, listed[3].base)
    for segment in listed[3:]:
        os.unlink(segment.path)
    assert vanished(lambda: read_block(first)) == (0, None)


def test_past_what_is_gone_or_damaged_all_that_is_left_is_taken(tmp_path: Path) -> None:
    processor = FakeProcessor(tmp_path, segment_size=2000)
    for _ in range(9):
        processor.block([bytes(600)])
    processor.close()
    root, stream = str(tmp_path), processor.stream
    refs = list(walk(root, stream))
    first, second, third, *_ = segments(root, stream)
    assert [sum(ref.base == segment.base for ref in refs) for segment in (first, second, third)] == [2, 2, 2]
    flip(Path(first.path), refs[0].position + 300)
    taken: list[int] = []
    trouble: list[str] = []

    def take(ref: BlockRef) -> None:
        if ref.base == second.base:
            os.unlink(second.path)
        read_block(ref)
        taken.append(ref.header.offset)

    walk_past(root, stream, 0, take, lambda error: trouble.append(str(error)), refs[7].header.offset)
    assert taken == [ref.header.offset for ref in (refs[1], refs[4], refs[5], refs[6])]
    assert ["CRC" in trouble[0], f"begins again at {third.base}" in trouble[1], len(trouble)] == [True, True, 2]
