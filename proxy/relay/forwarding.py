"""How runs are forwarded (rules 2 and 3) when they are inspected, or cannot be passed on: on a leg without ``forward_to``.

A run is paired (``protocol: kafka``), tapped and sent. Its source is muted when the other channel (``peer``) or the tap's log (``tap``) cannot take
more, or when too many requests are open (``peer``).

On a listener with brokers (``rewriting``) another run may be sent than was received: after pairing, which says which answers are to be looked at. The
tap has what was received.
"""

from typing import Final

from librt.vecs import vec
from mypy_extensions import i32, i64

from framegate.proxy.cause import Cause
from framegate.proxy.config.model import LISTS_WHOLE
from framegate.proxy.network import mute
from framegate.proxy.network.channel import Channel
from framegate.proxy.network.run import PART_FIRST, PART_LAST, Buffer, Run
from framegate.proxy.network.translation import Translation
from framegate.proxy.network.write_half import WriteHalf
from framegate.proxy.relay import administration, ending, losses, request_spans, tapping
from framegate.proxy.relay.pair import Leg, Pair
from framegate.proxy.relay.pairing import MAX_OPEN, Pairing
from framegate.proxy.relay.rewriting import UNPAIRED, Rewriting, replaced
from framegate.proxy.relay.state import PairState
from framegate.proxy.tap.frame_tap import FrameTap

NO_LIMIT: Final = 1 << 31
NOTHING: Final = Run(None, 0, b"", 0, 0, 0, 0)
PIPE_FROM: Final = 65536  # bytes of a part of a frame that is spliced, if the rest must be looked through
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
    if pair.state is CLOSING or out is None or not (out.can_send or (leg.only_tapped and out.has_pending_send)):
        if run.part != 0:
            losses.drop_part(pair, leg, channel, run)
        else:
            losses.drop(pair, leg, run.frames, run.size, run)
        channel.discard(run)
        return
    if leg.is_client or not pair.draining:
        _forward(pair, leg, channel, out, run)
        return
    out.cork()  # the end of the stream may follow (``ending.end_if_answered``): then the client sees it together with the answer
    _forward(pair, leg, channel, out, run)
    if not out.pending.active:
        out.uncork()


def _forward(pair: Pair, leg: Leg, channel: Channel, out: WriteHalf, run: Run) -> None:
    if leg.translation is None:
        rewriting, pairing = pair.rewriting, pair.pairing
        if rewriting is None or pairing is None:
            _pass_on(pair, leg, channel, out, run, run)
        elif run.part != 0:
            _rewrite_part(pair, rewriting, pairing, leg, channel, out, run)
        elif leg.is_client:
            _rewrite_requests(pair, rewriting, pairing, leg, channel, out, run)
        else:
            _rewrite_answers(pair, rewriting, leg, channel, out, run)
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
    if run.part == 0:
        accepted = look_at(pair, leg, seen, now_ns)
    else:
        _pair_part(pair, leg, seen, now_ns)
        accepted = _tap_part(pair, leg, seen, now_ns)
    leg.frames += run.frames
    leg.bytes += run.size
    _send(pair, leg, channel, out, run, sent, accepted)
    _look_whether_done(pair, leg)


def _send(pair: Pair, leg: Leg, channel: Channel, out: WriteHalf, run: Run, sent: Run, accepted: bool) -> None:
    """Send a run in place of the one that was received. ``accepted``: the tap's log takes more."""
    if not accepted:
        channel.mute(TAP)
        pair.owner.tap_full(leg)
    if sent.size == 0:
        channel.discard(run)
        return
    if run.lease != 0 and sent is not run:
        sent = run.give_lease(sent)
    if leg.only_tapped and out.has_pending_send:  # only the rest of a read of the fast path comes while a send is pending
        out.send_behind(sent)
    elif not out.send(sent):
        channel.mute(PEER)


def was_tapped_and_forwarded(leg: Leg, channel: Channel, run: Run, taken: i64, code: i64, rest: bytes | None) -> None:
    """As ``RelayLeg.was_forwarded``, for a run that the tap has seen."""
    fault, leg.tap_fault = leg.tap_fault, None
    if fault is not None:
        raise fault
    out = leg.other.channel
    if out is None or not out.write_half.can_send:  # it was closed meanwhile
        leg.dropped_bytes += run.size
        channel.discard(run)
        return
    out.write_half.send_rest(run, taken, code, rest)
    channel.mute(PEER)


# On listeners with brokers.


