"""Throttling: who keeps a channel muted for ``throttle``, and the quotas of one channel.

The mute set knows each cause once. Several may want a channel throttled at the same time: a quota that is used up, a handler's answer that asks
for a pause. Each is a *holder*, a bit; the channel is muted from the first holder's ``hold`` to the last one's ``let_go``, in whatever order.
A channel's ``Throttle`` is made when the first needs it (``Leg.throttle``), so that one that nobody throttles holds nothing.

A client whose listener has no upstream is read for what it sends and, in effect, for what is answered: it has a meter for both.

A channel under quotas is gated. Before each read its ``Meter`` asks the buckets; where one says no, the channel is throttled and waits there. After
each read the buckets are paid: so much as the channel's own counts grew, whatever way the bytes went.
"""

from typing import Final

from mypy_extensions import i64

from proxy.network import mute
from proxy.network.channel import Channel
from proxy.network.event_loop import EventLoop
from proxy.network.read_size import MAX_READ
from proxy.relay.bucket import Bucket, Stake, Waiter

__all__ = ["ANSWERS", "QUOTA", "REPLY", "Meter", "Throttle"]

QUOTA: Final = 1  # a rate of ``limits``, of what it reads
REPLY: Final = 2  # the answer of a handler
ANSWERS: Final = 4  # a rate of ``limits``, of what its listener's handler answers
THROTTLE: Final = mute.THROTTLE


class Throttle:
    """Why one channel is throttled.

    Attributes:
        channel: that is muted.
        meter: its quotas; None while none applies.
        answers: those of what is sent to it, where no upstream's channel is read for that; likewise.
        holders: those that hold it now.
        held: somebody has held it since ``was_held`` was asked.
    """

    def __init__(self, channel: Channel) -> None:
        self.channel: Final = channel
        self.meter: Meter | None = None
        self.answers: Meter | None = None
        self.holders: i64 = 0
        self.held: bool = False

    def was_held(self) -> bool:
        """Whether anybody holds it, or has since this was asked last."""
        held = self.held
        self.held = self.holders != 0
        return held

    def hold(self, holder: i64) -> bool:
        """Throttle for ``holder``; True when the mute is in force. Harmless when it holds already."""
        self.holders |= holder
        self.held = True
        return self.channel.mute(THROTTLE)

    def let_go(self, holder: i64) -> None:
        """``holder`` has no reason any more; reading goes on when it was the last one, and no other cause mutes. Harmless when it does not hold."""
        before = self.holders
        self.holders = before & ~holder
        if before != 0 and self.holders == 0:
            self.channel.unmute(THROTTLE)


class Meter(Waiter):
    """The quotas of one channel; they count from where the channel is now.

    Args:
        throttle: of the channel.
        loop: for the time.
        buckets: at least one; those that fewest share first.
        address: whose buckets are among them; empty: no address's are.
        answers: what was sent to the channel is paid for, before it is read again.

    Attributes:
        channel: whose they are.
        address: as given.
        stakes: in the buckets.
    """

    def __init__(self, throttle: Throttle, loop: EventLoop, buckets: list[Bucket], address: str = "", *, answers: bool = False) -> None:
        self.address: Final = address
        self._answers: Final[bool] = answers
        self.stakes: list[Stake] = [Stake(bucket, self) for bucket in buckets]
        self._throttle: Final = throttle
        self.channel: Final = throttle.channel
        self._loop: Final = loop
        self._bytes: i64 = throttle.channel.write_half.bytes_sent if answers else throttle.channel.bytes_received
        self._frames: i64 = throttle.channel.write_half.frames_sent if answers else throttle.channel.frames_received
        self._limit: i64 = MAX_READ
        self._run: i64 = 0  # bytes since the last whole frame
        self._frame_size: i64 = 0  # of the frames that came last, on average; 0: not known
        self._waits: Stake | None = None

    def may_read(self) -> bool:
        """See ``ChannelSink.may_read``."""
        if self._waits is not None:  # it is not read but for the frame begun
            return True
        if self._answers:
            self.was_read()
        now_ns = self._loop.now_ns
        most: i64 = MAX_READ
        for stake in self.stakes:
            bucket = stake.bucket
            if not bucket.admits(stake, now_ns):
                return self._wait(stake, now_ns)
            if self._answers:
                most = min(most, self._asked_by(bucket))
            elif bucket.quantum < most:
                most = min(most, bucket.quantum if not bucket.frames else self._bytes_of(min(bucket.level, bucket.quantum)))
        self._limit = most
        return True

    def read_limit(self) -> i64:
        """See ``ChannelSink.read_limit``."""
        return self._limit

    def was_read(self) -> None:
        """See ``ChannelSink.was_read``."""
        channel = self.channel
        size = (channel.write_half.bytes_sent if self._answers else channel.bytes_received) - self._bytes
        if size == 0:
            return
        frames = (channel.write_half.frames_sent if self._answers else channel.frames_received) - self._frames
        self._bytes += size
        self._frames += frames
        self._run += size
        if frames != 0:
            self._frame_size = self._run // frames
            self._run = 0
        now_ns = self._loop.now_ns
        for stake in self.stakes:
            bucket = stake.bucket
            amount = frames if bucket.frames else size
            if amount != 0:
                bucket.charge(stake, amount, now_ns)

    def let_in(self, late_ns: i64) -> None:
        for stake in self.stakes:
            stake.bucket.want(-1, self._loop.now_ns)
            if stake is not self._waits:
                stake.bucket.make_good(late_ns)
        self._waits = None
        try:
            self._throttle.let_go(ANSWERS if self._answers else QUOTA)
        except Exception as error:  # others wait, too
            self.channel.crash(error)

    def leave(self) -> None:
        """The buckets are not asked any more: what was read is paid for, and nothing waited for. Harmless when that is so."""
        self.was_read()
        stakes = self.stakes
        self.stakes = []
        for stake in stakes:
            stake.bucket.leave(stake, self._loop.now_ns)
            if self._waits is not None:
                stake.bucket.want(-1, self._loop.now_ns)
        self._waits = None
        self._throttle.let_go(ANSWERS if self._answers else QUOTA)

    def _wait(self, stake: Stake, now_ns: i64) -> bool:
        """Wait for a bucket; True: the frame begun may be read meanwhile."""
        for before in self.stakes:
            if before is stake:
                break
            before.bucket.keep(before)
        stake.bucket.wait(stake, now_ns)
        self._waits = stake
        for each in self.stakes:
            each.bucket.want(1, now_ns)
        return not self._throttle.hold(ANSWERS if self._answers else QUOTA)

    def _asked_by(self, bucket: Bucket) -> i64:
        """How many bytes of requests get no more answers than the bucket gives at a time, by those that came so far; 0: one request."""
        channel = self.channel
        sent = channel.write_half.frames_sent if bucket.frames else channel.write_half.bytes_sent
        if bucket.quantum >= MAX_READ or sent == 0:
            return MAX_READ if bucket.quantum >= MAX_READ else 0
        return min(bucket.level, bucket.quantum) * channel.bytes_received // sent

    def _bytes_of(self, frames: i64) -> i64:
        """How many bytes so many frames have, by those that came last; 0, which is one frame, where that cannot be said."""
        return 0 if frames <= 1 else frames * self._frame_size
