"""Pairs and endpoints as rows (``rows``). Times are nanoseconds of the time of day."""

from typing import Final, cast

from mypy_extensions import i64

from proxy.cause import Cause
from proxy.network import mute
from proxy.network.channel import Channel
from proxy.relay.pair import Pair
from proxy.relay.quotas import KeyDemand
from proxy.relay.route import Route
from proxy.relay.state import PairState
from proxy.relay.upstream import Endpoint, Upstream
from proxy.server.limit_rows import DemandRow, RateCounter, RateLevel
from proxy.server.rows import ClosedRow, EndpointDownRow, EndpointUpRow, HolderRow, LostRow, MuteRow, OpenRow, TlsRow, TrafficRow

__all__ = ["closed_row", "demand_row", "endpoint_down_row", "endpoint_up_row", "holder_row", "open_row", "refused_row"]

NS_PER_MS: Final = 1_000_000


def _frames(pair: Pair) -> TrafficRow:
    client, upstream = pair.client.channel, pair.upstream.channel
    requests = 0 if client is None else int(client.frames_received)
    if client is not None and pair.route.upstream is None:
        return TrafficRow(request=requests, response=int(client.write_half.frames_sent))
    return TrafficRow(request=requests, response=0 if upstream is None else int(upstream.frames_received))


def _bytes(pair: Pair) -> TrafficRow:
    client, upstream = pair.client.channel, pair.upstream.channel
    requests = 0 if client is None else int(client.bytes_received)
    if client is not None and pair.route.upstream is None:
        return TrafficRow(request=requests, response=int(client.write_half.bytes_sent))
    return TrafficRow(request=requests, response=0 if upstream is None else int(upstream.bytes_received))


def _upstream_name(route: Route) -> str:
    """Empty where a handler answers."""
    return "" if route.upstream is None else route.upstream.name


def _tls(channel: Channel | None) -> TlsRow | None:
    identity = None if channel is None else channel.identity
    if identity is None or not identity.version:
        return None
    return TlsRow(version=identity.version, cipher=identity.cipher, certificate=identity.shown)


def _state(pair: Pair) -> str:
    if pair.draining and (pair.state is PairState.OPEN or pair.state is PairState.HALF_CLOSED):
        return "draining"
    return pair.state.value


def demand_row(demand: KeyDemand) -> DemandRow:
    """What was asked of one rate."""
    level, counter = cast(RateLevel, demand.level), cast(RateCounter, demand.counter)
    return DemandRow(level=level, name=demand.name, counter=counter, passed=int(demand.passed), users=int(demand.users))


def open_row(pair: Pair, wall_offset_ns: i64) -> OpenRow:
    """A pair that is not CLOSED."""
    client, upstream = pair.client.channel, pair.upstream.channel
    last_active_ns = pair.opened_ns
    pending: i64 = 0
    leased: i64 = pair.client.held_bytes() + pair.upstream.held_bytes()
    for channel in (client, upstream):
        if channel is not None:
            pending += channel.pending_send
            leased += channel.leased
            if channel.last_active_ns > last_active_ns:
                last_active_ns = channel.last_active_ns
    return OpenRow(
        id=int(pair.id),
        listener=pair.route.listener,
        peer="" if client is None else client.peer,
        upstream=_upstream_name(pair.route),
        endpoint=pair.endpoint,
        principal=(None if client is None else client.principal) or None,
        mechanism=_mechanism(client),
        tls=_tls(client),
        frames=_frames(pair),
        bytes=_bytes(pair),
        opened_ns=int(pair.opened_ns + wall_offset_ns),
        state=_state(pair),
        muted=[] if client is None else mute.cause_names(int(client.mute_causes)),
        muted_upstream=[] if upstream is None else mute.cause_names(int(upstream.mute_causes)),
        muting=client is not None and client.mute_causes != 0 and not client.mute_in_force,
        mute_reason=pair.reason if client is not None and client.mute_causes & mute.ADMIN else "",
        in_flight=0 if pair.pairing is None else int(pair.pairing.open),
        pending_send=int(pending),
        leased=int(leased),
        last_active_ns=int(last_active_ns + wall_offset_ns),
    )


def closed_row(pair: Pair, wall_offset_ns: i64) -> ClosedRow:
    """A pair that is CLOSED."""
    client = pair.client.channel
    requests, responses = pair.lost_bytes(pair.client), pair.lost_bytes(pair.upstream)
    return ClosedRow(
        id=int(pair.id),
        listener=pair.route.listener,
        peer="" if client is None else client.peer,
        upstream=_upstream_name(pair.route),
        endpoint=pair.endpoint,
        principal=(None if client is None else client.principal) or None,
        mechanism=_mechanism(client),
        tls=_tls(client),
        frames=_frames(pair),
        bytes=_bytes(pair),
        opened_ns=int(pair.opened_ns + wall_offset_ns),
        cause=str(pair.cause or Cause.INTERNAL),
        detail=pair.detail,
        side=pair.side,
        state=pair.state_at_end.value,
        closed_ns=int(pair.closed_ns + wall_offset_ns),
        lost=LostRow(bytes=int(requests + responses), request=int(requests), response=int(responses)),
        mutes=_mutes(client),
    )


def _mechanism(client: Channel | None) -> str | None:
    return None if client is None or client.identity is None else client.identity.mechanism or None


def _mutes(client: Channel | None) -> dict[str, MuteRow]:
    return {} if client is None else {cause: MuteRow(count=item["count"], ns=item["ns"]) for cause, item in client.mutes.summary().items()}


def refused_row(pair_id: i64, route: Route, peer: str, opened_ns: i64, now_ns: i64, cause: Cause, detail: str) -> ClosedRow:
    """A connection that was handed over and never became a pair. Times are of the time of day."""
    return ClosedRow(
        id=int(pair_id),
        listener=route.listener,
        peer=peer,
        upstream=_upstream_name(route),
        endpoint="",
        principal=None,
        mechanism=None,
        tls=None,
        frames=TrafficRow(request=0, response=0),
        bytes=TrafficRow(request=0, response=0),
        opened_ns=int(opened_ns),
        cause=str(cause),
        detail=detail,
        side="internal",
        state=PairState.HANDSHAKING.value,
        closed_ns=int(now_ns),
        lost=LostRow(bytes=0, request=0, response=0),
        mutes={},
    )


def holder_row(pair: Pair, channel: Channel, kind: str, size: i64, wall_offset_ns: i64) -> HolderRow:
    """What one channel of a pair holds of the memory pool, of one kind."""
    muted_ns = channel.mutes.first_ns
    return HolderRow(
        id=int(pair.id),
        listener=pair.route.listener,
        side=channel.options.side,
        peer=channel.peer if channel is pair.client.channel else pair.endpoint,
        kind=kind,
        bytes=int(size),
        muted=mute.cause_names(int(channel.mute_causes)),
        muted_ns=int(muted_ns + wall_offset_ns) if muted_ns != 0 else 0,
        last_active_ns=int(channel.last_active_ns + wall_offset_ns),
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
    return row


def endpoint_up_row(upstream: Upstream, endpoint: Endpoint) -> EndpointUpRow:
    """An endpoint that is up again."""
    row = EndpointUpRow(
        upstream=upstream.name,
        endpoint=endpoint.text,
        failures=int(endpoint.failures),
        down_ms=int((endpoint.answered_ns - endpoint.down_ns) // NS_PER_MS),
    )
    if endpoint.server_name:
        row["server_name"] = endpoint.server_name
    return row
