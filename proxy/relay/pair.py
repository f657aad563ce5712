"""The pair: one client's channel joined to one upstream's, or to a handler alone (``handler_leg``). This module says what a pair is, and by which
rules it lives; see ``leg`` for the hot path of a run.

Theory of operation. Each channel has a ``Leg`` as its sink, which passes its runs on. While a pair is OPEN and its frames are
not inspected, ``Leg.forward_to`` writes to the other channel, and a run is one ``send`` (rule 2). Of a leg that is
``only_tapped`` the fast path calls ``tap_whole_frames`` before it sends a run. Everything else is in five
modules of functions over a pair: ``opening`` (rule 1), ``forwarding`` (rules 2 and 3), ``tapping`` (which legs are tapped), ``ending``
(rules 5 and 7), and ``losses``, which counts what is not passed on. ``leg`` calls them. The rules:

1. The upstream is connected when the client is READY; until it is READY the client is muted for ``peer``. ``upstream`` chooses the endpoint; after a
   failure the next one is tried, each once. A client that ends before its first byte ends the pair, unless its listener allows it to wait for what
   the server sends first; the cause is ``no_data`` if neither side has sent a byte.
2. The source is muted for ``peer`` until the other side's pending send has left. ``protocol: kafka`` mutes the client for the same cause while more
   than ``MAX_OPEN`` requests are open, until half of them are answered.
3. The channel decides when a mute is in force.
4. The channel finds the end of a stream, by reading.
5. End of stream from X: a frame that was begun is dropped, counted and tapped as a gap; Y's write side is shut after its pending send; Y→X goes on
   until Y's end, or until no byte passed for ``half_close`` (that clock stands while framegate mutes Y); for kafka until no request is open. An
   upstream that has ended sends no more responses: for kafka that is the end.
6. TLS belongs to the transport.
7. The first cause wins. Then CLOSING: for at most 1 s what was received is written to the channels still open, then their write side is
   shut, and what they still send is dropped and counted until they end, so that no reset overtakes what they have not read yet.
8. Drain: see ``drain``; it ends in CLOSING with the cause ``drained``. Then the client is not read any more, and what it still sends is discarded
   without being counted. Until the drain's deadline, CLOSING lasts while a peer's kernel has not taken what was sent.
"""

import abc
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64, mypyc_attr

from framegate.proxy.cause import Cause
from framegate.proxy.cells import LISTENER_BLOCK
from framegate.proxy.errors import LoginError
from framegate.proxy.network import mute
from framegate.proxy.network.channel import Channel
from framegate.proxy.network.channel_sink import ChannelSink
from framegate.proxy.network.run import Run
from framegate.proxy.network.selector import Selector
from framegate.proxy.network.timer import CallbackTimer
from framegate.proxy.network.translation import Scratch, Translation
from framegate.proxy.network.transport import MAX_READ
from framegate.proxy.network.write_half import WriteHalf
from framegate.proxy.relay.cluster import BOOTSTRAP
from framegate.proxy.relay.counters import LoopCounters
from framegate.proxy.relay.limit_rules import REPORT_NS, LimitRule
from framegate.proxy.relay.login import LoginTry
from framegate.proxy.relay.pairing import Pairing
from framegate.proxy.relay.quotas import Quotas
from framegate.proxy.relay.request_sampler import RequestSpan, Sampler
from framegate.proxy.relay.rewriting import Rewriting
from framegate.proxy.relay.route import Route
from framegate.proxy.relay.standing import Standing
from framegate.proxy.relay.state import PairState
from framegate.proxy.relay.throttle import PairRates, Throttle
from framegate.proxy.relay.upstream import Attempt, Endpoint, Tried, Upstream
from framegate.proxy.tap.frame_tap import FrameTap

if TYPE_CHECKING:
    from framegate.proxy.relay.renewal import Renewal
    from framegate.proxy.relay.retirement import Retirement

EVEN_FROM: Final = 2  # frames each way
OLD: Final = "older than timeouts.max_connection_age"
ADMIN: Final = mute.ADMIN
DRAIN: Final = mute.DRAIN
TAP: Final = mute.TAP
REPORTED: Final = LISTENER_BLOCK.at("framegate.frame.reported")
HANDSHAKING: Final = PairState.HANDSHAKING
DRAINED: Final = Cause.DRAINED  # an attribute of an enumeration costs a Python call
PEER_CLOSED: Final = Cause.PEER_CLOSED


