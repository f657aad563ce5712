"""Closes the connections that have been idle for longest when the node has more than it may, except those of the protected listener.

That happens when the protected listener takes connections above the limit, or when the limit is lowered; a listener's own limit closes none. Each
processor closes its share of the connections. A connection whose end has begun counts as closed, since the end may take a second.
"""

import asyncio
from typing import Final

from framegate.control.accept.acceptor import Acceptor
from framegate.control.errors import UnavailableError
from framegate.control.fleet.processor import Processor
from framegate.control.fleet.supervisor import Supervisor
from framegate.control.logs import RowLog
from framegate.proxy.server.protocol import evict_request

__all__ = ["Eviction", "parts"]

INTERVAL_S: Final = 0.25
EVICTION_LIMIT_S: Final = 30.0
_PATIENCE_MS: Final = 5_000
_AT_ONCE: Final = 1_000
"""Connections of one processor in one call; the rest follows in the next one."""


class Eviction:
    """Closes connections above the limit whenever ``look`` is called."""

    def __init__(self, supervisor: Supervisor, acceptor: Acceptor, log: RowLog) -> None:
        self._supervisor = supervisor
        self._acceptor = acceptor
        self._log = log
        self._ending: set[int] = set()

    async def look(self) -> None:
        """Close connections, if there are more than the node may have."""
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
        """Returns the ids of the connections whose end has begun; none if the processor does not answer, then the next call asks again."""
        try:
            return (await processor.request(evict_request(count, spared), _PATIENCE_MS))["affected"]
        except UnavailableError as error:
            if error.reason != "PROCESSOR_GONE":  # its connections have ended, too
                self._log.write("eviction_failed", level="warning", slot=processor.slot, error=str(error))
            return []


def parts(excess: int, counts: dict[Processor, int]) -> dict[Processor, int]:
    """Divide ``excess`` among processors in proportion to their counts. None gives more than it has, and all together not more than ``excess``."""
    left, total, found = max(0, excess), sum(counts.values()), {}
    for processor, count in counts.items():
        found[processor] = min(count, -(-left * count // total)) if total else 0
        left -= found[processor]
        total -= count
    return found
