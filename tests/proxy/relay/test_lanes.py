"""framegate.proxy.network.lanes: frames that C passes on. What a user sees is the same without it; ``served`` says whether a lane is open."""

import contextlib
import errno
import random
import select
import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from framegate.proxy.cause import Cause
from framegate.proxy.network import mute
from framegate.proxy.network.framing import SIZE_BOUNDS, SIZE_BUCKETS
from framegate.proxy.network.lanes import HAS_FAST_PATH
from framegate.proxy.network.stats import SideStats
from framegate.proxy.relay import ending
from framegate.proxy.relay.pair import Leg, Pair
from tests.fakes.cases import each_of
from tests.fakes.world import World, frame, reset
from tests.proxy.relay.conftest import finish, passes

if HAS_FAST_PATH:
    from framegate.proxy.network.fast_path import FastPath, Lane, Side

pytestmark = pytest.mark.skipif(not HAS_FAST_PATH, reason="the data path is not compiled")


def served(world: World, leg: Leg) -> bool:
    """Whether the fast path passes on what a leg receives next."""
    channel, fast_path = leg.channel, world.selector.fast_path
    assert fast_path is not None
    return channel is not None and channel.lane is not None and fast_path.served(channel.lane) is not None


def opened(world: World) -> tuple[socket.socket, socket.socket, Pair]:
    """A pair whose lanes are open both ways."""
    client, upstream, pair = world.pair()
    for _ in range(2):
        passes(world, client, upstream, frame(b"ask"))
        passes(world, upstream, client, frame(b"answer"))
    assert served(world, pair.client)
    assert served(world, pair.upstream)
    return client, upstream, pair


def test_a_lane_opens_with_the_second_run_and_all_counts_are_those_of_python(make):
    world = make("framed")
    client, upstream, pair = world.pair()
    passes(world, client, upstream, frame(b"ask"))
    assert not served(world, pair.client)
    sizes = [0, 1, *(bound + more for bound in SIZE_BOUNDS[:5] for more in (-1, 0, 1))]
    passes(world, client, upstream, frame(b"ask"))
    assert served(world, pair.client)
    for size in sizes:
        world.clock.ns += 1
        passes(world, client, upstream, frame(bytes(size)))
        assert served(world, pair.client), size
    total = sum(sizes) + 4 * len(sizes) + 14
    world.selector.settle()
    asked, sent = pair.client.channel, pair.upstream.channel
    assert (asked.frames_received, asked.bytes_received, sent.write_half.frames_sent, sent.write_half.bytes_sent) == (len(sizes) + 2, total) * 2
    assert asked.last_active_ns == sent.last_active_ns == world.clock.ns
    assert (asked.read_half._transport.wire_received, sent.write_half.wire_sent) == (total, total)
    stats, out = asked.options.stats, sent.options.stats
    assert (stats.frames_received, stats.bytes_received, out.frames_sent, out.bytes_sent) == (len(sizes) + 2, total) * 2
    assert (stats.reads, out.writes, sum(stats.frame_sizes)) == (len(sizes) + 2,) * 3
    assert out.forwards.count == len(sizes) + 2 or world.selector._timed is not None
    counted = [
        sum(size <= bound and (index == 0 or size > SIZE_BOUNDS[index - 1]) for size in [3, 3, *sizes]) for index, bound in enumerate(SIZE_BOUNDS)
    ]
    assert list(stats.frame_sizes) == [*counted, *[0] * (SIZE_BUCKETS - len(counted))]
    finish(world, client, upstream)
    assert (world.row["frames"], world.row["bytes"]["request"]) == ({"request": len(sizes) + 2, "response": 0}, total)


def test_runs_of_all_lanes_are_measured_in_their_poll(make):
    world = make("framed")
    client, upstream, pair = opened(world)
    forwards = pair.upstream.channel.options.stats.forwards
    world.poll()
    before = forwards.count
    client.sendall(frame(b"a"))
    world.read(upstream, 5)
    world.poll()
    assert forwards.count == before + 1


@each_of("cut", (1, 3, 4, 5, 7, 8))
def test_what_is_behind_the_last_whole_frame_goes_on_in_python(make, cut: int):
    world = make("framed")
    client, upstream, pair = opened(world)
    data = frame(b"whole") + frame(b"part")
    client.sendall(data[: 9 + cut] if cut < 8 else data)
    if cut < 8:
        assert world.read(upstream, 9) == frame(b"whole")
        assert not served(world, pair.client)
        assert (pair.client.channel.staged, pair.client.channel.frames_received) == (cut, 3)
        client.sendall(data[9 + cut :])
        assert world.read(upstream, 8) == frame(b"part")
    else:
        assert world.read(upstream, len(data)) == data
        assert served(world, pair.client)
    world.selector.settle()
    assert pair.client.channel.frames_received == 4


