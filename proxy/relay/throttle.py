"""Throttling: the reasons for which a channel is muted for ``throttle``, and the quotas of one channel.

The mute set knows each cause once. Several may want a channel throttled at the same time: a quota that is used up, a handler's answer that asks
for a pause. Each is a *holder*, a bit; the channel is muted from the first holder's ``hold`` to the last one's ``let_go``, in whatever order.
A channel's ``Throttle`` is made when the first needs it (``Leg.throttle``), so that a channel that is never throttled has none.

A client whose listener has no upstream is read for what it sends and, in effect, for what is answered: it has a meter for both.

A channel under quotas is gated. Before each read its ``Meter`` asks the buckets; where one says no, the channel is throttled and waits there. After
each read the buckets are paid: so much as the channel's own counts grew, whatever way the bytes went.
"""

from typing import Final

from mypy_extensions import i64

from framegate.proxy.network import mute
from framegate.proxy.network.channel import Channel
from framegate.proxy.network.selector import Selector
from framegate.proxy.network.transport import MAX_READ
from framegate.proxy.relay.bucket import Bucket, Waiter

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
        held: somebody has held it since ``was_throttled`` was asked.
    """

    def __init__(self, channel: Channel) -> None:
        self.channel: Final = channel
        self.meter: Meter | None = None
        self.answers: Meter | None = None
        self.holders: i64 = 0
        self.held: bool = False

    def was_throttled(self) -> bool:
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
        address, buckets: as given; no buckets after ``leave``.
    """

    def __init__(self, throttle: Throttle, loop: Selector, buckets: list[Bucket], address: str = "", *, answers: bool = False) -> None:
        self.address: Final = address
        self.buckets: list[Bucket] = buckets
        self.channel: Final = throttle.channel
        self._answers: Final[bool] = answers
        self._throttle: Final = throttle
        self._holder: Final[i64] = ANSWERS if answers else QUOTA
        self._loop: Final = loop
        self._bytes: i64 = self._byte_count()
        self._frames: i64 = self._frame_count()
        self._limit: i64 = MAX_READ
        self._frame_size: i64 = 0  # of the frames that came last, on average; 0: not known
        self._waits: Bucket | None = None
        self._at: i64 = 0  # the bucket that it waits for, or waited for; those before have admitted the next read
        self._let_in: bool = False  # by that bucket

    def may_read(self) -> bool:
        """See ``ChannelSink.may_read``."""
        if self._waits is not None:  # it is not read but for the frame begun
            return True
        if self._answers:
            self.was_read()
        now_ns = self._loop.now_ns
        most: i64 = MAX_READ
        for at, bucket in enumerate(self.buckets):
            let_in = self._let_in and at == self._at
            if at >= self._at and not bucket.admits(now_ns, let_in=let_in):
                bucket.wait(self, now_ns, first=let_in)
                self._waits = bucket
                self._at = at  # else two buckets could send it to and fro for ever
                self._let_in = False
                self._want(1)
                return not self._throttle.hold(self._holder)
            most = min(most, self._limit_of(bucket))
        self._limit = most
        return True

    def read_limit(self) -> i64:
        """See ``ChannelSink.read_limit``."""
        return self._limit

    def was_read(self) -> None:
        """See ``ChannelSink.was_read``."""
        size = self._byte_count() - self._bytes
        if size == 0:
            return
        frames = self._frame_count() - self._frames
        self._bytes += size
        self._frames += frames
        if frames != 0:
            self._frame_size = size // frames
        if self._waits is None:
            self._at = 0
            self._let_in = False
        for bucket in self.buckets:
            amount = frames if bucket.frames else size
            if amount != 0:
                bucket.charge(amount, self._loop.now_ns)

    def let_in(self, late_ns: i64) -> None:
        self._want(-1)
        for bucket in self.buckets:
            if bucket is not self._waits:
                bucket.make_good(late_ns)
        self._waits = None
        self._let_in = True
        try:
            self._throttle.let_go(self._holder)
        except Exception as error:  # others wait, too
            self.channel.crash(error)

    def leave(self) -> None:
        """The buckets are not asked any more: what was read is paid for, and nothing waited for. Harmless when that is so."""
        self.was_read()
        if self._waits is not None:
            self._want(-1)
            self._waits.leave(self)
            self._waits = None
        self.buckets = []
        self._throttle.let_go(self._holder)

    def _want(self, count: i64) -> None:
        for bucket in self.buckets:
            bucket.want(count, self._loop.now_ns)

    def _byte_count(self) -> i64:
        return self.channel.write_half.bytes_sent if self._answers else self.channel.bytes_received

    def _frame_count(self) -> i64:
        return self.channel.write_half.frames_sent if self._answers else self.channel.frames_received

    def _limit_of(self, bucket: Bucket) -> i64:
        """How many bytes one read may have; 0: one frame, or one request. What that is in frames, or in answers, follows from those before. The rest
        of the frame begun is one frame whatever its size, and may be much larger than those.
        """
        quantum = bucket.quantum
        if quantum >= MAX_READ or (not bucket.frames and not self._answers):
            return quantum
        tokens = max(min(i64(bucket.level), quantum), 0)
        if self._answers:
            sent = self._frames if bucket.frames else self._bytes
            size = 0 if sent == 0 else tokens * self.channel.bytes_received // sent
        else:
            size = 0 if tokens <= 1 else tokens * self._frame_size
        return max(size, self.channel.read_half.receive.missing()) if bucket.frames and size != 0 else size
