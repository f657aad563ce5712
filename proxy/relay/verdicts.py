"""Carries out the replies of handlers: a frame is passed on, replaced, dropped or answered, or the connection ends.

Runs to be sent wait on the leg that they go to (``HandledLeg.out``) until all replies of one read were processed, and leave in one write. If a send
is pending, they are booked and wait for it. A pending send mutes the other side (rule 2).

An answer to a request (``protocol: kafka``) waits until the upstream has answered the requests before it. The pairing has the requests as the
upstream was sent them: one that a handler drops or answers is taken out, one that it replaces is replaced.
"""

from functools import partial
from typing import Final

from librt.strings import BytesWriter
from librt.vecs import append, vec
from mypy_extensions import i32, i64

from framegate.proxy.cause import Cause
from framegate.proxy.network import mute
from framegate.proxy.network.framing import Framing
from framegate.proxy.network.run import Body, Buffer, Run
from framegate.proxy.network.timer import CallbackTimer
from framegate.proxy.network.translation import contains_delimiter, refer
from framegate.proxy.relay import ending, forwarding, handling, request_spans
from framegate.proxy.relay import handler_wire as wire
from framegate.proxy.relay.handled_connection import Request
from framegate.proxy.relay.handled_pair import Handled, HandledLeg, HeldAnswer, Outgoing
from framegate.proxy.relay.pair import Pair
from framegate.proxy.relay.pairing import Pairing
from framegate.proxy.relay.state import PairState
from framegate.proxy.relay.throttle import REPLY, Throttle

PEER: Final = mute.PEER
TAP: Final = mute.TAP
JOIN_BELOW: Final = 65536  # bytes; shorter writes are copied into one piece
REFER_FROM: Final = 16384  # bytes; bodies of this size or more are not copied
NS_PER_MS: Final = 1_000_000
CLOSING: Final = PairState.CLOSING
HALF_CLOSED: Final = PairState.HALF_CLOSED

PASS: Final = wire.PASS
FRAME: Final = wire.FRAME
NOTHING: Final = wire.NOTHING
ANSWER: Final = wire.ANSWER
CLOSE: Final = wire.CLOSE
FAILED: Final = wire.FAILED


class UnfitError(Exception):
    """A handler's result cannot be sent; the text is for the log."""

    def __init__(self, text: str, cause: Cause = Cause.HANDLER_FAILED, side: str = "internal") -> None:
        super().__init__(text)
        # cause, side: of the end of the connection
        self.cause: Final = cause
        self.side: Final = side


def replied(handled: Handled, request: Request, direction: i64, action: i64, throttle_ms: i64, body: Body) -> None:
    """A reply has arrived: see ``HandledParty``. ``flush`` writes what is to be sent."""
    leg = handled.leg(direction)
    leg.under_way -= 1
    leg.done += 1
    run = request.run
    if run is not None:
        request.run = None
        process = handled.process
        assert process is not None, "it replied"
        process.kept -= 1
    goes_on = False
    try:
        if throttle_ms > 0:
            throttle(handled, leg, throttle_ms)
        goes_on = _obey(leg, request, run, action, body)
    except UnfitError as error:
        if leg.pair.route.upstream is not None:
            leg.dropped_bytes += request.size
        ending.end(leg.pair, error.cause, str(error), error.side)
    finally:
        if not goes_on:
            handling.release(leg, request.booked)


def _obey(leg: HandledLeg, request: Request, run: Run | None, action: i64, body: Body) -> bool:
    """Carry out a reply; True: the memory that is booked for the frame stays booked for what is sent."""
    has_upstream = leg.pair.route.upstream is not None
    if action == FAILED:
        raise UnfitError(b"".join(_pieces(body)).decode("utf-8", "replace") or "the handler failed")
    if action == CLOSE:
        ending.end(leg.pair, Cause.HANDLER_CLOSED, "", "internal")
    elif action == ANSWER:
        if not leg.is_client:
            raise UnfitError("the handler answered a response: only a request can be answered")
        _answer(leg, request, body)
    elif action == NOTHING:
        _pair_anew(leg, request, None)
        handling.response_sent(leg)
    elif not has_upstream or run is None:
        raise UnfitError("the handler would pass a frame on, and the listener has no upstream")
    elif action == PASS:
        _pass_on(leg, request, run)
        return True
    else:
        _replace(leg, request, run, body)
    return False


