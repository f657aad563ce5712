"""The rates of quotas, divided among the processors. Each has an equal part until connections wait.

Processors report five times a second the rates that connections wait for (``DemandNotice``). Every processor then has a part of each such
rate, which moves towards the demand there with each call (``divided``). When no connection waits, and equal parts are enough, the parts move back to
equal ones. The cost of a call grows with the number of rates that connections wait for. With one processor there is nothing to divide.

A processor uses a new part as soon as it reads the message; it sends no answer. One that starts has an equal part of each rate, and the parts of the
others shrink at once.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from framegate.control.fleet.desired_state import default_part
from framegate.control.fleet.processor import Processor
from framegate.control.fleet.supervisor import Supervisor
from framegate.proxy.server.messages import PartsCommand
from framegate.proxy.server.rows import DemandRow, PartRow, RateCounter, RateLevel

WHOLE: Final = 1_000_000  # Millionths of a rate
INTERVAL_S: Final = 0.2
LIMIT_S: Final = 30.0
STEPS: Final = 2
"""A call moves a part by this fraction of the difference. Otherwise the parts of several rates of the same connections would oscillate."""
NEAR: Final = 2_000  # a difference to the wanted part below this is not sent
AS_DEFAULT: Final = -1
HEADROOM: Final = 1.05
ONE: Final = 1000  # the unit of ``Demand.waiting``: one connection
FLOOR: Final = 5_000
"""The least part, for a processor that uses none of a rate, so that its first connections can begin before control has their demand."""


class RateKey(NamedTuple):
    """One rate."""

    level: RateLevel
    name: str
    counter: RateCounter


class Demand(NamedTuple):
    """The demand for one rate in one processor; see ``framegate.proxy.server.rows.DemandRow``."""

    used: int
    waiting: int = 0
    wanting: int = 0


class Rates:
    """Divides them whenever ``divide`` is called."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._defaults: dict[Processor, int] = {}  # as sent; so are the parts
        self._parts: dict[RateKey, dict[Processor, int]] = {}
        self._demands: dict[RateKey, dict[Processor, Demand]] = {}  # as last reported
        self._reported: dict[RateKey, None] = {}  # since the last call of ``divide``
        self._alive: list[Processor] = []
        supervisor.on_demand = self.hear

    def hear(self, processor: Processor, rows: Sequence[DemandRow]) -> None:
        """Take the demand that a processor reports; for rates that it does not name it stays the same."""
        for row in rows:
            key = RateKey(row["level"], row["name"], row["counter"])
            self._demands.setdefault(key, {})[processor] = Demand(row["used"], row["waiting"], row["wanting"])
            self._reported[key] = None

    def divide(self) -> None:
        """Divide the rates that processors have reported since the last call."""
        alive, running = self._supervisor.alive, self._supervisor.running
        shares = len(self._supervisor.desired.shares)
        default = default_part(max(len(alive), shares))
        told: dict[RateKey, list[int]] = {}
        if default == WHOLE:
            self._demands.clear()
            self._reported.clear()
            told = {key: [AS_DEFAULT] * len(running) for key in self._parts}
            self._parts.clear()
        if alive != self._alive:
            self._alive = list(alive)
            self._forget_ended()
        reported, self._reported = self._reported, {}
        for key in reported:
            demands = self._demands.get(key, {})
            told[key] = self._divide(key, [demands.get(each) for each in running], default, WHOLE - default * (len(alive) - len(running)))
        for number, processor in enumerate(running):
            rows = [PartRow(level=key.level, name=key.name, counter=key.counter, part=parts[number]) for key, parts in told.items() if parts]
            if rows or default != self._defaults.get(processor, default_part(shares)):
                processor.link.post(PartsCommand(type="parts", default=default, parts=rows))
        self._defaults = dict.fromkeys(running, default)

    def _forget_ended(self) -> None:
        left = {key: {each: demand for each, demand in demands.items() if each in self._alive} for key, demands in self._demands.items()}
        self._demands = {key: demands for key, demands in left.items() if demands}

    def _divide(self, key: RateKey, demands: Sequence[Demand | None], default: int, whole: int) -> list[int]:
        """The new parts of one rate for the running processors; empty if they do not change."""
        running = self._supervisor.running
        held = self._parts.get(key, {})
        now = [held.get(each, default) for each in running]
        asked = [demand or Demand(part) for demand, part in zip(demands, now, strict=True)]  # without a report a processor keeps its part
        contested = any(each.waiting or each.used > default for each in asked)
        wanted = divided(whole, asked) if contested else [default] * len(running)
        if all(each in held for each in running if contested) and all(abs(want - part) < NEAR for want, part in zip(wanted, now, strict=True)):
            if contested:
                return []
            self._demands.pop(key, None)
            return [AS_DEFAULT] * len(running) if self._parts.pop(key, None) else []
        parts = wanted if sum(now) > whole else [part + (want - part) // STEPS for want, part in zip(wanted, now, strict=True)]
        self._parts[key] = dict(zip(running, parts, strict=True))
        return parts


def divided(whole: int, asked: Sequence[Demand]) -> list[int]:
    """The part of each processor in one rate. The sum is ``whole``, up to rounding down.

    A processor without waiting connections gets what it uses and a little more; the others share the rest in proportion to their waiting connections.
    So all connections that wait get about the same, in whatever processor they are. If none waits, the rest is divided equally.

    ``whole``: millionths to divide. ``asked``: the demand of each processor, at least one.
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
