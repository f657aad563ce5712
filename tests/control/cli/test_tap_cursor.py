"""Streams in order of time, past what is damaged."""

import dataclasses
import gc
import os
import shutil
import tempfile
import tracemalloc
from collections.abc import Iterable
from pathlib import Path

import pytest

from framegate.control.cli import tap_cursor
from framegate.control.cli.tap_cursor import Cursor, merged, start_offset
from framegate.control.cli.tap_records import Trouble, Wanted, frames_of
from framegate.proxy.tap.ledger_writer import LedgerWriter
from framegate.proxy.tap.log_block import LogBlock
from framegate.proxy.tap.log_reader import end_offset, first_offset, segments, streams, walk
from framegate.proxy.tap.record import KIND_FRAMES, SEGMENT_HEADER_BYTES
from tests.fakes.cases import each_of
from tests.fakes.tap_files import as_version, chop, flip, segment_files
from tests.fakes.tap_log import START_NS, FakeProcessor

SECOND = 1_000_000_000
ALL = Wanted()


def write(
    root: Path, count: int = 6, *, boot: str = "b0", first: int = 0, step: int = 1, seal: bool = True, segment_size: int = 65536
) -> FakeProcessor:
    """Frames 0, 1, 2, …, one in a block, a second apart."""
    processor = FakeProcessor(root, boot_id=boot, segment_size=segment_size)
    for number in range(count):
        processor.block([f"{boot}:{number}".encode() + bytes(300)], at_ns=START_NS + (first + number * step) * SECOND)
    if seal:
        processor.close()
    return processor


def cursors(root: Path) -> list[Cursor]:
    return [Cursor(str(root), stream, first_offset(str(root), stream)) for stream in streams(str(root))]


def read(these: Iterable[Cursor], wanted: Wanted = ALL) -> list[str | Trouble]:
    """What is shown: the frames' names, and troubles."""
    found: list[str | Trouble] = []
    for item in merged(these, wanted):
        if isinstance(item, Trouble):
            found.append(item)
        elif item.row.kind == KIND_FRAMES:
            found += [bytes(frame.kept).rstrip(b"\0").decode() for frame in frames_of(item.block, item.row, wanted)]
    return found


def troubles(items: Iterable[object]) -> list[Trouble]:
    return [item for item in items if isinstance(item, Trouble)]


def names(boot: str, *numbers: int) -> list[str]:
    return [f"{boot}:{number}" for number in numbers]


def test_streams_are_merged_by_time(tmp_path: Path) -> None:
    write(tmp_path, 3, boot="a", step=2)
    write(tmp_path, 3, boot="b", first=1, step=2, seal=False)
    write(tmp_path, 2, boot="c", first=100)
    assert read(cursors(tmp_path)) == ["a:0", "b:0", "a:1", "b:1", "a:2", "b:2", "c:0", "c:1"]


def test_within_a_stream_the_order_is_that_of_the_log_whatever_the_clock_says(tmp_path: Path) -> None:
    write(tmp_path, 3, boot="a", first=10)
    write(tmp_path, 3, boot="b", first=11)
    shown = read(cursors(tmp_path))
    assert [name for name in shown if str(name).startswith("b")] == names("b", 0, 1, 2)
    assert sorted(map(str, shown)) == names("a", 0, 1, 2) + names("b", 0, 1, 2)


def test_a_cursor_goes_on_where_it_was(tmp_path: Path) -> None:
    processor = write(tmp_path, 2, seal=False)
    (cursor,) = cursors(tmp_path)
    assert read([cursor]) == names("b0", 0, 1)
    assert read([cursor]) == []
    processor.block([b"new"], at_ns=START_NS)
    assert read([cursor]) == ["new"]
    assert cursor.tail == 0


@each_of("version", [2, 3])
@each_of("seal", [True, False])
@each_of(
    ("position", "detail"),
    [(20, "there is no valid block here, but others follow"), (200, "its body's CRC does not fit")],
    fresh={"folder": tempfile.TemporaryDirectory},
)
def test_a_damaged_block_is_told_and_what_is_behind_it_shown(folder: str, version: int, seal: bool, position: int, detail: str) -> None:
    root = Path(folder)
    stream = write(root, seal=seal).stream
    (path,) = segment_files(root)
    if version == 2:
        as_version(path, 2)
    refs = list(walk(folder, stream))
    flip(path, refs[2].position + position)
    trouble = Trouble(stream, refs[2].header.offset, refs[2].header.end, False, detail)
    assert read(cursors(root)) == [*names("b0", 0, 1), trouble, *names("b0", 3, 4, 5)]


