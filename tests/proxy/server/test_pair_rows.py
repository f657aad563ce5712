"""Rows of pairs and endpoints, as JSON."""

import json
import socket

import pytest

from proxy.cause import Cause
from proxy.network import mute
from proxy.network.connection_id import format_connection_id
from proxy.network.transport import Identity
from proxy.relay import ending
from proxy.relay.counters import UpstreamCounters
from proxy.relay.quotas import KeyDemand
from proxy.relay.upstream import Endpoint, Upstream
from proxy.server.closed import decode_closed, split_closed
from proxy.server.limit_rows import DemandRow
from proxy.server.pair_rows import closed_line, demand_row, endpoint_down_row, endpoint_up_row, holder_row, open_row, refused_line
from proxy.server.rows import ClosedRow, EndpointDownRow, EndpointUpRow, HolderRow, OpenRow
from proxy.server.shape import shape_of
from tests.fakes.rows import decode_line
from tests.fakes.world import World, frame


def test_an_open_row_shows_what_is_true_now():
    world = World()
    client, upstream, pair = world.pair()
    client.sendall(frame(b"abc") + frame(b"")[:2])
    world.read(upstream, 7)
    world.until(lambda: pair.client.channel.staged == 2)
    pair.client.channel.mute(mute.ADMIN)
    pair.reason = "why"
    row = json.loads(json.dumps(open_row(pair, 10**18)))
    assert shape_of(OpenRow).fault(row) == ""
    assert row["id"] == pair.id
    assert (row["listener"], row["upstream"], row["peer"], row["principal"]) == ("l", "u", "192.0.2.1:1", "ANONYMOUS")
    assert row["endpoint"].startswith("127.0.0.1:")
    assert (row["tls"], row["mechanism"], row["state"]) == (None, None, "open")
    assert (row["muted"], row["muting"], row["muted_upstream"], row["mute_reason"]) == (["admin"], True, [], "why")
    assert row["frames"] == {"request": 1, "response": 0}
    assert row["bytes"] == {"request": 9, "response": 0}
    assert (row["in_flight"], row["pending_send"]) == (0, 0)
    assert row["leased"] > 0
    assert row["opened_ns"] == world.clock.ns + 10**18
    assert row["last_active_ns"] == world.clock.ns + 10**18
    ending.abort(pair, Cause.ADMIN, "", "internal")
    world.poll()
    world.close()


def test_a_closed_row_says_why_and_what_was_lost():
    world = World()
    client, upstream, pair = world.pair()
    client.sendall(frame(b"abc"))
    world.read(upstream, 7)
    world.clock.ns += 5
    ending.abort(pair, Cause.ADMIN, "maintenance", "internal")
    world.poll()
    row = decode_line(closed_line(pair, 0))
    assert (row["id"], row["listener"], row["upstream"], row["peer"], row["principal"]) == (pair.id, "l", "u", "192.0.2.1:1", "ANONYMOUS")
    assert row["endpoint"] == pair.endpoint
    assert (row["frames"], row["bytes"], row["tls"]) == ({"request": 1, "response": 0}, {"request": 7, "response": 0}, None)
    assert (row["cause"], row["detail"], row["side"], row["state"]) == ("admin", "maintenance", "internal", "open")
    assert row["closed_ns"] - row["opened_ns"] == 5
    assert row["lost"] == {"bytes": 0, "request": 0, "response": 0}
    assert row["mutes"]["peer"]["count"] == 1
    world.close()


