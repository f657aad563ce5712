"""The beginning of a frame that a lane keeps until its rest comes, and Python's looks at it."""

import contextlib
import random
import select
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from framegate.proxy.cause import Cause
from framegate.proxy.network import mute
from framegate.proxy.network.lanes import HAS_FAST_PATH
from framegate.proxy.relay.pair import Leg, Pair
from tests.fakes.cases import each_of
from tests.fakes.lanes import opened, served
from tests.fakes.tap_read import read_frames
from tests.fakes.world import SECOND, World, frame, reset
from tests.proxy.relay.conftest import begin_drain, finish, passes, send_all, tapping

pytestmark = pytest.mark.skipif(not HAS_FAST_PATH, reason="the data path is not compiled")


@each_of("cut", (1, 3, 4, 5, 7, 8))
def test_the_beginning_of_a_frame_waits_for_its_rest(make_either, cut: int):
    world = make_either("framed")
    client, upstream, pair = opened(world)
    data = frame(b"whole") + frame(b"part")
    client.sendall(data[: 9 + cut])
    assert world.read(upstream, 9) == frame(b"whole")
    world.poll()
    world.selector.take_counts()
    channel = pair.client.channel
    assert (channel.staged, channel.frames_received, channel.bytes_received) == (0, 3 + (cut == 8), 7 * 2 + 9 + cut)
    client.sendall(data[9 + cut :])
    assert world.read(upstream, 8) == frame(b"part")
    assert served(world, pair.client)
    world.selector.settle()
    assert (channel.frames_received, channel.bytes_received, channel.options.stats.reads) == (4, 7 * 2 + 17, 3 if cut == 8 else 4)


def begun(world: World, part: bytes) -> tuple[socket.socket, socket.socket, Pair]:
    """A pair whose lane has ``part`` of a frame of the client."""
    client, upstream, pair = opened(world)
    client.sendall(frame(b"whole") + part)
    assert world.read(upstream, 9) == frame(b"whole")
    world.poll()
    assert served(world, pair.client)
    assert pair.client.channel.staged == 0
    return client, upstream, pair


def answered(world: World, client: socket.socket, upstream: socket.socket) -> None:
    """Have Python handle an event of the upstream's channel."""
    upstream.sendall(frame(bytes(300_000)))
    assert world.read(client, 300_004) == frame(bytes(300_000))


@each_of(
    "take",
    (
        lambda world, pair, *ends: world.selector.settle(),
        lambda world, pair, *ends: world.selector.close_lanes(),
        lambda world, pair, *ends: pair.client.close_lane(),
        lambda world, pair, *ends: pair.client.channel.mute(mute.ADMIN),
        lambda world, pair, *ends: pair.client.channel.gate(asks=False),
        lambda world, pair, *ends: pair.has_no_open_request(),
        lambda world, pair, *ends: (answered(world, *ends), pair.client.close_lane()),
    ),
)
def test_python_has_the_beginning_of_a_frame_before_it_looks(make_either, take: Callable[..., Any]):
    world = make_either("framed")
    client, upstream, pair = begun(world, frame(b"part")[:6])
    channel = pair.client.channel
    take(world, pair, client, upstream)
    assert not served(world, pair.client)
    assert (channel.staged, channel.bytes_received, channel.options.stats.bytes_received) == (6, 29, 29)
    assert channel.read_half.receive.within
    channel.unmute(mute.ADMIN)
    client.sendall(frame(b"part")[6:])
    assert world.read(upstream, 8) == frame(b"part")
    assert (channel.frames_received, channel.bytes_received) == (4, 31)


def test_the_lane_has_the_beginning_again_when_python_has_passed_what_was_before_it(make_either):
    world = make_either("framed")
    client, upstream, pair = begun(world, frame(b"part")[:6])
    world.selector.settle()
    client.sendall(frame(b"part")[6:] + frame(b"next")[:5])
    assert world.read(upstream, 8) == frame(b"part")
    channel = pair.client.channel
    assert served(world, pair.client)
    assert (channel.staged, channel.bytes_received, channel.options.stats.bytes_received, world.pool.begun) == (0, 36, 36, 0)
    passes_rest = frame(b"next")[5:] + frame(b"last")
    client.sendall(passes_rest)
    assert world.read(upstream, 16) == frame(b"next") + frame(b"last")
    world.selector.settle()
    assert (channel.frames_received, channel.bytes_received, channel.options.stats.bytes_received) == (6, 47, 47)


def test_no_count_of_bytes_shrinks_when_python_gives_the_beginning_of_a_frame_back(make_either):
    """It is published, and who reads it takes it for the count of another process."""
    world = make_either("framed")
    client, upstream, pair = begun(world, frame(b"part")[:6])
    counts = []
    for step in (lambda: None, world.selector.settle, lambda: passes(world, upstream, client, frame(b"answer"))):
        step()
        world.selector.take_counts()  # as for publishing
        counts.append((pair.client.channel.options.stats.bytes_received, pair.client.channel.bytes_received, pair.client.channel.staged))
    assert counts == [(29, 29, 0), (29, 29, 6), (29, 29, 0)]


