"""The eight rules of a pair, over loopback and a real selector. Each test ends with the pool whole and every gauge zero."""

import contextlib
import gc
import os
import resource
import socket
import ssl
import struct
import threading

import pytest

from proxy.config.model import TapConfig, TapRule
from proxy.network import mute
from proxy.network.cause import Cause
from proxy.network.options import TlsSettings
from proxy.network.selector import Selector
from proxy.network.tls_context import client_context
from proxy.relay.pairing import MAX_OPEN
from proxy.relay.rows import open_row
from proxy.relay.upstream import Endpoint
from proxy.tap.log_reader import read_frames
from proxy.tap.rules import TapRules
from proxy.tap.writer import TapWriter
from tests.fakes.kafka_frames import answer, request
from tests.fakes.tls import TlsWorld
from tests.fakes.upstream import refusing_port
from tests.fakes.world import SECOND, World, endpoint_of, frame, reset


@pytest.fixture
def make():
    worlds: list[World] = []

    def build(*args, **options) -> World:
        worlds.append(World(*args, **options))
        return worlds[-1]

    yield build
    for world in worlds:
        world.close()


@pytest.fixture
def world(make) -> World:
    return make()


@pytest.fixture
def refusing():
    with refusing_port() as port:
        yield ("127.0.0.1", port)


@pytest.fixture
def silent():
    """The address of an upstream that does not answer: its queue is full."""
    with contextlib.ExitStack() as stack:
        backlog = stack.enter_context(socket.socket())
        backlog.bind(("127.0.0.1", 0))
        backlog.listen(0)
        for filler in [stack.enter_context(socket.socket()) for _ in range(4)]:
            filler.setblocking(False)
            filler.connect_ex(backlog.getsockname())
        yield backlog.getsockname()


@contextlib.contextmanager
def no_descriptors():
    """No more descriptors are to be had."""
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


# Rule 1: opening.


def test_the_client_is_muted_for_peer_until_its_upstream_is_ready(make, silent):
    world = make(endpoints=[silent])
    client, pair = world.client()
    client.sendall(frame(b"early"))
    world.poll()
    assert pair.state.value == "connecting_upstream"
    assert pair.client.channel.mute_causes == mute.PEER
    assert pair.client.channel.frames_received == 0
    pair.abort(Cause.ADMIN, "", "internal")
    world.poll()


def test_what_the_client_sent_before_its_upstream_was_ready_arrives(world):
    client, _ = world.client()
    client.sendall(frame(b"early"))
    world.poll()
    upstream, _ = world.server.accept()
    assert world.read(upstream, 9) == frame(b"early")
    upstream.close()


def test_a_closed_pair_leaves_nothing_for_the_garbage_collector(world):
    client, upstream, pair = world.pair()
    client.sendall(frame(b"abc"))
    world.read(upstream, 7)
    gc.collect()
    gc.disable()
    try:
        client.close()
        upstream.close()
        del pair
        world.until(lambda: world.rows)
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_a_client_that_ends_before_its_first_byte_is_no_data(world):
    client, upstream, _ = world.pair()
    client.close()
    assert world.ended(upstream) == b""
    upstream.close()
    world.until(lambda: world.rows)
    assert (world.row["cause"], world.row["side"]) == ("no_data", "downstream")


def test_the_next_endpoint_is_tried_when_one_refuses(make, refusing):
    with socket.create_server(("127.0.0.1", 0)) as other:
        world = make(endpoints=[refusing, other.getsockname()])
        _, pair = world.client()
        world.until(lambda: pair.state.value == "open")
        assert pair.endpoint == f"127.0.0.1:{other.getsockname()[1]}"
    durations = world.counters.upstreams["u"].durations
    assert [sum(histogram.buckets) for histogram in durations] == [1, 1, 0, 0, 0]


def test_a_pair_ends_with_upstream_refused_when_all_refuse(make, refusing):
    world = make(endpoints=[refusing, refusing])
    client, _ = world.client()
    assert world.ended(client) == b""
    client.close()
    world.until(lambda: world.rows)
    assert (world.row["cause"], world.row["side"], world.row["state"]) == ("upstream_refused", "upstream", "connecting_upstream")
    assert "127.0.0.1:" in world.row["detail"]


