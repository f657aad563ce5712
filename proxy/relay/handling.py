"""How frames get to a handler: from reading until they are submitted, and back to reading. ``verdicts`` carries out the replies.

Whole runs are read, and each frame of a run is submitted, up to ``MOST`` at a time. Results leave in the order of the frames. A channel is muted for
``handler`` while frames of it wait to be submitted, while ``MOST`` of them have no reply, and while results wait for the socket.

With an upstream a frame is kept until its verdict, because it may be passed on; while memory is short, one such frame is submitted at a time. The
bytes of each frame stay booked until its verdict, whether they are here or in the handler process.
"""

from typing import Final

from mypy_extensions import i64

from framegate.proxy.cause import Cause
from framegate.proxy.network import mute
from framegate.proxy.network.channel import Channel
from framegate.proxy.network.connection_id import format_connection_id
from framegate.proxy.network.framing import OK
from framegate.proxy.network.memory_pool import BEGUN, PIECE_OVERHEAD, Account
from framegate.proxy.network.run import Run, held, keep
from framegate.proxy.relay import ending, forwarding, losses, tapping
from framegate.proxy.relay import handler_wire as wire
from framegate.proxy.relay.handled_connection import HandledConnection, Request
from framegate.proxy.relay.handled_pair import Handled, HandledLeg
from framegate.proxy.relay.handler_process import HandlerProcess
from framegate.proxy.relay.pair import Pair
from framegate.proxy.relay.state import PairState
from framegate.proxy.relay.throttle import REPLY

NO_LIMIT: Final = 1 << 31
MOST: Final = 1000  # frames of one connection and direction without a reply
HANDLER: Final = mute.HANDLER
TAP: Final = mute.TAP
CLOSING: Final = PairState.CLOSING
CLOSED: Final = PairState.CLOSED


# Before a frame is read.


def may_read(leg: HandledLeg, channel: Channel) -> bool:
    """Whether a frame may be read; False: the leg is woken when it may. Assigns the connection to a process if there is one."""
    handled = leg.handled
    process = _process(handled)
    if process is None:
        _wait(leg, channel)
        if handled.process is None:
            handled.channel.wait(handled.number, leg.direction, handled)
        return False
    if not leg.handles:
        return True
    if not process.has_room(handled.number, leg.direction, handled):
        _wait(leg, channel)
        return False
    return True


def room_for(leg: HandledLeg) -> tuple[i64, bool]:
    """See ``ChannelSink.room_for``. Frames go whole to a handler: no limit, or nothing while others are kept or wait for the socket."""
    process = leg.handled.process
    if process is None or process.channel is None or not process.channel.can_send:
        return 0, False
    if leg.pair.route.upstream is not None and process.kept != 0:
        return 0, False
    return NO_LIMIT, True


def wait_for_room(leg: HandledLeg, channel: Channel) -> None:
    """``room_for`` gave no room: the leg is woken when fewer frames are kept, or wait for the socket."""
    process = leg.handled.process
    if process is not None:
        _wait(leg, channel)
        process.wait(leg.handled.number, leg.direction, leg.handled)


def _wait(leg: HandledLeg, channel: Channel) -> None:
    leg.waits = True
    channel.mute(HANDLER)


def _process(handled: Handled) -> HandlerProcess | None:
    """The process of a connection, which is assigned to one if it has none; None: there is no process, or it is gone (see ``process_gone``)."""
    process = handled.process
    if process is not None:
        return None if process.is_gone else process
    pair = handled.pair
    assert pair is not None, "it is not CLOSED"
    process = handled.channel.choose(pair.route.listener)
    if process is not None:
        _join(pair, handled, process)
    return process


def _join(pair: Pair, handled: Handled, process: HandlerProcess) -> None:
    metrics = pair.route.handler
    assert metrics is not None, "it has a handler"
    handles = process.handles[pair.route.listener]
    handled.process = process
    handled.connection = HandledConnection(handled.number, handled, metrics, _facts(pair))
    process.open(handled.connection)
    for leg, is_handled in ((handled.leg(0), handles[0]), (handled.leg(1), handles[1])):
        leg.handles = is_handled
        channel = leg.channel
        if channel is not None:
            channel.gate(asks=leg.gates_reads())
            tapping.forward(pair, leg)


def _facts(pair: Pair) -> wire.Facts:
    client = pair.client.channel
    assert client is not None, "it came first"
    identity = client.identity
    tls: wire.TlsFacts | None = None
    if identity is not None and identity.version:
        tls = wire.TlsFacts(version=identity.version, cipher=identity.cipher)
        if identity.subject:
            tls["peer_certificate"] = identity.subject
    return wire.Facts(
        id=format_connection_id(int(pair.id)),
        listener=pair.route.listener,
        peer=client.peer,
        principal=client.principal,
        principal_type=client.principal_type,
        tls=tls,
        upstream=pair.route.upstream is not None,
    )


