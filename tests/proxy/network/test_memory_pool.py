"""proxy.network.memory_pool: granted while anything is left, given back exactly once, oldest waiter first."""

import pytest

from proxy.network.memory_pool import MemoryPool, MemoryWaiter
from tests.fakes.clock import MS, FakeClock


class Waiter(MemoryWaiter):
    """Leases ``size`` bytes when it is told, and notes that."""

    def __init__(self, pool: MemoryPool, size: int, log: list["Waiter"], held: int = 0) -> None:
        self.pool = pool
        self.size = size
        self.held = held
        self.log = log

    def memory_available(self) -> None:
        assert self.pool.try_lease(self.size, self.held), "who is told is granted"
        self.log.append(self)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def make(size: int, clock: FakeClock) -> MemoryPool:
    return MemoryPool(size, clock.now_ns)


@pytest.mark.parametrize("size", [0, -1])
def test_a_pool_has_a_size(size: int, clock: FakeClock) -> None:
    with pytest.raises(ValueError, match="a pool of"):
        make(size, clock)
    with pytest.raises(ValueError, match="a pool of"):
        make(1, clock).resize(size)


@pytest.mark.parametrize("size", [0, -1])
def test_a_lease_of_nothing_is_a_mistake(size: int, clock: FakeClock) -> None:
    with pytest.raises(ValueError, match="a lease of"):
        make(1, clock).try_lease(size)


def test_anything_left_grants_one_lease_of_any_size(clock: FakeClock) -> None:
    pool = make(21, clock)
    assert [pool.try_lease(10) for _ in range(3)] == [True] * 3
    assert pool.available == -9
    assert not pool.try_lease(1)
    assert pool.used == 30
    pool.release(10)
    assert pool.try_lease(10)
    pool.release(30)
    assert pool.used == 0


def test_nothing_left_is_refused_at_exactly_zero(clock: FakeClock) -> None:
    pool = make(10, clock)
    assert pool.try_lease(9)
    assert pool.try_lease(1)
    assert not pool.try_lease(1)
    assert pool.refused == 1


def test_a_charge_is_never_refused(clock: FakeClock) -> None:
    pool = make(10, clock)
    pool.charge(25)
    assert (pool.used, pool.available) == (25, -15)
    pool.release(25)


def test_more_than_was_booked_cannot_be_given_back(clock: FakeClock) -> None:
    pool = make(10, clock)
    pool.charge(5)
    with pytest.raises(AssertionError):
        pool.release(6)
    with pytest.raises(AssertionError):
        pool.release(-1)


def test_waiters_are_served_oldest_first_while_anything_is_left(clock: FakeClock) -> None:
    pool = make(10, clock)
    log: list[Waiter] = []
    pool.charge(10)
    waiters = [Waiter(pool, 6, log) for _ in range(3)]
    for waiter in waiters:
        assert not pool.try_lease(6)
        pool.wait(waiter)
        clock.advance_ms(1)
    pool.release(10)
    assert log == waiters[:2]
    assert pool.waiting == 1
    assert (pool.waits, pool.wait_ns, pool.longest_wait_ns) == (2, 5 * MS, 3 * MS)
    pool.release(12)
    assert log == waiters


def test_who_leaves_is_not_told(clock: FakeClock) -> None:
    pool = make(10, clock)
    log: list[Waiter] = []
    pool.charge(10)
    first, second = Waiter(pool, 1, log), Waiter(pool, 1, log)
    assert not pool.try_lease(1)
    pool.wait(first)
    pool.wait(second)
    pool.leave(first)
    pool.leave(first)
    pool.release(1)
    assert log == [second]


def test_what_waiters_have_booked_stands_in_nobodys_way(clock: FakeClock) -> None:
    pool = make(10, clock)
    log: list[Waiter] = []
    pool.charge(10)
    for _ in range(3):
        pool.charge(8)
        assert not pool.try_lease(5, 8)
        pool.wait(Waiter(pool, 5, log, 8), 8)
    pool.release(10)
    assert (len(log), pool.available) == (1, 10 - 24 - 5)
    for served in (2, 3, 3):
        pool.release(8 + 5)
        assert len(log) == served
    assert pool.used == 0


def test_who_is_granted_for_what_it_holds_does_not_end_the_wait_of_others(clock: FakeClock) -> None:
    pool = make(10, clock)
    log: list[Waiter] = []
    pool.charge(4)
    pool.charge(6)
    assert not pool.try_lease(1)
    pool.wait(Waiter(pool, 1, log))
    assert pool.try_lease(1, 4)
    assert log == []
    pool.release(11)
    assert len(log) == 1


def test_who_begins_to_wait_when_something_has_come_back_is_told_at_once(clock: FakeClock) -> None:
    pool = make(10, clock)
    log: list[Waiter] = []
    pool.charge(10)
    assert not pool.try_lease(1)
    pool.release(10)
    pool.wait(Waiter(pool, 1, log))
    assert len(log) == 1
    assert pool.waiting == 0


def test_growing_wakes_and_shrinking_grants_nothing_until_below(clock: FakeClock) -> None:
    pool = make(10, clock)
    log: list[Waiter] = []
    pool.charge(10)
    assert not pool.try_lease(5)
    pool.wait(Waiter(pool, 5, log))
    pool.resize(10)
    assert log == []
    pool.resize(11)
    assert len(log) == 1
    pool.resize(4)
    assert not pool.try_lease(1)
    pool.release(11)
    assert not pool.try_lease(1)
    pool.release(1)
    assert pool.try_lease(1)


def test_a_dry_spell_is_measured_once_from_the_first_refusal(clock: FakeClock) -> None:
    pool = make(10, clock)
    pool.charge(10)
    clock.advance_ms(100)
    assert pool.depleted_total_ns() == 0
    assert not pool.try_lease(1)
    clock.advance_ms(3)
    assert not pool.try_lease(1)
    clock.advance_ms(4)
    assert pool.depleted_total_ns() == 7 * MS
    pool.release(1)
    assert (pool.depleted_ns, pool.depleted_total_ns()) == (7 * MS, 7 * MS)


def test_a_spell_goes_on_while_somebody_waits(clock: FakeClock) -> None:
    pool = make(10, clock)
    log: list[Waiter] = []
    pool.charge(10)
    for _ in range(2):
        assert not pool.try_lease(10)
        pool.wait(Waiter(pool, 10, log))
    clock.advance_ms(1)
    pool.release(1)
    clock.advance_ms(1)
    assert len(log) == 1
    assert pool.depleted_total_ns() == 2 * MS