def test_a_block_is_found_behind_many_bytes_of_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tap_cursor, "_SCAN", 64)
    stream = write(tmp_path).stream
    (path,) = segment_files(tmp_path)
    refs = list(walk(str(tmp_path), stream))
    with path.open("r+b") as file:
        file.seek(refs[1].position)
        file.write((b"FGB1" * 100)[: refs[1].header.block_len])
    shown = read(cursors(tmp_path))
    assert [item for item in shown if isinstance(item, str)] == names("b0", 0, 2, 3, 4, 5)


def test_a_captured_block_of_another_log_is_no_block_of_this_one(tmp_path: Path) -> None:
    write(tmp_path / "other", 1)
    (other,) = segment_files(tmp_path / "other")
    captured = other.read_bytes()[SEGMENT_HEADER_BYTES:]
    processor = FakeProcessor(tmp_path / "this")
    for number in range(3):
        processor.block([bytes(44) + captured if number == 1 else b"x"], at_ns=START_NS)
    processor.close()
    (path,) = segment_files(tmp_path / "this")
    refs = list(walk(str(tmp_path / "this"), processor.stream))
    flip(path, refs[1].position + 20)
    (trouble,) = troubles(read(cursors(tmp_path / "this")))
    assert trouble.available == refs[1].header.end


def test_a_sealed_segment_that_was_cut_is_told(tmp_path: Path) -> None:
    stream = write(tmp_path, 12, segment_size=2000).stream
    listed = segments(str(tmp_path), stream)
    assert len(listed) >= 3
    chop(segment_files(tmp_path)[0], listed[0].size - 10)
    chop(segment_files(tmp_path)[-1], listed[-1].size - 10)
    shown = read(cursors(tmp_path))
    assert [trouble.available for trouble in troubles(shown)] == [listed[1].base, None]
    assert sum(isinstance(item, str) for item in shown) >= 8


@pytest.mark.parametrize("last", [True, False])
def test_an_emptied_segment_is_told_once(tmp_path: Path, last: bool) -> None:
    write(tmp_path, 12, segment_size=2000)
    files = segment_files(tmp_path)
    chop(files[-1] if last else files[1], 0)
    (cursor,) = cursors(tmp_path)
    assert [len(troubles(read([cursor]))) for _ in range(2)] == [1, 0]


def test_a_torn_tail_whose_place_the_next_segment_took_is_no_loss(tmp_path: Path) -> None:
    stream = write(tmp_path, 12, segment_size=2000).stream
    files = segment_files(tmp_path)
    as_version(files[0], 2)
    with files[0].open("ab") as file:
        file.write(b"torn" * 20)
    assert read(cursors(tmp_path)) == names("b0", *range(12))
    first, second, *_ = segments(str(tmp_path), stream)
    assert first.limit > second.base
    late = next(ref.header.end for ref in walk(str(tmp_path), stream, second.base))
    chop(files[0], SEGMENT_HEADER_BYTES + late + 640)
    assert all(isinstance(item, str) for item in read([Cursor(str(tmp_path), stream, late)])), "nor for who is past it"


def test_the_tail_of_a_sealed_segment_of_version_2_is_told(tmp_path: Path) -> None:
    write(tmp_path, 2)
    (path,) = segment_files(tmp_path)
    as_version(path, 2)
    chop(path, path.stat().st_size - 64)
    (trouble,) = troubles(read(cursors(tmp_path)))
    assert trouble.available is None
    assert "bytes after its last block" in trouble.detail


def ledger_of(root: Path, stream: str) -> LedgerWriter:
    """A ledger that knows a stream which ended."""
    ledger = LedgerWriter(str(root))
    ledger.born(stream, [], START_NS)
    ledger.ended(stream, end_offset(str(root), stream), START_NS, settled=True)
    return ledger


@pytest.mark.parametrize("said", [True, False])
@pytest.mark.parametrize("left", [0, 1, 2])
def test_what_retention_takes_while_it_is_read_is_told_as_that(tmp_path: Path, left: int, said: bool) -> None:
    """In its order: first the lines in the ledger, then the files."""
    stream = write(tmp_path, 12, segment_size=2000).stream
    ledger = ledger_of(tmp_path, stream)
    listed = segments(str(tmp_path), stream)
    doomed = listed[: len(listed) - left]
    run = merged(cursors(tmp_path), ALL)
    next(run)
    for segment in doomed if said else ():
        ledger.deleted(stream, segment.limit, START_NS)
    for segment in doomed:
        os.unlink(segment.path)
    found = troubles(run)
    assert len(found) == len(doomed)
    assert {(item.vanished, item.taken) for item in found} == {(True, said)}


