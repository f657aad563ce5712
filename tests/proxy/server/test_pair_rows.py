"""Rows of pairs and endpoints, as JSON."""

import json
import socket
import struct
import threading

import pytest

from framegate.proxy.cause import Cause
from framegate.proxy.config.model import EjectionConfig, UpstreamConfig
from framegate.proxy.errors import AuthenticationError
from framegate.proxy.kafka import trace_parents
from framegate.proxy.network import mute
from framegate.proxy.network.transport import Identity
from framegate.proxy.relay import ending
from framegate.proxy.relay.in_flight import InFlight
from framegate.proxy.relay.quotas import KeyDemand
from framegate.proxy.relay.request_sampler import RequestSpan
from framegate.proxy.relay.upstream import Endpoint, Upstream
from framegate.proxy.server.link import decode_row, split_line
from framegate.proxy.server.pair_rows import (
    access_line,
    closed_line,
    demand_row,
    endpoint_down_row,
    endpoint_row,
    endpoint_up_row,
    head_text,
    holder_row,
    is_due,
    open_row,
    opened_line,
    refused_frame_row,
    refused_line,
    request_span_row,
)
from framegate.proxy.server.rows import (
    LEFT_OUT,
    AccessRow,
    ClosedRow,
    DemandRow,
    EndpointDownRow,
    EndpointRow,
    EndpointUpRow,
    HolderRow,
    OpenedRow,
    OpenRow,
    RefusedFrameRow,
    RequestSpanRow,
)
from framegate.proxy.server.schema import check, schema_of
from tests.fakes import kafka_frames
from tests.fakes.cases import each_of
from tests.fakes.record_batches import batch, context, produce, record
from tests.fakes.rows import decode_line
from tests.fakes.upstream import refusing_port
from tests.fakes.world import frame
from tests.proxy.relay.test_upstream import tried


def test_an_open_row_shows_what_is_true_now(world):
    client, upstream, pair = world.pair()
    client.sendall(frame(b"abc") + frame(b"")[:2])
    world.read(upstream, 7)
    world.until(lambda: pair.client.channel.staged == 2)
    pair.client.channel.mute(mute.ADMIN)
    pair.reason = "why"
    row = json.loads(json.dumps(open_row(pair, 10**18)))
    assert schema_of(OpenRow).fault(row) == ""
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


def test_an_open_row_of_kafka_names_the_client_and_what_is_waited_for(make):
    world = make(protocol="kafka")
    client, _, pair = world.pair()
    assert {open_row(pair, 10**18)[key] for key in ("client_id", "software", "software_version")} == {""}
    client.sendall(kafka_frames.request(18, 3, 1, b"\0\x04lib\x042.3\0", b"\0\2id"))
    world.until(lambda: pair.pairing.open == 1)
    asked_ns = world.clock.ns
    world.pass_time(1)
    pair.client.channel.mute(mute.ADMIN)
    world.pass_time(1)
    pair.client.channel.mute(mute.TAP)
    pair.upstream.channel.mute(mute.TAP)
    row = open_row(pair, 10**18)
    assert (row["client_id"], row["software"], row["software_version"]) == ("id", "lib", "2.3")
    assert (row["in_flight"], row["oldest_ns"] - 10**18) == (1, asked_ns)
    assert row["muted_ns"] - 10**18 == asked_ns + 10**9, "the oldest cause"
    assert row["muted_upstream_ns"] - 10**18 == asked_ns + 2 * 10**9


def test_an_open_row_without_pairing_says_since_when_an_answer_is_waited_for(world):
    client, upstream, pair = world.pair()
    asked_ns = world.clock.ns
    client.sendall(frame(b"abc"))
    world.read(upstream, 7)
    world.pass_time(1)
    assert open_row(pair, 10**18)["oldest_ns"] == 0, "nothing has looked yet"
    InFlight(world.relay.pairs.open, world.counters, world.selector).look(world.clock.ns)
    world.pass_time(64)
    row = open_row(pair, 10**18)
    assert (row["in_flight"], row["oldest_ns"]) == (0, asked_ns + 10**18)


def test_unsent_bytes_are_those_of_framegate_and_of_the_kernel(world):
    client, _, pair = world.pair()
    frames = world.fill(client)
    row = open_row(pair, 0)
    assert row["unsent"]["response"] == 0
    assert pair.upstream.channel.pending_send < row["unsent"]["request"] <= frames * 60_004


