"""How a pair ends (rules 5 and 7): from the end of a stream, or a cause, to the row.

OPEN, and one side sends no more: HALF_CLOSED, until nothing more is to be passed on (``check_done``) or nothing passed for ``half_close``. Any
cause: CLOSING (``end``), in which each channel is written out, shut, and read to its end, for a second at most (``time_out``). Both channels
closed: CLOSED (``check_gone``), where what the pair was is counted, and its owner told, once.
"""

from functools import partial
from typing import Final

from mypy_extensions import i64

from framegate.proxy.cause import Cause
from framegate.proxy.cells import CAUSES, END_ERRORS, END_SIDES, ENDPOINT_BLOCK, LISTENER_BLOCK, SIDE_BLOCK
from framegate.proxy.network import mute
from framegate.proxy.network.channel import Channel
from framegate.proxy.network.state import ChannelState
from framegate.proxy.network.timer import CallbackTimer
from framegate.proxy.relay import in_flight, losses, request_spans, state
from framegate.proxy.relay.counters import ERROR_INDEX
from framegate.proxy.relay.pair import PEER_CLOSED, Leg, Pair
from framegate.proxy.relay.state import PairEvent, PairState

EARLY_NS: Final = 10_000_000_000  # an endpoint that ends a connection without any request later than this has only found it idle
LINGER_NS: Final = 1_000_000_000
ACTIVE: Final = SIDE_BLOCK.at("framegate.connection.active")
LOST: Final = SIDE_BLOCK.at("framegate.frame.lost.io")
CLOSED_BY: Final = {(cause, side): LISTENER_BLOCK.at("framegate.connection.closed", cause, side) for cause in CAUSES for side in END_SIDES}
ENDED_BY: Final = {error: ENDPOINT_BLOCK.at("framegate.upstream.connection.closed", error) for error in END_ERRORS}
GIVES_UP: Final = (Cause.PEER_CLOSED, Cause.PEER_RESET, Cause.IDLE, Cause.MAX_CONNECTION_AGE)
"""Ends of a connection whose client may wait for an answer in vain."""
UNCLEAN: Final = {
    Cause.UPSTREAM_CLOSED: "closed",
    Cause.PEER_RESET: "reset",
    Cause.RECEIVE_STALLED: "stalled",
    Cause.SEND_STALLED: "stalled",
    Cause.WRONG_PROTOCOL: "protocol",
    Cause.NEGATIVE_SIZE: "protocol",
    Cause.FRAME_TOO_LARGE: "protocol",
    Cause.TLS_FAILED: "protocol",
    Cause.AUTH_FAILED: "authentication",
}  # Ends by an upstream that are failures of its endpoint, as ``END_ERRORS``
PEER: Final = mute.PEER
TAP: Final = mute.TAP
DRAIN: Final = mute.DRAIN
OURS: Final = mute.MEMORY | mute.THROTTLE | mute.HANDLER | mute.TAP | mute.ADMIN  # framegate holds the peer up

ENDED: Final = ChannelState.ENDED
WRITE_ENDED: Final = ChannelState.WRITE_ENDED
OPEN: Final = PairState.OPEN
HALF_CLOSED: Final = PairState.HALF_CLOSED
CLOSING: Final = PairState.CLOSING
CLOSED: Final = PairState.CLOSED


def end_of_stream(pair: Pair, leg: Leg) -> None:
    """The stream of a channel's peer has ended."""
    leg.ended = True
    channel = leg.channel
    assert channel is not None, "a leg with events has a channel"
    losses.tap_partial(pair, leg, channel)
    if pair.state is CLOSING:
        _settle(pair, leg, channel)
        return
    if channel.read_half.cut_short_at != 0:
        end(pair, Cause.PEER_CLOSED if leg.is_client else Cause.UPSTREAM_CLOSED, "", channel.options.side)
        return
    if pair.state is OPEN:
        if leg.is_client and channel.bytes_received == 0 and not pair.route.waits_before_data:
            end(pair, _end_cause(pair, Cause.PEER_CLOSED), "", "downstream")
            return
        _half_close(pair, leg, channel)
    check_done(pair)


def _half_close(pair: Pair, leg: Leg, channel: Channel) -> None:
    pair.first_end = Cause.UPSTREAM_CLOSED if not leg.is_client and _owes(pair, channel) else PEER_CLOSED
    pair.first_side = channel.options.side
    if leg.is_client:
        pair.passed.ended_ns = pair.owner.selector.now_ns
    pair.detail = channel.detail if channel.lost_bytes == 0 else f"within a frame, after {channel.lost_bytes} of its bytes"
    pair.state = state.next_state(pair.state, PairEvent.STREAM_ENDED)
    _arm(pair, pair.route.half_close_ns)
    _shut(leg.other)


