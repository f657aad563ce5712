"""Which process a connection belongs to, what happens when one is gone, and how long none is waited for."""

import socket
from collections.abc import Callable

from framegate.proxy.network import mute
from framegate.proxy.relay import handler_wire as wire
from tests.fakes.cases import each_of
from tests.fakes.handled import HandledWorld, Process, channel_of
from tests.fakes.world import frame
from tests.proxy.relay.conftest import ask_handler, finish

Make = Callable[..., HandledWorld]


def ask(client: socket.socket, process: Process, body: bytes = b"x") -> None:
    """A request that is answered by a process."""
    asked = ask_handler(process, client, body)
    process.reply(asked, wire.ANSWER, body)
    assert process.world.read(client, len(body) + 4) == frame(body)


def test_a_connection_belongs_to_the_process_with_the_fewest_and_stays(make_handled: Make) -> None:
    world = make_handled()
    one, two = world.process("0.1"), world.process("1.1")
    clients = [world.served()[0] for _ in range(4)]
    for client, process in zip(clients, (one, two, one, two), strict=True):
        ask(client, process)
    for client, process in zip(clients, (one, two, one, two), strict=True):
        ask(client, process)
    clients[1].close()
    clients[3].close()
    world.until(lambda: len(world.rows) == 2)
    for _ in range(2):
        ask(world.served()[0], two)


@each_of("timeout_s", [0, 5])
def test_waiting_for_a_process_has_an_end(make_handled: Make, timeout_s: int) -> None:
    world = make_handled(timeout_s=timeout_s)
    idle, _ = world.served()
    client, _ = world.served()
    client.sendall(frame(b"x"))
    world.poll()
    world.pass_time(4.9)
    late, _ = world.served()
    late.sendall(frame(b"y"))
    world.poll()
    assert not world.rows
    world.pass_time(0.2)
    if timeout_s == 0:
        world.pass_time(3600)
        assert not world.rows
        return
    world.ended(client)
    finish(world, client)
    assert (world.row["cause"], world.row["detail"], world.row["side"]) == ("handler_failed", "no handler process", "internal")
    world.pass_time(4.9)
    world.ended(late)
    late.close()
    world.until(lambda: len(world.rows) == 2)
    assert idle.fileno() >= 0
    world.pass_time(100)
    assert len(world.rows) == 2, "who asks for nothing is not waited for"


@each_of("upstream", [False, True])
def test_the_death_of_a_process_ends_connections_with_a_request_there(make_handled: Make, upstream: bool) -> None:
    world = make_handled(upstream=upstream)
    first, second = world.process("7.3"), world.process("8.1")
    make = world.pair if upstream else world.served
    busy, calm, other = make()[0], make()[0], make()[0]
    for client, process in ((busy, first), (other, second), (calm, first)):
        asked = ask_handler(process, client, b"x")
        process.reply(asked, wire.NOTHING)
    busy.sendall(frame(b"question"))
    first.one()
    other.sendall(frame(b"other"))
    pending = second.one()
    first.die()
    world.until(lambda: first.ours.is_gone)
    world.ended(busy)
    busy.close()
    if not upstream:
        world.until(lambda: world.rows)
        assert (world.row["cause"], world.row["detail"], world.row["side"]) == ("handler_failed", "handler process 7 is gone", "internal")
    assert world.cell("queue.size") == 1
    calm.sendall(frame(b"on"))
    asked = second.take()[0]
    assert (asked.body, asked.sequence) == (b"on", 1)
    assert asked.connection in second.opened, "it belongs to another now, which knows nothing of it"
    second.reply(asked, wire.NOTHING)
    second.reply(pending, wire.NOTHING)
    assert len(world.rows) <= 1


@each_of("first", [False, True])
def test_a_connection_waits_until_there_is_a_process_that_handles_its_listener(make_handled: Make, first: bool) -> None:
    """From its first frame, or from the death of the only process on; one that comes in time ends the waiting."""
    world = make_handled(timeout_s=30)
    client, pair = world.served()
    if first:
        dead = world.process("0.1")
        ask(client, dead)
        dead.die()
    client.sendall(frame(b"later"))
    world.poll()
    read = int(first)
    assert (channel_of(pair).mute_causes, channel_of(pair).frames_received) == (mute.HANDLER, read), "not read before somebody may have it"
    world.pass_time(10)
    stranger = world.process("0.2", listener="other")
    process = world.process("1.2", ready=False)
    world.poll()
    assert channel_of(pair).mute_causes == mute.HANDLER, "there is one when it has said what it handles"
    process.hello()
    asked = process.one()
    world.pass_time(30)
    process.reply(asked, wire.ANSWER, asked.body)
    assert world.read(client, 9) == frame(b"later")
    ask(client, process)
    assert not stranger.opened


def test_a_frame_that_was_read_and_not_handed_over_goes_to_the_next_process(make_handled: Make) -> None:
    """It came in one read with others, and the one place is another connection's when their process dies."""
    world = make_handled(queue=1)
    first = world.process("0.1")
    (client, _), (other, _) = world.served(), world.served()
    client.sendall(frame(b"one") + frame(b"two") + frame(b"three"))
    one = first.one()
    other.sendall(frame(b"other"))
    world.poll()
    first.reply(one, wire.ANSWER, b"1")
    first.reply(first.one(), wire.ANSWER, b"2")
    assert first.one().body == b"other"
    second = world.process("1.1")
    first.die()
    world.ended(other)
    finish(world, other)
    three = second.one()
    assert three.body == b"three"
    second.reply(three, wire.ANSWER, b"3")
    assert world.read(client, 15) == frame(b"1") + frame(b"2") + frame(b"3")
