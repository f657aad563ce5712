"""framegate.control.steering.rows: audit rows, the levels of the log, and rows of connections that stay open, over fake processors."""

import asyncio
import dataclasses
import time
from typing import Any
from unittest.mock import patch

import pytest

from framegate.control.errors import UnavailableError
from framegate.control.steering import rows as module
from framegate.control.steering.rows import AccessRows
from framegate.proxy.config.log import AccessConfig, LogConfig
from tests.fakes.fleet import Fleet, MemoryLog, fleet_config, open_channels, run, until
from tests.fakes.scenario import run_by

EVERY_MS = 10_000
SECOND = 10**9


@run_by(run)
async def test_an_audit_row_is_written_or_the_change_is_refused(made: Fleet) -> None:
    made.steering.audit.reserve()
    made.steering.audit.publish({"who": "root"})
    assert made.log.events("audit")[0]["who"] == "root"
    made.log.room = False
    with pytest.raises(UnavailableError, match="cannot be audited"):
        made.steering.audit.reserve()


class Clock:
    """Moved by hand; it begins now, as connections do."""

    def __init__(self) -> None:
        self.ns = time.monotonic_ns()

    def __call__(self) -> int:
        return self.ns


def rows_of(made: Fleet) -> list[str]:
    return [str(row["id"]) for row in made.log.events("access")]


@patch.object(module, "PAGE", 2)
@run_by(run)
async def test_each_connection_has_a_row_each_time_and_none_before(made: Fleet) -> None:
    clock = Clock()
    rows = AccessRows(made.supervisor, EVERY_MS, made.log, clock)
    await open_channels(made, 7)
    began_ns = time.monotonic_ns()
    clock.ns = began_ns + 9 * SECOND
    await rows.look()
    assert rows_of(made) == [], "none is ten seconds old"
    for turn in (1, 2, 3):
        for part in (0, 1, 2):  # of the quarter over which they are spread
            clock.ns = began_ns + turn * 10 * SECOND + part * 13 * SECOND // 10
            await rows.look()
            assert len(rows_of(made)) >= 7 * (turn - 1)
        found = rows_of(made)
        assert len(found) == 7 * turn
        assert len(set(found[-7:])) == 7, "each once"
    row = made.log.events("access")[0]
    assert (row["level"], row["state"], row["listener"]) == ("info", "open", "a")
    assert [event["event"] for event in made.events if event["event"] == "access"] == ["access"] * 21