def test_a_closed_row_has_the_cause_and_the_loss_also_without_a_pair(world):
    client, upstream, pair = world.pair()
    client.sendall(frame(b"abc"))
    world.read(upstream, 7)
    world.clock.ns += 5_000_000
    ending.abort(pair, Cause.ADMIN, "maintenance", "internal")
    world.poll()
    row = decode_line(closed_line(pair, 0))
    assert (row["id"], row["listener"], row["upstream"], row["peer"], row["principal"]) == (pair.id, "l", "u", "192.0.2.1:1", "ANONYMOUS")
    assert row["endpoint"] == pair.endpoint
    assert (row["frames"], row["bytes"], row["tls"]) == ({"request": 1, "response": 0}, {"request": 7, "response": 0}, None)
    assert (row["cause"], row["detail"], row["side"], row["state"]) == ("admin", "maintenance", "internal", "open")
    assert (row["closed_ns"] - row["opened_ns"], row["duration_ms"]) == (5_000_000, 5)
    assert row["lost"] == {"bytes": 0, "request": 0, "response": 0}
    assert row["mutes"] == {}, "the wait for the upstream is connect_ns"
    line = refused_line(77, world.route, "192.0.2.1:7", -1, 5, 9, 1000, Cause.LIMIT, "no descriptor to be had")
    assert line.startswith("5 77 ")
    row = decode_line(line)
    assert (row["id"], row["peer"], row["listener"], row["upstream"]) == (77, "192.0.2.1:7", "l", "u")
    assert (row["cause"], row["detail"], row["side"], row["state"]) == ("limit", "no descriptor to be had", "internal", "handshaking")
    assert (row["opened_ns"], row["closed_ns"], row["principal"], row["mutes"]) == (1005, 1009, None, {})
    assert {*row["frames"].values(), *row["bytes"].values(), *row["lost"].values()} == {0}


def test_a_refused_frame_is_shown_with_its_sender_and_its_first_bytes(make):
    for size, cause, limit in ((1001, "frame_too_large", 1000), (-5, "negative_size", 1000)):
        world = make(protocol="kafka", limit=limit)
        client, _, pair = world.pair()
        client.sendall(kafka_frames.request(3, 0, 1, b"", b"\0\4ada1"))
        world.until(lambda pair=pair: pair.pairing.open == 1)
        data = struct.pack(">ihhih", size, 3, 0, 7, 4) + b"ada1 and more"
        client.sendall(data)
        world.until(lambda pair=pair: pair.cause is not None)
        row = refused_frame_row(pair, pair.client, 10**18)
        assert refused_frame_row(pair, pair.upstream, 0) is None
        check("frame_refused", RefusedFrameRow, row)
        assert (row["id"], row["listener"], row["side"], row["peer"], row["client_id"]) == (pair.id, "l", "downstream", "192.0.2.1:1", "ada1")
        assert (row["cause"], row["size"], row["limit"], row["head"]) == (cause, size, limit, data[:16].hex())
        assert row["time_ns"] == world.clock.ns + 10**18


def test_the_beginning_of_a_request_of_an_authentication_is_not_shown():
    for key, of_sasl in ((0, False), (16, False), (17, True), (18, False), (35, False), (36, True), (37, False)):
        for there in (5, 6, 16):
            head = struct.pack(">ih", 1001, key)[:there].ljust(there, b"x")
            assert head_text(head, authenticates=False) == head.hex()
            assert head_text(head, authenticates=True) == ("" if of_sasl and there >= 6 else head.hex())


def test_a_connection_that_ends_for_something_else_has_no_refused_frame(world):
    _, _, pair = world.pair()
    ending.abort(pair, Cause.ADMIN, "", "internal")
    world.poll()
    assert (refused_frame_row(pair, pair.client, 0), refused_frame_row(pair, pair.upstream, 0)) == (None, None)


