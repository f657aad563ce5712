"""The socket to a handler process: batches, the queue and who waits for it, memory, and a process that breaks the rules."""

import itertools
import socket
from collections.abc import Callable

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from framegate.proxy.network import mute
from framegate.proxy.relay import handler_wire as wire
from tests.fakes.cases import each_of
from tests.fakes.handled import Asked, HandledWorld, channel_of
from tests.fakes.world import frame, reset
from tests.proxy.relay.conftest import ask_handler, finish, reply_all, send_all, with_client, with_process

Make = Callable[..., HandledWorld]


def test_the_requests_of_one_poll_leave_in_one_write(make_handled: Make) -> None:
    world, process = with_process(make_handled())
    clients = [world.served()[0] for _ in range(20)]
    channel = process.ours.channel
    assert channel is not None
    for client in clients:
        client.sendall(frame(b"question"))
    before = int(channel.options.stats.writes)
    asked = process.take(20)
    assert int(channel.options.stats.writes) - before <= 2, "the polls that read them, not the requests"
    reply_all(process, asked, wire.ANSWER, b"answer")
    for client in clients:
        assert world.read(client, 10) == frame(b"answer")


def test_the_replies_of_one_read_leave_in_one_write_for_each_connection(make_handled: Make) -> None:
    world, process, client, _ = with_client(make_handled())
    client.sendall(b"".join(frame(b"%02d" % number) for number in range(20)))
    asked = process.take(20)
    writes = world.counters.listeners["l"].downstream
    before = int(writes.writes)
    reply_all(process, asked, wire.ANSWER, None)
    assert world.read(client, 120) == b"".join(frame(b"%02d" % number) for number in range(20))
    assert int(writes.writes) - before == 1


@each_of("queue", [1, 3])
def test_the_queue_is_bounded_and_first_come_first_served(make_handled: Make, queue: int) -> None:
    """§5.27: a full queue stops the reading of those who would fill it, and nothing else."""
    world, process = with_process(make_handled(queue=queue))
    pairs = [world.served() for _ in range(8)]
    for number, (client, _) in enumerate(pairs):
        client.sendall(frame(b"%d" % number))
        world.poll()
    process.settle()
    assert len(process.asked) == queue == process.ours.under_way
    for _, pair in pairs[queue:]:
        channel = channel_of(pair)
        assert (channel.mute_causes, channel.frames_received) == (mute.HANDLER, 0), "it is not read"
    order = []
    for _ in pairs:
        asked = process.take()[0]
        order.append(asked.body)
        process.reply(asked, wire.ANSWER, asked.body)
    assert order == [b"%d" % number for number in range(8)]
    assert process.most <= queue
    for number, (client, _) in enumerate(pairs):
        assert world.read(client, 5) == frame(b"%d" % number)


@each_of("muted", [False, True])
def test_a_connection_with_a_place_and_part_of_a_frame_or_a_mute_does_not_block_the_queue(make_handled: Make, muted: bool) -> None:
    world, process = with_process(make_handled(queue=1))
    (first, _), (second, pair), (third, _) = (world.served() for _ in range(3))
    asked = ask_handler(process, first, b"first")
    second.sendall(frame(b"second")[: 10 if muted else 6])
    world.poll()
    third.sendall(frame(b"third"))
    world.poll()
    if muted:
        channel_of(pair).mute(mute.ADMIN)
    process.reply(asked, wire.NOTHING)
    asked = process.one()
    assert asked.body == b"third"
    if muted:
        channel_of(pair).unmute(mute.ADMIN)
    else:
        second.sendall(frame(b"second")[6:])
    world.poll()
    process.reply(asked, wire.NOTHING)
    asked = process.one()
    assert asked.body == b"second"
    process.reply(asked, wire.NOTHING)


def test_a_connection_that_waits_and_leaves_does_not_block_the_queue(make_handled: Make) -> None:
    world, process = with_process(make_handled(queue=1))
    first, second, third = (world.served()[0] for _ in range(3))
    asked = ask_handler(process, first, b"first")
    for client in (second, third):
        client.sendall(frame(b"later"))
        world.poll()
    second.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    finish(world, second)
    process.reply(asked, wire.NOTHING)
    process.reply(process.one(), wire.NOTHING)


def test_what_waits_for_the_socket_is_booked_and_given_back(make_handled: Make) -> None:
    """A process that does not read: what it was sent waits here, counted."""
    world, process = with_process(make_handled(limit=1 << 22))
    clients = []
    for _ in range(6):
        client, _ = world.served()
        send_all(world, client, frame(bytes(1 << 20)))
        clients.append(client)
    world.poll(20)
    assert world.pool.used > 4 << 20
    for _ in range(6):
        asked = process.take()[0]
        assert len(asked.body) == 1 << 20
        process.reply(asked, wire.NOTHING)
    assert world.pool.used == 0


