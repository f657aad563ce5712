"""Clients and upstreams that speak different framings: every pair over real sockets; limits, mutes, short memory, pieces, the record, counters."""

import contextlib
import random
import socket
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from framegate.proxy.network import mute
from framegate.proxy.network.channel import Channel
from framegate.proxy.network.framing import Framing
from framegate.proxy.network.framings import FRAMINGS, FixedHeaderFraming
from framegate.proxy.network.memory_pool import BEGUN
from framegate.proxy.network.read_half import MAX_GROWN
from framegate.proxy.relay.pair import Pair
from framegate.proxy.tap import record
from tests.fakes.cases import each_of
from tests.fakes.crowd import set_send_buffer
from tests.fakes.framing_model import MODELS, stream
from tests.fakes.tap_read import read_blocks, read_frames, read_gaps
from tests.fakes.tls import TlsWorld
from tests.fakes.world import SMALL, World
from tests.proxy.relay.conftest import assert_nothing_to_read, finish, open_pair, tapping

Make = Callable[..., World]
OTHERS = [("int32", "varint"), ("varint", "int32"), ("int32", "lines"), ("lines", "int32"), ("lines_crlf", "mysql_packet"), ("grpc_message", "int32")]
others = each_of(("speaks", "onward"), OTHERS)


def sides(speaks: str, onward: str) -> dict[str, Any]:
    return {"framing": FRAMINGS[speaks], "upstream_framing": FRAMINGS[onward]}


def text(size: int, number: int = 0) -> bytes:
    """A body that every framing can carry."""
    return bytes([97 + number % 26]) * size


def exchange(world: World, source: socket.socket, sink: socket.socket, data: bytes, wanted: bytes, step: int = 1 << 20) -> None:
    """Send a stream in steps, and read what becomes of it at the other end."""
    seen = b""
    sink.setblocking(False)
    source.setblocking(False)
    position = idle = 0
    while (len(seen) < len(wanted) or position < len(data)) and idle < 2000:
        idle += 1
        if position < len(data):
            try:
                position += source.send(data[position : position + step])
                idle = 0
            except BlockingIOError:
                world.selector.poll(1)
        world.selector.poll(0)
        try:
            piece = sink.recv(1 << 16)
            assert piece, "the stream ended"
            seen += piece
            idle = 0
        except BlockingIOError:
            world.clock.ns += 1_000_000  # for sockets that are looked at now and then
            world.selector.poll(1 if position == len(data) else 0)
    assert seen == wanted
    sink.settimeout(2)
    source.settimeout(2)


def tls_pair(world: World, tls: TlsWorld) -> tuple[socket.socket, socket.socket, Pair]:
    """As ``World.pair``, with a client over TLS."""
    plain, pair = world.client()
    client = world.shake(plain, tls.client_settings().context)
    world.until(lambda: pair.state.value == "open")
    upstream, _ = world.server.accept()
    world.sockets.append(upstream)
    client.setblocking(True)
    upstream.setblocking(False)
    return client, upstream, pair


def mute_within_frame(world: World, pair: Pair) -> Channel:
    """Have what was sent read, and mute the client for an operator."""
    world.poll()
    channel = pair.client.channel
    assert channel is not None
    channel.mute(mute.ADMIN)
    assert channel.mutes.state.value == "muting"
    return channel


def assert_muted(world: World, channel: Channel, sink: socket.socket) -> None:
    """The mute holds, and nothing more is passed on."""
    world.poll(5)
    assert channel.mutes.state.value == "muted"
    assert_nothing_to_read(sink)


def end(world: World, client: socket.socket, upstream: socket.socket) -> None:
    client.close()
    assert world.ended(upstream) == b""
    finish(world, upstream)