def test_a_lane_that_hands_over_often_opens_after_more_and_more_runs(make):
    world = make("framed")
    client, upstream, pair = opened(world)
    counts = []
    for _ in range(4):
        client.sendall(frame(b"x")[:2])
        world.poll()
        client.sendall(frame(b"x")[2:])
        world.read(upstream, 5)
        runs = 1
        while not served(world, pair.client):
            passes(world, client, upstream, frame(b"x"))
            runs += 1
        counts.append(runs)
    assert counts == [2, 4, 8, 16]


@each_of("given", (b"\xff\xff\xff\xff", struct.pack(">i", 1 << 20) + b"x"))
@each_of("before", (b"", frame(b"good")))
def test_a_frame_that_is_refused_is_refused_after_the_whole_ones_before_it(make, before: bytes, given: bytes):
    world = make("framed", limit=1000)
    client, upstream, _ = opened(world)
    client.sendall(before + given)
    assert world.ended(upstream) == before
    finish(world, client, upstream)
    cause = Cause.NEGATIVE_SIZE if given[0] == 0xFF else Cause.FRAME_TOO_LARGE
    assert (world.row["cause"], world.row["frames"]["request"]) == (cause.name.lower(), 2 + bool(before))


def test_an_event_that_a_poll_left_closes_a_lane_that_was_opened_since(make):
    """Else C would send what comes next before the bytes that Python has."""
    world = make("framed")
    client, upstream, pair = opened(world)
    channel = pair.client.channel
    client.sendall(frame(b"part")[:6])
    world.selector._left.append((channel, int(channel.fd), select.EPOLLIN))
    world.selector.poll(0)
    assert channel.staged == 6
    assert not served(world, pair.client)
    client.sendall(frame(b"part")[6:])
    assert world.read(upstream, 8) == frame(b"part")


def test_what_the_peer_does_not_take_waits_in_python_and_no_byte_is_lost(make):
    world = make("framed")
    client, upstream, pair = opened(world)
    sent = b""
    client.setblocking(False)
    for number in range(10_000):
        piece = frame(number.to_bytes(4, "big") * 500)
        try:
            done = client.send(piece)
        except BlockingIOError:
            break
        sent += piece[:done]
        world.selector.poll(0)
        if done < len(piece):
            break
    assert pair.client.channel.mute_causes == mute.PEER
    assert not served(world, pair.client)
    assert pair.upstream.channel.pending_send != 0
    rest = len(sent) - len(sent) // 2004 * 2004
    client.setblocking(True)
    assert world.read(upstream, len(sent) - rest) == sent[: len(sent) - rest]
    world.until(lambda: pair.upstream.channel.pending_send == 0 and pair.client.channel.mute_causes == 0)
    assert pair.client.channel.frames_received - 2 == pair.upstream.channel.write_half.frames_sent - 2 == len(sent) // 2004


@each_of("end", ("client", "upstream"))
def test_the_end_of_a_stream_goes_to_python(make, end: str):
    world = make("framed")
    client, upstream, pair = opened(world)
    ends, other = (client, upstream) if end == "client" else (upstream, client)
    ends.sendall(frame(b"last"))
    ends.shutdown(socket.SHUT_WR)
    assert world.ended(other) == frame(b"last")
    assert not served(world, pair.client)
    assert not served(world, pair.upstream)
    passes(world, other, ends, frame(b"after"))
    finish(world, client, upstream)
    assert world.row["frames"] == ({"request": 3, "response": 3})


@each_of("code", ("read", "write"))
def test_a_reset_between_the_wait_and_the_call_is_told_with_its_error(make, code: str, monkeypatch):
    """C gets an error that the socket reports only once."""
    world = make("framed")
    client, upstream, pair = opened(world)
    reset = struct.pack("ii", 1, 0)
    if code == "read":
        client.sendall(frame(b"x"))
        channel = pair.client.channel
        channel.take_over(b"", -1, 0, 104)
    else:
        upstream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        upstream.close()
        client.sendall(frame(b"x"))
    finish(world, client, upstream)
    assert world.row["cause"] in ("peer_reset", "upstream_reset", "upstream_closed")
    assert world.row["side"] == ("downstream" if code == "read" else "upstream")


