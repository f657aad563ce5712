import fcntl
import os
import stat
from pathlib import Path

import pytest

from framegate.proxy.tap import consumer as module
from framegate.proxy.tap.consumer import (
    MAX_BYTES,
    MAX_NAMED,
    OTHERS,
    ConsumerInUseError,
    Lag,
    Lags,
    claim_consumer,
    consumer_in_use,
    consumer_owner,
    prepare_consumer,
    read_consumers,
    remove_consumer,
    write_consumer,
)
from framegate.proxy.tap.log_reader import Segment, segments, streams, walk_segment
from tests.fakes.cases import each_of
from tests.fakes.small_disk import fill, tiny_disk
from tests.fakes.tap_files import segment_files
from tests.fakes.tap_log import FakeProcessor


def test_consumers_say_where_they_stand(tmp_path: Path, no_umask: None) -> None:
    assert read_consumers(str(tmp_path)).offsets == {}
    write_consumer(str(tmp_path), "tables", {"s": 10}, 5)
    write_consumer(str(tmp_path), "tables", {"s": 20, "t": 0}, 6)
    write_consumer(str(tmp_path), "other", {}, 7)
    assert read_consumers(str(tmp_path)).offsets == {"other": {}, "tables": {"s": 20, "t": 0}}
    assert sorted(os.listdir(tmp_path / "_consumers")) == ["other.json", "tables.json"]
    assert streams(str(tmp_path)) == []
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "_consumers", tmp_path / "_consumers" / "tables.json")]
    assert modes == [0o750, 0o640], "for owner and group"


def test_on_a_full_disk_a_registered_consumer_goes_on(tmp_path: Path) -> None:
    with tiny_disk(tmp_path / "disk") as mounted:
        if not mounted:
            pytest.skip("needs a disk of its own")
        root = tmp_path / "disk"
        write_consumer(str(root), "tables", {"s": 10_000}, 5)
        fill(root / "ballast")
        with pytest.raises(OSError, match="No space left"):
            write_consumer(str(root), "other", {"s": 1}, 6)
        for offset in (7, 20_000):
            write_consumer(str(root), "tables", {"s": offset}, 6)
            assert read_consumers(str(root)) == ({"tables": {"s": offset}}, {})


def test_a_consumer_that_was_prepared_registers_on_a_full_disk(tmp_path: Path) -> None:
    with tiny_disk(tmp_path / "disk") as mounted:
        if not mounted:
            pytest.skip("needs a disk of its own")
        root = tmp_path / "disk"
        prepare_consumer(str(root), "ship", 5)
        fill(root / "ballast")
        with claim_consumer(str(root), "ship"):
            write_consumer(str(root), "ship", {"s": 10_000}, 6, owner="s3://taps/edge")
            prepare_consumer(str(root), "ship", 7)  # that one runs
        prepare_consumer(str(root), "ship", 7)
        assert read_consumers(str(root)) == ({"ship": {"s": 10_000}}, {})
        assert consumer_owner(str(root), "ship") == "s3://taps/edge"


@each_of("name", ["", ".", "../x", "a/b", ".hidden"])
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
    "owner that is no text": '{"owner": 3}',
    "binary": "\udcff\udcfe",
}


def test_a_consumer_file_that_cannot_be_believed_is_named_has_no_owner_and_the_others_are_read(tmp_path: Path) -> None:
    write_consumer(str(tmp_path), "good", {"s": 20}, 5)
    for name, text in BAD.items():
        (tmp_path / "_consumers" / f"{name}.json").write_text(text, errors="surrogateescape")
    found = read_consumers(str(tmp_path))
    assert found.offsets == {"good": {"s": 20}}
    assert {name for name, why in found.unreadable.items() if f"{name}.json" in why} == set(BAD)
    assert {name: consumer_owner(str(tmp_path), name) for name in BAD} == dict.fromkeys(BAD, "")


def test_a_consumer_file_that_is_none_is_neither_waited_for_nor_read_to_an_end_that_never_comes(tmp_path: Path) -> None:
    write_consumer(str(tmp_path), "good", {"s": 20}, 5)
    folder = tmp_path / "_consumers"
    os.mkfifo(folder / "fifo.json")
    (folder / "zero.json").symlink_to("/dev/zero")
    (folder / "odd.json").mkdir()
    with (folder / "just.json").open("w") as file:
        file.write(GOOD.ljust(MAX_BYTES))
    with (folder / "large.json").open("w") as file:
        file.write(GOOD)
        file.truncate(MAX_BYTES + 1)
    found = read_consumers(str(tmp_path))
    assert found.offsets == {"good": {"s": 20}, "just": {"s": 20}}
    assert "Is a directory" in found.unreadable.pop("odd")
    assert found.unreadable == {
        "fifo": "fifo.json: not a regular file",
        "zero": "zero.json: not a regular file",
        "large": "large.json: larger than 4 MiB",
    }
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
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output"):
        write_consumer(str(tmp_path), "job", {"s": 40}, 7)
    assert read_consumers(str(tmp_path)).offsets == {"job": {"s": 30}}
    assert os.listdir(tmp_path / "_consumers") == ["job.json"]


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