def _rewrite_answers(pair: Pair, rewriting: Rewriting, leg: Leg, channel: Channel, out: WriteHalf, run: Run) -> None:
    now_ns = pair.owner.selector.read_clock()
    accepted = look_at(pair, leg, run, now_ns)
    sent = rewriting.answers(run, now_ns)
    leg.frames += run.frames
    leg.bytes += run.size
    if rewriting.fault:
        leg.dropped_bytes += run.size - (run.first_frames(rewriting.good).size if rewriting.good != 0 else 0)
    _send(pair, leg, channel, out, run, sent, accepted)
    _end_or_go_on(pair, rewriting, leg, channel)


def _rewrite_requests(pair: Pair, rewriting: Rewriting, pairing: Pairing, leg: Leg, channel: Channel, out: WriteHalf, run: Run) -> None:
    """As ``_pass_on``, for requests: some are replaced, or end the connection."""
    now_ns = pair.owner.selector.read_clock()
    rewriting.fault = ""
    odd = rewriting.first_odd(run)
    if odd < 0:
        accepted = look_at(pair, leg, run, now_ns)
        leg.frames += run.frames
        leg.bytes += run.size
        sent = run
        if pairing.lost:
            rewriting.fault = UNPAIRED
            leg.dropped_bytes += run.size
            sent = NOTHING
    else:
        sent, accepted = _replace_requests(pair, rewriting, pairing, leg, run, odd, now_ns)
    _send(pair, leg, channel, out, run, sent, accepted)
    _end_or_go_on(pair, rewriting, leg, channel)


def _replace_requests(pair: Pair, rewriting: Rewriting, pairing: Pairing, leg: Leg, run: Run, odd: i64, now_ns: i64) -> tuple[Run, bool]:
    """The run that is sent in place of one with an odd request, and whether the tap's log takes more."""
    starts = run.starts()
    pieces: list[Buffer] = []
    frames: i64 = 0
    accepted = True
    index: i64 = 0
    while index < run.frames:
        end = index + 1 if odd == index else run.frames if odd < 0 else odd
        part = run.frames_between(index, end, starts)
        answer = rewriting.judge(part) if odd == index else b""
        if rewriting.fault:
            losses.drop(pair, leg, run.frames - index, run.size - starts[index], None)
            break
        before = pairing.open
        accepted = look_at(pair, leg, part, now_ns) and accepted
        leg.frames += part.frames
        leg.bytes += part.size
        if pairing.lost:
            rewriting.fault = UNPAIRED
            leg.dropped_bytes += part.size
            if end < run.frames:
                losses.drop(pair, leg, run.frames - end, run.size - starts[end], None)
            break
        if odd != index or rewriting.passes:
            pieces += (part if odd != index else rewriting.passed(part, expects=pairing.open > before)).pieces()
            frames += part.frames
        elif pairing.open > before:
            pieces.append(replaced(pairing, part, answer))
            request_spans.refused(pair, pairing)
            frames += 1
        else:
            leg.dropped_bytes += part.size
        if odd == index and end < run.frames:
            odd = rewriting.first_odd(run, end, starts[end] - run.head_size)
        index = end
    size: i64 = 0
    for piece in pieces:
        size += len(piece)
    return (Run(pieces, size, b"", 0, 0, frames, 0) if frames != 0 else NOTHING), accepted


def _rewrite_part(pair: Pair, rewriting: Rewriting, pairing: Pairing, leg: Leg, channel: Channel, out: WriteHalf, run: Run) -> None:
    """As ``_pass_on``, for a piece of a frame that is cut through."""
    now_ns = pair.owner.selector.read_clock()
    rewriting.fault = ""
    if leg.is_client:
        sent = _request_part(pair, rewriting, pairing, leg, run, now_ns)
    else:
        _pair_part(pair, leg, run, now_ns)
        sent = rewriting.answer_part(run, now_ns)
    if rewriting.fault:
        losses.drop_part(pair, leg, channel, run)
        channel.discard(run)
    else:
        accepted = _tap_part(pair, leg, run, now_ns)
        leg.frames += run.frames
        leg.bytes += run.size
        _send(pair, leg, channel, out, run, sent, accepted)
    _end_or_go_on(pair, rewriting, leg, channel)


def _request_part(pair: Pair, rewriting: Rewriting, pairing: Pairing, leg: Leg, run: Run, now_ns: i64) -> Run:
    """What is sent in place of a piece of a request: of a refused one the substitute, and nothing of its further pieces."""
    if run.part & PART_FIRST == 0:
        sent = NOTHING if rewriting.refuses_part else run
    else:
        passes = rewriting.passes_part(run)
        answer = b"" if passes else rewriting.judge(run)
        passes = passes or rewriting.passes
        before = pairing.open
        if not rewriting.fault:
            _pair_part(pair, leg, run, now_ns)
        if pairing.lost:
            rewriting.fault = UNPAIRED
        sent = run
        if not passes and not rewriting.fault:
            rewriting.refuses_part = True
            frame = b""
            if pairing.open > before:
                frame = replaced(pairing, run, answer)
                request_spans.refused(pair, pairing)
            sent = Run(None, 0, frame, 0, i64(len(frame)), 1, 0)
    if run.part & PART_LAST:
        rewriting.refuses_part = False
    return sent


