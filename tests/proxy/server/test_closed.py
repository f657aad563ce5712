"""The closed row on its way, through the link's codec."""

import json
from typing import Any

import pytest

from proxy.server.closed import decode_closed, encode_closed
from proxy.server.link import LinkError, LinkReader, encode
from proxy.server.rows import ClosedRow
from tests.fakes.rows import closed_row


def sent(*rows: ClosedRow) -> list[str]:
    """The lines as they arrive."""
    (message,) = LinkReader().feed(encode({"type": "closed"}, [encode_closed(row, 123) for row in rows]))
    lines: list[str] = message["rows"]
    return lines


def without(key: str) -> ClosedRow:
    row: Any = closed_row()
    del row[key]
    closed: ClosedRow = row
    return closed


def test_rows_arrive_as_the_log_prints_them_and_as_objects() -> None:
    rows = [closed_row(id=(3 << 57) + (5 << 29) + number, peer="unix:a b", detail='said "no"\nand went') for number in (1, 2)]
    lines = sent(*(ClosedRow(**row) for row in rows))
    for line, row, text in zip(lines, rows, ("3-5-1", "3-5-2"), strict=True):
        accepted_ns, printed, decoded = decode_closed(line)
        assert (accepted_ns, decoded) == (123, row)
        assert json.loads(printed) == {**row, "id": text}
        assert printed.startswith('{"id": "3-5-')


def test_half_a_surrogate_pair_arrives_as_it_was_and_keeps_no_other_row_back() -> None:
    """A peer's name may hold bytes that are no UTF-8."""
    first, second = sent(closed_row(peer="unix:\udc80"), closed_row())
    assert decode_closed(first)[2] == closed_row(peer="unix:\udc80")
    assert decode_closed(second)[2] == closed_row()


@pytest.mark.parametrize("line", ["", "1 2", "x 2 {}", "1 y {}", "1 2 {", "1 2 []", "1 2 {}", "1 2 5"])
def test_what_is_no_row_is_an_error(line: str) -> None:
    with pytest.raises(LinkError):
        decode_closed(line)


@pytest.mark.parametrize("key", [key for key in ClosedRow.__annotations__ if key != "id"])
def test_a_row_that_lacks_a_key_is_refused_with_its_name(key: str) -> None:
    with pytest.raises(LinkError, match=rf"cannot be read: closed\.{key} is missing$"):
        decode_closed(*sent(without(key)))


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
        decode_closed(*sent(row))
    assert str(caught.value) == f"a closed row cannot be read: {text}"