def _emit(leg: HandledLeg, target: HandledLeg, run: Run, booked: i64, *, passes: bool) -> None:
    """Send a run on ``target`` with the next write; ``leg`` has booked so much for it."""
    target.out.append(Outgoing(run, leg, booked, passes=passes))
    target.times.append(int(leg.pair.owner.selector.read_clock()))
    leg.awaits = target


def _other(leg: HandledLeg) -> HandledLeg:
    return leg.handled.leg(1 - leg.direction)


def _pass_on(leg: HandledLeg, request: Request, run: Run) -> None:
    translation = leg.translation
    sent = run
    if translation is not None:
        sent = forwarding.translate(translation, run)
        if translation.stopped_at >= 0:
            text = f"a body holds what ends a frame in {translation.target.name}, which the other side speaks"
            raise UnfitError(text, Cause.WRONG_PROTOCOL, _side(leg.is_client))
    _emit(leg, _other(leg), sent, request.booked, passes=True)


def _replace(leg: HandledLeg, request: Request, run: Run, body: Body) -> None:
    """Pass the handler's frame on, in place of the one that was received."""
    target = _other(leg)
    out = target.channel
    if out is None:
        raise UnfitError("the other side is gone")
    made = make_frame(run.framing, out.options.framing, body, request.others, target.is_client)
    _pair_anew(leg, request, made)
    _emit(leg, target, made, 0, passes=False)


def _answer(leg: HandledLeg, request: Request, body: Body) -> None:
    handled, pair, channel = leg.handled, leg.pair, leg.channel
    assert channel is not None, "its frame was read"
    framing = channel.options.framing
    made = make_frame(framing, framing, body, request.others, True)
    pairing = pair.pairing
    if pair.route.upstream is None:
        _send_answer(handled, made, 0, withheld=request.withheld)
        return
    ahead: i64 = 0
    if pairing is not None and not pairing.lost:
        ahead = _place(leg, request, pairing)
        _pair_anew(leg, request, None)
        upstream = handled.leg(1)
        ahead += i64(len(upstream.backlog)) + upstream.under_way
    if ahead == 0 and not handled.held:
        _send_answer(handled, made, 0, withheld=request.withheld)
        return
    handled.held.append(HeldAnswer(made, handled.leg(1).done + ahead, handling.book(leg, made), withheld=request.withheld))
    leg.awaits = leg


def release_due(handled: Handled) -> None:
    """Send the answers for which all earlier requests are answered now."""
    pair = handled.pair
    assert pair is not None, "it is not CLOSED"
    held = handled.held
    lost = pair.pairing is None or pair.pairing.lost
    while held and (lost or held[0].due <= handled.leg(1).done):
        answer = held.popleft()
        _send_answer(handled, answer.run, answer.booked, withheld=answer.withheld)


def _send_answer(handled: Handled, run: Run, booked: i64, *, withheld: bool) -> None:
    """Pair, tap and send a handler's answer."""
    client, upstream = handled.leg(0), handled.leg(1)
    pair = client.pair
    now_ns = pair.owner.selector.read_clock()
    served = pair.route.upstream is None
    accepted = True
    if served:
        seen = run if upstream.look is None or upstream.tap is None else upstream.look.frames(run)
        accepted = forwarding.look_at(pair, upstream, seen, now_ns)
        upstream.frames += 1
        upstream.bytes += run.size
    elif upstream.tap is not None:
        accepted = _tap_answer(pair, upstream, run, now_ns, withheld=withheld)
    if not accepted and client.channel is not None:
        client.channel.mute(TAP)
        pair.owner.tap_full(client)
    _emit(client, client, run, booked, passes=False)
    if pair.spans is not None:
        request_spans.forwarded(pair)