def test_a_handshake_with_an_upstream_is_counted_while_it_lasts(make):
    world = make()
    world.upstream_options.tls = TlsSettings(client_context(), server_side=False, server_name="localhost")
    client, pair = world.client()
    world.until(lambda: pair.upstream.channel is not None)
    upstream, _ = world.server.accept()
    assert world.counters.loop.upstream_handshaking == 1
    upstream.sendall(b"not TLS")
    world.until(lambda: pair.cause)
    upstream.close()
    client.close()
    world.until(lambda: world.rows)
    assert (world.row["cause"], world.counters.loop.upstream_handshaking) == ("tls_failed", 0)


def test_an_upstream_without_an_address_refuses_in_words(make):
    world = make(endpoints=[])
    client, _ = world.client()
    assert world.ended(client) == b""
    client.close()
    world.until(lambda: world.rows)
    assert (world.row["cause"], world.row["detail"], world.row["endpoint"]) == ("upstream_refused", "the upstream has no address", "")


def test_no_socket_to_be_had_ends_the_pair_alone(world):
    client, pair = world.client()
    with no_descriptors():
        world.until(lambda: pair.cause)
    assert world.ended(client) == b""
    client.close()
    world.until(lambda: world.rows)
    assert (world.row["cause"], world.row["side"]) == ("limit", "internal")


@pytest.mark.parametrize("nowhere", [("::1", 1, "no such family"), "/nowhere/upstream.sock"])
def test_what_cannot_be_reached_is_passed_over(make, nowhere):
    with socket.create_server(("127.0.0.1", 0)) as other:
        world = make(endpoints=[other.getsockname()])
        family = socket.AF_UNIX if isinstance(nowhere, str) else 9999
        world.upstream.replace([Endpoint(family, nowhere), *world.upstream.endpoints])
        _, pair = world.client()
        world.until(lambda: pair.state.value == "open")
    assert (world.told.endpoints[0]["endpoint"], world.told.endpoints[0]["reason"]) == (Endpoint(family, nowhere).text, "refused")


def test_twenty_at_once_find_the_endpoint_that_answers(make, refusing):
    with socket.create_server(("127.0.0.1", 0), backlog=64) as other:
        world = make(endpoints=[refusing, other.getsockname()])
        pairs = [world.client()[1] for _ in range(20)]
        world.until(lambda: all(pair.state.value == "open" for pair in pairs))
    assert [row["endpoint"] for row in world.told.endpoints] == ["{}:{}".format(*refusing)]
    assert int(world.counters.upstreams["u"].ejections[1]) == 1


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
        client.close()
        world.until(lambda: world.rows)
    world.clock.ns += 3 * 10**9
    with socket.create_server(("127.0.0.1", port)):
        _, pair = world.client()
        world.until(lambda: pair.state.value == "open")
    assert [sorted(row) for row in world.told.endpoints] == [
        ["backoff_ms", "detail", "endpoint", "failures", "reason", "upstream"],
        ["down_ms", "endpoint", "failures", "upstream"],
    ]
    assert world.told.endpoints[1]["down_ms"] == 3000


@pytest.mark.parametrize("way", ["admin", "client", "drain", "end"])
def test_a_probe_whose_connection_ends_is_made_by_the_next(make, silent, way):
    world = make(endpoints=[silent])
    with socket.create_server(("127.0.0.1", 0)) as other:
        world.upstream.replace([endpoint_of(silent), endpoint_of(other.getsockname())])
        down = world.upstream.endpoints[0]
        world.upstream.failed(world.upstream.begin(None, 0), Cause.UPSTREAM_TIMEOUT, "", world.clock.ns)
        world.pass_time(1)
        client, probing = world.client()
        world.until(lambda: down.probed)
        if way == "admin":
            probing.abort(Cause.ADMIN, "", "internal")
        elif way == "client":
            reset(client)
        elif way == "end":
            probing.end(Cause.DRAINED, "", "internal")
        else:
            world.drain.start(30 * 10**9)
        world.until(lambda: probing.client.gone or not down.probed)
        world.until(lambda: not down.probed)
        assert (down.down, down.backoff_ns) == (True, 10**9)
        _, again = world.client()
        world.until(lambda: again.upstream.channel is not None)
        assert down.probed
        again.abort(Cause.ADMIN, "", "internal")
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
        client.close()
        world.until(lambda: world.rows)
    assert (world.row["cause"], world.upstream.endpoints[1].down) == ("drained", False)


