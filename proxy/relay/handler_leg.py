"""The legs of pairs with a handler: they pass the events of their channels, and those of the request channel, on to ``handling`` and ``verdicts``.

Frames of a direction that the handler does not ask for are relayed as on any other listener.
"""

from typing import Final

from mypy_extensions import i64

from framegate.proxy.cause import Cause
from framegate.proxy.network import mute
from framegate.proxy.network.run import Body, Run
from framegate.proxy.network.write_half import WriteHalf
from framegate.proxy.relay import ending, forwarding, handling, session, verdicts
from framegate.proxy.relay.handled_connection import Request
from framegate.proxy.relay.handled_pair import Handled, HandledLeg
from framegate.proxy.relay.pair import Leg, LegMaker, Pair
from framegate.proxy.relay.request_channel import RequestChannel
from framegate.proxy.relay.state import PairState

PEER: Final = mute.PEER
CLOSING: Final = PairState.CLOSING


class HandlerLegs(LegMaker):
    """Makes the legs of pairs whose frames go to handlers."""

    def __init__(self, channel: RequestChannel) -> None:
        self._channel: Final = channel

    def make_leg(self, pair: Pair, *, is_client: bool) -> Leg:
        if is_client:
            handled: Handled = _Party(pair, self._channel)
            leg = handled.client = HandlerLeg(pair, handled, is_client=True)
        else:
            client = pair.client
            assert isinstance(client, HandledLeg), "it was made here"
            leg = client.handled.upstream = HandlerLeg(pair, client.handled, is_client=False)
        return leg


class _Party(Handled):
    """Receives the events of one connection from the request channel."""

    def replied(self, request: Request, direction: i64, action: i64, throttle_ms: i64, body: Body) -> None:
        verdicts.replied(self, request, direction, action, throttle_ms, body)
        if self.held and self.pair is not None:
            verdicts.release_due(self)

    def flush(self) -> None:
        if self.pair is not None:
            verdicts.flush(self)

    def wake(self, direction: i64) -> bool:
        return handling.wake(self.leg(direction))

    def process_gone(self, detail: str) -> None:
        handling.process_gone(self, detail)

    def timed_out(self) -> None:
        if self.pair is not None:
            ending.end(self.pair, Cause.HANDLER_FAILED, "no handler process", "internal")

    def crash(self, error: Exception) -> None:
        if self.pair is not None:
            ending.crash(self.pair, error, "callback")


class HandlerLeg(HandledLeg):
    """The sink of a channel whose frames are handled, or whose other side's are."""

    def received(self, run: Run) -> None:
        channel = self.channel
        assert channel is not None, "a leg with events has a channel"
        if self.is_client and self.pair.route.authenticates:
            session.check(self.pair, channel, run)
        out = self.forward_to
        if self.handles:
            handling.received(self, channel, run)
        elif out is not None and out.can_send:
            frames = run.frames
            if not out.send(run):
                channel.mute(PEER)
            verdicts.forwarded(self, frames)
        elif self.handled.held and run.part == 0:
            for frame in handling.split(run):
                forwarding.received(self.pair, self, channel, frame)
                verdicts.forwarded(self, 1)
            channel.discard(run)
        else:
            frames = run.frames
            forwarding.received(self.pair, self, channel, run)
            verdicts.forwarded(self, frames)

    def may_read(self) -> bool:
        channel = self.channel
        if channel is None or not self.admits_frames(channel):
            return False
        return not self.handles or handling.may_read(self, channel)

    def room_for(self) -> tuple[i64, bool]:
        return handling.room_for(self) if self.handles and self.pair.state is not CLOSING else super().room_for()

    def wait_for_room(self) -> None:
        if self.handles and self.channel is not None:
            handling.wait_for_room(self, self.channel)
        else:
            super().wait_for_room()

    def pipe_target(self) -> WriteHalf | None:
        return None if self.handles else super().pipe_target()

    def was_piped(self, size: i64, frames: i64) -> None:
        super().was_piped(size, frames)
        verdicts.forwarded(self, frames)

    def admits_principal(self, principal: str) -> bool:
        return True  # the client gets its answer before the upstream has accepted the login

    def sent(self) -> None:
        if not verdicts.sent(self):
            return
        super().sent()
        handling.pump(self)

    def frame_refused(self) -> None:
        handling.follow(self)

    def end_of_stream(self) -> None:
        if self.pair.state is not CLOSING and handling.has_held_frames(self):
            self.ends = True
        else:
            super().end_of_stream()

    def closed(self) -> None:
        verdicts.drop_out(self)
        super().closed()

    def gates_reads(self) -> bool:
        return self.handles or super().gates_reads()

    def inspects_frames(self) -> bool:
        return self.handles or super().inspects_frames()

    def counts_frames(self) -> bool:
        return not self.handles and super().counts_frames()

    def has_held_frames(self) -> bool:
        return handling.has_held_frames(self) or len(self.out) != 0

    def held_bytes(self) -> i64:
        return self.booked

    def let_go(self) -> None:
        if self.is_client:
            verdicts.write_out(self.handled)
            handling.let_go(self.handled)

    def release(self) -> None:
        self.handled.pair = None
        if self.is_client:  # a cycle would stay until the garbage collector runs
            self.handled.client = None
        else:
            self.handled.upstream = None
        super().release()
