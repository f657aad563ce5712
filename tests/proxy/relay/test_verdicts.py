"""What comes of a frame that was handled: every action, with an upstream and without; order, re-framing, Kafka's pairing, throttling."""

import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from framegate.proxy.network import mute
from framegate.proxy.network.framings import FRAMINGS
from framegate.proxy.network.int32 import INT32
from framegate.proxy.network.pool_kinds import LeakFindingPool
from framegate.proxy.network.run import Run
from framegate.proxy.relay import handler_wire as wire
from framegate.proxy.relay import verdicts
from framegate.proxy.relay.handled_connection import Request
from framegate.proxy.relay.throttle import QUOTA
from tests.fakes.cases import each_of
from tests.fakes.framing_model import stream
from tests.fakes.handled import HandledWorld, channel_of, leg_of
from tests.fakes.kafka_frames import answer, request
from tests.fakes.tap_read import read_frames
from tests.fakes.world import frame, reset
from tests.proxy.relay.conftest import ask_handler, begin_drain, finish, passes, send_all, tapping, with_client, with_pair, with_process

Make = Callable[..., HandledWorld]


def test_with_an_upstream_a_frame_passes_changes_vanishes_or_is_answered(make_handled: Make) -> None:
    world, process, client, upstream, pair = with_pair(make_handled(upstream=True))
    bodies = [b"passes", b"changes", b"vanishes", b"asks"]
    client.sendall(b"".join(map(frame, bodies)))
    for (action, body), asked_body in zip(
        [(wire.PASS, b""), (wire.FRAME, b"changed"), (wire.NOTHING, b""), (wire.ANSWER, b"here")], bodies, strict=True
    ):
        asked = process.take()[0]
        assert (asked.direction, asked.body) == (0, asked_body)
        process.reply(asked, action, body)
    assert world.read(upstream, 21) == frame(b"passes") + frame(b"changed")
    assert world.read(client, 8) == frame(b"here")
    upstream.sendall(frame(b"back") + frame(b"away"))
    asked = process.take()[0]
    assert (asked.direction, asked.sequence, asked.body) == (1, 0, b"back")
    process.reply(asked, wire.FRAME, b"BACK AGAIN")
    process.reply(process.take()[0], wire.NOTHING)
    assert world.read(client, 14) == frame(b"BACK AGAIN")
    assert world.pool.used == 0
    assert (channel_of(pair).mute_causes, channel_of(pair, 1).mute_causes) == (0, 0)
    counted = {name: world.cell("requests", name) for name in wire.ACTIONS}
    assert counted == {"pass": 1, "frame": 2, "nothing": 2, "answer": 1, "close": 0, "failed": 0}


@each_of("upstream", [False, True])
def test_closing_is_the_handlers_wish_and_what_was_sent_before_arrives(make_handled: Make, upstream: bool) -> None:
    world, process = with_process(make_handled(upstream=upstream))
    client = (world.pair() if upstream else world.served())[0]
    client.sendall(frame(b"one") + frame(b"two") + frame(b"three"))
    one, two, three = process.take(3)
    data = process.record(one, wire.ANSWER, b"1") + process.record(two, wire.CLOSE) + process.record(three, wire.ANSWER, b"3")
    process.send(data)
    assert world.ended(client) == frame(b"1")
    client.close()
    if not upstream:
        world.until(lambda: world.rows)
        assert (world.row["cause"], world.row["side"]) == ("handler_closed", "internal")


def test_a_handler_that_fails_costs_its_connection(make_handled: Make) -> None:
    world, process, client, _ = with_client(make_handled())
    other, _ = world.served()
    process.reply(ask_handler(process, client, b"x"), wire.FAILED, "ValueError: größer".encode())
    assert world.ended(client) == b""
    finish(world, client)
    assert (world.row["cause"], world.row["detail"]) == ("handler_failed", "ValueError: größer")
    process.reply(ask_handler(process, other, b"y"), wire.ANSWER, b"fine")
    assert world.read(other, 8) == frame(b"fine")