@pytest.mark.parametrize("told", ['said "no"', "a\\b\n\r\t\0\x1f", "naïve €\u2028\U0001f600", "\udc80", "}, {", ""])
def test_what_is_written_of_a_closed_pair_is_what_json_writes(world, told):
    """Whatever a peer had us say about it: the same bytes, on one line."""
    _, _, pair = world.pair()
    channel = pair.client.channel
    channel.principal = told
    channel.identity = Identity("TLSv1.3", told, shown=told)
    channel.mute(mute.ADMIN)
    world.clock.ns += 1_234_567
    world.poll()
    channel.unmute(mute.ADMIN)
    ending.abort(pair, Cause.ADMIN, told, "internal")
    world.poll()
    line = closed_line(pair, 10**18)
    accepted_ns, number, text = split_line("closed", line)
    row = decode_row("closed", number, text)
    assert (accepted_ns, number) == (pair.opened_ns, pair.id)
    written = json.loads(text)
    assert text == json.dumps(written, ensure_ascii=False, separators=(",", ":"))
    assert "\n" not in text
    assert (row["detail"], row["principal"]) == (told, told or None)
    assert row["tls"] == {"version": "TLSv1.3", "cipher": told, "certificate": told}
    counted = {name: channel.mutes.of(mute.position(bit)) for name, bit in mute.CAUSES}
    assert (
        row["mutes"]
        == {name: {"count": int(count), "ns": int(ns)} for name, (count, ns) in counted.items() if ns}
        == {"admin": {"count": 1, "ns": 1_234_567}}
    )
    absent = ("broker", "client_id", "software", "software_version", "attempted_user")
    left_out = {*LEFT_OUT, "connect_started_ns", "closed_ns"} - {"principal", "tls", "connect_ns", "state", "mutes", *(["detail"] if told else [])}
    assert {*written} - {"connect_after_ns"} == {*ClosedRow.__annotations__} - {*absent, *left_out}
    assert {**row, "connect_after_ns": 0} == {**{name: row[name] for name in left_out}, **written, "id": number}


def test_the_row_of_a_pair_that_is_still_open_says_what_it_has_come_to(world):
    client, upstream, pair = world.pair()
    client.sendall(frame(b"abc"))
    world.read(upstream, 7)
    channel = pair.client.channel
    channel.mute(mute.ADMIN)
    world.clock.ns += 5
    world.poll()
    channel.unmute(mute.ADMIN)
    channel.mute(mute.THROTTLE)
    line = access_line(pair, 10**18)
    row = decode_line(line, "access")
    text = line.split(" ", 2)[2]
    assert text == json.dumps(json.loads(text), ensure_ascii=False, separators=(",", ":"))
    left_out = {"broker", "connect_started_ns", *LEFT_OUT} - {"connect_ns", "state", "mutes"}
    assert {*json.loads(text)} - {"connect_after_ns"} == {*AccessRow.__annotations__} - left_out
    assert (row["state"], row["muted"], row["muted_upstream"], row["in_flight"]) == ("open", ["throttle"], [], 0)
    assert (row["frames"], row["bytes"]["request"], row["lost"]["bytes"]) == ({"request": 1, "response": 0}, 7, 0)
    assert row["mutes"]["admin"] == {"count": 1, "ns": 5}
    assert row["last_active_ns"] == row["opened_ns"] == pair.opened_ns + 10**18, "the frame came before the clock moved"
    channel.mute(mute.ADMIN)
    assert decode_line(access_line(pair, 0), "access")["muted"] == ["throttle", "admin"]


OPENING = ("handshake_ns", "connect_ns", "connect_started_ns", "attempts")
PARTS = ("attempt_started_ns", "tcp_ns", "tls_ns", "login_ns")


def opening_of(line: str, event: str) -> tuple[int | None, ...]:
    row = decode_line(line, event)
    return tuple(row[name] for name in OPENING)


def test_in_plaintext_there_is_no_handshake_and_a_connect_has_its_time(world):
    world.relay.pairs.reports_open = True
    _, pair = world.client()
    assert opening_of(access_line(pair, 0), "access") == (None, None, None, 0), "nothing was tried yet"
    world.clock.ns += 3
    world.until(lambda: pair.state.value == "open")
    began_ns = world.clock.ns
    assert opening_of(opened_line(pair, 100), "opened") == (None, 0, began_ns + 100, 1)
    (opened,) = world.told.opened
    assert set(opened) == {name for name in OpenedRow.__annotations__ if name != "broker"}
    ending.abort(pair, Cause.ADMIN, "", "internal")
    world.poll()
    assert tuple(world.row[name] for name in OPENING) == (None, 0, began_ns, 1)


def test_an_attempt_that_goes_on_has_no_time_yet_and_one_that_is_given_up_has_it(make, tls_world):
    world = make(upstream_tls=tls_world.client_settings())
    client, pair = world.client()
    world.until(lambda: pair.upstream.channel is not None and pair.upstream.channel.connected_ns)
    began_ns = world.clock.ns
    world.clock.ns += 7
    world.poll()
    assert opening_of(access_line(pair, 100), "access") == (None, None, began_ns + 100, 1)
    client.close()
    ending.abort(pair, Cause.ADMIN, "", "internal")
    world.until(lambda: world.rows)
    assert tuple(world.row[name] for name in OPENING) == (None, 7, began_ns, 1)
    assert [world.row[name] for name in PARTS] == [began_ns, 0, None, None], "its handshake was not finished"


