"""More connections than the node may have: the idlest are closed, but for those of the protected listener.

That comes of the protected listener, which does not wait for room, or of a limit that was lowered; a listener's own limit closes nobody. Each
processor closes the idlest of its connections, of as many as is its part of all that could be closed. What it has begun to close counts as closed:
an end may take a second.
"""

import asyncio
from typing import Final

from framegate.control.accept.acceptor import Acceptor
from framegate.control.errors import UnavailableError
from framegate.control.fleet.processor import Processor
from framegate.control.fleet.supervisor import Supervisor
from framegate.control.logs import RowLog
from framegate.control.task_monitor import TaskMonitor
from framegate.proxy.server.protocol import evict_request

__all__ = ["Eviction", "parts"]

INTERVAL_S: Final = 0.25
STANDS_S: Final = 30.0
_PATIENCE_MS: Final = 5_000
_AT_ONCE: Final = 1_000
"""Of one processor; the rest has its turn after the next look."""


class Eviction:
    """Looks every now and then.

    Args:
        interval_s: between two looks.
    """

    def __init__(self, supervisor: Supervisor, acceptor: Acceptor, log: RowLog, task_monitor: TaskMonitor, interval_s: float = INTERVAL_S) -> None:
        self._supervisor = supervisor
        self._acceptor = acceptor
        self._log = log
        self._interval_s = interval_s
        self._ending: set[int] = set()
        self._task = asyncio.create_task(task_monitor.job("evictions", STANDS_S).keep_going(self._step))

    def close(self) -> None:
        """Look no more."""
        self._task.cancel()

    async def _step(self) -> None:
        await asyncio.sleep(self._interval_s)
        limits = self._supervisor.desired.config.limits
        self._supervisor.connections.count_handed()
        excess = sum(listening.open for listening in self._acceptor.listeners.values()) - limits.connections
        if limits.connections and excess > 0:
            await self._evict(excess, limits.protected_listener)
        else:
            self._ending.clear()

    async def _evict(self, excess: int, spared: str | None) -> None:
        open_now: dict[Processor, set[int]] = {
            processor: {given.number for given in processor.open.values() if given is not None and given.handover.listener != spared}
            for processor in self._supervisor.running
        }
        self._ending &= set().union(*open_now.values())
        excess -= len(self._ending)
        counts = {processor: len(numbers - self._ending) for processor, numbers in open_now.items()}
        asked = {processor: min(part, _AT_ONCE) for processor, part in parts(excess, counts).items() if part}
        answers = await asyncio.gather(*(self._ask(processor, count, spared) for processor, count in asked.items()))
        evicted = [number for answer in answers for number in answer]
        self._ending.update(evicted)
        if evicted:
            self._log.write("evicted", level="warning", key="limits.connections", excess=excess, count=len(evicted), spared=spared)

    async def _ask(self, processor: Processor, count: int, spared: str | None) -> list[int]:
        """Ids of those whose end has begun; none when it does not answer, and then the next look asks again."""
        try:
            return (await processor.request(evict_request(count, spared), _PATIENCE_MS))["affected"]
        except UnavailableError as error:
            if error.reason != "PROCESSOR_GONE":  # whose connections are gone as well
                self._log.write("eviction_failed", level="warning", slot=processor.slot, error=str(error))
            return []


def parts(excess: int, counts: dict[Processor, int]) -> dict[Processor, int]:
    """How many of ``excess`` each shall give, of what it has, in proportion to that; all together no more than ``excess``."""
    left, total, found = max(0, excess), sum(counts.values()), {}
    for processor, count in counts.items():
        found[processor] = min(count, -(-left * count // total)) if total else 0
        left -= found[processor]
        total -= count
    return found