@each_of(
    ("upstream", "direction", "action", "body", "end", "text"),
    [
        (False, 0, wire.PASS, b"", ("handler_failed", "internal"), "no upstream"),
        (False, 0, wire.FRAME, b"x", ("handler_failed", "internal"), "no upstream"),
        (True, 1, wire.ANSWER, b"x", ("handler_failed", "internal"), "only a request can be answered"),
        (False, 0, wire.ANSWER, bytes(40_000), ("frame_too_large", "downstream"), "the limit of 32767, the most that int16 can say"),
        (True, 0, wire.FRAME, bytes(40_000), ("frame_too_large", "upstream"), "the limit of 32767, the most that int16 can say"),
    ],
)
def test_answers_that_do_not_fit(
    make_handled: Make, upstream: bool, direction: int, action: int, body: bytes, end: tuple[str, str], text: str
) -> None:
    short = FRAMINGS["int16"] if body[1:] else FRAMINGS["int32"]
    world, process = with_process(make_handled(upstream=upstream, **{"upstream_framing" if upstream else "framing": short}))
    sockets = world.pair()[:2] if upstream else world.served()[:1]
    sockets[direction].sendall(b"\0\1x" if body[1:] and not upstream else frame(b"x"))
    asked = process.one()
    assert asked.direction == direction
    process.reply(asked, action, body)
    world.ended(sockets[0])
    finish(world, *sockets)
    assert (world.row["cause"], world.row["side"]) == end
    assert text in world.row["detail"]


def test_a_body_that_holds_the_end_of_a_line_does_not_fit_lines(make_handled: Make) -> None:
    world, process, client, _ = with_client(make_handled(framing=FRAMINGS["lines"]))
    client.sendall(b"one\ntwo\n")
    asked, second = process.take(2)
    assert (asked.header, asked.body) == (b"", b"one"), "one line, without its end"
    process.reply(asked, wire.ANSWER, b"ONE")
    assert world.read(client, 4) == b"ONE\n"
    process.reply(second, wire.ANSWER, b"a\nb")
    world.ended(client)
    finish(world, client)
    assert (world.row["cause"], world.row["side"]) == ("wrong_protocol", "downstream")
    assert "holds what ends one in lines" in world.row["detail"]


@each_of(("speaks", "onward"), [("int32", "varint"), ("lines", "int32"), ("mysql_packet", "int32"), ("grpc_message", "grpc_message")])
def test_each_side_has_its_framing(make_handled: Make, speaks: str, onward: str) -> None:
    world, process, client, upstream, _ = with_pair(make_handled(upstream=True, framing=FRAMINGS[speaks], upstream_framing=FRAMINGS[onward]))
    bodies = [b"a", b"bb", b"c" * 300, b"answered"]
    client.sendall(stream(speaks, bodies))
    for body, (action, made) in zip(bodies, [(wire.PASS, b""), (wire.FRAME, b"other"), (wire.PASS, b""), (wire.ANSWER, b"made")], strict=True):
        asked = process.take()[0]
        assert asked.body == body
        process.reply(asked, action, made)
    wanted = stream(onward, [b"a", b"other", b"c" * 300])
    assert world.read(upstream, len(wanted)) == wanted
    made = world.read(client, len(stream(speaks, [b"made"])))
    if speaks != "mysql_packet":
        assert made == stream(speaks, [b"made"])
    upstream.sendall(stream(onward, [b"back"]))
    process.reply(process.take()[0], wire.PASS)
    assert world.read(client, len(stream(speaks, [b"back"]))) == stream(speaks, [b"back"])
    assert world.pool.used == 0


def test_the_other_bytes_of_a_header_are_those_of_the_frame_it_was_made_from(make_handled: Make) -> None:
    world, process, client, _ = with_client(make_handled(framing=FRAMINGS["mysql_packet"]))
    client.sendall(b"\x02\0\0\x07hi")
    asked = process.one()
    assert asked.header == b"\x02\0\0\x07"
    process.reply(asked, wire.ANSWER, b"hello")
    assert world.read(client, 9) == b"\x05\0\0\x07hello"