def _shut(leg: Leg) -> None:
    """Shut the write side of a leg's channel, now or after its pending send."""
    channel = leg.channel
    if channel is not None:
        channel.write_half.release_held()
    if leg.shut or leg.shut_wanted or channel is None or not channel.is_open:
        return
    if channel.can_send:
        leg.shut = True
        channel.shut_write()
    else:
        leg.shut_wanted = True


def write_ended(pair: Pair, leg: Leg) -> None:
    """The write side of a leg's channel is shut."""
    channel = leg.channel
    if pair.state is CLOSING and channel is not None:
        _settle(pair, leg, channel)
    elif pair.state is HALF_CLOSED:
        check_done(pair)


def check_done(pair: Pair) -> None:
    """End a half-closed pair that has nothing more to pass on."""
    both = pair.client.ended and pair.upstream.ended
    pairing = pair.pairing
    if not both and (pairing is None or pairing.lost):
        return
    if not both and not pair.upstream.ended and pairing is not None and (pairing.open > 0 or _is_within(pair.upstream)):
        return
    if _pending(pair) or pair.client.has_held_frames() or pair.upstream.has_held_frames():
        return
    end(pair, _end_cause(pair, pair.first_end), pair.detail, pair.first_side)


def end_if_answered(pair: Pair) -> None:
    """End right after the last open request was answered, so that a client that waits for it sees the end before it sends another request."""
    if pair.counts_responses and not pair.holds_answers and pair.has_no_open_request():
        end(pair, pair.drain_cause, pair.drain_detail, "internal")


def end_if_even(pair: Pair) -> None:
    """The same where open requests are not known: end if the client has received as many frames as it sent. To be called right after a response. Not
    after the first one, which may have a second frame.
    """
    if pair.is_even() and not pair.holds_answers and pair.has_no_open_request():
        end(pair, pair.drain_cause, pair.drain_detail, "internal")


def _end_cause(pair: Pair, cause: Cause) -> Cause:
    """``no_data`` when neither side ever sent a byte and the client was the first to end, else the cause as it is."""
    client, upstream = pair.client.channel, pair.upstream.channel
    silent = client is not None and client.bytes_received == 0 and (upstream is None or upstream.bytes_received == 0)
    return Cause.NO_DATA if silent and cause is PEER_CLOSED and pair.first_side != "upstream" else cause


def _pending(pair: Pair) -> bool:
    client, upstream = pair.client.channel, pair.upstream.channel
    if client is not None and client.pending_send != 0:
        return True
    return upstream is not None and upstream.pending_send != 0


def end(pair: Pair, cause: Cause, detail: str, side: str) -> None:
    """Begin the end, unless it has begun: the first cause wins."""
    if pair.state is CLOSING or pair.state is CLOSED:
        return
    pair.state_at_end = pair.state
    pair.cause = cause
    pair.detail = _within_frame(pair, detail)
    pair.side = side
    pair.state = state.next_state(pair.state, PairEvent.END)
    for leg in (pair.client, pair.upstream):
        leg.close_lane()
        leg.forward_to = None
        leg.only_tapped = False
    pair.client.let_go()
    pair.upstream.let_go()
    renewal, pair.renewal = pair.renewal, None
    if renewal is not None:
        renewal.close()
    client = pair.client.channel
    if client is not None:
        client.write_half.release_held()
    for leg in (pair.client, pair.upstream):
        losses.cut_short_begun(pair, leg)
    _linger(pair, pair.client)
    if client is not None:
        client.write_half.uncork()
    _linger(pair, pair.upstream)
    if _is_left(pair.client) or _is_left(pair.upstream):
        _arm(pair, LINGER_NS)


def _within_frame(pair: Pair, detail: str) -> str:
    """The detail, with a note if a frame was passed on in part."""
    for leg in (pair.client, pair.upstream):
        channel = leg.channel
        if channel is not None and channel.read_half.cut_at != 0 and not leg.drops_frame:
            within = f"within a frame, after {channel.read_half.cut_at} of its bytes"
            return f"{within}: {detail}" if detail else within
    return detail


def abort(pair: Pair, cause: Cause, detail: str, side: str) -> None:
    """End at once, without the last second."""
    end(pair, cause, detail, side)
    _close_leg(pair, pair.client)
    _close_leg(pair, pair.upstream)


def end_revoked(pair: Pair) -> bool:
    """End a pair with a READY client that is revoked. Returns whether it is; no effect on a pair that ends already."""
    revoked, client = pair.route.revoked, pair.client.channel
    if revoked is None or client is None or client.ready_ns == 0:
        return False
    reason = revoked.reason(client)
    if reason:
        end(pair, Cause.SESSION_EXPIRED, reason, "internal")
    return bool(reason)


