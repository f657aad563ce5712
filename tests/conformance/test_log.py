"""What everybody who writes rows relies on, of the row log: the one that writes JSON to a descriptor, and the one that keeps rows in a list."""

import json
import os
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import pytest

from framegate.control.events import Bus
from framegate.control.logs import RowLog
from tests.fakes.conformance import Kind
from tests.fakes.fleet import MemoryLog

INTERFACE: Final = RowLog
Row = dict[str, Any]


class Given(NamedTuple):
    """A log; ``rows`` closes it and gives what it has written, ``block`` takes the last of its places for rows that must not be lost."""

    log: RowLog
    rows: Callable[[], list[Row]]
    block: Callable[[], None]


def real() -> Iterator[Given]:
    reader, writer = os.pipe()
    log = RowLog(writer, places=2)

    def rows() -> list[Row]:
        log.close()
        return [json.loads(line) for line in os.read(reader, 1 << 20).splitlines()]

    def block() -> None:
        while log.reserve():
            pass

    yield Given(log, rows, block)
    log.close()
    os.close(reader)
    os.close(writer)


def fake() -> Iterator[Given]:
    log = MemoryLog()

    def rows() -> list[Row]:
        log.close()
        return log.rows

    def block() -> None:
        log.room = False

    yield Given(log, rows, block)


KINDS: Final = {"real": Kind(RowLog, real), "memory": Kind(MemoryLog, fake)}


@pytest.fixture(params=KINDS)
def given(request: pytest.FixtureRequest) -> Iterator[Given]:
    yield from KINDS[request.param].make()


def without_time(row: Row) -> Row:
    return {key: value for key, value in row.items() if key != "time"}


def test_rows_have_their_event_level_and_fields_and_keep_their_order(given: Given) -> None:
    given.log.write("one", listener="a", number=1, shares={"0": 5}, none=None)
    given.log.write("two", level="error", parts=["x"])
    given.log.write_encoded("three", '{"id": "0-1-2", "frames": {"request": 3}}')
    assert given.log.reserve()
    given.log.write_reserved("audit", {"who": "root"})
    given.log.write("last")
    assert [without_time(row) for row in given.rows()] == [
        {"event": "one", "level": "info", "listener": "a", "number": 1, "shares": {"0": 5}, "none": None},
        {"event": "two", "level": "error", "parts": ["x"]},
        {"event": "three", "level": "info", "id": "0-1-2", "frames": {"request": 3}},
        {"event": "audit", "level": "info", "who": "root"},
        {"event": "last", "level": "info"},
    ]
    assert given.log.dropped == 0


def test_it_takes_events_off_the_bus_with_the_line_that_is_meant_for_it(given: Given) -> None:
    failures: list[Exception] = []
    bus = Bus((given.log,), on_failure=failures.append)
    bus.publish({"event": "closed", "id": 5}, line='{"id": "0-1-5"}')
    bus.publish({"event": "closed", "id": 6}, line={"id": "0-1-6"})
    bus.publish({"event": "processor_died", "level": "error", "slot": 1}, level="error")
    assert given.log.reserve()
    bus.publish({"event": "audit", "who": "root"}, reserved=True)
    given.log.write("last")
    assert [without_time(row) for row in given.rows()] == [
        {"event": "closed", "level": "info", "id": "0-1-5"},
        {"event": "closed", "level": "info", "id": "0-1-6"},
        {"event": "processor_died", "level": "error", "slot": 1},
        {"event": "audit", "level": "info", "who": "root"},
        {"event": "last", "level": "info"},
    ]
    assert failures == []


def test_rows_below_the_level_and_silenced_ones_are_not_written_and_not_dropped(given: Given) -> None:
    log = given.log
    bus = Bus((log,), on_failure=lambda error: None)
    log.levels.level, log.levels.silenced = "warning", frozenset({"endpoint_down"})
    for level in ("debug", "info", "warning", "error"):
        log.write("stopped", level=level)
        log.write("endpoint_down", level=level)
        log.write_encoded("closed", f'{{"at": "{level}"}}', level=level)
        log.write_lines("access", [f'{{"at": "{level}"}}'] * 2, level=level)
        bus.publish({"event": "processor_died", "level": level}, level=level)
        bus.publish_lines("opened", [f'{{"at": "{level}"}}'], lambda number, text: {}, level=level)
    assert log.reserve()
    bus.publish({"event": "audit", "who": "root"}, reserved=True)
    expected = [(event, level) for level in ("warning", "error") for event in ("stopped", "closed", "access", "access", "processor_died", "opened")]
    rows = given.rows()
    assert [(row["event"], row["level"]) for row in rows] == [*expected, ("audit", "info")]
    assert log.dropped == 0
    assert not any("rows_dropped" in row for row in rows)


def test_a_place_that_is_not_free_is_refused_and_other_rows_are_written(given: Given) -> None:
    given.block()
    assert not given.log.reserve()
    given.log.write("other")
    assert [row["event"] for row in given.rows()] == ["other"]


def test_what_cannot_be_said_in_json_costs_nobody_who_writes_it(given: Given) -> None:
    given.log.write("odd", value=object())
    given.log.write("odder", value={(1, 2): 3})
    given.log.write("good")
    rows = given.rows()
    assert (len(rows), rows[-1]["event"]) == (3, "good")
