"""Turns: who may go on with a large frame that passes whole while memory is short. ``MEMORY.md`` says why it is done so.

Somebody is let in when what it misses fits into the pool beside what is held and what those who are in still miss. Else it needs the *reserve*:
room for one frame beyond the pool, which one has at a time, from when nothing is held beyond the pool until its frame is whole or gone, or until it
turns out not to have used it. In the order in which they asked: nobody passes anybody. Who is in reads until its frame is whole; who does not move
loses the turn, and asks again when more of its frame has come, behind the others; but who still has the reserve then is let in at once, for the
others cannot be, before it is done.
"""

import abc
from collections import deque
from collections.abc import Callable
from typing import Final

from mypy_extensions import i64, mypyc_attr

from proxy.cells import WAIT_BOUNDS
from proxy.network.histogram import Histogram

__all__ = ["ONE_READ", "PORTION", "WORTH", "Budget", "Turn", "TurnOwner", "Turns"]

ONE_READ: Final = 262144  # the most that one read gives
PORTION: Final = 65536  # what must be in the kernel of a large frame before it is worth a turn, at first
LARGEST_PORTION: Final = 1 << 20
WORTH: Final = 256  # bytes held by one that are worth looking after


@mypyc_attr(allow_interpreted_subclasses=True)
class TurnOwner(abc.ABC):
    """Who waits, and is told when it is in."""

    @abc.abstractmethod
    def turn_given(self) -> None:
        """Go on. Called from within a release or a resize, of anybody: no I/O and no callbacks from here, only interest."""

    @abc.abstractmethod
    def is_dry(self) -> bool:
        """Whether nothing of the frame lies in the kernel."""

    @abc.abstractmethod
    def is_held_up(self) -> bool:
        """Whether something else than memory keeps it from being read."""


class Turn:
    """One large frame's place among the others.

    Attributes:
        owner: who is told.
        missing: bytes that the frame misses.
        size: bytes of the frame.
        is_in: it may read.
        is_waiting: it has asked and is not in.
        moved: bytes read since it was last looked at.
        borrowed: bytes read since it has the reserve.
        portion: bytes of it that must be in the kernel before it is worth asking; doubled with each turn that it loses.
    """

    def __init__(self, turns: "Turns", owner: TurnOwner, size: i64) -> None:
        self.owner: Final = owner
        self.size: Final[i64] = size
        self.portion: i64 = PORTION
        self.missing: i64 = 0
        self.is_in: bool = False
        self.is_waiting: bool = False
        self.moved: i64 = 0
        self.borrowed: i64 = 0
        self.since_ns: i64 = 0
        self._turns: Final = turns

    def ask(self, missing: i64) -> bool:
        """Ask to go on; ``missing`` bytes will be booked at most. False: ``turn_given`` will be told."""
        return self._turns.ask(self, missing)

    def read(self, size: i64) -> None:
        """So many of the missing bytes are here, and booked."""
        self.missing -= size
        self.moved += size
        if self.is_in:
            self._turns.count_read(self, size)

    def leave(self) -> None:
        """The frame is whole, or gone; harmless when it neither is in nor waits."""
        self._turns.leave(self)


