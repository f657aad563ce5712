"""Drain (rule 8)."""

import os
import socket
import ssl

import pytest

from framegate.proxy.cause import Cause
from framegate.proxy.config.limits import RateLimits
from framegate.proxy.network import mute
from framegate.proxy.relay import ending
from framegate.proxy.server.pair_rows import open_row
from framegate.proxy.server.rows import ClosedRow
from tests.fakes.cases import each_of
from tests.fakes.crowd import set_send_buffer
from tests.fakes.kafka_frames import answer, request
from tests.fakes.limited import limits
from tests.fakes.world import SECOND, World, frame
from tests.proxy.relay.conftest import begin_drain, finish, open_pair, passes


def begin(world: World, seconds: int = 30) -> None:
    begin_drain(world, seconds)
    world.poll()


def ended(world: World, *sockets: socket.socket) -> ClosedRow:
    """The row of a pair whose two sides see an end without anything more."""
    assert [world.ended(sock) for sock in sockets] == [b""] * len(sockets)
    finish(world, *sockets)
    return world.row


def test_a_drain_without_pairs_is_done_at_once_and_then_there_is_no_new_pair(make):
    world = make()
    begin(world)
    assert world.told.cut_off == [0]
    assert ended(world, world.client()[0])["cause"] == "drained"


def test_a_framed_pair_ends_when_it_is_quiet(make):
    world, client, upstream, pair = open_pair(make(quiet_s=1))
    passes(world, client, upstream, frame(b"a"))
    begin(world)
    assert (open_row(pair, 0)["state"], open_row(pair, 0)["muted"]) == ("draining", [])
    world.pass_time(0.9)
    passes(world, upstream, client, frame(b"answer"))
    world.pass_time(0.9)
    assert (world.rows, pair.state.value) == ([], "open")
    world.pass_time(0.2)
    row = ended(world, client, upstream)
    assert (row["cause"], row["lost"]["bytes"]) == ("drained", 0)
    world.pass_time(0.1)
    assert world.told.cut_off == [0]


def test_a_frame_begun_is_finished_first(make):
    world, client, upstream, _ = open_pair(make())
    begun = frame(b"begun")
    client.sendall(begun[:7])
    world.poll()
    begin(world)
    world.pass_time(5)
    assert not world.rows
    client.sendall(begun[7:])
    assert world.read(upstream, len(begun)) == begun
    world.pass_time(1.1)
    row = ended(world, upstream, client)
    assert (row["cause"], row["frames"]["request"]) == ("drained", 1)


def test_a_pair_that_is_never_quiet_is_not_read_any_more_when_a_quarter_of_the_time_is_left(make):
    world, client, upstream, pair = open_pair(make(quiet_s=2))
    begin(world, 20)
    for _ in range(14):
        world.pass_time(1)
        passes(world, client, upstream, frame(b"again"))
    assert open_row(pair, 0)["muted"] == []
    world.pass_time(0.9)
    passes(world, client, upstream, frame(b"the last"))
    world.pass_time(0.2)
    assert open_row(pair, 0)["muted"] == ["drain"]
    client.sendall(frame(b"not read"))
    passes(world, upstream, client, frame(b"answer"))
    world.pass_time(2.1)
    row = ended(world, client, upstream)
    assert (row["cause"], row["frames"], row["lost"]["bytes"]) == ("drained", {"request": 15, "response": 1}, 0)


def test_twice_the_quiet_time_is_left_for_the_quiet_to_be_seen(make):
    world, client, upstream, pair = open_pair(make(quiet_s=3))
    begin(world, 10)
    world.pass_time(2)
    passes(world, client, upstream, frame(b"a"))
    world.pass_time(1.9)
    assert open_row(pair, 0)["muted"] == []
    world.pass_time(0.2)
    assert open_row(pair, 0)["muted"] == ["drain"]
    world.pass_time(1)
    assert world.ended(client) == b""


@each_of(("again_s", "left_s"), [(30, 5), (2, 2)])
def test_draining_again_may_only_shorten_the_time_left(make, again_s, left_s):
    world, client, upstream, pair = open_pair(make("kafka"))
    passes(world, client, upstream, request(3, 9, 1))
    begin(world, 10)
    world.pass_time(5)
    begin(world, again_s)
    world.pass_time(left_s - 0.1)
    assert pair.state.value == "open"
    world.pass_time(0.2)
    assert pair.cause is Cause.DRAIN_TIMEOUT


