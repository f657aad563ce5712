"""control.steering.rates: parts of rates follow demand, and never come to more than the rate. Processors are buckets on a clock of the test's."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framegate.control.fleet.desired_state import DesiredState, default_part
from framegate.control.steering.rates import INTERVAL_S, Demand, RateKey, Rates, divided
from framegate.proxy.config.limits import LimitsConfig, ListenerLimits, RateLimits
from framegate.proxy.relay.bucket import WHOLE, Bucket
from framegate.proxy.server.rows import DemandRow
from tests.fakes.fleet import Fleet, fleet_config, run, until
from tests.fakes.readers import Reader, ReaderBench
from tests.fakes.scenario import run_by

RATE = 1_000_000
KEYS = {"node": "", "listener": "a", "address": "192.0.2.1"}


class FakeProcessor:
    """A bucket for the key of each level, with readers; keeps to what it is told."""

    def __init__(self, bench: ReaderBench, slot: int, levels: tuple[str, ...], default: int) -> None:
        self.slot = slot
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

    @property
    def link(self) -> "FakeProcessor":
        return self

    def post(self, message: Any) -> None:
        self.told.append(message)
        self.default = message["default"]
        for row in message["parts"]:
            level = row["level"]
            if level in self.buckets and (row["name"], row["counter"]) == (KEYS[level], "request_bytes"):
                self.own.pop(level, None)
                if row["part"] >= 0:
                    self.own[level] = row["part"]
        for level, bucket in self.buckets.items():
            bucket.set_rate(RATE, self.part_of(level))

    def demand(self) -> list[DemandRow]:
        rows: list[DemandRow] = []
        for name, bucket in self.buckets.items():
            used, waiting, wanting = bucket.demand(self.bench.clock.now)
            level: Any = name
            if waiting or name in self.own:
                rows.append(DemandRow(level=level, name=KEYS[name], counter="request_bytes", used=used, waiting=waiting, wanting=wanting))
        return rows


class FakeSupervisor:
    """So much of a supervisor as rates are divided by."""

    def __init__(self, count: int, limits: LimitsConfig) -> None:
        self.desired = DesiredState(
            fleet_config(count, node_limits=limits, limits=ListenerLimits(request_bytes_rate=RATE)), {}, dict.fromkeys(range(count), 1)
        )
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
        self.most = 0
        supervisor: Any = self.supervisor
        self.rates = Rates(supervisor)
        self.step()

    def step(self) -> None:
        """What is in demand, and another division."""
        for processor in self.supervisor.running:
            self.rates.hear(processor, processor.demand())
        self.rates.divide()
        for level in self.processors[0].buckets:
            self.most = max(self.most, sum(processor.part_of(level) for processor in self.supervisor.alive))

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / INTERVAL_S)):
            self.bench.run(INTERVAL_S, step_ms=2, most=6)
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


def test_many_that_want_little_get_it_beside_some_that_want_all(make: Any) -> None:
    """40 % of the rate is for twenty that want no more, beside one that does; in the other processor is another."""
    made = make(2)
    small = [made.bench.add(made.processors[0].bucket) for _ in range(20)]
    large = [*made.busy(0), *made.busy(1)]
    for turn in range(400):
        for reader in small:
            reader.frames.append(RATE // 50 // 50)
        made.bench.run(0.02, step_ms=2, most=6)
        if turn % 10 == 0:
            made.step()
        if turn == 200:
            before, total = [reader.bytes for reader in large], made.passed
    assert min(reader.bytes - start for reader, start in zip(large, before, strict=True)) >= 0.2 * RATE
    assert 0.95 * 4 * RATE <= made.passed - total <= 1.05 * 4 * RATE
    assert all(len(reader.frames) <= 5 for reader in small)


def test_the_part_that_one_processor_does_not_use_goes_to_the_other(make: Any) -> None:
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
        reader.leave()
    made.run(2)
    assert within_5_percent(made.second())


def test_the_part_of_a_processor_that_died_is_divided_and_its_successor_gets_one(make: Any) -> None:
    made = make(2)
    made.busy(0, 2)
    for reader in made.busy(1, 2):
        reader.more = None
        reader.frames.extend([500] * 2000)
    made.run(2)
    gone = made.supervisor.running.pop(1)
    made.supervisor.alive.remove(gone)
    made.bench.readers = [reader for reader in made.bench.readers if reader.buckets[0] is not gone.bucket]
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


def test_a_rate_without_demand_is_divided_equally_again_and_forgotten(make: Any) -> None:
    made = make(2, "address")
    (reader,) = made.busy(0)
    made.run(2)
    assert made.processors[0].part > 950_000
    assert all(each.own for each in made.processors)
    reader.leave()
    made.run(3)
    assert [(each.own, each.part) for each in made.processors] == [({}, 500_000)] * 2
    counts = [len(each.told) for each in made.processors]
    made.run(1)
    assert [len(each.told) for each in made.processors] == counts, "nothing changes, and nothing is said"
    assert (made.rates._demands, made.rates._parts) == ({}, {})


def test_the_demand_of_a_processor_stays_until_it_reports_again_or_ends(make: Any) -> None:
    made = make(2)
    one, other = made.processors

    def hear(processor: FakeProcessor, **used: int) -> None:
        rows = [DemandRow(level="address", name=name, counter="request_bytes", used=each, waiting=900, wanting=900) for name, each in used.items()]
        made.rates.hear(processor, rows)

    hear(one, a=5, b=6)
    hear(other, a=7)
    hear(one, b=0)
    found = {key.name: demands for key, demands in made.rates._demands.items()}
    assert found == {"a": {one: held_up(5, 900), other: held_up(7, 900)}, "b": {one: held_up(0, 900)}}
    made.supervisor.alive.remove(one)
    made.supervisor.running.remove(one)
    made.rates.divide()
    assert made.rates._demands == {RateKey("address", "a", "request_bytes"): {other: held_up(7, 900)}}


def test_rates_without_demand_are_not_sent(make: Any) -> None:
    made = make(2)
    quiet = made.bench.add(made.processors[0].bucket)
    for _ in range(100):
        quiet.frames.append(RATE // 100)  # of half of the rate, a fifth
        made.run(0.2)
    assert [each.told for each in made.processors] == [[], []]


@pytest.mark.slow
@pytest.mark.parametrize("counts", [(1, 1), (1, 3), (20, 1), (1, 0), (25, 25)])
@pytest.mark.parametrize("late_ms", [30, 80, 300])
def test_two_processors_that_run_late_keep_the_rate_to_3_percent_over_30_seconds(make: Any, counts: tuple[int, ...], late_ms: int) -> None:
    """As on a machine that is busy: each seventh poll comes late."""
    made = make(2)
    for number, count in enumerate(counts):
        made.busy(number, count)
    made.run(2)
    steps = itertools.cycle([1, 1, 2, 1, 5, 1, late_ms])
    begin_ns, before = made.bench.clock.now, made.passed
    next_ns = begin_ns
    while made.bench.clock.now < begin_ns + 30 * 10**9:
        made.bench.events(60)
        made.bench.clock.advance_ms(next(steps))
        made.bench.selector.poll(0)
        if made.bench.clock.now >= next_ns:
            made.step()
            next_ns = made.bench.clock.now + 200_000_000
    passed = (made.passed - before) * 10**9 / (made.bench.clock.now - begin_ns)
    assert 0.97 * RATE <= passed <= 1.03 * RATE


def test_connections_limited_by_a_lower_rate_leave_the_rest_of_a_higher_one_to_others(make: Any) -> None:
    made = make(2)
    narrow = made.bench.bucket(3 * RATE // 10)
    reader = made.bench.add(narrow, made.processors[0].bucket, more=lambda: 500)
    made.busy(1)
    made.run(4)
    had_before = reader.bytes
    assert 0.97 * 4 * RATE <= sum(made.second() for _ in range(4)) <= 1.03 * 4 * RATE
    assert 0.97 * 12 * RATE / 10 <= reader.bytes - had_before <= 1.03 * 12 * RATE / 10


@run_by(run)
async def test_a_real_fleet_gets_parts_of_rates_in_demand(made: Fleet) -> None:
    row = DemandRow(level="node", name="", counter="request_bytes", used=500_000, waiting=3000, wanting=3000)
    made.supervisor.on_demand(made.supervisor.running[0], [row])
    rates = made.steering._rates
    await until(lambda: [len(each) for each in rates._parts.values()] == [2])
    assert sum(part for each in rates._parts.values() for part in each.values()) <= WHOLE


# The division.


def held_up(used: int, connections: int) -> Demand:
    return Demand(used, connections, connections)


@pytest.mark.parametrize(
    ("asked", "parts"),
    [
        ([Demand(0)], [WHOLE]),
        ([Demand(0), Demand(0)], [500_000, 500_000]),
        ([Demand(100_000), Demand(0)], [550_000, 450_000]),
        ([held_up(0, 1000), Demand(0)], [995_000, 5_000]),
        ([held_up(0, 1000), held_up(0, 3000)], [250_000, 750_000]),
        ([Demand(200_000), held_up(790_000, 1000)], [210_000, 790_000]),
        ([Demand(800_000), held_up(100_000, 3000)], [250_000, 750_000]),
        ([Demand(600_000), Demand(600_000)], [500_000, 500_000]),
    ],
    ids=["one", "idle", "some", "all of it", "by connections", "content first", "no more than its part", "too much"],
)
def test_small_demands_are_met_and_the_rest_is_shared_by_connections(asked: list[Demand], parts: list[int]) -> None:
    assert divided(WHOLE, asked) == parts


ASKED = st.builds(lambda used, waiting: Demand(used, waiting, waiting), st.integers(0, WHOLE), st.one_of(st.just(0), st.integers(1, 10**8)))


@given(asked=st.lists(ASKED, min_size=1, max_size=20), whole=st.integers(0, WHOLE))
def test_all_of_it_is_given_and_no_more(asked: list[Demand], whole: int) -> None:
    parts = divided(whole, asked)
    assert len(parts) == len(asked)
    assert min(parts) >= 0
    assert whole - len(asked) <= sum(parts) <= whole


@given(asked=st.lists(ASKED, min_size=2, max_size=8))
def test_each_waiting_connection_gets_the_same_and_no_processor_more(asked: list[Demand]) -> None:
    parts = divided(WHOLE, asked)
    had = [parts[number] / max(each.wanting, 1000) for number, each in enumerate(asked) if each.waiting]
    if had:
        assert max(had) - min(had) <= 1
        assert all(parts[number] / 1000 <= max(had) + 1 for number, each in enumerate(asked) if not each.waiting)