@each_of("ends", ("client", "upstream", "reset"))
def test_a_frame_that_has_begun_on_a_lane_is_lost_with_its_connection(make_either, ends: str):
    world = make_either("framed")
    client, upstream, pair = begun(world, frame(b"part")[:6])
    channel = pair.client.channel
    if ends == "reset":
        reset(client)
    finish(world, *((upstream, client) if ends == "upstream" else (client, upstream)))
    assert (channel.read_half.lost_bytes, channel.options.stats.refused_incomplete, world.pool.used) == (6, 1, 0)
    assert world.row["frames"] == {"request": 3, "response": 2}


def test_input_that_is_discarded_loses_the_frame_that_has_begun(make_either):
    world = make_either("framed")
    _client, _upstream, pair = begun(world, frame(b"part")[:6])
    channel = pair.client.channel
    channel.discard_input(mute.DRAIN)
    assert (channel.staged, channel.read_half.lost_bytes) == (0, 6)


def test_a_frame_that_has_begun_on_a_lane_and_stands_still_is_a_stall(make_either):
    world = make_either("framed", stall_s=5)
    client, upstream, _ = begun(world, frame(b"part")[:6])
    for _ in range(4):
        world.pass_time(3)
    assert world.ended(upstream) == b""
    finish(world, client, upstream)
    assert (world.row["cause"], world.row["side"]) == ("receive_stalled", "downstream")


def test_it_is_a_stall_even_if_answers_are_handled_in_the_polls_in_which_the_time_is_looked_at(make_either):
    """They give the beginning of the frame back to its lane."""
    world = make_either("framed", stall_s=5)
    client, upstream, pair = begun(world, frame(b"part")[:6])
    channel = pair.upstream.channel
    for _ in range(3):
        upstream.sendall(frame(b"answer"))
        select.select([channel.fd], [], [], 2)
        world.selector._left.append((channel, int(channel.fd), select.EPOLLIN))
        world.clock.ns += 3 * SECOND
        world.selector.poll(0)
        assert client.recv(100) == frame(b"answer")
    assert pair.cause is Cause.RECEIVE_STALLED
    finish(world, client, upstream)


def test_a_smaller_limit_does_not_judge_a_frame_that_has_begun_on_a_lane(make_either):
    world = make_either("framed", limit=1000)
    client, upstream, pair = begun(world, frame(bytes(500))[:100])
    world.selector.close_lanes()  # as control's command does
    world.limit.value = 499
    passes(world, upstream, client, frame(b"answer"))  # which would open the lanes of both directions
    assert not served(world, pair.client)
    client.sendall(frame(bytes(500))[100:] + frame(bytes(500))[:100])
    assert world.ended(upstream) == frame(bytes(500))
    finish(world, client, upstream)
    assert (world.row["cause"], world.row["frames"]) == ("frame_too_large", {"request": 4, "response": 3})


def test_a_drain_waits_for_a_frame_that_has_begun_on_a_lane(make_either):
    world = make_either("framed")
    client, upstream, pair = begun(world, frame(b"part")[:6])
    begin_drain(world, 30)
    world.pass_time(5)
    assert (pair.state.value, pair.client.channel.staged) == ("open", 6)
    client.sendall(frame(b"part")[6:])
    assert world.read(upstream, 8) == frame(b"part")
    world.pass_time(1.1)
    assert (world.ended(upstream), world.ended(client)) == (b"", b"")
    finish(world, client, upstream)
    assert (world.row["cause"], world.row["frames"]["request"], world.row["lost"]["bytes"]) == ("drained", 4, 0)


def test_rules_that_begin_or_cease_to_tap_take_each_frame_whole(make_either, tmp_path: Path):
    """A frame belongs to the rules that are in force when it is whole."""
    options = tapping(tmp_path)
    rules, options["rules"] = options["rules"], None
    world = make_either("framed", **options)
    client, upstream, pair = begun(world, frame(b"first")[:6])
    world.relay.retap(rules)
    assert not served(world, pair.client)
    client.sendall(frame(b"first")[6:] + frame(b"second")[:6])
    assert world.read(upstream, 9) == frame(b"first")
    world.poll()
    world.relay.retap(None)
    client.sendall(frame(b"second")[6:])
    assert world.read(upstream, 10) == frame(b"second")
    finish(world, client, upstream)
    assert options["writer"].flush_and_close(5000)
    assert [(item.number, bytes(item.body)) for item in read_frames(str(tmp_path))] == [(3, b"first")]


def test_all_lanes_together_hold_a_mebibyte_of_begun_frames_and_python_the_rest(make_plain):
    world = make_plain("framed")
    pairs = [opened(world) for _ in range(17)]
    for number, (client, _, pair) in enumerate(pairs):
        client.sendall(frame(bytes(70_000))[: 1 << 16])
        world.until(lambda channel=pair.client.channel: channel.transport.wire_received == 14 + (1 << 16) or world.selector.take_counts())
        assert pair.client.channel.staged == (0 if number < 16 else 1 << 16), number
    for client, upstream, _ in pairs:
        client.sendall(frame(bytes(70_000))[1 << 16 :])
        assert world.read(upstream, 70_004) == frame(bytes(70_000))


