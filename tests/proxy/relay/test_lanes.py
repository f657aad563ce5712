"""framegate.proxy.network.lanes: frames that C passes on. What a user sees is the same without it; ``served`` says whether a lane is open."""

import contextlib
import ctypes
import functools
import itertools
import random
import select
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from framegate.proxy.cause import Cause
from framegate.proxy.network import mute
from framegate.proxy.network.framing import SIZE_BOUNDS, SIZE_BUCKETS
from framegate.proxy.network.lanes import HAS_FAST_PATH
from framegate.proxy.network.tls_connection import IS_NATIVE
from framegate.proxy.relay import ending
from framegate.proxy.relay.pair import Leg, Pair
from tests.fakes.cases import each_of
from tests.fakes.tls import TlsWorld
from tests.fakes.world import SECOND, World, _is_shaken, frame, reset
from tests.proxy.relay.conftest import builder, finish, passes, send_all

if HAS_FAST_PATH:
    pass

pytestmark = pytest.mark.skipif(not HAS_FAST_PATH, reason="the data path is not compiled")
over_tls = pytest.mark.skipif(not IS_NATIVE, reason="the data path is not compiled, or Python's OpenSSL is not a library of its own")


class Peer(ssl.SSLSocket):
    """A peer over TLS, whose socket raises what a plain one does."""

    def recv(self, size: int = 1024, flags: int = 0) -> bytes:
        """As much as there is, of more than one record."""
        data = b""
        while len(data) < size:
            try:
                piece = super().recv(size - len(data), flags)
            except ssl.SSLWantReadError:
                if not data:
                    raise BlockingIOError from None
                break
            data += piece
            if not piece or self.gettimeout() != 0:
                break
        return data

    def send(self, data: Any, flags: int = 0) -> int:
        try:
            return super().send(data, flags)
        except ssl.SSLWantWriteError:
            raise BlockingIOError from None

    def shutdown(self, how: int) -> None:
        """End our stream with close-notify, and no FIN, which would end both directions of an SSLSocket."""
        self.setblocking(False)
        with contextlib.suppress(ssl.SSLWantReadError):
            self._sslobj.shutdown()  # type: ignore[attr-defined]
        self.settimeout(2)


class SecureWorld(World):
    """A world whose clients and upstream speak TLS."""

    def __init__(self, tls: TlsWorld, *args: Any, version: str = "1.3", **options: Any) -> None:
        super().__init__(*args, client_tls=tls.server_settings(), upstream_tls=tls.client_settings(version=version), **options)
        self.contexts = tls.client_settings(version=version).context, tls.server_settings().context
        for context in self.contexts:
            context.sslsocket_class = Peer

    def pair(self, peer: str = "192.0.2.1:1") -> tuple[Any, Any, Pair]:
        plain, pair = self.client(peer)
        client = self.shake(plain, self.contexts[0])
        self.until(lambda: select.select([self.server], [], [], 0)[0])
        accepted, _ = self.server.accept()
        accepted.setblocking(False)
        upstream = self.contexts[1].wrap_socket(accepted, server_side=True, do_handshake_on_connect=False)
        self.sockets.append(upstream)
        self.until(lambda: _is_shaken(upstream) and pair.state.value == "open")
        for sock in (client, upstream):
            sock.settimeout(2)
        return client, upstream, pair


@pytest.fixture(params=["plain", pytest.param("tls", marks=over_tls)])
def make(request: pytest.FixtureRequest, tls_world: TlsWorld) -> Iterator[Callable[..., World]]:
    with builder(World if request.param == "plain" else functools.partial(SecureWorld, tls_world)) as build:
        yield build


@pytest.fixture
def make_plain() -> Iterator[Callable[..., World]]:
    with builder(World) as build:
        yield build


@pytest.fixture(params=[pytest.param("tls", marks=over_tls)])
def make_secure(tls_world: TlsWorld) -> Iterator[Callable[..., SecureWorld]]:
    with builder(functools.partial(SecureWorld, tls_world)) as build:
        yield build


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


