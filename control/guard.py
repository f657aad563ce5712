"""What works in the background of the control process, task or thread, and what becomes of it: an exception there ends one step, never the job.

A job says that it moves (``beat``) and what went wrong (``failed``): a row with the traceback and one more of ``framegate.task.failures``. One
that has not moved for longer than it may is *standing*, and then liveness is gone: a supervisor that no longer looks, or an acceptor that
no longer accepts, is nothing that goes on unseen.
"""

import asyncio
import time
import traceback
from collections.abc import Awaitable, Callable
from typing import Final

from control.logs import RowLog
from control.meters import Meters

__all__ = ["Guard", "Job"]

_PAUSE_S: Final = 1.0
"""After a step that failed: what fails each time fills neither the log nor the processor."""


class Job:
    """One of them, made by ``Guard.job``. Any thread, each method."""

    def __init__(self, name: str, limit_s: float, log: RowLog, meters: Meters) -> None:
        self.name: Final = name
        self._limit_ns = int(limit_s * 1e9)
        self._log = log
        self._meters = meters
        self._ended = False
        self._beat_ns = time.monotonic_ns()

    def beat(self) -> None:
        """It moves."""
        self._beat_ns = time.monotonic_ns()

    def failed(self, error: BaseException) -> None:
        """Log and count what it did not expect. That is no beat: what only fails stands."""
        _report(self._log, self._meters, self.name, error)

    def end(self) -> None:
        """It is over, as it should be; nobody waits for a beat any more."""
        self._ended = True

    @property
    def standing(self) -> bool:
        """Whether it has not moved for longer than it may."""
        return not self._ended and time.monotonic_ns() - self._beat_ns > self._limit_ns

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
                    self.beat()
        finally:
            self.end()


class Guard:
    """All jobs of one control process."""

    def __init__(self, log: RowLog, meters: Meters) -> None:
        self._log = log
        self._meters = meters
        self._jobs: list[Job] = []

    def job(self, name: str, limit_s: float) -> Job:
        """A new job, which moves from now on.

        Args:
            name: one of ``proxy.cells.TASKS``.
            limit_s: it stands when it has not moved for so long.
        """
        job = Job(name, limit_s, self._log, self._meters)
        self._jobs.append(job)
        return job

    def failed(self, name: str, error: BaseException, **fields: str) -> None:
        """Log and count an exception of what is no job; ``name`` is one of ``proxy.cells.TASKS``. Any thread."""
        _report(self._log, self._meters, name, error, **fields)

    @property
    def standing(self) -> list[str]:
        """Names of the jobs that stand. Any thread."""
        return [job.name for job in tuple(self._jobs) if job.standing]


def _described(error: BaseException) -> str:
    """As ``repr``, but for one of an encoding, which has there all that was to be encoded: that may be a password."""
    return f"{type(error).__name__}: {error}" if isinstance(error, UnicodeError) else repr(error)


def _report(log: RowLog, meters: Meters, name: str, error: BaseException, **fields: str) -> None:
    trace = "".join(traceback.format_exception(error))
    log.write("task_failed", level="error", task=name, **fields, error=_described(error), trace=trace)
    meters.add("task.failures", name)
