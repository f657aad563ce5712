"""framegate.control.steering.rows: audit rows, the levels of the log, and rows of connections that stay open, over fake processors."""

import asyncio
import dataclasses
import time
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import pytest

from framegate.control.errors import UnavailableError
from framegate.control.events import Bus
from framegate.control.logs import AuditFile
from framegate.control.steering import rows as module
from framegate.control.steering.rows import AccessRows, Audit, Place
from framegate.proxy.config.log import AccessConfig, LogConfig, OnAuditFailure
from tests.fakes.fleet import Fleet, MemoryLog, fleet_config, open_channels, run, until
from tests.fakes.scenario import run_by

EVERY_MS = 10_000
SECOND = 10**9
REFUSED = "the change was refused, because its audit row cannot be written: "


@run_by(run)
async def test_an_audit_row_is_written_or_the_change_is_refused(made: Fleet) -> None:
    audit = made.steering.audit
    audit.publish({"event": "audit", "who": "root"}, await audit.reserve())
    assert made.log.events("audit")[0]["who"] == "root"
    made.log.room = False
    with pytest.raises(UnavailableError, match="audit row cannot be written"):
        await audit.reserve()
    place = await audit.reserve(urgent=True)
    assert (place.kept, str(place.blocked)) == (False, f"{REFUSED}standard output of framegate serve is blocked")
    audit.publish({"event": "audit", "who": "ada"}, place)
    assert [row["who"] for row in made.log.events("audit")] == ["root", "ada"]
    assert made.meters.value("audit.failures") == 1
    counting = Audit(cast(Any, made.log), Bus(on_failure=made.failures.append), "count", None, made.meters)
    assert await counting.reserve() == Place(kept=False)


@run_by(run)
async def test_status_can_say_that_the_audit_file_is_blocked_and_what_becomes_of_changes(made: Fleet, *, tmp_path: Path) -> None:
    path = tmp_path / "missing/audit.log"
    for on_failure, said in (("refuse", "changes are refused"), ("count", "changes are made, and counted in the metric audit.failures")):
        file = AuditFile(str(path), lambda error: None, lambda: None)
        audit = Audit(cast(Any, made.log), Bus(on_failure=made.failures.append), cast(OnAuditFailure, on_failure), file, made.meters)
        assert audit.warning == ""
        assert await file.reserve() is not None
        assert audit.warning == f"the audit file {path} cannot be written: No such file or directory; {said}"
        path.parent.mkdir()
        assert await file.reserve() is None
        assert audit.warning == ""
        await audit.close()
        path.unlink()
        path.parent.rmdir()


class Looks:
    """The access rows of a fleet, by a clock that is moved by hand."""

    def __init__(self, made: Fleet) -> None:
        self.made = made
        self.now_ns = self.began_ns = time.monotonic_ns()
        self.rows = AccessRows(made.supervisor, EVERY_MS, made.log, lambda: self.now_ns)

    async def open(self, count: int) -> None:
        await open_channels(self.made, count)
        self.began_ns = time.monotonic_ns()

    async def after(self, seconds: float) -> list[str]:
        """Look so long after the channels were opened; the ids of all rows that were written until then."""
        self.now_ns = self.began_ns + int(seconds * SECOND)
        await self.rows.look()
        return [str(row["id"]) for row in self.made.log.events("access")]


@patch.object(module, "PAGE", 2)
@run_by(run)
async def test_each_connection_has_a_row_each_time_and_none_before(made: Fleet) -> None:
    looks = Looks(made)
    await looks.open(7)
    assert await looks.after(9) == [], "none is ten seconds old"
    for turn in (1, 2, 3):
        for part in (0, 1, 2):  # of the quarter over which they are spread
            found = await looks.after(turn * 10 + part * 1.3)
            assert len(found) >= 7 * (turn - 1)
        assert len(found) == 7 * turn
        assert len(set(found[-7:])) == 7, "each once"
    row = made.log.events("access")[0]
    assert (row["level"], row["state"], row["listener"]) == ("info", "open", "a")
    assert [event["event"] for event in made.events if event["event"] == "access"] == ["access"] * 21


@patch.object(module, "PAGE", 2)
@run_by(run, 1)
async def test_there_is_a_pause_between_pages(made: Fleet, *, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop has its turns in between, and the log no burst."""
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def pausing(delay: float) -> None:
        if delay == module.REST_S:
            pauses.append(delay)
        await sleep(0 if delay == module.REST_S else delay)

    looks = Looks(made)
    await looks.open(7)
    monkeypatch.setattr(module.asyncio, "sleep", pausing)
    assert len(await looks.after(13)) == 7
    monkeypatch.setattr(module.asyncio, "sleep", sleep)
    assert len(pauses) == 3, "2, 2, 2 and 1"


@run_by(run, 1)
async def test_rows_that_the_log_does_not_write_are_skipped_for_good(made: Fleet) -> None:
    looks = Looks(made)
    await looks.open(3)
    for at_s, changes in ((13, {"silenced": ("access",)}), (23, {"level": "warning", "silenced": ()}), (25, {"level": "info"})):
        await made.steering.log.change(changes)
        await looks.after(at_s)
    assert [event for event in made.events if event["event"] == "access"] == []
    assert len(await looks.after(33)) == 3


@patch.object(module, "PAGE", 2)
@run_by(run, 1)
async def test_while_stdout_is_not_read_rows_wait_and_then_continue(made: Fleet, *, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks(made)
    await looks.open(5)
    monkeypatch.setattr(MemoryLog, "is_behind", property(lambda log: len(log.events("access")) >= 2))
    assert len(await looks.after(13)) == 2
    assert len(await looks.after(15)) == 2
    monkeypatch.setattr(MemoryLog, "is_behind", False)
    found = await looks.after(17)
    assert len(found) == len(set(found)) == 5


@pytest.mark.parametrize("reason", ["PROCESSOR_SILENT", "PROCESSOR_FAILED"])
@run_by(run, 2)
async def test_a_processor_that_does_not_answer_is_asked_again_and_holds_up_no_other(
    made: Fleet, *, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(request: Any, timeout_ms: int) -> Any:
        raise UnavailableError("says nothing", reason=reason)

    looks = Looks(made)
    await looks.open(6)
    monkeypatch.setattr(made.supervisor.running[0], "request", silent)
    found = await looks.after(13)
    assert 0 < len(found) < 6
    assert {number.partition("-")[0] for number in found} == {"1"}
    monkeypatch.undo()
    found = await looks.after(14)
    assert len(found) == len(set(found)) == 6
    assert made.log.events("task_failed") == []


@run_by(run, 1)
async def test_after_the_end_of_a_processor_its_connections_have_no_access_rows(made: Fleet) -> None:
    looks = Looks(made)
    await looks.open(4)
    made.supervisor.running[0].kill("died")
    looking = asyncio.ensure_future(looks.after(13))
    await until(lambda: len(made.log.events("closed")) == 4)
    await looking
    await until(lambda: made.supervisor.running)
    await looks.after(14)
    told = [(row["event"], row["id"]) for row in made.log.rows if row["event"] in ("access", "closed")]
    for number in {number for _, number in told}:
        events = [event for event, other in told if other == number]
        assert events in (["closed"], ["access", "closed"])


def test_steering_that_closes_ends_a_request_for_access_rows(monkeypatch: pytest.MonkeyPatch) -> None:
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
