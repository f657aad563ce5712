import asyncio
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable

from framegate.control.meters import Meters
from framegate.control.task_monitor import TaskMonitor
from framegate.control.uncaught import catch_in_loop, catch_in_process
from tests.fakes.cases import each_of
from tests.fakes.fleet import MemoryLog, until


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
def test_what_the_loop_calls_and_nobody_waits_for_is_logged_and_counted(how: Callable[[asyncio.AbstractEventLoop], None]) -> None:
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


def test_what_the_loop_tells_without_an_exception_is_told_too() -> None:
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