@pytest.mark.parametrize("told", ['said "no"', "a\\b\n\r\t\0\x1f", "naïve €\u2028\U0001f600", "\udc80", "}, {", ""])
def test_what_is_written_of_a_closed_pair_is_what_json_writes(told):
    """Whatever a peer had us say about it: the same bytes, on one line."""
    world = World()
    _, _, pair = world.pair()
    channel = pair.client.channel
    channel.principal = told
    channel.identity = Identity("TLSv1.3", told, shown=told)
    channel.mute(mute.ADMIN)
    world.clock.ns += 5
    world.poll()
    channel.unmute(mute.ADMIN)
    ending.abort(pair, Cause.ADMIN, told, "internal")
    world.poll()
    line = closed_line(pair, 10**18)
    accepted_ns, number, text = split_closed(line)
    row = decode_closed(number, text)
    assert (accepted_ns, number) == (pair.opened_ns, pair.id)
    assert text == json.dumps({**row, "id": format_connection_id(number)}, ensure_ascii=False)
    assert "\n" not in text
    assert (row["detail"], row["principal"]) == (told, told or None)
    assert row["tls"] == {"version": "TLSv1.3", "cipher": told, "certificate": told}
    assert row["mutes"] == channel.mutes.summary()
    assert (list(row["mutes"]), row["mutes"]["admin"]) == (["peer", "admin"], {"count": 1, "ns": 5})
    assert list(row) == list(ClosedRow.__annotations__)
    world.close()


def test_a_holders_row_names_the_side_its_peer_and_since_when_it_is_not_read():
    world = World()
    client, _, pair = world.pair()
    client.sendall(frame(b"abc")[:5])
    world.until(lambda: pair.client.channel.staged == 5)
    row = json.loads(json.dumps(holder_row(pair, pair.client.channel, "begun", 77, 10**18)))
    assert shape_of(HolderRow).fault(row) == ""
    assert row == {
        "id": int(pair.id),
        "listener": "l",
        "side": "downstream",
        "peer": "192.0.2.1:1",
        "kind": "begun",
        "bytes": 77,
        "muted": [],
        "muted_ns": 0,
        "last_active_ns": world.clock.ns + 10**18,
    }
    world.pass_time(1)
    pair.upstream.channel.mute(mute.PEER)
    row = holder_row(pair, pair.upstream.channel, "tls", 5, 10**18)
    assert (row["side"], row["peer"], row["muted"], row["muted_ns"]) == ("upstream", pair.endpoint, ["peer"], world.clock.ns + 10**18)
    ending.abort(pair, Cause.ADMIN, "", "internal")
    world.poll()
    world.close()


def test_an_endpoints_row_says_why_it_is_down_and_then_for_how_long_it_was():
    endpoint = Endpoint(socket.AF_INET6, ("::1", 9), "broker")
    upstream = Upstream("u", UpstreamCounters(), [endpoint])
    upstream.failed(upstream.pick(None, 5), Cause.UPSTREAM_TIMEOUT, "not ready in 5000 ms", 5)
    common = {"upstream": "u", "endpoint": "[::1]:9", "server_name": "broker", "failures": 1}
    assert endpoint_down_row(upstream, endpoint) == {**common, "reason": "timeout", "detail": "not ready in 5000 ms", "backoff_ms": 1000}
    assert shape_of(EndpointDownRow).fault(endpoint_down_row(upstream, endpoint)) == ""
    upstream.answered(upstream.pick(None, 6), 5 + 7_000_000)
    assert endpoint_up_row(upstream, endpoint) == {**common, "down_ms": 7}
    assert shape_of(EndpointUpRow).fault(endpoint_up_row(upstream, endpoint)) == ""


def test_a_connection_that_never_became_a_pair_has_the_row_of_one_from_which_nothing_came():
    world = World()
    line = refused_line(77, world.route, "192.0.2.1:7", 5, 9, 1000, Cause.LIMIT, "no descriptor to be had")
    assert line.startswith("5 77 ")
    row = decode_line(line)
    assert (row["id"], row["peer"], row["listener"], row["upstream"]) == (77, "192.0.2.1:7", "l", "u")
    assert (row["cause"], row["detail"], row["side"], row["state"]) == ("limit", "no descriptor to be had", "internal", "handshaking")
    assert (row["opened_ns"], row["closed_ns"], row["principal"], row["mutes"]) == (1005, 1009, None, {})
    assert {*row["frames"].values(), *row["bytes"].values(), *row["lost"].values()} == {0}
    world.close()


def test_a_demands_row_names_the_rate():
    row = demand_row(KeyDemand("listener", "l", "request_frames", 5, 1500))
    assert row == {"level": "listener", "name": "l", "counter": "request_frames", "passed": 5, "users": 1500}
    assert shape_of(DemandRow).fault(row) == ""
