"""framegate.proxy.network.memory_pool: what is booked is counted once, by kind and by listener, and says when memory is short."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framegate.proxy.network.admission_slots import ONE_READ, AdmissionSlot
from framegate.proxy.network.memory_pool import BEGUN, PENDING, SPARE_PART, TLS, MemoryPool, with_overhead
from framegate.proxy.network.receive import JOIN_BELOW, Receive, ReceiveLimit
from framegate.proxy.network.run import Run
from framegate.proxy.network.stats import SideStats
from tests.fakes.admission_slots import Owner
from tests.fakes.cases import each_of
from tests.fakes.clock import MS, FakeClock

MIB = 1 << 20


def make(size: int = 16 * MIB) -> MemoryPool:
    return MemoryPool(size, FakeClock().now_ns)


@each_of("size", [0, -1])
def test_a_pool_has_a_size(size: int) -> None:
    with pytest.raises(ValueError, match="a pool of"):
        make(size)
    with pytest.raises(ValueError, match="a pool of"):
        make(1).resize(size)


# Booking.


def test_what_is_booked_is_counted_by_kind() -> None:
    pool = make()
    for kind, size in ((BEGUN, 1), (PENDING, 20), (TLS, 300)):
        pool.common.charge(kind, size)
    assert (pool.begun, pool.pending, pool.tls, pool.used, pool.sends, pool.common.used) == (1, 20, 300, 321, 320, 321)
    pool.common.transfer(1)
    assert (pool.begun, pool.pending, pool.used, pool.sends) == (0, 21, 321, 321)
    pool.common.release(PENDING, 21)
    pool.common.release(TLS, 300)
    assert (pool.begun, pool.pending, pool.tls, pool.used, pool.sends, pool.common.used) == (0, 0, 0, 0, 0, 0)


def test_more_than_was_booked_cannot_be_given_back() -> None:
    pool = make()
    pool.common.charge(BEGUN, 5)
    other = pool.account(10)
    other.charge(BEGUN, 5)
    for account, size in ((pool.common, 6), (other, 6), (pool.common, -1)):
        with pytest.raises(AssertionError):
            account.release(BEGUN, size)
    with pytest.raises(AssertionError):
        pool.common.charge(BEGUN, -1)
    assert (pool.used, pool.begun) == (10, 10)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 4 * MIB)), max_size=30), st.integers(1, 16 * MIB), st.integers(0, 60))
def test_the_sums_hold_for_any_bookings(bookings: list[tuple[int, int, int]], size: int, percent: int) -> None:
    pool = make(size)
    accounts = [pool.common, pool.account(percent), pool.account(40)]

    def check() -> None:
        assert pool.used == pool.begun + pool.pending + pool.tls == sum(account.used for account in accounts)
        assert pool.sends == pool.pending + pool.tls
        assert pool.unspent == sum(max(int(pool.line) * account.percent // 100 - account.used, 0) for account in accounts)

    for index, kind, booked in bookings:
        accounts[index].charge(kind, booked)
        check()
    pool.resize(size * 2)
    check()
    for index, kind, booked in bookings[::-1]:
        accounts[index].release(kind, booked)
        check()
    assert pool.used == 0


# When memory is short.


@each_of(
    ("size", "spare"),
    [(64 * MIB, 64 * MIB // SPARE_PART), (2 * MIB, ONE_READ), (2 * MIB + 8, ONE_READ + 1), (MIB, ONE_READ), (ONE_READ, ONE_READ // 2), (1, 0)],
)
def test_an_eighth_or_a_read_is_spare_but_never_more_than_half(size: int, spare: int) -> None:
    pool = make(size)
    assert (pool.spare, pool.line) == (spare, size - spare)


@each_of(("answers", "less"), [(False, "line"), (True, "size")])
def test_memory_is_short_from_the_line_on_and_for_answers_when_all_is_used(answers: bool, less: str) -> None:
    pool = make()
    edge = int(getattr(pool, less))
    pool.common.charge(BEGUN, edge - 1)
    assert not pool.common.is_short(answers=answers)
    pool.common.charge(BEGUN, 1)
    assert pool.common.is_short(answers=answers)


def test_what_is_promised_is_as_good_as_held() -> None:
    pool = make()
    pool.common.charge(PENDING, int(pool.line))
    slot = AdmissionSlot(pool.requests, Owner(), MIB)
    assert slot.ask(MIB)
    assert pool.promised == MIB
    pool.common.release(PENDING, MIB)
    assert pool.common.is_short(answers=False)
    pool.common.release(PENDING, 1)
    assert not pool.common.is_short(answers=False)


def test_the_bound_is_the_pool_the_largest_frames_with_their_overhead_and_one_read() -> None:
    pool = make()
    assert pool.bound == pool.size + 2 * ONE_READ
    pool.set_largest(5 * MIB, 3 * MIB)
    assert pool.bound == pool.size + with_overhead(5 * MIB) + with_overhead(3 * MIB) + 2 * ONE_READ


@each_of("sizes", [[JOIN_BELOW, 1], [JOIN_BELOW - 1], [1], [JOIN_BELOW], [ONE_READ, 1], [1, JOIN_BELOW - 1, JOIN_BELOW - 1]])
def test_a_frame_books_no_more_than_is_said_however_it_comes(sizes: list[int]) -> None:
    pool = make(64 * MIB)
    receive = Receive(pool.common, ReceiveLimit(-1), SideStats())
    total = 256 * 1024
    receive.feed((total - 4).to_bytes(4, "big"))
    run: Run | None = None
    while run is None:
        for size in sizes:
            left = total - int(receive.staged)
            if left == 1:
                run = receive.feed(b"x")
                break
            receive.feed(bytes(min(size, left - 1)))
    assert run.lease <= with_overhead(total)
    pool.common.release(BEGUN, run.lease)


# Guarantees.


def test_no_more_is_guaranteed_than_there_is() -> None:
    pool = make()
    for percent in (-1, 101):
        with pytest.raises(ValueError, match="a share of"):
            pool.account(percent)
    pool.account(60)
    with pytest.raises(ValueError, match="a share of 41 %"):
        pool.account(41)
    pool.account(40)


def test_what_is_guaranteed_and_not_held_counts_as_held_for_the_others() -> None:
    pool = make()
    guaranteed = pool.account(25)
    part = int(pool.line) * 25 // 100
    assert pool.unspent == part
    pool.common.charge(BEGUN, int(pool.line) - part - 1)
    assert not pool.common.is_short(answers=False)
    pool.common.charge(BEGUN, 1)
    assert pool.common.is_short(answers=False)
    assert not guaranteed.is_short(answers=False)
    guaranteed.charge(BEGUN, part - 1)
    assert (pool.unspent, guaranteed.is_short(answers=False)) == (1, False)
    guaranteed.charge(BEGUN, 1)
    assert (pool.unspent, guaranteed.is_short(answers=False)) == (0, True)
    guaranteed.charge(BEGUN, MIB)
    assert pool.unspent == 0
    guaranteed.release(BEGUN, MIB + 1)
    assert pool.unspent == 1


def test_large_frames_of_others_do_not_use_up_what_is_guaranteed() -> None:
    pool = make()
    pool.account(25)
    pool.common.charge(PENDING, int(pool.line - pool.unspent))
    fits = int(pool.spare)
    first, second = (AdmissionSlot(pool.requests, Owner(), MIB) for _ in range(2))
    assert first.ask(fits)
    assert pool.promised == fits
    assert second.ask(1)
    assert pool.requests.reserved is second


def test_a_guarantee_grows_and_shrinks_with_the_pool() -> None:
    pool = make()
    account = pool.account(50)
    account.charge(BEGUN, MIB)
    for size in (64 * MIB, MIB, 2 * MIB, 16 * MIB):
        pool.resize(size)
        assert pool.unspent == max(int(pool.line) // 2 - MIB, 0)


# Waking.


def test_a_release_wakes_the_request_that_waits() -> None:
    for requests in (True, False):
        pool = make()
        pool.set_largest(MIB, MIB)
        held = 16 * MIB + 1 if requests else pool.reserve_threshold(pool.answers) + 1
        pool.common.charge(PENDING, held)
        slot = AdmissionSlot(pool.requests if requests else pool.answers, Owner(), MIB)
        assert not slot.ask(MIB)
        pool.common.release(PENDING, 1)
        assert slot.is_in, "requests" if requests else "answers"


def test_a_larger_pool_wakes_and_a_smaller_one_takes_nothing_back() -> None:
    pool = make()
    pool.common.charge(PENDING, 16 * MIB + 1)
    slot = AdmissionSlot(pool.requests, Owner(), MIB)
    assert not slot.ask(MIB)
    pool.resize(16 * MIB)
    assert not slot.is_in
    pool.resize(16 * MIB + 1)
    assert slot.is_in
    pool.resize(MIB)
    assert (slot.is_in, pool.used, pool.common.is_short(answers=True)) == (True, 16 * MIB + 1, True)
    answers = make()
    answers.set_largest(MIB, MIB)
    answers.common.charge(PENDING, 18 * MIB)
    slot = AdmissionSlot(answers.answers, Owner(), MIB)
    assert not slot.ask(MIB)
    answers.set_largest(2 * MIB, MIB)
    assert slot.is_in, "so does another size of the largest request"


def test_a_dry_spell_is_one_however_many_wait_in_it_and_ends_with_the_last() -> None:
    """Time without memory is counted once for all requests of both directions, until the last is granted or given up. Each wait is observed."""
    clock = FakeClock()
    pool = MemoryPool(16 * MIB, clock.now_ns)
    dry_ms = 0
    for spells, gives_up in enumerate((False, True)):
        pool.common.charge(PENDING, 32 * MIB)
        slots = [AdmissionSlot(slots, Owner(), MIB) for slots in (pool.requests, pool.answers, pool.requests)]
        clock.advance_ms(50)
        for slot in slots:
            assert not slot.ask(MIB)
            clock.advance_ms(3)
        dry_ms += 9
        assert (pool.shortages, pool.depleted_total_ns(), pool.waiting) == (spells, dry_ms * MS, 3)
        if not gives_up:
            pool.common.release(PENDING, 32 * MIB)
        for slot in slots:
            slot.leave()
            clock.advance_ms(2)
        dry_ms += 4 if gives_up else 0  # two of them waited longer
        assert (pool.shortages, pool.depleted_total_ns(), pool.most_used) == (spells + 1, dry_ms * MS, 32 * MIB)
        assert (pool.waiting, pool.waits.count, pool.waits.sum) == (0, 3, (9 + 6 + 3) * MS), "only those that were granted"
    pool.common.release(PENDING, 32 * MIB)
    assert AdmissionSlot(pool.requests, Owner(), MIB).ask(MIB)
    assert (pool.shortages, pool.refused) == (2, 6)
