"""control.steering.rates: parts of rates follow demand, and never come to more than the rate. Processors are buckets on a clock of the test's."""

import asyncio
import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from control.errors import UnavailableError
from control.fleet.demands import Demands
from control.fleet.desired_state import DesiredState, default_part
from control.guard import Guard
from control.meters import Meters
from control.steering.rates import Rates
from proxy.config.limits import LimitOverride, LimitsConfig, RateLimits
from proxy.relay.bucket import WHOLE, Bucket
from proxy.server.limit_rows import DemandRow
from tests.fakes.fleet import MemoryLog, fleet, fleet_config, until
from tests.fakes.readers import Reader, ReaderBench

RATE = 1_000_000
KEYS = {"node": "", "listener": "a", "address": "192.0.2.1"}


class FakeProcessor:
    """A bucket for the key of each level, with readers; keeps to what it is told."""

    def __init__(self, bench: ReaderBench, slot: int, levels: tuple[str, ...], default: int) -> None:
        self.slot = slot
        self.silent = False
        self.default = default
        self.own: dict[str, int] = {}
        self.told: list[dict[str, Any]] = []
        self.bench = bench
        self.buckets: dict[str, Bucket] = {level: bench.bucket(RATE, default) for level in levels}

    @property
    def bucket(self) -> Bucket:
        return next(iter(self.buckets.values()))

    def part_of(self, level: str) -> int:
        return self.own.get(level, self.default)

    @property
    def part(self) -> int:
        return self.part_of(next(iter(self.buckets)))

    async def request(self, request: Any, timeout_ms: int) -> dict[str, Any]:
        if self.silent:
            raise UnavailableError("says nothing", reason="PROCESSOR_SILENT")
        self.told.append(request.message)
        self.default = request.message["default"]
        for row in request.message["parts"]:
            level = row["level"]
            if level in self.buckets and (row["name"], row["counter"]) == (KEYS[level], "request_bytes"):
                self.own.pop(level, None)
                if row["part"] >= 0:
                    self.own[level] = row["part"]
        for level, bucket in self.buckets.items():
            bucket.set_rate(RATE, self.part_of(level))
        return {"type": "result"}

    def demand(self) -> list[DemandRow]:
        rows: list[DemandRow] = []
        for name, bucket in self.buckets.items():
            demand = bucket.demand(self.bench.clock.now)
            level: Any = name
            rows.append(DemandRow(level=level, name=KEYS[name], counter="request_bytes", passed=int(demand.passed), users=int(demand.users)))
        return rows


class FakeSupervisor:
    """So much of a supervisor as rates are divided by."""

    def __init__(self, count: int, limits: LimitsConfig) -> None:
        self.desired = DesiredState(
            fleet_config(count, node_limits=limits, limits=RateLimits(request_bytes_rate=RATE)), {}, dict.fromkeys(range(count), 1)
        )
        self.demands = Demands()
        self.alive: list[Any] = []
        self.running: list[Any] = []


class Divided:
    """Processors whose rates are divided ten times a second."""

    def __init__(self, count: int, *levels: str) -> None:
        each = RateLimits(request_bytes_rate=RATE)
        self.bench = ReaderBench()
        self.supervisor = FakeSupervisor(count, LimitsConfig(request_bytes_rate=RATE, per_address=each))
        self.processors = [FakeProcessor(self.bench, slot, levels or ("node",), default_part(count)) for slot in range(count)]
        self.supervisor.alive = list(self.processors)
        self.supervisor.running = list(self.processors)
        self.log = MemoryLog()
        self.most = 0
        self.loop = asyncio.new_event_loop()
        self.rates = self.loop.run_until_complete(self._make())
        self.step()

    async def _make(self) -> Rates:
        supervisor: Any = self.supervisor
        made = Rates(supervisor, Guard(self.log, Meters()), self.log)
        made.close()
        return made

    def step(self) -> None:
        """What is in demand, and another division."""
        for processor in self.supervisor.running:
            if not processor.silent:
                self.supervisor.demands.hear(processor, processor.demand())
        self.loop.run_until_complete(self.rates.divide())
        for level in self.processors[0].buckets:
            self.most = max(self.most, sum(processor.part_of(level) for processor in self.supervisor.alive))

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds * 10)):
            self.bench.run(0.1, step_ms=2, most=6)
            self.step()

    def busy(self, processor: int, count: int = 1) -> list[Reader]:
        return [self.bench.add(*self.processors[processor].buckets.values(), more=lambda: 500) for _ in range(count)]

    @property
    def passed(self) -> int:
        return sum(int(processor.bucket.passed) for processor in self.processors)

    def second(self) -> int:
        """What passes in the next one."""
        before = self.passed
        self.run(1)
        return self.passed - before

    def close(self) -> None:
        self.loop.close()
        self.bench.close()
        assert self.most <= WHOLE, "the parts never come to more than the rate"


