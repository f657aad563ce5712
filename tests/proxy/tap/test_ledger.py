import errno
import json
import os
import stat
import zlib
from pathlib import Path

import pytest

from proxy.tap import ledger as module
from proxy.tap.ledger import LEDGER_NAME, Fate, Ledger, LedgerWriter, read_ledger
from proxy.tap.log_reader import streams

BOTH = [("a", "request"), ("a", "response")]


def filled(directory: Path) -> LedgerWriter:
    writer = LedgerWriter(str(directory))
    writer.adopted("n.0.old", 640, 1)
    writer.born("n.0.b", BOTH, 2)
    writer.tapped("n.0.b", [("b", "request")], 3)
    writer.ended("n.0.b", 1280, 4, settled=False)
    writer.deleted("n.0.b", 128, 5, 3, 4)
    writer.born("n.recovery.b", [], 6)
    writer.ended("n.0.b", 1280, 7, settled=True)
    return writer


FILLED = {
    "n.0.old": Fate(1, 0, [], 640, settled=True, adopted=True),
    "n.0.b": Fate(2, 2, [*BOTH, ("b", "request")], 1280, settled=True, deleted_to=128, cut_from_ns=2, cut_until_ns=4),
    "n.recovery.b": Fate(6, 6, [], recovery=True),
}


def lines(directory: Path) -> list[bytes]:
    return (directory / LEDGER_NAME).read_bytes().splitlines(keepends=True)


def test_what_was_written_is_read_by_its_writer_by_the_next_one_and_by_everybody(tmp_path: Path) -> None:
    assert read_ledger(str(tmp_path)) == Ledger(present=False, last=0, damage="", streams={})
    writer = filled(tmp_path)
    assert writer.begun
    expected = Ledger(present=True, last=7, damage="", streams=FILLED)
    assert writer.ledger == expected
    writer.close()
    assert read_ledger(str(tmp_path)) == expected
    again = LedgerWriter(str(tmp_path))
    assert not again.begun
    assert again.ledger == expected
    again.born("n.1.c", [], 8)
    again.close()
    assert read_ledger(str(tmp_path)).last == 8
    assert stat.S_IMODE((tmp_path / LEDGER_NAME).stat().st_mode) & ~0o640 == 0
    assert streams(str(tmp_path)) == []


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


@pytest.mark.parametrize("kind", ["flipped", "missing", "twice", "not JSON", "no event", "never born", "words", "no pairs", "zeros", "deep"])
def test_a_line_that_is_damaged_is_said_and_the_others_are_believed(tmp_path: Path, kind: str) -> None:
    filled(tmp_path).close()
    found = lines(tmp_path)

    def crafted(text: bytes) -> bytes:
        return b"%08x %b\n" % (zlib.crc32(text), text)

    found[4:5] = {
        "flipped": [found[4].replace(b"128", b"129")],
        "missing": [],
        "twice": [found[4], found[4]],
        "not JSON": [crafted(b"{")],
        "no event": [crafted(b'{"n":5}')],
        "never born": [crafted(b'{"n":5,"event":"deleted","stream":"x.0.y","to":5}')],
        "words": [crafted(b'{"n":5,"event":"deleted","stream":"n.0.b","to":"far"}')],
        "no pairs": [crafted(b'{"n":5,"ns":1,"event":"born","stream":"n.0.c","tapped":[["a"]]}')],
        "zeros": [bytes(100) + b"\n"],
        "deep": [crafted(b"[" * 100_000)],
    }[kind]
    (tmp_path / LEDGER_NAME).write_bytes(b"".join(found))
    ledger = read_ledger(str(tmp_path))
    assert ledger.damage.startswith(("line 5", "line 6"))
    assert (ledger.last, ledger.streams["n.0.b"].settled) == (7, True)
    writer = LedgerWriter(str(tmp_path))
    writer.born("n.0.c", [], 9)
    writer.compact({}, 10)
    writer.close()
    again = read_ledger(str(tmp_path))
    assert again.damage == ledger.damage, "it is not forgotten while what it may be about is there"
    assert (again.last, "n.0.c" in again.streams) == (8, True)


def test_an_event_of_a_later_version_is_passed_over(tmp_path: Path) -> None:
    filled(tmp_path).close()
    text = b'{"n":8,"ns":1,"event":"painted","colour":"blue"}'
    with open(tmp_path / LEDGER_NAME, "ab") as file:
        file.write(b"%08x %b\n" % (zlib.crc32(text), text))
    assert read_ledger(str(tmp_path)) == Ledger(present=True, last=8, damage="", streams=FILLED)


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
    kept = {name: fate for name, fate in FILLED.items() if name != "n.0.old"}
    assert writer.ledger == read_ledger(str(tmp_path)) == Ledger(present=True, last=8, damage="", streams=kept, cut_until_ns=8)
    writer.born("n.0.c", BOTH, 10)
    writer.close()
    again = LedgerWriter(str(tmp_path))
    again.ended("n.0.c", 0, 11, settled=True)
    assert again.compact({}, 12) == 1, "nothing was ever in it"
    again.close()
    assert read_ledger(str(tmp_path)) == Ledger(present=True, last=10, damage="", streams=kept, cut_until_ns=8)
    assert os.listdir(tmp_path) == [LEDGER_NAME]


