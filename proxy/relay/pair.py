"""The pair: one client's channel joined to one upstream's.

Theory of operation. Each channel has a ``Leg`` as its sink: what is needed to pass its runs on. ``Leg.received`` is the hot path: while a pair is
OPEN and nobody looks into its frames, ``Leg.forward_to`` is what writes to the other channel, and a run is one ``send``, and a mute only if the
socket did not take everything (rule 2). Everything else is the pair's, by rule:

1. The upstream is connected when the client is READY; until it is READY the client is muted for ``peer``. The upstream says which endpoint is
   tried (see ``upstream``); while attempts fail the next is, each once. A client that ends before its first byte ends the pair, unless its
   listener lets it wait for what the server says first; the cause is ``no_data`` when nothing came from either side.
2. The source is muted for ``peer`` until the other side's pending send is out. ``protocol: kafka`` mutes it for the same cause while more
   than ``MAX_OPEN`` requests are open, until half of them are answered.
3. Muting, and what is in force when, is the channel's.
4. So is the end of a stream that is seen only by reading.
5. End of stream from X: a frame begun is dropped, counted and tapped as a gap; Y's write side is shut once its pending send is out; Y→X goes on
   until Y's end, or until no byte passed for ``half_close`` (a mute of ours that keeps Y from being read holds that clock); for kafka until no
   answer is open. An upstream that ended has no more answers: for kafka that is the end.
6. TLS is the transport's.
7. The first cause wins. Then CLOSING: for at most 1 s what was received is written to the channels still open, then their write side is
   shut, and what they still send is dropped and counted until they end, so that no reset overtakes what they have not read yet.
8. Drain: see ``drain``; it ends in CLOSING with the cause ``drained``. Then the client is not read any more: what it still sends was never
   ours, and is thrown away unseen. Until the drain's deadline, CLOSING lasts while a peer's kernel has not taken what was sent.
"""

import abc
import errno
from typing import Final

from librt.strings import read_i32_be
from librt.vecs import vec
from mypy_extensions import i32, i64, mypyc_attr

from proxy.cells import TLS_ERRORS
from proxy.network import mute
from proxy.network.cause import Cause
from proxy.network.channel import Channel
from proxy.network.channel_sink import ChannelSink
from proxy.network.framing import HEADER
from proxy.network.run import PART_FIRST, PART_LAST, Run
from proxy.network.selector import Selector
from proxy.network.state import ChannelState
from proxy.network.timer import Timer
from proxy.network.write_half import WriteHalf
from proxy.relay import state
from proxy.relay.counters import CAUSE_INDEX, ERROR_INDEX, LoopCounters
from proxy.relay.pairing import MAX_OPEN, Pairing
from proxy.relay.route import Route
from proxy.relay.state import PairEvent, PairState
from proxy.relay.upstream import Attempt, Endpoint, Tried
from proxy.tap.frame_tap import FrameTap
from proxy.tap.record import DIRECTION_REQUEST, DIRECTION_RESPONSE, REASON_PARTIAL_FRAME
from proxy.tap.request_facts import RequestFacts

__all__ = ["LINGER_NS", "Leg", "Pair", "PairOwner"]

NO_LIMIT: Final = 1 << 31
LINGER_NS: Final = 1_000_000_000
PEER: Final = mute.PEER
TAP: Final = mute.TAP
ADMIN: Final = mute.ADMIN
DRAIN: Final = mute.DRAIN
OURS: Final = mute.MEMORY | mute.THROTTLE | mute.HANDLER | mute.TAP | mute.ADMIN  # the peer is not waited for, but held up by us

ENDED: Final = ChannelState.ENDED
WRITE_ENDED: Final = ChannelState.WRITE_ENDED
HANDSHAKING: Final = PairState.HANDSHAKING
CONNECTING: Final = PairState.CONNECTING_UPSTREAM
OPEN: Final = PairState.OPEN
HALF_CLOSED: Final = PairState.HALF_CLOSED
CLOSING: Final = PairState.CLOSING
CLOSED: Final = PairState.CLOSED

NO_SOCKET: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)  # of ``socket``: ours; whatever else it says is the endpoint's
ENDPOINT_CAUSES: Final = (
    Cause.UPSTREAM_REFUSED,
    Cause.UPSTREAM_TIMEOUT,
    Cause.TLS_FAILED,
    Cause.AUTH_FAILED,
    Cause.PEER_RESET,
    Cause.PEER_CLOSED,
    Cause.NO_DATA,
)
"""Why an attempt may end that the endpoint is to blame for."""