def test_each_endpoint_that_is_tried_is_an_attempt_and_the_time_is_that_of_all(make):
    with refusing_port() as port, socket.create_server(("127.0.0.1", 0)) as good:
        world = make(endpoints=[("127.0.0.1", port), good.getsockname()])
        _, pair = world.client()
        began_ns = world.clock.ns
        world.until(lambda: pair.attempts == 2)
        world.clock.ns += 9
        world.until(lambda: pair.state.value == "open")
        assert opening_of(opened_line(pair, 0), "opened") == (None, 9, began_ns, 2)
        row = decode_line(opened_line(pair, 0), "opened")
        assert row["attempt_started_ns"] + row["tcp_ns"] == began_ns + 9, "of the last attempt"
        assert (row["tls_ns"], row["login_ns"]) == (0, 0)


def test_a_connect_that_came_to_nothing_has_its_time_too(make):
    with refusing_port() as port:
        world = make(endpoints=[("127.0.0.1", port)])
        world.relay.pairs.reports_open = True
        client, pair = world.client()
        began_ns = world.clock.ns
        world.until(lambda: pair.state.value == "closing")
        client.close()
        world.until(lambda: world.rows)
        assert tuple(world.row[name] for name in OPENING) == (None, 0, began_ns, 1)
        assert world.told.opened == [], "it never was open"


@pytest.mark.parametrize("good", [True, False])
def test_a_handshake_has_its_time_whether_it_came_to_something_or_not(make, tls_world, good):
    world = make(client_tls=tls_world.server_settings())
    client, pair = world.client()
    world.poll()
    assert opening_of(access_line(pair, 0), "access") == (None, None, None, 0), "it goes on"
    world.clock.ns += 11
    if good:
        context = tls_world.client_settings().context
        shaking = threading.Thread(target=lambda: context.wrap_socket(client, server_hostname="localhost").detach())
        shaking.start()
        world.until(lambda: pair.state.value == "open")
        shaking.join()
        assert opening_of(opened_line(pair, 0), "opened")[0] == 11
        ending.abort(pair, Cause.ADMIN, "", "internal")
    else:
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
    world.until(lambda: world.rows)
    assert tuple(world.row[name] for name in OPENING)[:2] == (11, 0 if good else None)


def test_a_handler_that_answers_is_reached_without_a_connect(make):
    world = make(serves=True)
    world.relay.pairs.reports_open = True
    world.client()
    world.until(lambda: world.told.opened)
    assert tuple(world.told.opened[0][name] for name in OPENING) == (None, None, None, 0)


def test_the_row_of_a_request_with_a_span_is_as_it_is_declared(world):
    carried = trace_parents.produced(produce(("orders", [batch(record([(b"traceparent", context(7))]))]))[4:])
    _, _, pair = world.pair()
    for produced in (None, carried):
        span = RequestSpan(3 << 16 | 9, -7, 300, 5, 0, produced)
        span.ended_ns = 9
        row = json.loads(json.dumps(request_span_row(pair, span, 10**18)))
        assert schema_of(RequestSpanRow).fault(row) == ""
        assert [row[name] for name in ("id", "key", "version", "correlation_id", "began_ns", "ended_ns")] == [
            pair.id,
            3,
            9,
            -7,
            10**18 + 5,
            10**18 + 9,
        ]
    assert (row["topic"], row["partition"], row["records"], row["parents"]) == ("orders", 2, 1, [context(7).decode()])


def test_a_holders_row_names_the_side_its_peer_and_since_when_it_is_not_read(world):
    client, _, pair = world.pair()
    client.sendall(frame(b"abc")[:5])
    world.until(lambda: pair.client.channel.staged == 5)
    row = json.loads(json.dumps(holder_row(pair, pair.client.channel, "begun", 77, 10**18)))
    assert schema_of(HolderRow).fault(row) == ""
    assert (row["id"], row["listener"], row["side"], row["peer"]) == (pair.id, "l", "downstream", "192.0.2.1:1")
    assert (row["kind"], row["bytes"], row["muted"], row["muted_ns"]) == ("begun", 77, [], 0)
    assert row["last_active_ns"] == world.clock.ns + 10**18
    world.pass_time(1)
    pair.upstream.channel.mute(mute.PEER)
    row = holder_row(pair, pair.upstream.channel, "tls", 5, 10**18)
    assert (row["side"], row["peer"], row["muted"], row["muted_ns"]) == ("upstream", pair.endpoint, ["peer"], world.clock.ns + 10**18)