def crash(pair: Pair, error: Exception, place: str = "timer") -> None:
    """Close a pair after an internal error, which is noted as a fault."""
    pair.owner.selector.faults.note(place, error)
    for leg in (pair.client, pair.upstream):
        if leg.channel is not None:
            leg.channel.close(Cause.INTERNAL, f"{type(error).__name__}: {error}", error)


def _linger(pair: Pair, leg: Leg) -> None:
    """Write to an open channel what was received for it, and then end it in order."""
    channel = leg.channel
    if channel is None:
        return
    if not channel.is_open:
        _close_leg(pair, leg)
        return
    if leg.ended and channel.can_send:  # closing ends our side in order, too
        _close_leg(pair, leg)
        return
    _shut(leg)
    leg.leave_quotas()
    channel.gate(asks=False)  # what comes from now on is not recorded
    channel.unmute(PEER)
    channel.unmute(TAP)
    if leg.is_client and (pair.cause is pair.drain_cause or pair.cause is Cause.DRAIN_TIMEOUT):
        channel.discard_input(DRAIN)
    else:
        channel.unmute(DRAIN)
    _settle(pair, leg, channel)


def _settle(pair: Pair, leg: Leg, channel: Channel) -> None:
    """Close a channel of a closing pair if both streams have ended, as far as can be seen."""
    if channel.state is ENDED or (channel.state is WRITE_ENDED and channel.mute_causes != 0 and not channel.read_half.discards):
        _close_leg(pair, leg)


def _close_leg(pair: Pair, leg: Leg) -> None:
    channel = leg.channel
    if channel is not None:
        channel.close(pair.cause or Cause.INTERNAL, pair.detail)


def time_out(pair: Pair) -> None:
    """The time of a half-closed or closing pair is over, unless bytes have passed meanwhile."""
    if pair.state is CLOSING:
        if pair.owner.selector.now_ns < pair.drain_until_ns and (_is_untaken(pair.client) or _is_untaken(pair.upstream)):
            _arm(pair, LINGER_NS)
            return
        _close_leg(pair, pair.client)
        _close_leg(pair, pair.upstream)
    elif pair.state is HALF_CLOSED:
        owner = pair.owner
        due_ns = _last_progress_ns(pair) + pair.route.half_close_ns
        if due_ns > owner.selector.now_ns:
            _arm(pair, due_ns - owner.selector.now_ns)
        else:
            end(pair, _end_cause(pair, pair.first_end), pair.detail or "the other side did not end in time", pair.first_side)


def _on_time(pair: Pair) -> None:
    try:
        time_out(pair)
    except Exception as error:  # nothing else ends a pair that waits for its time
        crash(pair, error)


def _last_progress_ns(pair: Pair) -> i64:
    """When a byte passed last, in either direction; now, while framegate mutes the side that has not ended."""
    last_ns: i64 = 0
    for leg in (pair.client, pair.upstream):
        channel = leg.channel
        if channel is None:
            continue
        if not leg.ended and channel.mute_causes & OURS:
            return pair.owner.selector.now_ns
        last_ns = max(last_ns, channel.last_active_ns)
    return last_ns


def _arm(pair: Pair, delay_ns: i64) -> None:
    if pair.timer is None:
        pair.timer = CallbackTimer(partial(_on_time, pair))
    pair.owner.selector.call_at(pair.owner.selector.now_ns + delay_ns, pair.timer)


def closed(pair: Pair, leg: Leg, channel: Channel) -> None:
    """A channel is closed; for an upstream's that was never READY see ``opening.attempt_failed``."""
    leg.gone = True
    leg.leave_quotas()
    losses.drop_rest(pair, leg, channel)
    if not leg.ended:
        losses.tap_partial(pair, leg, channel)
    if leg.is_client:
        _count_client(pair, channel)
    else:
        _count_upstream(pair, channel)
    if pair.state is not CLOSING:
        refused = leg.is_client and pair.refusal is not None and channel.close_cause is Cause.AUTH_FAILED
        side = pair.refusal.side if refused and pair.refusal is not None else _side_of(channel)
        end(pair, channel.close_cause or Cause.INTERNAL, channel.detail, side)
    check_gone(pair)


def _side_of(channel: Channel) -> str:
    is_ours = channel.close_cause is Cause.INTERNAL or channel.close_cause is Cause.DRAINED  # the latter: the selector has closed
    return "internal" if is_ours else channel.options.side