def ask(world, client, upstream, text=b"q", answers=(b"a",)):
    passes(world, client, upstream, frame(text))
    data = b"".join(map(frame, answers))
    passes(world, upstream, client, data)


@each_of("size", [1, 300_000])
def test_a_framed_pair_with_as_many_answers_as_requests_ends_right_behind_an_answer(make, size):
    """Its client asks every 50 ms and is never quiet; it loses no request. Also where the answer is cut through."""
    world, client, upstream, pair = open_pair(make(quiet_s=1))
    for _ in range(3):
        ask(world, client, upstream)
        world.pass_time(0.05)
    begin(world)
    world.pass_time(0.05)
    assert pair.state.value == "open"
    passes(world, client, upstream, frame(b"q"))
    upstream.sendall(frame(bytes(size)))
    for _ in range(5):
        world.pass_time(0.05)
    assert world.ended(client) == frame(bytes(size))
    upstream.close()
    finish(world, client)
    row = world.row
    assert (row["cause"], row["frames"], row["lost"]["bytes"]) == ("drained", {"request": 4, "response": 4}, 0)


def test_an_answer_that_waits_for_the_client_is_out_before_the_end(make):
    world, client, upstream, pair = open_pair(make(quiet_s=1))
    set_send_buffer(pair.client.channel, 4096)
    ask(world, client, upstream)
    begin(world)
    passes(world, client, upstream, frame(b"q"))
    data = frame(bytes(200_000))
    upstream.sendall(data)
    world.until(lambda: pair.client.channel.pending_send > 0)
    world.pass_time(0.05)
    assert world.read(client, len(data)) == data
    assert world.ended(client) == b""
    assert pair.cause is Cause.DRAINED


@each_of("answers", [(b"1", b"2"), (b"1", b"2", b"3")])
def test_where_a_request_has_several_answers_none_is_cut_off(make, answers):
    """Behind the first answer to the first request, there are as many as requests."""
    world, client, upstream, pair = open_pair(make(quiet_s=1))
    begin(world)
    count = 0
    for _ in range(4):
        passes(world, client, upstream, frame(b"q"))
        for text in answers:
            upstream.sendall(frame(text))
            count += 1
            world.until(lambda count=count: pair.upstream.channel.frames_received == count)
            world.pass_time(0.05)
    assert pair.state.value == "open"
    world.pass_time(1.1)
    world.pass_time(1.1)
    assert pair.cause is Cause.DRAINED
    assert world.ended(client) == b"".join(map(frame, answers)) * 4


def test_the_next_request_that_is_here_already_is_answered_first(make):
    world, client, upstream, pair = open_pair(make(quiet_s=1))
    ask(world, client, upstream)
    begin(world)
    passes(world, client, upstream, frame(b"q"))
    pair.client.channel.mute(mute.TAP)
    client.sendall(frame(b"r"))
    world.until(lambda: not pair.client.channel.read_half.has_no_input())
    passes(world, upstream, client, frame(b"a"))
    assert pair.state.value == "open"
    pair.client.channel.unmute(mute.TAP)
    assert world.read(upstream, 5) == frame(b"r")
    passes(world, upstream, client, frame(b"b"))
    assert pair.state.value == "closing"


def test_a_question_that_came_before_the_end_is_read_and_answered(make):
    """It lies in the kernel when the quiet is over."""
    world, client, upstream, pair = open_pair(make(quiet_s=1))
    begin(world)
    pair.client.channel.mute(mute.TAP)
    client.sendall(frame(b"late"))
    world.pass_time(5)
    assert pair.state.value == "open"
    pair.client.channel.unmute(mute.TAP)
    assert world.read(upstream, 8) == frame(b"late")
    world.pass_time(1.1)
    assert world.ended(client) == b""


def test_an_operators_mute_does_not_keep_a_pair(make):
    world, client, upstream, pair = open_pair(make(quiet_s=1))
    pair.client.channel.mute(mute.ADMIN)
    client.sendall(frame(b"not read"))
    begin(world)
    world.pass_time(1.1)
    assert world.ended(client) == b""
    assert pair.state.value == "closing"  # no reset: the client is waited for
    client.close()
    row = ended(world, upstream)
    assert (row["cause"], row["frames"]["request"]) == ("drained", 0)