def _tap_answer(pair: Pair, upstream: HandledLeg, run: Run, now_ns: i64, *, withheld: bool) -> bool:
    """Record an answer that is not the upstream's, without facts of its request."""
    tap, channel, client = upstream.tap, upstream.channel, pair.client.channel
    if tap is None or channel is None or client is None:
        return True
    header, size = run.first_sizes()
    body: list[Buffer] = []
    refer(run.pieces(), header, size, body)
    framing = channel.options.framing
    seen = make_frame(framing, framing, body, framing.fill, False)
    if upstream.look is not None:
        seen = upstream.look.frames(seen)
    capture_ns = now_ns + pair.owner.wall_offset_ns
    if pair.pairing is None:
        return tap.append(seen, upstream.frames, capture_ns)
    unknown = vec[i32]([-1])
    sensitive: vec[i32] | None = None
    if withheld:
        sensitive = append(vec[i32](), 0)
    return tap.append(seen, upstream.frames, capture_ns, sensitive, unknown, unknown, unknown, unknown)


# The pairing.


def _place(leg: HandledLeg, request: Request, pairing: Pairing) -> i64:
    """The number of open requests before one whose reply has just arrived: all but itself and those that came after it."""
    behind: i64 = 1 if request.expects else 0
    connection = leg.handled.connection
    if connection is not None:
        for other in connection.requests:
            behind += 1 if other.expects else 0
    for other in leg.backlog:
        behind += 1 if other.expects else 0
    return max(pairing.open - behind, 0)


def _pair_anew(leg: HandledLeg, request: Request, made: Run | None) -> None:
    """A request is replaced by ``made``, or not passed on."""
    pair = leg.pair
    pairing = pair.pairing
    if pairing is None or not leg.is_client or pairing.lost:
        return
    place = _place(leg, request, pairing)
    before = pairing.open
    if request.expects:
        pairing.take_out(place)
    if made is not None:
        pairing.put_in(place, made, pair.owner.selector.read_clock())
    if pairing.open > before:
        request_spans.put_in(pair, place)
    elif pairing.open < before:
        request_spans.take_out(pair, place)
        if pair.spans is not None:
            request_spans.forwarded(pair)
    forwarding.let_ask(pair, pairing)  # whether the pair is done is checked when everything was sent


# Writing.


def make_frame(source: Framing, target: Framing, body: Body, others: bytes, to_client: bool) -> Run:
    """Make a frame. ``others``: bytes of the received frame's header that are not its size. Raises UnfitError: the body is too long for ``target``,
    or contains its delimiter.
    """
    size: i64 = 0
    bodies = _pieces(body)
    for piece in bodies:
        size += len(piece)
    if size > target.max_body:
        text = f"the handler's frame of {size} bytes exceeds the limit of {target.max_body}, the most that {target.name} can say"
        raise UnfitError(text, Cause.FRAME_TOO_LARGE, _side(to_client))
    if target.tail != 0 and contains_delimiter(bodies, target.delimiter):
        raise UnfitError(f"the handler's frame holds what ends one in {target.name}", Cause.WRONG_PROTOCOL, _side(to_client))
    keeps = source is target or (target.keeps and source.others == target.others)
    writer = BytesWriter()
    target.write_header(writer, size, others if keeps else target.fill)
    if size < REFER_FROM:
        for piece in bodies:
            writer.write(piece if isinstance(piece, bytes) else bytes(piece))
        writer.write(target.delimiter)
        data = writer.getvalue()
        return Run(None, 0, data, 0, i64(len(data)), 1, 0, 0, target)
    header = writer.getvalue()
    if target.tail != 0:
        bodies.append(target.delimiter)
        return Run(None, 0, b"".join(bodies), 0, size + target.tail, 1, 0, 0, target)  # the parser wants a whole line in one piece
    return Run([header, *bodies], i64(len(header)) + size, b"", 0, 0, 1, 0, 0, target)


def _side(is_client: bool) -> str:
    return "downstream" if is_client else "upstream"


def _pieces(body: Body) -> list[Buffer]:
    return [*body] if isinstance(body, list) else [body]


def flush(handled: Handled) -> None:
    """Write what the replies of one read caused, and submit further frames."""
    for leg in (handled.leg(1), handled.leg(0)):
        if leg.out and write(leg):
            written(leg)
    handling.pump(handled.leg(0))
    handling.pump(handled.leg(1))
    _check_end(handled)


def _check_end(handled: Handled) -> None:
    """End a half-closed or draining pair, if nothing is left to do."""
    pair = handled.pair
    if pair is None:
        return
    if pair.state is HALF_CLOSED:
        ending.check_done(pair)
    elif pair.draining and pair.counts_responses:
        ending.end_if_answered(pair)
    elif pair.draining:
        ending.end_if_even(pair)


