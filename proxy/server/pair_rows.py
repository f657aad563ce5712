"""Rows of pairs and endpoints (``rows``). The frequent ones are written as JSON text by hand. Times are nanoseconds since 1970."""

from json.encoder import encode_basestring
from typing import Final, Literal, cast

from librt.strings import read_i16_be
from mypy_extensions import i64

from framegate.proxy.cause import Cause
from framegate.proxy.errors import AuthenticationError, FrameTooLargeError, NegativeSizeError, shown
from framegate.proxy.network import mute
from framegate.proxy.network.authenticator import ANONYMOUS
from framegate.proxy.network.channel import Channel
from framegate.proxy.network.connection_id import format_connection_id
from framegate.proxy.network.frame_exchange import is_sasl
from framegate.proxy.network.int32 import HEADER
from framegate.proxy.network.receive import KEY_END
from framegate.proxy.relay import in_flight
from framegate.proxy.relay.client_use import traffic_of
from framegate.proxy.relay.pair import Leg, Pair
from framegate.proxy.relay.quotas import KeyDemand
from framegate.proxy.relay.request_sampler import RequestSpan
from framegate.proxy.relay.route import Route
from framegate.proxy.relay.state import PairState
from framegate.proxy.relay.upstream import Endpoint, Upstream
from framegate.proxy.server.rows import (
    DemandRow,
    EndpointDownRow,
    EndpointRow,
    EndpointState,
    EndpointUpRow,
    HolderRow,
    OpenRow,
    RateCounter,
    RateLevel,
    RefusedFrameRow,
    RequestSpanRow,
    ThrottleRow,
    TlsRow,
    TrafficRow,
)

NS_PER_MS: Final = 1_000_000
_SPREAD: Final = 2_654_435_761  # Knuth's multiplier: the odd number next to 2^32 divided by the golden ratio
_text: Final = encode_basestring  # a string as JSON, as ``json`` writes it with ``ensure_ascii=False``
_PEER: Final[i64] = mute.position(mute.PEER)
_CAUSE_WORDS: Final[dict[Cause, str]] = {cause: str(cause) for cause in Cause}  # an enumeration's attribute costs a Python call
_STATE_WORDS: Final[dict[PairState, str]] = {state: str(state.value) for state in PairState}


def _upstream_name(route: Route) -> str:
    return "" if route.upstream is None else route.upstream.name


def _tls(channel: Channel | None) -> TlsRow | None:
    identity = None if channel is None else channel.identity
    if identity is None or not identity.version:
        return None
    return TlsRow(version=identity.version, cipher=identity.cipher, certificate=identity.shown)


def _mechanism(client: Channel | None) -> str:
    return "" if client is None or client.identity is None else client.identity.mechanism


def _state(pair: Pair) -> str:
    if pair.draining and (pair.state is PairState.OPEN or pair.state is PairState.HALF_CLOSED):
        return "draining"
    return pair.state.value


def demand_row(demand: KeyDemand) -> DemandRow:
    """The demand for one rate."""
    level, counter = cast(RateLevel, demand.level), cast(RateCounter, demand.counter)
    return DemandRow(level=level, name=demand.name, counter=counter, used=int(demand.used), waiting=int(demand.waiting), wanting=int(demand.wanting))


def last_active_ns(pair: Pair) -> i64:
    """When a byte last passed on either side, or when the connection was accepted."""
    last_ns = pair.opened_ns
    for leg in (pair.client, pair.upstream):
        if leg.channel is not None and leg.channel.last_active_ns > last_ns:
            last_ns = leg.channel.last_active_ns
    return last_ns


def _wall(moment_ns: i64, wall_offset_ns: i64) -> int:
    """A time of the selector's clock as one since 1970; 0 stays 0."""
    return 0 if moment_ns == 0 else int(moment_ns + wall_offset_ns)