def test_a_lane_opens_with_the_second_run_and_over_tls_with_the_second_answer(make_plain, make_secure):
    world = make_plain("framed")
    client, upstream, pair = world.pair()
    passes(world, client, upstream, frame(b"ask"))
    assert not served(world, pair.client)
    passes(world, client, upstream, frame(b"ask"))
    assert served(world, pair.client)
    world = make_secure("framed")
    client, upstream, pair = world.pair()
    passes(world, client, upstream, frame(b"ask"))
    passes(world, client, upstream, frame(b"ask"))
    passes(world, upstream, client, frame(b"answer"))
    assert not served(world, pair.client)
    assert pair.upstream.channel.transport.native is not None
    passes(world, upstream, client, frame(b"answer"))
    assert served(world, pair.client)
    assert served(world, pair.upstream)


def test_all_counts_are_those_of_python(make):
    world = make("framed")
    client, upstream, pair = opened(world)
    bounds = SIZE_BOUNDS[: 5 if pair.client.channel.transport.is_plain else 3]  # of TLS, as long as a frame is one record
    sizes = [0, 1, *(bound + more for bound in bounds for more in (-1, 0, 1))]
    for size in sizes:
        world.clock.ns += 1
        passes(world, client, upstream, frame(bytes(size)))
        assert served(world, pair.client), size
    total = sum(sizes) + 4 * len(sizes) + 14
    world.selector.settle()
    asked, sent = pair.client.channel, pair.upstream.channel
    assert (asked.frames_received, asked.bytes_received, sent.write_half.frames_sent, sent.write_half.bytes_sent) == (len(sizes) + 2, total) * 2
    assert asked.last_active_ns == sent.last_active_ns == world.clock.ns
    wire = asked.transport.wire_received, sent.write_half.wire_sent
    assert wire == (total, total) if asked.transport.is_plain else min(wire) > total + 22 * len(sizes)
    stats, out = asked.options.stats, sent.options.stats
    assert (stats.frames_received, stats.bytes_received, out.frames_sent, out.bytes_sent) == (len(sizes) + 2, total) * 2
    assert (stats.reads, out.writes, sum(stats.frame_sizes)) == (len(sizes) + 2,) * 3
    assert out.forwards.count == len(sizes) + 2 or world.selector._timed is not None
    counted = [
        sum(size <= bound and (index == 0 or size > SIZE_BOUNDS[index - 1]) for size in [3, 3, *sizes]) for index, bound in enumerate(SIZE_BOUNDS)
    ]
    assert list(stats.frame_sizes) == [*counted, *[0] * (SIZE_BUCKETS - len(counted))]
    finish(world, client, upstream)
    assert (world.row["frames"], world.row["bytes"]["request"]) == ({"request": len(sizes) + 2, "response": 2}, total)


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
def test_the_beginning_of_a_frame_waits_for_its_rest(make, cut: int):
    world = make("framed")
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
def test_python_has_the_beginning_of_a_frame_before_it_looks(make, take: Callable[..., Any]):
    world = make("framed")
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


def test_the_lane_has_the_beginning_again_when_python_has_passed_what_was_before_it(make):
    world = make("framed")
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


def test_no_count_of_bytes_shrinks_when_python_gives_the_beginning_of_a_frame_back(make):
    """It is published, and who reads it takes it for the count of another process."""
    world = make("framed")
    client, upstream, pair = begun(world, frame(b"part")[:6])
    counts = []
    for step in (lambda: None, world.selector.settle, lambda: passes(world, upstream, client, frame(b"answer"))):
        step()
        world.selector.take_counts()  # as for publishing
        counts.append((pair.client.channel.options.stats.bytes_received, pair.client.channel.bytes_received, pair.client.channel.staged))
    assert counts == [(29, 29, 0), (29, 29, 6), (29, 29, 0)]