S = 1_000_000_000


def listed(root: Path) -> dict[str, list[Segment]]:
    return {stream: segments(str(root), stream) for stream in streams(str(root))}


def limits(root: Path) -> list[int]:
    """The offset behind each block of the one stream."""
    (found,) = listed(root).values()
    return [ref.header.end for segment in found for ref in walk_segment(segment, segment.base)]


@pytest.fixture
def writer(tmp_path: Path) -> FakeProcessor:
    """Three blocks, captured at 10, 20 and 30 s."""
    processor = FakeProcessor(tmp_path)
    for second in (10, 20, 30):
        processor.block([b"frame"], at_ns=second * S)
    return processor


def test_what_lies_behind_the_offset_is_unread_and_as_old_as_its_first_block(tmp_path: Path, writer: FakeProcessor) -> None:
    first, second, end = limits(tmp_path)
    stands = {"new": {}, "one": {writer.stream: first}, "two": {writer.stream: second}, "all": {writer.stream: end}, "more": {writer.stream: end + 9}}
    assert Lags().measure(listed(tmp_path), stands) == {
        "new": Lag(end, 10 * S),
        "one": Lag(end - first, 20 * S),
        "two": Lag(end - second, 30 * S),
        "all": Lag(0, 0),
        "more": Lag(0, 0),
    }


def test_what_was_deleted_unread_is_no_lag_any_more(tmp_path: Path, writer: FakeProcessor) -> None:
    writer.close()
    again = FakeProcessor(tmp_path, boot_id="b1")
    again.block([b"later"], at_ns=40 * S)
    for path in segment_files(tmp_path, writer.stream):
        path.unlink()
    (unread,) = [found[-1].limit for stream, found in listed(tmp_path).items() if stream == again.stream]
    assert Lags().measure(listed(tmp_path), {"job": {}})["job"] == Lag(unread, 40 * S)


def test_of_several_streams_bytes_are_summed_and_the_oldest_counts(tmp_path: Path, writer: FakeProcessor) -> None:
    (end,) = limits(tmp_path)[-1:]
    other = FakeProcessor(tmp_path, slot=1)
    other.block([b"early"], at_ns=5 * S)
    total = sum(found[-1].limit for found in listed(tmp_path).values())
    assert Lags().measure(listed(tmp_path), {"job": {}})["job"] == Lag(total, 5 * S)
    assert Lags().measure(listed(tmp_path), {"job": {other.stream: 2**40}})["job"] == Lag(end, 10 * S)


def test_a_block_is_looked_at_once_as_long_as_nothing_moves(tmp_path: Path, writer: FakeProcessor, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    real = module._captured

    def captured(segment: Segment, offset: int) -> int:
        looks.append(offset)
        return real(segment, offset)

    monkeypatch.setattr(module, "_captured", captured)
    lags, first = Lags(), limits(tmp_path)[0]
    for offset in (0, 0, 0, first, first):
        lags.measure(listed(tmp_path), {"a": {writer.stream: offset}, "b": {writer.stream: offset}})
    assert looks == [0, first]


def test_a_block_that_cannot_be_read_is_as_old_as_its_file(tmp_path: Path, writer: FakeProcessor) -> None:
    writer.close()
    (path,) = segment_files(tmp_path)
    os.utime(path, (77, 77))
    found = Lags().measure(listed(tmp_path), {"job": {writer.stream: 1}})["job"]
    assert found == Lag(limits(tmp_path)[-1] - 1, 77 * S)


@pytest.mark.parametrize("count", [MAX_NAMED - 1, MAX_NAMED, MAX_NAMED + 1, MAX_NAMED + 2])
def test_consumers_beyond_a_bound_stand_together(tmp_path: Path, writer: FakeProcessor, count: int) -> None:
    end = limits(tmp_path)[-1]
    found = Lags().measure(listed(tmp_path), {f"job-{number:03}": {} for number in range(count)})
    assert len(found) == min(count, MAX_NAMED + 1)
    assert found.get(OTHERS) == (Lag((count - MAX_NAMED) * end, 10 * S) if count > MAX_NAMED else None)


def test_a_name_that_is_no_text_is_shown_as_one(tmp_path: Path, writer: FakeProcessor) -> None:
    (shown,) = Lags().measure(listed(tmp_path), {"job-\udcff": {}})
    assert shown == "job-?"