def _unsent(channel: Channel | None) -> int:
    return 0 if channel is None or not channel.is_open else int(channel.pending_send + channel.wire_waiting)


def open_row(pair: Pair, wall_offset_ns: i64) -> OpenRow:
    """A pair that is not CLOSED."""
    client, upstream, pairing = pair.client.channel, pair.upstream.channel, pair.pairing
    told = None if pairing is None else pairing.client
    traffic = traffic_of(pair)
    pending: i64 = 0
    leased: i64 = pair.client.held_bytes() + pair.upstream.held_bytes()
    for channel in (client, upstream):
        if channel is not None:
            pending += channel.pending_send
            leased += channel.leased
    row = OpenRow(
        id=int(pair.id),
        listener=pair.route.listener,
        peer="" if client is None else client.peer,
        upstream=_upstream_name(pair.route),
        endpoint=pair.endpoint,
        principal=(None if client is None else client.principal) or None,
        mechanism=_mechanism(client) or None,
        tls=_tls(client),
        frames=TrafficRow(request=int(traffic[0]), response=int(traffic[1])),
        bytes=TrafficRow(request=int(traffic[2]), response=int(traffic[3])),
        opened_ns=int(pair.opened_ns + wall_offset_ns),
        state=_state(pair),
        client_id="" if told is None else told.client_id,
        software="" if told is None else told.software,
        software_version="" if told is None else told.version,
        muted=[] if client is None else mute.cause_names(int(client.mute_causes)),
        muted_upstream=[] if upstream is None else mute.cause_names(int(upstream.mute_causes)),
        muted_ns=0 if client is None else _wall(client.mutes.first_ns, wall_offset_ns),
        muted_upstream_ns=0 if upstream is None else _wall(upstream.mutes.first_ns, wall_offset_ns),
        muting=client is not None and client.mute_causes != 0 and not client.mute_in_force,
        mute_reason=pair.reason if client is not None and client.mute_causes & mute.ADMIN else "",
        in_flight=0 if pairing is None else int(pairing.open),
        oldest_ns=_wall(in_flight.oldest_ns(pair), wall_offset_ns),
        pending_send=int(pending),
        leased=int(leased),
        unsent=TrafficRow(request=_unsent(upstream), response=_unsent(client)),
        limit_rule="" if pair.limit_rule is None else pair.limit_rule.name,
        last_active_ns=int(last_active_ns(pair) + wall_offset_ns),
    )
    if pair.route.brokers is not None:
        row["broker"] = int(pair.broker)
    rates = pair.rates
    if rates is not None:
        limits = [0 if bucket is None else int(bucket.rate) for bucket in (rates.requests, rates.responses)]
        row["throttle"] = ThrottleRow(request_rate=limits[0], response_rate=limits[1], reason=rates.reason)
    return row


def opened_line(pair: Pair, wall_offset_ns: i64) -> str:
    """A pair that is OPEN, as a line of the notice ``opened`` (see ``link.split_line``)."""
    return f"{pair.opened_ns} {pair.id} {_pair_head(pair, wall_offset_ns)}}}"


def access_line(pair: Pair, wall_offset_ns: i64) -> str:
    """A pair that is not CLOSED, as a line of the notice ``access``."""
    client, upstream = pair.client.channel, pair.upstream.channel
    muted = "" if client is None else _words_text(mute.cause_names(int(client.mute_causes)))
    muted_upstream = "" if upstream is None else _words_text(mute.cause_names(int(upstream.mute_causes)))
    return (
        f'{pair.opened_ns} {pair.id} {_pair_head(pair, wall_offset_ns)},"state":"{_state(pair)}","muted":[{muted}],'
        f'"muted_upstream":[{muted_upstream}],"in_flight":{0 if pair.pairing is None else pair.pairing.open},'
        f'"last_active_ns":{last_active_ns(pair) + wall_offset_ns}'
        f"{_lost_text(pair.lost_bytes(pair.client), pair.lost_bytes(pair.upstream))}{_mutes_text(pair)}}}"
    )