@each_of(("size", "kept"), ((262_140, True), (262_141, False)))
def test_a_frame_that_may_be_cut_through_goes_to_python_at_once(make_plain, size: int, kept: bool):
    world = make_plain("framed")
    client, upstream, pair = opened(world)
    client.sendall(frame(bytes(size))[:100])
    world.poll()
    assert served(world, pair.client) == kept
    assert pair.client.channel.staged == (0 if kept else 100)
    send_all(world, client, frame(bytes(size))[100:])
    assert world.read(upstream, size + 4) == frame(bytes(size))


@each_of(("first", "second", "kept"), ((3072, 1024, True), (4095, 1023, False), (3069, 1023, True)))
def test_a_frame_that_comes_in_small_pieces_goes_to_python_from_4_kib_on(make_plain, first: int, second: int, kept: bool):
    """A lane copies what it has with each read: 40,000 bytes one by one would be 800 MB."""
    world = make_plain("framed")
    client, upstream, pair = opened(world)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    whole = frame(bytes(40_000))
    for begin, size in ((0, first), (first, second)):
        client.sendall(whole[begin : begin + size])
        world.poll()
    assert served(world, pair.client) == kept
    client.sendall(whole[first + second :])
    assert world.read(upstream, len(whole)) == whole


class Way:
    """One direction of a pair, with frames of many sizes in pieces of many sizes."""

    def __init__(self, source: socket.socket, sink: socket.socket, leg: Leg) -> None:
        self.source, self.sink, self.leg = source, sink, leg
        self.left, self.sent, self.got = b"", bytearray(), bytearray()
        self.ends = [0]  # of frames
        source.setblocking(False)
        source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def step(self, chance: random.Random, *, begins: bool) -> None:
        if begins and len(self.left) < 50_000:
            data = frame(chance.randbytes(chance.choice((0, 3, 100, 300, 5000, 40_000))))
            self.left += data
            self.ends.append(self.ends[-1] + len(data))
        if len(self.sent) - len(self.got) < 50_000:  # never more than the sockets take
            count = self.source.send(self.left[: chance.choice((1, 4, 9, 104, 104, 104, 2000, 70_000))]) if self.left else 0
            self.sent += self.left[:count]
            self.left = self.left[count:]
        with contextlib.suppress(BlockingIOError):
            self.got += self.sink.recv(100_000)

    def check(self) -> None:
        """What Python has of it, once it has the beginning of a frame, is right."""
        channel, out = self.leg.channel, self.leg.other.channel
        assert channel is not None
        assert out is not None
        whole = channel.bytes_received - channel.staged
        assert whole == self.ends[channel.frames_received] == out.write_half.bytes_sent + out.pending_send
        assert channel.bytes_received <= len(self.sent)
        assert self.sent.startswith(self.got)


def test_random_pieces_and_random_looks_at_them_lose_no_byte_and_no_count(make_either):
    """What comes out is what went in, whatever takes the beginning of a frame from a lane or gives it back, and no count shrinks."""
    world = make_either("framed")
    selector, chance = world.selector, random.Random(4)
    client, upstream, pair = world.pair()
    ways = [Way(client, upstream, pair.client), Way(upstream, client, pair.upstream)]
    stats = [way.leg.channel.options.stats for way in ways]
    looks: list[Callable[[Leg], Any]] = [
        lambda leg: selector.settle(),
        lambda leg: selector.close_lanes(),
        lambda leg: leg.close_lane(),
        lambda leg: pair.has_no_open_request(),
        lambda leg: leg.channel.mute(chance.choice((mute.ADMIN, mute.THROTTLE))),
        *[lambda leg: [leg.channel.unmute(cause) for cause in (mute.ADMIN, mute.THROTTLE)]] * 2,
        lambda leg: leg.channel.gate(asks=chance.random() < 0.3),
        lambda leg: selector._left.append((leg.channel, int(leg.channel.fd), select.EPOLLIN)),
        lambda leg: [way.check() for way in ways if selector.settle() is None],
    ]
    before = [0, 0]
    for _ in range(3000):
        for way in ways:
            way.step(chance, begins=chance.random() < 0.5)
        selector.poll(0)
        if chance.random() < 0.2:
            chance.choice(looks)(chance.choice(ways).leg)
        selector.take_counts()  # as for publishing
        counts = [side.bytes_received for side in stats]
        assert all(now >= then for now, then in zip(counts, before, strict=True))
        before = counts
    for way in ways:
        looks[5](way.leg)
        way.leg.channel.gate(asks=False)
    for _ in range(10_000):
        if all(len(way.got) == way.ends[-1] for way in ways):
            break
        for way in ways:
            way.step(chance, begins=False)
        selector.poll(0)
    selector.settle()
    for way in ways:
        way.check()
        assert len(way.got) == way.ends[-1]
    finish(world, client, upstream)
    for name, way in zip(("request", "response"), ways, strict=True):
        assert (world.row["frames"][name], world.row["bytes"][name]) == (len(way.ends) - 1, way.ends[-1])