def test_a_line_that_is_missing_from_a_compacted_ledger_is_damage(tmp_path: Path) -> None:
    writer = filled(tmp_path)
    writer.compact({}, 8)
    writer.born("n.0.c", [], 9)
    writer.close()
    found = lines(tmp_path)
    for missing, text in ((1, "1 lines up to 7"), (3, "1 lines up to 7")):
        (tmp_path / LEDGER_NAME).write_bytes(b"".join(found[:missing] + found[missing + 1 :]))
        assert text in read_ledger(str(tmp_path)).damage
    (tmp_path / LEDGER_NAME).write_bytes(b"".join(found[1:]))
    assert read_ledger(str(tmp_path)).damage


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
    assert 0 < ledger.forgotten < min(fate.born for fate in ledger.streams.values())
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


def test_a_ledger_that_cannot_be_read_is_no_ledger_that_is_empty(tmp_path: Path) -> None:
    (tmp_path / LEDGER_NAME).mkdir()
    with pytest.raises(OSError, match="directory"):
        read_ledger(str(tmp_path))
    with pytest.raises(OSError, match="directory"):
        LedgerWriter(str(tmp_path))


def test_between_which_times_lies_what_was_deleted(tmp_path: Path) -> None:
    writer = LedgerWriter(str(tmp_path))
    writer.born("n.0.b", BOTH, 100)
    writer.born("n.recovery.b", [], 900)
    writer.adopted("n.0.old", 64, 100)

    def cut(stream: str) -> tuple[int, int]:
        fate = read_ledger(str(tmp_path)).streams[stream]
        assert fate == writer.ledger.streams[stream]
        return fate.cut_from_ns, fate.cut_until_ns

    assert cut("n.0.b") == (0, 0)
    writer.deleted("n.0.b", 64, 500, 200, 300)
    assert cut("n.0.b") == (100, 300), "what it lost before its first frame, too"
    writer.deleted("n.0.b", 128, 600, 50, 90)
    assert cut("n.0.b") == (50, 300), "the clock was set back"
    writer.deleted("n.0.b", 192, 700)
    assert cut("n.0.b") == (50, 700), "nobody knows more than when"
    writer.deleted("n.recovery.b", 64, 950, 200, 400)
    assert cut("n.recovery.b") == (200, 400), "it speaks of what was before its birth"
    writer.deleted("n.0.old", 64, 800, 70, 80)
    assert cut("n.0.old") == (70, 80)
    for stream in ("n.0.b", "n.recovery.b"):
        writer.ended(stream, 64, 960, settled=True)
    assert writer.compact({"job": {"n.0.b": 0, "n.recovery.b": 0}}, 990) == 0
    writer.compact({"job": {"n.0.b": 64, "n.recovery.b": 64, "n.0.old": 0}}, 991)
    assert (writer.ledger.cut_from_ns, writer.ledger.cut_until_ns) == (50, 700)
    assert cut("n.0.old") == (70, 80)
    writer.compact({}, 992)
    assert read_ledger(str(tmp_path)) == writer.ledger == Ledger(True, 10, "", {}, 0, 50, 700)
    assert LedgerWriter(str(tmp_path)).ledger == writer.ledger


def test_what_an_earlier_version_wrote_says_when_and_no_more(tmp_path: Path) -> None:
    kept = {"tapped": [], "end": 64, "settled": True, "adopted": False}
    records: list[dict[str, object]] = [
        {"n": 0, "ns": 40, "event": "compacted", "to": 3, "lines": 3, "forgotten": 0, "damage": "", "damaged_at": 0},
        {"n": 1, "ns": 40, "event": "kept", "stream": "n.0.a", "born_ns": 10, "deleted_to": 64, **kept},
        {"n": 2, "ns": 40, "event": "kept", "stream": "n.recovery.a", "born_ns": 20, "deleted_to": 64, **kept},
        {"n": 3, "ns": 40, "event": "kept", "stream": "n.0.b", "born_ns": 30, "deleted_to": 0, **kept},
        {"n": 4, "ns": 50, "event": "deleted", "stream": "n.0.b", "to": 64},
    ]
    with open(tmp_path / LEDGER_NAME, "wb") as file:
        for record in records:
            text = json.dumps(record).encode()
            file.write(b"%08x %b\n" % (zlib.crc32(text), text))
    ledger = read_ledger(str(tmp_path))
    assert ledger.damage == ""
    assert {name: (fate.cut_from_ns, fate.cut_until_ns) for name, fate in ledger.streams.items()} == {
        "n.0.a": (10, 40),
        "n.recovery.a": (0, 40),
        "n.0.b": (30, 50),
    }
    assert (ledger.cut_from_ns, ledger.cut_until_ns) == (0, 40)


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