@each_of("ends", ("client", "upstream", "reset"))
def test_a_frame_that_has_begun_on_a_lane_is_lost_with_its_connection(make, ends: str):
    world = make("framed")
    client, upstream, pair = begun(world, frame(b"part")[:6])
    channel = pair.client.channel
    if ends == "reset":
        reset(client)
    finish(world, *((upstream, client) if ends == "upstream" else (client, upstream)))
    assert (channel.read_half.lost_bytes, channel.options.stats.refused_incomplete, world.pool.used) == (6, 1, 0)
    assert world.row["frames"] == {"request": 3, "response": 2}


def test_input_that_is_discarded_loses_the_frame_that_has_begun(make):
    world = make("framed")
    _client, _upstream, pair = begun(world, frame(b"part")[:6])
    channel = pair.client.channel
    channel.discard_input(mute.DRAIN)
    assert (channel.staged, channel.read_half.lost_bytes) == (0, 6)


def test_a_frame_that_has_begun_on_a_lane_and_stands_still_is_a_stall(make):
    world = make("framed", stall_s=5)
    client, upstream, _ = begun(world, frame(b"part")[:6])
    for _ in range(4):
        world.pass_time(3)
    assert world.ended(upstream) == b""
    finish(world, client, upstream)
    assert (world.row["cause"], world.row["side"]) == ("receive_stalled", "downstream")


def test_it_is_a_stall_even_if_answers_are_handled_in_the_polls_in_which_the_time_is_looked_at(make):
    """They give the beginning of the frame back to its lane."""
    world = make("framed", stall_s=5)
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


def test_a_lane_that_hands_over_often_opens_after_more_and_more_runs(make_plain):
    world = make_plain("framed")
    client, upstream, pair = opened(world)
    counts = []
    for _ in range(4):
        send_all(world, client, frame(bytes(300_000)))
        assert world.read(upstream, 300_004) == frame(bytes(300_000))
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
    world.selector.settle()
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
def test_a_reset_between_the_wait_and_the_call_is_told_with_its_error(make, code: str):
    """C gets an error that the socket reports only once."""
    world = make("framed")
    client, upstream, pair = opened(world)
    reset = struct.pack("ii", 1, 0)
    if code == "read":
        client.sendall(frame(b"x"))
        channel = pair.client.channel
        channel.take_over(b"", -1, 0, 104, None)
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


def test_memory_that_is_short_leaves_all_to_python_until_it_is_not(make):
    world = make("framed")
    client, upstream, pair = opened(world)
    pool = world.pool
    held = pool.line - pool.used
    pool.common.charge(0, held)
    passes(world, client, upstream, frame(b"x" * 100))
    assert not served(world, pair.client)
    assert pair.client.channel.read_half.low_memory is not None
    pool.common.release(0, held)
    for _ in range(2):
        passes(world, client, upstream, frame(b"x"))
    assert served(world, pair.client)


def test_a_lane_stays_closed_while_something_is_left_of_a_shortage(make_plain):
    world = make_plain("framed")
    client, upstream, pair = opened(world)
    reads, pool = pair.client.channel.read_half, world.pool
    held = pool.line - pool.used
    pool.common.charge(0, held)
    client.sendall(frame(b"whole") + frame(bytes(1000))[:500])
    assert world.read(upstream, 9) == frame(b"whole")
    world.until(lambda: reads.low_memory is not None and reads.low_memory.is_awaiting)
    passes(world, upstream, client, frame(b"answer"))  # which would open the lanes of both directions
    assert not served(world, pair.client)
    pool.common.release(0, held)
    client.sendall(frame(bytes(1000))[500:])
    assert world.read(upstream, 1004) == frame(bytes(1000))
    passes(world, client, upstream, frame(b"x"))
    assert served(world, pair.client)


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


def test_random_pieces_and_random_looks_at_them_lose_no_byte_and_no_count(make):
    """What comes out is what went in, whatever takes the beginning of a frame from a lane or gives it back, and no count shrinks."""
    world = make("framed")
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


# Over TLS.