@mypyc_attr(allow_interpreted_subclasses=True)
class PairOwner(abc.ABC):
    """What pairs need of the one who keeps them.

    Attributes:
        loop: counters of the processor.
        wall_offset_ns: what the selector's clock lacks to the time of day.
        draining: no new pairs.
    """

    def __init__(self, loop: LoopCounters) -> None:
        self.loop: Final = loop
        self.wall_offset_ns: i64 = 0
        self.draining: bool = False
        self._selector: Selector | None = None

    @property
    def selector(self) -> Selector:
        """Where the channels live; given by ``attach``."""
        assert self._selector is not None, "attach comes before the first connection"
        return self._selector

    def attach(self, selector: Selector) -> None:
        """Name the selector."""
        self._selector = selector

    @abc.abstractmethod
    def match(self, pair: "Pair", direction: int) -> FrameTap | None:
        """The tap of one direction of a pair whose client is READY, or None, by the rules that are in force."""

    @abc.abstractmethod
    def tap_full(self, leg: "Leg") -> None:
        """A leg is muted for ``tap``: unmute it when the log accepts again."""

    @abc.abstractmethod
    def endpoint_changed(self, pair: "Pair", endpoint: Endpoint) -> None:
        """A pair's attempt took an endpoint of its upstream down, prolonged its back-off, or brought it up again."""

    @abc.abstractmethod
    def pair_muted(self, pair: "Pair") -> None:
        """A mute of the client's channel that had to wait is in force."""

    @abc.abstractmethod
    def pair_closed(self, pair: "Pair") -> None:
        """The pair is CLOSED; its row is final."""


class Leg(ChannelSink):
    """One channel of a pair, and what its runs need; what the channel tells goes to the pair.

    Attributes:
        pair: whose it is.
        is_client: the client's.
        channel: the client's, or the upstream attempt's; None before the first attempt.
        forward_to: what writes runs without another look; None when somebody looks, or nothing is forwarded.
        tap: of the runs that this channel receives.
        next_tap: while ``changes_tap``, of what comes behind the frame that is cut through now.
        frames, bytes: whole frames received, each passed on or dropped; counted only while somebody looks.
        gone: its channel is closed, and that was told; or there is none.
        ended: the peer sends no more.
        shut: our write side is shut, or will be: ``shut_wanted`` says that a pending send is waited for.
        dropped_bytes: whole frames received that were not passed on.
        part_size: bytes of the frame that is cut through, known while somebody looks.
        drops_frame: no piece of that frame was passed on, and none will be.
    """

    __deletable__ = ("pair",)

    def __init__(self, pair: "Pair", *, is_client: bool) -> None:
        self.pair = pair
        self.is_client: Final[bool] = is_client
        self.channel: Channel | None = None
        self.forward_to: WriteHalf | None = None
        self.tap: FrameTap | None = None
        self.next_tap: FrameTap | None = None
        self.changes_tap: bool = False
        self.frames: i64 = 0
        self.bytes: i64 = 0
        self.gone: bool = True
        self.ended: bool = False
        self.shut: bool = False
        self.shut_wanted: bool = False
        self.dropped_bytes: i64 = 0
        self.part_size: i64 = 0
        self.drops_frame: bool = False

    @property
    def other(self) -> "Leg":
        """The pair's other leg."""
        return self.pair.upstream if self.is_client else self.pair.client

    def received(self, run: Run) -> None:
        channel = self.channel
        assert channel is not None, "a leg that is told of has a channel"
        out = self.forward_to
        if out is not None and out.can_send:
            if not out.send(run):
                channel.mute(PEER)
        else:
            self.pair.received(self, channel, run)

    def may_read(self) -> bool:
        return self.tap is None or self.tap.may_read() or self.pair.tap_is_full(self)

    def room_for(self) -> tuple[i64, bool]:
        return self.pair.room_for(self)

    def wait_for_room(self) -> None:
        self.pair.wait_for_room(self)

    def passes_to(self) -> WriteHalf | None:
        return self.pair.passes_to(self)

    def passed_by(self, size: i64, frames: i64) -> None:
        self.pair.passed_by(self, size, frames)

    def ready(self) -> None:
        self.pair.ready(self)

    def sent(self) -> None:
        self.pair.sent(self)

    def muted(self) -> None:
        self.pair.muted(self)

    def end_of_stream(self) -> None:
        self.pair.end_of_stream(self)

    def write_ended(self) -> None:
        self.pair.write_ended(self)

    def closed(self) -> None:
        self.pair.closed(self)

    def release(self) -> None:
        """Let go of the pair, which is CLOSED: two that hold each other would stay until the garbage collector finds them."""
        del self.pair


class _PairTimer(Timer):
    """The end of a half-closed or closing pair."""

    def __init__(self, pair: "Pair") -> None:
        super().__init__()
        self._pair: Pair | None = pair

    def fire(self, now_ns: i64) -> None:
        pair = self._pair
        if pair is None:
            return
        try:
            pair.time_out()
        except Exception as error:  # nothing else ends a pair that waits for its time
            pair.crash(error)

    def release(self) -> None:
        self._pair = None