def test_there_is_a_pause_between_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop has its turns in between, and the log no burst."""
    monkeypatch.setattr(module, "PAGE", 2)
    rests: list[float] = []
    sleep = asyncio.sleep

    async def resting(delay: float) -> None:
        if delay == module.REST_S:
            rests.append(delay)
        await sleep(0 if delay == module.REST_S else delay)

    async def scenario(made: Fleet) -> None:
        clock = Clock()
        rows = AccessRows(made.supervisor, EVERY_MS, made.log, clock)
        await open_channels(made, 7)
        clock.ns = time.monotonic_ns() + 13 * SECOND
        monkeypatch.setattr(module.asyncio, "sleep", resting)
        await rows.look()
        monkeypatch.setattr(module.asyncio, "sleep", sleep)
        assert len(rows_of(made)) == 7
        assert len(rests) == 3, "2, 2, 2 and 1"

    run(scenario, 1)


@run_by(run, 1)
async def test_rows_that_the_log_does_not_write_are_skipped_for_good(made: Fleet) -> None:
    clock = Clock()
    rows = AccessRows(made.supervisor, EVERY_MS, made.log, clock)
    await open_channels(made, 3)
    began_ns = time.monotonic_ns()
    made.log.levels.change(None, {"access": False})
    clock.ns = began_ns + 13 * SECOND
    await rows.look()
    made.log.levels.change("warning", {"access": True})
    clock.ns = began_ns + 23 * SECOND
    await rows.look()
    made.log.levels.change("info", {})
    clock.ns = began_ns + 25 * SECOND
    await rows.look()
    assert [event for event in made.events if event["event"] == "access"] == []
    clock.ns = began_ns + 33 * SECOND
    await rows.look()
    assert len(rows_of(made)) == 3


@patch.object(module, "PAGE", 2)
@run_by(run, 1)
async def test_while_stdout_is_not_read_rows_wait_and_then_continue(made: Fleet, *, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    rows = AccessRows(made.supervisor, EVERY_MS, made.log, clock)
    await open_channels(made, 5)
    began_ns = time.monotonic_ns()
    clock.ns = began_ns + 13 * SECOND
    monkeypatch.setattr(MemoryLog, "is_behind", property(lambda log: len(log.events("access")) >= 2))
    await rows.look()
    assert len(rows_of(made)) == 2
    clock.ns = began_ns + 15 * SECOND
    await rows.look()
    assert len(rows_of(made)) == 2
    monkeypatch.setattr(MemoryLog, "is_behind", False)
    clock.ns = began_ns + 17 * SECOND
    await rows.look()
    assert len(rows_of(made)) == len(set(rows_of(made))) == 5


@pytest.mark.parametrize("reason", ["PROCESSOR_SILENT", "PROCESSOR_FAILED"])
@run_by(run, 2)
async def test_a_processor_that_does_not_answer_is_asked_again_and_holds_up_no_other(made: Fleet, *, reason: str) -> None:
    clock = Clock()
    rows = AccessRows(made.supervisor, EVERY_MS, made.log, clock)
    await open_channels(made, 6)
    began_ns = time.monotonic_ns()
    first = made.supervisor.running[0]

    async def silent(request: Any, timeout_ms: int) -> Any:
        raise UnavailableError("says nothing", reason=reason)

    request = first.request
    first.request = silent  # type: ignore[method-assign]
    clock.ns = began_ns + 13 * SECOND
    await rows.look()
    found = rows_of(made)
    assert 0 < len(found) < 6
    assert {number.partition("-")[0] for number in found} == {"1"}
    first.request = request  # type: ignore[method-assign]
    clock.ns = began_ns + 14 * SECOND
    await rows.look()
    assert len(rows_of(made)) == len(set(rows_of(made))) == 6
    assert made.log.events("task_failed") == []


@run_by(run, 1)
async def test_after_the_end_of_a_processor_its_connections_have_no_access_rows(made: Fleet) -> None:
    clock = Clock()
    rows = AccessRows(made.supervisor, EVERY_MS, made.log, clock)
    ids = await open_channels(made, 4)
    clock.ns = time.monotonic_ns() + 13 * SECOND
    made.supervisor.running[0].kill("died")
    looking = asyncio.ensure_future(rows.look())
    await until(lambda: len(made.log.events("closed")) == len(ids))
    await looking
    clock.ns += SECOND
    await until(lambda: made.supervisor.running)
    await rows.look()
    told = [(row["event"], row["id"]) for row in made.log.rows if row["event"] in ("access", "closed")]
    for number in {number for _, number in told}:
        events = [event for event, other in told if other == number]
        assert events in (["closed"], ["access", "closed"])


def test_it_ends_in_the_middle_of_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("framegate.control.steering.steering.interval_s", lambda every_ms: 0.0)
    ended: list[str] = []

    async def scenario(made: Fleet) -> None:
        asked = asyncio.Event()

        async def waiting(request: Any, timeout_ms: int) -> Any:
            asked.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise

        made.supervisor.running[0].request = waiting  # type: ignore[method-assign]
        await asked.wait()
        made.steering.close()
        await asyncio.wait(made.steering._tasks)
        assert ended == ["cancelled"]
        assert made.log.events("task_failed") == []

    run(scenario, 1)


def test_without_an_interval_there_are_no_access_rows() -> None:
    async def scenario() -> None:
        for every_ms, asks in ((0, False), (10_000, True)):
            config = dataclasses.replace(fleet_config(1), log=LogConfig(access=AccessConfig(every_ms=every_ms)))
            made = Fleet(config)
            assert ("access" in [job.name for job in made.task_monitor._jobs]) is asks
            await made.close()

    asyncio.run(scenario())
