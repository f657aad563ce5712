"""Throttling: the reasons for which a channel is muted for ``throttle``, and the quotas of one channel.

A mute cause is set once or not at all, but several reasons may throttle a channel at the same time: a quota that is used up, and a handler's reply
that asks for a pause. Each reason is a *holder*, a bit. The channel is muted while there is any holder. A ``Throttle`` is made when it is first
needed (``Leg.throttle``), so channels that are never throttled have none.

A channel with quotas is gated. Before each read its ``Meter`` asks the buckets; if one has no token, the channel is throttled and waits there. After
each read the buckets are charged with the growth of the channel's own counts. Where there is no upstream, no channel is read for the responses: then
the client has a second meter for what it is sent, and is not read until that is paid.
"""

from typing import Final

from mypy_extensions import i64

from framegate.proxy.network import mute
from framegate.proxy.network.channel import Channel
from framegate.proxy.network.selector import Selector
from framegate.proxy.network.transport import MAX_READ
from framegate.proxy.relay.bucket import WHOLE, Bucket, Waiter

QUOTA: Final = 1  # a quota of what is read
REPLY: Final = 2  # a handler's reply
ANSWERS: Final = 4  # a quota of what the listener's handler answers
THROTTLE: Final = mute.THROTTLE


class Throttle:
    """Why one channel is throttled."""

    def __init__(self, channel: Channel) -> None:
        self.channel: Final = channel
        self.meter: Meter | None = None  # of what is read; None while no quota applies
        self.answers: Meter | None = None  # of what is sent, where there is no upstream; None while no quota applies
        self.holders: i64 = 0  # the bits of those that hold it now
        self.held: bool = False  # it has had a holder since the last ``was_throttled``

    def was_throttled(self) -> bool:
        """Whether it has a holder, or has had one since the last call."""
        held = self.held
        self.held = self.holders != 0
        return held

    def hold(self, holder: i64) -> bool:
        """Add a holder; True when the mute is in force. No effect if it is one already."""
        self.holders |= holder
        self.held = True
        return self.channel.mute(THROTTLE)

    def let_go(self, holder: i64) -> None:
        """Remove a holder; after the last one the channel is not muted for ``throttle`` any more. No effect if it is none."""
        before = self.holders
        self.holders = before & ~holder
        if before != 0 and self.holders == 0:
            self.channel.unmute(THROTTLE)


class Meter(Waiter):
    """The quotas of one channel, from its present counts on.

    Args:
        buckets: at least one; the buckets of fewest channels first.
        address: the client address that has buckets among them; empty: none.
        answers: what is sent to the channel is charged, not what is read from it.
    """

    def __init__(self, throttle: Throttle, loop: Selector, buckets: list[Bucket], address: str = "", *, answers: bool = False) -> None:
        self.address: Final = address
        self.buckets: list[Bucket] = buckets  # as given; empty after ``leave``
        self.channel: Final = throttle.channel
        self._answers: Final[bool] = answers
        self._throttle: Final = throttle
        self._holder: Final[i64] = ANSWERS if answers else QUOTA
        self._loop: Final = loop
        self._bytes: i64 = self._byte_count()
        self._frames: i64 = self._frame_count()
        self._limit: i64 = MAX_READ
        self._frame_size: i64 = 0  # average of the last read; 0: not known
        self._waits: Bucket | None = None
        self._at: i64 = 0  # index of the bucket that it waits for, or waited for; those before it have admitted the next read
        self._let_in: bool = False  # that bucket has admitted it

    def may_read(self) -> bool:
        if self._waits is not None:  # only the frame that was begun is read
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
                self._at = at  # otherwise it could wait for two buckets in turn for ever
                self._let_in = False
                self._want(1)
                return not self._throttle.hold(self._holder)
            most = min(most, self._limit_of(bucket))
        self._limit = most
        return True

    def read_limit(self) -> i64:
        return self._limit

    def was_read(self) -> None:
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
        except Exception as error:  # the other waiters go on
            self.channel.crash(error)

    def leave(self) -> None:
        """The quotas do not apply any more: charge what was read, and leave the queue. A second call has no effect."""
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
        """How many bytes one read may have; 0: one frame, or one request. A limit in frames or of answers is converted by the sizes of those before;
        the rest of a frame that was begun counts as one frame, whatever its size.
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


class PairRates:
    """The rates that an operator gave to one connection, with a bucket for each direction that has one. ``action``: the number of the operator's
    action; 0: it has none. ``request``, ``response``: bytes per second; 0: no limit.
    """

    def __init__(self, loop: Selector, action: i64, reason: str, request: i64, response: i64) -> None:
        self.action: Final[i64] = action
        self.reason: Final = reason
        self.requests: Final = None if request == 0 else Bucket(loop, request, WHOLE, frames=False)
        self.responses: Final = None if response == 0 else Bucket(loop, response, WHOLE, frames=False)
        self._loop: Final = loop

    def cancel(self) -> None:
        """They do not apply any more. A second call has no effect."""
        for bucket in (self.requests, self.responses):
            if bucket is not None:
                self._loop.cancel(bucket)
