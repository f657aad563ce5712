"""framegate.proxy.network.admission_slots: every order of events over a few frames. The model's unit is one read, so that small numbers say it
all."""

import dataclasses
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

import pytest

from framegate.proxy.network.admission_slots import ONE_READ, AdmissionSlot, AdmissionSlots
from framegate.proxy.network.memory_pool import BEGUN, PENDING, Account, MemoryPool
from tests.fakes.admission_slots import BEGINS, GONE, IN, SENDS, WAITS, Owner


@dataclasses.dataclass(frozen=True)
class Spec:
    """One frame of the model: whether it is an answer, and its size in reads; of which account."""

    answer: bool
    size: int
    guaranteed: bool = False


@dataclasses.dataclass(frozen=True)
class One:
    """Where a frame is: reads held, reads that lie in the kernel, and what its turn says."""

    held: int = 0
    kernel: int = 0
    mode: str = BEGINS
    missing: int = 0
    moved: int = 0
    borrowed: int = 0
    held_up: bool = False


@dataclasses.dataclass(frozen=True)
class State:
    """All that decides about what may follow."""

    ones: tuple[One, ...]
    size: int
    queues: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())  # who waits, in order; of requests, of answers
    reserved: tuple[int, int] = (-1, -1)  # who has the reserves; -1: nobody
    high: int = 0  # what was held and promised when the pool shrank, as far as it still is
    first: bool = True