def test_an_endpoint_taken_away_while_a_connection_waits_for_it(make, silent):
    world = make(endpoints=[silent], connect_s=5)
    with socket.create_server(("127.0.0.1", 0)) as other:
        _, pair = world.client()
        world.until(lambda: pair.upstream.channel is not None)
        world.upstream.replace([endpoint_of(other.getsockname())])
        world.pass_time(5.1)
        world.until(lambda: pair.state.value == "open")
        assert pair.endpoint == f"127.0.0.1:{other.getsockname()[1]}"
    assert (world.told.endpoints, int(world.counters.upstreams["u"].down)) == ([], 0)


def test_a_peer_that_ends_what_was_ready_has_not_failed(world):
    client, upstream, _ = world.pair()
    reset(upstream)
    world.ended(client)
    client.close()
    world.until(lambda: world.rows)
    assert world.row["cause"] == "peer_reset"
    assert (world.told.endpoints, int(world.counters.upstreams["u"].down)) == ([], 0)


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
def test_a_handshake_that_fails_leads_to_the_next_endpoint(make, tmp_path, answer, reason):
    tls = TlsWorld.make(tmp_path)
    world = make()
    world.upstream_options.tls = tls.client_settings()
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
            server = threading.Thread(target=shake, args=(tls.server_settings().context, accepted))
            server.start()
            world.until(lambda: pair.state.value == "open")
            server.join()
    assert [row["reason"] for row in world.told.endpoints] == [reason]
    assert world.counters.loop.upstream_handshaking == 0


def test_endpoints_are_taken_in_turn(make):
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        world = make(endpoints=[one.getsockname(), two.getsockname()])
        pairs = [world.client()[1] for _ in range(4)]
        world.until(lambda: all(pair.state.value == "open" for pair in pairs))
        ports = [int(pair.endpoint.split(":")[1]) for pair in pairs]
        assert sorted(ports) == sorted([one.getsockname()[1], two.getsockname()[1]] * 2)


def test_an_upstream_that_does_not_answer_in_time_is_upstream_timeout(make, silent):
    world = make(connect_s=3, endpoints=[silent])
    client, pair = world.client()
    world.until(lambda: pair.state.value == "connecting_upstream")
    world.pass_time(3.1)
    assert world.ended(client) == b""
    client.close()
    world.until(lambda: world.rows)
    assert (world.row["cause"], world.row["side"]) == ("upstream_timeout", "upstream")


# Rule 2: passing on.


def test_runs_pass_both_ways_in_order(world):
    client, upstream, pair = world.pair()
    frames = b"".join(frame(bytes([index]) * index) for index in range(200))
    client.sendall(frames)
    assert world.read(upstream, len(frames)) == frames
    upstream.sendall(frames[::-1][:0] + frames)
    assert world.read(client, len(frames)) == frames
    row = open_row(pair, 0)
    assert row["frames"] == {"request": 200, "response": 200}
    assert row["state"] == "open"


def test_upstreams_only_see_whole_frames(world):
    client, upstream, _ = world.pair()
    whole, begun = frame(b"whole"), frame(b"begun")
    client.sendall(whole + begun[:-1])
    assert world.read(upstream, len(whole)) == whole
    world.poll()
    upstream.setblocking(False)
    with pytest.raises(BlockingIOError):
        upstream.recv(1)
    client.sendall(begun[-1:])
    assert world.read(upstream, len(begun)) == begun


def test_a_source_is_muted_for_peer_while_a_send_is_pending_and_the_other_direction_goes_on(world):
    client, upstream, pair = world.pair()
    world.fill(client)
    source = pair.client.channel
    assert source.mute_causes == mute.PEER
    assert pair.upstream.channel.pending_send > 0
    upstream.sendall(frame(b"answer"))
    assert world.read(client, 10) == frame(b"answer")
    before = source.frames_received
    while source.mute_causes:
        world.read(upstream, 4096)
    world.until(lambda: source.frames_received > before or not source.mute_causes)
    client.close()
    world.ended(upstream)
    upstream.close()


