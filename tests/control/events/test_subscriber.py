"""framegate.control.events.subscriber: what happened together comes as if it had come one after the other, unless a subscriber does better."""

import pytest

from framegate.control.events import Event, Row, Subscriber


class Listed(Subscriber):
    def __init__(self) -> None:
        self.offered: list[tuple[int, Row | str, int]] = []

    def offer(self, event: Event, line: Row | str, size: int) -> None:
        self.offered.append((event.sequence, line, size))


def test_events_that_happened_together_are_offered_in_their_order() -> None:
    listed = Listed()
    events = [Event(number, 0, "closed", "info", dict) for number in (1, 2, 3)]
    listed.offer_lines(events, ["{}", '{"a": 1}', "{ }"])
    assert listed.offered == [(1, "{}", 2), (2, '{"a": 1}', 8), (3, "{ }", 3)]


def test_each_has_its_line() -> None:
    with pytest.raises(ValueError, match="shorter"):
        Listed().offer_lines([Event(1, 0, "closed", "info", dict), Event(2, 0, "closed", "info", dict)], ["{}"])