@each_of(("speaks", "onward"), [(name, list(MODELS)[(place + step) % len(MODELS)]) for place, name in enumerate(MODELS) for step in (0, 1, 4)])
def test_each_framing_passes_frames_to_itself_and_others_both_ways(make: Make, speaks: str, onward: str) -> None:
    world, client, upstream, _ = open_pair(make(**sides(speaks, onward)))
    chooser = random.Random(f"{speaks} {onward}")
    bodies = [text(size, number) for number, size in enumerate((0, 1, 100, 127, 128, 255, 256, 600, 16_383, 16_384, 30_000, 5))]
    chooser.shuffle(bodies)
    exchange(world, client, upstream, stream(speaks, bodies), stream(onward, bodies), chooser.choice([997, 1 << 20]))
    exchange(world, upstream, client, stream(onward, bodies[::-1]), stream(speaks, bodies[::-1]), chooser.choice([997, 1 << 20]))
    few = [text(size, number) for number, size in enumerate((0, 3, 130))]
    exchange(world, client, upstream, stream(speaks, few), stream(onward, few), 1)
    bodies += few
    end(world, client, upstream)
    assert world.row["frames"] == {"request": len(bodies), "response": len(bodies) - len(few)}
    assert (world.row["cause"], world.row["lost"]["bytes"]) == ("peer_closed", 0)
    counters = world.counters.listeners["l"]
    assert int(counters.downstream.frames_received) == int(counters.upstream.frames_sent) == len(bodies)
    assert int(counters.upstream.frames_received) == int(counters.downstream.frames_sent) == len(bodies) - len(few)


@others
def test_a_run_that_the_other_side_does_not_take_at_once_waits_in_its_framing(make: Make, speaks: str, onward: str) -> None:
    world = make(limit=1 << 20, pool=1 << 25, **sides(speaks, onward))
    world.server.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 4096)  # the loopback's own segments are as large as such a buffer
    world.server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
    client, upstream, pair = world.pair()
    bodies = [text(size, number) for number, size in enumerate([100] * 2000 + [30_000] * 40 + [300_000] * 12 + [10])]
    data = stream(speaks, bodies)
    client.setblocking(False)
    sent = 0
    while pair.upstream.channel is not None and pair.upstream.channel.pending_send == 0:  # nobody reads
        with contextlib.suppress(BlockingIOError):
            sent += client.send(data[sent:])
        world.selector.poll(0)
    exchange(world, client, upstream, data[sent:], stream(onward, bodies))
    assert world.pool.used == 0


LONG = FixedHeaderFraming("header", header=64)  # an empty frame of a varint is 64 times as much there


@each_of("tls", [False, True])
@each_of(("speaks", "onward"), [("varint", LONG), ("lines", LONG), ("varint", FRAMINGS["int32"])])
def test_short_frames_that_grow_hold_no_more_than_others(make: Make, tls_world: TlsWorld, speaks: str, onward: Framing, tls: bool) -> None:
    world = make(pool=512 * 1024, framing=FRAMINGS[speaks], upstream_framing=onward, client_tls=tls_world.server_settings() if tls else None)
    world.server.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 4096)
    world.server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
    joined = [tls_pair(world, tls_world) if tls else world.pair() for _ in range(2)]
    held = 480 * 1024
    world.pool.common.charge(BEGUN, held)
    assert world.pool.common.is_short(answers=False)
    empty = {"varint": b"\0", "lines": b"\n"}[speaks]
    count = 12_000
    most = 0
    for client, _, pair in joined:
        assert pair.upstream.channel is not None
        set_send_buffer(pair.upstream.channel, 16384)
        client.sendall(empty * count)
    for _ in range(100):
        world.selector.poll(1)
        most = max(most, int(world.pool.used) - held)
    assert most <= len(joined) * 20_000, "over TLS what one record becomes, 16 KiB at most, for each; else next to nothing"
    world.pool.common.release(BEGUN, held)
    for client, upstream, _ in joined:
        exchange(world, client, upstream, b"", onward.header_of(0) * count)
    assert world.pool.used == 0


def test_a_connection_keeps_nothing_of_what_it_had_re_framed(make: Make) -> None:
    world = make(pool=1 << 25, **sides("int32", "varint"))
    bodies = [text(100)] * 1500
    joined = [world.pair() for _ in range(6)]
    kept = []
    tracemalloc.start()
    try:
        for client, upstream, _ in joined:
            exchange(world, client, upstream, stream("int32", bodies), stream("varint", bodies))
            kept.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert kept[-1] - kept[1] < len(joined) * 20_000, "100 KB and more for each, if each had a buffer of its own"


