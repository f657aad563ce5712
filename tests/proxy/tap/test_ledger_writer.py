import errno
import os
import zlib
from pathlib import Path

import pytest

from framegate.proxy.tap import ledger_writer as module
from framegate.proxy.tap.ledger import LEDGER_NAME, Ledger, read_ledger
from framegate.proxy.tap.ledger_writer import LedgerWriter
from tests.fakes.ledgers import BOTH, FILLED, filled, lines


def test_lines_are_numbered_and_carry_their_crc(tmp_path: Path) -> None:
    filled(tmp_path).close()
    for number, line in enumerate(lines(tmp_path), 1):
        assert line[:9] == b"%08x " % zlib.crc32(line[9:-1])
        assert line[9:].startswith(b'{"n":%d,' % number)


def test_a_line_that_was_torn_never_was_and_is_cut_before_the_next(tmp_path: Path) -> None:
    filled(tmp_path).close()
    path = tmp_path / LEDGER_NAME
    whole = path.read_bytes()
    last = len(lines(tmp_path)[-1])
    for cut in range(1, last + 1):
        path.write_bytes(whole[:-cut])
        found = read_ledger(str(tmp_path))
        assert (found.last, found.damage, found.streams["n.0.b"].settled) == (6, "", False)
    path.write_bytes(whole[:-5])
    writer = LedgerWriter(str(tmp_path))
    writer.ended("n.0.b", 1280, 7, settled=True)
    writer.close()
    assert path.read_bytes() == whole


@pytest.mark.parametrize("failing", ["write", "half", "fsync"])
def test_a_line_that_the_disk_does_not_take_changes_nothing_and_the_next_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    writer = filled(tmp_path)
    real_write = os.write

    def fail(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        if failing == "half":
            patch.setattr(os, "write", lambda fd, data: real_write(fd, data[: len(data) // 2]))
        else:
            patch.setattr(os, failing, fail)
        with pytest.raises(OSError, match="No space"):
            writer.born("n.0.c", BOTH, 8)
        assert writer.ledger.last == 7
    if failing != "fsync":
        assert read_ledger(str(tmp_path)) == writer.ledger
    writer.born("n.0.d", BOTH, 9)
    writer.close()
    ledger = read_ledger(str(tmp_path))
    assert (ledger.last, ledger.damage, list(ledger.streams)) == (8, "", [*FILLED, "n.0.d"])


def test_compaction_forgets_what_is_gone_and_read_and_numbers_go_on(tmp_path: Path) -> None:
    writer = filled(tmp_path)
    writer.deleted("n.0.old", 640, 8)
    assert not writer.large
    assert writer.compact({"job": {"n.0.old": 639}}, 9) == 0, "a consumer needs to know what became of it"
    assert writer.compact({"job": {"n.0.old": 640}}, 9) == 1
    kept = {name: stream_record for name, stream_record in FILLED.items() if name != "n.0.old"}
    assert writer.ledger == read_ledger(str(tmp_path)) == Ledger(present=True, last=8, damage="", streams=kept, cut_until_ns=8)
    writer.born("n.0.c", BOTH, 10)
    writer.close()
    again = LedgerWriter(str(tmp_path))
    again.ended("n.0.c", 0, 11, settled=True)
    assert again.compact({}, 12) == 1, "nothing was ever in it"
    again.close()
    assert read_ledger(str(tmp_path)) == Ledger(present=True, last=10, damage="", streams=kept, cut_until_ns=8)
    assert os.listdir(tmp_path) == [LEDGER_NAME]


def test_the_size_is_bounded_whatever_consumers_have_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMPACT_BYTES", 20_000)
    monkeypatch.setattr(module, "KEPT_BYTES", 10_000)
    writer = LedgerWriter(str(tmp_path))
    consumers = {"dead job": {"n.0.b1": 64}}
    for number in range(200):
        stream = f"n.0.b{number}"
        writer.born(stream, BOTH, number)
        writer.ended(stream, 64, number, settled=True)
        writer.deleted(stream, 64, number)
        if writer.large:
            writer.compact(consumers, number)
            assert os.path.getsize(tmp_path / LEDGER_NAME) < 12_000
    ledger = read_ledger(str(tmp_path))
    assert ledger.damage == ""
    assert ledger.last == 600
    assert 0 < ledger.forgotten < min(stream_record.born for stream_record in ledger.streams.values())
    assert "n.0.b199" in ledger.streams
    writer.close()


def test_a_compaction_that_the_disk_does_not_take_leaves_the_ledger_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = filled(tmp_path)
    writer.deleted("n.0.old", 640, 8)
    before = (tmp_path / LEDGER_NAME).read_bytes()

    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space"):
            writer.compact({}, 9)
    assert (tmp_path / LEDGER_NAME).read_bytes() == before
    assert os.listdir(tmp_path) == [LEDGER_NAME]
    assert "n.0.old" in writer.ledger.streams
    writer.born("n.0.c", [], 10)
    writer.close()
    assert read_ledger(str(tmp_path)).last == 9


@pytest.mark.parametrize("left", ["n.0.b", "n.recovery.b"])
def test_a_stream_is_not_forgotten_while_the_other_one_of_its_run_is_there(tmp_path: Path, left: str) -> None:
    writer = LedgerWriter(str(tmp_path))
    (gone,) = {"n.0.b", "n.recovery.b"} - {left}
    for stream in ("n.0.b", "n.recovery.b", "n.0.c"):
        writer.born(stream, BOTH, 1)
        writer.ended(stream, 64, 2, settled=True)
    for stream in (gone, "n.0.c"):
        writer.deleted(stream, 64, 3)
    assert writer.compact({}, 4) == 1
    assert set(writer.ledger.streams) == {"n.0.b", "n.recovery.b"}
    writer.deleted(left, 64, 5)
    assert writer.compact({}, 6) == 2
    writer.close()