@each_of("handled", [0, 1])
def test_a_direction_that_is_not_handled_is_relayed(make_handled: Make, handled: int) -> None:
    """Its runs are written without another look; what a handler makes comes between whole frames of it."""
    world, process, *sockets, pair = with_pair(make_handled(upstream=True), directions=(wire.DIRECTIONS[handled],))
    source, sink = sockets[handled], sockets[1 - handled]
    if handled == 0:
        asked = ask_handler(process, source, b"question")
    passes(world, sink, source, frame(b"unasked") + frame(b"again"))
    assert leg_of(pair, 1 - handled).forward_to is channel_of(pair, handled).write_half
    if handled == 1:
        asked = ask_handler(process, source, b"question")
    assert (asked.direction, asked.sequence, asked.body) == (handled, 0, b"question")
    process.reply(asked, wire.FRAME, b"made") if handled else process.reply(asked, wire.ANSWER, b"made")
    assert world.read(sockets[0], 8) == frame(b"made")
    assert not process.asked


def test_what_the_upstream_does_not_take_mutes_its_source(make_handled: Make) -> None:
    world, process, client, upstream, pair = with_pair(make_handled(upstream=True, limit=1 << 23, pool=1 << 25))
    big = frame(bytes(6 << 20))
    send_all(world, client, big)
    asked = process.take()[0]
    process.reply(asked, wire.PASS)
    assert channel_of(pair, 1).pending_send > 0
    assert channel_of(pair).mute_causes == mute.HANDLER | mute.PEER, "the frame is not done with until it is out"
    assert leg_of(pair).awaits is not None
    assert world.read(upstream, len(big)) == big
    world.poll()
    assert channel_of(pair).mute_causes == 0
    assert world.pool.used == 0


# Kafka.


def test_an_answer_in_the_upstreams_place_waits_for_what_is_owed(make_handled: Make) -> None:
    world, process, client, upstream, pair = with_pair(make_handled("kafka", upstream=True))
    client.sendall(request(3, 9, 1) + request(18, 3, 2))
    first, second = process.take(2)
    process.reply(first, wire.PASS)
    assert world.read(upstream, len(request(3, 9, 1))) == request(3, 9, 1)
    process.reply(second, wire.ANSWER, struct.pack(">i", 2) + b"versions")
    client.sendall(request(3, 9, 3))
    process.settle()
    assert not process.asked, "the answer to the second is held, and no more are made before it is out"
    assert pair.pairing is not None
    assert (pair.pairing.open, channel_of(pair).mute_causes & mute.HANDLER) == (1, mute.HANDLER)
    upstream.sendall(answer(1))
    response = process.one()
    assert response.direction == 1
    process.reply(response, wire.PASS)
    made = frame(struct.pack(">i", 2) + b"versions")
    assert world.read(client, len(answer(1)) + len(made)) == answer(1) + made
    process.reply(process.one(), wire.PASS)
    assert world.read(upstream, len(request(3, 9, 3))) == request(3, 9, 3)
    upstream.sendall(answer(3))
    process.reply(process.one(), wire.PASS)
    assert world.read(client, len(answer(3))) == answer(3)
    assert (pair.pairing.open, pair.pairing.lost) == (0, False)


def test_likewise_where_answers_are_not_handled_and_the_pairing_has_what_the_upstream_was_sent(make_handled: Make) -> None:
    world, process, client, upstream, pair = with_pair(make_handled("kafka", upstream=True), directions=("request",))
    assert pair.pairing is None or pair.pairing.open == 0
    client.sendall(b"".join(request(3, 9, number) for number in range(6)))
    for number, asked in enumerate(process.take(6)):
        if number % 2:
            process.reply(asked, wire.ANSWER, struct.pack(">i", number))
        else:
            process.reply(asked, wire.PASS)
    wanted = b"".join(request(3, 9, number) for number in (0, 2, 4))
    assert world.read(upstream, len(wanted)) == wanted
    assert pair.pairing is not None
    assert pair.pairing.open == 3
    upstream.sendall(b"".join(frame(struct.pack(">i", number)) for number in (0, 2, 4)))
    seen = world.read(client, 48)
    assert [struct.unpack(">ii", seen[at : at + 8])[1] for at in range(0, 48, 8)] == list(range(6))
    client.sendall(b"".join(request(3, 9, number) for number in range(4)))
    actions = [(wire.NOTHING, b""), (wire.FRAME, request(1, 13, 77)[4:]), (wire.PASS, b""), (wire.NOTHING, b"")]
    for asked, (action, body) in zip(process.take(4), actions, strict=True):
        process.reply(asked, action, body)
    wanted = request(1, 13, 77) + request(3, 9, 2)
    assert world.read(upstream, len(wanted)) == wanted
    passes(world, upstream, client, answer(77) + answer(2))
    assert (pair.pairing.open, pair.pairing.lost) == (0, False)


