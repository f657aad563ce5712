"""framegate.control.events.backlog: what does not fit goes, the oldest first, and is said."""

from framegate.control.events import Event, Gap
from framegate.control.events.backlog import Backlog
from tests.fakes.cases import each_of


def event(number: int) -> Event:
    return Event(number, 0, "closed", "info", {"event": "closed"})


def taken(backlog: Backlog) -> list[int | Gap]:
    """Everything, in order: numbers of events, and gaps."""
    found: list[int | Gap] = []
    while (item := backlog.pop()) is not None:
        found.append(item.sequence if isinstance(item, Event) else item)
    return found


@each_of(
    ("count", "expected"),
    [(0, []), (1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (4, [Gap(1, 1, 1), 2, 3, 4]), (9, [Gap(1, 6, 6), 7, 8, 9])],
)
def test_it_holds_as_many_as_it_may_and_says_which_went(count: int, expected: list[int | Gap]) -> None:
    backlog = Backlog(max_events=3)
    for number in range(1, count + 1):
        backlog.append(event(number), 1)
    assert taken(backlog) == expected
    assert (len(backlog), backlog.gap) == (0, None)


@each_of(("size", "expected"), [(9, [1, 2]), (10, [1, 2]), (11, [Gap(1, 1, 1), 2]), (21, [Gap(1, 1, 1), 2])])
def test_it_holds_as_many_bytes_as_it_may_and_always_the_newest(size: int, expected: list[int | Gap]) -> None:
    backlog = Backlog(max_bytes=20)
    backlog.append(event(1), 10)
    backlog.append(event(2), size)
    assert taken(backlog) == expected
    backlog.append(event(3), 20)
    assert taken(backlog) == [3], "what was taken has given its bytes back"


def test_a_gap_counts_what_was_wanted_and_names_the_numbers_around_it() -> None:
    backlog = Backlog(max_events=1)
    for number in (2, 5, 9):
        backlog.append(event(number), 1)
    assert taken(backlog) == [Gap(2, 5, 2), 9]
    for number in (11, 12):
        backlog.append(event(number), 1)
    assert taken(backlog) == [Gap(11, 11, 1), 12], "a gap that was said is not said again"


def test_what_is_cleared_is_gone_with_its_gap_and_its_bytes() -> None:
    backlog = Backlog(max_events=2, max_bytes=10)
    for number in (1, 2, 3):
        backlog.append(event(number), 5)
    backlog.clear()
    assert (taken(backlog), backlog.gap) == ([], None)
    backlog.append(event(4), 5)
    backlog.append(event(5), 5)
    assert taken(backlog) == [4, 5]
