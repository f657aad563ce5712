"""What becomes of a handle that raises."""

from framegate.proxy.handler.activity import Activity
from framegate.proxy.handler.api import Context
from framegate.proxy.handler.failures import EVERY_NS, MOST_TEXT, Failures
from framegate.proxy.relay.handler_wire import MAX_ERROR

CONTEXT = Context(connection="0-1-2", listener="in")


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


def failures():
    activity, times, rows = Activity(), [5], []
    return Failures(activity, lambda: times[0], rows.append), activity, times, rows


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def test_one_row_a_second_says_how_many_have_none():
    told, activity, times, rows = failures()
    bodies = []
    for now in (5, 6, 5 + EVERY_NS - 1, 5 + EVERY_NS, 6 + EVERY_NS, 7 + 2 * EVERY_NS):
        times[0] = now
        bodies.append(told.raised("m:h", CONTEXT, ValueError(str(now))))
    assert bodies == [f"ValueError: {now}".encode() for now in (5, 6, 5 + EVERY_NS - 1, 5 + EVERY_NS, 6 + EVERY_NS, 7 + 2 * EVERY_NS)]
    assert [(row["error"], row["suppressed"]) for row in rows] == [
        ("ValueError: 5", 0),
        (f"ValueError: {5 + EVERY_NS}", 2),
        (f"ValueError: {7 + 2 * EVERY_NS}", 1),
    ]
    assert activity.failed == 6
    assert (rows[0]["listener"], rows[0]["handler"], rows[0]["connection"]) == ("in", "m:h", "0-1-2")


def test_texts_are_bounded_and_always_there():
    told, _, times, rows = failures()
    assert told.raised("m:h", CONTEXT, ValueError("x" * 100_000)) == b"ValueError: " + b"x" * (MAX_ERROR - 12)
    assert len(rows[0]["error"]) == len(rows[0]["traceback"]) == MOST_TEXT
    times[0] += EVERY_NS
    assert told.raised("m:h", CONTEXT, UnprintableError()).endswith(b"UnprintableError: <exception str() failed>")
    times[0] += EVERY_NS
    assert told.raised("m:h", CONTEXT, raised(KeyError("a"))) == b"KeyError: 'a'"
    assert "raise error" not in rows[2]["traceback"]  # the first step is the caller's
