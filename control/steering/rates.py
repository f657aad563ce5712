"""The rates of quotas, divided among the processors: each has an equal part, until connections wait.

Processors tell five times a second of the rates that connections wait for (``control.fleet.demands``). Of each of these every processor is given a
part of its own, which moves with each look towards what is asked there (``divided``). When nobody waits, and the equal parts are enough, they move
back to equal ones. A look costs as much as there are rates that are waited for; where there is one processor there is none.

A processor has another part as soon as it reads that; it does not answer, and goes on with what it has while control says nothing. One that starts
has an equal part of each rate, which the others do without from then on.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from framegate.control.fleet.demands import Demand, RateKey
from framegate.control.fleet.desired_state import default_part
from framegate.control.fleet.processor import Processor
from framegate.control.fleet.supervisor import Supervisor
from framegate.control.task_monitor import TaskMonitor
from framegate.proxy.server.messages import PartsCommand
from framegate.proxy.server.rows import PartRow

__all__ = ["INTERVAL_S", "WHOLE", "Rates", "divided"]

WHOLE: Final = 1_000_000
"""Millionths of a rate."""
INTERVAL_S: Final = 0.2
STANDS_S: Final = 30.0
STEPS: Final = 2
"""A look moves a part by this fraction of the way: several rates of the same connections would else send their parts to and fro, each by what the
others leave of them.
"""
NEAR: Final = 2_000
"""What is nearer than this to what is wanted is not worth a message."""
AS_DEFAULT: Final = -1
HEADROOM: Final = 1.05
ONE: Final = 1000
"""Connection that waits."""
FLOOR: Final = 5_000
"""Of a rate, for a processor that uses none of it: the first connections there are not stopped until control is told."""


class Rates:
    """Divides them, from its making until ``close``."""

    def __init__(self, supervisor: Supervisor, task_monitor: TaskMonitor) -> None:
        self._supervisor = supervisor
        self._defaults: dict[Processor, int] = {}  # what each was told; so are the parts
        self._parts: dict[RateKey, dict[Processor, int]] = {}
        self._task = asyncio.create_task(task_monitor.job("rates", STANDS_S).keep_going(self._step))

    def close(self) -> None:
        """End the task."""
        self._task.cancel()

    async def _step(self) -> None:
        await asyncio.sleep(INTERVAL_S)
        self.divide()

    def divide(self) -> None:
        """Divide the rates that were told of since the last look."""
        alive, running = self._supervisor.alive, self._supervisor.running
        shares = len(self._supervisor.desired.shares)
        default = default_part(max(len(alive), shares))
        told: dict[RateKey, list[int]] = {}
        if default == WHOLE:
            self._supervisor.demands.clear()
            told = {key: [AS_DEFAULT] * len(running) for key in self._parts}
            self._parts.clear()
        for key, demands in self._supervisor.demands.take().items():
            told[key] = self._divide(key, [demands.get(each) for each in running], default, WHOLE - default * (len(alive) - len(running)))
        for number, processor in enumerate(running):
            rows = [PartRow(level=key.level, name=key.name, counter=key.counter, part=parts[number]) for key, parts in told.items() if parts]
            if rows or default != self._defaults.get(processor, default_part(shares)):
                processor.link.post(PartsCommand(type="parts", default=default, parts=rows))
        self._defaults = dict.fromkeys(running, default)

    def _divide(self, key: RateKey, demands: Sequence[Demand | None], default: int, whole: int) -> list[int]:
        """Other parts of one rate for those that run; none where they stay."""
        running = self._supervisor.running
        held = self._parts.get(key, {})
        now = [held.get(each, default) for each in running]
        asked = [demand or Demand(part) for demand, part in zip(demands, now, strict=True)]  # one that says nothing keeps what it has
        contested = any(each.waiting or each.used > default for each in asked)
        wanted = divided(whole, asked) if contested else [default] * len(running)
        if all(each in held for each in running if contested) and all(abs(want - part) < NEAR for want, part in zip(wanted, now, strict=True)):
            if contested:
                return []
            self._supervisor.demands.drop(key)
            return [AS_DEFAULT] * len(running) if self._parts.pop(key, None) else []
        parts = wanted if sum(now) > whole else [part + (want - part) // STEPS for want, part in zip(wanted, now, strict=True)]
        self._parts[key] = dict(zip(running, parts, strict=True))
        return parts


def divided(whole: int, asked: Sequence[Demand]) -> list[int]:
    """What each processor is to have of one rate; the sum is at most ``whole``, and less by no more than what rounding takes.

    A processor where nobody waits gets what it uses and a little more; the others share the rest in proportion to how many wait. So each
    connection that wants more than it gets has about the same, wherever it is. Where nobody waits anywhere the rest is divided equally.

    Args:
        whole: millionths that may be given.
        asked: of each processor, at least one.
    """
    weights = [max(each.wanting, ONE) for each in asked]
    needs = [whole if each.waiting else max(int(each.used * HEADROOM), FLOOR) for each in asked]
    parts = [0] * len(asked)
    left, shares = whole, sum(weights)
    for number in sorted(range(len(asked)), key=lambda each: needs[each] / weights[each]):
        parts[number] = min(needs[number], left * weights[number] // shares)
        left -= parts[number]
        shares -= weights[number]
    return [part + left // len(parts) for part in parts]