def test_a_frame_begun_that_does_not_end_is_lost_as_such(make):
    world, client, upstream, _ = open_pair(make())
    client.sendall(frame(b"begun")[:7])
    world.poll()
    begin(world, 10)
    world.pass_time(10.1)
    assert world.pool.used == 0
    client.sendall(frame(b"begun")[7:] + frame(b"behind"))
    row = ended(world, client, upstream)
    assert (row["cause"], row["frames"]["request"], row["lost"]["bytes"]) == ("drain_timeout", 0, 7)


def test_what_waits_at_the_deadline_has_a_second_more(make):
    world, client, upstream, pair = open_pair(make())
    world.fill(upstream)
    assert pair.client.channel.pending_send > 0
    begin(world, 10)
    world.pass_time(10.1)
    assert pair.cause is Cause.DRAIN_TIMEOUT
    data = world.ended(client)
    finish(world, upstream, client)
    assert len(data) % 60_004 == 0
    assert len(data) == world.row["bytes"]["response"] - world.row["lost"]["bytes"]


@each_of("end", ["answer", "deadline", "admin"])
def test_a_kafka_pair_ends_when_no_answer_is_open_and_is_cut_off_at_the_deadline_if_it_did_not_close_by_itself(make, end):
    world, client, upstream, pair = open_pair(make("kafka"))
    passes(world, client, upstream, request(3, 9, 1))
    begin(world, 10)
    world.pass_time(9)
    assert not world.rows
    if end == "answer":
        passes(world, upstream, client, answer(1))
        world.pass_time(0.1)
        assert ended(world, client, upstream)["cause"] == "drained"
    elif end == "deadline":
        world.pass_time(1.1)
        assert not world.rows
        world.pass_time(1)
        assert world.row["cause"] == "drain_timeout"
    else:
        ending.abort(pair, Cause.ADMIN, "", "internal")
        world.pass_time(0.1)
    world.pass_time(0.1)
    assert world.told.cut_off == [end == "deadline"]


def test_an_error_with_one_pair_costs_that_pair_and_the_drain_goes_on(make):
    world = make(quiet_s=1)
    (client, _, bad), (_, _, _) = world.pair(), world.pair()
    begin(world)
    world.blind(client, bad, mute.DRAIN)
    world.pass_time(1.1)
    for sock in world.sockets:
        sock.close()
    world.until(lambda: len(world.rows) == 2)
    assert {row["id"]: row["cause"] for row in world.rows}[int(bad.id)] == "drained"
    world.pass_time(0.1)
    assert world.told.cut_off == [0]
    assert world.selector.faults.take()[0].place == "timer"


def test_the_end_does_not_wait_longer_than_the_drain(make):
    """For a client that has not read its answer, which is in the kernel."""
    world, client, upstream, pair = open_pair(make("kafka"))
    channel = pair.client.channel
    set_send_buffer(channel, 1 << 20)
    passes(world, client, upstream, request(3, 9, 1))
    begin(world)
    upstream.sendall(answer(1, bytes(300_000)))
    for _ in range(5):
        world.pass_time(0.05)
    world.until(lambda: pair.state.value == "closing")
    assert (channel.pending_send, channel.wire_waiting > 0) == (0, True)
    upstream.close()
    world.pass_time(29)
    assert not world.rows
    world.pass_time(1.1)
    assert world.row["cause"] == "drained"
    world.pass_time(0.1)
    assert world.told.cut_off == [0]


def peeked(sock: socket.socket) -> bytes:
    """What the kernel has for a socket, b"" at the end of the stream; BlockingIOError: nothing."""
    sock.setblocking(False)
    try:
        return sock.recv(1 << 20, socket.MSG_PEEK)
    finally:
        sock.settimeout(2)


@each_of("protocol", ["framed", "kafka"])
def test_answers_are_held_until_the_client_waits_and_come_with_the_end(make, protocol):
    """A client with two open requests at most: until both are answered, it gets no answer, so it sends nothing; then it has them and the end."""
    kafka = protocol == "kafka"
    questions = [request(3, 9, number) if kafka else frame(b"q%d" % number) for number in (1, 2, 3)]
    answers = [answer(number) if kafka else frame(b"a%d" % number) for number in (1, 2, 3)]
    world, client, upstream, pair = open_pair(make(protocol, quiet_s=1))
    passes(world, client, upstream, questions[0])
    passes(world, upstream, client, answers[0])
    passes(world, client, upstream, questions[1])
    begin(world)
    upstream.sendall(answers[1])
    world.poll()
    passes(world, client, upstream, questions[2])
    world.pass_time(0.2)
    with pytest.raises(BlockingIOError):
        peeked(client)
    assert (pair.state.value, open_row(pair, 0)["muted"]) == ("open", [])
    upstream.sendall(answers[2])
    world.poll()
    with pytest.raises(BlockingIOError):
        peeked(client)
    world.pass_time(0.11)
    with pytest.raises(BlockingIOError):
        peeked(client)
    world.pass_time(0.02)
    assert client.recv(1 << 20) == answers[1] + answers[2]
    assert peeked(client) == b"", "the end was there with the answers, before any further poll"
    upstream.close()
    finish(world, client)
    assert (world.row["cause"], world.row["frames"]) == ("drained", {"request": 3, "response": 3})


