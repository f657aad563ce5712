"""How frames are read that are handled: whole runs, as many frames as may be under way, within memory; and what the tap has of them."""

import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framegate.proxy.network import mute
from framegate.proxy.network.framings import FRAMINGS
from framegate.proxy.network.memory_pool import BEGUN, PENDING
from framegate.proxy.network.run import Run
from framegate.proxy.relay import handler_wire as wire
from framegate.proxy.relay import handling
from tests.fakes.cases import each_of
from tests.fakes.framing_model import stream
from tests.fakes.handled import HandledWorld, channel_of
from tests.fakes.tap_read import read_frames, read_gaps
from tests.fakes.world import frame
from tests.proxy.relay.conftest import ask_handler, finish, reply_all, tapping, with_client, with_pair, with_process

Make = Callable[..., HandledWorld]


@each_of("cut", [0, 1, 3, 4, 5, 9])
def test_a_frame_is_handed_over_when_it_is_whole_within_one_poll(make_handled: Make, cut: int) -> None:
    world, process, client, _ = with_client(make_handled())
    process.reply(ask_handler(process, client, b"x"), wire.NOTHING)
    data = frame(b"question")
    if cut:
        client.sendall(data[:cut])
        process.settle()
        assert not process.asked
    client.sendall(data[cut:])
    world.selector.poll(50)
    process.read()
    (asked,) = process.asked
    process.asked.clear()
    assert asked.header + asked.body == data
    assert world.pool.used > 0, "the process has it"
    process.reply(asked, wire.NOTHING)
    assert world.pool.used == 0


def test_several_at_a_time_have_a_bound(make_handled: Make) -> None:
    world, process, client, pair = with_client(make_handled(queue=100_000))
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    count = handling.MOST + 500
    client.sendall(b"".join(frame(b"%d" % number) for number in range(count)))
    asked = process.take(handling.MOST)
    process.settle()
    assert not process.asked, "no more than that at a time"
    assert channel_of(pair).mute_causes == mute.HANDLER
    reply_all(process, asked, wire.NOTHING)
    asked = process.take(500)
    process.send(b"".join(process.record(one, wire.NOTHING) for one in asked))
    world.poll()
    assert (channel_of(pair).mute_causes, world.pool.used) == (0, 0)


@given(st.sampled_from(["int32", "varint", "lines", "lines_crlf", "grpc_message"]), st.lists(st.integers(0, 40), min_size=1, max_size=6), st.data())
def test_a_run_is_split_into_its_frames(name: str, sizes: list[int], data: st.DataObject) -> None:
    bodies = [bytes([97 + number]) * size for number, size in enumerate(sizes)]
    framing = FRAMINGS[name]
    frames = [stream(name, [body]) for body in bodies]
    whole = b"".join(frames)
    head = data.draw(st.integers(0, len(frames[0]) - 1))
    if head:
        run = Run([whole[:head]], head, whole[head:], len(frames[0]) - head, len(whole) - head, len(frames), 0, 0, framing)
    else:
        run = Run(None, 0, whole, 0, len(whole), len(frames), 0, 0, framing)
    split = handling.split(run)
    assert [b"".join(one.pieces()) for one in split] == frames
    assert [one.size for one in split] == [len(one) for one in frames]
    assert {(int(one.frames), int(one.lease), int(one.part)) for one in split} == {(1, 0, 0)}
    assert [int(one.first_sizes()[1]) for one in split] == sizes


def test_while_memory_is_short_one_frame_is_kept_at_a_time(make_handled: Make) -> None:
    """What may have to go on is held; so who would add to that waits."""
    world, process = with_process(make_handled(upstream=True, pool=1 << 20, limit=1 << 16))
    couples = [world.pair() for _ in range(4)]
    world.pool.common.charge(BEGUN, 1 << 20)
    for client, _, _ in couples:
        client.sendall(frame(bytes(10_000)))
    bodies = []
    for _ in couples:
        world.poll(10)
        process.read()
        assert len(process.asked) == 1
        asked = process.asked.pop()
        bodies.append(len(asked.body))
        process.reply(asked, wire.PASS)
    assert bodies == [10_000] * 4
    for _, upstream, _ in couples:
        world.read(upstream, 10_004)
    world.pool.common.release(BEGUN, 1 << 20)
    assert world.pool.used == 0


def test_replies_are_read_however_short_memory_is(make_handled: Make) -> None:
    """They let go of what is held: a long one has the reserve of answers."""
    world, process, client, upstream, _ = with_pair(make_handled(upstream=True, pool=1 << 20, limit=1 << 16))
    asked = ask_handler(process, client, b"x" * 5000)
    world.pool.common.charge(PENDING, 1 << 20)
    process.reply(asked, wire.FRAME, b"y" * 600_000)
    assert world.read(upstream, 600_004) == frame(b"y" * 600_000)
    world.pool.common.release(PENDING, 1 << 20)
    assert world.pool.used == 0