@mypyc_attr(allow_interpreted_subclasses=True)
class PairWatcher(abc.ABC):
    """The interface of observers of pairs, endpoints and drains: the loop of the processor, and tests."""

    @abc.abstractmethod
    def pair_opened(self, pair: "Pair") -> None:
        """The pair is OPEN: from here on what the client sends is read. Called once for each pair, where ``PairOwner.reports_open``."""

    @abc.abstractmethod
    def pair_closed(self, pair: "Pair") -> None:
        """The pair is CLOSED; its row is final. Called once for each pair."""

    @abc.abstractmethod
    def pair_muted(self, pair: "Pair") -> None:
        """A mute of the client's channel that had to wait is in force."""

    def frame_reported(self, pair: "Pair", size: i64, head: bytes) -> None:  # noqa: B027 - optional
        """A frame was passed on though its size is above the limit of the pair's limit rule; ``head``: its first bytes."""

    def request_ended(self, pair: "Pair", span: RequestSpan) -> None:  # noqa: B027 - optional
        """A Kafka request that has a span is over; for a closed pair before ``pair_closed``."""

    @abc.abstractmethod
    def drained(self, cut_off: int) -> None:
        """A drain left no pair. ``cut_off``: how many pairs did not become quiet in time."""

    @abc.abstractmethod
    def endpoint_changed(self, upstream: Upstream, endpoint: Endpoint) -> None:
        """An endpoint is down, its back-off is longer, or it is up again; at most once a second for each that is down."""


class PairOwner(abc.ABC):
    """The owner of pairs: what they need of it."""

    def __init__(self, loop: LoopCounters, watcher: PairWatcher) -> None:
        self.loop: Final = loop  # counters of the processor
        self.watcher: Final = watcher  # observes the pairs
        self.scratch: Final = Scratch()  # what translations write into
        self.wall_offset_ns: i64 = 0  # time of day minus the selector's clock
        self.draining: bool = False  # no new pairs
        self.reports_open: bool = False  # call ``pair_opened`` of the watcher
        self.standing: list[Standing] = []  # what operators do to new connections, in their order
        self.retirement: Retirement | None = None  # drains single pairs; None: their age is not limited
        self.sampler: Final = Sampler()  # chooses the Kafka requests that have a span
        self._selector: Selector | None = None
        self._quotas: Quotas | None = None

    @property
    def selector(self) -> Selector:
        assert self._selector is not None, "attach comes before the first connection"
        return self._selector

    @property
    def quotas(self) -> Quotas:
        """The quotas of the processor; without rates until some are set."""
        assert self._quotas is not None, "attach comes before the first connection"
        return self._quotas

    def attach(self, selector: Selector) -> None:
        self._selector = selector
        self._quotas = Quotas(selector, self.loop)

    @abc.abstractmethod
    def make_leg(self, pair: "Pair", *, is_client: bool) -> "Leg":
        """A leg of a pair that is being made."""

    @abc.abstractmethod
    def match(self, pair: "Pair", direction: int) -> FrameTap | None:
        """The tap of one direction of a pair whose client is READY, or None, by the rules that are in force."""

    @abc.abstractmethod
    def tap_full(self, leg: "Leg") -> None:
        """A leg is muted for ``tap``: unmute it when the log accepts again."""

    @abc.abstractmethod
    def pair_closed(self, pair: "Pair") -> None:
        """The pair is CLOSED; its row is final."""


