"""What the tap's log relies on, of the files under it: the system's, and the disk of the tests while nothing is wrong with it."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from framegate.proxy.tap.segment import MAX_PIECES, OsSegmentFiles, SegmentFiles
from tests.fakes.conformance import Kind
from tests.fakes.disk import FakeDisk

INTERFACE: Final = SegmentFiles
KINDS: Final = {
    "system": Kind(OsSegmentFiles, OsSegmentFiles),
    "fake": Kind(FakeDisk, FakeDisk),
    "fake with room": Kind(FakeDisk, lambda: FakeDisk(room=1 << 20)),
}


@pytest.fixture(params=KINDS)
def files(request: pytest.FixtureRequest) -> SegmentFiles:
    made: SegmentFiles = KINDS[request.param].make()
    return made


def test_a_file_is_made_with_its_folder_for_its_owner_alone_and_only_if_it_is_new(files: SegmentFiles, tmp_path: Path, no_umask: None) -> None:
    path = tmp_path / "stream" / "0.open"
    files.close(files.create(str(path)))
    assert path.read_bytes() == b""
    assert (path.stat().st_mode & 0o7, path.parent.stat().st_mode & 0o7) == (0, 0)
    with pytest.raises(FileExistsError):
        files.create(str(path))


def test_parts_are_written_in_order_at_their_position_and_counted(files: SegmentFiles, tmp_path: Path) -> None:
    path = tmp_path / "0.open"
    fd = files.create(str(path))
    assert files.write(fd, [b"one", memoryview(b"xtwox")[1:4], b""], 0) == 6
    assert files.write(fd, [b"three"], 6) == 5
    assert files.write(fd, [b"T"], 3) == 1
    assert path.read_bytes() == b"oneTwothree"
    assert files.write(fd, [b"x"] * MAX_PIECES, 11) == MAX_PIECES
    files.close(fd)
    assert path.stat().st_size == 11 + MAX_PIECES


def test_what_was_written_is_visible_before_the_file_is_closed_and_its_parts_are_not_kept(files: SegmentFiles, tmp_path: Path) -> None:
    path = tmp_path / "0.open"
    fd = files.create(str(path))
    part = bytearray(b"data")
    files.write(fd, [memoryview(part)], 0)
    part[:] = b"else"
    assert path.read_bytes() == b"data"
    part.append(0)  # nobody holds on to it
    files.close(fd)


@pytest.mark.parametrize("length", [0, 3, 6])
def test_a_file_is_cut_and_goes_on_where_it_was_cut(files: SegmentFiles, tmp_path: Path, length: int) -> None:
    path = tmp_path / "0.open"
    fd = files.create(str(path))
    files.write(fd, [b"abcdef"], 0)
    files.truncate(fd, length)
    assert files.write(fd, [b"!"], length) == 1
    files.close(fd)
    assert path.read_bytes() == b"abcdef"[:length] + b"!"


def test_a_file_that_is_deleted_moved_or_replaced_while_it_is_open_is_not_there_any_more(files: SegmentFiles, tmp_path: Path) -> None:
    path, other = tmp_path / "0.open", tmp_path / "other"
    fd = files.create(str(path))
    os.link(path, other)
    assert files.is_there(str(path), fd)
    path.unlink()
    assert not files.is_there(str(path), fd)
    other.rename(path)
    assert files.is_there(str(path), fd)
    other.write_bytes(b"")
    other.rename(path)
    assert not files.is_there(str(path), fd)
    files.close(fd)


def test_a_file_is_renamed_over_nothing_and_removed(files: SegmentFiles, tmp_path: Path) -> None:
    source, target = tmp_path / "0.open", tmp_path / "0.seg"
    fd = files.create(str(source))
    files.write(fd, [b"data"], 0)
    files.rename(str(source), str(target))
    files.write(fd, [b"!"], 4)
    files.close(fd)
    assert (target.read_bytes(), source.exists()) == (b"data!", False)
    files.remove(str(target))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "call",
    [
        lambda files, gone, fd: files.rename(gone, gone + "x"),
        lambda files, gone, fd: files.remove(gone),
        lambda files, gone, fd: files.write(fd, [b"x"], 0),
        lambda files, gone, fd: files.is_there(gone, fd),
        lambda files, gone, fd: files.truncate(fd, 0),
        lambda files, gone, fd: files.close(fd),
    ],
    ids=["rename", "remove", "write", "is_there", "truncate", "close"],
)
def test_what_is_not_there_is_an_error_of_the_system(files: SegmentFiles, tmp_path: Path, call: Callable[[SegmentFiles, str, int], None]) -> None:
    never = 1 << 20  # no descriptor is as large as that here
    with pytest.raises(OSError):  # noqa: PT011 - the number is the system's
        call(files, str(tmp_path / "gone"), never)