def closed_line(pair: Pair, wall_offset_ns: i64) -> str:
    """A pair that is CLOSED, as a line of the notice ``closed``."""
    lost = _lost_text(pair.lost_bytes(pair.client), pair.lost_bytes(pair.upstream))
    end = _end_text(pair.cause or Cause.INTERNAL, pair.detail, pair.side, pair.state_at_end, pair.opened_ns, pair.closed_ns)
    head = _pair_head(pair, wall_offset_ns)
    told = None if pair.pairing is None else pair.pairing.client
    names = ""
    if told is not None:
        names = f',"client_id":{_text(told.client_id)},"software":{_text(told.software)},"software_version":{_text(told.version)}'
    error = None if pair.client.channel is None else pair.client.channel.error
    if isinstance(error, AuthenticationError) and error.attempted:
        names += f',"attempted_user":{_text(shown(error.attempted))}'
    return f"{pair.opened_ns} {pair.id} {head}{names},{end}{lost}{_mutes_text(pair)}}}"


def refused_line(
    pair_id: i64, route: Route, peer: str, broker: i64, accepted_ns: i64, now_ns: i64, wall_offset_ns: i64, cause: Cause, detail: str
) -> str:
    """The line ``closed`` of a connection that was handed over and could not become a pair. Times are of the selector's clock."""
    head = _head(
        pair_id,
        route,
        peer,
        broker,
        accepted_ns + wall_offset_ns,
        endpoint="",
        principal="",
        mechanism="",
        tls="",
        traffic=(0, 0, 0, 0),
        opening=_NEVER,
    )
    end = _end_text(cause, detail, "internal", PairState.HANDSHAKING, accepted_ns, now_ns)
    return f"{accepted_ns} {pair_id} {head},{end}}}"


_NO_ATTEMPT: Final = ',"attempt_started_ns":null,"tcp_ns":null,"tls_ns":null,"login_ns":null'
_NEVER: Final = ',"attempts":0'


def _pair_head(pair: Pair, wall_offset_ns: i64) -> str:
    client = pair.client.channel
    return _head(
        pair.id,
        pair.route,
        "" if client is None else client.peer,
        pair.broker,
        pair.opened_ns + wall_offset_ns,
        endpoint=pair.endpoint,
        principal="" if client is None else client.principal,
        mechanism=_mechanism(client),
        tls=_tls_text(client),
        traffic=traffic_of(pair),
        opening=_opening_text(pair, client, wall_offset_ns),
    )


def _head(
    number: i64,
    route: Route,
    peer: str,
    broker: i64,
    opened_ns: i64,
    *,
    endpoint: str,
    principal: str,
    mechanism: str,
    tls: str,
    traffic: tuple[i64, i64, i64, i64],
    opening: str,
) -> str:
    """The text of an ``OpeningRow``, without its end and without what ``link.complete`` adds. Written by hand: an object and ``json``'s encoder would
    cost a tenth of a connection's CPU time.
    """
    client = "" if principal == ANONYMOUS else f'"principal":{_text(principal) if principal else "null"},'
    login = f'"mechanism":{_text(mechanism)},' if mechanism else ""
    reached = "" if route.brokers is None else f'"broker":{broker},'
    return (
        f'{{"id":"{format_connection_id(int(number))}","listener":{_text(route.listener)},"peer":{_text(peer)},'
        f'"upstream":{_text(_upstream_name(route))},"endpoint":{_text(endpoint)},'
        f"{client}{login}{tls}{reached}"
        f'"frames":{{"request":{traffic[0]},"response":{traffic[1]}}},"bytes":{{"request":{traffic[2]},"response":{traffic[3]}}},'
        f'"opened_ns":{opened_ns}{opening}'
    )


