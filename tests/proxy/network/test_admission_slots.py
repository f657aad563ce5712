"""framegate.proxy.network.admission_slots: who is let in, in which order, within which bound, and that nobody is left waiting for nothing."""

import pytest

from framegate.proxy.network.admission_slots import FIRST_PORTION, LARGEST_PORTION, MIN_STALLED_BYTES, ONE_READ, AdmissionSlot, AdmissionSlots
from framegate.proxy.network.memory_pool import BEGUN, PENDING, MemoryPool
from tests.fakes.admission_slots import Owner
from tests.fakes.cases import each_of
from tests.fakes.clock import MS, FakeClock


class Bench:
    """A pool of 16 reads, of which two are spare; frames of up to four pass whole, each way."""

    def __init__(self, *, size: int = 16, request: int = 4, answer: int = 4) -> None:
        self.clock = FakeClock()
        self.pool = MemoryPool(size * ONE_READ, self.clock.now_ns)
        self.pool.set_largest(request * ONE_READ, answer * ONE_READ)
        self.largest = int(self.pool.requests.largest)
        self.told: list[Owner] = []

    def fill(self, reads: float, kind: int = BEGUN) -> None:
        self.pool.common.charge(kind, int(reads * ONE_READ))

    def free(self, reads: float, kind: int = BEGUN) -> None:
        self.pool.common.release(kind, int(reads * ONE_READ))

    def slot(self, slots: AdmissionSlots | None = None) -> AdmissionSlot:
        return AdmissionSlot(slots or self.pool.requests, Owner(self.told), 4 * ONE_READ)

    def ask(self, slot: AdmissionSlot, reads: float) -> bool:
        return slot.ask(int(reads * ONE_READ))

    def read(self, slot: AdmissionSlot, reads: float) -> None:
        self.fill(reads)
        slot.read(int(reads * ONE_READ))


@pytest.fixture
def bench() -> Bench:
    return Bench()


# Getting in.


def test_what_fits_is_let_in_and_promised(bench):
    bench.fill(12)
    slot = bench.slot()
    assert bench.ask(slot, 4)
    assert (slot.is_in, slot.is_waiting, bench.pool.requests.admitted) == (True, False, [slot])
    assert bench.pool.promised == 4 * ONE_READ
    assert bench.pool.requests.reserved is None
    bench.read(slot, 3)
    assert (slot.missing, bench.pool.promised) == (ONE_READ, ONE_READ)
    bench.read(slot, 1)
    slot.leave()
    assert (slot.is_in, bench.pool.promised, bench.pool.requests.admitted) == (False, 0, [])


def test_one_byte_more_than_fits_takes_the_reserve(bench):
    bench.fill(12)
    slot = bench.slot()
    assert slot.ask(4 * ONE_READ + 1)
    assert bench.pool.requests.reserved is slot
    assert bench.pool.promised == 0


def test_the_reserve_is_lent_to_one_at_a_time(bench):
    bench.fill(14)
    first, second = bench.slot(), bench.slot()
    assert bench.ask(first, 4)
    assert not bench.ask(second, 4)
    assert (second.is_waiting, bench.pool.requests.waiting, bench.pool.requests.refused) == (True, 1, 1)
    first.leave()
    assert bench.pool.requests.reserved is second
    assert bench.told == [second.owner]


@pytest.mark.parametrize(("over", "lent"), [(0, True), (1, False)])
def test_the_reserve_is_lent_while_nothing_is_held_beyond_the_pool(bench, over, lent):
    bench.fill(16, PENDING)
    bench.pool.common.charge(PENDING, over)
    assert bench.ask(bench.slot(), 1) is lent


def test_what_is_promised_keeps_the_reserve_from_the_next_as_what_is_held_does(bench):
    """A pool that has shrunk: what is promised will be held, beyond it."""
    bench.fill(12, PENDING)
    assert bench.ask(bench.slot(), 4)
    bench.free(2, PENDING)
    bench.pool.resize(13 * ONE_READ)
    last = bench.slot()
    assert not bench.ask(last, 4)
    bench.free(1, PENDING)
    assert last.is_in