class Sender:
    """A client over memory BIOs, that sends when a test says so, and pieces of records."""

    def __init__(self, world: SecureWorld) -> None:
        self.world = world
        self.sock, self.pair = world.client()
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = world.contexts[0].wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")
        self.sock.setblocking(False)
        world.until(lambda: self.did(self.tls.do_handshake) is None)
        world.until(lambda: select.select([world.server], [], [], 0)[0])
        accepted, _ = world.server.accept()
        accepted.setblocking(False)
        self.upstream = world.contexts[1].wrap_socket(accepted, server_side=True, do_handshake_on_connect=False)
        world.sockets.append(self.upstream)
        world.until(lambda: _is_shaken(self.upstream) and self.pair.state.value == "open")
        self.upstream.settimeout(2)
        for _ in range(3):
            self.sock.sendall(self.record(frame(b"ask")))
            assert world.read(self.upstream, 7) == frame(b"ask")
            self.upstream.sendall(frame(b"answer"))
            assert self.read(10) == frame(b"answer")
        assert served(world, self.pair.client)
        assert served(world, self.pair.upstream)

    def did(self, call: Callable[[], Any]) -> Any:
        """The result of a call; ``call`` if it needs more bytes. What it wrote is sent."""
        with contextlib.suppress(BlockingIOError):
            self.incoming.write(self.sock.recv(100_000))
        try:
            return call()
        except ssl.SSLWantReadError:
            return call
        finally:
            if self.outgoing.pending:
                self.sock.sendall(self.outgoing.read())

    def record(self, data: bytes) -> bytes:
        self.tls.write(data)
        return self.outgoing.read()

    def read(self, size: int) -> bytes:
        data: list[bytes] = []

        def more() -> bool:
            piece = self.did(lambda: self.tls.read(size))
            if isinstance(piece, bytes):
                data.append(piece)
            return len(b"".join(data)) >= size

        self.world.until(more)
        return b"".join(data)

    def passes(self, data: bytes) -> None:
        """Have these bytes of the connection arrive as one frame."""
        self.sock.sendall(data)
        assert self.world.read(self.upstream, 9) == frame(b"frame")

    def end(self) -> Any:
        """Close, and return the row."""
        for sock in (self.sock, self.upstream):
            sock.close()
        self.world.until(lambda: self.world.rows)
        return self.world.row


@each_of("version", ("1.2", "1.3"))
def test_a_record_in_pieces_is_held_and_the_lane_stays_open(make_secure, version: str):
    sender = Sender(make_secure("framed", version=version))
    world, pair = sender.world, sender.pair
    assert sender.tls.version() == f"TLSv{version}"
    whole = sender.record(frame(b"frame"))
    length = len(whole)
    sender.passes(whole)
    for cut in range(1, length):
        record, following = sender.record(frame(b"frame")), sender.record(frame(b"frame"))
        sender.sock.sendall(record[:cut])
        world.until(lambda held=record[:cut]: pair.client.channel.transport.native.held == held)
        sender.passes(record[cut:] + following[:cut])
        assert served(world, pair.client), cut
        sender.passes(following[cut:])
        assert served(world, pair.client), cut
    row = sender.end()
    assert row["frames"] == {"request": 4 + 2 * (length - 1), "response": 3}


def test_what_python_reads_begins_with_what_the_lane_holds(make_secure):
    sender = Sender(make_secure("framed"))
    record, following = sender.record(frame(b"frame")), sender.record(frame(b"frame"))
    sender.sock.sendall(record + following[:7])
    assert sender.world.read(sender.upstream, 9) == frame(b"frame")
    sender.pair.client.channel.mute(mute.ADMIN)
    sender.pair.client.channel.unmute(mute.ADMIN)
    assert not served(sender.world, sender.pair.client)
    sender.passes(following[7:])


