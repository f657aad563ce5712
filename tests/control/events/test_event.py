"""Rows are read once, by the first subscriber that asks; events that happened together are offered one after the other by default."""

import pytest

from framegate.control.events import Event, EventLines, Row
from tests.control.events.test_bus import Listed


def test_a_row_that_is_to_be_read_is_read_once_and_a_failure_is_tried_again() -> None:
    read: list[Row] = []
    failures = [ValueError("first"), ValueError("second")]

    def reader() -> Row:
        if failures:
            raise failures.pop(0)
        read.append({"event": "closed", "id": 7})
        return read[-1]

    event = Event(1, 0, "closed", "info", reader, subject=7)
    assert len(failures) == 2
    for text in ("first", "second"):
        with pytest.raises(ValueError, match=text):
            assert event.row
    assert event.row is event.row is read[0]
    assert (len(read), event.subject) == (1, 7)


def test_events_that_were_published_together_are_made_when_they_are_asked_for_and_once() -> None:
    read: list[tuple[int, str]] = []

    def reader(subject: int, text: str) -> Row:
        read.append((subject, text))
        return {"event": "closed", "id": subject}

    events = EventLines(5, 8, "closed", "warning", ["{}", '{"a": 1}', "{ }"], [70, 71, 72], reader)
    assert [(item.sequence, item.time_ns, item.name, item.level, item.subject) for item in events[1:]] == [
        (6, 8, "closed", "warning", 71), (7, 8, "closed", "warning", 72)
    ]  # fmt: skip
    assert (len(events), read) == (3, [])
    assert events[1].row is events[1].row == {"event": "closed", "id": 71}
    assert read == [(71, '{"a": 1}')]
    assert events[-1] is events[2]
    with pytest.raises(IndexError):
        events[3]


def test_events_that_happened_together_are_offered_in_their_order_each_with_its_line() -> None:
    listed = Listed()
    events = [Event(number, 0, "closed", "info", dict) for number in (1, 2, 3)]
    listed.offer_lines(events, ["{}", '{"a": 1}', "{ }"])
    assert listed.offered == [(1, "{}", 2), (2, '{"a": 1}', 8), (3, "{ }", 3)]
    with pytest.raises(ValueError, match="shorter"):
        listed.offer_lines(events, ["{}"])
