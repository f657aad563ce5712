"""The stall evictor: while a frame waits for a slot, channels that hold memory must move bytes. ``MEMORY.md`` says how many.

A timer runs while a frame waits. Each time it fires, a frame that has a slot and has not moved loses the slot. Every fifth time, the channels that
moved too few bytes for the memory they hold are closed, the worst first, until memory is not short any more.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from framegate.proxy.cause import Cause
from framegate.proxy.network.admission_slots import MIN_STALLED_BYTES, AdmissionSlots
from framegate.proxy.network.channel import Channel
from framegate.proxy.network.memory_pool import MemoryPool
from framegate.proxy.network.timer import Timer

if TYPE_CHECKING:
    from framegate.proxy.network.selector import Selector

CHECK_NS: Final = 50_000_000
CHECKS: Final = 5  # checks of the slots for each check of all channels
NS_PER_S: Final = 1_000_000_000
WINDOW_NS: Final = 2_000_000_000
MOVE_ALL_S: Final = 10  # a channel must move as many bytes as it holds in this time
PATIENCE_NS: Final = 2_000_000_000  # no channel is closed before the first request has waited this long
ASKED_CHECKS: Final = MOVE_ALL_S * NS_PER_S // CHECK_NS


class _Mark:
    """The progress of a frame or a pending send at a time."""

    def __init__(self, item: i64, since_ns: i64, moved: i64, held: i64) -> None:
        self.item: Final[i64] = item
        self.since_ns: i64 = since_ns
        self.moved: i64 = moved
        self.held: i64 = held  # the maximum it held


class _StalledChannel:
    """A channel that moves too little."""

    def __init__(self, channel: Channel, share: i64, held: i64, moved: i64, lasted_ns: i64, *, sends: bool) -> None:
        self.channel: Final = channel
        self.share: Final[i64] = share  # bytes moved, in thousandths of the bytes required
        self.held: Final[i64] = held
        self.sends: Final = sends
        self.detail: Final = (
            f"{held} bytes of the memory pool held and {moved} moved in {lasted_ns // 1_000_000} ms, while others waited for memory: "
            f"not the {max(held // MOVE_ALL_S, 1)} a second that this asks for"
        )


class StallEvictor(Timer):
    """The timer of one selector and its channels."""

    def __init__(self, loop: "Selector", pool: MemoryPool, channels: Iterable[Channel]) -> None:
        super().__init__()
        self._loop: Final = loop
        self._channels: Final = channels
        self._pool: Final = pool
        self._armed: bool = False
        self._count: i64 = 0
        self._receiving: dict[Channel, _Mark] = {}
        self._sending: dict[Channel, _Mark] = {}

    def watch(self) -> None:
        """A frame waits for a slot: start the timer."""
        if not self._armed:
            self._armed = True
            self._count = 0
            self._loop.call_at(self._loop.now_ns + CHECK_NS, self)

    def fire(self, now_ns: i64) -> None:
        self._armed = False
        pool = self._pool
        if pool.waiting == 0:
            self._receiving = {}
            self._sending = {}
            return
        self._armed = True
        self._loop.call_at(now_ns + CHECK_NS, self)
        self._revoke_idle_slots(pool.requests)
        self._revoke_idle_slots(pool.answers)
        if self._count % CHECKS == 0:
            slow = self._find_stalled(now_ns)
            self._close(slow, now_ns)
        self._count += 1

    def _revoke_idle_slots(self, slots: AdmissionSlots) -> None:
        """Revoke slots of frames that have not moved and have no input, and the reserve of a frame that hardly moves, or cannot go on."""
        if slots.waiting == 0:
            return
        for slot in list(slots.admitted):
            slow = slot.moved * ASKED_CHECKS < slot.size
            if slot.is_in and (slot.moved == 0 or (slot is slots.reserved and slow)) and (slot.owner.has_no_input() or slot.owner.is_blocked()):
                slots.revoke(slot)
            slot.moved = 0
        holder = slots.reserved
        if holder is not None and not holder.is_in and holder.owner.is_blocked():
            slots.give_up(holder)

    def _find_stalled(self, now_ns: i64) -> list[_StalledChannel]:
        receiving: dict[Channel, _Mark] = {}
        sending: dict[Channel, _Mark] = {}
        slow: list[_StalledChannel] = []
        for channel in self._channels:
            reads, writes = channel.read_half, channel.write_half
            held = reads.receive.booked
            if held >= MIN_STALLED_BYTES and reads.is_receiving:
                before = self._receiving.get(channel)
                receiving[channel] = self._check(channel, before, channel.frames_received, reads.bytes_arrived, held, now_ns, slow, sends=False)
            held = writes.held_for_peer
            if held != 0 and writes.is_sending and not reads.is_urgent:
                before = self._sending.get(channel)
                sending[channel] = self._check(channel, before, writes.pending.number, writes.wire_taken, held, now_ns, slow, sends=True)
        self._receiving = receiving
        self._sending = sending
        return slow

    def _check(
        self, channel: Channel, mark: _Mark | None, item: i64, moved: i64, held: i64, now_ns: i64, slow: list[_StalledChannel], *, sends: bool
    ) -> _Mark:
        if mark is None or mark.item != item:
            return _Mark(item, now_ns, moved, held)
        mark.held = max(mark.held, held)
        lasted_ns = now_ns - mark.since_ns
        if lasted_ns < WINDOW_NS:
            return mark
        asked = max(mark.held * (lasted_ns // 1_000_000) // (MOVE_ALL_S * 1000), 1)
        done = moved - mark.moved
        if done < asked:
            slow.append(_StalledChannel(channel, done * 1000 // asked, held, done, lasted_ns, sends=sends))
            return mark
        return _Mark(item, now_ns, moved, mark.held)

    def _close(self, slow: list[_StalledChannel], now_ns: i64) -> None:
        """Close the worst first, by bytes moved of those required, then by bytes held, until the pool has room."""
        pool = self._pool
        if not self._has_waited(pool.requests, now_ns) and not self._has_waited(pool.answers, now_ns):
            return
        slow.sort(key=_badness)
        for one in slow:
            if pool.waiting == 0 or pool.used <= pool.line:
                return
            if one.channel.is_open:
                pool.evicted += 1
                one.channel.close(Cause.SEND_STALLED if one.sends else Cause.RECEIVE_STALLED, one.detail)

    def _has_waited(self, slots: AdmissionSlots, now_ns: i64) -> bool:
        return slots.first_since_ns >= 0 and now_ns - slots.first_since_ns >= PATIENCE_NS


def _badness(slow: _StalledChannel) -> tuple[int, int]:
    return int(slow.share), -int(slow.held)