def _opening_text(pair: Pair, client: Channel | None, wall_offset_ns: i64) -> str:
    """The keys of how it was opened, without those that ``link.complete`` gives."""
    text = connect = ""
    if client is not None and (client.options.tls is not None or pair.route.authenticates):
        until_ns = client.ready_ns if client.ready_ns != 0 else client.closed_ns
        if until_ns != 0:
            text = f',"handshake_ns":{until_ns - client.connected_ns}'
    if pair.connect_began_ns != 0:
        text += f',"connect_after_ns":{pair.connect_began_ns - pair.opened_ns}'
        if pair.attempt is None and pair.connect_ended_ns != 0:
            connect = str(pair.connect_ended_ns - pair.connect_began_ns)
            text += f',"connect_ns":{connect}'
    if pair.attempts != 1:
        text += f',"attempts":{pair.attempts}'
    return text + _attempt_text(pair, connect, wall_offset_ns)


def _attempt_text(pair: Pair, connect: str, wall_offset_ns: i64) -> str:
    """The parts of the last attempt that ended; empty if ``link.complete`` gives them: the only one, without TLS and login, or none."""
    began_ns, connected_ns, secured_ns, ready_ns = pair.attempt_ns
    if began_ns == 0:
        return _NO_ATTEMPT if pair.attempts == 1 and connect else ""
    whole = began_ns == pair.connect_began_ns and ready_ns - began_ns == pair.connect_ended_ns - pair.connect_began_ns
    if whole and pair.attempts == 1 and connect and connected_ns == secured_ns and secured_ns == ready_ns and ready_ns != 0:
        return ""
    tcp = "null" if connected_ns == 0 else str(connected_ns - began_ns)
    tls = "null" if secured_ns == 0 else str(secured_ns - connected_ns)
    login = "null" if ready_ns == 0 else str(ready_ns - secured_ns)
    return f',"attempt_started_ns":{began_ns + wall_offset_ns},"tcp_ns":{tcp},"tls_ns":{tls},"login_ns":{login}'


def _end_text(cause: Cause, detail: str, side: str, state: PairState, opened_ns: i64, closed_ns: i64) -> str:
    words = f',"detail":{_text(detail)}' if detail else ""
    if state is not PairState.HALF_CLOSED:
        words += f',"state":"{_STATE_WORDS[state]}"'
    lasted_ns = closed_ns - opened_ns
    fraction = str(NS_PER_MS + lasted_ns % NS_PER_MS)[1:]  # six digits; a format costs more than the rest of this text
    return f'"cause":"{_CAUSE_WORDS[cause]}"{words},"side":"{side}","duration_ms":{lasted_ns // NS_PER_MS}.{fraction}'


def _lost_text(requests: i64, responses: i64) -> str:
    if requests == 0 and responses == 0:
        return ""
    return f',"lost":{{"bytes":{requests + responses},"request":{requests},"response":{responses}}}'


def _words_text(words: list[str]) -> str:
    return ",".join([f'"{word}"' for word in words])


def _tls_text(channel: Channel | None) -> str:
    identity = None if channel is None else channel.identity
    if identity is None or not identity.version:
        return ""
    return f'"tls":{{"version":{_text(identity.version)},"cipher":{_text(identity.cipher)},"certificate":{_text(identity.shown)}}},'


def _mutes_text(pair: Pair) -> str:
    """Without those that held nobody back, as that of the client's end, and without the wait for the upstream, which ``connect_ns`` tells."""
    client, text = pair.client.channel, ""
    if client is None or client.mutes.count == 0:
        return text
    connect_ns = pair.connect_ended_ns - pair.connect_began_ns
    if client.mutes.count == 1:
        count, lasted_ns = client.mutes.of(_PEER)
        if count == 1 and lasted_ns == connect_ns:
            return text
    index: i64 = 0
    while index < mute.CAUSE_COUNT:
        count, lasted_ns = client.mutes.of(index)
        name, cause = mute.CAUSES[index]
        if lasted_ns != 0 and (cause != mute.PEER or count != 1 or lasted_ns != connect_ns):
            piece = f'"{name}":{{"count":{count},"ns":{lasted_ns}}}'
            text = f"{text},{piece}" if text else piece
        index += 1
    return f',"mutes":{{{text}}}' if text else ""


