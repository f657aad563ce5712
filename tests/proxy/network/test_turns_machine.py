"""proxy.network.turns: many frames of any size, in orders that hypothesis finds."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from proxy.network.memory_pool import BEGUN, PENDING, MemoryPool
from proxy.network.turns import ONE_READ, Turn
from tests.fakes.clock import FakeClock
from tests.fakes.turns import BEGINS, IN, SENDS, WAITS, Owner


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
