"""proxy.network.turns: who is let in, in which order, within which bound, and that nobody is left waiting for nothing.

The model at the end goes through every order of events over a few frames. Its unit is one read, so that small numbers say it all.
"""

import dataclasses
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from proxy.network.memory_pool import BEGUN, PENDING, Account, MemoryPool
from proxy.network.turns import LARGEST_PORTION, ONE_READ, PORTION, WORTH, Turn, TurnOwner, Turns
from tests.fakes.clock import MS, FakeClock


class Owner(TurnOwner):
    """Writes down that it was told."""

    def __init__(self, log: list["Owner"] | None = None) -> None:
        self.log = log
        self.raises = False

    def turn_given(self) -> None:
        if self.log is not None:
            self.log.append(self)
        if self.raises:
            raise RuntimeError("a bug")

    def is_dry(self) -> bool:
        return True

    def is_held_up(self) -> bool:
        return False


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

    def turn(self, reads: int = 4, turns: Turns | None = None) -> Turn:
        return Turn(turns or self.pool.requests, Owner(self.told), reads * ONE_READ)

    def ask(self, turn: Turn, reads: float) -> bool:
        return turn.ask(int(reads * ONE_READ))

    def read(self, turn: Turn, reads: float) -> None:
        """As a channel does."""
        self.fill(reads)
        turn.read(int(reads * ONE_READ))


@pytest.fixture
def bench() -> Bench:
    return Bench()


# Getting in.


def test_what_fits_is_let_in_and_promised(bench):
    bench.fill(12)
    turn = bench.turn()
    assert bench.ask(turn, 4)
    assert (turn.is_in, turn.is_waiting, bench.pool.requests.admitted) == (True, False, [turn])
    assert bench.pool.promised == 4 * ONE_READ
    assert bench.pool.requests.reserved is None
    bench.read(turn, 3)
    assert (turn.missing, bench.pool.promised) == (ONE_READ, ONE_READ)
    bench.read(turn, 1)
    turn.leave()
    assert (turn.is_in, bench.pool.promised, bench.pool.requests.admitted) == (False, 0, [])


def test_one_byte_more_than_fits_takes_the_reserve(bench):
    bench.fill(12)
    turn = bench.turn()
    assert turn.ask(4 * ONE_READ + 1)
    assert bench.pool.requests.reserved is turn
    assert bench.pool.promised == 0


def test_the_reserve_is_lent_to_one_at_a_time(bench):
    bench.fill(14)
    first, second = bench.turn(), bench.turn()
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
    assert bench.ask(bench.turn(), 1) is lent


def test_what_is_promised_keeps_the_reserve_from_the_next_as_what_is_held_does(bench):
    """A pool that has shrunk: what is promised will be held, beyond it."""
    bench.fill(12, PENDING)
    assert bench.ask(bench.turn(), 4)
    bench.free(2, PENDING)
    bench.pool.resize(13 * ONE_READ)
    last = bench.turn()
    assert not bench.ask(last, 4)
    bench.free(1, PENDING)
    assert last.is_in


def test_what_a_frame_left_beyond_the_pool_keeps_the_reserve_from_the_next(bench):
    """It is whole, and waits for its socket."""
    bench.fill(16)
    first, second = bench.turn(), bench.turn()
    assert bench.ask(first, 4)
    bench.read(first, 4)
    bench.pool.common.hand_over(4 * ONE_READ)
    first.leave()
    assert not bench.ask(second, 4)
    bench.free(3, PENDING)
    assert second.is_in, "of what goes away by itself no more is left than one read"
    assert bench.pool.used <= bench.pool.size + ONE_READ


def test_sends_do_not_add_up_beyond_the_pool(bench):
    """Frames that are whole go to sockets that do not take them, one behind the other."""
    bench.fill(16)
    for _ in range(10):
        turn = bench.turn(2)
        if bench.ask(turn, 2):
            bench.read(turn, 2)
            bench.pool.common.hand_over(2 * ONE_READ)
        turn.leave()
    assert bench.pool.used <= bench.pool.bound


def test_a_pool_full_of_frames_begun_lends_the_reserve_whatever_is_beyond(bench):
    """It has shrunk, or many have each begun a little."""
    bench.fill(20)
    turn = bench.turn()
    assert bench.ask(turn, 4)
    assert bench.pool.requests.reserved is turn