def test_too_many_open_requests_mute_the_client_until_half_are_answered(make):
    world = make("kafka", limit=1 << 24)
    client, upstream, pair = world.pair()
    one = request(1, 4, 0)
    total = MAX_OPEN + 1
    data = b"".join(request(1, 4, index) for index in range(total))
    client.setblocking(True)
    client.sendall(data[: len(data) // 2])
    world.read(upstream, len(data) // 2 // len(one) * len(one))
    client.sendall(data[len(data) // 2 :])
    world.until(lambda: pair.pairing.full)
    world.poll()
    assert pair.client.channel.mute_causes == mute.PEER
    answers = b"".join(answer(index) for index in range(total))
    part = len(answer(0)) * (MAX_OPEN // 2)
    upstream.sendall(answers[:part])
    world.read(client, part)
    world.poll()
    assert pair.client.channel.mute_causes == mute.PEER
    upstream.sendall(answers[part:])
    world.read(client, len(answers) - part)
    world.until(lambda: pair.pairing.open == 0)
    assert pair.client.channel.mute_causes == 0


# Rule 3: muting.


def test_an_admin_mute_lets_a_frame_begun_finish_and_then_reads_no_header(world):
    client, upstream, pair = world.pair()
    begun = frame(b"begun")
    client.sendall(begun[:6])
    world.poll()
    channel = pair.client.channel
    assert not channel.mute(mute.ADMIN)
    assert open_row(pair, 0)["muting"]
    client.sendall(begun[6:] + frame(b"next"))
    assert world.read(upstream, len(begun)) == begun
    world.poll()
    assert world.told.muted == [pair.id]
    assert open_row(pair, 0)["muted"] == ["admin"]
    assert channel.frames_received == 1
    upstream.sendall(frame(b"answers still pass"))
    assert world.read(client, 22)
    channel.unmute(mute.ADMIN)
    assert world.read(upstream, 8) == frame(b"next")


# Rule 4: the end of a muted client.


def test_a_muted_client_keeps_its_frames_after_its_end(world):
    client, upstream, pair = world.pair()
    pair.client.channel.mute(mute.ADMIN)
    client.sendall(frame(b"last"))
    client.close()
    world.poll(5)
    assert not world.rows
    pair.client.channel.unmute(mute.ADMIN)
    assert world.ended(upstream) == frame(b"last")
    upstream.close()
    world.until(lambda: world.rows)
    assert world.row["cause"] == "peer_closed"


# Rule 5: half-close.


def test_a_half_closed_client_gets_its_answers(world):
    client, upstream, pair = world.pair()
    client.sendall(frame(b"question"))
    client.shutdown(socket.SHUT_WR)
    assert world.ended(upstream) == frame(b"question")
    assert open_row(pair, 0)["state"] == "half_closed"
    upstream.sendall(frame(b"answer one") + frame(b"two"))
    upstream.close()
    assert world.ended(client) == frame(b"answer one") + frame(b"two")
    client.close()
    world.until(lambda: world.rows)
    assert (world.row["cause"], world.row["side"], world.row["lost"]["bytes"]) == ("peer_closed", "downstream", 0)


def test_an_upstream_that_ends_first_still_gets_requests(world):
    client, upstream, _ = world.pair()
    client.sendall(frame(b"a"))
    upstream.sendall(frame(b"bye"))
    upstream.shutdown(socket.SHUT_WR)
    assert world.ended(client) == frame(b"bye")
    client.sendall(frame(b"b"))
    client.close()
    assert world.ended(upstream) == frame(b"a") + frame(b"b")
    upstream.close()
    world.until(lambda: world.rows)
    assert (world.row["cause"], world.row["side"]) == ("upstream_closed", "upstream")


def test_a_frame_begun_is_dropped_and_counted_at_the_end_of_the_stream(world):
    client, upstream, _ = world.pair()
    client.sendall(frame(b"whole") + frame(b"partial")[:7])
    client.close()
    assert world.ended(upstream) == frame(b"whole")
    upstream.close()
    world.until(lambda: world.rows)
    assert world.row["lost"] == {"bytes": 7, "request": 7, "response": 0}
    assert "within a frame" in world.row["detail"]
    assert world.counters.listeners["l"].lost_downstream == 7


def test_half_close_waits_for_the_pending_send(world):
    client, upstream, pair = world.pair()
    client.settimeout(2)
    data = frame(b"x" * 900_000)
    client.setblocking(False)
    left = data * 4
    while left:
        try:
            left = left[client.send(left) :]
        except BlockingIOError:
            if pair.client.channel.mute_causes:
                break
            world.poll(1)
    sent = 4 * len(data) - len(left)
    whole = sent // len(data) * len(data)
    client.shutdown(socket.SHUT_WR)
    world.poll()
    assert len(world.ended(upstream)) == whole
    client.close()
    upstream.close()
    world.until(lambda: world.rows)
    assert world.row["lost"]["request"] == sent - whole


def test_half_close_ends_at_its_timeout(make):
    world = make(half_close_s=30)
    client, upstream, _ = world.pair()
    client.sendall(frame(b"a"))
    client.shutdown(socket.SHUT_WR)
    assert world.ended(upstream) == frame(b"a")
    world.pass_time(29)
    assert not world.rows
    world.pass_time(2)
    assert world.ended(client) == b""
    world.pass_time(1.1)
    assert (world.row["cause"], world.row["detail"]) == ("peer_closed", "the other side did not end in time")
    client.close()
    upstream.close()


def test_half_close_is_a_time_without_progress(make):
    world = make(half_close_s=30)
    client, upstream, _ = world.pair()
    client.sendall(frame(b"a"))
    client.shutdown(socket.SHUT_WR)
    assert world.ended(upstream) == frame(b"a")
    for number in range(5):
        world.pass_time(29)
        upstream.sendall(frame(b"answer %d" % number))
        assert world.read(client, 12) == frame(b"answer %d" % number)
    world.pass_time(29)
    assert not world.rows
    world.pass_time(2)
    assert world.ended(client) == b""
    world.pass_time(1.1)
    assert (world.row["cause"], world.row["detail"], world.row["lost"]["bytes"]) == ("peer_closed", "the other side did not end in time", 0)


def test_a_half_closed_client_that_reads_slowly_makes_progress(make):
    world = make(half_close_s=30, answer_limit=1 << 25, pool=1 << 26)
    client, upstream, pair = world.pair()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 18)  # else the kernel may take most of the answer
    client.sendall(frame(b"a"))
    client.shutdown(socket.SHUT_WR)
    assert world.ended(upstream) == frame(b"a")
    data = frame(b"x" * (1 << 24))
    sender = threading.Thread(target=upstream.sendall, args=(data,))
    sender.start()
    world.until(lambda: pair.upstream.channel.frames_received == 1, 4000)
    sender.join()
    received_ns = pair.upstream.channel.last_active_ns
    got = 0
    while pair.client.channel.pending_send:
        world.pass_time(20)
        got += len(world.read(client, 1 << 21))
    assert pair.client.channel.last_active_ns - received_ns > 60 * SECOND, "it did not last longer than the timeout"
    assert pair.state.value == "half_closed"
    assert world.read(client, len(data) - got) == data[got:]
    pair.abort(Cause.ADMIN, "", "internal")
    world.poll()


def test_a_mute_of_ours_holds_the_clock_of_a_half_closed_pair(make):
    world = make(half_close_s=30)
    client, upstream, pair = world.pair()
    upstream.sendall(frame(b"bye"))
    upstream.shutdown(socket.SHUT_WR)
    assert world.ended(client) == frame(b"bye")
    pair.client.channel.mute(mute.ADMIN)
    client.sendall(frame(b"held up"))
    for _ in range(4):
        world.pass_time(31)
    assert not world.rows
    pair.client.channel.unmute(mute.ADMIN)
    assert world.read(upstream, 11) == frame(b"held up")
    for _ in range(2):
        world.pass_time(31)
    world.pass_time(1.1)
    assert (world.row["cause"], world.row["detail"]) == ("upstream_closed", "the other side did not end in time")


def test_a_client_that_ends_before_its_first_byte_ends_the_pair_whatever_the_server_said(world):
    client, upstream, pair = world.pair()
    pair.client.channel.mute(mute.ADMIN)
    client.shutdown(socket.SHUT_WR)
    upstream.sendall(frame(b"welcome"))
    world.until(lambda: pair.upstream.channel.frames_received == 1)
    pair.client.channel.unmute(mute.ADMIN)
    assert world.ended(client) == frame(b"welcome")
    upstream.close()
    world.until(lambda: world.rows)
    assert (world.row["cause"], world.row["lost"]["bytes"]) == ("peer_closed", 0)


@pytest.mark.parametrize(("said", "cause"), [(b"", "no_data"), (frame(b"welcome"), "peer_closed")])
@pytest.mark.parametrize("end", ["upstream", "timeout"])
def test_a_client_may_wait_for_what_the_server_says_first(make, said, cause, end):
    world = make(waits_before_data=True, half_close_s=30)
    client, upstream, pair = world.pair()
    client.shutdown(socket.SHUT_WR)
    assert world.ended(upstream) == b""
    assert pair.state.value == "half_closed"
    world.pass_time(20)
    upstream.sendall(said)
    assert not said or world.read(client, len(said)) == said
    if end == "upstream":
        upstream.close()
    else:
        world.pass_time(31)
    assert world.ended(client) == b""
    client.close()
    upstream.close()
    world.until(lambda: world.rows)
    assert (world.row["cause"], world.row["side"], world.row["lost"]["bytes"]) == (cause, "downstream", 0)


def test_a_server_that_ends_first_without_a_byte_is_not_no_data(make):
    world = make(waits_before_data=True)
    client, upstream, _ = world.pair()
    upstream.close()
    assert world.ended(client) == b""
    client.close()
    world.until(lambda: world.rows)
    assert (world.row["cause"], world.row["side"]) == ("upstream_closed", "upstream")


def test_a_kafka_client_without_a_request_waits_for_nothing(make):
    world = make("kafka", waits_before_data=True)
    client, upstream, _ = world.pair()
    client.shutdown(socket.SHUT_WR)
    assert world.ended(client) == b""
    upstream.close()
    world.until(lambda: world.rows)
    assert world.row["cause"] == "no_data"


def test_kafka_ends_a_half_closed_pair_when_no_answer_is_open(make):
    world = make("kafka")
    client, upstream, _ = world.pair()
    client.sendall(request(3, 9, 1) + request(3, 9, 2))
    client.shutdown(socket.SHUT_WR)
    world.ended(upstream)
    upstream.sendall(answer(1))
    assert world.read(client, 8) == answer(1)
    assert not world.rows
    upstream.sendall(answer(2))
    assert world.ended(client) == answer(2)
    world.pass_time(1.1)
    assert (world.row["cause"], world.row["lost"]["bytes"]) == ("peer_closed", 0)


def test_kafka_ends_a_pair_whose_upstream_ended(make):
    world = make("kafka")
    client, upstream, _ = world.pair()
    client.sendall(request(3, 9, 1))
    world.read(upstream, 14)
    upstream.sendall(answer(1) + answer(2)[:5])
    upstream.close()
    assert world.ended(client) == answer(1)
    client.close()
    world.until(lambda: world.rows)
    assert (world.row["cause"], world.row["side"], world.row["lost"]["response"]) == ("upstream_closed", "upstream", 5)


# Rule 7: the first cause wins, and what was received still goes out.


@pytest.mark.parametrize(("size", "cause"), [(101, "frame_too_large"), (-1, "negative_size")])
def test_a_refused_frame_ends_the_pair_after_the_good_ones(make, size, cause):
    world = make(limit=100)
    client, upstream, _ = world.pair()
    client.sendall(frame(b"x" * 100) + struct.pack(">i", size) + b"y" * 50)
    assert world.ended(upstream) == frame(b"x" * 100)
    upstream.close()
    world.until(lambda: world.rows)
    assert (world.row["cause"], world.row["side"], world.row["frames"]["request"]) == (cause, "downstream", 1)
    assert (world.row["bytes"]["request"], world.row["lost"]["request"]) == (104 + 54, 54)
    assert world.counters.listeners["l"].downstream.refused_too_large + world.counters.listeners["l"].downstream.refused_negative == 1


def test_an_answer_above_the_upstream_limit_is_refused(make):
    world = make(answer_limit=10)
    client, upstream, _ = world.pair()
    client.sendall(frame(b"x"))
    world.read(upstream, 5)
    upstream.sendall(frame(b"ok") + frame(b"y" * 11))
    assert world.ended(client) == frame(b"ok")
    client.close()
    world.until(lambda: world.rows)
    assert (world.row["cause"], world.row["side"]) == ("frame_too_large", "upstream")


def test_a_reset_lets_the_healthy_side_have_what_was_received(world):
    client, upstream, pair = world.pair()
    client.sendall(frame(b"one") + frame(b"two")[:5])
    assert world.read(upstream, 7) == frame(b"one")
    world.until(lambda: pair.client.channel.staged == 5)
    reset(client)
    assert world.ended(upstream) == b""
    upstream.close()
    world.until(lambda: world.rows)
    assert (world.row["cause"], world.row["side"], world.row["lost"]["request"]) == ("peer_reset", "downstream", 5)


def test_a_reset_by_the_upstream_ends_the_client_in_order(world):
    client, upstream, _ = world.pair()
    client.sendall(frame(b"one"))
    world.read(upstream, 7)
    upstream.sendall(frame(b"answer"))
    assert world.read(client, 10) == frame(b"answer")
    reset(upstream)
    assert world.ended(client) == b""
    client.close()
    world.until(lambda: world.rows)
    assert (world.row["cause"], world.row["side"]) == ("peer_reset", "upstream")


def test_a_pending_send_gets_one_second_and_the_rest_is_counted(world):
    client, upstream, pair = world.pair()
    world.fill(client)
    pending = pair.upstream.channel.pending_send
    assert pending > 0
    reset(client)
    world.until(lambda: pair.state.value == "closing")
    world.pass_time(0.9)
    assert not world.rows
    world.pass_time(0.2)
    assert (world.row["cause"], world.row["detail"] != "") == ("peer_reset", True)
    assert world.row["lost"]["request"] >= pending
    upstream.close()


def test_an_admin_close_ends_both_sides_in_order(world):
    client, upstream, pair = world.pair()
    client.sendall(frame(b"one"))
    assert world.read(upstream, 7) == frame(b"one")
    upstream.sendall(frame(b"answer"))
    world.until(lambda: pair.upstream.channel.frames_received == 1)
    pair.end(Cause.ADMIN, "maintenance", "internal")
    assert open_row(pair, 0)["state"] == "closing"
    assert world.ended(client) == frame(b"answer")
    assert world.ended(upstream) == b""
    client.close()
    upstream.close()
    world.until(lambda: world.rows)
    assert (world.row["cause"], world.row["detail"], world.row["side"]) == ("admin", "maintenance", "internal")


def test_what_arrives_after_the_end_began_is_dropped_and_counted(world):
    client, upstream, pair = world.pair()
    client.sendall(frame(b"one"))
    assert world.read(upstream, 7) == frame(b"one")
    pair.end(Cause.ADMIN, "", "internal")
    client.sendall(frame(b"late"))
    world.until(lambda: pair.client.channel.frames_received == 2)
    client.close()
    upstream.close()
    world.until(lambda: world.rows)
    assert world.row["lost"]["request"] == 8


def test_the_first_cause_wins(world):
    _, upstream, pair = world.pair()
    pair.end(Cause.ADMIN, "first", "internal")
    pair.end(Cause.IDLE, "second", "downstream")
    reset(upstream)
    world.pass_time(1.1)
    assert (world.row["cause"], world.row["detail"]) == ("admin", "first")


def test_a_client_that_is_reset_while_its_upstream_is_connected_closes_that_too(make, silent):
    world = make(endpoints=[silent])
    client, pair = world.client()
    world.until(lambda: pair.state.value == "connecting_upstream")
    reset(client)
    world.until(lambda: world.rows)
    assert (world.row["cause"], world.row["state"]) == ("peer_reset", "connecting_upstream")


def test_a_peer_that_dies_in_the_same_poll_takes_nobody_along(world):
    """Both sockets are ready in one batch: the upstream's reset and the client's frame."""
    client, upstream, pair = world.pair()
    reset(upstream)
    client.sendall(frame(b"late"))
    world.until(lambda: pair.state.value == "closing")
    world.pass_time(1.1)
    assert world.row["cause"] == "peer_reset"


def test_idle_is_a_cause_of_the_pair(make):
    world = make(idle_s=60)
    client, upstream, _ = world.pair()
    world.pass_time(61)
    assert world.ended(client) == b""
    assert world.ended(upstream) == b""
    upstream.close()
    world.until(lambda: world.rows)
    assert (world.row["cause"], world.row["side"]) == ("idle", "downstream")


def test_a_client_that_never_reads_is_send_stalled(make):
    world = make(stall_s=10)
    _, upstream, pair = world.pair()
    world.fill(upstream)
    for _ in range(12):
        world.pass_time(2)
    world.until(lambda: world.rows or world.pass_time(1))
    assert (world.row["cause"], world.row["side"]) == ("send_stalled", "downstream")
    assert pair.state.value == "closed"


def test_every_end_leaves_exactly_one_row(world):
    for _ in range(3):
        client, upstream, _ = world.pair()
        client.close()
        upstream.close()
    world.until(lambda: len(world.rows) == 3)
    assert len({row["id"] for row in world.rows}) == 3


def test_memory_moves_with_a_frame_that_spans_reads(make):
    world = make(limit=8 << 20, pool=16 << 20)
    client, upstream, _ = world.pair()
    data = frame(bytes(range(256)) * 16384)
    client.setblocking(False)
    left = data
    got = b""
    upstream.setblocking(False)
    while len(got) < len(data):
        if left:
            with contextlib.suppress(BlockingIOError):
                left = left[client.send(left) :]
        world.poll(1)
        try:
            got += upstream.recv(1 << 20)
        except BlockingIOError:
            continue
    assert got == data
    world.poll()
    assert world.pool.used == 0


def test_large_frames_follow_each_other_through_a_pool_of_one(make):
    world = make(limit=300_000, pool=300_000)
    client, upstream, _ = world.pair()
    data = b"".join(frame(letter * 290_000) for letter in (b"a", b"b", b"c", b"d"))
    sender = threading.Thread(target=client.sendall, args=(data,))
    client.settimeout(10)
    sender.start()
    assert world.read(upstream, len(data)) == data
    sender.join()


def test_a_producer_with_a_long_name_has_nothing_in_flight_when_it_asks_for_no_acks(make):
    world = make("kafka")
    client, upstream, pair = world.pair()
    name = b"\x02\x58" + b"c" * 600
    data = request(0, 3, 1, b"\xff\xff" + struct.pack(">hi", 0, 30000) + bytes(5000), name)
    for _ in range(20):
        for part in (data[:100], data[100:1200], data[1200:]):
            client.sendall(part)
            world.poll(2)
    assert world.read(upstream, 20 * len(data)) == 20 * data
    assert (pair.pairing.open, pair.pairing.lost) == (0, False)


def test_a_run_has_the_time_when_it_was_read_not_that_of_its_poll(make, tmp_path) -> None:
    """An answer can come within the poll that passed its request on; with the poll's time its latency was 0."""
    writer = TapWriter(TapConfig(directory=str(tmp_path)), "n", "0", "b")
    world = make(rules=TapRules((TapRule(name="all"),), writer), writer=writer)

    def tick() -> int:
        world.clock.ns += 1000
        return world.clock.ns

    world.clock.now_ns = tick
    world.selector = Selector(world.clock, world.pool, world.relay)
    world.relay.pairs.attach(world.selector)
    client, pair = world.client()
    world.until(lambda: pair.state.value == "open")
    world.sockets.append(world.server.accept()[0])
    client.sendall(frame(b"a"))
    world.until(lambda: writer.frames_matched_request == 1)
    writer.flush_and_close(1000)
    (found,) = read_frames(str(tmp_path))
    assert found.capture_ns > world.selector.now_ns


def test_an_error_at_the_end_of_a_half_closed_pair_costs_the_pair(make):
    world = make(half_close_s=30)
    client, upstream, pair = world.pair()
    upstream.shutdown(socket.SHUT_WR)
    world.until(lambda: pair.state.value == "half_closed")
    world.blind(client, pair, mute.PEER)
    world.pass_time(31)
    for sock in (client, upstream):
        sock.close()
    world.until(lambda: world.rows)
    assert (world.row["cause"], world.row["id"]) == ("upstream_closed", int(pair.id))
    assert world.selector.faults.take()[0][:2] == ("timer", 1)


def test_a_pair_whose_end_cannot_be_told_is_over_all_the_same(make):
    world = make()
    client, upstream, pair = world.pair()

    def fail(pair):
        raise RuntimeError("a bug")

    told, world.told.pair_closed = world.told.pair_closed, fail
    client.close()
    upstream.close()
    world.until(lambda: pair.state.value == "closed")
    assert not hasattr(pair.client, "pair"), "it holds itself"
    assert world.selector.faults.take()[0][:3] == ("callback", 1, "RuntimeError: a bug")
    told(pair)