@each_of(("action", "body"), [(wire.ANSWER, struct.pack(">i", 1)), (wire.FRAME, request(3, 9, 8)[4:]), (wire.NOTHING, b"")])
def test_a_drain_does_not_end_before_a_verdict_is_out(make_handled: Make, action: int, body: bytes) -> None:
    world, process, client, upstream, _ = with_pair(make_handled("kafka", upstream=True), directions=("request",))
    client.sendall(request(3, 9, 1))
    asked = process.one()
    begin_drain(world, 30)
    world.pass_time(1.5)
    process.reply(asked, action, body)
    if action == wire.FRAME:
        assert world.read(upstream, len(body) + 4) == frame(body)
        upstream.sendall(answer(8))
    assert world.ended(client) == {wire.ANSWER: frame(body), wire.FRAME: answer(8), wire.NOTHING: b""}[action]


def test_a_kafka_client_without_an_upstream(make_handled: Make) -> None:
    world, process, client, pair = with_client(make_handled("kafka"))
    client.sendall(request(18, 3, 5))
    asked = process.one()
    assert pair.pairing is not None
    assert pair.pairing.open == 1
    process.reply(asked, wire.ANSWER, struct.pack(">i", 5))
    assert world.read(client, 8) == frame(struct.pack(">i", 5))
    client.sendall(request(3, 9, 6))
    process.reply(process.one(), wire.NOTHING)
    assert (pair.pairing.open, pair.pairing.lost) == (0, False)
    client.sendall(request(3, 9, 7))
    process.reply(process.one(), wire.ANSWER, struct.pack(">i", 7))
    assert (pair.pairing.open, pair.pairing.lost) == (0, False)


# Throttling.


def test_an_answer_with_a_throttle(make_handled: Make) -> None:
    """Number 24: sent while throttled: still muted. StartThrottling, Send, EndThrottling."""
    world, process, client, pair = with_client(make_handled())
    client.sendall(frame(b"one") + frame(b"two"))
    first, second = process.take(2)
    process.reply(first, wire.ANSWER, b"1", throttle_ms=500)
    assert world.read(client, 5) == frame(b"1"), "the answer is not held back"
    channel = channel_of(pair)
    assert channel.mute_causes == mute.THROTTLE
    client.sendall(frame(b"three"))
    world.pass_time(0.2)
    process.reply(second, wire.ANSWER, b"2")
    assert world.read(client, 5) == frame(b"2"), "nor is one that was under way"
    world.pass_time(0.2)
    process.settle()
    assert not process.asked
    world.pass_time(0.11)
    asked = process.one()
    assert asked.body == b"three"
    process.reply(asked, wire.ANSWER, b"3")
    assert (channel.mute_causes, int(world.counters.listeners["l"].downstream.mutes[mute.position(mute.THROTTLE)])) == (0, 1)
    assert world.read(client, 5) == frame(b"3")
    process.reply(ask_handler(process, client, b"four"), wire.NOTHING, throttle_ms=60_000)
    client.close()
    world.pass_time(61)
    world.until(lambda: world.rows)
    assert world.row["cause"] == "peer_closed", "it may end while it is throttled"
    world.pass_time(100)


