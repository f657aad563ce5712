"""The closed row on its way, through the link's codec."""

import json
from typing import Any

import pytest

from proxy.server.link import LinkError, LinkReader, encode
from proxy.server.row_lines import decode_row, is_due, split_line
from proxy.server.rows import ClosedRow
from tests.fakes.rows import access_row, closed_row, decode_line, line_of, opened_row


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
        accepted_ns, number, text = split_line("closed", line)
        assert (accepted_ns, number) == (123, row["id"])
        assert decode_row("closed", number, text) == row
        assert json.loads(text) == {**row, "id": shown}
        assert text.startswith('{"id": "3-5-')


def test_half_a_surrogate_pair_arrives_as_it_was_and_keeps_no_other_row_back() -> None:
    """A peer's name may hold bytes that are no UTF-8."""
    first, second = sent(closed_row(peer="unix:\udc80"), closed_row())
    assert decode_line(first) == closed_row(peer="unix:\udc80")
    assert decode_line(second) == closed_row()


@pytest.mark.parametrize("line", ["", "1 2", "x 2 {}", "1 y {}", '1 2 {"', "1 2 []", "1 2 {}", "1 2 5", '1 2 "}'])
def test_what_is_no_line_is_an_error(line: str) -> None:
    with pytest.raises(LinkError, match="the closed row cannot be read"):
        split_line("closed", line)


@pytest.mark.parametrize("text", ['{"id": 1, }', '{"id": 1} {}', '{"id": {}', "[{}]", '{"' + "a" * 10])
def test_what_is_no_row_is_an_error_for_who_reads_it(text: str) -> None:
    with pytest.raises(LinkError, match="the closed row cannot be read"):
        decode_row("closed", 1, text)


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
    assert str(caught.value) == f"the closed row cannot be read: {text}"


def test_each_notice_has_its_own_row() -> None:
    rows: dict[str, Any] = {"opened": opened_row(), "access": access_row(), "closed": closed_row()}
    for event, row in rows.items():
        assert decode_line(line_of(row, 1), event) == row
        for other in rows.keys() - {event}:
            with pytest.raises(LinkError, match=f"the {other} row cannot be read: {other}"):
                decode_line(line_of(row, 1), other)


EVERY = 600


def first_of(number: int, opened_ns: int = 0) -> int:
    """The moment of the first row."""
    return next(at for at in range(opened_ns, opened_ns + 2 * EVERY) if is_due(opened_ns, number, EVERY, opened_ns, at))


def test_the_first_row_is_between_one_time_and_one_and_a_quarter_after_the_opening_and_evenly_spread() -> None:
    firsts = [first_of((3 << 57) + (5 << 29) + number) for number in range(1000)]
    assert min(firsts) >= EVERY
    assert max(firsts) < EVERY + EVERY // 4
    quarters = [sum(EVERY + EVERY * part // 16 <= first < EVERY + EVERY * (part + 1) // 16 for first in firsts) for part in range(4)]
    assert all(200 < count < 300 for count in quarters), quarters


@pytest.mark.parametrize("turn", [1, 2, 1000])
def test_a_row_is_due_in_the_stretch_of_time_that_holds_its_moment_and_in_no_other(turn: int) -> None:
    moment = first_of(7, 50) + (turn - 1) * EVERY
    assert [is_due(50, 7, EVERY, at - 1, at) for at in (moment - 1, moment, moment + 1)] == [False, True, False]
    assert is_due(50, 7, EVERY, moment - 1, moment + 9 * EVERY), "one, however much time was left out"
    assert not is_due(50, 7, EVERY, moment, moment), "no time"


def test_before_its_first_moment_none_is_due_whatever_is_asked() -> None:
    assert not is_due(10**9, 7, EVERY, 0, 10**9)
    assert not is_due(10**9, 7, EVERY, 0, first_of(7, 10**9) - 1)
    assert is_due(10**9, 7, EVERY, 0, first_of(7, 10**9))