def test_answers_are_held_for_the_quiet_time_at_most(make):
    world, client, upstream, pair = open_pair(make("kafka", quiet_s=1))
    passes(world, client, upstream, request(3, 9, 1) + request(3, 9, 2))
    begin(world)
    upstream.sendall(answer(1))
    world.poll()
    world.pass_time(0.9)
    with pytest.raises(BlockingIOError):
        peeked(client)
    world.pass_time(0.2)
    assert world.read(client, len(answer(1))) == answer(1)
    assert pair.state.value == "open"
    passes(world, upstream, client, answer(2))
    assert ended(world, client, upstream)["cause"] == "drained"


@each_of("pairs", [1, 3, 4])
def test_a_lead_in_ends_connections_evenly_after_its_delay_and_takes_new_ones(make, pairs):
    """Within half of its time; one that comes meanwhile ends in its turn, one of the pod's own stays."""
    world = make("kafka", quiet_s=0)
    for _ in range(pairs):
        world.pair()

    def count() -> int:
        return len(world.rows) + sum(pair.state.value == "closing" for pair in world.relay.pairs.open.values())

    world.drain.lead_in(5 * SECOND, 8 * SECOND)
    ends: list[float] = []
    began_ns = world.clock.ns
    while world.clock.ns < began_ns + 9 * SECOND:
        world.pass_time(0.02)
        ends += [(world.clock.ns - began_ns) / SECOND] * (count() - len(ends))
    assert ends == pytest.approx([5 + 4 * place / pairs for place in range(pairs)], abs=0.1)
    world.pair()
    world.pass_time(0.1)
    assert count() == pairs + 1
    for sock in world.sockets[1:]:
        sock.close()
    world.until(lambda: len(world.rows) == pairs + 1)
    assert {row["cause"] for row in world.rows} == {"drained"}


def test_a_lead_in_ends_all_at_its_deadline_though_the_processor_is_late_then(make):
    """Their clients are not read any more, and would stand still until the drain."""
    world, client, upstream, pair = open_pair(make("kafka", quiet_s=0))
    passes(world, client, upstream, request(3, 9, 1))
    world.drain.lead_in(0, 10 * SECOND)
    world.pass_time(9.99)
    assert (pair.state.value, pair.client.channel.mute_causes) == ("open", mute.DRAIN)
    world.pass_time(0.1)
    assert pair.cause is Cause.DRAIN_TIMEOUT
    finish(world, client, upstream)
    world.pass_time(0.1)
    world.pair()
    world.pass_time(20)
    assert len(world.rows) == 1


def test_a_lead_in_leaves_local_connections_and_a_drain_follows_it(make):
    world, client, upstream, pair = open_pair(make("kafka", quiet_s=0, is_local=True))
    world.drain.lead_in(0, SECOND)
    world.pass_time(0.5)
    world.pass_time(2)
    passes(world, client, upstream, request(3, 9, 1))
    passes(world, upstream, client, answer(1))
    assert pair.state.value == "open"
    begin(world)
    world.pass_time(0.1)
    assert ended(world, client, upstream)["cause"] == "drained"
    world.pass_time(0.1)
    assert world.told.cut_off == [0]


@each_of(("at_s", "read"), [(6.5, True), (6.9, True), (7.1, False)])
def test_who_comes_when_others_are_not_read_any_more_is_read_while_a_quiet_time_is_left_behind(make, at_s, read):
    """Where the address of a pod is used longer than its drain expects."""
    world = make("kafka", quiet_s=1)
    world.drain.lead_in(0, 8 * SECOND)
    world.pass_time(at_s)
    client, upstream, pair = world.pair()
    world.pass_time(0.02)
    assert open_row(pair, 0)["muted"] == ([] if read else ["drain"])
    client.sendall(request(3, 9, 1))
    if read:
        assert world.read(upstream, len(request(3, 9, 1))) == request(3, 9, 1)
        upstream.sendall(answer(1))
        world.poll()
        world.pass_time(0.13)
    world.pass_time(0.02)
    assert world.ended(client) == (answer(1) if read else b"")
    upstream.close()
    finish(world, client)
    assert (world.row["cause"], world.row["frames"]["request"]) == ("drained", int(read))