def test_what_a_frame_left_beyond_the_pool_keeps_the_reserve_from_the_next(bench):
    """It is whole, and waits for its socket."""
    bench.fill(16)
    first, second = bench.slot(), bench.slot()
    assert bench.ask(first, 4)
    bench.read(first, 4)
    bench.pool.common.transfer(4 * ONE_READ)
    first.leave()
    assert not bench.ask(second, 4)
    bench.free(3, PENDING)
    assert second.is_in, "of what goes away by itself no more is left than one read"
    assert bench.pool.used <= bench.pool.size + ONE_READ


def test_a_pool_full_of_frames_begun_lends_the_reserve_whatever_is_beyond(bench):
    """It has shrunk, or many have each begun a little."""
    bench.fill(20)
    slot = bench.slot()
    assert bench.ask(slot, 4)
    assert bench.pool.requests.reserved is slot


def test_slots_are_granted_in_order_though_a_later_one_would_fit(bench):
    bench.fill(16)
    holder, large, small = bench.slot(), bench.slot(), bench.slot()
    assert bench.ask(holder, 4)
    assert not bench.ask(large, 4)
    assert not bench.ask(small, 1)
    bench.free(2)
    assert bench.told == []
    bench.free(2)
    assert bench.told == [large.owner]
    bench.free(1)
    assert bench.told == [large.owner, small.owner]


def test_answers_have_a_reserve_of_their_own_beyond_that_of_requests(bench):
    bench.fill(16)
    request, answer = bench.slot(), bench.slot(slots=bench.pool.answers)
    assert bench.ask(request, 4)
    bench.read(request, 4)
    assert bench.pool.used == bench.pool.size + 4 * ONE_READ < bench.pool.size + bench.largest
    assert bench.ask(answer, 4)
    bench.read(answer, 4)
    assert bench.pool.answers.reserved is answer
    assert bench.pool.used <= bench.pool.bound


def test_slots_that_fit_are_granted_at_once_and_one_that_does_not_gets_the_reserve(bench):
    bench.fill(10)
    slots = [bench.slot() for _ in range(3)]
    assert [bench.ask(slot, 3) for slot in slots] == [True] * 3
    assert bench.pool.promised == 6 * ONE_READ
    assert bench.pool.requests.reserved is slots[2]


# What seems to be there.


def test_one_is_always_trusted_and_more_up_to_one_read(bench):
    slots = bench.pool.requests
    assert slots.trust(2 * ONE_READ)
    assert not slots.trust(1)
    slots.end_trust(2 * ONE_READ)
    assert [slots.trust(size) for size in (ONE_READ - 1, 2, 1, 1)] == [True, False, True, False]
    assert bench.pool.answers.trust(0)
    assert not bench.pool.answers.trust(1), "it is one figure for both directions"


# Leaving, and losing it.


def test_leaving_is_harmless_twice_and_without_a_slot_and_a_request_that_left_is_not_granted(bench):
    slot = bench.slot()
    slot.leave()
    bench.fill(14)
    bench.ask(slot, 4)
    slot.leave()
    slot.leave()
    assert (bench.pool.promised, bench.pool.requests.reserved, bench.pool.waiting) == (0, None, 0)
    bench.fill(2)
    holder, gone, last = bench.slot(), bench.slot(), bench.slot()
    for one in (holder, gone, last):
        bench.ask(one, 4)
        with pytest.raises(AssertionError):  # a second request of one slot is a bug
            bench.ask(one, 4)
    gone.leave()
    holder.leave()
    assert bench.told == [last.owner]


def test_a_lost_turn_takes_its_promise_back_and_asks_for_twice_the_evidence(bench):
    bench.fill(12)
    slot = bench.slot()
    bench.ask(slot, 4)
    bench.read(slot, 1)
    bench.pool.requests.revoke(slot)
    assert (slot.is_in, bench.pool.promised, slot.portion) == (False, 0, 2 * FIRST_PORTION)
    for _ in range(10):
        bench.ask(slot, 3)
        bench.pool.requests.revoke(slot)
    assert slot.portion == LARGEST_PORTION


