"""What a channel tells, passed on to the pair that it concerns.

``received`` is the hot path. For a pair that nobody looks into it is one look-up, one ``send`` of the peer, and a mute only if the socket did
not take everything.
"""

from typing import Final

from mypy_extensions import i64

from proxy.network import mute
from proxy.network.run import Run
from proxy.network.write_half import WriteHalf
from proxy.relay import ending, opening, passing
from proxy.relay.pair import Leg

__all__ = ["RelayLeg"]

PEER: Final = mute.PEER


class RelayLeg(Leg):
    """The sink of a channel whose frames are relayed."""

    def received(self, run: Run) -> None:
        channel = self.channel
        assert channel is not None, "a leg that is told of has a channel"
        out = self.forward_to
        if out is not None and out.can_send:
            if not out.send(run):
                channel.mute(PEER)
        else:
            passing.received(self.pair, self, channel, run)

    def may_read(self) -> bool:
        return self.channel is not None and self.admits(self.channel)

    def room_for(self) -> tuple[i64, bool]:
        return passing.room_for(self.pair, self)

    def wait_for_room(self) -> None:
        if self.channel is not None:
            passing.wait_for_room(self, self.channel)

    def passes_to(self) -> WriteHalf | None:
        return passing.passes_to(self.pair, self)

    def passed_by(self, size: i64, frames: i64) -> None:
        passing.passed_by(self.pair, self, size, frames)

    def lets_in(self, principal: str) -> bool:
        return opening.lets_in(self.pair, principal)

    def ready(self) -> None:
        opening.ready(self.pair, self)

    def sent(self) -> None:
        passing.sent(self.pair, self)

    def muted(self) -> None:
        if self.is_client:
            self.pair.owner.pair_muted(self.pair)

    def end_of_stream(self) -> None:
        ending.end_of_stream(self.pair, self)

    def write_ended(self) -> None:
        ending.write_ended(self.pair, self)

    def closed(self) -> None:
        channel = self.channel
        assert channel is not None, "a leg that is told of has a channel"
        if self.is_client or channel.ready_ns != 0:
            ending.closed(self.pair, self, channel)
        else:
            opening.attempt_failed(self.pair, channel)
