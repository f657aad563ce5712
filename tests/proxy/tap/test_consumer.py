import fcntl
import os
import stat
from pathlib import Path

import pytest

from framegate.proxy.tap.consumer import (
    MAX_BYTES,
    ConsumerInUseError,
    claim_consumer,
    consumer_in_use,
    consumer_owner,
    read_consumers,
    remove_consumer,
    write_consumer,
)
from framegate.proxy.tap.log_reader import streams


def test_consumers_say_where_they_stand(tmp_path: Path) -> None:
    assert read_consumers(str(tmp_path)).offsets == {}
    write_consumer(str(tmp_path), "tables", {"s": 10}, 5)
    write_consumer(str(tmp_path), "tables", {"s": 20, "t": 0}, 6)
    write_consumer(str(tmp_path), "other", {}, 7)
    assert read_consumers(str(tmp_path)).offsets == {"other": {}, "tables": {"s": 20, "t": 0}}
    assert sorted(os.listdir(tmp_path / "_consumers")) == ["other.json", "tables.json"]
    assert streams(str(tmp_path)) == []


@pytest.mark.parametrize("name", ["", ".", "../x", "a/b", ".hidden"])
def test_consumer_names_are_plain_file_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="consumer name"):
        write_consumer(str(tmp_path), name, {}, 0)


GOOD = '{"version": 1, "updated_ns": 5, "streams": {"s": 20}}'
BAD = {
    "empty": "",
    "half": GOOD[:-10],
    "list": "[]",
    "nothing": "{}",
    "number": "3",
    "no version": GOOD.replace("version", "revision"),
    "later version": GOOD.replace("1", "2"),
    "words": GOOD.replace("20", '"x"'),
    "float": GOOD.replace("20", "20.5"),
    "infinite": GOOD.replace("20", "1e999"),
    "true": GOOD.replace("20", "true"),
    "negative": GOOD.replace("20", "-1"),
    "no streams": '{"version": 1, "streams": 3}',
    "deep": "[" * 100_000,
    "binary": "\udcff\udcfe",
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_a_consumer_file_that_cannot_be_believed_is_named_and_the_others_are_read(tmp_path: Path, text: str) -> None:
    write_consumer(str(tmp_path), "good", {"s": 20}, 5)
    (tmp_path / "_consumers" / "odd.json").write_text(text, errors="surrogateescape")
    found = read_consumers(str(tmp_path))
    assert found.offsets == {"good": {"s": 20}}
    assert list(found.unreadable) == ["odd"]
    assert "odd.json" in found.unreadable["odd"]


def test_a_consumer_file_that_is_none_is_neither_waited_for_nor_read_to_an_end_that_never_comes(tmp_path: Path) -> None:
    write_consumer(str(tmp_path), "good", {"s": 20}, 5)
    folder = tmp_path / "_consumers"
    os.mkfifo(folder / "fifo.json")
    (folder / "zero.json").symlink_to("/dev/zero")
    with (folder / "just.json").open("w") as file:
        file.write(GOOD.ljust(MAX_BYTES))
    with (folder / "large.json").open("w") as file:
        file.write(GOOD)
        file.truncate(MAX_BYTES + 1)
    found = read_consumers(str(tmp_path))
    assert found.offsets == {"good": {"s": 20}, "just": {"s": 20}}
    assert found.unreadable == {
        "fifo": "fifo.json: not a regular file",
        "zero": "zero.json: not a regular file",
        "large": "large.json: larger than 4 MiB",
    }


def test_a_consumer_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "_consumers" / "odd.json").mkdir(parents=True)
    assert "Is a directory" in read_consumers(str(tmp_path)).unreadable["odd"]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "_consumers").write_text("a file")
    assert "Not a directory" in read_consumers(str(tmp_path / "other")).unreadable["_consumers"]