@each_of("cause", (mute.ADMIN, mute.DRAIN, mute.THROTTLE))
def test_a_mute_closes_the_lanes_at_once(make, cause: int):
    world = make("framed")
    client, upstream, pair = opened(world)
    pair.client.channel.mute(cause)
    assert not served(world, pair.client)
    assert not served(world, pair.upstream)
    client.sendall(frame(b"held"))
    world.poll()
    world.selector.settle()
    assert pair.client.channel.frames_received == 2
    pair.client.channel.unmute(cause)
    assert world.read(upstream, 8) == frame(b"held")


def test_frames_reach_a_channel_that_is_muted_and_whose_peer_has_ended(make):
    """It has no interest in events, but its lane takes what comes from the other side."""
    world = make("framed")
    client, upstream, pair = opened(world)
    pair.upstream.channel.mute(mute.ADMIN)
    upstream.shutdown(socket.SHUT_WR)
    for number in range(5):
        passes(world, client, upstream, frame(b"more"))
        assert served(world, pair.client), number
    assert not served(world, pair.upstream)
    world.selector.settle()
    assert pair.upstream.channel.write_half.frames_sent == 7


def test_a_smaller_limit_holds_for_the_next_frame(make):
    world = make("framed", limit=1000)
    client, upstream, _ = opened(world)
    passes(world, client, upstream, frame(bytes(500)))
    world.selector.close_lanes()  # as control's command does
    world.limit.value = 499
    client.sendall(frame(bytes(500)))
    assert world.ended(upstream) == b""
    finish(world, client, upstream)
    assert world.row["cause"] == "frame_too_large"


def test_the_end_of_a_pair_and_the_reuse_of_its_descriptors_leave_no_lane(make):
    world = make("framed")
    for number in range(5):
        client, _upstream, pair = opened(world)
        ending.abort(pair, Cause.ADMIN, "", "internal")
        client.sendall(frame(b"late"))
        world.until(lambda number=number: len(world.rows) == number + 1)
        assert world.rows[-1]["frames"] == {"request": 2, "response": 2}


def test_memory_that_is_short_leaves_all_to_python(make):
    world = make("framed")
    client, upstream, pair = opened(world)
    pool = world.pool
    held = pool.line - pool.used
    pool.common.charge(0, held)
    passes(world, client, upstream, frame(b"x" * 100))
    assert not served(world, pair.client)
    pool.common.release(0, held)


def test_a_client_that_only_moves_frames_by_a_lane_is_not_idle(make):
    world = make("framed", idle_s=10)
    client, upstream, pair = opened(world)
    for _ in range(5):
        world.pass_time(6)
        passes(world, client, upstream, frame(b"x"))
    assert pair.state.value == "open"
    world.pass_time(11)
    finish(world, client, upstream)
    assert world.row["cause"] == "idle"


def test_random_pieces_both_ways_arrive_as_they_were_sent(make):
    """Frames of many sizes in pieces of many sizes: what comes out is what went in, and the counts of both sides are equal."""
    world = make("framed")
    chance = random.Random(4)
    client, upstream, _pair = world.pair()
    frames = [[frame(chance.randbytes(chance.choice((0, 3, 100, 300, 5000, 40_000)))) for _ in range(300)] for _ in range(2)]
    streams = [b"".join(each) for each in frames]
    left, got = [memoryview(stream) for stream in streams], [bytearray(), bytearray()]
    ends = ((client, upstream), (upstream, client))
    for sock in (client, upstream):
        sock.setblocking(False)
    for _ in range(100_000):
        if all(len(got[way]) == len(streams[way]) for way in (0, 1)):
            break
        for way, (source, sink) in enumerate(ends):
            if left[way] and chance.random() < 0.5:
                size = chance.choice((1, 4, 9, 104, 104, 104, 2000, 70_000))
                with contextlib.suppress(BlockingIOError):
                    left[way] = left[way][source.send(left[way][:size]) :]
            with contextlib.suppress(BlockingIOError):
                got[way] += sink.recv(100_000)
        world.selector.poll(0)
    assert [bytes(each) for each in got] == streams
    finish(world, client, upstream)
    row = world.row
    assert row["frames"] == {"request": 300, "response": 300}
    assert row["bytes"] == {"request": len(streams[0]), "response": len(streams[1])}