class Turns:
    """The turns of one direction.

    Attributes:
        largest: bytes that are booked at most for the largest frame that passes whole: the reserve.
        admitted: those who are in.
        reserved: who has the reserve.
        waiting: how many wait.
        refused: turns not given at once.
    """

    def __init__(self, budget: "Budget", now_ns: Callable[[], int]) -> None:
        self.largest: i64 = 0
        self.admitted: Final[list[Turn]] = []
        self.reserved: Turn | None = None
        self.waiting: i64 = 0
        self.refused: i64 = 0
        self._budget: Final = budget
        self._queue: Final[deque[Turn]] = deque()
        self._now_ns: Final = now_ns
        self._waking: bool = False

    @property
    def first_since_ns(self) -> i64:
        """Since when the first of those who wait has waited; -1: nobody does."""
        return self._queue[0].since_ns if self._queue else -1

    def ask(self, turn: Turn, missing: i64) -> bool:
        """See ``Turn.ask``."""
        assert not turn.is_in, "who is in need not ask"
        assert not turn.is_waiting, "asked for once"
        turn.missing = missing
        turn.is_waiting = True
        turn.since_ns = self._now_ns()
        self.free_reserve()
        self._queue.append(turn)
        self.waiting += 1
        if self.reserved is turn or (self._queue[0] is turn and self._may_enter(turn)):
            self._let_in(turn)
            return True
        self.refused += 1
        self._budget.begin_dry_spell(turn.since_ns)
        return False

    def leave(self, turn: Turn) -> None:
        """See ``Turn.leave``. Who had the reserve and is done gives it back; what it holds counts until it is given back."""
        was_in = turn.is_in
        if turn.is_waiting:
            self._take_out(turn)
        elif was_in:
            self._put_out(turn)
        if self.reserved is turn:
            self.reserved = None
        self._budget.changed()

    def revoke(self, turn: Turn) -> None:
        """Take a turn away from somebody who has not moved. The reserve stays with it only while something is held beyond the pool."""
        self._put_out(turn)
        turn.portion = min(turn.portion << 1, LARGEST_PORTION)
        self.free_reserve()
        self._budget.changed()

    def free_reserve(self) -> None:
        """Take the reserve from somebody who has no turn and does not need it: nothing is held beyond the pool, or nearly nothing of that is its."""
        holder = self.reserved
        if holder is not None and not holder.is_in and (holder.borrowed < WORTH or self._budget.used <= self._budget.reserve_line(self)):
            self.reserved = None

    def give_up(self, turn: Turn) -> None:
        """Take the reserve from somebody who has no turn and cannot go on; harmless when it has none."""
        if self.reserved is turn and not turn.is_in:
            self.reserved = None
            self._budget.changed()

    def count_read(self, turn: Turn, size: i64) -> None:
        """See ``Turn.read``."""
        if self.reserved is turn:
            turn.borrowed += size
        else:
            self._budget.promised -= size

    def trust(self, size: i64) -> bool:
        """Whether so many bytes may be read without a turn for a frame that seems to be there; ``end_trust`` when it was, or is gone."""
        budget = self._budget
        if budget.trusted != 0 and budget.trusted + size > ONE_READ:
            return False
        budget.trusted += size
        return True

    def end_trust(self, size: i64) -> None:
        """See ``trust``."""
        self._budget.trusted -= size

    def wake(self) -> None:
        """Let in who may go on now."""
        if self._waking:
            return
        self._waking = True
        try:
            self.free_reserve()
            while self._queue and self._may_enter(self._queue[0]):
                turn = self._queue[0]
                self._budget.waits.observe(self._now_ns() - turn.since_ns)
                self._let_in(turn)
                turn.owner.turn_given()
        finally:
            self._waking = False

    def _may_enter(self, turn: Turn) -> bool:
        budget = self._budget
        return budget.fits(turn.missing) or (self.reserved is None and budget.may_lend(self))

    def _let_in(self, turn: Turn) -> None:
        self._take_out(turn)
        turn.is_in = True
        turn.moved = 0
        budget = self._budget
        if self.reserved is not turn:
            if budget.fits(turn.missing):
                budget.promised += turn.missing
            else:
                self.reserved = turn
                turn.borrowed = 0
        self.admitted.append(turn)

    def _put_out(self, turn: Turn) -> None:
        turn.is_in = False
        self.admitted.remove(turn)
        if self.reserved is not turn:
            self._budget.promised -= turn.missing

    def _take_out(self, turn: Turn) -> None:
        turn.is_waiting = False
        self._queue.remove(turn)
        self.waiting -= 1
        if self._budget.waiting == 0:
            self._budget.end_dry_spell()


class Budget:
    """What is held, and what may be.

    Attributes:
        size: bytes of the pool.
        used: bytes held now.
        sends: those of them that wait for a socket.
        promised: what those who are in without the reserve still miss.
        spare: bytes of the pool that are kept for answers, and for what a read passes the line by.
        unspent: bytes that listeners are guaranteed and do not hold.
        trusted: bytes that are read, without a turn, for whole frames that seem to be there; what is not there of them is held.
        waits: for how long turns were waited for that were not given at once, and were given in the end.
        dry_spells: how often memory ran dry and was there again: from the first who is refused to when nobody waits any more.
    """

    def __init__(self, size: i64, now_ns: Callable[[], int]) -> None:
        self.size: i64 = size
        self.used: i64 = 0
        self.sends: i64 = 0
        self.promised: i64 = 0
        self.spare: i64 = 0
        self.unspent: i64 = 0
        self.trusted: i64 = 0
        self.dry_spells: i64 = 0
        self.waits: Final = Histogram(WAIT_BOUNDS)
        self._dry_ns: i64 = 0
        self._dry_since: i64 = -1
        self._now_ns: Final = now_ns
        self.requests: Final = Turns(self, now_ns)
        self.answers: Final = Turns(self, now_ns)

    @property
    def waiting(self) -> i64:
        """How many large frames wait for their turn."""
        return self.requests.waiting + self.answers.waiting

    def depleted_total_ns(self) -> i64:
        """For how long somebody waited, the spell that lasts included."""
        return self._dry_ns + (self._now_ns() - self._dry_since if self._dry_since >= 0 else 0)

    def begin_dry_spell(self, now_ns: i64) -> None:
        """Somebody was refused; harmless while others wait already."""
        if self._dry_since < 0:
            self._dry_since = now_ns

    def end_dry_spell(self) -> None:
        """Nobody waits; harmless when nobody did."""
        if self._dry_since >= 0:
            self._dry_ns += self._now_ns() - self._dry_since
            self._dry_since = -1
            self.dry_spells += 1

    def fits(self, missing: i64) -> bool:
        """Whether so many bytes fit into the pool beside what is held, promised and guaranteed."""
        return self.used + self.promised + self.unspent + missing <= self.size

    def reserve_line(self, turns: Turns) -> i64:
        """What may be held while the reserve of a direction is free: for answers, what requests hold with theirs does not count."""
        return self.size if turns is self.requests else self.size + self.requests.largest + 2 * ONE_READ

    def may_lend(self, turns: Turns) -> bool:
        """Whether somebody may have the reserve: nothing is held beyond the pool; or, when it has shrunk or many have begun a little, nearly
        nothing is that goes away by itself. What frames leave behind that had the reserve goes away by itself: it never adds up.
        """
        return self.used + self.promised <= self.reserve_line(turns) or (self.promised == 0 and self.sends <= min(self.spare, ONE_READ))

    def changed(self) -> None:
        """Less is held than before, or more may be: wake who waits."""
        if self.requests.waiting != 0:
            self.requests.wake()
        if self.answers.waiting != 0:
            self.answers.wake()