def test_who_asked_first_is_let_in_first_though_the_second_would_fit(bench):
    bench.fill(16)
    holder, large, small = bench.turn(), bench.turn(), bench.turn()
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
    request, answer = bench.turn(), bench.turn(turns=bench.pool.answers)
    assert bench.ask(request, 4)
    bench.read(request, 4)
    assert bench.pool.used == bench.pool.size + 4 * ONE_READ < bench.pool.size + bench.largest
    assert bench.ask(answer, 4)
    bench.read(answer, 4)
    assert bench.pool.answers.reserved is answer
    assert bench.pool.used <= bench.pool.bound


def test_two_who_fit_are_in_at_once_and_a_third_that_does_not_fit_beside_their_promises_has_the_reserve(bench):
    bench.fill(10)
    turns = [bench.turn() for _ in range(3)]
    assert [bench.ask(turn, 3) for turn in turns] == [True] * 3
    assert bench.pool.promised == 6 * ONE_READ
    assert bench.pool.requests.reserved is turns[2]


# What seems to be there.


def test_one_is_always_trusted_and_more_up_to_one_read(bench):
    turns = bench.pool.requests
    assert turns.trust(2 * ONE_READ)
    assert not turns.trust(1)
    turns.end_trust(2 * ONE_READ)
    assert [turns.trust(size) for size in (ONE_READ - 1, 2, 1, 1)] == [True, False, True, False]
    assert bench.pool.answers.trust(0)
    assert not bench.pool.answers.trust(1), "it is one figure for both directions"


# Leaving, and losing it.


def test_leaving_is_harmless_twice_and_without_a_turn(bench):
    turn = bench.turn()
    turn.leave()
    bench.fill(14)
    bench.ask(turn, 4)
    turn.leave()
    turn.leave()
    assert (bench.pool.promised, bench.pool.requests.reserved, bench.pool.waiting) == (0, None, 0)


def test_who_waits_and_leaves_is_not_told(bench):
    bench.fill(16)
    holder, gone, last = bench.turn(), bench.turn(), bench.turn()
    bench.ask(holder, 4)
    bench.ask(gone, 4)
    bench.ask(last, 4)
    gone.leave()
    holder.leave()
    assert bench.told == [last.owner]


def test_asking_twice_is_a_mistake(bench):
    bench.fill(16)
    first, second = bench.turn(), bench.turn()
    bench.ask(first, 4)
    bench.ask(second, 4)
    for turn in (first, second):
        with pytest.raises(AssertionError):
            bench.ask(turn, 4)


def test_a_lost_turn_takes_its_promise_back_and_asks_for_twice_the_evidence(bench):
    bench.fill(12)
    turn = bench.turn()
    bench.ask(turn, 4)
    bench.read(turn, 1)
    bench.pool.requests.revoke(turn)
    assert (turn.is_in, bench.pool.promised, turn.portion) == (False, 0, 2 * PORTION)
    for _ in range(10):
        bench.ask(turn, 3)
        bench.pool.requests.revoke(turn)
    assert turn.portion == LARGEST_PORTION


def test_a_lost_turn_lets_the_next_one_in_when_nothing_is_held_beyond_the_pool(bench):
    bench.fill(14)
    first, second = bench.turn(), bench.turn()
    bench.ask(first, 4)
    bench.ask(second, 4)
    bench.read(first, 2)
    bench.pool.requests.revoke(first)
    assert bench.pool.requests.reserved is second


def test_who_has_lost_the_turn_but_holds_something_beyond_the_pool_keeps_the_reserve_and_goes_on_before_all_others(bench):
    bench.fill(16)
    first, second = bench.turn(), bench.turn()
    bench.ask(first, 4)
    bench.ask(second, 4)
    bench.read(first, 2)
    bench.pool.requests.revoke(first)
    assert bench.pool.requests.reserved is first
    assert bench.told == []
    assert bench.ask(first, 2), "the second cannot go on before it, and it cannot wait for the second"
    bench.read(first, 2)
    first.leave()
    bench.free(4)
    assert bench.told == [second.owner]


