"""Listeners with a handler, over real sockets, to a process whose every reply is the test's: whole lives of connections."""

import gc
import socket
from collections.abc import Callable

from framegate.proxy.cause import Cause
from framegate.proxy.relay import ending
from framegate.proxy.relay import handler_wire as wire
from framegate.proxy.relay.handled_pair import Handled, HandledLeg
from framegate.proxy.server.pair_rows import open_row
from tests.fakes.cases import each_of
from tests.fakes.handled import MS, HandledWorld, channel_of
from tests.fakes.world import frame, reset
from tests.proxy.relay.conftest import ask_handler, begin_drain, finish, with_client, with_pair, with_process

Make = Callable[..., HandledWorld]


def test_a_request_is_answered(make_handled: Make) -> None:
    """Number 159: a plain request, echoed."""
    world, process, client, pair = with_client(make_handled())
    asked = ask_handler(process, client, b"hello")
    assert (asked.direction, asked.sequence, asked.header, asked.body) == (0, 0, b"\0\0\0\x05", b"hello")
    assert process.opened[asked.connection]["upstream"] is False
    process.reply(asked, wire.ANSWER, b"HELLO!")
    assert world.read(client, 10) == frame(b"HELLO!")
    assert channel_of(pair).mute_causes == 0
    asked = ask_handler(process, client, b"again")
    assert asked.sequence == 1
    process.reply(asked, wire.ANSWER, b"")
    assert world.read(client, 4) == frame(b"")
    finish(world, client)
    assert (world.row["cause"], world.row["upstream"], world.row["endpoint"]) == ("peer_closed", "", "")
    assert (world.row["frames"], world.row["lost"]["bytes"]) == ({"request": 2, "response": 2}, 0)
    process.settle()
    assert process.closed == [asked.connection]


def test_what_a_process_is_told_of_a_connection_and_when(make_handled: Make) -> None:
    world, process, client, pair = with_client(make_handled())
    silent, _ = world.served()
    finish(world, silent)
    assert world.row["cause"] == "no_data"
    process.settle()
    assert not process.opened, "not before its first frame"
    asked = ask_handler(process, client, b"x")
    assert process.opened == {
        int(pair.id): {
            "id": "1-1-1",
            "listener": "l",
            "peer": "192.0.2.1:1",
            "principal": channel_of(pair).principal,
            "principal_type": channel_of(pair).principal_type,
            "tls": None,
            "upstream": False,
        }
    }
    process.reply(asked, wire.NOTHING)


def test_a_frame_above_the_limit_never_comes_to_a_handler(make_handled: Make) -> None:
    """Number 160: one byte more than may be."""
    world, process, client, _ = with_client(make_handled(limit=100))
    process.reply(ask_handler(process, client, bytes(100)), wire.ANSWER, b"fits")
    assert world.read(client, 8) == frame(b"fits")
    client.sendall(frame(bytes(101)))
    world.until(lambda: world.rows)
    assert (world.row["cause"], world.row["frames"]["request"]) == ("frame_too_large", 1)
    process.settle()
    assert not process.asked


@each_of("answers", [False, True])
def test_the_end_of_a_clients_stream_waits_for_what_came_before(make_handled: Make, answers: bool) -> None:
    """Numbers 161 and 166: a client ends behind ten frames and a part of one, and gets no answers, or all and the end."""
    world, process, client, pair = with_client(make_handled())
    client.sendall(b"".join(frame(b"%d" % number) for number in range(10)) + (frame(b"part")[:6] if answers else b""))
    if answers:
        client.shutdown(socket.SHUT_WR)
    else:
        client.close()
    requests = process.take(10)
    world.poll()
    assert channel_of(pair).read_half.ended
    assert pair.state.value == "open", "the end is not told before what came is answered"
    for number, asked in enumerate(requests):
        assert (asked.sequence, asked.body, world.rows) == (number, b"%d" % number, [])
        process.reply(asked, wire.ANSWER if answers else wire.NOTHING, asked.body if answers else b"")
    if answers:
        assert world.ended(client) == b"".join(frame(b"%d" % number) for number in range(10))
    world.until(lambda: world.rows)
    found = (world.row["cause"], world.row["lost"]["bytes"], world.row["frames"]["response"])
    assert found == (("peer_closed", 6, 10) if answers else ("peer_closed", 0, 0))
    assert world.cell("requests", "answer" if answers else "nothing") == 10