def holder_row(pair: Pair, channel: Channel, kind: str, size: i64, wall_offset_ns: i64) -> HolderRow:
    """The memory that one channel of a pair holds, of one kind."""
    return HolderRow(
        id=int(pair.id),
        listener=pair.route.listener,
        side=channel.options.side,
        peer=channel.peer if channel is pair.client.channel else pair.endpoint,
        kind=kind,
        bytes=int(size),
        muted=mute.cause_names(int(channel.mute_causes)),
        muted_ns=_wall(channel.mutes.first_ns, wall_offset_ns),
        last_active_ns=int(channel.last_active_ns + wall_offset_ns),
    )


def head_text(head: bytes, *, authenticates: bool) -> str:
    """The beginning of a refused frame, in hexadecimal; empty if clients authenticate by SASL, and it is a request of an authentication."""
    return "" if authenticates and len(head) >= KEY_END and is_sasl(i64(read_i16_be(head, HEADER))) else head.hex()


def refused_frame_row(pair: Pair, leg: Leg, wall_offset_ns: i64) -> RefusedFrameRow | None:
    """The frame for whose size the channel of a leg of a CLOSED pair was closed; None: it was closed for something else."""
    channel, client = leg.channel, pair.client.channel
    if channel is None or client is None:
        return None
    error, receive = channel.error, channel.read_half.receive
    time_ns = channel.closed_ns + wall_offset_ns
    if isinstance(error, FrameTooLargeError):
        return _refused_row(pair, leg, receive.faulty_size, error.limit, error.rule, receive.refused_head, time_ns)
    if not isinstance(error, NegativeSizeError):
        return None
    return _refused_row(pair, leg, receive.faulty_size, receive.most, receive.max_size.rule, receive.refused_head, time_ns, cause="negative_size")


def reported_frame_row(pair: Pair, size: i64, head: bytes, wall_offset_ns: i64) -> RefusedFrameRow:
    """A frame of a client that is passed on, above the size of a limit rule with ``report_only``."""
    channel = pair.client.channel
    assert channel is not None, "it was received"
    limit = channel.read_half.receive.max_size
    return _refused_row(pair, pair.client, size, limit.value, limit.rule, head, pair.owner.selector.now_ns + wall_offset_ns, report_only=True)


def _refused_row(
    pair: Pair,
    leg: Leg,
    size: i64,
    limit: i64,
    rule: str,
    head: bytes,
    time_ns: i64,
    *,
    cause: Literal["frame_too_large", "negative_size"] = "frame_too_large",
    report_only: bool = False,
) -> RefusedFrameRow:
    channel, client = leg.channel, pair.client.channel
    assert channel is not None, "a frame came through it"
    assert client is not None, "the client came first"
    told = None if pair.pairing is None else pair.pairing.client
    return RefusedFrameRow(
        id=int(pair.id),
        listener=pair.route.listener,
        side="downstream" if leg.is_client else "upstream",
        peer=channel.peer if leg.is_client else pair.endpoint,
        principal=client.principal,
        client_id="" if told is None else told.client_id,
        cause=cause,
        size=int(size),
        limit=int(limit),
        rule=rule,
        report_only=report_only,
        head=head_text(head, authenticates=leg.is_client and pair.route.authenticates),
        time_ns=int(time_ns),
    )