class Leg(ChannelSink):
    """One side of a pair: the sink of its channel (``leg``), and the state that its runs need."""

    __deletable__ = ("pair",)

    def __init__(self, pair: "Pair", *, is_client: bool) -> None:
        self.pair = pair  # the pair of the leg
        self.is_client: Final[bool] = is_client  # it is the client's
        self.channel: Channel | None = None  # the client's, or the upstream attempt's; None before the first attempt
        self.forward_to: WriteHalf | None = None  # the writer for runs that are not inspected; None: they are inspected, or not forwarded
        self.only_tapped: bool = False  # only its tap inspects its runs, and mutes nothing: lanes pass them on behind ``tap_whole_frames``
        self.tap_fault: Exception | None = None  # of ``tap_whole_frames``
        self.tap: FrameTap | None = None  # of the runs that this channel receives
        self.next_tap: FrameTap | None = None  # while ``changes_tap``, the tap after the frame that is cut through now
        self.changes_tap: bool = False
        # frames, bytes: whole frames received, each passed on or dropped; counted only while they are inspected
        self.frames: i64 = 0
        self.bytes: i64 = 0
        self.gone: bool = True  # its channel is closed and ``closed`` was called; or there is none
        self.ended: bool = False  # the peer has ended its stream
        self.shut: bool = False  # our write side is shut; ``shut_wanted``: it will be after the pending send
        self.shut_wanted: bool = False
        self.dropped_bytes: i64 = 0  # of whole frames that were received and not passed on
        self.retains_frames: bool = False  # frames were received for framegate itself, and not passed on
        self.drops_frame: bool = False  # the frame in pieces that is being received is dropped
        self.translation: Translation | None = None  # to what the other channel speaks, when that is another framing
        self.look: Translation | None = None  # translation to int32, for the inspection of frames in another framing
        self.throttle: Throttle | None = None  # the throttling of its channel; None: never throttled

    @property
    def other(self) -> "Leg":
        return self.pair.upstream if self.is_client else self.pair.client

    def close_lane(self) -> None:
        """Have Python see what its channel receives from now on (``framegate.proxy.network.lanes``)."""
        if self.channel is not None:
            self.channel.close_lane()

    def tap_whole_frames(self, data: bytes, frames: i64) -> bool:
        """Tap frames that the fast path sends next. False: an exception, which is kept for ``was_forwarded``."""
        try:
            tap = self.tap
            assert tap is not None, "a leg that is only tapped has a tap"
            owner = self.pair.owner
            size: i64 = len(data)
            tap.append(Run(None, 0, data, 0, size, frames, 0, 0), self.frames, owner.selector.read_clock() + owner.wall_offset_ns)
            self.frames += frames
            self.bytes += size
        except Exception as error:
            self.tap_fault = error
            return False
        return True

    def gates_reads(self) -> bool:
        """Whether its channel asks before each read."""
        throttle = self.throttle
        limited = throttle is not None and (throttle.meter is not None or throttle.answers is not None)
        return limited or (self.tap is not None and self.tap.mutes)

    def admits_frames(self, channel: Channel) -> bool:
        """Whether the tap's log and the quotas allow a read now; else the channel is muted."""
        if self.tap is not None and not self.tap.may_read():
            channel.mute(TAP)
            self.pair.owner.tap_full(self)
            return False
        throttle = self.throttle
        if throttle is None or (throttle.answers is not None and not throttle.answers.may_read()):
            return throttle is None
        return throttle.meter is None or throttle.meter.may_read()

    def read_limit(self) -> i64:
        throttle = self.throttle
        if throttle is None:
            return MAX_READ
        most = MAX_READ if throttle.meter is None else throttle.meter.read_limit()
        return most if throttle.answers is None else min(most, throttle.answers.read_limit())

    def was_read(self) -> None:
        meter = None if self.throttle is None else self.throttle.meter
        if meter is not None:
            meter.was_read()

    def blocks_peer(self) -> bool:
        other = self.other
        held = self.throttle is not None and self.throttle.was_throttled()
        if other.throttle is None:
            return held
        slow = self.channel is not None and other.channel is not None and other.channel.last_active_ns > self.channel.last_active_ns
        return other.throttle.was_throttled() or slow or held  # slow: what is sent to it is read bit by bit

    def aged(self) -> None:
        retirement = self.pair.owner.retirement
        if retirement is not None:
            retirement.retire(int(self.pair.id), Cause.MAX_CONNECTION_AGE, OLD)

    def match_limits(self) -> None:
        """Have the limits in force apply to both legs of the pair: find the rule that the client matches."""
        pair, channel = self.pair, self.pair.client.channel
        rules = pair.route.limit_rules
        if channel is not None and (rules.rules or pair.limit_rule is not None):
            told = None if pair.pairing is None else pair.pairing.client
            client_id = None if pair.route.kafka and told is None else "" if told is None else told.client_id
            rule = pair.limit_rule = rules.choose(channel.peer, channel.principal, client_id)
            receive = channel.read_half.receive
            receive.max_size = rules.limit if rule is None else rule.limit
            receive.reports_to = pair.client if receive.max_size.passed_to >= 0 else None
        pair.client.join_quotas()
        pair.upstream.join_quotas()

    def frame_reported(self, size: i64, head: bytes) -> None:
        pair = self.pair
        rule, now_ns = pair.limit_rule, pair.owner.selector.now_ns
        pair.route.counters.counts.cells[REPORTED] += 1
        if rule is not None and now_ns >= rule.report_ns:
            rule.report_ns = now_ns + REPORT_NS
            pair.owner.watcher.frame_reported(pair, size, head)

    def join_quotas(self) -> None:
        """Have the quotas in force apply, if its channel is READY."""
        channel, client, pair = self.channel, self.pair.client.channel, self.pair
        quotas = pair.owner.quotas
        rates = pair.rates
        if channel is None or channel.ready_ns == 0 or client is None or (not quotas.active and self.throttle is None and rates is None):
            return
        listener, rule = pair.route.listener, "" if pair.limit_rule is None else pair.limit_rule.key
        self.throttle = quotas.join(self.throttle, channel, listener, client.peer, rule, requests=self.is_client, rates=rates)
        if pair.route.upstream is None:
            self.throttle = quotas.join(self.throttle, channel, listener, client.peer, rule, requests=False, answers=True, rates=rates)
        channel.gate(asks=self.gates_reads())

    def leave_quotas(self) -> None:
        """The pair ends: what was read is charged, and nothing throttles the channel. A second call has no effect."""
        throttle = self.throttle
        if throttle is not None:
            self.pair.owner.quotas.leave(throttle)
            throttle.let_go(throttle.holders)
            throttle.channel.gate(asks=self.gates_reads())
        if self.pair.rates is not None:
            self.pair.rates.cancel()

    def inspects_frames(self) -> bool:
        return self.tap is not None or self.translation is not None or self.pair.pairing is not None

    def counts_frames(self) -> bool:
        """Whether ``frames`` and ``bytes`` are exactly what was received from its channel."""
        return not self.retains_frames and (self.tap is not None or self.pair.pairing is not None)

    def has_held_frames(self) -> bool:
        """Whether it has frames that are not yet passed on or answered."""
        return False

    def held_bytes(self) -> i64:
        """Bytes booked at the memory pool besides those of its channel."""
        return 0

    def let_go(self) -> None:
        """The pair begins to end: drop what was received and not passed on."""

    def release(self) -> None:
        """Release the reference to the CLOSED pair: a cycle would stay until the garbage collector runs."""
        del self.pair


