import os
from pathlib import Path

import pytest

from framegate.control import files
from framegate.control.files import FileError, digest, is_fresh, read, stamp
from tests.fakes.mounted import WAYS, Mounted, Way


@pytest.mark.parametrize("way", WAYS)
def test_however_files_are_replaced_their_stamp_is_another_and_what_is_read_is_new(tmp_path: Path, way: Way) -> None:
    mounted = Mounted(tmp_path / "m", way, {"a": b"1", "b": b"1"})
    paths = [mounted.path("a"), mounted.path("b")]
    before = stamp(paths)
    assert stamp(paths) == before
    assert read(paths) == {paths[0]: b"1", paths[1]: b"1"}
    mounted.replace({"a": b"22", "b": b"2"})
    assert stamp(paths) != before
    assert read(paths) == {paths[0]: b"22", paths[1]: b"2"}


def test_a_file_that_is_not_there_or_no_file_has_a_reason(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, reason in ((tmp_path / "none", "No such file"), (tmp_path, "cannot be read"), (pipe, "no ordinary file")):
        found = read([str(path)])
        assert isinstance(found, FileError)
        assert (found.path, reason in found.reason) == (str(path), True), found.reason
        assert read([str(path)]) == found, "the same is the same"
    assert stamp([str(tmp_path / "none")]) == ((2,),)


def test_files_without_an_end_are_not_read_to_it(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"123456")
    (tmp_path / "b").write_bytes(b"12345")
    found = read([str(tmp_path / "a"), str(tmp_path / "b")], 10)
    assert isinstance(found, FileError)
    assert (found.path, "too large" in found.reason) == (str(tmp_path / "b"), True)


def test_what_is_replaced_while_it_is_read_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounted = Mounted(tmp_path / "m", "link", {"a": b"1", "b": b"1"})
    paths = [mounted.path("a"), mounted.path("b")]
    real = files.read_file

    def turned(path: str, most: int) -> bytes:
        data = real(path, most)
        if path == paths[0]:
            mounted.replace({"a": b"2", "b": b"2"})
        return data

    monkeypatch.setattr(files, "read_file", turned)
    assert read(paths) is None, "the one is old and the other is new"


def test_what_changed_within_the_grain_of_a_clock_is_fresh(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"")
    changed = os.stat(path).st_ctime_ns
    assert is_fresh(stamp([str(path)]), changed + 2_000_000_000)
    assert not is_fresh(stamp([str(path)]), changed + 3_000_000_000)
    assert not is_fresh(stamp([str(tmp_path / "none")]), changed)


def test_a_digest_tells_contents_from_others_whatever_their_order() -> None:
    assert digest({"a": b"1", "b": b"2"}) == digest({"b": b"2", "a": b"1"})
    others = [{"a": b"1"}, {"a": b"2", "b": b"1"}, {"a": b"1", "b": b""}, {"a": b"", "b": b"12"}, {"a": b"1b2"}, {}]
    assert len({digest(each) for each in [{"a": b"1", "b": b"2"}, *others]}) == 7
    assert b"1" * 64 not in digest({"a": b"1" * 64})
