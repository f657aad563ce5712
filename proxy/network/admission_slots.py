"""Admission slots: which large frames are read while memory is short. ``MEMORY.md`` gives the reasons.

A slot is granted when the missing bytes of its frame fit into the pool, beside the bytes held and the missing bytes of the frames with a slot.
Otherwise the frame needs the *reserve*: memory for one frame beyond the pool. One slot at a time has it, from when nothing is held beyond the pool
until its frame is complete or lost, or did not use the reserve. Slots are granted in the order of the requests. A slot is kept until its frame is
complete; a frame that does not move loses it, and requests another one when more bytes have arrived. A frame that still has the reserve gets the
slot at once, since no other frame can get one before.
"""

import abc
from collections import deque
from collections.abc import Callable
from typing import Final

from mypy_extensions import i64, mypyc_attr

from framegate.proxy.cells import WAIT_BOUNDS
from framegate.proxy.network.stats import Histogram

ONE_READ: Final = 262144  # the most that one read gives
FIRST_PORTION: Final = 65536  # bytes of a large frame that must be in the kernel before it requests a slot, at first
LARGEST_PORTION: Final = 1 << 20
MIN_STALLED_BYTES: Final = 256  # a channel that holds less is never evicted


@mypyc_attr(allow_interpreted_subclasses=True)
class SlotOwner(abc.ABC):
    """Requests a slot, and is called when it is granted."""

    @abc.abstractmethod
    def slot_granted(self) -> None:
        """Called when the slot is granted, within any release or resize: no I/O and no callbacks here, only a change of interest."""

    @abc.abstractmethod
    def has_no_input(self) -> bool:
        """Whether the kernel has no bytes of the frame."""

    @abc.abstractmethod
    def is_blocked(self) -> bool:
        """Whether the channel is muted for another cause than memory."""


class AdmissionSlot:
    """The slot of one large frame."""

    def __init__(self, slots: "AdmissionSlots", owner: SlotOwner, size: i64) -> None:
        self.owner: Final = owner  # is called when the slot is granted
        self.size: Final[i64] = size  # bytes of the frame
        self.portion: i64 = FIRST_PORTION  # bytes of it that must be in the kernel before it requests a slot; doubled with each slot that it loses
        self.missing: i64 = 0  # bytes that the frame misses
        self.is_in: bool = False  # the slot is granted
        self.is_waiting: bool = False  # the slot is requested and not granted
        self.moved: i64 = 0  # bytes read since the last check
        self.borrowed: i64 = 0  # bytes read with the reserve
        self.since_ns: i64 = 0
        self._slots: Final = slots

    def ask(self, missing: i64) -> bool:
        """Request the slot; at most ``missing`` bytes will be booked. False: ``slot_granted`` will be called."""
        return self._slots.ask(self, missing)

    def read(self, size: i64) -> None:
        """``size`` of the missing bytes have arrived and are booked."""
        self.missing -= size
        self.moved += size
        if self.is_in:
            self._slots.count_read(self, size)

    def leave(self) -> None:
        """The frame is complete or lost; no effect without a slot or a request."""
        self._slots.leave(self)


