"""The closed row on its way, through the link's codec."""

import json
from typing import Any

import pytest

from proxy.server.closed import decode_closed, split_closed
from proxy.server.link import LinkError, LinkReader, encode
from proxy.server.rows import ClosedRow
from tests.fakes.rows import closed_row, decode_line, line_of


def sent(*rows: ClosedRow) -> list[str]:
    """The lines as they arrive."""
    (message,) = LinkReader().feed(encode({"type": "closed"}, [line_of(row, 123) for row in rows]))
    lines: list[str] = message["rows"]
    return lines


def without(key: str) -> ClosedRow:
    row: Any = closed_row()
    del row[key]
    closed: ClosedRow = row
    return closed


def test_rows_arrive_as_the_log_prints_them_and_as_objects() -> None:
    rows = [closed_row(id=(3 << 57) + (5 << 29) + number, peer="unix:a b", detail='said "no"\nand went') for number in (1, 2)]
    for line, row, shown in zip(sent(*rows), rows, ("3-5-1", "3-5-2"), strict=True):
        accepted_ns, number, text = split_closed(line)
        assert (accepted_ns, number) == (123, row["id"])
        assert decode_closed(number, text) == row
        assert json.loads(text) == {**row, "id": shown}
        assert text.startswith('{"id": "3-5-')


def test_half_a_surrogate_pair_arrives_as_it_was_and_keeps_no_other_row_back() -> None:
    """A peer's name may hold bytes that are no UTF-8."""
    first, second = sent(closed_row(peer="unix:\udc80"), closed_row())
    assert decode_line(first) == closed_row(peer="unix:\udc80")
    assert decode_line(second) == closed_row()


@pytest.mark.parametrize("line", ["", "1 2", "x 2 {}", "1 y {}", '1 2 {"', "1 2 []", "1 2 {}", "1 2 5", '1 2 "}'])
def test_what_is_no_line_is_an_error(line: str) -> None:
    with pytest.raises(LinkError, match="a closed row cannot be read"):
        split_closed(line)


@pytest.mark.parametrize("text", ['{"id": 1, }', '{"id": 1} {}', '{"id": {}', "[{}]", '{"' + "a" * 10])
def test_what_is_no_row_is_an_error_for_who_reads_it(text: str) -> None:
    with pytest.raises(LinkError, match="a closed row cannot be read"):
        decode_closed(1, text)


@pytest.mark.parametrize("key", [key for key in ClosedRow.__annotations__ if key != "id"])
def test_a_row_that_lacks_a_key_is_refused_with_its_name(key: str) -> None:
    with pytest.raises(LinkError, match=rf"cannot be read: closed\.{key} is missing$"):
        decode_line(*sent(without(key)))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"listener": None}, "closed.listener must be str, not null"),
        ({"closed_ns": 1.5}, "closed.closed_ns must be int, not float"),
        ({"closed_ns": True}, "closed.closed_ns must be int, not bool"),
        ({"lost": {"bytes": 1, "request": 1}}, "closed.lost.response is missing"),
        ({"frames": {"request": "1", "response": 1}}, "closed.frames.request must be int or null, not str"),
        ({"tls": []}, "closed.tls must be an object, not list"),
        ({"mutes": {"peer": {"count": 1}}}, "closed.mutes.peer.ns is missing"),
        ({"state_at_end": "open"}, "closed.state_at_end is not known"),
    ],
)
def test_a_row_with_something_else_in_it_is_refused_with_its_name(changes: dict[str, Any], text: str) -> None:
    row: Any = {**closed_row(), **changes}
    with pytest.raises(LinkError) as caught:
        decode_line(*sent(row))
    assert str(caught.value) == f"a closed row cannot be read: {text}"
