"""Throttling: who keeps a channel muted for ``throttle``.

The mute set knows each cause once. Several may want a channel throttled at the same time: a quota that is used up, a handler's answer that asks
for a pause. Each is a *holder*, a bit; the channel is muted from the first holder's ``hold`` to the last one's ``let_go``, in whatever order.
A channel's ``Throttle`` is made when the first needs it (``Leg.throttle``), so that one that nobody throttles holds nothing.
"""

import abc
from typing import Final

from mypy_extensions import i64

from proxy.network import mute
from proxy.network.channel import Channel

__all__ = ["QUOTA", "REPLY", "ReadGate", "Throttle"]

QUOTA: Final = 1  # a rate of ``limits``
REPLY: Final = 2  # the answer of a handler
THROTTLE: Final = mute.THROTTLE


class ReadGate(abc.ABC):
    """Says how much a channel may read, and is told of what it read; see ``ChannelSink``."""

    @abc.abstractmethod
    def may_read(self) -> bool:
        """See ``ChannelSink.may_read``."""

    @abc.abstractmethod
    def read_limit(self) -> i64:
        """See ``ChannelSink.read_limit``."""

    @abc.abstractmethod
    def was_read(self) -> None:
        """See ``ChannelSink.was_read``."""

    @abc.abstractmethod
    def leave(self) -> None:
        """The channel is not to be asked about any more: count what it read, and let go of it. Harmless when that was done."""


class Throttle:
    """Why one channel is throttled.

    Attributes:
        channel: that is muted.
        gate: its quotas; None while none applies.
        holders: those that hold it now.
    """

    def __init__(self, channel: Channel) -> None:
        self.channel: Final = channel
        self.gate: ReadGate | None = None
        self.holders: i64 = 0

    def hold(self, holder: i64) -> bool:
        """Throttle for ``holder``; True when the mute is in force. Harmless when it holds already."""
        self.holders |= holder
        return self.channel.mute(THROTTLE)

    def let_go(self, holder: i64) -> None:
        """``holder`` has no reason any more; reading goes on when it was the last one, and no other cause mutes. Harmless when it does not hold."""
        before = self.holders
        self.holders = before & ~holder
        if before != 0 and self.holders == 0:
            self.channel.unmute(THROTTLE)
