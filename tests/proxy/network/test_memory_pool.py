"""proxy.network.memory_pool: granted while anything is left, given back exactly once, oldest waiter first."""

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

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


def test_who_begins_to_wait_after_its_spell_is_over_and_a_charge_began_another_is_woken(clock: FakeClock) -> None:
    pool = make(10, clock)
    log: list[Waiter] = []
    pool.charge(10)
    assert not pool.try_lease(1)
    pool.release(10)
    pool.charge(10)
    pool.wait(Waiter(pool, 1, log))
    clock.advance_ms(3)
    assert (log, pool.depleted_total_ns()) == ([], 3 * MS)
    pool.release(1)
    assert (len(log), pool.waiting) == (1, 0)


def test_a_waiter_that_fails_leaves_the_others_in_a_line_that_moves(clock: FakeClock) -> None:
    class Failing(MemoryWaiter):
        def memory_available(self) -> None:
            raise RuntimeError("a bug")

    pool = make(10, clock)
    log: list[Waiter] = []
    pool.charge(10)
    assert not pool.try_lease(1)
    pool.wait(Failing())
    pool.wait(Waiter(pool, 1, log))
    with pytest.raises(RuntimeError):
        pool.release(1)
    pool.release(1)
    assert (len(log), pool.waiting) == (1, 0)


class Asker(MemoryWaiter):
    """The beginning of a frame, booked, that asks for the rest; when it is told, it takes that and does ``then``."""

    def __init__(self, desk: "Desk", held: int, then: str) -> None:
        self.desk = desk
        self.held = held
        self.then = then

    def memory_available(self) -> None:
        desk = self.desk
        desk.waiting.remove(self)
        assert desk.pool.try_lease(1, self.held), "who is told is granted"
        desk.booked.append(self.held + 1)
        if self.then == "charges":
            desk.charge(2)
        elif self.then == "gives back":
            desk.release()


class Desk:
    """A small pool, and everybody who has anything to do with it."""

    ACTS: Final = (
        *(("charge", size) for size in (1, 2)),
        *(("ask", held, then) for held in (0, 1) for then in ("keeps", "charges", "gives back")),
        *(("resize", size) for size in (1, 2)),
        ("wait",),
        ("leave",),
        ("release",),
    )

    def __init__(self, path: Sequence[tuple[Any, ...]]) -> None:
        self.clock = FakeClock()
        self.pool = MemoryPool(1, self.clock.now_ns)
        self.booked: list[int] = []
        self.refused: list[Asker] = []
        self.waiting: list[Asker] = []
        for act, *arguments in path:
            getattr(self, act)(*arguments)

    def charge(self, size: int) -> None:
        self.pool.charge(size)
        self.booked.append(size)

    def ask(self, held: int, then: str) -> None:
        self.pool.charge(held)
        if self.pool.try_lease(1, held):
            self.booked.append(held + 1)
        else:
            self.refused.append(Asker(self, held, then))

    def wait(self) -> None:
        if self.refused:
            asker = self.refused.pop(0)
            self.waiting.append(asker)
            self.pool.wait(asker, asker.held)

    def leave(self) -> None:
        if self.waiting:
            asker = self.waiting.pop(0)
            self.pool.leave(asker)
            self.pool.release(asker.held)

    def release(self) -> None:
        if self.booked:
            self.pool.release(self.booked.pop(0))

    def resize(self, size: int) -> None:
        self.pool.resize(size)

    @property
    def parked(self) -> int:
        return sum(asker.held for asker in self.waiting)

    def state(self) -> tuple[Any, ...]:
        """What decides about everything that may follow."""
        asked = [(asker.held, asker.then) for asker in (*self.refused, *self.waiting)]
        return int(self.pool.size), tuple(self.booked), tuple(asked), len(self.waiting), bool(self.pool._depleted_since >= 0)

    def check(self) -> None:
        """What holds at any time; then, what holds when everybody has gone. The desk is used up."""
        pool = self.pool
        assert pool.used == sum(self.booked) + self.parked + sum(asker.held for asker in self.refused)
        assert pool.waiting == len(self.waiting)
        assert not self.waiting or pool.used - self.parked >= pool.size, "somebody waits although there is something to be had"
        for asker in self.refused:
            pool.release(asker.held)
        while self.booked:
            self.release()
        assert (pool.used, pool.waiting, self.waiting) == (0, 0, []), "somebody waits for ever"


def test_nobody_waits_while_there_is_something_whatever_happened_in_whatever_order() -> None:
    """Every state that two who ask and two bookings of others can reach, by the shortest way to it."""
    seen: set[tuple[Any, ...]] = set()
    paths: deque[tuple[tuple[Any, ...], ...]] = deque([()])
    while paths:
        path = paths.popleft()
        desk = Desk(path)
        state = desk.state()
        if state in seen or len(desk.booked) > 2 or len(desk.refused) + len(desk.waiting) > 2:
            continue
        seen.add(state)
        try:
            desk.check()
        except AssertionError as error:
            raise AssertionError(f"after {path}: {error}") from error
        paths.extend((*path, act) for act in Desk.ACTS)
    assert len(seen) > 1000