def _end_or_go_on(pair: Pair, rewriting: Rewriting, leg: Leg, channel: Channel) -> None:
    """End a pair with a fault; else do what follows a run."""
    if rewriting.fault:
        ending.end(pair, Cause.WRONG_PROTOCOL, rewriting.fault, channel.options.side)
        return
    if rewriting.wants_whole and pair.upstream.channel is not None:
        rewriting.wants_whole = False
        pair.upstream.channel.read_half.receive.keep_whole(LISTS_WHOLE)
    _look_whether_done(pair, leg)


# Pairing and tapping.


def look_at(pair: Pair, leg: Leg, run: Run, now_ns: i64) -> bool:
    """Pair and tap a run; False: the tap's log is full, and the source must be muted."""
    pairing = pair.pairing
    if pairing is not None:
        before = pairing.open
        if leg.is_client:
            if pairing.client is None:
                _identify(pair, pairing, run)
            pairing.requests(run, now_ns)
            sampler = pair.owner.sampler
            sampler.left -= run.frames
            if sampler.left < 0:
                request_spans.choose(pair, pairing, run, run.frames, before)
        else:
            pairing.answers(run, now_ns, leg.tap is not None)
            if pair.spans is not None:
                request_spans.answered(pair, pairing, run, before)
    return leg.tap is None or _append(pair, leg.tap, leg, run, now_ns)


def _identify(pair: Pair, pairing: Pairing, run: Run) -> None:
    pairing.identify(run)
    if pair.route.limit_rules.by_client:
        pair.client.match_limits()
    if pair.owner.standing:
        administration.identified(pair)


def _pair_part(pair: Pair, leg: Leg, run: Run, now_ns: i64) -> None:
    """Pair a piece of a frame that is cut through."""
    pairing = pair.pairing
    if pairing is not None and run.part & PART_FIRST:
        before = pairing.open
        if leg.is_client:
            if pairing.client is None:
                _identify(pair, pairing, run)
            pairing.request_part(run, now_ns)
            sampler = pair.owner.sampler
            sampler.left -= 1
            if sampler.left < 0:
                request_spans.choose(pair, pairing, run, 1, before)
        else:
            pairing.answer_part(run, now_ns)
            if pair.spans is not None:
                request_spans.answered(pair, pairing, run, before)


def _tap_part(pair: Pair, leg: Leg, run: Run, now_ns: i64) -> bool:
    if leg.tap is None:
        return True
    accepted = _append_part(pair, leg.tap, leg, run, now_ns)
    if leg.changes_tap:
        tapping.end_change(pair, leg)
    return accepted


def room_for(pair: Pair, leg: Leg) -> tuple[i64, bool]:
    """How many bytes the other side takes at once, and whether nothing waits there; dropped bytes need no room. If the other side is gone, a frame
    that was passed on in part is counted as lost.
    """
    out = leg.other.channel
    if pair.state is CLOSING or out is None or not out.is_open:
        losses.cut_short_begun(pair, leg)  # before its last piece is counted as a frame
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
    rewriting = pair.rewriting
    if leg.tap is not None or pair.state is CLOSING or (pair.draining and not leg.is_client):
        return None
    if rewriting is not None and (rewriting.refuses_part if leg.is_client else rewriting.pipe_limit < PIPE_FROM):
        return None
    out = leg.other.channel
    return None if out is None else out.write_half


def was_piped(pair: Pair, leg: Leg, size: i64, frames: i64) -> None:
    """As ``received``, for a piece that was not inspected."""
    if pair.rewriting is not None and not leg.is_client:
        pair.rewriting.was_piped(size, frames)
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
    """Mute a client with too many open requests, or prepared answers; unmute it when half are answered; end a half-closed pair with none."""
    client = pair.client.channel
    if pair.spans is not None:
        request_spans.forwarded(pair)
    if leg.is_client:
        if not pair.full and (pairing.full or (pair.rewriting is not None and pair.rewriting.waits)) and client is not None:
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
    if pair.full and 2 * pairing.open <= MAX_OPEN and (pair.rewriting is None or pair.rewriting.may_ask):
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
    if leg.is_client and channel is not None and (pair.state is not CLOSING or leg.shut):
        channel.write_half.uncork()
    if not leg.is_client and pair.renewal is not None and pair.renewal.mutes_client:
        pair.renewal.advance()