def test_a_reserve_that_is_needed_no_more_goes_to_who_asks_next(bench):
    """While nobody waited, what was held beyond the pool was given back: nothing called for looking then."""
    bench.fill(16)
    first, second = bench.turn(), bench.turn()
    bench.ask(first, 4)
    bench.ask(second, 4)
    bench.read(first, 2)
    bench.pool.requests.revoke(first)
    second.leave()
    bench.free(2)
    assert bench.ask(bench.turn(), 4)


@pytest.mark.parametrize(("borrowed", "keeps"), [(WORTH - 1, False), (WORTH, True)])
def test_who_borrowed_nearly_nothing_does_not_keep_the_reserve(bench, borrowed, keeps):
    bench.fill(17)
    turn = bench.turn()
    bench.ask(turn, 4)
    bench.pool.common.charge(BEGUN, borrowed)
    turn.read(borrowed)
    bench.pool.requests.revoke(turn)
    assert (bench.pool.requests.reserved is turn) is keeps


def test_who_is_let_in_and_fails_leaves_the_others_in_a_line_that_moves(bench):
    bench.fill(16)
    holder, failing, last = bench.turn(), bench.turn(), bench.turn()
    bench.ask(holder, 4)
    bench.ask(failing, 1)
    bench.ask(last, 1)
    assert isinstance(failing.owner, Owner)
    failing.owner.raises = True
    with pytest.raises(RuntimeError):
        bench.free(2)
    bench.free(1)
    assert bench.told == [failing.owner, last.owner]


def test_who_leaves_when_it_is_told_lets_the_next_one_in(bench):
    class Leaving(Owner):
        turn: Turn

        def turn_given(self) -> None:
            self.turn.leave()

    bench.fill(16)
    holder, last = bench.turn(), bench.turn()
    owner = Leaving()
    owner.turn = Turn(bench.pool.requests, owner, 4 * ONE_READ)
    bench.ask(holder, 4)
    bench.ask(owner.turn, 4)
    bench.ask(last, 4)
    holder.leave()
    assert bench.told == [last.owner]


# Time.


def test_waits_are_counted_and_measured(bench):
    bench.fill(16)
    turns = bench.pool.requests
    holder, first, second = bench.turn(), bench.turn(), bench.turn()
    bench.ask(holder, 4)
    assert (turns.first_since_ns, turns.depleted_total_ns()) == (-1, 0)
    bench.ask(first, 4)
    since = bench.clock.now
    bench.clock.advance_ms(3)
    bench.ask(second, 4)
    bench.clock.advance_ms(1)
    assert (turns.first_since_ns, turns.depleted_total_ns()) == (since, 4 * MS)
    holder.leave()
    assert (turns.waits, turns.wait_ns) == (1, 4 * MS)
    assert turns.first_since_ns == since + 3 * MS
    second.leave()
    bench.clock.advance_ms(9)
    assert (turns.first_since_ns, turns.depleted_total_ns(), turns.waits, turns.refused) == (-1, 4 * MS, 1, 2)


# Every order of events.