class World:
    """The real pool and turns, put into a state of the model, and what may happen there."""

    def __init__(self, specs: tuple[Spec, ...], state: State, *, largest: tuple[int, int], percent: int) -> None:
        self.specs = specs
        self.high = state.high
        self.pool = MemoryPool(state.size * ONE_READ, lambda: 0)
        self.pool.requests.largest, self.pool.answers.largest = (size * ONE_READ for size in largest)
        self.guaranteed = self.pool.account(percent)
        self.ones = list(state.ones)
        self.told: list[Owner] = []
        self.slots = [AdmissionSlot(self.of(index), Owner(self.told), spec.size * ONE_READ) for index, spec in enumerate(specs)]
        for index, one in enumerate(state.ones):
            self._put(index, one)
        for slots, queue, reserved in zip((self.pool.requests, self.pool.answers), state.queues, state.reserved, strict=True):
            for index in queue:
                slots._queue.append(self.slots[index])
            slots.waiting = len(queue)
            slots.reserved = None if reserved < 0 else self.slots[reserved]
            for slot in slots.admitted:
                self.pool.promised += 0 if slot is slots.reserved else slot.missing

    def of(self, index: int) -> AdmissionSlots:
        return self.pool.answers if self.specs[index].answer else self.pool.requests

    def account(self, index: int) -> Account:
        return self.guaranteed if self.specs[index].guaranteed else self.pool.common

    def _put(self, index: int, one: One) -> None:
        slot = self.slots[index]
        self.account(index).charge(PENDING if one.mode == SENDS else BEGUN, one.held * ONE_READ)
        slot.missing, slot.moved, slot.borrowed = one.missing * ONE_READ, one.moved, one.borrowed * ONE_READ
        slot.is_in, slot.is_waiting = one.mode == IN, one.mode == WAITS
        if slot.is_in:
            self.of(index).admitted.append(slot)

    def state(self, *, first: bool = False) -> State:
        """As it is now; ``slot_granted`` has no part in it: who is in may read."""
        ones = []
        for one, slot in zip(self.ones, self.slots, strict=True):
            mode = IN if slot.is_in else WAITS if slot.is_waiting else BEGINS if one.mode in (IN, WAITS) else one.mode
            has_turn = mode in (IN, WAITS) or self.pool.requests.reserved is slot or self.pool.answers.reserved is slot
            missing, borrowed = (int(slot.missing) // ONE_READ, int(slot.borrowed) // ONE_READ) if has_turn else (0, 0)
            ones.append(dataclasses.replace(one, mode=mode, missing=missing, borrowed=borrowed))
        both = (self.pool.requests, self.pool.answers)
        queues = tuple(tuple(self.slots.index(slot) for slot in slots._queue) for slots in both)
        reserved = tuple(-1 if slots.reserved is None else self.slots.index(slots.reserved) for slots in both)
        size, taken = int(self.pool.size), int(self.pool.used + self.pool.promised)
        high = max(size, min(self.high * ONE_READ, taken)) // ONE_READ
        return State(tuple(ones), size // ONE_READ, queues, reserved, high, first)  # type: ignore[arg-type]

    # What may happen.

    def events(self, *, sizes: tuple[int, ...]) -> Iterator[tuple[str, int]]:
        for index, one in enumerate(self.ones):
            yield from self._of_peer(index, one)
            yield from self._of_ours(index, one)
        for size in sizes:
            yield "resize", size

    def _of_peer(self, index: int, one: One) -> Iterator[tuple[str, int]]:
        """It sends, takes what was sent to it, goes away, or is sent away for moving too little."""
        if one.mode in (BEGINS, WAITS, IN) and one.kernel == 0 and one.held < self.specs[index].size:
            yield "arrive", index
        silent = one.mode == BEGINS and one.held and not one.kernel and self.pool.waiting != 0
        if silent or one.mode in (SENDS, WAITS):
            yield "close", index

    def _of_ours(self, index: int, one: One) -> Iterator[tuple[str, int]]:
        short = self.account(index).is_short(answers=self.specs[index].answer)
        if one.mode in (BEGINS, IN) and one.kernel and not one.held_up:
            yield "ask" if short and one.mode == BEGINS else "read", index
        if one.mode == IN and self.pool.waiting != 0 and (one.held_up or not one.kernel):
            yield "revoke", index
        if one.mode == IN and index == 0 and not one.held_up:
            yield "hold", index
        if one.held_up:
            yield "free", index

    def happen(self, what: str, index: int) -> None:
        getattr(self, what)(index)

    def _change(self, index: int, **changes: Any) -> None:
        self.ones[index] = dataclasses.replace(self.ones[index], **changes)

    def arrive(self, index: int) -> None:
        self._change(index, kernel=1)

    def ask(self, index: int) -> None:
        slot, slots = self.slots[index], self.of(index)
        has_reserve, waited = slots.reserved is slot, slots.waiting
        entered = slot.ask((self.specs[index].size - self.ones[index].held) * ONE_READ)
        assert entered is slot.is_in
        assert not entered or waited == 0 or has_reserve, "nobody passes anybody"
        self._change(index, mode=IN if entered else WAITS)

    def read(self, index: int) -> None:
        one, slot, account = self.ones[index], self.slots[index], self.account(index)
        account.charge(BEGUN, ONE_READ)
        if slot.is_in:
            slot.read(ONE_READ)
        self._change(index, held=one.held + 1, kernel=0)
        if one.held + 1 == self.specs[index].size:
            self._change(index, mode=SENDS)
            account.transfer((one.held + 1) * ONE_READ)  # first: what goes away by itself is no reason to lend the reserve
            slot.leave()

    def revoke(self, index: int) -> None:
        slots = self.of(index)
        slots.revoke(self.slots[index])
        if self.ones[index].held_up:
            slots.give_up(self.slots[index])

    def close(self, index: int) -> None:
        one = self.ones[index]
        self._change(index, held=0, kernel=0, mode=GONE, held_up=False)
        self.slots[index].leave()
        self.account(index).release(PENDING if one.mode == SENDS else BEGUN, one.held * ONE_READ)

    def hold(self, index: int) -> None:
        self._change(index, held_up=True)

    def free(self, index: int) -> None:
        self._change(index, held_up=False)

    def resize(self, size: int) -> None:
        self.high = max(self.high, int(self.pool.used + self.pool.promised) // ONE_READ)
        self.pool.resize(size * ONE_READ)

    # What must hold.

    def check(self, before: State) -> None:
        pool = self.pool
        state = self.state()
        held = sum(one.held for one in self.ones) * ONE_READ
        assert pool.used == held == pool.begun + pool.pending + pool.tls
        assert pool.sends == pool.pending + pool.tls
        assert self.guaranteed.used + pool.common.used == held
        promised = sum(int(slot.missing) for slots in (pool.requests, pool.answers) for slot in slots.admitted if slots.reserved is not slot)
        assert pool.promised == promised >= 0
        assert pool.waiting == sum(len(queue) for queue in state.queues)
        allowed = max(int(pool.size), state.high * ONE_READ) + int(pool.bound - pool.size)
        assert pool.used <= allowed, f"{pool.used / ONE_READ} reads are held, {allowed / ONE_READ} may be"
        for queue, former in zip(state.queues, before.queues, strict=True):
            left = [index for index in former if index in queue]
            assert list(queue[: len(left)]) == left, "the order of those who wait is that in which they asked"
            entered = [index for index in former if state.ones[index].mode == IN]
            assert entered == [index for index in former if state.ones[index].mode != GONE][: len(entered)], "nobody passes anybody"
        if pool.waiting:
            ones = [one for one in state.ones if one.held or one.mode == IN]
            assert any(one.mode in (IN, SENDS, BEGINS) or one.held_up for one in ones), "all wait, and nobody can do anything about it"


def explore(specs: tuple[Spec, ...], size: int, sizes: tuple[int, ...] = (), percent: int = 0, held: tuple[int, ...] = ()) -> int:
    """Every state that can be reached, by the shortest way to it; how many there are."""
    largest = tuple(max((spec.size for spec in specs if spec.answer is answer), default=0) for answer in (False, True))
    ones = tuple(One(held=held[index] if index < len(held) else 0) for index in range(len(specs)))
    begin = State(ones, size, high=max(size, sum(held)))
    seen: dict[State, tuple[State, tuple[str, int]] | None] = {begin: None}
    states = deque([begin])
    while states:
        state = states.popleft()
        for event in World(specs, state, largest=largest, percent=percent).events(sizes=tuple(sizes) if state.first else ()):  # type: ignore[arg-type]
            world = World(specs, state, largest=largest, percent=percent)  # type: ignore[arg-type]
            try:
                world.happen(*event)
                world.check(state)
            except AssertionError as error:
                raise AssertionError(f"{error}\nafter {way_to(seen, state)}, {event}:\n{state}") from error
            after = world.state(first=state.first and event[0] != "resize")
            if after not in seen:
                seen[after] = (state, event)
                states.append(after)
    return len(seen)


def way_to(seen: dict[State, tuple[State, tuple[str, int]] | None], state: State) -> list[tuple[str, int]]:
    way = []
    step = seen[state]
    while step is not None:
        way.append(step[1])
        step = seen[step[0]]
    return way[::-1]


REQUESTS: Final = (Spec(False, 3), Spec(False, 3), Spec(False, 2))
MIXED: Final = (Spec(False, 3), Spec(False, 2), Spec(True, 3))


@pytest.mark.parametrize(
    ("specs", "size", "options"),
    [
        pytest.param(REQUESTS, 2, {}, id="requests"),
        pytest.param(MIXED, 2, {}, id="answers"),
        pytest.param((Spec(False, 2), Spec(False, 2), Spec(True, 2), Spec(True, 2)), 2, {"held": (1, 1, 1, 0)}, id="answers-of-several"),
        pytest.param(REQUESTS, 4, {"sizes": (2,), "held": (2, 2)}, id="shrinking"),
        pytest.param(MIXED, 3, {"sizes": (2, 5), "held": (2, 0, 1)}, id="resizing"),
        pytest.param((Spec(False, 3, True), Spec(False, 3), Spec(True, 2, True)), 4, {"percent": 50}, id="guaranteed"),
    ],
)
def test_whatever_happens_in_whatever_order(specs, size, options):
    """Within the bound, in order, and nobody waits while nobody can do anything about it."""
    assert explore(specs, size, **options) > 300