def request_span_row(pair: Pair, span: RequestSpan, wall_offset_ns: i64) -> RequestSpanRow:
    """A request that has a span and is over."""
    client, told, carried = pair.client.channel, None if pair.pairing is None else pair.pairing.client, span.produced
    return RequestSpanRow(
        id=int(pair.id),
        listener=pair.route.listener,
        upstream=_upstream_name(pair.route),
        endpoint=pair.endpoint,
        peer="" if client is None else client.peer,
        principal="" if client is None else client.principal,
        client_id="" if told is None else told.client_id,
        key=int(span.api >> 16),
        version=int(span.api & 0xFFFF),
        correlation_id=int(span.correlation),
        size=int(span.size),
        answer_size=int(span.answer_size),
        began_ns=int(span.began_ns + wall_offset_ns),
        ended_ns=int(span.ended_ns + wall_offset_ns),
        code=int(span.code),
        failure=span.failure,
        topic="" if carried is None else carried.topic,
        partition=-1 if carried is None else int(carried.partition),
        records=-1 if carried is None else int(carried.records),
        parents=[] if carried is None else carried.parents,
    )


def endpoint_down_row(upstream: Upstream, endpoint: Endpoint) -> EndpointDownRow:
    """An endpoint that is down."""
    row = EndpointDownRow(
        upstream=upstream.name,
        endpoint=endpoint.text,
        failures=int(endpoint.failures),
        reason=endpoint.reason,
        detail=endpoint.detail,
        backoff_ms=int(endpoint.backoff_ns // NS_PER_MS),
    )
    if endpoint.server_name:
        row["server_name"] = endpoint.server_name
    if endpoint.broker >= 0:
        row["broker"] = int(endpoint.broker)
    return row


def endpoint_up_row(upstream: Upstream, endpoint: Endpoint) -> EndpointUpRow:
    """An endpoint that is up again."""
    row = EndpointUpRow(
        upstream=upstream.name,
        endpoint=endpoint.text,
        failures=int(endpoint.failures),
        reason=endpoint.reason,
        down_ms=int((endpoint.returned_ns - endpoint.down_ns) // NS_PER_MS),
    )
    if endpoint.server_name:
        row["server_name"] = endpoint.server_name
    if endpoint.broker >= 0:
        row["broker"] = int(endpoint.broker)
    return row


def endpoint_row(upstream: Upstream, endpoint: Endpoint, now_ns: i64, wall_offset_ns: i64) -> EndpointRow:
    """The state of an endpoint; ``now_ns``: of the selector's clock."""
    state: EndpointState = "full" if upstream.is_full(endpoint) else "up"
    reason = detail = ""
    if endpoint.down:
        state, reason, detail = "ejected" if endpoint.ejected else "down", endpoint.reason, endpoint.detail
        if endpoint.is_due(now_ns) and not endpoint.failing:
            detail = f"{detail}{'; ' if detail else ''}its back-off has passed, and a new connection may try it"
    elif endpoint.failing:
        state, reason, detail = "failing", "check", endpoint.failing
    row = EndpointRow(
        upstream=upstream.name,
        endpoint=endpoint.text,
        state=state,
        reason=reason,
        detail=detail,
        since_ns=int(endpoint.down_ns + wall_offset_ns) if endpoint.down else 0,
        out=int(endpoint.is_out),
        connections=int(endpoint.connections),
        weight=int(endpoint.weight),
        zone=endpoint.zone,
        latency_ns=int(endpoint.latency_ns),
    )
    if endpoint.broker >= 0:
        row["broker"] = int(endpoint.broker)
    return row


def is_due(opened_ns: int, number: int, every_ns: int, since_ns: int, until_ns: int) -> bool:
    """Whether a row ``access`` of a connection is due after ``since_ns`` and not after ``until_ns``. The first is due between ``every_ns`` and a
    quarter more after the opening, given by a hash of the id ``number``, so that connections that were opened together have their rows at different
    times. The next ones follow each ``every_ns``.
    """
    first_ns = opened_ns + ((number * _SPREAD & 0xFFFF_FFFF) * (every_ns // 4) >> 32)
    turns = (until_ns - first_ns) // every_ns
    return turns >= 1 and turns > (since_ns - first_ns) // every_ns
