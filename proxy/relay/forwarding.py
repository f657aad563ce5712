"""How runs are forwarded (rules 2 and 3) when they are inspected, or cannot be passed on: on a leg without ``forward_to``.

A run is paired (``protocol: kafka``), tapped and sent. Its source is muted when the other channel (``peer``) or the tap's log (``tap``) cannot take
more, or when too many requests are open (``peer``).
"""

from typing import Final

from librt.vecs import vec
from mypy_extensions import i32, i64

from framegate.proxy.cause import Cause
from framegate.proxy.network import mute
from framegate.proxy.network.channel import Channel
from framegate.proxy.network.run import PART_FIRST, Run
from framegate.proxy.network.translation import Translation
from framegate.proxy.network.write_half import WriteHalf
from framegate.proxy.relay import ending, losses, tapping
from framegate.proxy.relay.pair import Leg, Pair
from framegate.proxy.relay.pairing import MAX_OPEN, Pairing
from framegate.proxy.relay.state import PairState
from framegate.proxy.tap.frame_tap import FrameTap

__all__ = ["hold", "let_ask", "look_at", "pipe_target", "received", "room_for", "sent", "translate", "wait_for_room", "was_piped"]

NO_LIMIT: Final = 1 << 31
PEER: Final = mute.PEER
TAP: Final = mute.TAP
HALF_CLOSED: Final = PairState.HALF_CLOSED
CLOSING: Final = PairState.CLOSING


def received(pair: Pair, leg: Leg, channel: Channel, run: Run) -> None:
    """A run on a leg without ``forward_to``."""
    renewal = pair.renewal
    if renewal is not None and renewal.owns_input and not leg.is_client:
        renewal.take(run)
        return
    other = leg.other.channel
    out = None if other is None else other.write_half
    if pair.state is CLOSING or out is None or not out.can_send:
        if run.part != 0:
            losses.drop_part(pair, leg, channel, run)
        else:
            losses.drop(pair, leg, run.frames, run.size, run)
        channel.discard(run)
        return
    if leg.translation is None:
        _pass_on(pair, leg, channel, out, run, run)
        return
    translated = translate(leg.translation, run)
    if leg.translation.stopped_at < 0:
        _pass_on(pair, leg, channel, out, run, translated)
        return
    rest = run
    if translated.frames != 0:
        good = run.give_lease(run.first_frames(translated.frames))
        _pass_on(pair, leg, channel, out, good, translated)
        losses.drop(pair, leg, rest.frames - good.frames, rest.size - good.size, None)
    else:
        losses.drop(pair, leg, rest.frames, rest.size, None)
        channel.discard(run)
    channel.close(Cause.WRONG_PROTOCOL, f"a body holds what ends a frame in {leg.translation.target.name}, which the other side speaks", None)


def translate(translation: Translation, run: Run) -> Run:
    """A run, or a piece of a frame, in the other framing."""
    return translation.frames(run) if run.part == 0 else translation.part(run)


def _pass_on(pair: Pair, leg: Leg, channel: Channel, out: WriteHalf, run: Run, sent: Run) -> None:
    """Pair and tap a run, and send it; ``sent`` is the run in the other side's framing."""
    now_ns = pair.owner.selector.read_clock()  # not the poll's: a response can come within the poll that passed its request on
    seen = run if leg.look is None or leg.tap is None else translate(leg.look, run)
    accepted = look_at(pair, leg, seen, now_ns) if run.part == 0 else _look_at_part(pair, leg, seen, now_ns)
    leg.frames += run.frames
    leg.bytes += run.size
    if not accepted:
        channel.mute(TAP)
        pair.owner.tap_full(leg)
    if run.lease != 0 and sent is not run:
        sent = run.give_lease(sent)
    if not out.send(sent):
        channel.mute(PEER)
    _look_whether_done(pair, leg)


def look_at(pair: Pair, leg: Leg, run: Run, now_ns: i64) -> bool:
    """Pair and tap a run; False: the tap's log is full, and the source must be muted."""
    pairing = pair.pairing
    if pairing is not None:
        if leg.is_client:
            pairing.requests(run, now_ns)
        else:
            pairing.answers(run, now_ns, leg.tap is not None)
    return leg.tap is None or _append(pair, leg.tap, leg, run, now_ns)


def _look_at_part(pair: Pair, leg: Leg, run: Run, now_ns: i64) -> bool:
    """As ``look_at``, for a piece of a frame that is cut through."""
    pairing = pair.pairing
    if pairing is not None and run.part & PART_FIRST:
        if leg.is_client:
            pairing.request_part(run, now_ns)
        else:
            pairing.answer_part(run, now_ns)
    if leg.tap is None:
        return True
    accepted = _append_part(pair, leg.tap, leg, run, now_ns)
    if leg.changes_tap:
        tapping.end_change(pair, leg)
    return accepted