GONE: Final = "gone"
BEGINS: Final = "begun"
WAITS: Final = "waiting"
IN: Final = "in"
SENDS: Final = "sending"


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
    """All that decides about what may follow.

    Attributes:
        queues: who waits, in order; of requests, of answers.
        reserved: who has the reserves; -1: nobody.
        high: what was held and promised when the pool shrank, as far as it still is.
    """

    ones: tuple[One, ...]
    size: int
    queues: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    reserved: tuple[int, int] = (-1, -1)
    high: int = 0
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
        self.turns = [Turn(self.of(index), Owner(self.told), spec.size * ONE_READ) for index, spec in enumerate(specs)]
        for index, one in enumerate(state.ones):
            self._put(index, one)
        for turns, queue, reserved in zip((self.pool.requests, self.pool.answers), state.queues, state.reserved, strict=True):
            for index in queue:
                turns._queue.append(self.turns[index])
            turns.waiting = len(queue)
            turns.reserved = None if reserved < 0 else self.turns[reserved]
            for turn in turns.admitted:
                self.pool.promised += 0 if turn is turns.reserved else turn.missing

    def of(self, index: int) -> Turns:
        return self.pool.answers if self.specs[index].answer else self.pool.requests

    def account(self, index: int) -> Account:
        return self.guaranteed if self.specs[index].guaranteed else self.pool.common

    def _put(self, index: int, one: One) -> None:
        turn = self.turns[index]
        self.account(index).charge(PENDING if one.mode == SENDS else BEGUN, one.held * ONE_READ)
        turn.missing, turn.moved, turn.borrowed = one.missing * ONE_READ, one.moved, one.borrowed * ONE_READ
        turn.is_in, turn.is_waiting = one.mode == IN, one.mode == WAITS
        if turn.is_in:
            self.of(index).admitted.append(turn)

    def state(self, *, first: bool = False) -> State:
        """As it is now; ``turn_given`` has no part in it: who is in may read."""
        ones = []
        for one, turn in zip(self.ones, self.turns, strict=True):
            mode = IN if turn.is_in else WAITS if turn.is_waiting else BEGINS if one.mode in (IN, WAITS) else one.mode
            has_turn = mode in (IN, WAITS) or self.pool.requests.reserved is turn or self.pool.answers.reserved is turn
            missing, borrowed = (int(turn.missing) // ONE_READ, int(turn.borrowed) // ONE_READ) if has_turn else (0, 0)
            ones.append(dataclasses.replace(one, mode=mode, missing=missing, borrowed=borrowed))
        both = (self.pool.requests, self.pool.answers)
        queues = tuple(tuple(self.turns.index(turn) for turn in turns._queue) for turns in both)
        reserved = tuple(-1 if turns.reserved is None else self.turns.index(turns.reserved) for turns in both)
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
        turn, turns = self.turns[index], self.of(index)
        has_reserve, waited = turns.reserved is turn, turns.waiting
        entered = turn.ask((self.specs[index].size - self.ones[index].held) * ONE_READ)
        assert entered is turn.is_in
        assert not entered or waited == 0 or has_reserve, "nobody passes anybody"
        self._change(index, mode=IN if entered else WAITS)

    def read(self, index: int) -> None:
        one, turn, account = self.ones[index], self.turns[index], self.account(index)
        account.charge(BEGUN, ONE_READ)
        if turn.is_in:
            turn.read(ONE_READ)
        self._change(index, held=one.held + 1, kernel=0)
        if one.held + 1 == self.specs[index].size:
            self._change(index, mode=SENDS)
            account.hand_over((one.held + 1) * ONE_READ)  # first: what goes away by itself is no reason to lend the reserve
            turn.leave()

    def revoke(self, index: int) -> None:
        turns = self.of(index)
        turns.revoke(self.turns[index])
        if self.ones[index].held_up:
            turns.give_up(self.turns[index])

    def close(self, index: int) -> None:
        one = self.ones[index]
        self._change(index, held=0, kernel=0, mode=GONE, held_up=False)
        self.turns[index].leave()
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
        promised = sum(int(turn.missing) for turns in (pool.requests, pool.answers) for turn in turns.admitted if turns.reserved is not turn)
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


# More of them, of any size.


class Frame(Owner):
    """A frame of the machine: where it is, and its turn."""

    def __init__(self, machine: "Machine", size: int, *, answer: bool, guaranteed: bool) -> None:
        super().__init__()
        self.machine = machine
        self.size = size
        self.answer = answer
        self.account = machine.guaranteed if guaranteed else machine.pool.common
        self.held = 0
        self.kind = BEGUN
        self.turns = machine.pool.answers if answer else machine.pool.requests
        self.turn = Turn(self.turns, self, size)

    def turn_given(self) -> None:
        self.machine.entered(self)


class Machine(RuleBasedStateMachine):
    """Frames begin, read, ask, lose their turns, pass and are closed; the pool changes its size."""

    @initialize(size=st.integers(1 << 20, 64 << 20), request=st.integers(0, 32 << 20), answer=st.integers(0, 8 << 20), percent=st.integers(0, 100))
    def begin(self, size: int, request: int, answer: int, percent: int) -> None:
        self.clock = FakeClock()
        self.pool = MemoryPool(size, self.clock.now_ns)
        self.pool.set_largest(request, answer)
        self.largest = (request, answer)
        self.guaranteed = self.pool.account(percent)
        self.frames: list[Frame] = []
        self.queues: tuple[list[Frame], list[Frame]] = ([], [])
        self.high = size

    def entered(self, frame: Frame) -> None:
        assert self.queues[frame.answer].pop(0) is frame, "nobody passes anybody"

    def some(self, data: st.DataObject, *modes: str) -> Frame | None:
        """One of those that are in one of the modes."""
        found = [frame for frame in self.frames if self.mode(frame) in modes]
        return data.draw(st.sampled_from(found)) if found else None

    def mode(self, frame: Frame) -> str:
        if frame.kind == PENDING:
            return SENDS
        return IN if frame.turn.is_in else WAITS if frame.turn.is_waiting else BEGINS

    @precondition(lambda self: len(self.frames) < 12)
    @rule(answer=st.booleans(), guaranteed=st.booleans(), part=st.floats(0, 1))
    def announce(self, answer: bool, guaranteed: bool, part: float) -> None:
        size = int(self.largest[answer] * part)
        if size:
            self.frames.append(Frame(self, size, answer=answer, guaranteed=guaranteed))

    @rule(data=st.data(), size=st.integers(1, ONE_READ))
    def read(self, data: st.DataObject, size: int) -> None:
        """In plenty, or in turn; or ask for one."""
        frame = self.some(data, IN, BEGINS)
        if frame is None:
            return
        if not frame.turn.is_in and frame.account.is_short(answers=frame.answer):
            self.ask(frame)
            return
        size = min(size, frame.size - frame.held)
        frame.held += size
        frame.account.charge(BEGUN, size)
        if frame.turn.is_in:
            frame.turn.read(size)
        if frame.held == frame.size:
            frame.kind = PENDING
            frame.account.hand_over(size if frame.held == size else frame.held)
            frame.turn.leave()

    def ask(self, frame: Frame) -> None:
        queue = self.queues[frame.answer]
        if frame.turn.ask(frame.size - frame.held):
            assert not queue or frame.turns.reserved is frame.turn, "nobody passes anybody"
        else:
            queue.append(frame)

    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        frame = self.some(data, IN)
        if frame is not None:
            frame.turns.revoke(frame.turn)

    @rule(data=st.data(), part=st.sampled_from([0.1, 1.0]))
    def drain(self, data: st.DataObject, part: float) -> None:
        frame = self.some(data, SENDS)
        if frame is not None:
            size = max(int(frame.held * part), 1)
            frame.held -= size
            frame.account.release(PENDING, size)
            if frame.held == 0:
                self.frames.remove(frame)

    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        frame = self.some(data, IN, WAITS, BEGINS, SENDS)
        if frame is not None:
            if frame.turn.is_waiting:
                self.queues[frame.answer].remove(frame)
            self.frames.remove(frame)
            frame.turn.leave()
            frame.account.release(frame.kind, frame.held)

    @rule(size=st.integers(1 << 20, 64 << 20))
    def resize(self, size: int) -> None:
        self.high = max(self.high, int(self.pool.used + self.pool.promised))
        self.pool.resize(size)

    @invariant()
    def holds(self) -> None:
        pool = self.pool
        assert pool.used == sum(frame.held for frame in self.frames) == pool.begun + pool.pending + pool.tls
        assert pool.sends == sum(frame.held for frame in self.frames if frame.kind == PENDING)
        both = (pool.requests, pool.answers)
        assert pool.promised == sum(int(turn.missing) for turns in both for turn in turns.admitted if turns.reserved is not turn)
        assert pool.unspent == max(int(pool.line) * int(self.guaranteed.percent) // 100 - int(self.guaranteed.used), 0)
        self.high = max(int(pool.size), min(self.high, int(pool.used + pool.promised)))
        assert pool.used <= self.high + pool.bound - pool.size
        for turns, queue in zip(both, self.queues, strict=True):
            assert [turn.owner for turn in turns._queue] == queue
        if pool.waiting:
            assert any(self.mode(frame) != WAITS and (frame.held or frame.turn.is_in) for frame in self.frames), "all wait, and nobody can end it"


Machine.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None, derandomize=True)
TestMachine = Machine.TestCase
