"""Rows of connections that stay open for long (``access``): each has one every ``log.access.every``, for whom the end is too late to learn of it.

Control asks the processors for the rows whose moment has come since it asked last (``proxy.server.pair_rows.is_due`` says when that is), page by
page with a rest behind each, so that ten thousand of them are neither a pause of its loop nor a burst in the log. Where a processor does not
answer in time, or stdout is not read, it goes on later from there: rows that can wait do, and take no room from those that cannot. A page whose
answer alone came too late is told twice. The rows themselves come as a notice, in their order among those of connections that open and close.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from framegate.control.errors import UnavailableError
from framegate.control.fleet.processor import Processor
from framegate.control.fleet.supervisor import Supervisor
from framegate.control.logs import RowLog
from framegate.control.task_monitor import TaskMonitor
from framegate.proxy.server.protocol import access_request

__all__ = ["AccessRows", "interval_s"]

EVENT: Final = "access"
PAGE: Final = 100
"""Rows at once: 60 KiB on the link, under 1 ms to make in the processor, and to take here."""
REST_S: Final = 0.01
ANSWER_MS: Final = 1_000
_STANDS_S: Final = 300.0


def interval_s(every_ms: int) -> float:
    """How long between two looks: a sixtieth, from 1 to 10 s."""
    return min(max(every_ms / 60_000, 1.0), 10.0)


class _Stretch:
    """Of time, for whose moments a processor is asked; ``after``: up to that id it was."""

    def __init__(self, since_ns: int, until_ns: int) -> None:
        self.since_ns = since_ns
        self.until_ns = until_ns
        self.after = 0


class AccessRows:
    """Asks, from its making until ``close``.

    Args:
        every_ms: between two rows of a connection, at least 1.
        now_ns: the clock of the connections' beginnings.
    """

    def __init__(
        self, supervisor: Supervisor, every_ms: int, log: RowLog, task_monitor: TaskMonitor, now_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._supervisor = supervisor
        self._every_ms = every_ms
        self._log = log
        self._now_ns = now_ns
        self._began_ns = now_ns()
        self._asked_ns: dict[Processor, int] = {}
        self._unfinished: dict[Processor, _Stretch] = {}
        self._task = asyncio.create_task(task_monitor.job(EVENT, _STANDS_S).keep_going(self._step))

    def close(self) -> None:
        """End the task."""
        self._task.cancel()

    async def _step(self) -> None:
        await asyncio.sleep(interval_s(self._every_ms))
        await self.look()

    async def look(self) -> None:
        """Ask each processor for what is due, one after the other; what nobody wants is over without a row."""
        running = self._supervisor.running
        self._asked_ns = {each: self._asked_ns.get(each, self._began_ns) for each in running}
        self._unfinished = {each: stretch for each, stretch in self._unfinished.items() if each in self._asked_ns}
        if not self._log.levels.passes(EVENT, "info"):
            now_ns = self._now_ns()
            self._asked_ns = dict.fromkeys(running, now_ns)
            self._unfinished.clear()
            return
        for processor in running:
            stretch = self._unfinished.pop(processor, None)
            if stretch is None or await self._ask(processor, stretch):
                stretch = _Stretch(self._asked_ns[processor], self._now_ns())
                self._asked_ns[processor] = stretch.until_ns
                await self._ask(processor, stretch)

    async def _ask(self, processor: Processor, stretch: _Stretch) -> bool:
        """The pages of one stretch; False: not all of them, and it is to go on later."""
        while not self._log.is_behind:
            request = access_request(after=stretch.after, limit=PAGE, every_ms=self._every_ms, since_ns=stretch.since_ns, until_ns=stretch.until_ns)
            try:
                stretch.after = (await processor.request(request, ANSWER_MS))["next"]
            except UnavailableError:  # it is gone, or it is busy
                break
            if not stretch.after:
                return True
            await asyncio.sleep(REST_S)
        self._unfinished[processor] = stretch
        return False