@each_of(("held", "keeps"), [(14, False), (16, True)])
def test_a_frame_that_loses_its_slot_keeps_the_reserve_while_it_holds_bytes_beyond_the_pool(held, keeps):
    bench = Bench()
    bench.fill(held)
    first, second = bench.slot(), bench.slot()
    bench.ask(first, 4)
    bench.ask(second, 4)
    bench.read(first, 2)
    bench.pool.requests.revoke(first)
    assert bench.pool.requests.reserved is (first if keeps else second)
    if keeps:
        assert bench.told == []
        assert bench.ask(first, 2), "the second cannot go on before it, and it cannot wait for the second"
        bench.read(first, 2)
        first.leave()
        bench.free(4)
    assert bench.told == [second.owner]


def test_a_reserve_that_is_needed_no_more_goes_to_the_next_request(bench):
    """While nobody waited, what was held beyond the pool was given back: nothing called for looking then."""
    bench.fill(16)
    first, second = bench.slot(), bench.slot()
    bench.ask(first, 4)
    bench.ask(second, 4)
    bench.read(first, 2)
    bench.pool.requests.revoke(first)
    second.leave()
    bench.free(2)
    assert bench.ask(bench.slot(), 4)


@pytest.mark.parametrize(("borrowed", "keeps"), [(MIN_STALLED_BYTES - 1, False), (MIN_STALLED_BYTES, True)])
def test_a_slot_that_borrowed_nearly_nothing_does_not_keep_the_reserve(bench, borrowed, keeps):
    bench.fill(17)
    slot = bench.slot()
    bench.ask(slot, 4)
    bench.pool.common.charge(BEGUN, borrowed)
    slot.read(borrowed)
    bench.pool.requests.revoke(slot)
    assert (bench.pool.requests.reserved is slot) is keeps


def test_an_owner_that_fails_when_granted_does_not_stop_the_queue(bench):
    bench.fill(16)
    holder, failing, last = bench.slot(), bench.slot(), bench.slot()
    bench.ask(holder, 4)
    bench.ask(failing, 1)
    bench.ask(last, 1)
    assert isinstance(failing.owner, Owner)
    failing.owner.raises = True
    with pytest.raises(RuntimeError):
        bench.free(2)
    bench.free(1)
    assert bench.told == [failing.owner, last.owner]


def test_an_owner_that_leaves_when_granted_lets_the_next_one_in(bench):
    class Leaving(Owner):
        slot: AdmissionSlot

        def slot_granted(self) -> None:
            self.slot.leave()

    bench.fill(16)
    holder, last = bench.slot(), bench.slot()
    owner = Leaving()
    owner.slot = AdmissionSlot(bench.pool.requests, owner, 4 * ONE_READ)
    bench.ask(holder, 4)
    bench.ask(owner.slot, 4)
    bench.ask(last, 4)
    holder.leave()
    assert bench.told == [last.owner]


# Time.


def test_waits_are_counted_and_measured(bench):
    bench.fill(16)
    slots = bench.pool.requests
    holder, first, second = bench.slot(), bench.slot(), bench.slot()
    bench.ask(holder, 4)
    assert (slots.first_since_ns, bench.pool.depleted_total_ns(), bench.pool.shortages) == (-1, 0, 0)
    bench.ask(first, 4)
    since = bench.clock.now
    bench.clock.advance_ms(3)
    bench.ask(second, 4)
    bench.clock.advance_ms(1)
    assert (slots.first_since_ns, bench.pool.depleted_total_ns(), bench.pool.shortages) == (since, 4 * MS, 0)
    holder.leave()
    waits = bench.pool.waits
    assert (waits.count, waits.sum) == (1, 4 * MS)
    assert slots.first_since_ns == since + 3 * MS
    second.leave()
    bench.clock.advance_ms(9)
    assert (slots.first_since_ns, bench.pool.depleted_total_ns(), bench.pool.shortages, waits.count, slots.refused) == (-1, 4 * MS, 1, 1, 2)
