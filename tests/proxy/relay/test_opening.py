"""How a pair opens (rule 1), over loopback and a real selector. Each test ends with the pool whole and every gauge zero."""

import contextlib
import os
import resource
import socket
import ssl
import threading

import pytest

from framegate.proxy.cause import Cause
from framegate.proxy.config.address import format_sockaddr
from framegate.proxy.network import mute
from framegate.proxy.network.options import TlsSettings
from framegate.proxy.network.tls_context import client_context
from framegate.proxy.relay import ending
from framegate.proxy.relay.counters import HANDSHAKING
from framegate.proxy.relay.upstream import DOWN, Endpoint
from framegate.proxy.server.pair_rows import open_row
from tests.fakes import cluster
from tests.fakes.upstream import refusing_port
from tests.fakes.world import endpoint_of, frame, reset
from tests.proxy.relay.conftest import end_by, finish


@contextlib.contextmanager
def no_descriptors():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def shake(context, sock):
    """A server's handshake, and no more."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_side=True)
    while True:
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            sock.sendall(outgoing.read())
            incoming.write(sock.recv(65536))
        else:
            sock.sendall(outgoing.read())
            return


def test_the_client_is_muted_for_peer_until_its_upstream_is_ready(make, silent):
    """What it sent before arrives."""
    world = make(endpoints=[silent])
    client, pair = world.client()
    client.sendall(frame(b"early"))
    world.poll()
    assert (pair.state.value, pair.client.channel.mute_causes) == ("connecting_upstream", mute.PEER)
    assert pair.client.channel.frames_received == 0
    ending.abort(pair, Cause.ADMIN, "", "internal")
    world.poll()
    world = make()
    client, _ = world.client()
    client.sendall(frame(b"early"))
    world.poll()
    upstream, _ = world.server.accept()
    assert world.read(upstream, 9) == frame(b"early")
    upstream.close()


def test_the_next_endpoint_is_tried_when_one_refuses(make, refusing):
    with socket.create_server(("127.0.0.1", 0)) as other:
        world = make(endpoints=[refusing, other.getsockname()])
        _, pair = world.client()
        world.until(lambda: pair.state.value == "open")
        assert pair.endpoint == f"127.0.0.1:{other.getsockname()[1]}"
    durations = world.endpoint_counters.durations
    assert [sum(histogram.buckets) for histogram in durations] == [1, 1, 0, 0, 0, 0, 0, 0, 0]


def test_a_pair_ends_with_a_word_when_no_endpoint_answers(make, refusing, silent):
    found = []
    for endpoints in ([refusing, refusing], [], [silent]):
        world = make(endpoints=endpoints, connect_s=3)
        client, _ = world.client()
        world.poll()
        world.pass_time(3.1)
        assert world.ended(client) == b""
        finish(world, client)
        assert world.row["endpoint"].startswith("127.0.0.1:") == ("127.0.0.1:" in world.row["detail"]) == bool(endpoints)
        found.append((world.row["cause"], world.row["side"], world.row["state"]))
    assert found == [(cause, "upstream", "connecting_upstream") for cause in ("upstream_refused", "upstream_refused", "upstream_timeout")]
    assert world.told.endpoints[0]["reason"] == "timeout"


def test_a_handshake_with_an_upstream_is_counted_while_it_lasts(make):
    world = make()
    world.upstream_options.tls = TlsSettings(client_context(), server_side=False, server_name="localhost")
    client, pair = world.client()
    world.until(lambda: pair.upstream.channel is not None)
    upstream, _ = world.server.accept()
    assert world.counters.loop.counts.cells[HANDSHAKING["upstream"]] == 1
    upstream.sendall(b"not TLS")
    world.until(lambda: pair.cause)
    finish(world, upstream, client)
    assert (world.row["cause"], world.counters.loop.counts.cells[HANDSHAKING["upstream"]]) == ("tls_failed", 0)


def test_a_failure_to_open_a_socket_ends_one_pair_only(world):
    client, pair = world.client()
    with no_descriptors():
        world.until(lambda: pair.cause)
    assert world.ended(client) == b""
    finish(world, client)
    assert (world.row["cause"], world.row["side"]) == ("limit", "internal")


def test_an_endpoint_that_does_not_answer_costs_one_connection_its_timeout(make, silent):
    world = make(endpoints=[silent], connect_s=5)
    with socket.create_server(("127.0.0.1", 0), backlog=512) as other:
        world.upstream.replace([endpoint_of(silent), endpoint_of(other.getsockname())])
        _, first = world.client()
        world.until(lambda: first.upstream.channel is not None)
        world.pass_time(4.9)
        assert first.state.value == "connecting_upstream"
        world.pass_time(0.2)
        world.until(lambda: first.state.value == "open")
        waiting = []
        for second in range(70):  # back-offs of 1, 2, 4, 8, 16 and 30 s, and 5 s for each probe
            pairs = [world.client()[1] for _ in range(3)]
            world.poll(2)
            waiting += [(second, pair) for pair in pairs if pair.state.value != "open"]
            world.pass_time(1)
        assert [second for second, _ in waiting] == [1, 8, 17, 30, 51]
        world.until(lambda: all(pair.state.value == "open" for _, pair in waiting))
        backoffs = [row["backoff_ms"] for row in world.told.endpoints]
    assert backoffs == [1000, 2000, 4000, 8000, 16000, 30000]
    assert world.told.endpoints[0]["reason"] == "timeout"


def test_an_endpoint_that_comes_back_is_used_and_told_of(make):
    with refusing_port() as port:
        world = make(endpoints=[("127.0.0.1", port)])
        client, _ = world.client()
        assert world.ended(client) == b""
        finish(world, client)
    world.clock.ns += 3 * 10**9
    with socket.create_server(("127.0.0.1", port)):
        _, pair = world.client()
        world.until(lambda: pair.state.value == "open")
    assert [sorted(row) for row in world.told.endpoints] == [
        ["backoff_ms", "detail", "endpoint", "failures", "reason", "upstream"],
        ["down_ms", "endpoint", "failures", "reason", "upstream"],
    ]
    assert world.told.endpoints[1]["down_ms"] == 3000


@pytest.mark.parametrize("way", ["admin", "reset", "drain", "end"])
def test_a_probe_whose_connection_ends_is_made_by_the_next(make, silent, way):
    world = make(endpoints=[silent])
    with socket.create_server(("127.0.0.1", 0)) as other:
        world.upstream.replace([endpoint_of(silent), endpoint_of(other.getsockname())])
        down = world.upstream.endpoints[0]
        world.upstream.failed(world.upstream.pick(None, 0), Cause.UPSTREAM_TIMEOUT, "", world.clock.ns)
        world.pass_time(1)
        client, probing = world.client()
        world.until(lambda: down.probed)
        end_by(way, world, client, probing)
        world.until(lambda: not down.probed)
        assert (down.down, down.backoff_ns) == (True, 10**9)
        _, again = world.client()
        world.until(lambda: again.upstream.channel is not None)
        assert down.probed
        ending.abort(again, Cause.ADMIN, "", "internal")
        world.poll()


def test_a_drain_ends_a_connection_between_two_tries(make, silent):
    world = make(endpoints=[silent], connect_s=5)
    with refusing_port() as port:
        world.upstream.replace([endpoint_of(("127.0.0.1", port)), endpoint_of(silent)])
        client, pair = world.client()
        world.until(lambda: pair.endpoint == "{}:{}".format(*silent))
        world.relay.pairs.draining = True
        world.drain.start(30 * 10**9)
        assert world.ended(client) == b""
        finish(world, client)
    assert (world.row["cause"], world.upstream.endpoints[1].down) == ("drained", False)


def test_a_peer_that_ends_what_was_ready_has_not_failed(world):
    client, upstream, _ = world.pair()
    reset(upstream)
    world.ended(client)
    finish(world, client)
    assert world.row["cause"] == "peer_reset"
    assert (world.told.endpoints, int(world.endpoint_counters.counts.cells[DOWN])) == ([], 0)


def test_tries_that_fail_leave_no_descriptor_behind(make, refusing, silent):
    world = make(endpoints=[refusing, "/nowhere/upstream.sock", "/" + "x" * 200, ("::1", 1), silent], connect_s=5)
    world.upstream.replace([*world.upstream.endpoints, Endpoint(9999, ("::1", 1))])
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        clients = [world.client()[0] for _ in range(4)]
        world.poll()
        world.pass_time(5.1)
        for client in clients:
            assert world.ended(client) == b""
            client.close()
        world.until(lambda: not world.relay.pairs.open)
    assert len(os.listdir("/proc/self/fd")) == before
    assert {row["cause"] for row in world.rows} == {"upstream_refused", "upstream_timeout"}
    assert all("(the last of 6 endpoints tried)" in row["detail"] for row in world.rows)


@pytest.mark.parametrize(("answer", "reason"), [(b"not TLS", "tls"), (b"", "other")])
def test_a_handshake_that_fails_leads_to_the_next_endpoint(make, tls_world, answer, reason):
    world = make()
    world.upstream_options.tls = tls_world.client_settings()
    with socket.create_server(("127.0.0.1", 0)) as good:
        world.upstream.replace([*world.upstream.endpoints, endpoint_of(good.getsockname())])
        _, pair = world.client()
        world.until(lambda: pair.upstream.channel is not None)
        bad, _ = world.server.accept()
        with bad:
            bad.sendall(answer)
            bad.shutdown(socket.SHUT_WR)
            world.until(lambda: pair.endpoint == f"127.0.0.1:{good.getsockname()[1]}")
        accepted, _ = good.accept()
        with accepted:
            server = threading.Thread(target=shake, args=(tls_world.server_settings().context, accepted))
            server.start()
            world.until(lambda: pair.state.value == "open")
            server.join()
    assert [row["reason"] for row in world.told.endpoints] == [reason]
    assert world.counters.loop.counts.cells[HANDSHAKING["upstream"]] == 0


# Brokers of a cluster.


def test_a_connection_goes_to_the_broker_that_it_reached_or_to_the_bootstrap(make):
    with socket.create_server(("127.0.0.1", 0)) as other:
        world = make("kafka", brokers=cluster.brokers(), broker_endpoints={2: other.getsockname()})
        client, pair = world.client(broker=2)
        world.until(lambda: pair.state.value == "open")
        other.accept()[0].close()
        assert pair.endpoint == f"127.0.0.1:{other.getsockname()[1]}"
        finish(world, client)
        assert (world.row["broker"], world.row["endpoint"]) == (2, pair.endpoint)
        _, _, pair = world.pair()
        assert pair.endpoint == f"127.0.0.1:{world.server.getsockname()[1]}"
        assert open_row(pair, 0)["broker"] == -1


def test_a_broker_that_is_gone_or_has_no_address_ends_the_connection_in_words(make):
    route = cluster.brokers()
    for node, detail in ((5, "broker 5 is not in the cluster u"), (3, "broker 3 has no address")):
        world = make("kafka", brokers=route)
        client, _ = world.client(broker=node)
        assert world.ended(client) == b""
        finish(world, client)
        row = world.row
        assert (row["cause"], row["side"], row["detail"], row["broker"], row["attempts"]) == ("upstream_refused", "upstream", detail, node, 0)


def test_of_a_broker_that_is_down_the_row_says_its_id_and_no_other_broker_is_tried(make, refusing):
    world = make("kafka", brokers=cluster.brokers(), broker_endpoints={2: refusing, 3: refusing})
    client, pair = world.client(broker=2)
    assert world.ended(client) == b""
    finish(world, client)
    assert (world.row["cause"], pair.attempts) == ("upstream_refused", 1)
    assert world.row["detail"].startswith(f"cannot connect to broker 2: {pair.endpoint}: ")
    assert [row["broker"] for row in world.told.endpoints] == [2]


def test_the_server_name_of_tls_chooses_the_broker(make, tls_world):
    with socket.create_server(("127.0.0.1", 0)) as other:
        for name, broker in (("broker-2.example", 2), ("BROKER-2.Example", 2), ("other.example", -1), (None, -1)):
            world = make(
                "kafka",
                brokers=cluster.brokers("broker-{id}.example"),
                broker_endpoints={2: other.getsockname()},
                client_tls=tls_world.listener_settings(reads_host=True),
            )
            client, pair = world.client()
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            world.shake(client, context, name)
            world.until(lambda pair=pair: pair.state.value == "open")
            assert pair.broker == broker, name
            assert pair.endpoint == format_sockaddr(socket.AF_INET, (other if broker == 2 else world.server).getsockname()), name
            ending.abort(pair, Cause.ADMIN, "", "internal")
            world.poll()
            assert world.row["broker"] == broker
