import zlib

import pytest

from framegate.proxy.tap.ledger_line import NEVER, DamageError, decode, encode, integer, joined, pairs, span
from tests.fakes.cases import each_of


def crafted(text: bytes) -> bytes:
    return b"%08x %b" % (zlib.crc32(text), text)


def test_a_line_is_the_crc_of_its_json_and_the_json() -> None:
    record = {"n": 1, "event": "born", "tapped": [["a", "request"]]}
    line = encode(record)
    assert line == crafted(b'{"n":1,"event":"born","tapped":[["a","request"]]}') + b"\n"
    assert decode(line[:-1]) == record


@each_of(
    ("line", "text"),
    [
        (b"", "CRC"),
        (b"00000000 {}", "CRC"),
        (crafted(b'{"event":"born"}').replace(b"born", b"bore"), "CRC"),
        (crafted(b'{"event":"born"}').upper(), "CRC"),
        (crafted(b"{"), "Expecting"),
        (crafted(b"[" * 100_000), "recursion"),
        (crafted(b"[]"), "no event"),
        (crafted(b'{"event":1}'), "no event"),
    ],
)
def test_a_line_that_is_not_as_it_was_written_is_damage(line: bytes, text: str) -> None:
    with pytest.raises(DamageError, match=text):
        decode(line)


def test_a_number_is_a_whole_one_from_0() -> None:
    assert integer({"n": 0}, "n") == 0
    for value in (-1, True, 1.0, "1", None):
        with pytest.raises(DamageError, match="n is no number"):
            integer({"n": value}, "n")
    with pytest.raises(DamageError, match="n is no number: None"):
        integer({}, "n")


def test_pairs_are_lists_of_two_words() -> None:
    assert pairs({"tapped": [["a", "request"], ["b", "response"]]}) == [("a", "request"), ("b", "response")]
    assert pairs({"tapped": []}) == []
    with pytest.raises(DamageError, match="tapped is no list"):
        pairs({})
    for item in (["a"], ["a", 1], ["a", "b", "c"], "ab"):
        with pytest.raises(DamageError, match="not a listener and a direction"):
            pairs({"tapped": [item]})


def test_a_span_that_an_earlier_version_did_not_write_is_as_told() -> None:
    assert span({"cut_from_ns": 1, "cut_until_ns": 2}, "cut_", (3, 4)) == (1, 2)
    assert span({"from_ns": 1, "until_ns": 2}, "cut_", (3, 4)) == (3, 4)
    with pytest.raises(DamageError, match="from_ns is no number"):
        span({"until_ns": 2}, "", (3, 4))


def test_joined_spans_hold_both() -> None:
    assert joined((3, 5), (1, 4)) == joined((1, 4), (3, 5)) == (1, 5)
    assert joined(NEVER, (3, 5)) == joined((3, 5), NEVER) == (3, 5)
    assert joined((0, 5), (3, 7)) == (0, 7)
    assert joined(NEVER, NEVER) == NEVER