def test_a_throttle_that_is_over_when_the_answer_is_out(make_handled: Make) -> None:
    """Number 25: not muted afterwards."""
    world, process, client, pair = with_client(make_handled(limit=1 << 22))
    size = 6 << 20
    process.reply(ask_handler(process, client, b"one"), wire.ANSWER, bytes(size), throttle_ms=100)
    channel = channel_of(pair)
    assert channel.pending_send > 0
    assert channel.mute_causes & (mute.HANDLER | mute.THROTTLE) == mute.HANDLER | mute.THROTTLE
    world.pass_time(0.2)
    assert channel.mute_causes & (mute.HANDLER | mute.THROTTLE) == mute.HANDLER
    world.read(client, size + 4)
    world.poll()
    assert channel.mute_causes == 0
    process.reply(ask_handler(process, client, b"two"), wire.NOTHING)


@each_of("quota", [False, True])
def test_no_response_with_a_throttle_alone_and_beside_a_quota(make_handled: Make, quota: bool) -> None:
    """Number 26. The channel is read when neither has a reason."""
    world, process, client, pair = with_client(make_handled())
    process.reply(ask_handler(process, client, b"one"), wire.NOTHING, throttle_ms=500)
    leg, channel = leg_of(pair), channel_of(pair)
    assert channel.mute_causes == mute.THROTTLE
    assert leg.throttle is not None
    if quota:
        leg.throttle.hold(QUOTA)
    world.pass_time(0.6)
    assert channel.mute_causes == (mute.THROTTLE if quota else 0)
    client.sendall(frame(b"two"))
    process.settle()
    if quota:
        assert not process.asked
        leg.throttle.let_go(QUOTA)
    process.reply(process.one(), wire.NOTHING)


@each_of(("first", "second", "over"), [(500, 500, 0.5), (500, 200, 0.5), (200, 500, 0.5)])
def test_two_throttles_for_one_request_begin_once_and_end_once(make_handled: Make, first: int, second: int, over: float) -> None:
    """Number 27: with equal deadlines, too."""
    world, process, client, pair = with_client(make_handled())
    asked = ask_handler(process, client, b"one")
    leg = leg_of(pair)
    verdicts.throttle(leg.handled, leg, first)
    process.reply(asked, wire.NOTHING, throttle_ms=second)
    channel = channel_of(pair)
    world.pass_time(over - 0.1)
    assert channel.mute_causes == mute.THROTTLE
    world.pass_time(0.2)
    assert channel.mute_causes == 0
    assert int(world.counters.listeners["l"].downstream.mutes[mute.position(mute.THROTTLE)]) == 1
    world.pass_time(10)
    assert channel.mute_causes == 0


def test_a_throttle_that_a_response_asks_for_is_the_clients(make_handled: Make) -> None:
    world, process, client, upstream, pair = with_pair(make_handled(upstream=True))
    process.reply(ask_handler(process, upstream, b"slow down"), wire.PASS, throttle_ms=300)
    assert world.read(client, 13) == frame(b"slow down")
    assert (channel_of(pair).mute_causes, channel_of(pair, 1).mute_causes) == (mute.THROTTLE, 0)
    client.sendall(frame(b"later"))
    process.settle()
    assert not process.asked
    world.pass_time(0.4)
    process.reply(process.one(), wire.PASS)
    assert world.read(upstream, 9) == frame(b"later")


def test_a_bug_of_ours_costs_one_connection(make_handled: Make) -> None:
    """Number 168."""
    world, process, client, pair = with_client(make_handled())
    other, _ = world.served()
    asked = ask_handler(process, client, b"x")
    fine = ask_handler(process, other, b"y")
    impossible = Request(1, Run(None, 0, b"", 0, 0, 1, 0), 0, b"", expects=False, withheld=False)
    impossible.run = None  # handed over, and yet here
    leg_of(pair).backlog.append(impossible)
    process.under_way -= 2
    process.send(process.record(asked, wire.NOTHING) + process.record(fine, wire.ANSWER, b"fine"))
    assert world.read(other, 8) == frame(b"fine"), "the second of the batch is handled"
    world.ended(client)
    finish(world, client)
    assert (world.row["cause"], world.selector.faults.total) == ("internal", 1)
    world.faults = 1


