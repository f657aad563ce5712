"""The rates of quotas, divided among the processors: each has a part, and parts follow demand.

Ten times a second control looks at what is in demand (``control.fleet.demands``) and divides each rate anew (``division``). Parts are lowered first;
what is raised is what is free then, by what the processors have confirmed, so that the parts of a rate never come to more than the rate. What
a processor has that does not answer counts as before; that of one that died is free.

A processor has the ``default`` part of every key that it was told nothing of: all of it where it is alone, else its part of ``FLOOR``, with which
connections of an address begin that nobody knew of. Of the node and of listeners each has parts from its start; of an address from when it
is in demand until it is in demand nowhere.
"""

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Final, get_args

from control.errors import UnavailableError
from control.fleet.demands import Demand, RateKey
from control.fleet.desired_state import default_part
from control.fleet.processor import Processor
from control.fleet.supervisor import Supervisor
from control.guard import Guard
from control.logs import RowLog
from control.steering.division import WHOLE, Asked, divided
from proxy.config.limits import AddressLimits
from proxy.config.model import ProxyConfig
from proxy.server.limit_rows import PartRow, RateCounter
from proxy.server.protocol import parts_request

__all__ = ["Rates"]

INTERVAL_S: Final = 0.1
ANSWER_MS: Final = 1_000
STANDS_S: Final = 30.0
LEAST_CHANGE: Final = 2_000
"""Millionths of a rate: what is less is not worth a message."""
KEPT: Final = 0.9
"""Of a part, at each division, by who uses little of it because another rate holds it up, which may change."""
AS_DEFAULT: Final = -1


class _Held:
    """What a processor has, or may have."""

    def __init__(self, default: int) -> None:
        self.default = default
        self.parts: dict[RateKey, int] = {}

    def part(self, key: RateKey) -> int:
        return self.parts.get(key, self.default)

    def book(self, default: int, rows: dict[RateKey, int]) -> None:
        """It has, or may have, what it was told."""
        self.default = default
        for key, part in rows.items():
            if part == AS_DEFAULT:
                self.parts.pop(key, None)
            else:
                self.parts[key] = part