def write_out(handled: Handled) -> None:
    """The pair begins to end: write what can be written at once."""
    for leg in (handled.leg(1), handled.leg(0)):
        if leg.out:
            write(leg)


def sent(leg: HandledLeg) -> bool:
    """A leg's pending send has left. False: another send is pending now."""
    _observe(leg)
    if leg.out and not write(leg):
        return False
    written(leg)
    _check_end(leg.handled)
    return True


def write(target: HandledLeg) -> bool:
    """Write what waits for a leg's channel; False: a send is pending, or the write must wait."""
    channel = target.channel
    if channel is None or not channel.is_open or channel.shutting:
        drop_out(target)
        return True
    source = _other(target).channel
    if not channel.can_send or (source is not None and source.read_half.receive.is_within_cut):
        for item in target.out:
            if item.booked == 0:
                item.booked = handling.book(item.owner, item.run)
        return False
    out = target.out
    target.out = []
    target.sending = len(target.times)
    is_out = channel.send(_join([item.run for item in out]))
    for item in out:  # not before ``send``, which books what is pending
        handling.release(item.owner, item.booked)
    if is_out:
        return True
    if source is not None and target.pair.state is not CLOSING:
        source.mute(PEER)
    return False


def _join(runs: list[Run]) -> Run:
    if len(runs) == 1:
        return runs[0]
    pieces: list[Buffer] = []
    size: i64 = 0
    frames: i64 = 0
    for run in runs:
        pieces += run.pieces()
        size += run.size
        frames += run.frames
    if size < JOIN_BELOW:
        return Run(None, 0, b"".join(pieces), 0, size, frames, 0)
    return Run(pieces, size, b"", 0, 0, frames, 0)


def written(target: HandledLeg) -> None:
    """Everything for a leg's channel has been sent: legs that waited for that go on."""
    _observe(target)
    for leg in (target, _other(target)):
        if leg.awaits is target and not (leg is target and leg.handled.held):
            handling.response_sent(leg)


def _observe(target: HandledLeg) -> None:
    metrics = target.pair.route.handler
    if target.sending == 0 or metrics is None:
        return
    now_ns = target.pair.owner.selector.read_clock()
    while target.sending > 0:
        target.sending -= 1
        metrics.send_time.observe(now_ns - target.times.popleft())


def forwarded(leg: HandledLeg, frames: i64) -> None:
    """Frames of a leg without a handler were passed on: answers may have waited for them, or for the end of a frame that was cut through."""
    leg.done += frames
    handled, target = leg.handled, _other(leg)
    if handled.held or target.out:
        if not leg.is_client:
            release_due(handled)
        if target.out and write(target):
            written(target)


def drop_out(target: HandledLeg) -> None:
    """Drop what waits for a leg's channel."""
    for item in target.out:
        if item.passes:
            item.owner.dropped_bytes += item.run.size
        handling.release(item.owner, item.booked)
    target.out = []
    target.times.clear()
    target.sending = 0


# Throttling.


def throttle(handled: Handled, leg: HandledLeg, throttle_ms: i64) -> None:
    """Do not read the client for a time, which a later call may prolong."""
    pair = handled.pair
    client = handled.leg(0)
    channel = client.channel
    if pair is None or channel is None or not channel.is_open:
        return
    selector = pair.owner.selector
    until_ns = selector.now_ns + throttle_ms * NS_PER_MS
    timer = handled.timer
    if timer is None:
        timer = handled.timer = CallbackTimer(partial(_end_throttle, client))
    if not handled.throttled or timer.deadline_ns < until_ns:
        selector.call_at(until_ns, timer)
    handled.throttled = True
    if client.throttle is None:
        client.throttle = Throttle(channel)
    client.throttle.hold(REPLY)


def _end_throttle(client: HandledLeg) -> None:
    channel = client.channel
    if channel is None or not channel.is_open:
        return
    try:
        client.handled.throttled = False
        if client.throttle is not None:
            client.throttle.let_go(REPLY)
        handling.pump(client)
    except Exception as error:  # nothing else would unmute it
        ending.crash(client.pair, error)