@each_of(("timeout_ns", "apart_ns"), [(30 * SECOND, 10_000_000), (80_000_000, 10_000_000), (40_000_000, 5_000_000)])
def test_a_drain_ends_pairs_ten_ms_apart_or_within_half_of_its_time(make, timeout_ns, apart_ns):
    world = make("kafka", quiet_s=0)
    pairs = [world.pair()[2] for _ in range(4)]
    began_ns = world.clock.ns
    world.drain.start(timeout_ns)
    world.poll()
    assert [world.drain._turn_of(pair) - began_ns for pair in pairs] == [place * apart_ns for place in range(4)]
    assert [pair.state.value for pair in pairs] == ["closing", "open", "open", "open"]
    world.pass_time(1)
    for sock in world.sockets[1:]:
        sock.close()
    world.until(lambda: len(world.rows) == 4)


@each_of("protocol", ["framed", "kafka"])
@each_of("counter", ["request_bytes_rate", "response_bytes_rate"])
def test_what_a_quota_holds_back_is_read_and_answered_before_the_end(make, protocol, counter):
    """The second request, or its answer, waits longer for its rate than ``quiet``, unread."""
    kafka = protocol == "kafka"
    world = make(protocol, quiet_s=1)
    world.relay.pairs.quotas.set_limits(limits(listener=RateLimits(**{counter: 100})))
    client, upstream, pair = world.pair()
    asked, answered = (request(3, 9, 1, bytes(400)), answer(1, bytes(400))) if kafka else (frame(bytes(400)), frame(bytes(410)))
    passes(world, client, upstream, asked)
    passes(world, upstream, client, answered)
    again, late = (request(3, 9, 2), answer(2)) if kafka else (frame(b"q"), frame(b"a"))
    client.sendall(again)
    if counter == "response_bytes_rate":
        assert world.read(upstream, len(again)) == again
        upstream.sendall(late)
    world.poll()
    throttled = pair.client if counter == "request_bytes_rate" else pair.upstream
    assert throttled.channel.mute_causes & mute.THROTTLE
    begin(world)
    world.pass_time(1.5)
    world.pass_time(1)
    assert pair.state.value == "open", "unread, longer than the quiet time"
    for _ in range(40):
        world.pass_time(0.1)
    if counter == "request_bytes_rate":
        assert world.read(upstream, len(again)) == again
        upstream.sendall(late)
    for _ in range(3):
        world.pass_time(0.1)
    assert world.ended(client) == late
    upstream.close()
    finish(world, client)
    assert (world.row["cause"], world.row["frames"]) == ("drained", {"request": 2, "response": 2})


def test_held_answers_are_one_record_of_tls_so_that_none_is_read_before_the_end_is_there(make, tls_world):
    """Otherwise a client with several open requests could send the next one when the first segment of TCP has come."""
    world = make("kafka", quiet_s=1, client_tls=tls_world.server_settings())
    plain, pair = world.client()
    client = world.shake(plain, tls_world.client_settings().context)
    world.until(lambda: pair.state.value == "open")
    upstream, _ = world.server.accept()
    upstream.settimeout(2)
    world.sockets.append(upstream)
    with pytest.raises(ssl.SSLWantReadError):
        client.recv(1)  # takes the session's tickets
    asked = b"".join(request(3, 9, number) for number in range(3))
    client.sendall(asked)
    assert world.read(upstream, len(asked)) == asked
    begin(world)
    for number in range(3):
        upstream.sendall(answer(number, bytes(2000)))
        world.poll()
    world.pass_time(0.13)
    with socket.socket(fileno=os.dup(client.fileno())) as raw:
        data = raw.recv(1 << 20, socket.MSG_PEEK)
    sizes = []
    while data:
        sizes.append(int.from_bytes(data[3:5], "big"))
        data = data[5 + sizes[-1] :]
    assert len(sizes) == 2, "the answers, and close-notify"
    upstream.close()
    finish(world, client)
    assert world.row["cause"] == "drained"