@each_of(
    ("damage", "reason"),
    [
        (lambda record: record[:-1] + bytes([record[-1] ^ 1]), "decryption_failed_or_bad_record_mac"),
        (lambda record: b"GET / HTTP/1.1", "wrong_version_number"),
        (lambda record: b"\x17\x03\x03\xff\xff", "packet_length_too_long"),
    ],
)
def test_a_record_that_openssl_refuses_closes_with_its_alert_after_what_was_before_it(make_secure, damage: Callable[[bytes], bytes], reason: str):
    sender = Sender(make_secure("framed"))
    before = sender.record(frame(b"frame"))
    sender.passes(before + damage(sender.record(frame(b"never"))))
    with pytest.raises(ssl.SSLError, match="ALERT"):
        sender.read(1)
    row = sender.end()
    assert (row["cause"], row["side"], row["frames"]["request"]) == ("tls_failed", "downstream", 4)
    assert reason in row["detail"]


def test_a_close_notify_behind_frames_is_the_end_after_them(make_secure):
    sender = Sender(make_secure("framed"))
    record = sender.record(frame(b"frame"))
    with contextlib.suppress(ssl.SSLWantReadError):
        sender.tls.unwrap()
    sender.passes(record + sender.outgoing.read())
    assert sender.world.ended(sender.upstream) == b""
    sender.upstream.sendall(frame(b"late"))
    assert sender.read(8) == frame(b"late")
    assert sender.end()["frames"] == {"request": 4, "response": 4}


def key_update(sender: Sender, *, asks: bool) -> None:
    """Have a key update leave before the next record. Python has no call for it, so the pointer is taken from the object as C takes it."""
    inner = sender.tls._sslobj
    pointer = ctypes.c_void_p.from_address(id(inner) + object.__basicsize__ + ctypes.sizeof(ctypes.c_void_p))
    assert ctypes.CDLL(ssl._ssl.__file__).SSL_key_update(pointer, int(asks)) == 1


def test_a_flood_of_key_updates_is_read_in_small_portions_and_others_are_not(make_secure):
    """They take a hundred times as long as plaintext."""
    sender = Sender(make_secure("framed"))
    world, channel = sender.world, sender.pair.client.channel

    def portions(data: bytes) -> list[int]:
        """What is read of it in a poll each."""
        world.selector.settle()
        sender.sock.sendall(data)
        begin, read = channel.transport.wire_received, [0]
        while read[-1] < len(data):
            world.poll(1)
            world.selector.settle()
            read.append(channel.transport.wire_received - begin)
        return [later - before for before, later in itertools.pairwise(read)]

    read = portions(b"".join(sender.record(frame(bytes(4))) for _ in range(5000)))
    assert (read[:2], 16_384 < max(read) <= 65_536) == ([4096, 16_384], True)
    assert world.read(sender.upstream, 40_000) == frame(bytes(4)) * 5000
    updates = b""
    for _ in range(4000):
        key_update(sender, asks=False)
        sender.tls.do_handshake()
        updates += sender.outgoing.read()
    read = portions(updates)
    assert 16_384 < read[0] <= 65_536
    assert max(read[1:]) == 4096
    sender.passes(sender.record(frame(b"frame")))
    assert sender.end()["frames"]["request"] == 5004


def test_a_key_update_is_answered_and_frames_go_on(make_secure):
    sender = Sender(make_secure("framed"))
    for number in range(3):
        key_update(sender, asks=True)
        sender.passes(sender.record(frame(b"frame")))
        sender.upstream.sendall(frame(b"answer"))
        assert sender.read(10) == frame(b"answer"), number
    assert sender.end()["frames"] == {"request": 6, "response": 6}


def test_a_key_update_within_a_frame_takes_nothing_from_it(make_secure):
    sender = Sender(make_secure("framed"))
    sender.sock.sendall(sender.record(frame(b"frame")[:6]))
    sender.world.poll()
    assert (served(sender.world, sender.pair.client), sender.pair.client.channel.staged) == (True, 0)
    key_update(sender, asks=True)
    sender.passes(sender.record(frame(b"frame")[6:]))
    sender.passes(sender.record(frame(b"frame")))
    assert sender.end()["frames"]["request"] == 5