def test_a_consumer_file_is_replaced_whole_or_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_consumer(str(tmp_path), "job", {"s": 20}, 5)
    synced: list[str] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    write_consumer(str(tmp_path), "job", {"s": 30}, 6)
    assert [Path(path).parent.name for path in synced] == ["_consumers"]
    assert read_consumers(str(tmp_path)).offsets == {"job": {"s": 30}}

    def fail(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        write_consumer(str(tmp_path), "job", {"s": 40}, 7)
    assert read_consumers(str(tmp_path)).offsets == {"job": {"s": 30}}
    assert os.listdir(tmp_path / "_consumers") == ["job.json"]


def test_consumer_files_are_for_owner_and_group(tmp_path: Path, no_umask: None) -> None:
    for offset in (10, 20):
        write_consumer(str(tmp_path), "job", {"s": offset}, 5)
    assert stat.S_IMODE((tmp_path / "_consumers").stat().st_mode) == 0o750
    assert stat.S_IMODE((tmp_path / "_consumers" / "job.json").stat().st_mode) == 0o640


def test_a_consumer_that_is_removed_is_heeded_no_more(tmp_path: Path) -> None:
    root = str(tmp_path)
    with pytest.raises(FileNotFoundError):
        remove_consumer(root, "tables")
    assert not (tmp_path / "_consumers").exists(), "nothing is made for a name that is not known"
    for name in ("tables", "other"):
        write_consumer(root, name, {"s": 20}, 5)
    remove_consumer(root, "tables")
    assert read_consumers(root).offsets == {"other": {"s": 20}}
    assert sorted(os.listdir(tmp_path / "_consumers")) == ["other.json"]


def test_a_name_is_one_process_at_a_time(tmp_path: Path) -> None:
    root = str(tmp_path)
    write_consumer(root, "tables", {}, 5)
    assert not consumer_in_use(root, "tables")
    with claim_consumer(root, "tables"):
        assert consumer_in_use(root, "tables")
        with pytest.raises(ConsumerInUseError, match="another process reads under the name tables"), claim_consumer(root, "tables"):
            pass
        with pytest.raises(ConsumerInUseError):
            remove_consumer(root, "tables")
        with claim_consumer(root, "other"):
            pass
    assert not consumer_in_use(root, "tables")
    with claim_consumer(root, "tables"):
        pass
    assert read_consumers(root).offsets == {"tables": {}}


def test_a_name_is_one_owner_at_any_time(tmp_path: Path) -> None:
    root = str(tmp_path)
    write_consumer(root, "tables", {}, 5)
    assert consumer_owner(root, "tables") == ""
    with claim_consumer(root, "tables", "/out/_checkpoint"):
        write_consumer(root, "tables", {}, 6, "/out/_checkpoint")
    assert consumer_owner(root, "tables") == "/out/_checkpoint"
    with claim_consumer(root, "tables", "/out/_checkpoint"):
        pass
    with pytest.raises(ConsumerInUseError, match="tables is in use by /out/_checkpoint"), claim_consumer(root, "tables", "/other"):
        pass
    remove_consumer(root, "tables")
    with claim_consumer(root, "tables", "/other"):
        pass


@pytest.mark.parametrize("text", ["", "[]", '{"owner": 3}', "[" * 100_000])
def test_a_file_that_cannot_be_believed_has_no_owner(tmp_path: Path, text: str) -> None:
    write_consumer(str(tmp_path), "odd", {}, 5, "somebody")
    (tmp_path / "_consumers" / "odd.json").write_text(text)
    assert consumer_owner(str(tmp_path), "odd") == ""


def test_a_lock_that_was_removed_while_it_was_taken_is_taken_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = tmp_path / "_consumers" / "tables.lock"
    real, removed = fcntl.flock, []

    def flock(fd: int, how: int) -> None:
        real(fd, how)
        if not removed:
            lock.unlink()
            removed.append(fd)

    monkeypatch.setattr(fcntl, "flock", flock)
    with claim_consumer(str(tmp_path), "tables"):
        assert lock.exists()
        assert consumer_in_use(str(tmp_path), "tables")
