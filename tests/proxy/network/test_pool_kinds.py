"""The kinds of memory pool: what each promises, in a pool, and over sockets."""

import pytest

from framegate.proxy.network.admission_slots import AdmissionSlot
from framegate.proxy.network.leak_finding import LeakFindingPool
from framegate.proxy.network.memory_pool import BEGUN, PENDING, TLS, MemoryPool
from framegate.proxy.network.pool_kinds import UnboundedPool, make_pool
from tests.fakes.admission_slots import Owner
from tests.fakes.clock import FakeClock

MIB = 1 << 20


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.mark.parametrize(("kind", "made"), [("bounded", MemoryPool), ("unbounded", UnboundedPool), ("leak_finding", LeakFindingPool)])
def test_a_pool_is_of_the_kind_that_was_asked_for(clock: FakeClock, kind: str, made: type) -> None:
    pool = make_pool(kind, MIB, clock.now_ns)
    assert type(pool) is made
    assert pool.size == MIB
    for size in (0, -1):
        with pytest.raises(ValueError, match="a pool of"):
            make_pool(kind, size, clock.now_ns)


def test_no_other_kind_is_made(clock: FakeClock) -> None:
    with pytest.raises(ValueError, match="no kind of memory pool is called greedy"):
        make_pool("greedy", MIB, clock.now_ns)


@pytest.mark.parametrize("size", [1 << 16, 1 << 40])
def test_an_unbounded_pool_counts_and_is_never_short(clock: FakeClock, size: int) -> None:
    """However much more than its size is held, of whatever kind, and whatever listeners were to be guaranteed."""
    pool = make_pool("unbounded", size, clock.now_ns)
    first, second = pool.account(60), pool.account(40)
    held = 0
    for account in (first, second, pool.common):
        for kind in (BEGUN, PENDING, TLS):
            account.charge(kind, 3 * size)
            held += 3 * size
    assert (pool.used, pool.begun, pool.pending, pool.tls, pool.most_used) == (held, held // 3, held // 3, held // 3, held)
    for account in (first, second, pool.common):
        assert not account.is_short(answers=False)
        assert not account.is_short(answers=True)
    pool.resize(size // 2)
    assert not first.is_short(answers=False)
    for account in (first, second, pool.common):
        for kind in (BEGUN, PENDING, TLS):
            account.release(kind, 3 * size)
    assert (pool.used, pool.unspent, pool.shortages) == (0, 0, 0)


@pytest.mark.parametrize("kind", ["bounded", "leak_finding"])
def test_the_other_kinds_are_short_from_the_same_byte_on(clock: FakeClock, kind: str) -> None:
    pool = make_pool(kind, 16 * MIB, clock.now_ns)
    pool.set_largest(MIB, 0)
    pool.common.charge(PENDING, int(pool.line) - 1)
    assert not pool.common.is_short(answers=False)
    pool.common.charge(PENDING, 1)
    assert pool.common.is_short(answers=False)
    pool.common.charge(PENDING, int(pool.size - pool.line) - 1)
    assert not pool.common.is_short(answers=True)
    pool.common.charge(PENDING, 1)
    assert pool.common.is_short(answers=True)
    pool.common.charge(PENDING, 4 * MIB)
    assert not AdmissionSlot(pool.requests, Owner(), MIB).ask(MIB)