def _count_client(pair: Pair, channel: Channel) -> None:
    loop = pair.owner.loop
    cause = pair.cause or channel.close_cause or Cause.INTERNAL
    pair.route.counters.downstream_counts.cells[ACTIVE] -= 1
    loop.downstream_durations[ERROR_INDEX[cause]].observe(channel.closed_ns - pair.opened_ns)
    if channel.ready_ns == 0:
        loop.end_handshake(channel)


def _count_upstream(pair: Pair, channel: Channel) -> None:
    cause = pair.cause or channel.close_cause or Cause.INTERNAL
    upstream = pair.route.upstream
    assert upstream is not None, "its channel was connected"
    pair.route.counters.upstream_counts.cells[ACTIVE] -= 1
    endpoint, pair.used = pair.used, None
    if endpoint is not None:
        in_flight.add_up(pair, endpoint.counters, channel, channel.closed_ns)
        endpoint.counters.counts.count(ENDED_BY[_end_error(pair, channel)])
    if endpoint is not None and upstream.closed(endpoint, channel.ready_ns, channel.closed_ns, _failure(pair, channel)):
        pair.owner.watcher.endpoint_changed(upstream, endpoint)
    pair.owner.loop.upstream_durations[ERROR_INDEX[cause]].observe(channel.closed_ns - channel.connected_ns)


def _end_error(pair: Pair, channel: Channel) -> str:
    """The one of ``END_ERRORS`` with which an upstream's connection ended."""
    cause, side = _cause_of(pair, channel)
    if side != "upstream":
        return "unanswered" if cause in GIVES_UP and in_flight.has_waited(pair, channel) else ""
    return UNCLEAN.get(cause or Cause.INTERNAL, "")


def _cause_of(pair: Pair, channel: Channel) -> tuple[Cause | None, str]:
    """Why, and by which side, a pair ends whose upstream's channel has closed."""
    return (channel.close_cause, _side_of(channel)) if pair.cause is None else (pair.cause, pair.side)


def _failure(pair: Pair, channel: Channel) -> str:
    """Why the end of an upstream's channel is a failure of its endpoint (``ejection``); empty: it is none."""
    cause, side = _cause_of(pair, channel)
    ended = side == "upstream" and (cause is Cause.UPSTREAM_CLOSED or cause is Cause.PEER_RESET)
    return "ended a connection before it sent a byte" if ended and _is_silent(channel, channel.closed_ns) else ""


def _owes(pair: Pair, channel: Channel) -> bool:
    """Whether an upstream that ends its stream now owes something: an answer, the rest of a frame, or a first byte. A broker answers what is none of
    Kafka's requests by closing.
    """
    pairing = pair.pairing
    if pairing is not None and not pairing.lost and pairing.open > 0:
        return not pairing.is_strange
    return channel.lost_bytes != 0 or _is_silent(channel, pair.owner.selector.now_ns)


def _is_silent(channel: Channel, now_ns: i64) -> bool:
    """Whether an upstream that ends its stream now sent nothing, though it was asked or had only just taken the connection."""
    return channel.bytes_received == 0 and (channel.write_half.bytes_sent != 0 or now_ns - channel.ready_ns <= EARLY_NS)


def check_gone(pair: Pair) -> None:
    """The pair is CLOSED if both channels are."""
    if pair.state is not CLOSING or not pair.client.gone or not pair.upstream.gone:
        return
    pair.state = state.next_state(pair.state, PairEvent.GONE)
    pair.closed_ns = pair.owner.selector.now_ns
    counters = pair.route.counters
    counters.downstream_counts.cells[LOST] += pair.lost_bytes(pair.client)
    counters.upstream_counts.cells[LOST] += pair.lost_bytes(pair.upstream)
    counters.counts.cells[CLOSED_BY[pair.cause or Cause.INTERNAL, pair.side]] += 1
    losses.count_cut_short(pair.client)
    losses.count_cut_short(pair.upstream)
    if pair.spans is not None:
        request_spans.ended(pair)
    if pair.pairing is not None:
        pair.pairing.release()
    if pair.timer is not None:
        pair.owner.selector.cancel(pair.timer)
        pair.timer.release()
    try:
        pair.owner.pair_closed(pair)
    finally:
        pair.client.release()
        pair.upstream.release()


def _is_within(leg: Leg) -> bool:
    """Whether a leg receives a frame that is cut through."""
    return leg.channel is not None and leg.channel.read_half.receive.is_within_cut


def _is_untaken(leg: Leg) -> bool:
    """Whether a leg's peer has not taken what it was sent."""
    channel = leg.channel
    return channel is not None and channel.is_open and (channel.pending_send != 0 or channel.wire_waiting != 0)


def _is_left(leg: Leg) -> bool:
    return leg.channel is not None and leg.channel.state is not ChannelState.CLOSED