@pytest.fixture
def make() -> Iterator[Any]:
    made: list[Divided] = []

    def build(*args: Any) -> Divided:
        made.append(Divided(*args))
        return made[-1]

    yield build
    for each in made:
        each.close()


def within_5_percent(passed: int) -> bool:
    return 0.95 * RATE <= passed <= 1.05 * RATE


def had(readers: list[Reader], made: Divided, seconds: float) -> list[int]:
    before = [reader.bytes for reader in readers]
    made.run(seconds)
    return [reader.bytes - start for reader, start in zip(readers, before, strict=True)]


@pytest.mark.parametrize("level", ["node", "address"])
@pytest.mark.parametrize("counts", [(1, 1), (1, 3), (20, 1), (1, 0, 0), (2, 5, 9)])
def test_two_seconds_after_a_change_of_demand_it_is_exact_and_fair(make: Any, level: str, counts: tuple[int, ...]) -> None:
    made = make(len(counts), level)
    readers = [reader for number, count in enumerate(counts) for reader in made.busy(number, count)]
    made.run(2)
    for _ in range(3):
        assert within_5_percent(made.second())
    each = had(readers, made, 8)
    assert max(each) <= 1.1 * min(each) + 2 * 10_000


@pytest.mark.parametrize("counts", [(1, 1), (1, 3), (20, 1), (25, 25), (2, 5, 9)])
def test_equal_rates_of_all_levels_do_not_hold_each_other_up(make: Any, counts: tuple[int, ...]) -> None:
    """Each level sees little of those that another one holds up: parts by what each used last would go to and fro, and much would pass nowhere."""
    made = make(len(counts), "node", "listener", "address")
    readers = [reader for number, count in enumerate(counts) for reader in made.busy(number, count)]
    made.run(2)
    passed = [made.second() for _ in range(6)]
    assert within_5_percent(sum(passed) // len(passed)), passed
    assert min(passed) >= 0.92 * RATE
    assert max(passed) <= 1.05 * RATE
    each = had(readers, made, 8)
    assert max(each) <= 2.5 * min(each), "nearer to it than by processors, though no level sees all that the others hold up"


def test_who_wants_little_counts_for_little(make: Any) -> None:
    """40 % of the rate goes to twenty that want no more, beside one that does; in the other processor is another: each of the two has 30 %."""
    made = make(2)
    small = [made.bench.add(made.processors[0].bucket) for _ in range(20)]
    large = [*made.busy(0), *made.busy(1)]

    def feed(seconds: float) -> None:
        for _ in range(round(seconds * 50)):
            for reader in small:
                reader.frames.append(RATE // 50 // 50)
            made.bench.run(0.02, step_ms=2, most=6)
            if made.bench.clock.now // 20_000_000 % 5 == 0:
                made.step()

    feed(4)
    before, total = [reader.bytes for reader in large], made.passed
    feed(4)
    each = [reader.bytes - start for reader, start in zip(large, before, strict=True)]
    assert max(each) <= 1.15 * min(each)
    assert 0.95 * 4 * RATE <= made.passed - total <= 1.05 * 4 * RATE
    assert all(len(reader.frames) <= 5 for reader in small)


def test_what_one_does_not_use_the_other_has(make: Any) -> None:
    made = make(2)
    made.bench.add(made.processors[0].bucket, more=None)
    busy = made.busy(1)
    made.run(2)
    assert within_5_percent(made.second())
    again = made.busy(0)
    made.run(2)
    assert within_5_percent(made.second())
    each = had([*busy, *again], made, 4)
    assert max(each) <= 1.1 * min(each)
    for reader in again:
        reader.leave(made.bench.clock.now)
    made.run(2)
    assert within_5_percent(made.second())


def test_who_dies_gives_its_part_back_and_its_successor_begins_with_little(make: Any) -> None:
    made = make(2)
    made.busy(0, 2)
    for reader in made.busy(1, 2):
        reader.more = None
        reader.frames.extend([500] * 2000)
    made.run(2)
    gone = made.supervisor.running.pop(1)
    made.supervisor.alive.remove(gone)
    made.supervisor.demands.forget(gone)
    made.bench.readers = [reader for reader in made.bench.readers if reader.stakes[0].bucket is not gone.bucket]
    made.run(1)
    assert made.processors[0].part >= 980_000
    assert 0.95 * RATE <= made.second() <= 1.05 * RATE
    fresh = FakeProcessor(made.bench, 1, ("node",), default_part(2))
    made.processors.append(fresh)
    made.supervisor.alive.append(fresh)
    made.run(1)
    assert sum(each.part for each in made.supervisor.alive) <= WHOLE, "it starts, and is told nothing yet"
    assert fresh.told == []
    made.supervisor.running.append(fresh)
    made.busy(2, 2)
    made.run(2)
    assert within_5_percent(made.second())
    assert abs(fresh.part - made.processors[0].part) <= 100_000


def test_who_does_not_answer_keeps_what_it_has(make: Any) -> None:
    made = make(2)
    made.busy(0)
    made.busy(1)
    made.run(1)
    first, second = made.processors
    first.silent = True
    held = first.part
    for reader in made.bench.readers[:1]:
        reader.leave(made.bench.clock.now)
    made.supervisor.demands.forget(first)
    made.run(1)
    assert first.part == held
    assert second.part <= WHOLE - held
    assert {row["event"] for row in made.log.rows} == {"rates_not_moved"}
    first.silent = False
    made.run(1)
    assert second.part >= 950_000


def test_one_processor_alone_has_all_and_hears_nothing(make: Any) -> None:
    made = make(1, "address")
    made.busy(0)
    assert within_5_percent(made.second() - 20_000)
    assert made.processors[0].told == []


def test_when_there_are_more_or_fewer_the_parts_follow(make: Any) -> None:
    made = make(1)
    made.busy(0)
    made.run(1)
    made.supervisor.desired.shares = {0: 1, 1: 1}
    second = FakeProcessor(made.bench, 1, ("node",), default_part(2))
    made.processors.append(second)
    made.supervisor.alive.append(second)
    made.step()
    made.supervisor.running.append(second)
    made.most = 0  # until control had a look, the first had all of it, and the second its floor
    made.busy(1)
    made.run(2)
    assert within_5_percent(made.second())
    assert abs(second.part - made.processors[0].part) <= 100_000
    made.supervisor.desired.shares = {0: 1}
    made.supervisor.running.remove(second)
    made.run(0.5)
    assert made.processors[0].part < WHOLE, "it has not ended yet"
    made.supervisor.alive.remove(second)
    made.run(0.5)
    assert (made.processors[0].part, made.processors[0].own) == (WHOLE, {})


def test_an_address_that_nobody_asks_for_is_forgotten(make: Any) -> None:
    made = make(2, "address")
    (reader,) = made.busy(0)
    made.run(1)
    first = made.processors[0]
    assert first.own
    reader.leave(made.bench.clock.now)
    made.run(0.5)
    assert [each.own for each in made.processors] == [{}, {}]
    assert first.part == default_part(2)
    count = len(first.told)
    made.run(1)
    assert len(first.told) == count, "nothing changes, and nothing is said"


def test_the_rate_of_an_address_is_its_overrides(make: Any) -> None:
    made = make(2, "address")
    config = made.supervisor.desired.config
    override = LimitOverride(network="192.0.2.0/24", request_bytes_rate=10 * RATE)
    made.supervisor.desired.config = dataclasses.replace(config, limits=dataclasses.replace(config.limits, overrides=(override,)))
    made.bench.add(made.processors[0].bucket, frames=[100_000])
    made.busy(1)
    made.run(0.5)
    assert made.processors[1].part > 900_000, "what the other uses is little of that"


def test_processors_are_told_their_parts_in_a_real_fleet() -> None:
    async def main() -> None:
        async with fleet(2) as made:
            slots = made.supervisor.running
            await until(lambda: all(processor in made.steering._rates._held for processor in slots))
            held = made.steering._rates._held
            await until(lambda: [len(held[processor].parts) for processor in slots] == [8, 8])
            assert {part for processor in slots for part in held[processor].parts.values()} == {500_000}
            assert made.log.events("rates_not_moved") == []
            made.supervisor.demands.hear(slots[0], [])

    asyncio.run(main())
