"""The watchdog: one timer for each channel, for all time limits: opening, idle expiry, age, and frames or sends that stall.

Stalls are checked four times in each window of ``stall_ns``. A frame or a pending send that is still the same as at an earlier check, without a mute
in between, must have moved ``min_rate`` over the whole window. So a stall is found at most a quarter of the window late.
"""

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from framegate.proxy.cause import Cause
from framegate.proxy.network.channel import Channel
from framegate.proxy.network.options import ChannelOptions
from framegate.proxy.network.timer import NEVER, Timer, spread

if TYPE_CHECKING:
    from framegate.proxy.network.selector import Selector

NS_PER_MS: Final = 1_000_000
NS_PER_S: Final = 1_000_000_000
CHECKS: Final = 4  # in a stall window
AGE_PARTS: Final = 10  # the age of a channel is limited to max_age_ns, plus or minus one of so many parts of it


class Window:
    """A frame or a send in progress, when it was first seen, and how many bytes had moved by then."""

    def __init__(self, item: i64, mute_count: i64, since_ns: i64, moved: i64) -> None:
        self.item: Final[i64] = item
        self.mute_count: Final[i64] = mute_count
        self.since_ns: i64 = since_ns
        self.moved: i64 = moved

    def moves_too_little(self, now_ns: i64, moved: i64, options: ChannelOptions) -> bool:
        """Whether the window is over and fewer bytes moved than ``min_rate`` requires. If there were enough, the window begins again."""
        if now_ns - self.since_ns < options.stall_ns:
            return False
        if (moved - self.moved) * NS_PER_S < options.min_rate * options.stall_ns:
            return True
        self.since_ns = now_ns
        self.moved = moved
        return False


def window_of(item: i64, mute_count: i64, now_ns: i64, moved: i64, last: Window | None) -> Window | None:
    """Return the window of the item in progress: ``last`` if it is the same item, else a new one; None if no item is in progress (-1)."""
    if item < 0:
        return None
    if last is not None and last.item == item and last.mute_count == mute_count:
        return last
    return Window(item, mute_count, now_ns, moved)


class Watchdog(Timer):
    """The watchdog of one channel."""

    def __init__(self, loop: "Selector", channel: Channel) -> None:
        super().__init__()
        self._loop: Final = loop
        self._channel: Channel | None = channel
        self._receiving: Window | None = None
        self._sending: Window | None = None

    def fire(self, now_ns: i64) -> None:
        channel = self._channel
        if channel is None:
            return
        try:
            self.check(now_ns)
        except Exception as error:  # without a watchdog a channel could stay open forever
            channel.crash(error)

    def release(self) -> None:
        self._channel = None

    def check(self, now_ns: i64) -> None:
        """Close the channel if something takes too long, else arm for the next check."""
        channel = self._channel
        assert channel is not None, "a closed channel has no watchdog"
        options = channel.options
        if not channel.is_open:
            self._check_opening(channel, now_ns)
            return
        next_ns: i64 = NEVER
        if options.idle_ns > 0:
            next_ns = channel.last_active_ns + options.idle_ns
            if now_ns >= next_ns and channel.sink.blocks_peer():
                channel.last_active_ns = now_ns
                next_ns = now_ns + options.idle_ns
            elif now_ns >= next_ns:
                channel.close(Cause.IDLE, f"no byte for {options.idle_ns // NS_PER_MS} ms")
                return
        if options.stall_ns > 0 and options.min_rate > 0:
            next_ns = min(next_ns, now_ns + max(options.stall_ns // CHECKS, 1))
            if self._stalled(channel, now_ns):
                return
        if options.max_age_ns > 0:
            part_ns: i64 = options.max_age_ns // AGE_PARTS
            due_ns = channel.opened_ns + options.max_age_ns - part_ns + spread(int(channel.id), 2 * part_ns)
            if now_ns < due_ns:
                next_ns = min(next_ns, due_ns)
            else:
                channel.sink.aged()
        if next_ns != NEVER:
            self._loop.call_at(next_ns, self)

    def _check_opening(self, channel: Channel, now_ns: i64) -> None:
        options = channel.options
        due_ns = channel.opened_ns + options.handshake_timeout_ns
        if now_ns < due_ns:
            self._loop.call_at(due_ns, self)
        else:
            cause = Cause.UPSTREAM_TIMEOUT if options.side == "upstream" else Cause.HANDSHAKE_TIMEOUT
            channel.close(cause, f"not ready in {options.handshake_timeout_ns // NS_PER_MS} ms")

    def _stalled(self, channel: Channel, now_ns: i64) -> bool:
        options = channel.options
        frame = channel.frames_received if channel.read_half.is_receiving else -1
        arrived: i64 = channel.read_half.bytes_arrived if frame >= 0 else 0
        receiving = self._receiving = window_of(frame, channel.mutes.count, now_ns, arrived, self._receiving)
        if receiving is not None and receiving.moves_too_little(now_ns, arrived, options):
            channel.close(Cause.RECEIVE_STALLED, f"{channel.read_half.begun_bytes} bytes of a frame, then nearly nothing")
            return True
        send = channel.write_half.pending.number if channel.write_half.is_sending else -1
        taken: i64 = channel.write_half.wire_taken if send >= 0 else 0
        sending = self._sending = window_of(send, 0, now_ns, taken, self._sending)
        if sending is not None and sending.moves_too_little(now_ns, taken, options):
            channel.close(Cause.SEND_STALLED, f"{channel.pending_send + channel.write_half.wire_sent - taken} bytes are not taken")
            return True
        return False