@pytest.mark.parametrize("said", [True, False])
@pytest.mark.parametrize("forgets", [True, False])
def test_a_stream_that_is_gone_before_its_turn_is_told(tmp_path: Path, said: bool, forgets: bool) -> None:
    """Nothing at all is there any more: not the folder, and, when all of it was read or taken long ago, not the ledger's line."""
    write(tmp_path, 1, boot="a")
    stream = write(tmp_path, 3, boot="b", first=10).stream
    ledger = ledger_of(tmp_path, stream)
    run = merged(cursors(tmp_path), ALL)
    next(run)
    if said:
        ledger.deleted(stream, segments(str(tmp_path), stream)[-1].limit, START_NS)
    if forgets:
        ledger.compact({}, START_NS)
    shutil.rmtree(tmp_path / stream)
    (trouble,) = troubles(run)
    assert (trouble.stream, trouble.vanished, trouble.taken, trouble.available) == (stream, True, said, None)


def test_a_segment_that_somebody_else_took_is_not_retentions(tmp_path: Path) -> None:
    stream = write(tmp_path, 12, segment_size=2000).stream
    ledger = ledger_of(tmp_path, stream)
    first, second, third, *_ = segments(str(tmp_path), stream)
    run = merged(cursors(tmp_path), ALL)
    next(run)
    ledger.deleted(stream, first.limit, START_NS)
    for segment in (first, second):
        os.unlink(segment.path)
    assert [(item.taken, item.available) for item in troubles(run)] == [(True, second.base), (False, third.base)]


def test_a_block_that_is_written_anew_meanwhile_is_read_again(tmp_path: Path) -> None:
    stream = write(tmp_path, 1, seal=False).stream
    (path,) = segment_files(tmp_path)
    (cursor,) = cursors(tmp_path)
    good = path.read_bytes()
    ref = next(walk(str(tmp_path), stream))
    stale = dataclasses.replace(ref, header=ref.header._replace(body_crc=1))
    assert isinstance(cursor.read(stale), LogBlock)
    path.write_bytes(good[: ref.position])
    chop(path, len(good))
    assert isinstance(cursor.read(ref), Trouble)


def test_times_choose_the_segment_to_begin_at(tmp_path: Path) -> None:
    stream = write(tmp_path, 12, segment_size=2000).stream
    bases = [segment.base for segment in segments(str(tmp_path), stream)]
    begins = [next(walk(str(tmp_path), stream, base)).header.first_ns for base in bases]
    root = str(tmp_path)
    assert start_offset(root, stream, None) == 0
    assert start_offset(root, stream, START_NS - 1) == 0
    assert [start_offset(root, stream, begin) for begin in begins[1:]] == bases[:-1]
    assert [start_offset(root, stream, begin + 1) for begin in begins] == bases
    assert start_offset(root, "none", 5) == 0
    assert read([Cursor(root, stream, start_offset(root, stream, begins[-1]))], Wanted(since_ns=begins[-1])) == names(
        "b0", *range(round((begins[-1] - START_NS) / SECOND), 12)
    )
    flip(segment_files(tmp_path)[1], SEGMENT_HEADER_BYTES + 5)
    assert start_offset(root, stream, START_NS + 100 * SECOND) == 0, "times choose nothing where they cannot be known"


@each_of(
    ("position", "detail"),
    [(3968 + 20, "seal is damaged"), (30, "header is damaged"), (3968, "seal is damaged")],
    fresh={"folder": tempfile.TemporaryDirectory},
)
def test_a_segment_whose_header_is_damaged_is_told_and_passed_over(folder: str, position: int, detail: str) -> None:
    stream = write(Path(folder), 12, segment_size=2000).stream
    flip(segment_files(Path(folder))[0], position)
    shown = read(cursors(Path(folder)))
    (trouble,) = troubles(shown)
    assert (trouble.offset, trouble.available) == (0, segments(folder, stream)[1].base)
    assert detail in trouble.detail
    assert len(shown) > 1


@pytest.mark.extended
@pytest.mark.slow
def test_memory_is_that_of_a_block_however_long_the_log(tmp_path: Path) -> None:
    processor = FakeProcessor(tmp_path, segment_size=1 << 20)
    for number in range(400):
        processor.block([bytes(256)] * 100, at_ns=START_NS + number)
    tracemalloc.start()
    try:
        run = merged(cursors(tmp_path), ALL)
        next(run)
        gc.collect()
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        shown = sum(sum(1 for _ in frames_of(item.block, item.row, ALL)) for item in run if not isinstance(item, Trouble))
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert shown == 39_900
    assert peak < 500_000, "the log has 10 MB"