class Rates:
    """Divides them, from its making until ``close``."""

    def __init__(self, supervisor: Supervisor, guard: Guard, log: RowLog) -> None:
        self._supervisor = supervisor
        self._log = log
        self._held: dict[Processor, _Held] = {}
        self._weights: dict[tuple[Processor, RateKey], int] = {}  # how many shared it when it held somebody up last
        self._settled: tuple[object, ...] = ()  # who there is, where nothing is in demand and nobody has to be told anything
        self._addresses: tuple[ProxyConfig, AddressLimits] | None = None  # of the configuration that was asked last
        self._task = asyncio.create_task(guard.job("rates", STANDS_S).keep_going(self._step))

    def close(self) -> None:
        """End the task."""
        self._task.cancel()

    async def _step(self) -> None:
        await asyncio.sleep(INTERVAL_S)
        await self.divide()

    async def divide(self) -> None:
        """Divide all rates by what is in demand now."""
        supervisor = self._supervisor
        count = len(supervisor.desired.shares)
        self._held = {each: self._held.get(each) or _Held(default_part(count)) for each in supervisor.alive}
        running = supervisor.running
        state = (*self._held, count, *running)
        calm = not any(supervisor.demands.of(each) for each in running)
        if calm and state == self._settled:
            return
        self._settled = state if calm else ()
        default = default_part(max(len(self._held), count))
        wanted: dict[Processor, dict[RateKey, int]] = {each: {} for each in running}
        if default < WHOLE and running:
            left = WHOLE - default * max(len(self._held), count)
            for key in self._keys(running):
                for processor, part in self._divide(key, running, left).items():
                    wanted[processor][key] = default + part
        self._weights = {at: weight for at, weight in self._weights.items() if at[1] in wanted.get(at[0], ())}
        await asyncio.gather(*(self._lower(each, default, wanted[each]) for each in running))
        await asyncio.gather(*[self._raise(each, default, wanted[each]) for each in running])

    def _keys(self, running: Iterable[Processor]) -> list[RateKey]:
        """Rates to be divided: those of the node and of listeners, and those of addresses that are in demand."""
        counters: tuple[RateCounter, ...] = get_args(RateCounter)
        keys = [RateKey("node", "", counter) for counter in counters]
        keys += [RateKey("listener", listener.name, counter) for listener in self._supervisor.desired.config.listeners for counter in counters]
        addresses = {key: None for processor in running for key in self._supervisor.demands.of(processor) if key.level == "address"}
        return [*keys, *addresses]

    def _divide(self, key: RateKey, running: list[Processor], whole: int) -> dict[Processor, int]:
        """The part of each processor, of ``whole``."""
        rate = self._rate(key)
        parts = divided(whole, {number: self._asked(processor, key, rate) for number, processor in enumerate(running)})
        return {processor: parts[number] for number, processor in enumerate(running)}

    def _asked(self, processor: Processor, key: RateKey, rate: int) -> Asked:
        demands = self._supervisor.demands.of(processor)
        demand = demands.get(key, Demand(0, 0))
        elsewhere = any(other.users for at, other in demands.items() if at.counter == key.counter and at != key)
        before = self._weights.get((processor, key), 0)
        users = demand.users
        if users:
            if before:  # one look at it is a rough one, rougher where another rate holds them up, too
                users = (users + 3 * before) // 4 if elsewhere else (users + before) // 2
            self._weights[processor, key] = users
        least = int(self._held[processor].part(key) * KEPT) if elsewhere and not users else 0
        return Asked(min(demand.passed * WHOLE // rate, WHOLE) if rate else 0, users, before, least)

    def _rate(self, key: RateKey) -> int:
        """Tokens a second; 0: there is no limit any more."""
        config = self._supervisor.desired.config
        if key.level == "address":
            if self._addresses is None or self._addresses[0] is not config:
                self._addresses = config, AddressLimits(config.limits.per_address, config.limits.overrides)
            limits = self._addresses[1].of(key.name).limits
        elif key.level == "node":
            limits = config.limits
        else:
            limits = next(listener.limits for listener in config.listeners if listener.name == key.name)
        return int(getattr(limits, f"{key.counter}_rate"))

    async def _lower(self, processor: Processor, default: int, wanted: dict[RateKey, int]) -> None:
        """Have a processor give up what it has too much of; it counts as given up when it has said so."""
        held = self._held[processor]
        rows = {key: part for key, part in wanted.items() if held.part(key) - part >= LEAST_CHANGE}
        rows |= {key: AS_DEFAULT for key in held.parts.keys() - wanted.keys() if default <= held.parts[key]}
        default = min(default, held.default)
        if (rows or default != held.default) and await self._tell(processor, default, rows):
            held.book(default, rows)

    def _raise(self, processor: Processor, default: int, wanted: dict[RateKey, int]) -> Awaitable[bool]:
        """Have a processor take what is free; it counts as taken from now on, whether it says so or not."""
        held = self._held[processor]
        rows: dict[RateKey, int] = {key: AS_DEFAULT for key in held.parts.keys() - wanted.keys() if default > held.parts[key]}
        for key, part in wanted.items():
            free = WHOLE - sum(other.part(key) for each, other in self._held.items() if each is not processor)
            if min(part, free) - held.part(key) >= LEAST_CHANGE:
                rows[key] = min(part, free)
        if not rows and default == held.default:
            return _nothing()
        held.book(default, rows)
        return self._tell(processor, default, rows)

    async def _tell(self, processor: Processor, default: int, rows: dict[RateKey, int]) -> bool:
        """Have a processor keep to other parts; False: it has not said that it does."""
        self._settled = ()
        parts = [PartRow(level=key.level, name=key.name, counter=key.counter, part=part) for key, part in rows.items()]
        try:
            await processor.request(parts_request(default, parts), ANSWER_MS)
        except UnavailableError as error:
            if error.reason != "PROCESSOR_GONE":
                self._log.write("rates_not_moved", level="warning", slot=processor.slot, reason=str(error))
            return False
        return True


async def _nothing() -> bool:
    return True