# A frame that was read.


def received(leg: HandledLeg, channel: Channel, run: Run) -> None:
    """Whole frames of a direction with a handler."""
    pair = leg.pair
    if pair.state is CLOSING:
        losses.drop(pair, leg, run.frames, run.size, run)
        channel.discard(run)
        return
    now_ns = pair.owner.selector.read_clock()
    sequence = channel.frames_received - run.frames
    if run.frames == 1:
        _look_and_keep(pair, leg, channel, run, sequence, now_ns)
    else:
        frames = split(run)
        channel.discard(run)
        for frame in frames:
            _look_and_keep(pair, leg, channel, frame, sequence, now_ns)
            sequence += 1
    pump(leg)


def split(run: Run) -> list[Run]:
    """The frames of a run, each as a run without a lease that keeps no more memory than it books."""
    framing = run.framing
    frames: list[Run] = []
    begin: i64 = 0
    if run.head is not None:
        begin = run.first
        frames.append(Run([*run.head, keep(memoryview(run.data)[:begin])], run.head_size + begin, b"", 0, 0, 1, 0, 0, framing))
    data = run.data
    while begin < run.end:
        end = begin + framing.header_size(data, begin) + framing.body_size(data, begin) + framing.tail
        piece = keep(memoryview(data)[begin:end])
        if isinstance(piece, bytes):
            frames.append(Run(None, 0, piece, 0, end - begin, 1, 0, 0, framing))
        else:
            frames.append(Run([piece], end - begin, b"", 0, 0, 1, 0, 0, framing))
        begin = end
    return frames


def _look_and_keep(pair: Pair, leg: HandledLeg, channel: Channel, run: Run, sequence: i64, now_ns: i64) -> None:
    """Pair and tap one frame, and append it to the backlog."""
    pairing = pair.pairing
    before: i64 = 0 if pairing is None else pairing.open
    seen = run if leg.look is None or leg.tap is None else leg.look.frames(run)
    if not forwarding.look_at(pair, leg, seen, now_ns):
        channel.mute(TAP)
        pair.owner.tap_full(leg)
    leg.frames += 1
    leg.bytes += run.size
    expects = False
    withheld = False
    if pairing is not None:
        expects = leg.is_client and pairing.open > before
        withheld = len(pairing.sensitive) != 0
    framing = run.framing
    others = framing.other_bytes(run.prefix(framing.most_header), 0) if framing.others != 0 else b""
    request = Request(sequence, run, now_ns, others, expects=expects, withheld=withheld)
    request.booked = book(leg, run)
    leg.backlog.append(request)
    if pairing is not None:
        forwarding.hold(pair, pairing, leg)


def _account(leg: HandledLeg) -> Account:
    channel = leg.channel
    pool = leg.pair.owner.selector.pool
    return pool.common if channel is None else channel.options.account or pool.common


def book(leg: HandledLeg, run: Run) -> i64:
    """Book the memory of a run that stays here for a while, in place of its lease. Returns the bytes."""
    needed: i64 = 0
    for piece in run.pieces():
        needed += held(piece) + PIECE_OVERHEAD
    _account(leg).charge(BEGUN, needed, leg)
    leg.booked += needed
    if run.lease != 0 and leg.channel is not None:
        leg.channel.discard(run)
    return needed


def release(leg: HandledLeg, size: i64) -> None:
    """Release what ``book`` booked."""
    leg.booked -= size
    _account(leg).release(BEGUN, size, leg)


# A frame that is submitted.


def pump(leg: HandledLeg) -> None:
    """Submit the frames that may be, and read on if none is left."""
    handled = leg.handled
    while leg.backlog and _may_submit(leg):
        process = _process(handled)
        if process is None:
            leg.waits = True
            if handled.process is None:
                handled.channel.wait(handled.number, leg.direction, handled)
            break
        if not process.takes(handled.number, leg.direction, handled):
            leg.waits = True
            break
        _submit(leg, process, leg.backlog.popleft())
    follow(leg)


def _may_submit(leg: HandledLeg) -> bool:
    if leg.waits or (leg.is_client and leg.handled.throttled) or leg.pair.state is CLOSING or leg.pair.state is CLOSED:
        return False
    return leg.under_way < MOST and leg.awaits is None  # for a client that does not read no more answers are made


