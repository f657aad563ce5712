"""framegate.control.events.event: a row is read once, by the first who asks, and the same for all."""

import pytest

from framegate.control.events import Event, Row


def test_a_row_that_is_there_is_given_as_it_is() -> None:
    row = {"event": "closed", "id": 7}
    event = Event(3, 5, "closed", "info", row)
    assert event.row is row
    assert (event.sequence, event.time_ns, event.name, event.level, event.reserved, event.subject) == (3, 5, "closed", "info", False, 0)


def test_a_row_that_is_to_be_read_is_read_once() -> None:
    read: list[Row] = []

    def reader() -> Row:
        read.append({"event": "closed", "id": 7})
        return read[-1]

    event = Event(1, 0, "closed", "info", reader, subject=7)
    assert read == []
    assert event.row is event.row is read[0]
    assert (len(read), event.subject) == (1, 7)


def test_a_row_that_cannot_be_read_raises_each_time() -> None:
    failures = [ValueError("first"), ValueError("second")]

    def fail() -> Row:
        raise failures.pop(0)

    event = Event(1, 0, "closed", "info", fail)
    for text in ("first", "second"):
        with pytest.raises(ValueError, match=text):
            assert event.row
