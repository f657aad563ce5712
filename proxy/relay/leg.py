"""The sink of a channel: passes its events on to the pair.

``received`` is the hot path. For a pair that is not inspected it is one look-up and one ``send`` of the peer, and a mute if the socket did not take
everything.
"""

from typing import Final

from mypy_extensions import i64

from framegate.proxy.network import mute
from framegate.proxy.network.channel import Channel
from framegate.proxy.network.channel_sink import NO_LIMIT
from framegate.proxy.network.run import Run
from framegate.proxy.network.write_half import WriteHalf
from framegate.proxy.relay import ending, forwarding, opening
from framegate.proxy.relay.pair import Leg

PEER: Final = mute.PEER


class RelayLeg(Leg):
    """The sink of a channel whose frames are relayed."""

    def received(self, run: Run) -> None:
        channel = self.channel
        assert channel is not None, "a leg with events has a channel"
        out = self.forward_to
        if out is not None and out.can_send:
            if not out.send(run):
                channel.mute(PEER)
            elif channel.suits_lane and channel.read_half.frames_received != run.frames:  # not for the first ones, which may be all
                self._open_lanes(channel)
        elif out is not None and out.has_pending_send:  # only the rest of a read of the fast path comes while a send is pending
            out.send_behind(run)
        else:
            forwarding.received(self.pair, self, channel, run)
            if self.only_tapped and channel.suits_lane and channel.read_half.frames_received != run.frames:
                self._open_lanes(channel)

    def was_forwarded(self, run: Run, taken: i64, code: i64, rest: bytes | None) -> None:
        channel, out = self.channel, self.forward_to
        assert channel is not None, "a leg with events has a channel"
        if self.only_tapped:
            forwarding.was_tapped_and_forwarded(self, channel, run, taken, code, rest)
            return
        if out is None or not out.can_send:  # the other channel was closed meanwhile
            forwarding.received(self.pair, self, channel, run)
            return
        out.send_rest(run, taken, code, rest)
        channel.mute(PEER)

    def _open_lanes(self, channel: Channel) -> None:
        """Both ways, because both are closed whenever Python handles something of the pair."""
        other = self.other
        peer = other.channel
        if peer is not None and peer.suits_lane:
            channel.open_lane(peer, self.tap_whole_frames if self.only_tapped else None)
            if (other.forward_to is not None or other.only_tapped) and peer.frames_received != 0:
                peer.open_lane(channel, other.tap_whole_frames if other.only_tapped else None)

    def may_read(self) -> bool:
        return self.channel is not None and self.admits_frames(self.channel)

    def room_for(self) -> tuple[i64, bool]:
        return forwarding.room_for(self.pair, self)

    def wait_for_room(self) -> None:
        if self.channel is not None:
            forwarding.wait_for_room(self, self.channel)

    def pipe_target(self) -> WriteHalf | None:
        return forwarding.pipe_target(self.pair, self)

    def pipe_limit(self) -> i64:
        rewriting = self.pair.rewriting
        return NO_LIMIT if rewriting is None or self.is_client else rewriting.pipe_limit

    def was_piped(self, size: i64, frames: i64) -> None:
        forwarding.was_piped(self.pair, self, size, frames)

    def admits_principal(self, principal: str) -> bool:
        return opening.admits_principal(self.pair, principal)

    def ready(self) -> None:
        opening.ready(self.pair, self)

    def sent(self) -> None:
        forwarding.sent(self.pair, self)

    def muted(self) -> None:
        if self.is_client:
            self.pair.owner.watcher.pair_muted(self.pair)

    def end_of_stream(self) -> None:
        ending.end_of_stream(self.pair, self)

    def write_ended(self) -> None:
        ending.write_ended(self.pair, self)

    def closed(self) -> None:
        channel = self.channel
        assert channel is not None, "a leg with events has a channel"
        if self.is_client or channel.ready_ns != 0:
            ending.closed(self.pair, self, channel)
        else:
            opening.attempt_failed(self.pair, channel)