def test_rows_of_endpoints_and_demands_are_as_declared():
    endpoint = Endpoint(socket.AF_INET6, ("::1", 9), "broker")
    upstream = Upstream("u", [endpoint])
    upstream.failed(upstream.pick(None, 5), Cause.UPSTREAM_TIMEOUT, "not ready in 5000 ms", 5)
    common = {"upstream": "u", "endpoint": "[::1]:9", "server_name": "broker", "failures": 1}
    assert endpoint_down_row(upstream, endpoint) == {**common, "reason": "timeout", "detail": "not ready in 5000 ms", "backoff_ms": 1000}
    assert schema_of(EndpointDownRow).fault(endpoint_down_row(upstream, endpoint)) == ""
    upstream.answered(upstream.pick(None, 6), 5 + 7_000_000)
    assert endpoint_up_row(upstream, endpoint) == {**common, "reason": "timeout", "down_ms": 7}
    assert schema_of(EndpointUpRow).fault(endpoint_up_row(upstream, endpoint)) == ""
    found = []
    brokers = [Endpoint(socket.AF_INET, ("10.0.0.1", port), broker=5, weight=2, zone="a") for port in range(5)]
    upstream = Upstream("u", brokers, UpstreamConfig(name="u", max_connections=1, ejection=EjectionConfig(failures=1)))
    upstream.set_failing({"10.0.0.1:1": "no answer"})
    upstream.failed(upstream.pick(tried(brokers[3], brokers[4]), 5, 5), Cause.UPSTREAM_REFUSED, "no", 5)
    upstream.judge(upstream.pick(tried(brokers[2], brokers[4]), 5, 5).endpoint, 9, 5, 5)
    for endpoint in brokers:
        row = endpoint_row(upstream, endpoint, 6, 100)
        assert schema_of(EndpointRow).fault(row) == ""
        assert (row["broker"], row["weight"], row["zone"]) == (5, 2, "a")
        found.append((row["state"], row["reason"], row["detail"], row["since_ns"], row["connections"], row["latency_ns"]))
    assert sorted(found) == [
        ("ejected", "failures", "no", 105, 0, 0), ("failing", "check", "no answer", 0, 0, 0), ("full", "", "", 0, 1, 9),
        *[("up", "", "", 0, 0, 0)] * 2,
    ]  # fmt: skip
    row = demand_row(KeyDemand("listener", "l", "request_frames", 5, 1500, 1600))
    assert row == {"level": "listener", "name": "l", "counter": "request_frames", "used": 5, "waiting": 1500, "wanting": 1600}
    assert schema_of(DemandRow).fault(row) == ""


EVERY = 600


def first_of(number: int, opened_ns: int = 0) -> int:
    """The moment of the first row."""
    return next(at for at in range(opened_ns, opened_ns + 2 * EVERY) if is_due(opened_ns, number, EVERY, opened_ns, at))


def test_the_first_row_is_between_one_time_and_one_and_a_quarter_after_the_opening_and_evenly_spread() -> None:
    firsts = [first_of((3 << 57) + (5 << 29) + number) for number in range(1000)]
    assert min(firsts) >= EVERY
    assert max(firsts) < EVERY + EVERY // 4
    quarters = [sum(EVERY + EVERY * part // 16 <= first < EVERY + EVERY * (part + 1) // 16 for first in firsts) for part in range(4)]
    assert all(200 < count < 300 for count in quarters), quarters


@each_of("turn", [1, 2, 1000])
def test_a_row_is_due_once_in_the_interval_that_contains_its_time(turn: int) -> None:
    moment = first_of(7, 50) + (turn - 1) * EVERY
    assert [is_due(50, 7, EVERY, at - 1, at) for at in (moment - 1, moment, moment + 1)] == [False, True, False]
    assert is_due(50, 7, EVERY, moment - 1, moment + 9 * EVERY), "one, however much time was left out"
    assert not is_due(50, 7, EVERY, moment, moment), "no time"
    assert not is_due(10**9, 7, EVERY, 0, 10**9)
    assert not is_due(10**9, 7, EVERY, 0, first_of(7, 10**9) - 1)
    assert is_due(10**9, 7, EVERY, 0, first_of(7, 10**9))


def test_the_closed_row_of_a_failed_login_has_the_name_that_was_tried(world):
    for attempted, told in (("", ""), ('a"da', 'a"da'), ("a\n\x1bb\u202e", "a\\n\\x1bb\\u202e"), (101 * "x", 100 * "x" + "…")):
        pair = world.pair()[2]
        error = AuthenticationError("wrong password", side="downstream")
        error.attempted = attempted
        pair.client.channel.fail(error)
        world.poll()
        row = decode_line(closed_line(pair, 0))
        assert (row["cause"], row.get("attempted_user", "")) == ("auth_failed", told)
