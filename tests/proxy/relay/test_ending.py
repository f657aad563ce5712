"""How a pair ends (rules 5 and 7), over loopback and a real selector. Each test ends with the pool whole and every gauge zero."""

import socket
import struct
import threading

from framegate.proxy.cause import Cause
from framegate.proxy.network import mute
from framegate.proxy.relay import ending
from framegate.proxy.server.pair_rows import open_row
from tests.fakes.cases import each_of
from tests.fakes.kafka_frames import answer, request
from tests.fakes.world import SECOND, frame, reset
from tests.proxy.relay.conftest import finish, open_pair, passes

# Rule 5: half-close.


@each_of("first", ["client", "upstream"])
def test_of_a_half_closed_pair_the_other_direction_goes_on(make, first):
    world, client, upstream, pair = open_pair(make())
    passes(world, client, upstream, frame(b"question"))
    source, sink = (client, upstream) if first == "client" else (upstream, client)
    source.sendall(frame(b"the last"))
    source.shutdown(socket.SHUT_WR)
    assert world.ended(sink) == frame(b"the last")
    assert open_row(pair, 0)["state"] == "half_closed"
    sink.sendall(frame(b"one") + frame(b"two"))
    sink.close()
    assert world.ended(source) == frame(b"one") + frame(b"two")
    finish(world, source)
    end = ("peer_closed", "downstream", 0) if first == "client" else ("peer_closed", "upstream", 0)
    assert (world.row["cause"], world.row["side"], world.row["lost"]["bytes"]) == end


def test_a_frame_begun_is_dropped_and_counted_at_the_end_of_the_stream(world):
    client, upstream, _ = world.pair()
    client.sendall(frame(b"whole") + frame(b"partial")[:7])
    client.close()
    assert world.ended(upstream) == frame(b"whole")
    finish(world, upstream)
    assert world.row["lost"] == {"bytes": 7, "request": 7, "response": 0}
    assert "within a frame" in world.row["detail"]
    assert world.counters.listeners["l"].downstream_counts.cells[ending.LOST] == 7


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
    finish(world, client, upstream)
    assert world.row["lost"]["request"] == sent - whole


def test_a_half_closed_client_that_reads_slowly_makes_progress(make):
    world, client, upstream, pair = open_pair(make(half_close_s=30, answer_limit=1 << 25, pool=1 << 26))
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
    ending.abort(pair, Cause.ADMIN, "", "internal")
    world.poll()


def test_a_mute_of_ours_holds_the_clock_of_a_half_closed_pair(make):
    world, client, upstream, pair = open_pair(make(half_close_s=30))
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
    assert (world.row["cause"], world.row["detail"]) == ("peer_closed", "the other side did not end in time")


@each_of(("said", "cause"), [(b"", "no_data"), (frame(b"welcome"), "peer_closed")])
@each_of("end", ["upstream", "timeout", "at once"])
def test_a_client_may_wait_for_what_the_server_says_first_if_its_listener_lets_it(make, said, cause, end):
    world, client, upstream, pair = open_pair(make(waits_before_data=end != "at once", half_close_s=30))
    if end == "at once":
        pair.client.channel.mute(mute.ADMIN)
        client.shutdown(socket.SHUT_WR)
        upstream.sendall(said)
        world.until(lambda: pair.upstream.channel.frames_received == bool(said))
        pair.client.channel.unmute(mute.ADMIN)
        assert world.ended(client) == said
    else:
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
    finish(world, client, upstream)
    assert (world.row["cause"], world.row["side"], world.row["lost"]["bytes"]) == (cause, "downstream", 0)


@each_of(("protocol", "first", "end"), [("framed", "upstream", ("upstream_closed", "upstream")), ("kafka", "client", ("no_data", "downstream"))])
def test_a_server_that_ends_first_is_not_no_data_and_a_kafka_client_without_a_request_waits_for_nothing(make, protocol, first, end):
    world, client, upstream, _ = open_pair(make(protocol, waits_before_data=True))
    if first == "upstream":
        upstream.close()
    else:
        client.shutdown(socket.SHUT_WR)
    assert world.ended(client) == b""
    finish(world, client, upstream)
    assert (world.row["cause"], world.row["side"]) == end


def test_kafka_ends_a_half_closed_pair_when_no_answer_is_open_and_a_pair_whose_upstream_ended(make):
    world, client, upstream, _ = open_pair(make("kafka"))
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
    world, client, upstream, _ = open_pair(make("kafka"))
    client.sendall(request(3, 9, 1))
    world.read(upstream, 14)
    upstream.sendall(answer(1) + answer(2)[:5])
    upstream.close()
    assert world.ended(client) == answer(1)
    finish(world, client)
    assert (world.row["cause"], world.row["side"], world.row["lost"]["response"]) == ("upstream_closed", "upstream", 5)


