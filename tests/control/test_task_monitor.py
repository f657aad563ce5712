import asyncio

import pytest

from framegate.control import task_monitor as module
from framegate.control.meters import Meters
from framegate.control.task_monitor import TaskMonitor
from tests.fakes.fleet import MemoryLog


def test_a_step_that_fails_is_logged_counted_and_followed_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PAUSE_S", 0.0)
    log, meters = MemoryLog(), Meters()
    steps = 0

    async def main() -> None:
        nonlocal steps
        done = asyncio.Event()

        async def step() -> None:
            nonlocal steps
            steps += 1
            if steps == 2:
                raise ValueError("no")
            if steps == 4:
                done.set()
            await asyncio.sleep(0)

        task = asyncio.create_task(TaskMonitor(log, meters).job("heartbeats", 5).keep_going(step))
        await asyncio.wait_for(done.wait(), 5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    (row,) = log.events("task_failed")
    assert (row["task"], row["error"], row["level"]) == ("heartbeats", "ValueError('no')", "error")
    assert "in step" in row["trace"]
    assert meters.value("task.failures", "heartbeats") == 1


def test_what_does_not_move_or_only_fails_stands_until_it_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0
    monkeypatch.setattr(module.time, "monotonic_ns", lambda: now)
    task_monitor = TaskMonitor(MemoryLog(), Meters())
    one, other = task_monitor.job("acceptor", 5), task_monitor.job("shares", 60)
    now = 5_000_000_000
    assert task_monitor.stalled == []
    now += 1
    one.failed(ValueError())
    assert task_monitor.stalled == ["acceptor"]
    one.heartbeat()
    assert task_monitor.stalled == []
    now += 60_000_000_000
    assert task_monitor.stalled == ["acceptor", "shares"]
    one.end()
    assert task_monitor.stalled == ["shares"]
    other.end()
    assert task_monitor.stalled == []


def test_an_error_of_an_encoding_is_told_without_what_was_to_be_encoded() -> None:
    log, meters = MemoryLog(), Meters()
    for wrong in (lambda: b"canary-7f3a9c\xff".decode(), lambda: "canary-7f3a9c\ud800".encode()):
        with pytest.raises(UnicodeError) as caught:
            wrong()
        TaskMonitor(log, meters).failed("callback", caught.value)
    assert [row["error"].partition(":")[0] for row in log.rows] == ["UnicodeDecodeError", "UnicodeEncodeError"]
    assert "canary" not in repr([row["error"] for row in log.rows]) + "".join(row["trace"].splitlines()[-1] for row in log.rows)
