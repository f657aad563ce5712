"""The rates of quotas, divided among the processors: each has an equal part, until somebody waits.

Processors tell five times a second of the rates that somebody waits for (``control.fleet.demands``). Of each of these every processor is given a part
of its own, which moves with each look towards what is asked there (``division``), slowly where somebody waits. When nobody has waited for a while,
and the equal parts are enough, they are equal again. A look costs as much as there are rates that somebody waits for; where there is one processor
there is none.

A processor that is told another part has it as soon as it reads that; nobody waits for an answer. One that starts has an equal part of each rate,
which the others do without from then on.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from control.fleet.demands import Demand, RateKey
from control.fleet.desired_state import default_part
from control.fleet.processor import Processor
from control.fleet.supervisor import Supervisor
from control.guard import Guard
from control.steering.division import WHOLE, divided
from proxy.server.limit_rows import PartRow
from proxy.server.messages import PartsCommand

__all__ = ["INTERVAL_S", "Rates"]

INTERVAL_S: Final = 0.2
STANDS_S: Final = 30.0
FLOOR: Final = 10_000
"""Millionths of a rate that are divided equally all the same, so that who comes where nobody was is heard of."""
LEAST_CHANGE: Final = 2_000
"""What is less is not worth a message."""
CALM: Final = 10
"""Looks in which nobody waited, before parts are equal again."""
AS_DEFAULT: Final = -1
KEPT: Final = 0.85
"""Of a part, at each look, where anybody waits, for this rate or for another that may let them go on: several rates of the same connections would
else send their parts to and fro, each by what the others leave of them.
"""


class _Held:
    """What a processor was told."""

    def __init__(self, default: int) -> None:
        self.default = default
        self.parts: dict[RateKey, int] = {}


class Rates:
    """Divides them, from its making until ``close``."""

    def __init__(self, supervisor: Supervisor, guard: Guard) -> None:
        self._supervisor = supervisor
        self._held: dict[Processor, _Held] = {}
        self._calm: dict[RateKey, int] = {}
        self._task = asyncio.create_task(guard.job("rates", STANDS_S).keep_going(self._step))

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
        self._held = {each: self._held.get(each) or _Held(default_part(shares)) for each in running}
        told: dict[Processor, dict[RateKey, int]] = {each: {} for each in running}
        if default == WHOLE:
            self._supervisor.demands.clear()
            self._calm.clear()
            told = {each: dict.fromkeys(self._held[each].parts, AS_DEFAULT) for each in running}
        whole = WHOLE - default * (len(alive) - len(running))
        asked = self._supervisor.demands.take()
        for key, demands in asked.items():
            for processor, part in self._divide(key, demands, running, default, whole).items():
                told[processor][key] = part
        for processor, parts in told.items():
            self._tell(processor, default, parts)

    def _divide(
        self, key: RateKey, demands: Mapping[Processor, Demand], running: Sequence[Processor], default: int, whole: int
    ) -> dict[Processor, int]:
        """Other parts of one rate, where they change."""
        own = [each for each in running if key in self._held[each].parts]
        if self._is_calm(key, demands, default, has_parts=bool(own)):
            self._supervisor.demands.drop(key)
            self._calm.pop(key, None)
            return dict.fromkeys(own, AS_DEFAULT)
        now = [self._held[each].parts.get(key, default) for each in running]
        floor = FLOOR // len(running)
        asked = {number: demands.get(each) or Demand(now[number]) for number, each in enumerate(running)}  # who has said nothing keeps what it has
        wanted = [floor + part for part in divided(whole - floor * len(running), asked).values()]
        parts = _moved(now, wanted, [each.wanting != 0 for each in asked.values()], whole) if sum(now) <= whole else wanted
        if len(own) == len(running) and all(abs(part - before) < LEAST_CHANGE for part, before in zip(parts, now, strict=True)):
            return {}
        return dict(zip(running, parts, strict=True))

    def _is_calm(self, key: RateKey, demands: Mapping[Processor, Demand], default: int, *, has_parts: bool) -> bool:
        """Whether equal parts will do."""
        if any(each.waiting or each.used > default for each in demands.values()):
            self._calm.pop(key, None)
            return False
        self._calm[key] = self._calm.get(key, 0) + 1
        return not has_parts or self._calm[key] >= CALM

    def _tell(self, processor: Processor, default: int, parts: dict[RateKey, int]) -> None:
        """Have a processor keep to other parts."""
        held = self._held[processor]
        if not parts and default == held.default:
            return
        held.default = default
        for key, part in parts.items():
            if part == AS_DEFAULT:
                del held.parts[key]
            else:
                held.parts[key] = part
        rows = [PartRow(level=key.level, name=key.name, counter=key.counter, part=part) for key, part in parts.items()]
        processor.link.post(PartsCommand(type="parts", default=default, parts=rows))


def _moved(now: Sequence[int], wanted: Sequence[int], slow: Sequence[bool], whole: int) -> list[int]:
    """Parts on their way to what is wanted; their sum is at most ``whole``."""
    lowered = [
        min(before, max(want, int(before * KEPT)) if wait else (want + before) // 2) for before, want, wait in zip(now, wanted, slow, strict=True)
    ]
    free = whole - sum(lowered)
    lacks = [max(want - low, 0) for want, low in zip(wanted, lowered, strict=True)]
    total = max(sum(lacks), 1)
    return [low + min(lack, free * lack // total) for low, lack in zip(lowered, lacks, strict=True)]