def room_for(pair: Pair, leg: Leg) -> tuple[i64, bool]:
    """How many bytes the other side takes at once, and whether nothing waits there; dropped bytes need no room."""
    out = leg.other.channel
    if pair.state is CLOSING or out is None or not out.is_open:
        return NO_LIMIT, True
    return out.room()


def wait_for_room(leg: Leg, channel: Channel) -> None:
    """Mute a leg until the other side may have more room."""
    out = leg.other.channel
    if out is not None:
        channel.mute(PEER)
        out.want_room(channel.read_half.receive.booked)


def pipe_target(pair: Pair, leg: Leg) -> WriteHalf | None:
    """The destination of pieces after the first one, which need not be inspected."""
    if leg.tap is not None or pair.state is CLOSING:
        return None
    out = leg.other.channel
    return None if out is None else out.write_half


def was_piped(pair: Pair, leg: Leg, size: i64, frames: i64) -> None:
    """As ``received``, for a piece that was not inspected."""
    leg.frames += frames
    leg.bytes += size
    _look_whether_done(pair, leg)


def _look_whether_done(pair: Pair, leg: Leg) -> None:
    if pair.pairing is not None:
        hold(pair, pair.pairing, leg)
    if pair.draining and not leg.is_client and not pair.counts_responses:
        ending.end_if_even(pair)


def _append_part(pair: Pair, tap: FrameTap, leg: Leg, run: Run, now_ns: i64) -> bool:
    pairing = pair.pairing
    capture_ns = now_ns + pair.owner.wall_offset_ns
    if pairing is None:
        return tap.append_part(run, leg.frames, capture_ns, False, None, None)
    withheld = bool(run.part & PART_FIRST) and len(pairing.sensitive) != 0
    if leg.is_client:
        return tap.append_part(run, leg.frames, capture_ns, withheld, None, None)
    return tap.append_part(
        run,
        leg.frames,
        capture_ns,
        withheld,
        int(pairing.keys[0]),
        int(pairing.latencies[0]),
        int(pairing.request_sizes[0]),
        int(pairing.correlation_ids[0]),
    )


def _append(pair: Pair, tap: FrameTap, leg: Leg, run: Run, now_ns: i64) -> bool:
    pairing = pair.pairing
    sensitive: vec[i32] | None = None
    capture_ns = now_ns + pair.owner.wall_offset_ns
    if pairing is None:
        return tap.append(run, leg.frames, capture_ns)
    if len(pairing.sensitive):
        sensitive = pairing.sensitive
    if leg.is_client:
        return tap.append(run, leg.frames, capture_ns, sensitive)
    return tap.append(run, leg.frames, capture_ns, sensitive, pairing.keys, pairing.latencies, pairing.request_sizes, pairing.correlation_ids)


def hold(pair: Pair, pairing: Pairing, leg: Leg) -> None:
    """Mute a client with too many open requests; unmute it when half are answered; end a half-closed pair with none."""
    client = pair.client.channel
    if leg.is_client:
        if not pair.full and pairing.full and client is not None:
            pair.full = True
            client.mute(PEER)
        return
    let_ask(pair, pairing)
    if pair.state is HALF_CLOSED:
        ending.check_done(pair)
    elif pair.draining:
        ending.end_if_answered(pair)
    if pair.renewal is not None and pair.renewal.mutes_client:
        pair.renewal.advance()


def let_ask(pair: Pair, pairing: Pairing) -> None:
    """Unmute a client that had too many open requests when half of them are answered."""
    if pair.full and 2 * pairing.open <= MAX_OPEN:
        pair.full = False
        client, upstream = pair.client.channel, pair.upstream.channel
        if client is not None and (upstream is None or upstream.can_send) and not _is_held(pair):
            client.unmute(PEER)


def _is_held(pair: Pair) -> bool:
    """Whether the client is muted for a renewal."""
    return pair.renewal is not None and pair.renewal.mutes_client


def sent(pair: Pair, leg: Leg) -> None:
    """The pending send of a leg's channel has left."""
    channel = leg.channel
    if leg.shut_wanted and channel is not None:
        leg.shut_wanted = False
        leg.shut = True
        channel.shut_write()
    elif pair.state is not CLOSING:
        source = leg.other.channel
        if source is not None and (leg.is_client or not (pair.full or _is_held(pair))):
            source.unmute(PEER)
    if pair.state is HALF_CLOSED:
        ending.check_done(pair)
    elif pair.draining:
        ending.end_if_answered(pair)
        if leg.is_client and not pair.counts_responses:
            ending.end_if_even(pair)
    if not leg.is_client and pair.renewal is not None and pair.renewal.mutes_client:
        pair.renewal.advance()
