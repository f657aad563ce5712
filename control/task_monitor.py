"""Watches the background tasks and threads of the control process. An exception ends one step of a task, not the task.

A task reports progress (``heartbeat``) and exceptions (``failed``), which become a row with the traceback and count in ``framegate.task.failures``. A
task without a heartbeat for longer than its limit is *stalled*, and then the liveness probe fails.
"""

import asyncio
import time
import traceback
from collections.abc import Awaitable, Callable
from typing import Final

from framegate.control.logs import RowLog
from framegate.control.meters import Meters

__all__ = ["MonitoredTask", "TaskMonitor"]

_PAUSE_S: Final = 1.0
"""After a step that failed: what fails each time fills neither the log nor the processor."""


class MonitoredTask:
    """One task, made by ``TaskMonitor.job``. Any thread."""

    def __init__(self, name: str, limit_s: float, log: RowLog, meters: Meters) -> None:
        self.name: Final = name
        self._limit_ns = int(limit_s * 1e9)
        self._log = log
        self._meters = meters
        self._ended = False
        self._heartbeat_ns = time.monotonic_ns()

    def heartbeat(self) -> None:
        """Report progress."""
        self._heartbeat_ns = time.monotonic_ns()

    def failed(self, error: BaseException) -> None:
        """Log and count an exception. It is no heartbeat: a task that only fails is stalled."""
        _report(self._log, self._meters, self.name, error)

    def end(self) -> None:
        """The task has ended as intended; no heartbeat is expected any more."""
        self._ended = True

    @property
    def stalled(self) -> bool:
        """Whether its last heartbeat is older than its limit."""
        return not self._ended and time.monotonic_ns() - self._heartbeat_ns > self._limit_ns

    async def keep_going(self, step: Callable[[], Awaitable[None]]) -> None:
        """Do ``step`` again and again until the task is cancelled; an exception costs that step. The step brings its own pause, which is shorter
        than the job's limit.
        """
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
        """A new task; its limit counts from now on.

        Args:
            name: one of ``framegate.proxy.cells.TASKS``.
            limit_s: it is stalled after so long without a heartbeat.
        """
        job = MonitoredTask(name, limit_s, self._log, self._meters)
        self._jobs.append(job)
        return job

    def failed(self, name: str, error: BaseException, **fields: str) -> None:
        """Log and count an exception outside of tasks; ``name`` is one of ``framegate.proxy.cells.TASKS``. Any thread."""
        _report(self._log, self._meters, name, error, **fields)

    @property
    def stalled(self) -> list[str]:
        """Names of stalled tasks. Any thread."""
        return [job.name for job in tuple(self._jobs) if job.stalled]


def _described(error: BaseException) -> str:
    """As ``repr``, but for one of an encoding, which has there all that was to be encoded: that may be a password."""
    return f"{type(error).__name__}: {error}" if isinstance(error, UnicodeError) else repr(error)


def _report(log: RowLog, meters: Meters, name: str, error: BaseException, **fields: str) -> None:
    trace = "".join(traceback.format_exception(error))
    log.write("task_failed", level="error", task=name, **fields, error=_described(error), trace=trace)
    meters.add("task.failures", name)