def test_a_read_is_smaller_where_what_becomes_of_it_is_much_more(make: Make) -> None:
    world, client, upstream, pair = open_pair(make(pool=1 << 25, framing=FRAMINGS["varint"], upstream_framing=LONG))
    exchange(world, client, upstream, bytes(40_000), LONG.header_of(0) * 40_000)
    assert pair.client.channel is not None
    assert pair.client.channel.read_half._read_size <= MAX_GROWN // LONG.least_frame


@others
@each_of("largest", [20_000, 100_000])
def test_with_little_memory_frames_pass_all_the_same(make: Make, speaks: str, onward: str, largest: int) -> None:
    world = make(limit=128 * 1024, answer_limit=128 * 1024, pool=512 * 1024, **sides(speaks, onward))
    joined = [world.pair() for _ in range(3)]
    world.pool.common.charge(BEGUN, 400 * 1024)  # somebody holds it
    assert world.pool.common.is_short(answers=False)
    bodies = [text(size, number) for number, size in enumerate((10, 5000, largest, 0, largest // 2, 7))]
    for client, upstream, pair in joined:
        exchange(world, client, upstream, stream(speaks, bodies), stream(onward, bodies), 3000)
        exchange(world, upstream, client, stream(onward, bodies), stream(speaks, bodies))
        assert pair.client.channel is not None
        assert pair.client.channel.read_half.low_memory is not None
    world.pool.common.release(BEGUN, 400 * 1024)


@each_of(("speaks", "onward"), [("int32", "varint"), ("varint", "grpc_message"), ("mysql_packet", "int32")])
def test_large_frames_pass_in_pieces(make: Make, speaks: str, onward: str) -> None:
    world, client, upstream, _ = open_pair(
        make(limit=1 << 23, answer_limit=1 << 23, pool=1 << 24, cut_requests=True, cut_answers=True, **sides(speaks, onward))
    )
    bodies = [text(10), text(3 << 20, 1), text(SMALL + 1, 2), text(1, 3), text(1 << 20, 4)]
    exchange(world, client, upstream, stream(speaks, bodies), stream(onward, bodies))
    exchange(world, upstream, client, stream(onward, bodies), stream(speaks, bodies))
    begun = stream(speaks, [text(2 << 20)])
    client.setblocking(False)
    client.send(begun[: 1 << 20])
    header = stream(onward, [text(2 << 20)])[:5]
    assert world.read(upstream, 5) == header
    assert world.read(upstream, 100_000) == text(100_000)


@each_of("step", [1, 5, 1000])
def test_what_the_other_side_cannot_say_is_refused_by_its_header(make: Make, step: int) -> None:
    world, client, upstream, _ = open_pair(make(limit=1 << 20, **sides("int32", "int16")))
    good = [text(3), text(32_767)]
    client.sendall(stream("int32", good))
    assert world.read(upstream, len(stream("int16", good))) == stream("int16", good)
    header = stream("int32", [text(32_768)])[:5]
    for at in range(0, 5, step):
        client.sendall(header[at : at + step])
        world.poll(1)
    assert world.ended(upstream) == b""
    finish(world, upstream)
    assert (world.row["cause"], world.row["side"]) == ("frame_too_large", "downstream")
    assert world.row["detail"] == "frame of 32768 bytes exceeds the limit of 32767, the most that int16 can say"
    assert int(world.counters.listeners["l"].downstream.refused_too_large) == 1


@each_of(("onward", "bad"), [("lines", b"a\nb"), ("lines_crlf", b"\r\n"), ("lines", b"x" * 20_000 + b"\n")])
@each_of("before", [0, 2])
def test_a_body_that_ends_a_line_ends_the_connection(make: Make, onward: str, bad: bytes, before: int) -> None:
    world, client, upstream, _ = open_pair(make(**sides("int32", onward)))
    good = [text(4)] * before
    client.sendall(stream("int32", [*good, bad, text(5)]))
    assert world.ended(upstream) == stream(onward, good)
    finish(world, upstream)
    assert (world.row["cause"], world.row["side"]) == ("wrong_protocol", "downstream")
    assert world.row["detail"] == f"a body holds what ends a frame in {onward}, which the other side speaks"
    assert world.row["frames"]["request"] == before + 2
    assert world.row["lost"]["bytes"] == len(stream("int32", [bad, text(5)]))


@others
@each_of("sent", [1, 3, 200])
def test_a_mute_within_a_frame_waits_for_its_end_and_reads_no_other(make: Make, speaks: str, onward: str, sent: int) -> None:
    world, client, upstream, pair = open_pair(make(**sides(speaks, onward)))
    data = stream(speaks, [text(500)])
    client.sendall(data[:sent])
    channel = mute_within_frame(world, pair)
    client.sendall(data[sent:] + stream(speaks, [text(7)]))
    assert world.read(upstream, len(stream(onward, [text(500)]))) == stream(onward, [text(500)])
    assert_muted(world, channel, upstream)
    channel.unmute(mute.ADMIN)
    assert world.read(upstream, len(stream(onward, [text(7)]))) == stream(onward, [text(7)])


@each_of("number", range(3))
def test_a_mute_between_the_two_bytes_of_a_lines_end_reads_no_other_line(make: Make, number: int) -> None:
    world, client, upstream, pair = open_pair(make(**sides("lines_crlf", "int32")))
    client.sendall(b"l0\r")
    channel = mute_within_frame(world, pair)
    client.sendall([b"\nl1\r\n", b"\nl1\r", b"\n"][number])
    assert world.read(upstream, 6) == stream("int32", [b"l0"])
    assert_muted(world, channel, upstream)


def test_over_tls_a_mute_within_a_line_waits_for_its_end_and_reads_no_other(make: Make, tls_world: TlsWorld) -> None:
    world = make(client_tls=tls_world.server_settings(), **sides("lines", "int32"))
    client, upstream, pair = tls_pair(world, tls_world)
    client.sendall(b"x" * 20)
    channel = mute_within_frame(world, pair)
    client.sendall(b"y" * 100_000 + b"\nz\n")
    reads = int(world.counters.listeners["l"].downstream.reads)
    assert world.read(upstream, 100_024) == stream("int32", [b"x" * 20 + b"y" * 100_000])
    assert int(world.counters.listeners["l"].downstream.reads) - reads < 50
    assert_muted(world, channel, upstream)
    channel.unmute(mute.ADMIN)
    assert world.read(upstream, 5) == stream("int32", [b"z"])


@pytest.mark.parametrize(("speaks", "front"), [("varint", b""), ("lines", b""), ("mysql_packet", b"\0"), ("grpc_message", b"\0"), ("int16", b"")])
@pytest.mark.parametrize("onward", ["int32", "varint"])
def test_the_record_has_every_frame_as_int32_and_says_what_it_was(make: Make, tmp_path: Path, speaks: str, front: bytes, onward: str) -> None:
    tapped = tapping(tmp_path)
    world, client, upstream, _ = open_pair(make(**tapped, **sides(speaks, onward)))
    bodies = [text(size, number) for number, size in enumerate((3, 0, 400, 20_000, 9))]
    exchange(world, client, upstream, stream(speaks, bodies), stream(onward, bodies), 999)
    exchange(world, upstream, client, stream(onward, bodies[:2]), stream(speaks, bodies[:2]))
    end(world, client, upstream)
    assert tapped["writer"].flush_and_close(1000)
    frames = list(read_frames(str(tmp_path)))
    assert [frame.body for frame in frames if frame.direction == "request"] == [front + body for body in bodies]
    assert [frame.number for frame in frames if frame.direction == "request"] == list(range(5))
    assert [frame.body for frame in frames if frame.direction == "response"] == bodies[:2]
    framings = {(row.direction, row.framing) for block in read_blocks(str(tmp_path), "n.0.b") for row in block.rows if row.kind == 0}
    assert {(direction, record.FRAMINGS[code]) for direction, code in framings} == {(0, speaks), (1, onward)}


def test_what_is_not_passed_on_is_a_gap_in_the_record(make: Make, tmp_path: Path) -> None:
    tapped = tapping(tmp_path)
    world, client, upstream, _ = open_pair(make(**tapped, **sides("varint", "lines")))
    client.sendall(stream("varint", [text(2), b"a\n", text(3)]))
    assert world.ended(upstream) == stream("lines", [text(2)])
    finish(world, upstream)
    assert tapped["writer"].flush_and_close(1000)
    assert [frame.body for frame in read_frames(str(tmp_path))] == [text(2)]
    assert [(gap.reason, gap.frames) for gap in read_gaps(str(tmp_path))] == [("undelivered", 2)]
