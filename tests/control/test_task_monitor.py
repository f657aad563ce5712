import asyncio
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from framegate.control import task_monitor as module
from framegate.control.meters import Meters
from framegate.control.task_monitor import TICK_S, LoopLag, TaskMonitor, catch_in_loop, catch_in_process
from tests.fakes.cases import each_of
from tests.fakes.fleet import MemoryLog, until


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


def test_a_task_without_progress_is_stalled_until_it_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_an_encoding_error_is_reported_without_its_text() -> None:
    log, meters = MemoryLog(), Meters()
    for wrong in (lambda: b"canary-7f3a9c\xff".decode(), lambda: "canary-7f3a9c\ud800".encode()):
        with pytest.raises(UnicodeError) as caught:
            wrong()
        TaskMonitor(log, meters).failed("callback", caught.value)
    assert [row["error"].partition(":")[0] for row in log.rows] == ["UnicodeDecodeError", "UnicodeEncodeError"]
    assert "canary" not in repr([row["error"] for row in log.rows]) + "".join(row["trace"].splitlines()[-1] for row in log.rows)


# Exceptions that no code catches.


def made() -> tuple[TaskMonitor, MemoryLog, Meters]:
    log, meters = MemoryLog(), Meters()
    return TaskMonitor(log, meters), log, meters


def fail(*_: object) -> None:
    raise ValueError("our bug")


def soon(loop: asyncio.AbstractEventLoop) -> None:
    loop.call_soon(fail)


def timer(loop: asyncio.AbstractEventLoop) -> None:
    loop.call_later(0.001, fail)


def reader(loop: asyncio.AbstractEventLoop) -> None:
    ours, theirs = os.pipe()

    def readable() -> None:
        loop.remove_reader(ours)
        os.close(ours)
        fail()

    loop.add_reader(ours, readable)
    os.write(theirs, b"x")
    os.close(theirs)


def signalled(loop: asyncio.AbstractEventLoop) -> None:
    def on_signal() -> None:
        loop.remove_signal_handler(signal.SIGUSR1)
        fail()

    loop.add_signal_handler(signal.SIGUSR1, on_signal)
    os.kill(os.getpid(), signal.SIGUSR1)


def forgotten(loop: asyncio.AbstractEventLoop) -> None:
    async def work() -> None:
        fail()

    def collect(_: object) -> None:
        nonlocal task
        del task
        loop.call_soon(gc.collect)

    task = loop.create_task(work())
    task.add_done_callback(collect)


@each_of("how", [soon, timer, reader, signalled, forgotten])
def test_exceptions_of_callbacks_and_forgotten_tasks_are_logged_and_counted(how: Callable[[asyncio.AbstractEventLoop], None]) -> None:
    task_monitor, log, meters = made()

    async def main() -> None:
        catch_in_loop(asyncio.get_running_loop(), task_monitor)
        how(asyncio.get_running_loop())
        async with asyncio.timeout(5):
            await until(lambda: log.rows)

    asyncio.run(main())
    (row,) = log.events("task_failed")
    assert (row["task"], row["level"], row["error"]) == ("callback", "error", "ValueError('our bug')")
    assert row["message"]
    assert "in fail" in row["trace"]
    assert meters.value("task.failures", "callback") == 1


def test_problems_of_the_loop_without_an_exception_are_logged() -> None:
    task_monitor, log, _ = made()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        catch_in_loop(loop, task_monitor)
        loop.call_exception_handler({"message": "something odd"})

    asyncio.run(main())
    assert [row["error"] for row in log.rows] == ["RuntimeError('something odd')"]


def test_a_thread_that_ends_by_an_exception_is_logged_and_counted_one_that_exits_is_not() -> None:
    task_monitor, log, meters = made()
    before = threading.excepthook
    with catch_in_process(task_monitor):
        for work in (fail, sys.exit):
            thread = threading.Thread(target=work, name="worker")
            thread.start()
            thread.join()
    assert threading.excepthook is before
    (row,) = log.events("task_failed")
    assert (row["task"], row["message"], row["error"]) == ("thread", "the thread worker ended", "ValueError('our bug')")
    assert meters.value("task.failures", "thread") == 1


def test_what_a_finalizer_raises_is_logged_and_counted() -> None:
    class Finalized:
        def __del__(self) -> None:
            fail()

    task_monitor, log, meters = made()
    before = sys.unraisablehook
    with catch_in_process(task_monitor):
        Finalized()
        gc.collect()
    assert sys.unraisablehook is before
    (row,) = log.events("task_failed")
    assert (row["task"], row["error"]) == ("unraisable", "ValueError('our bug')")
    assert "Finalized.__del__" in row["message"]
    assert meters.value("task.failures", "unraisable") == 1


def test_a_loop_that_stood_still_is_counted_above_a_second_and_noted_above_three(monkeypatch: pytest.MonkeyPatch) -> None:
    now, log, meters = [0.0], MemoryLog(), Meters()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    lag, found = LoopLag(meters, log), []
    for late_s in (0.0, 1.0, 1.001, 3.0, 3.001, 20.0, 0.0):
        now[0] += TICK_S + late_s
        lag.look()
        found.append(round(meters.value("control.lag.time"), 3))
    assert found == [0, 0, 1.001, 4.001, 7.002, 27.002, 27.002]
    assert [row["seconds"] for row in log.events("control_lagged")] == [3.001, 20.0]
