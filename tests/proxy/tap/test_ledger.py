import json
import stat
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from framegate.proxy.tap.ledger import LEDGER_NAME, Ledger, decode, encode, read_ledger
from framegate.proxy.tap.ledger_writer import LedgerWriter
from framegate.proxy.tap.log_reader import streams
from tests.fakes.cases import each_of
from tests.fakes.ledgers import BOTH, FILLED, filled, lines


def crafted(text: bytes) -> bytes:
    return b"%08x %b\n" % (zlib.crc32(text), text)


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


def member(text: bytes) -> bytes:
    """The line of a deletion with a member of this text."""
    return crafted(b'{"n":5,"event":"deleted","stream":"n.0.b",%b}' % text)


def tapped(text: bytes) -> bytes:
    return crafted(b'{"n":5,"ns":1,"event":"born","stream":"n.0.c","tapped":%b}' % text)


@each_of(
    ("damaged", "text"),
    [
        (lambda line: line.replace(b"128", b"129"), "its CRC does not fit"),
        (lambda line: line[:8].upper() + line[8:].replace(b"128", b"129"), "its CRC does not fit"),
        (lambda line: b"\n", "its CRC does not fit"),
        (lambda line: bytes(100) + b"\n", "its CRC does not fit"),
        (lambda line: b"", "number 6 follows 4"),
        (lambda line: line + line, "number 5 follows 5"),
        (lambda line: crafted(b"{"), "Expecting"),
        (lambda line: crafted(b"[" * 100_000), "recursion"),
        (lambda line: crafted(b"[]"), "no event"),
        (lambda line: crafted(b'{"n":5}'), "no event"),
        (lambda line: crafted(b'{"n":5,"event":1}'), "no event"),
        (lambda line: crafted(b'{"n":5,"event":"deleted","stream":"x.0.y","to":5}'), "never born"),
        *((lambda line, value=value: member(b'"ns":1,"to":' + value), "to is no number") for value in (b'"far"', b"-1", b"true", b"1.0", b"null")),
        (lambda line: member(b'"to":5'), "ns is no number: None"),
        (lambda line: member(b'"ns":1,"to":5,"until_ns":2'), "from_ns is no number"),
        (lambda line: tapped(b"3"), "tapped is no list"),
        *(
            (lambda line, item=item: tapped(b"[%b]" % item), "not a listener and a direction")
            for item in (b'["a"]', b'["a",1]', b'["a","b","c"]', b'"ab"')
        ),
    ],
    fresh={"folder": tempfile.TemporaryDirectory},
)
def test_a_line_that_is_damaged_is_said_and_the_others_are_believed(folder: str, damaged: Callable[[bytes], bytes], text: str) -> None:
    tmp_path = Path(folder)
    filled(tmp_path).close()
    found = lines(tmp_path)
    found[4] = damaged(found[4])
    (tmp_path / LEDGER_NAME).write_bytes(b"".join(found))
    ledger = read_ledger(str(tmp_path))
    assert ledger.damage.startswith(("line 5", "line 6"))
    assert text in ledger.damage
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
        file.write(crafted(text))
    assert read_ledger(str(tmp_path)) == Ledger(present=True, last=8, damage="", streams=FILLED)


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
        stream_record = read_ledger(str(tmp_path)).streams[stream]
        assert stream_record == writer.ledger.streams[stream]
        return stream_record.cut_from_ns, stream_record.cut_until_ns

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
    (tmp_path / LEDGER_NAME).write_bytes(b"".join(crafted(json.dumps(record).encode()) for record in records))
    ledger = read_ledger(str(tmp_path))
    assert ledger.damage == ""
    assert {name: (stream_record.cut_from_ns, stream_record.cut_until_ns) for name, stream_record in ledger.streams.items()} == {
        "n.0.a": (10, 40),
        "n.recovery.a": (0, 40),
        "n.0.b": (30, 50),
    }
    assert (ledger.cut_from_ns, ledger.cut_until_ns) == (0, 40)


def test_a_line_is_the_crc_of_its_json_and_the_json() -> None:
    record = {"n": 1, "event": "born", "tapped": [["a", "request"]]}
    line = encode(record)
    assert line == crafted(b'{"n":1,"event":"born","tapped":[["a","request"]]}')
    assert decode(line[:-1]) == record