class AdmissionSlots:
    """The slots of one direction."""

    def __init__(self, budget: "MemoryBudget", now_ns: Callable[[], int]) -> None:
        self.largest: i64 = 0  # bytes booked at most for the largest frame that passes whole: the size of the reserve
        self.admitted: Final[list[AdmissionSlot]] = []  # granted slots
        self.reserved: AdmissionSlot | None = None  # the slot that has the reserve
        self.waiting: i64 = 0  # requests that wait
        self.refused: i64 = 0  # slots not granted at once
        self._budget: Final = budget
        self._queue: Final[deque[AdmissionSlot]] = deque()
        self._now_ns: Final = now_ns
        self._waking: bool = False

    @property
    def first_since_ns(self) -> i64:
        """Since when the first request has waited; -1: none waits."""
        return self._queue[0].since_ns if self._queue else -1

    def ask(self, slot: AdmissionSlot, missing: i64) -> bool:
        assert not slot.is_in, "a granted slot is not requested again"
        assert not slot.is_waiting, "a slot is requested once"
        slot.missing = missing
        slot.is_waiting = True
        slot.since_ns = self._now_ns()
        self.free_reserve()
        self._queue.append(slot)
        self.waiting += 1
        if self.reserved is slot or (self._queue[0] is slot and self._may_enter(slot)):
            self._let_in(slot)
            return True
        self.refused += 1
        self._budget.begin_shortage(slot.since_ns)
        return False

    def leave(self, slot: AdmissionSlot) -> None:
        """See ``AdmissionSlot.leave``. It gives the reserve back; the bytes that it holds count until they are released."""
        was_in = slot.is_in
        if slot.is_waiting:
            self._take_out(slot)
        elif was_in:
            self._put_out(slot)
        if self.reserved is slot:
            self.reserved = None
        self._budget.changed()

    def revoke(self, slot: AdmissionSlot) -> None:
        """Revoke the slot of a frame that has not moved. It keeps the reserve only while something is held beyond the pool."""
        self._put_out(slot)
        slot.portion = min(slot.portion << 1, LARGEST_PORTION)
        self.free_reserve()
        self._budget.changed()

    def free_reserve(self) -> None:
        """Take the reserve from a frame that has no slot and does not need it: nothing is held beyond the pool, or the frame has hardly used it."""
        holder = self.reserved
        if (
            holder is not None
            and not holder.is_in
            and (holder.borrowed < MIN_STALLED_BYTES or self._budget.used <= self._budget.reserve_threshold(self))
        ):
            self.reserved = None

    def give_up(self, slot: AdmissionSlot) -> None:
        """Take the reserve from a frame that has no slot and cannot go on; no effect when it has none."""
        if self.reserved is slot and not slot.is_in:
            self.reserved = None
            self._budget.changed()

    def count_read(self, slot: AdmissionSlot, size: i64) -> None:
        if self.reserved is slot:
            slot.borrowed += size
        else:
            self._budget.promised -= size

    def trust(self, size: i64) -> bool:
        """Whether ``size`` bytes may be read without a slot, for a frame that seems to be in the kernel; ``end_trust`` afterwards."""
        budget = self._budget
        if budget.trusted != 0 and budget.trusted + size > ONE_READ:
            return False
        budget.trusted += size
        return True

    def end_trust(self, size: i64) -> None:
        self._budget.trusted -= size

    def wake(self) -> None:
        """Grant the slots that fit now."""
        if self._waking:
            return
        self._waking = True
        try:
            self.free_reserve()
            while self._queue and self._may_enter(self._queue[0]):
                slot = self._queue[0]
                self._budget.waits.observe(self._now_ns() - slot.since_ns)
                self._let_in(slot)
                slot.owner.slot_granted()
        finally:
            self._waking = False

    def _may_enter(self, slot: AdmissionSlot) -> bool:
        budget = self._budget
        return budget.fits(slot.missing) or (self.reserved is None and budget.may_lend(self))

    def _let_in(self, slot: AdmissionSlot) -> None:
        self._take_out(slot)
        slot.is_in = True
        slot.moved = 0
        budget = self._budget
        if self.reserved is not slot:
            if budget.fits(slot.missing):
                budget.promised += slot.missing
            else:
                self.reserved = slot
                slot.borrowed = 0
        self.admitted.append(slot)

    def _put_out(self, slot: AdmissionSlot) -> None:
        slot.is_in = False
        self.admitted.remove(slot)
        if self.reserved is not slot:
            self._budget.promised -= slot.missing

    def _take_out(self, slot: AdmissionSlot) -> None:
        slot.is_waiting = False
        self._queue.remove(slot)
        self.waiting -= 1
        if self._budget.waiting == 0:
            self._budget.end_shortage()


class MemoryBudget:
    """The bytes held, and the limit."""

    def __init__(self, size: i64, now_ns: Callable[[], int]) -> None:
        self.size: i64 = size  # bytes of the pool
        self.used: i64 = 0  # bytes held now
        self.sends: i64 = 0  # those of them that wait for a socket
        self.promised: i64 = 0  # missing bytes of frames that have a slot without the reserve
        self.spare: i64 = 0  # bytes of the pool kept for answers, and for what a read takes beyond the limit
        self.unspent: i64 = 0  # bytes that listeners are guaranteed and do not hold
        self.trusted: i64 = 0  # bytes that are read without a slot, for whole frames that seem to be in the kernel
        self.shortages: i64 = 0  # times without memory, each from the first refused request until none waits
        self.waits: Final = Histogram(WAIT_BOUNDS)  # durations of waits for slots that were granted in the end
        self._shortage_ns: i64 = 0
        self._shortage_since: i64 = -1
        self._now_ns: Final = now_ns
        self.requests: Final = AdmissionSlots(self, now_ns)
        self.answers: Final = AdmissionSlots(self, now_ns)

    @property
    def waiting(self) -> i64:
        """How many large frames wait for a slot."""
        return self.requests.waiting + self.answers.waiting

    def depleted_total_ns(self) -> i64:
        """How long requests waited, the current shortage included."""
        return self._shortage_ns + (self._now_ns() - self._shortage_since if self._shortage_since >= 0 else 0)

    def begin_shortage(self, now_ns: i64) -> None:
        """A request was refused; no effect during a shortage."""
        if self._shortage_since < 0:
            self._shortage_since = now_ns

    def end_shortage(self) -> None:
        """No request waits any more; no effect without a shortage."""
        if self._shortage_since >= 0:
            self._shortage_ns += self._now_ns() - self._shortage_since
            self._shortage_since = -1
            self.shortages += 1

    def fits(self, missing: i64) -> bool:
        """Whether so many bytes fit into the pool, beside the bytes held, promised and guaranteed."""
        return self.used + self.promised + self.unspent + missing <= self.size

    def reserve_threshold(self, slots: AdmissionSlots) -> i64:
        """What may be held while the reserve of a direction is free: for answers, what requests hold with theirs does not count."""
        return self.size if slots is self.requests else self.size + self.requests.largest + 2 * ONE_READ

    def may_lend(self, slots: AdmissionSlots) -> bool:
        """Whether the reserve is available: nothing is held beyond the pool; or, when the pool has shrunk or many frames have begun, nearly nothing
        that is released by itself. Rests of frames that had the reserve are released by themselves: they do not add up.
        """
        return self.used + self.promised <= self.reserve_threshold(slots) or (self.promised == 0 and self.sends <= min(self.spare, ONE_READ))

    def changed(self) -> None:
        """Less is held, or the limit is higher: wake waiting requests."""
        if self.requests.waiting != 0:
            self.requests.wake()
        if self.answers.waiting != 0:
            self.answers.wake()
