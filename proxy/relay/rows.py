"""Pairs and endpoints as rows: the JSON objects of the link, the log and the API. Times are nanoseconds of the time of day."""

from typing import Any, Final

from mypy_extensions import i64

from proxy.network import mute
from proxy.network.cause import Cause
from proxy.network.channel import Channel
from proxy.relay.pair import Pair
from proxy.relay.route import Route
from proxy.relay.state import PairState
from proxy.relay.upstream import Endpoint, Upstream

__all__ = ["closed_row", "endpoint_row", "holder_row", "open_row", "refused_row"]

Row = dict[str, Any]
NS_PER_MS: Final = 1_000_000


def _common(pair: Pair, wall_offset_ns: i64) -> Row:
    client, upstream = pair.client.channel, pair.upstream.channel
    return {
        "id": int(pair.id),
        "listener": pair.route.listener,
        "peer": "" if client is None else client.peer,
        "upstream": pair.route.upstream.name,
        "endpoint": pair.endpoint,
        "principal": (None if client is None else client.principal) or None,
        "tls": _tls(client),
        "frames": {
            "request": 0 if client is None else int(client.frames_received),
            "response": 0 if upstream is None else int(upstream.frames_received),
        },
        "bytes": {
            "request": 0 if client is None else int(client.bytes_received),
            "response": 0 if upstream is None else int(upstream.bytes_received),
        },
        "opened_ns": int(pair.opened_ns + wall_offset_ns),
    }


def _tls(channel: Channel | None) -> dict[str, str] | None:
    identity = None if channel is None else channel.identity
    if identity is None or not identity.version:
        return None
    return {"version": identity.version, "cipher": identity.cipher}


def _state(pair: Pair) -> str:
    if pair.draining and (pair.state is PairState.OPEN or pair.state is PairState.HALF_CLOSED):
        return "draining"
    return pair.state.value


def open_row(pair: Pair, wall_offset_ns: i64) -> Row:
    """A pair that is not CLOSED. ``muted`` is why the client is not read, ``muted_upstream`` why the upstream is not."""
    row = _common(pair, wall_offset_ns)
    client, upstream = pair.client.channel, pair.upstream.channel
    last_active_ns = pair.opened_ns
    pending: i64 = 0
    leased: i64 = 0
    for channel in (client, upstream):
        if channel is not None:
            pending += channel.pending_send
            leased += channel.leased
            if channel.last_active_ns > last_active_ns:
                last_active_ns = channel.last_active_ns
    row["state"] = _state(pair)
    row["muted"] = [] if client is None else mute.cause_names(int(client.mute_causes))
    row["muted_upstream"] = [] if upstream is None else mute.cause_names(int(upstream.mute_causes))
    row["muting"] = client is not None and client.mute_causes != 0 and not client.mute_in_force
    row["mute_reason"] = pair.reason if client is not None and client.mute_causes & mute.ADMIN else ""
    row["in_flight"] = 0 if pair.pairing is None else int(pair.pairing.open)
    row["pending_send"] = int(pending)
    row["leased"] = int(leased)
    row["last_active_ns"] = int(last_active_ns + wall_offset_ns)
    return row


def closed_row(pair: Pair, wall_offset_ns: i64) -> Row:
    """A pair that is CLOSED. ``state`` is the one it was in when the cause came up."""
    row = _common(pair, wall_offset_ns)
    row["cause"] = str(pair.cause or Cause.INTERNAL)
    row["detail"] = pair.detail
    row["side"] = pair.side
    row["state"] = pair.died_in.value
    row["closed_ns"] = int(pair.closed_ns + wall_offset_ns)
    requests, responses = pair.lost_bytes(pair.client), pair.lost_bytes(pair.upstream)
    row["lost"] = {"bytes": int(requests + responses), "request": int(requests), "response": int(responses)}
    row["mutes"] = pair.mutes()
    return row


def refused_row(pair_id: i64, route: Route, peer: str, opened_ns: i64, now_ns: i64, cause: Cause, detail: str) -> Row:
    """A connection that was handed over and never became a pair, in the shape of a closed row. Times are of the time of day."""
    nothing = {"request": 0, "response": 0}
    return {
        "id": int(pair_id),
        "listener": route.listener,
        "peer": peer,
        "upstream": route.upstream.name,
        "endpoint": "",
        "principal": None,
        "tls": None,
        "frames": dict(nothing),
        "bytes": dict(nothing),
        "opened_ns": int(opened_ns),
        "cause": str(cause),
        "detail": detail,
        "side": "internal",
        "state": PairState.HANDSHAKING.value,
        "closed_ns": int(now_ns),
        "lost": {"bytes": 0, **nothing},
        "mutes": {},
    }


def holder_row(pair: Pair, channel: Channel, kind: str, size: i64, wall_offset_ns: i64) -> Row:
    """What one channel of a pair holds of the memory pool, of one kind (``cells.MEMORY_KINDS``). ``muted`` is why it is not read, ``muted_ns`` since
    when, 0 when nothing mutes it; ``last_active_ns`` when a byte last moved.
    """
    is_client = channel is pair.client.channel
    muted_ns = channel.first_muted_ns
    return {
        "id": int(pair.id),
        "listener": pair.route.listener,
        "side": channel.options.side,
        "peer": channel.peer if is_client else pair.endpoint,
        "kind": kind,
        "bytes": int(size),
        "muted": mute.cause_names(int(channel.mute_causes)),
        "muted_ns": int(muted_ns + wall_offset_ns) if muted_ns != 0 else 0,
        "last_active_ns": int(channel.last_active_ns + wall_offset_ns),
    }


def endpoint_row(upstream: Upstream, endpoint: Endpoint) -> Row:
    """What is said of an endpoint that is down, or up again: of the time it was down, and of its last failure."""
    row: Row = {"upstream": upstream.name, "endpoint": endpoint.text}
    if endpoint.server_name:
        row["server_name"] = endpoint.server_name
    row["failures"] = int(endpoint.failures)
    if endpoint.down:
        return {**row, "reason": endpoint.reason, "detail": endpoint.detail, "backoff_ms": int(endpoint.backoff_ns // NS_PER_MS)}
    return {**row, "down_ms": int((endpoint.answered_ns - endpoint.down_ns) // NS_PER_MS)}
