"""Turnover: while somebody waits for a turn, who holds memory must move. ``MEMORY.md`` says what is asked of whom.

Looked at by a timer that runs only while somebody waits: who has a turn and has not moved loses it; and every fifth time, over the channels, who
moves too little for what it holds is closed, the worst first, until memory is short no more.
"""

from collections.abc import Iterable
from typing import Final

from mypy_extensions import i64

from proxy.cause import Cause
from proxy.network.channel import Channel
from proxy.network.event_loop import EventLoop
from proxy.network.memory_pool import MemoryPool
from proxy.network.timer import Timer
from proxy.network.turns import WORTH, Turns

__all__ = ["Turnover"]

CHECK_NS: Final = 50_000_000
CHECKS: Final = 5  # between two of everybody
NS_PER_S: Final = 1_000_000_000
WINDOW_NS: Final = 2_000_000_000
TURNOVER_S: Final = 10  # what is held must be moved once in this time
PATIENCE_NS: Final = 2_000_000_000  # so long the first has waited before anybody is closed
ASKED_CHECKS: Final = TURNOVER_S * NS_PER_S // CHECK_NS


class _Mark:
    """How far a frame begun, or a pending send, was at a time."""

    def __init__(self, item: i64, since_ns: i64, moved: i64, held: i64) -> None:
        self.item: Final[i64] = item
        self.since_ns: i64 = since_ns
        self.moved: i64 = moved
        self.held: i64 = held  # the most it held


class _Slow:
    """Somebody who moves too little.

    Attributes:
        share: what it moved, in thousandths of what was asked.
    """

    def __init__(self, channel: Channel, share: i64, held: i64, moved: i64, lasted_ns: i64, *, sends: bool) -> None:
        self.channel: Final = channel
        self.share: Final[i64] = share
        self.held: Final[i64] = held
        self.sends: Final = sends
        self.detail: Final = (
            f"{held} bytes of the memory pool held and {moved} moved in {lasted_ns // 1_000_000} ms, while others waited for memory: "
            f"not the {max(held // TURNOVER_S, 1)} a second that this asks for"
        )


class Turnover(Timer):
    """The timer of one selector, and of the channels that it has."""

    def __init__(self, loop: EventLoop, pool: MemoryPool, channels: Iterable[Channel]) -> None:
        super().__init__()
        self._loop: Final = loop
        self._channels: Final = channels
        self._pool: Final = pool
        self._armed: bool = False
        self._count: i64 = 0
        self._receiving: dict[Channel, _Mark] = {}
        self._sending: dict[Channel, _Mark] = {}

    def watch(self) -> None:
        """Somebody waits."""
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
        self._take_turns(pool.requests)
        self._take_turns(pool.answers)
        if self._count % CHECKS == 0:
            slow = self._find_slow(now_ns)
            self._close(slow, now_ns)
        self._count += 1

    def _take_turns(self, turns: Turns) -> None:
        """From those who have not moved, and have nothing to read; and the reserve from who hardly moves and does not need it, or cannot go on."""
        if turns.waiting == 0:
            return
        for turn in list(turns.admitted):
            slow = turn.moved * ASKED_CHECKS < turn.size
            if turn.is_in and (turn.moved == 0 or (turn is turns.reserved and slow)) and (turn.owner.is_dry() or turn.owner.is_held_up()):
                turns.revoke(turn)
            turn.moved = 0
        holder = turns.reserved
        if holder is not None and not holder.is_in and holder.owner.is_held_up():
            turns.give_up(holder)

    def _find_slow(self, now_ns: i64) -> list[_Slow]:
        receiving: dict[Channel, _Mark] = {}
        sending: dict[Channel, _Mark] = {}
        slow: list[_Slow] = []
        for channel in self._channels:
            held = channel.read_half.receive.booked
            if held >= WORTH and channel.read_half.is_receiving:
                mark = self._judge(
                    channel, self._receiving.get(channel), channel.frames_received, channel.read_half.bytes_arrived, held, now_ns, slow, sends=False
                )
                receiving[channel] = mark
            held = channel.write_half.held_for_peer
            if held != 0 and channel.write_half.is_sending and not channel.read_half.is_urgent:
                mark = self._judge(
                    channel,
                    self._sending.get(channel),
                    channel.write_half.pending.number,
                    channel.write_half.wire_taken,
                    held,
                    now_ns,
                    slow,
                    sends=True,
                )
                sending[channel] = mark
        self._receiving = receiving
        self._sending = sending
        return slow

    def _judge(self, channel: Channel, mark: _Mark | None, item: i64, moved: i64, held: i64, now_ns: i64, slow: list[_Slow], *, sends: bool) -> _Mark:
        if mark is None or mark.item != item:
            return _Mark(item, now_ns, moved, held)
        mark.held = max(mark.held, held)
        lasted_ns = now_ns - mark.since_ns
        if lasted_ns < WINDOW_NS:
            return mark
        asked = max(mark.held * (lasted_ns // 1_000_000) // (TURNOVER_S * 1000), 1)
        done = moved - mark.moved
        if done < asked:
            slow.append(_Slow(channel, done * 1000 // asked, held, done, lasted_ns, sends=sends))
            return mark
        return _Mark(item, now_ns, moved, mark.held)

    def _close(self, slow: list[_Slow], now_ns: i64) -> None:
        """The worst first: who has moved the least of what was asked, and of those who holds the most. Until there is room in the pool."""
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

    def _has_waited(self, turns: Turns, now_ns: i64) -> bool:
        return turns.first_since_ns >= 0 and now_ns - turns.first_since_ns >= PATIENCE_NS


def _badness(slow: _Slow) -> tuple[int, int]:
    return int(slow.share), -int(slow.held)