@each_of(
    ("asked", "cause"),
    [((3, 31), "upstream_closed"), ((3, 32), "peer_closed"), ((127, 0), "upstream_closed"), ((128, 0), "peer_closed"), ((-173, 0), "peer_closed")],
)
def test_a_broker_that_closes_owes_no_answer_to_what_is_none_of_kafkas_requests(make, asked, cause):
    world, client, upstream, _ = open_pair(make("kafka"))
    client.sendall(request(*asked, 1))
    world.read(upstream, 14)
    upstream.close()
    assert world.ended(client) == b""
    finish(world, client)
    assert (world.row["cause"], world.row["side"]) == (cause, "upstream")


# Rule 7: the first cause wins, and what was received still goes out.


@each_of(("size", "cause"), [(101, "frame_too_large"), (-1, "negative_size")])
def test_a_refused_frame_ends_the_pair_after_the_good_ones(make, size, cause):
    world, client, upstream, _ = open_pair(make(limit=100))
    client.sendall(frame(b"x" * 100) + struct.pack(">i", size) + b"y" * 50)
    assert world.ended(upstream) == frame(b"x" * 100)
    finish(world, upstream)
    assert (world.row["cause"], world.row["side"], world.row["frames"]["request"]) == (cause, "downstream", 1)
    assert (world.row["bytes"]["request"], world.row["lost"]["request"]) == (104 + 54, 54)
    assert world.counters.listeners["l"].downstream.refused_too_large + world.counters.listeners["l"].downstream.refused_negative == 1


def test_a_reset_lets_the_healthy_side_have_what_was_received(world):
    client, upstream, pair = world.pair()
    client.sendall(frame(b"one") + frame(b"two")[:5])
    assert world.read(upstream, 7) == frame(b"one")
    world.until(lambda: pair.client.channel.staged == 5)
    reset(client)
    assert world.ended(upstream) == b""
    finish(world, upstream)
    assert (world.row["cause"], world.row["side"], world.row["lost"]["request"]) == ("peer_reset", "downstream", 5)


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


def test_an_admin_close_ends_both_sides_in_order_and_what_arrives_then_is_dropped_and_counted(world):
    client, upstream, pair = world.pair()
    passes(world, client, upstream, frame(b"one"))
    upstream.sendall(frame(b"answer"))
    world.until(lambda: pair.upstream.channel.frames_received == 1)
    ending.end(pair, Cause.ADMIN, "maintenance", "internal")
    assert open_row(pair, 0)["state"] == "closing"
    client.sendall(frame(b"late"))
    assert world.ended(client) == frame(b"answer")
    assert world.ended(upstream) == b""
    world.until(lambda: pair.client.channel.frames_received == 2)
    finish(world, client, upstream)
    assert (world.row["cause"], world.row["detail"], world.row["side"]) == ("admin", "maintenance", "internal")
    assert world.row["lost"]["request"] == 8


def test_a_client_that_is_reset_while_its_upstream_is_connected_closes_that_too(make, silent):
    world = make(endpoints=[silent])
    client, pair = world.client()
    world.until(lambda: pair.state.value == "connecting_upstream")
    reset(client)
    world.until(lambda: world.rows)
    assert (world.row["cause"], world.row["state"]) == ("peer_reset", "connecting_upstream")
    world = make()  # both sockets are ready in one batch: the upstream's reset and the client's frame
    client, upstream, pair = world.pair()
    reset(upstream)
    client.sendall(frame(b"late"))
    world.until(lambda: pair.state.value == "closing")
    world.pass_time(1.1)
    assert world.row["cause"] == "peer_reset"


def test_idle_is_a_cause_of_the_pair(make):
    world, client, upstream, _ = open_pair(make(idle_s=60))
    world.pass_time(61)
    assert world.ended(client) == b""
    assert world.ended(upstream) == b""
    finish(world, upstream)
    assert (world.row["cause"], world.row["side"]) == ("idle", "downstream")


def test_an_error_at_the_end_of_a_half_closed_pair_costs_the_pair(make):
    world, client, upstream, pair = open_pair(make(half_close_s=30))
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
    world, client, upstream, pair = open_pair(make())

    def fail(pair):
        raise RuntimeError("a bug")

    told, world.told.pair_closed = world.told.pair_closed, fail
    client.close()
    upstream.close()
    world.until(lambda: pair.state.value == "closed")
    assert not hasattr(pair.client, "pair"), "it holds itself"
    assert world.selector.faults.take()[0][:3] == ("callback", 1, "RuntimeError: a bug")
    told(pair)