ACTIONS = st.sampled_from([wire.PASS, wire.FRAME, wire.NOTHING, wire.ANSWER])


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
@given(actions=st.lists(st.tuples(ACTIONS, st.integers(0, 3)), min_size=1, max_size=30), batch=st.integers(1, 7))
def test_any_answers_keep_their_order_and_nothing_is_lost(actions: list[tuple[int, int]], batch: int) -> None:
    """Frames in = frames out + dropped, in order on each side, and no lease is left."""
    world = HandledWorld(upstream=True)
    try:
        process = world.process(directions=("request",))
        client, upstream, pair = world.pair()
        client.sendall(b"".join(frame(b"%d" % number) for number in range(len(actions))))
        onward, back, number = b"", b"", 0
        while number < len(actions):
            asked = process.take()
            process.settle(1)
            asked += process.take(min(len(process.asked), batch - 1)) if process.asked else []
            data = b""
            for one in asked:
                assert one.sequence == number
                action, size = actions[number]
                body = (b"%d-" % number) * (1 + 100 * size) if action in (wire.FRAME, wire.ANSWER) else b""
                onward += frame(one.body) if action == wire.PASS else frame(body) if action == wire.FRAME else b""
                back += frame(body) if action == wire.ANSWER else b""
                data += process.record(one, action, body)
                number += 1
            process.under_way -= len(asked)
            process.send(data)
        assert (world.read(upstream, len(onward)) if onward else b"") == onward
        assert (world.read(client, len(back)) if back else b"") == back
        world.poll(1)
        assert world.pool.used == 0
        assert channel_of(pair).frames_received == sum(world.cell("requests", name) for name in wire.ACTIONS) == len(actions)
        assert channel_of(pair, 1).write_half.frames_sent + channel_of(pair).write_half.frames_sent == sum(
            action != wire.NOTHING for action, _ in actions
        )
    finally:
        world.close()


def test_a_leak_finding_pool_finds_no_leak_in_handled_pairs(make_handled: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool that looks after its holders finds nothing to put right: what is kept, waits, is dropped at the end, or is here in parts."""
    monkeypatch.setattr("tests.fakes.world.pool_of", LeakFindingPool)
    world = make_handled(upstream=True, limit=1 << 23, pool=1 << 25)
    pool = world.pool
    assert isinstance(pool, LeakFindingPool)
    process = world.process()
    client, upstream, _ = world.pair()
    client.setblocking(False)
    left = memoryview(frame(b"small") + frame(bytes(3 << 20)) + frame(b"kept until the end") + frame(b"and never handed over"))
    while left:
        try:
            left = left[client.send(left) :]
        except BlockingIOError:
            world.selector.poll(1)
            process.read()
    process.reply(process.take()[0], wire.PASS)
    process.reply(process.take()[0], wire.FRAME, bytes(5 << 20))
    process.reply(process.take()[0], wire.PASS)
    process.take()
    world.poll()
    assert pool.used > 0
    reset(upstream)
    world.poll()
    world.pass_time(2)
    finish(world, client)
    process.settle()
    assert pool.found == []
    assert pool.used == 0


def test_of_a_large_answer_that_is_recorded_no_copy_is_made(make_handled: Make, tmp_path: Path) -> None:
    tapped = tapping(tmp_path, queue_size=64 << 20)
    world, process, client, _, pair = with_pair(make_handled(upstream=True, **tapped))
    asked = ask_handler(process, client, b"ask")
    answer = verdicts.make_frame(INT32, INT32, [bytes(8 << 20)], b"", True)
    tracemalloc.start()
    assert verdicts._tap_answer(pair, leg_of(pair, 1), answer, world.clock.ns, withheld=False)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20
    process.reply(asked, wire.ANSWER, b"small")
    assert world.read(client, 9) == frame(b"small")
    assert tapped["writer"].flush_and_close(1000)
    assert [len(item.body) for item in read_frames(str(tmp_path)) if item.direction == "response"] == [8 << 20, 5]