class Wires:
    """A fast path with a lane each way between two connections: ``near`` and ``far`` are the peers' ends."""

    def __init__(self) -> None:
        self.epoll = select.epoll()
        self.path = FastPath(self.epoll.fileno())
        self.stats = SideStats()
        (self.near, ours), (self.far, others) = socket.socketpair(), connected()
        self.ours = (ours, others)
        self.lanes = [Lane(sock.fileno(), Side(self.stats)) for sock in self.ours]
        for sock, lane in zip(self.ours, self.lanes, strict=True):
            sock.setblocking(False)
            self.epoll.register(sock.fileno(), select.EPOLLIN)
            self.path.add(lane)

    def open(self, number: int = 0) -> None:
        self.path.open(self.lanes[number], self.lanes[1 - number], 100)

    def run(self, *, opened: bool = True) -> Any:
        return self.path.run(1, 1 << 62, opened)

    def close(self) -> None:
        for sock in (self.near, self.far, *self.ours):
            sock.close()
        self.epoll.close()


def connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        return client, listener.accept()[0]


@pytest.fixture
def wires() -> Iterator[Wires]:
    made = Wires()
    yield made
    made.close()


def test_an_error_of_a_socket_is_handed_over_with_its_number(wires):
    wires.open(1)
    wires.far.sendall(b"x")
    wires.path.wait(1000)
    wires.ours[1].recv(1)
    reset(wires.far)
    wires.far.close()
    assert wires.run() == ([], [(wires.ours[1].fileno(), b"", -1, 0, errno.ECONNRESET)], None)


def test_an_error_of_a_write_is_handed_over_with_the_frames(wires):
    wires.open()
    wires.epoll.unregister(wires.ours[1].fileno())
    reset(wires.far)
    wires.far.close()
    wires.near.sendall(frame(b"a") + frame(b"b") + b"\0")
    wires.path.wait(1000)
    fd = wires.ours[0].fileno()
    assert wires.run() == ([], [(fd, frame(b"a") + frame(b"b"), 0, 2, errno.ECONNRESET), (fd, b"\0", -1, 0, 0)], None)
    assert wires.run() == ([], None, None)
    assert wires.path.take_channels() == [(fd, 2, 10, 0, 0, 1)]
    assert wires.path.take_sides() == [(wires.stats, 0, 2, 10, 0, 0, 0, [2, *[0] * 11])]
    assert (wires.path.take_channels(), wires.path.take_sides()) == ([], [])


def test_an_event_of_a_closed_lane_and_what_is_after_the_budget_are_left_to_the_caller(wires):
    fd = wires.ours[0].fileno()
    for close in (wires.path.close_all, wires.lanes[0].close, wires.lanes[1].close, lambda: wires.path.remove(wires.lanes[0])):
        wires.open()
        assert wires.path.served(wires.lanes[0]) == (wires.ours[1].fileno(), 100)
        wires.open(1)
        close()
        wires.near.sendall(frame(b"a"))
        wires.path.wait(1000)
        assert (wires.path.served(wires.lanes[0]), wires.run()) == (None, ([(fd, select.EPOLLIN)], None, None))
        wires.ours[0].recv(100)
    wires.path.add(wires.lanes[0])
    wires.open()
    wires.near.sendall(frame(b"a"))
    wires.path.wait(1000)
    assert wires.run(opened=False) == ([(fd, select.EPOLLIN)], None, None)
    assert wires.path.served(wires.lanes[0]) is None


def test_a_lane_that_goes_takes_that_to_it_along(wires):
    """Also where only the other direction is open: its peer's descriptor may be another connection's by now."""
    for number in (0, 1):
        wires.open()
        wires.path.remove(wires.lanes[number])
        assert wires.path.served(wires.lanes[0]) is None
        wires.path.add(wires.lanes[number])
    wires.open()
    del wires.lanes[1:]
    wires.path.add(type(wires.lanes[0])(wires.ours[1].fileno(), Side(wires.stats)))
    assert wires.path.served(wires.lanes[0]) is None


def test_wrong_arguments_are_refused(wires):
    with pytest.raises(ValueError, match="a lane to itself"):
        wires.path.open(wires.lanes[0], wires.lanes[0], 1)
    for call in (wires.path.add, wires.path.remove, wires.path.served):
        with pytest.raises(TypeError, match="a Lane is needed"):
            call(1)
    for arguments in ((), (1, 2, 3), (*wires.lanes, "x")):
        with pytest.raises(TypeError):
            wires.path.open(*arguments)
    for arguments in ((), (1, 2), ("x", 2, True)):
        with pytest.raises(TypeError):
            wires.path.run(*arguments)
    with pytest.raises(TypeError):
        wires.path.wait("x")