@each_of("how", ["idle", "reset", "admin"])
def test_a_late_reply_is_dropped_and_counted(make_handled: Make, how: str) -> None:
    """Numbers 164 and 165: the connection ends within a request, by its idle time, a RST, or an operator; its reply comes afterwards."""
    world, process, client, pair = with_client(make_handled(idle_s=5))
    asked = ask_handler(process, client, b"question")
    if how == "idle":
        world.pass_time(5.1)
        world.ended(client)
        client.close()
    elif how == "reset":
        reset(client)
    else:
        ending.end(pair, Cause.ADMIN, "", "internal")
        assert world.ended(client) == b""
        client.close()
    world.until(lambda: world.rows)
    process.settle()
    assert process.closed == [asked.connection]
    assert world.cell("queue.size") == 0, "nobody waits for it any more"
    process.reply(asked, wire.ANSWER, b"late", began_ns=1, ended_ns=2)
    assert (world.cell("requests", "answer"), world.cell("queue.size")) == (1, 0)
    assert (world.row["cause"], len(world.rows)) == ({"idle": "idle", "reset": "peer_reset", "admin": "admin"}[how], 1)
    assert world.row["frames"]["response"] == 0
    fresh, _ = world.served()
    again = ask_handler(process, fresh, b"next")
    assert again.connection != asked.connection
    process.reply(again, wire.ANSWER, b"for the other")
    assert world.read(fresh, 17) == frame(b"for the other"), "nothing else was delivered"


def test_connections_that_end_leave_the_queue_without_a_reply(make_handled: Make) -> None:
    """A handler that is cancelled replies to nothing."""
    world, process = with_process(make_handled(queue=2))
    for _ in range(7):
        client, pair = world.served()
        client.sendall(frame(b"question"))
        process.one()
        reset(client)
        world.until(lambda pair=pair: pair.state.value == "closed")
    process.settle()
    assert process.ours.under_way == 0
    assert len(process.ours.connections) <= 2, "late replies are remembered, but not for ever"
    client, _ = world.served()
    process.reply(ask_handler(process, client, b"question"), wire.ANSWER, b"answer")
    assert world.read(client, 10) == frame(b"answer")


@each_of("size", [10, 550_000])
def test_a_client_that_vanishes_while_its_answer_goes_out(make_handled: Make, size: int) -> None:
    """Number 167: what is counted is counted, before and during the response, small and large."""
    world, process, client, pair = with_client(make_handled())
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    asked = ask_handler(process, client, b"question")
    process.reply(asked, wire.ANSWER, bytes(size))
    reset(client)
    world.until(lambda: world.rows)
    assert pair.state.value == "closed"
    assert world.cell("requests", "answer") == 1
    assert world.cell("queue.size") == 0


def test_the_row_shows_what_mutes_and_what_is_held(make_handled: Make) -> None:
    _, process, client, _, pair = with_pair(make_handled(upstream=True, queue=1))
    client.sendall(frame(bytes(1000)) * 2)
    asked = process.one()
    row = open_row(pair, 0)
    assert (row["muted"], row["frames"]["request"], row["upstream"]) == (["handler"], 2, "u")
    assert row["leased"] >= 2008
    process.reply(asked, wire.NOTHING)
    process.reply(process.one(), wire.NOTHING)
    assert (open_row(pair, 0)["muted"], open_row(pair, 0)["leased"]) == ([], 0)


@each_of("directions", [("request", "response"), ("request",)])
def test_a_framed_pair_that_drains_ends_right_behind_an_answer_that_makes_answers_even(make_handled: Make, directions: tuple[str, ...]) -> None:
    world, process, client, upstream, pair = with_pair(make_handled(upstream=True, quiet_s=1), directions=directions)

    def ask() -> None:
        process.reply(ask_handler(process, client, b"question"), wire.PASS)
        assert world.read(upstream, 12) == frame(b"question")
        upstream.sendall(frame(b"answer"))
        if "response" in directions:
            process.reply(process.one(), wire.PASS)
        assert world.read(client, 10) == frame(b"answer")

    ask()
    ask()
    begin_drain(world, 30)
    world.pass_time(0.05)
    assert pair.state.value == "open"
    ask()
    assert pair.state.value == "closing"
    assert world.ended(client) == b""


def test_times_are_observed(make_handled: Make) -> None:
    world, process, client, _ = with_client(make_handled())
    asked = ask_handler(process, client, b"x")
    start = world.clock.ns
    world.clock.ns += 10 * MS
    process.reply(asked, wire.ANSWER, b"y", began_ns=start + 2 * MS, ended_ns=start + 7 * MS)
    metrics = world.route.handler
    assert metrics is not None
    times = (metrics.queue_time, metrics.local_time, metrics.response_queue_time, metrics.send_time)
    assert [int(one.sum) for one in times] == [2 * MS, 5 * MS, 3 * MS, 0]
    assert [sum(map(int, one.buckets)) for one in times] == [1, 1, 1, 1]


def test_what_is_over_leaves_nothing_for_the_garbage_collector(make_handled: Make) -> None:
    """Many that end together would otherwise stay until a full collection, which is rare."""
    world, process = with_process(make_handled())
    gc.collect()
    gc.disable()
    try:
        clients = [world.served()[0] for _ in range(5)]
        for client in clients:
            client.sendall(frame(b"x"))
            process.reply(process.take()[0], wire.ANSWER, b"y")
            assert world.read(client, 5) == frame(b"y")
            client.close()
        world.until(lambda: len(world.rows) == 5)
        world.poll(3)
        process.settle()
        assert not world.relay.pairs.open
        assert not [item for item in gc.get_objects() if {HandledLeg, Handled} & set(type(item).__mro__)]  # isinstance errs on native classes
    finally:
        gc.enable()