def _submit(leg: HandledLeg, process: HandlerProcess, request: Request) -> None:
    connection, run = leg.handled.connection, request.run
    assert connection is not None, "it belongs to a process"
    assert run is not None, "it was not submitted before"
    try:
        process.submit(connection, leg.direction, request, run)
    except wire.WireError as error:
        release(leg, request.booked)
        ending.end(leg.pair, Cause.HANDLER_FAILED, str(error), "internal")
        return
    leg.under_way += 1
    if leg.pair.route.upstream is None:
        request.run = None  # it cannot be passed on; its bytes are in the process, and stay booked until the reply
    else:
        process.kept += 1


# Back to reading.


def follow(leg: HandledLeg) -> None:
    """Mute a leg's channel for ``handler``, or unmute it, according to its frames."""
    channel = leg.channel
    if channel is None or not channel.is_open or leg.pair.state is CLOSING:
        return
    refused = channel.read_half.receive.fault != OK and has_held_frames(leg)  # the fault is handled after the frames before it
    if refused or leg.waits or leg.backlog or leg.under_way >= MOST or leg.awaits is not None:
        channel.mute(HANDLER)
    elif channel.mute_causes & HANDLER:
        channel.unmute(HANDLER)
    if leg.ends:
        end_if_done(leg, channel)


def response_sent(leg: HandledLeg) -> None:
    """The result of a leg's frame has been sent, or there is none."""
    leg.awaits = None
    if leg.pair.state is not CLOSING and leg.pair.state is not CLOSED:
        pump(leg)


def end_if_done(leg: HandledLeg, channel: Channel) -> None:
    """Handle the end of a leg's stream, if all frames before it are done."""
    if leg.ends and not has_held_frames(leg):
        leg.ends = False
        ending.end_of_stream(leg.pair, leg)


def has_held_frames(leg: HandledLeg) -> bool:
    """Whether frames of a leg are not passed on, answered or dropped yet."""
    return len(leg.backlog) != 0 or leg.under_way != 0 or leg.awaits is not None or (leg.is_client and len(leg.handled.held) != 0)


def wake(leg: HandledLeg) -> bool:
    """The queue has room, or there is a process. True: the leg will be read."""
    leg.waits = False
    if leg.backlog:
        pump(leg)
        return False
    follow(leg)
    channel = leg.channel
    return channel is not None and channel.is_open and channel.mute_causes == 0


# The end.


def process_gone(handled: Handled, detail: str) -> None:
    """Its process is gone. A connection with submitted frames ends; another one goes on with another process."""
    pair = handled.pair
    assert pair is not None, "a CLOSED pair belongs to no process"
    handled.process = None
    if handled.leg(0).under_way + handled.leg(1).under_way != 0:
        ending.end(pair, Cause.HANDLER_FAILED, detail, "internal")
        return
    handled.connection = None
    for leg in (handled.leg(0), handled.leg(1)):
        leg.waits = False
        pump(leg)


def let_go(handled: Handled) -> None:
    """The pair begins to end: nothing more is submitted, and replies are ignored."""
    pair, connection = handled.pair, handled.connection
    assert pair is not None, "it is not CLOSED"
    handled.channel.leave(handled.number)
    if handled.timer is not None:
        pair.owner.selector.cancel(handled.timer)
        handled.timer.release()
    if connection is not None:
        handled.connection = None
        _forget(handled.leg(0), connection)
        _forget(handled.leg(1), connection)
        if handled.process is not None:
            handled.process.close(connection)
    for answer in handled.held:
        release(handled.leg(0), answer.booked)
    handled.held.clear()
    handled.throttled = False
    for leg in (handled.leg(0), handled.leg(1)):
        _end_leg(leg)


def _forget(leg: HandledLeg, connection: HandledConnection) -> None:
    """Release what was kept of the submitted frames."""
    process = leg.handled.process
    for request in connection.requests if leg.is_client else connection.responses:
        release(leg, request.booked)
        if request.run is not None:
            request.run = None
            if process is not None:
                process.kept -= 1
            leg.dropped_bytes += request.size
    leg.under_way = 0


def _end_leg(leg: HandledLeg) -> None:
    while leg.backlog:
        request = leg.backlog.popleft()
        leg.dropped_bytes += request.size
        release(leg, request.booked)
    leg.waits = False
    leg.awaits = None
    channel = leg.channel
    if channel is None:
        return
    channel.unmute(HANDLER)
    if leg.throttle is not None:
        leg.throttle.let_go(REPLY)
    if leg.ends:
        leg.ends = False
        leg.ended = True
        losses.tap_partial(leg.pair, leg, channel)
