"""Watches the background tasks and threads of the control process. An exception ends one step of a task, not the task.

A task reports progress (``heartbeat``) and exceptions (``failed``), which become a row with the traceback and count in ``framegate.task.failures``. A
task without a heartbeat for longer than its limit is *stalled*, and then the liveness probe fails. Exceptions that no code catches, in a thread, a
callback, a task or a finalizer, are reported the same way (``catch_in_loop``, ``catch_in_process``), and the process goes on.
"""

import asyncio
import contextlib
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

from framegate.control.logs import RowLog
from framegate.control.meters import Meters

TICK_S: Final = 0.5
LEAST_LAG_S: Final = 1.0
LONG_LAG_S: Final = 3.0
_PAUSE_S: Final = 1.0  # after a step that failed, so that a task that always fails does not fill the log or use up a CPU


class MonitoredTask:
    """One task, made by ``TaskMonitor.job``. Any thread."""

    def __init__(self, name: str, limit_s: float, report: Callable[[str, BaseException], None]) -> None:
        self.name: Final = name
        self._limit_ns = int(limit_s * 1e9)
        self._report = report
        self._ended = False
        self._heartbeat_ns = time.monotonic_ns()

    def heartbeat(self) -> None:
        self._heartbeat_ns = time.monotonic_ns()

    def failed(self, error: BaseException) -> None:
        """Log and count an exception. It is no heartbeat: a task that only fails is stalled."""
        self._report(self.name, error)

    def end(self) -> None:
        """The task has ended as intended; no heartbeat is expected any more."""
        self._ended = True

    @property
    def stalled(self) -> bool:
        """Whether its last heartbeat is older than its limit."""
        return not self._ended and time.monotonic_ns() - self._heartbeat_ns > self._limit_ns

    async def keep_going(self, step: Callable[[], Awaitable[None]]) -> None:
        """Repeat ``step`` until the task is cancelled; an exception ends that step only. The step contains a pause, shorter than the task's limit."""
        try:
            while True:
                try:
                    await step()
                except Exception as error:
                    self.failed(error)
                    await asyncio.sleep(_PAUSE_S)
                else:
                    self.heartbeat()
        finally:
            self.end()


class TaskMonitor:
    """All tasks of one control process."""

    def __init__(self, log: RowLog, meters: Meters) -> None:
        self._log = log
        self._meters = meters
        self._jobs: list[MonitoredTask] = []

    def job(self, name: str, limit_s: float) -> MonitoredTask:
        """A new task; its limit counts from now on. ``name``: one of ``framegate.proxy.cells.TASKS``. ``limit_s``: the task is stalled after this
        time without a heartbeat.
        """
        job = MonitoredTask(name, limit_s, self.failed)
        self._jobs.append(job)
        return job

    def repeat(self, name: str, step: Callable[[], Awaitable[None] | None], interval_s: float, limit_s: float) -> asyncio.Task[None]:
        """Start a task that calls ``step`` every ``interval_s``, until it is cancelled; see ``job``."""

        async def pause_and_step() -> None:
            await asyncio.sleep(interval_s)
            waiting = step()
            if waiting is not None:
                await waiting

        return asyncio.create_task(self.job(name, limit_s).keep_going(pause_and_step))

    def failed(self, name: str, error: BaseException, **fields: str) -> None:
        """Log and count an exception outside of tasks; ``name`` is one of ``framegate.proxy.cells.TASKS``. Any thread."""
        trace = "".join(traceback.format_exception(error))
        self._log.write("task_failed", level="error", task=name, **fields, error=_described(error), trace=trace)
        self._meters.add("task.failures", name)

    @property
    def stalled(self) -> list[str]:
        """Names of stalled tasks. Any thread."""
        return [job.name for job in tuple(self._jobs) if job.stalled]


class LoopLag:
    """Finds delays of the event loop, also those in which the whole process was stopped: counts those above ``LEAST_LAG_S``, and writes a row about
    one above ``LONG_LAG_S``.
    """

    def __init__(self, meters: Meters, log: RowLog) -> None:
        self._meters = meters
        self._log = log
        self._due_s = time.monotonic() + TICK_S

    def look(self) -> None:
        """To be called every ``TICK_S``."""
        now_s = time.monotonic()
        lag_s, self._due_s = now_s - self._due_s, now_s + TICK_S
        if lag_s > LEAST_LAG_S:
            self._meters.add("control.lag.time", amount=lag_s)
        if lag_s > LONG_LAG_S:
            self._log.write("control_lagged", level="warning", seconds=round(lag_s, 3))


def _described(error: BaseException) -> str:
    """Its ``repr``, except for UnicodeError, whose ``repr`` holds the whole text, which may be a password."""
    return f"{type(error).__name__}: {error}" if isinstance(error, UnicodeError) else repr(error)


def catch_in_loop(loop: asyncio.AbstractEventLoop, task_monitor: TaskMonitor) -> None:
    """Report exceptions of callbacks (of readers, writers, timers, signals) and of tasks that are not awaited."""

    def caught(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        message = str(context.get("message", ""))
        task_monitor.failed("callback", context.get("exception") or RuntimeError(message), message=message)

    loop.set_exception_handler(caught)


@contextlib.contextmanager
def catch_in_process(task_monitor: TaskMonitor) -> Iterator[None]:
    """Report exceptions that end a thread, or that cannot be raised (in ``__del__`` and callbacks of the interpreter), inside the block."""

    def in_thread(arguments: threading.ExceptHookArgs) -> None:
        if arguments.exc_value is not None and not isinstance(arguments.exc_value, SystemExit):
            task_monitor.failed("thread", arguments.exc_value, message=f"the thread {getattr(arguments.thread, 'name', '')} ended")

    def unraisable(arguments: "sys.UnraisableHookArgs") -> None:
        error = arguments.exc_value or RuntimeError(arguments.exc_type.__name__)
        task_monitor.failed("unraisable", error, message=f"{arguments.err_msg or 'exception ignored in'}: {arguments.object!r}")

    before = threading.excepthook, sys.unraisablehook
    threading.excepthook, sys.unraisablehook = in_thread, unraisable
    try:
        yield
    finally:
        threading.excepthook, sys.unraisablehook = before
