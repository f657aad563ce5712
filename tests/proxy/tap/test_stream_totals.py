"""What a stream's windows come to, and those of which retention left nothing; ``test_completeness`` has the rest, on real logs."""

from framegate.proxy.tap.record import WINDOW_NS
from framegate.proxy.tap.stream_totals import STATES, StreamTotals, WindowRow
from tests.fakes.cases import each_of

Found = list[tuple[str | None, str, int, int, str]]


def found(account: StreamTotals) -> Found:
    rows = account.rows("s", live=False)
    return [(row.listener, row.direction, row.window_ns // WINDOW_NS, row.last_window_ns // WINDOW_NS, row.state) for row in rows]


def cut(account: StreamTotals, first: int, last: int, *pairs: tuple[str, str]) -> None:
    account.cut(first * WINDOW_NS + 5, last * WINDOW_NS + 7, pairs)


def test_windows_that_are_gone_are_one_row_for_each_listener_and_direction() -> None:
    account = StreamTotals()
    assert found(account) == []
    cut(account, 3, 9, ("b", "request"), ("a", "response"))
    assert found(account) == [("a", "response", 3, 9, "cut"), ("b", "request", 3, 9, "cut")]
    rows = account.rows("s", live=False)
    assert {(row.stream, row.cut, row.windows, row.seen, row.accounted) for row in rows} == {("s", True, 7, 0, 0)}
    adopted = StreamTotals()
    cut(adopted, 3, 3)
    assert found(adopted) == [(None, "request", 3, 3, "cut"), (None, "response", 3, 3, "cut")], "the listener of an adopted stream is not known"


@each_of(
    ("spans", "rows"),
    [
        ([(3, 5), (4, 9)], [(3, 9)]),
        ([(6, 9), (3, 5)], [(3, 9)]),
        ([(3, 9), (5, 6)], [(3, 9)]),
        ([(3, 4), (6, 7)], [(3, 4), (6, 7)]),
        ([(9, 3)], [(3, 9)]),
    ],
)
def test_spans_that_touch_are_one(spans: list[tuple[int, int]], rows: list[tuple[int, int]]) -> None:
    account = StreamTotals()
    for first, last in spans:
        cut(account, first, last, ("a", "request"))
    assert found(account) == [("a", "request", first, last, "cut") for first, last in rows]


@each_of(
    ("there", "rows"),
    [
        ([3], [(3, 3, "cut"), (4, 9, "cut")]),
        ([9, 10], [(3, 8, "cut"), (9, 9, "cut"), (10, 10, "complete")]),
        ([2, 5, 6], [(2, 2, "complete"), (3, 4, "cut"), (5, 5, "cut"), (6, 6, "cut"), (7, 9, "cut")]),
        (range(3, 10), [(window, window, "cut") for window in range(3, 10)]),
    ],
)
def test_windows_of_which_something_is_there_have_their_own_rows(there: list[int], rows: list[tuple[int, int, str]]) -> None:
    """What is there adds up; what retention took may not have."""
    account = StreamTotals()
    for window in there:
        row = account._at("a", "request", window)
        row.seen = row.stored = 4
    cut(account, 3, 9)
    assert found(account) == [("a", "request", *row) for row in rows]


@each_of(("lost", "at_most", "unknown", "state"), [(1, 0, 0, "lost"), (1, 2, 0, "at_most"), (1, 2, 1, "unknown")])
def test_a_cut_hides_nothing_worse_and_is_said_beside_it(lost: int, at_most: int, unknown: int, state: str) -> None:
    account = StreamTotals()
    row = account._at("a", "request", 3)
    row.seen, row.stored, row.lost, row.at_most, row.unknown = 9, 1, lost, at_most, unknown
    cut(account, 3, 3)
    assert account.rows("s", live=False) == [
        WindowRow("s", "a", "request", 3 * WINDOW_NS, 9, 1, lost=1, at_most=at_most, unknown=unknown, missing=7, state=state, cut=True)
    ]
    assert state in STATES
