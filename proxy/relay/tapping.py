"""Which legs are tapped, and what changes when the rules do.

A tap is requested when a channel is READY, and again when the rules change: the new rules apply from the next frame in each direction. A frame that
is cut through ends as it began: the new tap waits in ``Leg.next_tap`` until then.
"""

from typing import Final

from framegate.proxy.network import mute
from framegate.proxy.network.channel import Channel
from framegate.proxy.network.int32 import INT32
from framegate.proxy.network.translation import Translation
from framegate.proxy.relay.pair import Leg, Pair
from framegate.proxy.relay.state import PairState
from framegate.proxy.tap.frame_tap import FrameTap, RequestFacts
from framegate.proxy.tap.record import DIRECTION_REQUEST, DIRECTION_RESPONSE

TAP: Final = mute.TAP
OPEN: Final = PairState.OPEN
HALF_CLOSED: Final = PairState.HALF_CLOSED
CLOSING: Final = PairState.CLOSING
CLOSED: Final = PairState.CLOSED


def match(pair: Pair, leg: Leg, channel: Channel, direction: int) -> None:
    """Set the tap of a leg. ``channel``: gives the framing of its frames."""
    leg.tap = pair.owner.match(pair, direction)
    _look_by_int32(pair, leg, channel)
    if channel is leg.channel:
        channel.gate(asks=leg.gates_reads())


def _look_by_int32(pair: Pair, leg: Leg, channel: Channel) -> None:
    """Have the tap see frames in another framing as int32, the framing of the record."""
    if leg.tap is not None and leg.look is None and channel.options.framing is not INT32:
        leg.look = Translation(channel.options.framing, INT32, pair.owner.scratch, joins=True)


def retap(pair: Pair) -> None:
    """The rules have changed: apply them from the next frame on."""
    if pair.state is CLOSING or pair.state is CLOSED:
        return
    for leg, direction in ((pair.client, DIRECTION_REQUEST), (pair.upstream, DIRECTION_RESPONSE)):
        channel = leg.channel
        if channel is None and pair.route.upstream is None and leg is pair.upstream and pair.client.channel is not None:
            match(pair, leg, pair.client.channel, direction)
            share_facts(pair)
            continue
        if channel is None or channel.ready_ns == 0:
            continue
        fresh = pair.owner.match(pair, direction)
        if leg.tap is not None and leg.tap.is_within:
            leg.changes_tap = True
            leg.next_tap = fresh
        else:
            _set_tap(pair, leg, channel, fresh)


def _set_tap(pair: Pair, leg: Leg, channel: Channel, tap: FrameTap | None) -> None:
    """Set another tap, or none, between two frames, or within one that the tap before did not see."""
    leg.close_lane()
    if leg.tap is None and pair.pairing is None:  # not counted so far
        leg.frames = channel.frames_received
        leg.bytes = channel.bytes_received - channel.staged
    leg.tap = tap
    _look_by_int32(pair, leg, channel)
    leg.next_tap = None
    leg.changes_tap = False
    share_facts(pair)
    channel.gate(asks=leg.gates_reads())
    if tap is None or not tap.mutes:
        channel.unmute(TAP)
    forward(pair, leg)


def forward(pair: Pair, leg: Leg) -> None:
    """Set ``forward_to``: runs are written without inspection if the pair is open and nothing inspects them. And ``only_tapped``: only
    a tap inspects them, and mutes no source. Responses of a draining pair are inspected, because the pair may end after each.
    """
    upstream = pair.upstream.channel
    passes = (pair.state is OPEN or pair.state is HALF_CLOSED) and upstream is not None and upstream.ready_ns != 0
    out = leg.other.channel
    leg.close_lane()
    leg.forward_to = None
    leg.only_tapped = False
    if out is None or not passes or (pair.draining and not leg.is_client):
        return
    if not leg.inspects_frames():
        leg.forward_to = out.write_half
    else:
        nothing_else = leg.look is None and leg.translation is None and pair.pairing is None and pair.route.handler is None
        leg.only_tapped = nothing_else and leg.tap is not None and not leg.tap.mutes


def end_change(pair: Pair, leg: Leg) -> None:
    """Set the next tap if the frame that was cut through when the rules changed is over."""
    if leg.changes_tap and leg.channel is not None and leg.tap is not None and not leg.tap.is_within:
        _set_tap(pair, leg, leg.channel, leg.next_tap)


def share_facts(pair: Pair) -> None:
    """Have the pairing note the facts of requests that a tap asks for."""
    pairing = pair.pairing
    if pairing is None:
        return
    client, upstream = pair.client.tap, pair.upstream.tap
    asked = (client is not None and client.asks) or (upstream is not None and upstream.asks)
    if not asked:
        pairing.facts = None
    elif pairing.facts is None:
        pairing.facts = RequestFacts()
    if client is not None:
        client.facts = pairing.facts
    if upstream is not None:
        upstream.facts = pairing.facts
