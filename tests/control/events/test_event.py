"""Rows are read once, by the first subscriber that asks; events that happened together are offered one after the other by default."""

import pytest

from framegate.control.events import Event, Row
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


def test_events_that_happened_together_are_offered_in_their_order_each_with_its_line() -> None:
    listed = Listed()
    events = [Event(number, 0, "closed", "info", dict) for number in (1, 2, 3)]
    listed.offer_lines(events, ["{}", '{"a": 1}', "{ }"])
    assert listed.offered == [(1, "{}", 2), (2, '{"a": 1}', 8), (3, "{ }", 3)]
    with pytest.raises(ValueError, match="shorter"):
        listed.offer_lines(events, ["{}"])