class LegMaker(abc.ABC):
    """Makes legs of another kind."""

    @abc.abstractmethod
    def make_leg(self, pair: "Pair", *, is_client: bool) -> Leg:
        """As ``PairOwner.make_leg``."""


class Passed:
    """What of a connection to an upstream its endpoint's counters have already (``in_flight``)."""

    def __init__(self) -> None:
        self.frames_received: i64 = 0
        self.bytes_received: i64 = 0
        self.frames_sent: i64 = 0
        self.bytes_sent: i64 = 0
        self.answered: bool = False  # they have the time of the first answer
        self.asked: i64 = 0  # frames sent on it until the last byte that came, of a protocol other than Kafka
        self.waits_ns: i64 = 0  # since when it waits for an answer, of a protocol other than Kafka; 0: it does not
        self.goes_on: bool = False  # the client sent more when it had waited for long
        self.held_ns: i64 = 0  # since when the upstream has taken no byte of what waits for it; 0: nothing waits, or it takes some
        self.wire_sent: i64 = 0  # what it had taken then
        self.ended_ns: i64 = 0  # when the client ended its stream, before the upstream did; 0: it has not


class Pair:
    """The state of one client joined to one upstream. ``opening``, ``forwarding``, ``tapping`` and ``ending`` change it."""

    def __init__(self, owner: PairOwner, route: Route, pair_id: i64, opened_ns: i64) -> None:
        self.id: Final[i64] = pair_id  # of the connection; both channels carry it
        self.route: Final = route  # what it shares with the listener's other pairs
        self.state: PairState = HANDSHAKING  # see ``state``; ``state_at_end`` is the one in which the cause came up
        self.state_at_end: PairState = HANDSHAKING
        # client, upstream: the legs
        self.client: Final = owner.make_leg(self, is_client=True)
        self.upstream: Final = owner.make_leg(self, is_client=False)
        self.pairing: Pairing | None = None  # of requests with responses; None for ``framed``
        self.broker: i64 = BOOTSTRAP  # node id of the Kafka broker that the client reached, -1: the bootstrap, or no cluster
        self.spans: list[RequestSpan] | None = None  # of its requests, those that are chosen and not reported yet; None: none
        self.rewriting: Rewriting | None = None  # of addresses in answers; None: the listener has no brokers, or the pair is not OPEN yet
        self.endpoint: str = ""  # the upstream's address tried last, as text
        # cause, detail, side: why it ended; None, "" and "internal" before
        self.cause: Cause | None = None
        self.detail: str = ""
        self.side: str = "internal"
        # opened_ns, closed_ns: on the selector's clock
        self.opened_ns: Final[i64] = opened_ns
        self.closed_ns: i64 = 0
        self.attempts: i64 = 0  # to reach the upstream, so far
        self.connect_began_ns: i64 = 0  # when the first attempt began, on the selector's clock; 0: there was none
        self.connect_ended_ns: i64 = 0  # when an attempt was READY, or the last one failed; 0 before
        # of the last attempt that ended: when it began, was connected, was secured and was READY, likewise; 0: it did not come so far
        self.attempt_ns: tuple[i64, i64, i64, i64] = (0, 0, 0, 0)
        self.reason: str = ""  # of the last administrative mute; ``mute_action``: the number of the operator's action, 0: it had none
        self.mute_action: i64 = 0
        self.rates: PairRates | None = None  # given by an operator; None: none
        self.limit_rule: LimitRule | None = None  # that the client matches; None: none, or it is not known yet
        self.draining: bool = False  # it is to end as soon as nothing is in flight
        self.held_ns: i64 = 0  # since when, on the selector's clock, answers are or were held during a drain; 0: they were not
        self.drain_until_ns: i64 = 0  # and at this time at the latest; 0: there is no drain
        # drain_cause, drain_detail: with which it ends then; the detail only if this pair drains alone
        self.drain_cause: Cause = DRAINED
        self.drain_detail: str = ""
        self.owner: Final = owner  # the owner
        self.attempt: Attempt | None = None  # the present one to the upstream; ``tried`` has the failed ones (``opening``)
        self.tried: Tried | None = None
        self.used: Endpoint | None = None  # the endpoint whose channel was READY; None before, and once that is closed
        self.passed: Final = Passed()  # what its endpoint's counters have
        # reported_frames, reported_bytes: of both directions, what ``ClientUse`` has
        self.reported_frames: i64 = 0
        self.reported_bytes: i64 = 0
        self.login: LoginTry | None = None  # to the upstream, during attempts (``opening``)
        self.refusal: LoginError | None = None  # of a client that waits for the result of its authentication (``opening``)
        self.renewal: Renewal | None = None  # of a login that expires; None: there is none
        self.full: bool = False  # the client is muted for its open requests (``forwarding``)
        # first_end, first_side: cause and side of the half-close (``ending``)
        self.first_end: Cause = PEER_CLOSED
        self.first_side: str = "downstream"
        self.timer: CallbackTimer | None = None  # of the end of a half-closed or closing pair (``ending``)

    def lost_bytes(self, leg: Leg) -> i64:
        channel = leg.channel
        out = self.upstream.channel if leg.is_client else self.client.channel
        lost = leg.dropped_bytes
        if channel is not None:
            lost += channel.lost_bytes
        if out is not None:
            lost += out.unsent_bytes
        return lost

    def wall_ns(self) -> i64:
        """The time of day, as of this poll."""
        return self.owner.selector.now_ns + self.owner.wall_offset_ns

    @property
    def counts_responses(self) -> bool:
        return self.route.upstream is None or (self.pairing is not None and not self.pairing.lost)

    @property
    def holds_answers(self) -> bool:
        """Whether answers are held for the drain."""
        return self.client.channel is not None and self.client.channel.write_half.holding

    def is_even(self) -> bool:
        """Whether the client has received, or will from what is held, as many frames as it sent. Not after the first one, which may have a second
        frame.
        """
        client = self.client.channel
        if client is None or client.frames_received < EVEN_FROM:
            return False
        sent = client.write_half.frames_sent
        if client.write_half.holding:
            sent += client.write_half.pending.frames
        return sent == client.frames_received

    def has_no_open_request(self) -> bool:
        """Whether nothing is in flight, as far as is known: no frame is begun, no request is open, nothing waits to be written or to be read, except
        from a side that an operator muted, and a client that is muted for the drain.
        """
        client, upstream = self.client.channel, self.upstream.channel
        if client is None or (upstream is None and self.route.upstream is not None):
            return True
        for leg in (self.client, self.upstream):
            leg.close_lane()  # a frame may have begun on it
        if self.client.has_held_frames() or self.upstream.has_held_frames() or client.read_half.receive.within:
            return False
        if client.pending_send != 0 and not client.write_half.holding:
            return False
        if upstream is not None and (upstream.pending_send != 0 or upstream.read_half.receive.within):
            return False
        if self.counts_responses and self.pairing is not None and self.pairing.open > 0:
            return False
        if upstream is not None and not self.upstream.ended and upstream.mute_causes & ADMIN == 0 and not upstream.read_half.has_no_input():
            return False
        return self.client.ended or client.mute_causes & (DRAIN | ADMIN) != 0 or client.read_half.has_no_input()