@each_of("size", [0, 1, 16_383, 16_384, 300_000, 1_000_000])
def test_frames_and_answers_of_every_size(make_handled: Make, size: int) -> None:
    world, process, client, _ = with_client(make_handled(limit=1 << 22))
    body = bytes(range(256)) * (size // 256 + 1)
    send_all(world, client, frame(body[:size]))
    asked = process.take()[0]
    assert asked.body == body[:size]
    process.reply(asked, wire.ANSWER, asked.body[::-1])
    assert world.read(client, size + 4) == frame(body[:size][::-1])
    assert world.pool.used == 0


BROKEN = {
    "a reply that was not asked for": lambda process, asked: process.record(Asked(0, asked.connection, 5, b"", b""), wire.ANSWER),
    "a reply of the other direction": lambda process, asked: process.record(Asked(1, asked.connection, 0, b"", b""), wire.ANSWER),
    "a second HELLO": lambda process, asked: wire.encode_hello({"wire": wire.WIRE, "slot": 0, "handlers": {}}),
    "a record of the processor's": lambda process, asked: wire.encode_closed(asked.connection),
    "a long reply that was not asked for": lambda process, asked: process.record(asked, wire.ANSWER, bytes(wire.LONG + 1)),
    "two replies that wait": lambda process, asked: 2 * process.record(asked, wire.HELD, (1 << 20).to_bytes(8, "big")),
    "no such action": lambda process, asked: b"\0\0\0\x28\x04\x09" + bytes(38),
    "no such kind": lambda process, asked: b"\0\0\0\x28\x09" + bytes(39),
    "a size below zero": lambda process, asked: b"\xff\xff\xff\xff",
}


@each_of("name", BROKEN)
def test_a_process_that_breaks_the_rules_is_let_go(make_handled: Make, name: str) -> None:
    """And the connections that had a request there; no other."""
    world = make_handled()
    broken, sound = world.process("0.1"), world.process("1.1")
    victim, other = world.served()[0], world.served()[0]
    victim.sendall(frame(b"x"))
    asked = broken.one()
    other.sendall(frame(b"y"))
    fine = sound.one()
    broken.send(BROKEN[name](broken, asked))
    world.ended(victim)
    finish(world, victim)
    assert (world.row["cause"], world.row["detail"]) == ("handler_failed", "handler process 0 is gone")
    sound.reply(fine, wire.ANSWER, b"y")
    assert world.read(other, 5) == frame(b"y")
    assert world.selector.faults.total == (0 if name == "a size below zero" else 1), "it is our own code that broke them"
    world.faults = world.selector.faults.total


def test_a_first_record_that_is_no_hello(make_handled: Make) -> None:
    world, process = with_process(make_handled(), ready=False)
    world.faults = 1
    process.send(wire.encode_replies([(wire.PASS, 0, 0, 1, 0, 0, 0, b"")]))
    world.until(lambda: world.selector.faults.total)
    assert "before HELLO" in world.selector.faults.take()[0].error


STEP = st.tuples(st.integers(0, 3), st.integers(1, 4), st.booleans())


def test_a_waiting_connection_hands_over_16_frames_in_turn(make_handled: Make) -> None:
    """One at a time would scatter the answers of each: a write for every few of them."""
    world, process = with_process(make_handled(queue=16))
    clients = [world.served()[0] for _ in range(3)]
    for number, client in enumerate(clients):
        client.sendall(b"".join(frame(b"%d" % number) for _ in range(50)))
        world.poll()
    process.settle()
    order = b""
    for _ in range(9):
        asked = process.take(16)
        order += b"".join(one.body for one in asked)
        reply_all(process, asked, wire.ANSWER, None)
    turns = [len(list(group)) for _, group in itertools.groupby(order)]
    assert len(turns) <= 20, "144 frames; a full queue may cut a turn in two"
    assert set(order[64:]) == set(b"12"), "in turn"


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
@given(queue=st.integers(1, 4), steps=st.lists(STEP, max_size=25), cut=st.integers(1, 9))
def test_any_order_of_requests_and_replies(queue: int, steps: list[tuple[int, int, bool]], cut: int) -> None:
    """The queue is never above its bound, each connection's answers come in order, and nothing is held in the end."""
    world = HandledWorld(queue=queue)
    try:
        process = world.process()
        clients = [world.served()[0] for _ in range(4)]
        for client in clients:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sent = [0] * 4
        seen = [b""] * 4

        def answer() -> None:
            for _ in range(4):
                world.selector.poll(0)
            process.read()
            assert process.ours.under_way <= queue
            if process.asked:
                asked = process.asked.pop(0)
                process.under_way -= 1
                process.send(process.record(asked, wire.ANSWER, asked.body))

        for number, count, replies in steps:
            for _ in range(count):
                data = frame(b"%d:%d" % (number, sent[number]))
                clients[number].sendall(data[:cut])
                world.selector.poll(0)
                clients[number].sendall(data[cut:])
                sent[number] += 1
            world.selector.poll(0)
            if replies:
                answer()
        for _ in range(sum(sent) + 4):
            answer()
        assert process.most <= queue
        assert world.cell("requests", "answer") == sum(sent)
        for number, client in enumerate(clients):
            wanted = b"".join(frame(b"%d:%d" % (number, index)) for index in range(sent[number]))
            seen[number] = world.read(client, len(wanted)) if wanted else b""
            assert seen[number] == wanted
        assert world.pool.used == 0
        assert process.ours.under_way == 0
    finally:
        world.close()


BIG = 12 << 20


def test_clients_that_do_not_read_hold_one_long_answer_beyond_the_pool_and_do_not_delay_others(make_handled: Make) -> None:
    """What handlers answer is bounded: the others stay where they were made, and who asks for little gets it at once. Who does not move goes."""
    pool = 4 << 20
    world, process = with_process(make_handled(pool=pool))
    slow = [world.served()[0] for _ in range(4)]
    waits = []
    slow[0].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    for client in slow:
        client.sendall(frame(b"much"))
        waits.append(process.one())
        process.announce(waits[-1], BIG)
    process.settle()
    assert process.wanted == [(waits[0].connection, 0)], "one has the reserve"
    process.await_send(waits[0])
    process.send(process.record(waits[0], wire.ANSWER, bytes(BIG)))
    world.poll()
    assert pool < world.pool.used <= BIG + (1 << 20)
    assert (process.wanted, int(world.pool.answers.waiting)) == ([], 3)
    quick, _ = world.served()
    for number in range(3):
        quick.sendall(frame(b"little"))
        process.reply(process.take()[0], wire.ANSWER, b"%d" % number)
        assert world.read(quick, 5) == frame(b"%d" % number)
    for _ in range(40):
        world.pass_time(0.25)
        if world.rows:
            break
    assert world.row["cause"] == "send_stalled"
    process.settle()
    assert process.wanted == [(waits[1].connection, 0)], "the next has its turn"
    process.await_send(waits[1])
    process.send(process.record(waits[1], wire.ANSWER, bytes(BIG)))
    assert world.read(slow[1], BIG + 4) == frame(bytes(BIG))
    process.settle()
    assert process.wanted == [(waits[2].connection, 0)]
    assert world.pool.most_used <= 3 * BIG, "booked where it came, and where it waits, for a moment"


def test_an_answer_that_waits_or_is_on_its_way_when_its_client_leaves(make_handled: Make) -> None:
    world, process = with_process(make_handled(pool=4 << 20))
    clients = [world.served()[0] for _ in range(3)]
    asked = []
    for client in clients:
        client.sendall(frame(b"much"))
        asked.append(process.one())
        process.announce(asked[-1], BIG)
    process.settle()
    for client in clients[:2]:
        reset(client)
    world.until(lambda: len(world.rows) == 2)
    process.settle()
    assert int(world.pool.answers.waiting) == 1, "who left waits no more; who was asked for comes"
    process.send(process.record(asked[0], wire.ANSWER, bytes(BIG)))
    process.wanted.clear()
    process.await_send(asked[2])
    process.send(process.record(asked[2], wire.ANSWER, bytes(BIG)))
    assert world.read(clients[2], BIG + 4) == frame(bytes(BIG))
    world.poll()
    assert (int(world.pool.used), int(world.pool.promised), len(world.pool.answers.admitted)) == (0, 0, 0)


def test_a_process_that_dies_with_long_answers_gives_their_turns_back(make_handled: Make) -> None:
    world, process = with_process(make_handled(pool=4 << 20))
    for _ in range(2):
        client, _ = world.served()
        client.sendall(frame(b"much"))
        process.announce(process.one(), BIG)
    process.settle()
    process.die()
    world.until(lambda: world.requests.processes == [])
    assert (int(world.pool.answers.waiting), len(world.pool.answers.admitted), world.pool.answers.reserved) == (0, 0, None)