class Pair:
    """One client joined to one upstream.

    Attributes:
        id: of the connection; both channels carry it.
        route: what it shares with the listener's other pairs.
        state: see ``state``; ``died_in`` is the state in which the cause came up.
        client, upstream: the legs.
        pairing: of requests with answers; None for ``framed``.
        endpoint: the upstream's address tried last, as text.
        cause, detail, side: why it ended; None, "" and "internal" before.
        opened_ns, closed_ns: on the selector's clock.
        reason: of the last administrative mute.
        draining: it is to end as soon as nothing is under way.
        drain_until_ns: and at this time at the latest; 0: there is no drain.
    """

    def __init__(self, owner: PairOwner, route: Route, pair_id: i64, opened_ns: i64) -> None:
        self.id: Final[i64] = pair_id
        self.route: Final = route
        self.state: PairState = HANDSHAKING
        self.died_in: PairState = HANDSHAKING
        self.client: Final = Leg(self, is_client=True)
        self.upstream: Final = Leg(self, is_client=False)
        self.pairing: Pairing | None = None
        self.endpoint: str = ""
        self.cause: Cause | None = None
        self.detail: str = ""
        self.side: str = "internal"
        self.opened_ns: Final[i64] = opened_ns
        self.closed_ns: i64 = 0
        self.reason: str = ""
        self.draining: bool = False
        self.drain_until_ns: i64 = 0
        self._owner: Final = owner
        self._attempt: Attempt | None = None
        self._tried: Tried | None = None
        self._full: bool = False
        self._first_end: Cause = Cause.PEER_CLOSED
        self._first_side: str = "downstream"
        self._timer: _PairTimer | None = None

    def lost_bytes(self, leg: Leg) -> i64:
        """Bytes received on one leg that never went out on the other."""
        channel = leg.channel
        out = self.upstream.channel if leg.is_client else self.client.channel
        lost = leg.dropped_bytes
        if channel is not None:
            lost += channel.lost_bytes
        if out is not None:
            lost += out.unsent_bytes
        return lost

    def mutes(self) -> dict[str, dict[str, int]]:
        """How often, and for how long, each cause kept the client from being read."""
        channel = self.client.channel
        return {} if channel is None else channel.mutes.summary()

    # Opening (rule 1).

    def start(self, channel: Channel) -> None:
        """The client's channel is registered."""
        self.client.channel = channel
        self.client.gone = False
        self.route.counters.accepted += 1
        self.route.counters.active_downstream += 1
        if channel.options.tls is not None:
            self._owner.loop.downstream_handshaking += 1

    def ready(self, leg: Leg) -> None:
        """A channel is READY."""
        channel = leg.channel
        assert channel is not None, "a leg that is told of has a channel"
        if leg.is_client:
            self._client_ready(channel)
        else:
            self._upstream_ready(channel)

    def _client_ready(self, channel: Channel) -> None:
        loop = self._owner.loop
        if channel.options.tls is not None:
            loop.downstream_handshaking -= 1
            loop.downstream_handshakes[0].observe(channel.ready_ns - channel.connected_ns)
        self.state = state.next_state(self.state, PairEvent.CLIENT_READY)
        self._match(self.client, channel, DIRECTION_REQUEST)
        channel.mute(PEER)
        if self._owner.draining:
            self.end(Cause.DRAINED, "", "internal")
            return
        self._connect()

    def _connect(self) -> None:
        """Try the endpoint that the upstream says; end when every one has failed."""
        upstream, selector = self.route.upstream, self._owner.selector
        while True:
            attempt = upstream.begin(self._tried, selector.now_ns)
            if attempt is None:
                self._give_up()
                return
            if self._start_attempt(attempt):
                return

    def _start_attempt(self, attempt: Attempt) -> bool:
        """Open a channel to an endpoint; False when the next one is to be tried."""
        selector, endpoint = self._owner.selector, attempt.endpoint
        options = self.route.upstream_options[endpoint.server_name]
        self.endpoint = endpoint.text
        try:
            channel = selector.connect(endpoint.family, endpoint.address, self.id, options, self.upstream, peer=endpoint.text)
        except OSError as error:
            if error.errno in NO_SOCKET:
                self.route.upstream.abandoned(attempt, selector.now_ns)
                self.end(Cause.LIMIT, f"{endpoint.text}: {error}", "internal")
                return True
            self._note_failure(attempt, Cause.UPSTREAM_REFUSED, str(error), selector.now_ns)
            return False
        if options.tls is not None:
            self._owner.loop.upstream_handshaking += 1
        self._attempt = attempt
        self.upstream.channel = channel
        self.upstream.gone = False
        return True

    def _note_failure(self, attempt: Attempt, cause: Cause, detail: str, now_ns: i64) -> None:
        """An endpoint has failed this pair."""
        endpoint = attempt.endpoint
        if self._tried is None:
            self._tried = Tried()
        self._tried.add(endpoint, cause, f"{endpoint.text}: {detail}")
        if self.route.upstream.failed(attempt, cause, detail, now_ns):
            self._owner.endpoint_changed(self, endpoint)

    def _give_up(self) -> None:
        tried = self._tried
        if tried is None:
            self.end(Cause.UPSTREAM_REFUSED, "the upstream has no address", "upstream")
            return
        cause = tried.cause
        if cause is Cause.PEER_RESET or cause is Cause.PEER_CLOSED or cause is Cause.NO_DATA:
            cause = Cause.UPSTREAM_CLOSED
        count = len(tried.endpoints)
        self.end(cause, tried.detail if count == 1 else f"{tried.detail} (the last of {count} endpoints tried)", "upstream")

    def _upstream_ready(self, channel: Channel) -> None:
        client = self.client.channel
        attempt = self._attempt
        assert client is not None, "the client came first"
        assert attempt is not None, "an upstream that is told of was tried"
        self._attempt = None
        self._tried = None
        upstream = self.route.upstream
        upstream.counters.used += 1
        if upstream.answered(attempt, channel.ready_ns):
            self._owner.endpoint_changed(self, attempt.endpoint)
        if channel.options.tls is not None:
            self._owner.loop.upstream_handshaking -= 1
            self._owner.loop.upstream_handshakes[0].observe(channel.ready_ns - channel.connected_ns)
        self.route.counters.active_upstream += 1
        self.state = state.next_state(self.state, PairEvent.UPSTREAM_READY)
        self._match(self.upstream, channel, DIRECTION_RESPONSE)
        if self.route.kafka:
            self.pairing = Pairing(self.route.counters.pairing)
            self._share_facts()
        else:
            if self.client.tap is None:
                self.client.forward_to = channel.write_half
            if self.upstream.tap is None:
                self.upstream.forward_to = client.write_half
        client.unmute(PEER)

    # Taps.

    def _match(self, leg: Leg, channel: Channel, direction: int) -> None:
        """Ask whether a leg is tapped."""
        leg.tap = self._owner.match(self, direction)
        channel.gated = leg.tap is not None and leg.tap.mutes

    def retap(self) -> None:
        """The rules have changed: ask again, for what comes from here on. A frame that is cut through ends as it began."""
        if self.state is CLOSING or self.state is CLOSED:
            return
        for leg, direction in ((self.client, DIRECTION_REQUEST), (self.upstream, DIRECTION_RESPONSE)):
            channel = leg.channel
            if channel is None or channel.ready_ns == 0:
                continue
            fresh = self._owner.match(self, direction)
            if leg.tap is not None and leg.tap.is_within:
                leg.changes_tap = True
                leg.next_tap = fresh
            else:
                self._set_tap(leg, channel, fresh)

    def _set_tap(self, leg: Leg, channel: Channel, tap: FrameTap | None) -> None:
        """Let a leg have another tap, or none, at the border of two frames, or within one that the tap before did not see."""
        if leg.tap is None and self.pairing is None:  # nobody has counted
            leg.frames = channel.frames_received
            leg.bytes = channel.bytes_received - channel.staged
        leg.tap = tap
        leg.next_tap = None
        leg.changes_tap = False
        self._share_facts()
        channel.gated = tap is not None and tap.mutes
        if not channel.gated:
            channel.unmute(TAP)
        looks = tap is not None or self.pairing is not None
        upstream = self.upstream.channel
        passes = (self.state is OPEN or self.state is HALF_CLOSED) and upstream is not None and upstream.ready_ns != 0
        out = leg.other.channel
        leg.forward_to = out.write_half if out is not None and passes and not looks else None

    def _end_tap_change(self, leg: Leg) -> None:
        """The frame that was cut through when the rules changed is over."""
        if leg.changes_tap and leg.channel is not None and leg.tap is not None and not leg.tap.is_within:
            self._set_tap(leg, leg.channel, leg.next_tap)

    def _share_facts(self) -> None:
        """Have the pairing note of requests what a tap asks for."""
        pairing = self.pairing
        if pairing is None:
            return
        client, upstream = self.client.tap, self.upstream.tap
        asked = (client is not None and client.asks) or (upstream is not None and upstream.asks)
        if not asked:
            pairing.facts = None
        elif pairing.facts is None:
            pairing.facts = RequestFacts()
        if client is not None:
            client.facts = pairing.facts
        if upstream is not None:
            upstream.facts = pairing.facts

    def _attempt_failed(self, channel: Channel) -> None:
        """An upstream's channel closed before it was READY."""
        attempt = self._attempt
        assert attempt is not None, "an upstream that is told of was tried"
        self._attempt = None
        if channel.options.tls is not None:
            self._owner.loop.upstream_handshaking -= 1
            if channel.connected_ns != 0:
                self._owner.loop.upstream_handshakes[tls_error(channel.close_cause)].observe(channel.closed_ns - channel.connected_ns)
        self.upstream.channel = None
        cause = channel.close_cause or Cause.INTERNAL
        if self.state is not CLOSING and cause in ENDPOINT_CAUSES:
            self._note_failure(attempt, cause, channel.detail, channel.closed_ns)
            self._connect()
            return
        self.route.upstream.abandoned(attempt, channel.closed_ns)
        if self.state is CLOSING:
            self._check_gone()
        else:
            self.end(cause, channel.detail, "internal")

    # Passing on (rule 2), when somebody looks.

    def received(self, leg: Leg, channel: Channel, run: Run) -> None:
        """A run on a leg without ``forward_to``."""
        other = leg.other.channel
        out = None if other is None else other.write_half
        if self.state is CLOSING or out is None or not out.can_send:
            if run.part != 0:
                self._drop_part(leg, channel, run)
            else:
                self._drop(leg, run.frames, run.size, run)
            channel.discard(run)
            return
        now_ns = self._owner.selector.read_clock()  # not the poll's: an answer can come within the poll that passed its request on
        accepted = self._look_at(leg, run, now_ns) if run.part == 0 else self._look_at_part(leg, run, now_ns)
        leg.frames += run.frames
        leg.bytes += run.size
        if not accepted:
            channel.mute(TAP)
            self._owner.tap_full(leg)
        if not out.send(run):
            channel.mute(PEER)
        if self.pairing is not None:
            self._hold(self.pairing, leg)

    def _look_at(self, leg: Leg, run: Run, now_ns: i64) -> bool:
        """Pair and tap a run; False: the tap's log is full, and the source is to be muted."""
        pairing = self.pairing
        if pairing is not None:
            if leg.is_client:
                pairing.requests(run, now_ns)
            else:
                pairing.answers(run, now_ns, leg.tap is not None)
        return leg.tap is None or self._append(leg.tap, leg, run, now_ns)

    def _look_at_part(self, leg: Leg, run: Run, now_ns: i64) -> bool:
        """As ``_look_at``, for a piece of a frame that is cut through."""
        pairing = self.pairing
        if pairing is not None and run.part & PART_FIRST:
            if leg.is_client:
                pairing.request_part(run, now_ns)
            else:
                pairing.answer_part(run, now_ns)
        if leg.tap is None:
            return True
        accepted = self._append_part(leg.tap, leg, run, now_ns)
        if leg.changes_tap:
            self._end_tap_change(leg)
        return accepted

    def room_for(self, leg: Leg) -> tuple[i64, bool]:
        """How many bytes of a leg's runs the other side takes at once, and whether nothing waits there; what is dropped needs no room."""
        out = leg.other.channel
        if self.state is CLOSING or out is None or not out.is_open:
            return NO_LIMIT, True
        return out.room()

    def wait_for_room(self, leg: Leg) -> None:
        """Mute a leg until the other side may have more room."""
        channel, out = leg.channel, leg.other.channel
        if channel is not None and out is not None:
            channel.mute(PEER)
            out.want_room(channel.read_half.receive.booked)

    def _drop(self, leg: Leg, frames: i64, size: i64, run: Run | None) -> None:
        """Count whole frames that were received and are not passed on."""
        leg.dropped_bytes += size
        if leg.tap is not None:
            leg.tap.drop(frames, size, leg.frames, self._wall_ns(), run)
        leg.frames += frames
        leg.bytes += size

    def _drop_part(self, leg: Leg, channel: Channel, run: Run) -> None:
        """As ``_drop``, for a piece: of a frame that is dropped whole, or of one whose beginning was passed on, which is cut short."""
        if run.part & PART_FIRST:
            leg.drops_frame = True
        if leg.drops_frame:
            self._drop(leg, run.frames, run.size, run)
        else:
            self._cut_short(leg, channel, max(channel.read_half.cut_at, run.size))
            leg.dropped_bytes += run.size
            leg.frames += run.frames
            leg.bytes += run.size
        if run.part & PART_LAST:
            leg.drops_frame = False

    def _cut_short(self, leg: Leg, channel: Channel, passed: i64) -> None:
        """The frame of which so many bytes were passed on will not be completed, whatever still comes of it."""
        channel.read_half.cut_frame_short(passed)
        if leg.tap is not None:
            leg.tap.cut_short(self._wall_ns())
            self._end_tap_change(leg)

    def _wall_ns(self) -> i64:
        """The time of day, as of this poll."""
        return self._owner.selector.now_ns + self._owner.wall_offset_ns

    def passes_to(self, leg: Leg) -> WriteHalf | None:
        """Where pieces of a leg go that nobody looks at: the first of the frame was."""
        if leg.tap is not None or self.state is CLOSING:
            return None
        out = leg.other.channel
        return None if out is None else out.write_half

    def passed_by(self, leg: Leg, size: i64, frames: i64) -> None:
        """As ``received``, for a piece that was not looked at."""
        leg.frames += frames
        leg.bytes += size
        if self.pairing is not None:
            self._hold(self.pairing, leg)

    def _append_part(self, tap: FrameTap, leg: Leg, run: Run, now_ns: i64) -> bool:
        pairing = self.pairing
        if run.part & PART_FIRST:
            leg.part_size = HEADER + i64(read_i32_be(run.prefix(HEADER), 0))
        capture_ns = now_ns + self._owner.wall_offset_ns
        if pairing is None:
            return tap.append_part(run, leg.frames, capture_ns, leg.part_size, False, None, None)
        withheld = bool(run.part & PART_FIRST) and len(pairing.sensitive) != 0
        if leg.is_client:
            return tap.append_part(run, leg.frames, capture_ns, leg.part_size, withheld, None, None)
        return tap.append_part(
            run,
            leg.frames,
            capture_ns,
            leg.part_size,
            withheld,
            int(pairing.keys[0]),
            int(pairing.latencies[0]),
            int(pairing.request_sizes[0]),
            int(pairing.correlation_ids[0]),
        )

    def _append(self, tap: FrameTap, leg: Leg, run: Run, now_ns: i64) -> bool:
        pairing = self.pairing
        sensitive: vec[i32] | None = None
        capture_ns = now_ns + self._owner.wall_offset_ns
        if pairing is None:
            return tap.append(run, leg.frames, capture_ns)
        if len(pairing.sensitive):
            sensitive = pairing.sensitive
        if leg.is_client:
            return tap.append(run, leg.frames, capture_ns, sensitive)
        return tap.append(run, leg.frames, capture_ns, sensitive, pairing.keys, pairing.latencies, pairing.request_sizes, pairing.correlation_ids)

    def _hold(self, pairing: Pairing, leg: Leg) -> None:
        """Mute a client with too many open requests; unmute it when half are answered; end a half-closed pair with none."""
        client = self.client.channel
        if leg.is_client:
            if not self._full and pairing.full and client is not None:
                self._full = True
                client.mute(PEER)
            return
        if self._full and 2 * pairing.open <= MAX_OPEN:
            self._full = False
            upstream = self.upstream.channel
            if client is not None and (upstream is None or upstream.can_send):
                client.unmute(PEER)
        if self.state is HALF_CLOSED:
            self._check_done()
        elif self.draining:
            self._end_if_answered()

    def sent(self, leg: Leg) -> None:
        """The pending send of a leg's channel is out."""
        channel = leg.channel
        if leg.shut_wanted and channel is not None:
            leg.shut_wanted = False
            leg.shut = True
            channel.shut_write()
        elif self.state is not CLOSING:
            source = leg.other.channel
            if source is not None and not (self._full and not leg.is_client):
                source.unmute(PEER)
        if self.state is HALF_CLOSED:
            self._check_done()
        elif self.draining:
            self._end_if_answered()

    # Draining (rule 8).

    @property
    def counts_answers(self) -> bool:
        """Whether it is known how many answers are owed."""
        return self.pairing is not None and not self.pairing.lost

    def owes_nothing(self) -> bool:
        """Whether nothing is under way, as far as can be seen: no frame is begun, no answer that is known of is owed, nothing waits to be written, or
        to be read, but for a client that is not to be read because it drains or an operator says so.
        """
        client, upstream = self.client.channel, self.upstream.channel
        if client is None or upstream is None:
            return True
        if client.pending_send != 0 or upstream.pending_send != 0 or client.read_half.receive.within or upstream.read_half.receive.within:
            return False
        if self.counts_answers and self.pairing is not None and self.pairing.open > 0:
            return False
        return self.client.ended or client.mute_causes & (DRAIN | ADMIN) != 0 or client.read_half.is_dry()

    def _end_if_answered(self) -> None:
        """End right behind the last answer that is owed: a client that asks and waits sees the end before it asks again."""
        if self.counts_answers and self.owes_nothing():
            self.end(Cause.DRAINED, "", "internal")

    # Ending (rules 5 and 7).

    def end_of_stream(self, leg: Leg) -> None:
        """A channel's peer sends no more."""
        leg.ended = True
        channel = leg.channel
        assert channel is not None, "a leg that is told of has a channel"
        self._tap_partial(leg, channel)
        if self.state is CLOSING:
            self._settle(leg, channel)
            return
        if channel.read_half.cut_short_at != 0:
            self.end(Cause.PEER_CLOSED if leg.is_client else Cause.UPSTREAM_CLOSED, "", channel.options.side)
            return
        if self.state is OPEN:
            if leg.is_client and channel.bytes_received == 0 and not self.route.waits_before_data:
                self.end(self._end_cause(Cause.PEER_CLOSED), "", "downstream")
                return
            self._half_close(leg, channel)
        self._check_done()

    def _half_close(self, leg: Leg, channel: Channel) -> None:
        self._first_end = Cause.PEER_CLOSED if leg.is_client else Cause.UPSTREAM_CLOSED
        self._first_side = channel.options.side
        self.detail = channel.detail if channel.lost_bytes == 0 else f"within a frame, after {channel.lost_bytes} of its bytes"
        self.state = state.next_state(self.state, PairEvent.STREAM_ENDED)
        self._arm(self.route.half_close_ns)
        self._shut(leg.other)

    def _shut(self, leg: Leg) -> None:
        """End our side of a leg's stream, now or once its pending send is out."""
        channel = leg.channel
        if leg.shut or leg.shut_wanted or channel is None or not channel.is_open:
            return
        if channel.can_send:
            leg.shut = True
            channel.shut_write()
        else:
            leg.shut_wanted = True

    def write_ended(self, leg: Leg) -> None:
        """Our end of a leg's stream is out."""
        channel = leg.channel
        if self.state is CLOSING and channel is not None:
            self._settle(leg, channel)
        elif self.state is HALF_CLOSED:
            self._check_done()

    def _check_done(self) -> None:
        """Whether a half-closed pair has nothing more to pass on."""
        both = self.client.ended and self.upstream.ended
        pairing = self.pairing
        if not both and (pairing is None or pairing.lost):
            return
        if not both and not self.upstream.ended and pairing is not None and (pairing.open > 0 or _is_within(self.upstream)):
            return
        if self._pending():
            return
        self.end(self._end_cause(self._first_end), self.detail, self._first_side)

    def _end_cause(self, cause: Cause) -> Cause:
        """``no_data`` when neither side ever sent a byte and the client was the first to end, else the cause as it is."""
        client, upstream = self.client.channel, self.upstream.channel
        silent = client is not None and client.bytes_received == 0 and (upstream is None or upstream.bytes_received == 0)
        return Cause.NO_DATA if silent and cause is Cause.PEER_CLOSED else cause

    def _pending(self) -> bool:
        client, upstream = self.client.channel, self.upstream.channel
        if client is not None and client.pending_send != 0:
            return True
        return upstream is not None and upstream.pending_send != 0

    def end(self, cause: Cause, detail: str, side: str) -> None:
        """Begin the end, unless it has begun: the first cause wins."""
        if self.state is CLOSING or self.state is CLOSED:
            return
        self.died_in = self.state
        self.cause = cause
        self.detail = self._within_frame(detail)
        self.side = side
        self.state = state.next_state(self.state, PairEvent.END)
        self.client.forward_to = None
        self.upstream.forward_to = None
        for leg in (self.client, self.upstream):
            if leg.channel is not None and leg.channel.read_half.receive.is_within_cut:
                self._cut_short(leg, leg.channel, leg.channel.read_half.cut_at)
        self._linger(self.client)
        self._linger(self.upstream)
        if _is_left(self.client) or _is_left(self.upstream):
            self._arm(LINGER_NS)

    def _within_frame(self, detail: str) -> str:
        """A detail that says so when a frame that was cut through will not come to its end."""
        for leg in (self.client, self.upstream):
            channel = leg.channel
            if channel is not None and channel.read_half.cut_at != 0:
                within = f"within a frame, after {channel.read_half.cut_at} of its bytes"
                return f"{within}: {detail}" if detail else within
        return detail

    def abort(self, cause: Cause, detail: str, side: str) -> None:
        """End without the courtesy of the last second."""
        self.end(cause, detail, side)
        self._close_leg(self.client)
        self._close_leg(self.upstream)

    def crash(self, error: Exception, place: str = "timer") -> None:
        """Our bug, in what works for this pair: it costs the pair, and is noted as a fault."""
        self._owner.selector.faults.note(place, error)
        for leg in (self.client, self.upstream):
            if leg.channel is not None:
                leg.channel.close(Cause.INTERNAL, f"{type(error).__name__}: {error}", error)

    def _linger(self, leg: Leg) -> None:
        """Let a channel that is still open have what was received for it, then an orderly end."""
        channel = leg.channel
        if channel is None:
            return
        if not channel.is_open:
            self._close_leg(leg)
            return
        if leg.ended and channel.can_send:  # both ends in one: closing ends our side in order, too
            self._close_leg(leg)
            return
        self._shut(leg)
        channel.gated = False  # what comes now does not go into the log
        channel.unmute(PEER)
        channel.unmute(TAP)
        if leg.is_client and (self.cause is Cause.DRAINED or self.cause is Cause.DRAIN_TIMEOUT):
            channel.discard_input(DRAIN)
        else:
            channel.unmute(DRAIN)
        self._settle(leg, channel)

    def _settle(self, leg: Leg, channel: Channel) -> None:
        """Close a channel of a closing pair whose stream is ended by us, and by the peer as far as we could see it."""
        if channel.state is ENDED or (channel.state is WRITE_ENDED and channel.mute_causes != 0 and not channel.read_half.discards):
            self._close_leg(leg)

    def _close_leg(self, leg: Leg) -> None:
        channel = leg.channel
        if channel is not None:
            channel.close(self.cause or Cause.INTERNAL, self.detail)

    def time_out(self) -> None:
        """``half_close`` since the last byte that was seen, or the last second, is over."""
        if self.state is CLOSING:
            if self._owner.selector.now_ns < self.drain_until_ns and (_is_untaken(self.client) or _is_untaken(self.upstream)):
                self._arm(LINGER_NS)
                return
            self._close_leg(self.client)
            self._close_leg(self.upstream)
        elif self.state is HALF_CLOSED:
            owner = self._owner
            due_ns = self._last_progress_ns() + self.route.half_close_ns
            if due_ns > owner.selector.now_ns:
                self._arm(due_ns - owner.selector.now_ns)
            else:
                self.end(self._end_cause(self._first_end), self.detail or "the other side did not end in time", self._first_side)

    def _last_progress_ns(self) -> i64:
        """When a byte passed last, in either direction; now, while a mute of ours keeps the side from being read that has not ended."""
        last_ns: i64 = 0
        for leg in (self.client, self.upstream):
            channel = leg.channel
            if channel is None:
                continue
            if not leg.ended and channel.mute_causes & OURS:
                return self._owner.selector.now_ns
            last_ns = max(last_ns, channel.last_active_ns)
        return last_ns

    def _arm(self, delay_ns: i64) -> None:
        if self._timer is None:
            self._timer = _PairTimer(self)
        self._owner.selector.call_at(self._owner.selector.now_ns + delay_ns, self._timer)

    def muted(self, leg: Leg) -> None:
        """A mute that had to wait is in force."""
        if leg.is_client:
            self._owner.pair_muted(self)

    def tap_is_full(self, leg: Leg) -> bool:
        """The log takes no more of a leg's frames: mute it. False: it may not be read."""
        if leg.channel is not None:
            leg.channel.mute(TAP)
        self._owner.tap_full(leg)
        return False

    def closed(self, leg: Leg) -> None:
        """A channel is closed, for whatever reason."""
        channel = leg.channel
        assert channel is not None, "a leg that is told of has a channel"
        leg.gone = True
        if not leg.is_client and channel.ready_ns == 0:
            self._attempt_failed(channel)
            return
        self._drop_rest(leg, channel)
        if not leg.ended:
            self._tap_partial(leg, channel)
        if leg.is_client:
            self._count_client(channel)
        else:
            self._count_upstream(channel)
        if self.state is not CLOSING:
            self.end(channel.close_cause or Cause.INTERNAL, channel.detail, self._side_of(channel))
        self._check_gone()

    def _side_of(self, channel: Channel) -> str:
        return "internal" if channel.close_cause is Cause.INTERNAL else channel.options.side

    def _drop_rest(self, leg: Leg, channel: Channel) -> None:
        """Count the run that an error of ours, on its way here, kept from being passed on."""
        looked_at = self.pairing is not None or leg.tap is not None
        if looked_at and leg.frames != channel.frames_received:
            self._drop(leg, channel.frames_received - leg.frames, channel.bytes_received - channel.lost_bytes - leg.bytes, None)

    def _count_cut_short(self, leg: Leg) -> None:
        """A frame that was cut through and never came to its end counts for the side that it was passed to as well."""
        channel, out = leg.channel, leg.other.channel
        if channel is not None and channel.read_half.cut_short_at != 0 and out is not None:
            out.write_half.count_cut_short()

    def _tap_partial(self, leg: Leg, channel: Channel) -> None:
        if leg.tap is None:
            return
        if channel.read_half.cut_short_at != 0:
            leg.tap.cut_short(self._wall_ns())
        elif channel.lost_bytes != 0:
            leg.tap.lose(REASON_PARTIAL_FRAME, 0, channel.lost_bytes, leg.frames, self._wall_ns())

    def _count_client(self, channel: Channel) -> None:
        loop = self._owner.loop
        cause = self.cause or channel.close_cause or Cause.INTERNAL
        self.route.counters.active_downstream -= 1
        loop.downstream_durations[ERROR_INDEX[cause]].observe(channel.closed_ns - self.opened_ns)
        if channel.options.tls is not None and channel.ready_ns == 0:
            loop.downstream_handshaking -= 1
            loop.downstream_handshakes[tls_error(channel.close_cause)].observe(channel.closed_ns - channel.connected_ns)

    def _count_upstream(self, channel: Channel) -> None:
        cause = self.cause or channel.close_cause or Cause.INTERNAL
        self.route.counters.active_upstream -= 1
        self.route.upstream.counters.used -= 1
        self._owner.loop.upstream_durations[ERROR_INDEX[cause]].observe(channel.closed_ns - channel.connected_ns)

    def _check_gone(self) -> None:
        """Finish when neither channel is left."""
        if self.state is not CLOSING or not self.client.gone or not self.upstream.gone:
            return
        self.state = state.next_state(self.state, PairEvent.GONE)
        self.closed_ns = self._owner.selector.now_ns
        counters = self.route.counters
        counters.lost_downstream += self.lost_bytes(self.client)
        counters.lost_upstream += self.lost_bytes(self.upstream)
        counters.closed[CAUSE_INDEX[self.cause or Cause.INTERNAL]] += 1
        self._count_cut_short(self.client)
        self._count_cut_short(self.upstream)
        if self.pairing is not None:
            self.pairing.release()
        if self._timer is not None:
            self._owner.selector.cancel(self._timer)
            self._timer.release()
        try:
            self._owner.pair_closed(self)
        finally:
            self.client.release()
            self.upstream.release()


def _is_within(leg: Leg) -> bool:
    """Whether a leg is within a frame that is cut through."""
    return leg.channel is not None and leg.channel.read_half.receive.is_within_cut


def _is_untaken(leg: Leg) -> bool:
    """Whether a leg's peer has not taken what it was sent."""
    channel = leg.channel
    return channel is not None and channel.is_open and (channel.pending_send != 0 or channel.wire_waiting != 0)


def _is_left(leg: Leg) -> bool:
    return leg.channel is not None and leg.channel.state is not ChannelState.CLOSED


def tls_error(cause: Cause | None) -> int:
    """The index in ``TLS_ERRORS`` of a handshake that ended for a cause."""
    if cause is Cause.TLS_FAILED:
        return TLS_ERRORS.index("tls_failed")
    if cause is Cause.HANDSHAKE_TIMEOUT or cause is Cause.UPSTREAM_TIMEOUT:
        return TLS_ERRORS.index("handshake_timeout")
    return TLS_ERRORS.index("other")