def test_what_is_kept_when_the_connection_ends_is_given_back_and_counted(make_handled: Make) -> None:
    world, process, client, upstream, _ = with_pair(make_handled(upstream=True))
    client.sendall(frame(b"one") + frame(b"three"))
    process.take(2)
    process.die()
    world.ended(client)
    world.ended(upstream)
    finish(world, client, upstream)
    assert world.row["lost"]["request"] == 16
    assert world.pool.used == 0


@pytest.mark.parametrize("upstream", [False, True])
@pytest.mark.parametrize("framing", ["int32", "varint"])
def test_the_tap_has_what_came_and_what_the_handler_answered(tmp_path: Path, upstream: bool, framing: str) -> None:
    tapped = tapping(tmp_path)
    world = HandledWorld(upstream=upstream, framing=FRAMINGS[framing], **tapped)
    process = world.process()
    if upstream:
        client, server, _ = world.pair()
    else:
        client, _ = world.served()
    bodies = [b"first", b"second"]
    for number, body in enumerate(bodies):
        client.sendall(stream(framing, [body]))
        process.reply(process.one(), wire.ANSWER, b"ANSWER %d" % number)
        wanted = stream(framing, [b"ANSWER %d" % number])
        assert world.read(client, len(wanted)) == wanted
    client.close()
    if upstream:
        world.ended(server)
        server.close()
    world.until(lambda: world.rows)
    world.close()
    assert tapped["writer"].flush_and_close(1000)
    found = sorted((str(one.direction), bytes(one.body)) for one in read_frames(str(tmp_path)))
    assert [body for _, body in found if body in bodies] == bodies
    assert [body for _, body in found if body not in bodies] == [b"ANSWER 0", b"ANSWER 1"]
    assert not list(read_gaps(str(tmp_path)))


def test_an_operators_mute_and_a_handlers_are_two_things(make_handled: Make) -> None:
    """Numbers 28 to 30: what a response ends is the handler's mute, and no other's; muting what is closed changes nothing."""
    world, process, client, pair = with_client(make_handled(queue=1))
    client.sendall(frame(b"one") + frame(b"two"))
    asked = process.one()
    channel = channel_of(pair)
    assert channel.mute(mute.ADMIN)
    assert channel.mute_causes == mute.ADMIN | mute.HANDLER, "the second waits to be handed over"
    process.reply(asked, wire.NOTHING)
    assert channel.mute_causes == mute.ADMIN
    process.reply(process.one(), wire.NOTHING)
    client.sendall(frame(b"three") + frame(b"four"))
    process.settle()
    assert not process.asked
    channel.unmute(mute.ADMIN)
    asked = process.one()
    channel.mute(mute.ADMIN)
    channel.unmute(mute.ADMIN)
    assert channel.mute_causes == mute.HANDLER, "the fourth waits to be handed over"
    process.reply(asked, wire.NOTHING)
    assert channel.mute_causes == 0
    process.reply(process.one(), wire.NOTHING)
    finish(world, client)
    channel.mute(mute.HANDLER)
    assert channel.mute_causes == 0


@each_of("upstream", [False, True])
@each_of(("header", "cause"), [(b"\xff\xff\xff\xff", "negative_size"), (b"\x7f\xff\xff\xff", "frame_too_large")])
@each_of("apart", [False, True])
def test_whole_frames_before_a_bad_header_are_served(make_handled: Make, upstream: bool, header: bytes, cause: str, apart: bool) -> None:
    """Whether all came in one read or the header in one of its own, and though the handler takes its time."""
    world, process = with_process(make_handled(upstream=upstream))
    client = (world.pair() if upstream else world.served())[0]
    bodies = [b"one", b"two", b"three"]
    client.sendall(b"".join(map(frame, bodies)) + (b"" if apart else header))
    if apart:
        world.poll()
        client.sendall(header)
        world.poll()
    for body in bodies:
        (asked,) = process.take()
        world.poll()
        assert (asked.body, world.rows) == (body, [])
        process.reply(asked, wire.ANSWER, body.upper())
    assert world.ended(client) == b"".join(frame(body.upper()) for body in bodies)
    client.close()
    if not upstream:
        world.until(lambda: world.rows)
        assert world.row["cause"] == cause


def test_a_client_that_does_not_take_an_answer_has_no_more_frames_handled(make_handled: Make) -> None:
    """Of several frames that are here; nobody else waits for that."""
    world, process, client, pair = with_client(make_handled())
    other, _ = world.served()
    first = ask_handler(process, client, b"first")
    second = ask_handler(process, client, b"second")
    size = 12 << 20
    process.reply(first, wire.ANSWER, bytes(size))
    assert channel_of(pair).pending_send > 0
    client.sendall(frame(b"third"))
    process.settle()
    assert not process.asked
    process.reply(ask_handler(process, other, b"other"), wire.ANSWER, b"OTHER")
    assert world.read(other, 9) == frame(b"OTHER")
    process.reply(second, wire.ANSWER, b"SECOND")
    assert world.read(client, size + 4 + 10) == frame(bytes(size)) + frame(b"SECOND")
    process.reply(process.one(), wire.NOTHING)
