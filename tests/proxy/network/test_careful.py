"""proxy.network.careful: while memory is short nothing is held that need not be, nothing is lost, and nothing spins.

Over real sockets: what the kernel does with thresholds and room is part of it.
"""

import contextlib
import random
import select
import socket
import ssl
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.network import mute, socket_buffers
from proxy.network.careful import (
    AT_ONCE,
    HEAD,
    LITTLE,
    MAX_READ,
    PATIENCE,
    PIECE,
    SMALL,
    TLS_READS,
    WAIT_A_WHILE,
    WAIT_FOR_BYTES,
    WAIT_FOR_ROOM,
    WAIT_FOR_TURN,
    Careful,
)
from proxy.network.cause import Cause
from proxy.network.channel import Channel
from proxy.network.memory_pool import BEGUN, PENDING, PIECE_OVERHEAD, MemoryPool
from proxy.network.plaintext import PlaintextTransport
from proxy.network.receive import NEVER_CUT, Receive, ReceiveLimit
from proxy.network.run import Run
from proxy.network.state import ChannelState
from proxy.network.stats import SideStats
from proxy.network.turns import PORTION, TurnOwner
from tests.fakes.clock import FakeClock
from tests.fakes.network import NetBench, frame, net_bench, reset, tcp_pair
from tests.fakes.tls import TlsWorld
from tests.fakes.transport import MemoryTransport, Wire

NO_LIMIT = 1 << 31
POOL = 1 << 20
SHORT = POOL - 100_000  # held by somebody: memory is short, and the reserve is free


class Owner(TurnOwner):
    """Nothing is told to it."""

    def turn_given(self) -> None:
        pass

    def is_dry(self) -> bool:
        return True

    def is_held_up(self) -> bool:
        return False


class Desk:
    """One ``Careful`` over a plaintext socket, and its peer."""

    def __init__(self, *, tcp: bool = True, cut_from: int = NEVER_CUT, used: int = SHORT) -> None:
        self.sock, self.peer = tcp_pair() if tcp else socket.socketpair()
        self.sock.setblocking(False)
        self.pool = MemoryPool(POOL, FakeClock().now_ns)
        self.pool.set_largest(4 << 20, 0)
        self.pool.common.charge(PENDING, used)
        self.transport = PlaintextTransport(self.sock)
        self.receive = Receive(self.pool.common, ReceiveLimit(-1), SideStats(), cut_from)
        self.care = Careful(self.sock, self.transport, self.receive, self.pool.requests, Owner())
        self.runs: list[Run] = []

    def send(self, data: bytes) -> None:
        """To the last byte, and wait until it lies in the socket."""
        before = int(socket_buffers.queued(self.sock))
        self.peer.sendall(data)
        for _ in range(5000):
            if socket_buffers.queued(self.sock) == before + len(data):
                return
            select.select([], [], [], 0.001)
        raise AssertionError("it does not arrive")

    def plan_read(self, room: int = NO_LIMIT, *, drained: bool = False) -> int:
        return int(self.care.plan_read(room, drained=drained, readable=True))

    def read(self, size: int) -> Run | None:
        """As a channel does."""
        self.care.before_read()
        data = self.transport.read(size)
        assert data, "there is something"
        run = self.receive.feed(data)
        if run is not None:
            self.runs.append(run)
            self.pool.common.release(BEGUN, run.lease)
            run.lease = 0
        self.care.after_read(len(data), whole=run is not None)
        return run

    def close(self) -> None:
        self.sock.close()
        self.peer.close()


@pytest.fixture
def make() -> Iterator[Callable[..., Desk]]:
    with contextlib.ExitStack() as stack:

        def build(**options: int) -> Desk:
            desk = Desk(**options)  # type: ignore[arg-type]
            stack.callback(desk.close)
            return desk

        yield build


# One look.


def test_whole_frames_are_read_exactly_and_what_follows_stays(make):
    desk = make()
    desk.send(frame(100) * 3 + frame(100)[:50])
    assert desk.plan_read() == 3 * 104
    run = desk.read(3 * 104)
    assert (run.frames, desk.receive.staged) == (3, 0)
    assert (desk.plan_read(), desk.care.threshold) == (WAIT_FOR_BYTES, 104)


@pytest.mark.parametrize(("room", "size"), [(0, WAIT_FOR_ROOM), (103, 104), (104, 104), (207, 104), (208, 208), (209, 208)])
def test_no_more_frames_are_read_than_there_is_room_for(make, room, size):
    desk = make()
    desk.send(frame(100) * 4)
    assert desk.plan_read(room) == size


@pytest.mark.parametrize("body", [0, 1, 12, 1000, PIECE - 5, PIECE - 4, PIECE - 3, SMALL - 5, SMALL - 4])
def test_a_small_frame_stays_in_the_kernel_until_its_last_byte_is_there(make, body):
    desk = make()
    data = frame(body)
    desk.send(data[: min(1000, 3 + body)])
    if body:
        assert desk.plan_read() == WAIT_FOR_BYTES  # and so the kernel takes all of it
        desk.send(data[min(1000, 3 + body) : -1])
        assert desk.plan_read() in (WAIT_FOR_BYTES, WAIT_A_WHILE)
        assert desk.care.threshold == 4 + body
        assert desk.care.is_awaiting
        desk.send(b"x")
        assert desk.plan_read() == 4 + body
        assert desk.read(4 + body).frames == 1
        assert (desk.care.threshold, desk.pool.begun) == (1, 0)
    else:
        assert desk.plan_read() == 3


@pytest.mark.parametrize("body", [SMALL - 3, SMALL, 1 << 20])
def test_one_byte_more_is_large_and_asks_for_a_turn(make, body):
    desk = make()
    desk.send(frame(body)[:PORTION])
    assert desk.plan_read() == 4
    desk.read(4)
    assert desk.pool.begun == 4 + PIECE_OVERHEAD
    assert (desk.plan_read(), desk.care.threshold) == (WAIT_FOR_BYTES, PORTION)
    desk.send(b"x" * 4)
    size = desk.plan_read()
    assert size == min(body, MAX_READ)
    assert desk.care.turn.is_in
    desk.read(size)
    assert desk.plan_read(0) == min(body - PORTION, MAX_READ), "who is in needs no room"


@pytest.mark.parametrize("first", [1, 2, 3])
def test_a_header_in_parts_is_read_as_far_as_it_is_there_and_then_to_its_end(make, first):
    desk = make()
    data = frame(500)
    desk.send(data[:first])
    assert desk.plan_read() == first
    desk.read(first)
    desk.send(data[first:300])
    assert desk.plan_read() == 4 - first
    desk.read(4 - first)
    assert (desk.plan_read(), desk.care.threshold) == (WAIT_FOR_BYTES, 500)
    desk.send(data[300:])
    assert desk.plan_read() == 500
    assert desk.read(500).size == 504


def test_a_fault_behind_whole_frames_and_before_any_is_read_like_a_beginning(make):
    desk = make()
    desk.send(frame(5) + b"\xff\xff\xff\xff" + b"x" * 100)
    assert desk.plan_read() == 9
    desk.read(9)
    assert desk.plan_read() == 4
    desk.read(4)
    assert desk.receive.fault != 0


def test_who_waits_for_a_turn_waits_for_nothing_else(make):
    desk = make(used=POOL + 1)
    desk.send(frame(SMALL)[: PORTION + 4])
    desk.read(desk.plan_read())
    assert desk.plan_read() == WAIT_FOR_TURN
    assert (desk.care.threshold, desk.care.is_awaiting, desk.pool.waiting) == (1, False, 1)
    desk.care.leave()
    assert (desk.care.turn, desk.pool.waiting) == (None, 0)


def test_a_small_frame_that_is_larger_than_the_room_passes_in_pieces(make):
    desk = make()
    desk.send(frame(50_000))
    sizes = []
    for room in (10_000, 1, 5000, 0, 100_000):
        size = desk.plan_read(room)
        sizes.append(size)
        if size > 0:
            desk.read(size)
    assert sizes == [10_000, 1, 5000, WAIT_FOR_ROOM, 50_004 - 15_001]
    assert b"".join(piece for run in desk.runs for piece in run.pieces()) == frame(50_000)
    assert (sum(run.frames for run in desk.runs), desk.pool.begun, desk.receive.within) == (1, 0, False)


@pytest.mark.parametrize(("body", "room", "size"), [(HEAD - 4, 1, HEAD), (HEAD - 3, 1, HEAD), (HEAD - 3, HEAD, HEAD), (HEAD - 3, HEAD + 1, HEAD + 1)])
def test_no_frame_is_cut_that_is_no_longer_than_a_first_piece(make, body, room, size):
    """Else the one behind it would be, of which nobody knows that it will be whole."""
    desk = make()
    desk.send(frame(body) + frame(1000)[:500])
    assert desk.plan_read(room) == size
    run = desk.read(size)
    assert (run.part != 0) is (size < 4 + body)
    assert not desk.receive.within or desk.receive.cut


@pytest.mark.parametrize("room", [20_001, 20_003, 20_004])
def test_what_was_begun_before_goes_along_with_the_first_piece(make, room):
    desk = make()
    desk.receive.feed(frame(30_000)[:20_000])
    desk.send(frame(30_000)[20_000:])
    size = desk.plan_read(room)
    assert size == room - 20_000
    run = desk.read(size)
    assert run.size == room
    desk.read(desk.plan_read())
    assert b"".join(piece for run in desk.runs for piece in run.pieces()) == frame(30_000)


def test_a_frame_that_is_cut_through_asks_nobody(make):
    desk = make(cut_from=SMALL, used=POOL + 1)
    desk.send(frame(1 << 20)[:8])
    desk.read(desk.plan_read())
    assert (desk.plan_read(), desk.care.threshold) == (WAIT_FOR_BYTES, 8)
    desk.send(b"x" * 100)
    size = desk.plan_read()
    assert size == 8
    assert desk.read(size).size == 12
    assert (desk.plan_read(50), desk.plan_read(0), desk.plan_read()) == (50, WAIT_FOR_ROOM, PIECE)
    assert desk.pool.waiting == 0


# Sockets that do not tell.


def test_a_unix_socket_is_looked_at_again_and_taken_for_full_in_the_end(make):
    desk = make(tcp=False)
    desk.send(frame(5000)[:3000])
    assert [desk.plan_read() for _ in range(PATIENCE)] == [WAIT_A_WHILE] * PATIENCE
    assert desk.care.is_awaiting
    desk.send(b"x")
    assert [desk.plan_read() for _ in range(PATIENCE)] == [WAIT_A_WHILE] * PATIENCE, "a byte more begins it anew"
    assert desk.plan_read() == 4
    desk.read(4)
    assert [desk.plan_read() for _ in range(PATIENCE)] == [WAIT_A_WHILE] * PATIENCE
    assert desk.plan_read() == 5000
    assert desk.care.turn.is_in


def test_a_frame_that_becomes_whole_while_it_is_looked_at_again_is_read(make):
    desk = make(tcp=False)
    desk.send(frame(5000)[:3000])
    assert desk.plan_read() == WAIT_A_WHILE
    desk.send(frame(5000)[3000:])
    assert desk.plan_read() == 5004
    desk.read(5004)
    assert not desk.care.is_awaiting


def test_a_socket_that_is_readable_too_early_is_looked_at_by_the_clock(make):
    desk = make()
    desk.send(frame(5000)[:3000])
    assert desk.plan_read() == WAIT_FOR_BYTES
    assert [desk.plan_read() for _ in range(PATIENCE)] == [WAIT_A_WHILE] * PATIENCE, "it says readable, and it is not"
    assert desk.care.plan_read(NO_LIMIT, drained=False, readable=False) == WAIT_FOR_BYTES


def test_only_who_waits_for_more_than_lies_there_waits_in_vain(make):
    desk = make()
    assert not desk.care.is_in_vain()
    desk.send(frame(5000)[:3000])
    desk.plan_read()
    assert desk.care.is_in_vain()
    desk.send(frame(5000)[3000:])
    assert not desk.care.is_in_vain()


# Whole channels.


class Line:
    """A channel, and a peer that sends bytes in pieces of any size, over TCP, Unix or TLS."""

    def __init__(self, net: NetBench, kind: str, world: TlsWorld, *, cut_from: int = NEVER_CUT) -> None:
        self.net = net
        self.tls: ssl.SSLObject | None = None
        options = net.options(tls=world.server_settings() if kind == "tls" else None, cut_from=cut_from)
        self.channel, self.sock = net.pair(options, tcp=kind != "unix")
        self.sock.setblocking(False)
        self.out = bytearray()  # on the wire's side, not sent yet
        if kind == "tls":
            settings = world.client_settings()
            self.into, self.from_ = ssl.MemoryBIO(), ssl.MemoryBIO()
            self.tls = settings.context.wrap_bio(self.into, self.from_, server_hostname="localhost")
            self._shake(self.tls)
        net.poll_until(lambda: self.channel.is_open)

    def _shake(self, tls: ssl.SSLObject) -> None:
        def step() -> bool:
            with contextlib.suppress(BlockingIOError):
                self.into.write(self.sock.recv(65536))
            try:
                tls.do_handshake()
            except ssl.SSLWantReadError:
                return False
            finally:
                self._flush(1 << 20)
            return True

        self.net.poll_until(step)

    def say(self, data: bytes, record: int = 16384) -> None:
        """Queue bytes; over TLS in records of so many."""
        if self.tls is None:
            self.out += data
            return
        for start in range(0, len(data), record):
            self.tls.write(data[start : start + record])
            self.out += self.from_.read()

    def _flush(self, size: int) -> int:
        if self.tls is not None:
            self.out += self.from_.read()
        with contextlib.suppress(BlockingIOError):
            sent = self.sock.send(memoryview(self.out)[:size])
            del self.out[:sent]
            return sent
        return 0

    def send(self, size: int = 1 << 30) -> int:
        """So many bytes of what is queued, as far as the socket takes them."""
        return self._flush(size)

    def turn(self, times: int = 1, ms: float = 10) -> None:
        """Let time pass."""
        for _ in range(times):
            self.send()
            self.net.poll()
            self.net.clock.advance_ms(ms)

    @property
    def came(self) -> bytes:
        return self.net.listener.data.get(self.channel, b"")


@contextlib.contextmanager
def short_bench(pool: int = POOL, used: int = SHORT) -> Iterator[NetBench]:
    """A bench whose pool is used up by somebody; the reserve is there, unless more is used."""
    with net_bench(pool=pool) as net:
        net.pool.set_largest(4 << 20, 0)
        net.pool.common.charge(PENDING, used)
        try:
            yield net
        finally:
            net.pool.common.release(PENDING, used)


KINDS = ("tcp", "unix", "tls")


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12)
@given(
    sizes=st.lists(st.sampled_from([0, 1, 12, 100, 5000, 16_384, 70_000, SMALL - 5, SMALL - 4, SMALL - 3, 300_000, 700_000]), min_size=1, max_size=6),
    seed=st.integers(0, 2**32),
    most=st.sampled_from([1000, 20_000, 300_000]),
    cut=st.booleans(),
)
def test_nothing_is_lost_doubled_or_moved_whenever_memory_is_short(
    kind: str, sizes: list[int], seed: int, most: int, cut: bool, tls_world: TlsWorld
) -> None:
    """Against the plain model: what comes is what was sent. Shortage begins and ends at any time, room is what it is, as are pieces and records."""
    chooser = random.Random(seed)
    data = b"".join(frame(size, bytes([65 + index])) for index, size in enumerate(sizes))
    with net_bench(pool=POOL) as net:
        net.pool.set_largest(1 << 20, 0)
        line = Line(net, kind, tls_world, cut_from=SMALL if cut else NEVER_CUT)
        line.say(data, chooser.choice([300, 5000, 16_384]))
        used = 0
        rounds = 0
        while len(line.came) < len(data):
            rounds += 1
            assert rounds < 20_000, f"{len(line.came)} of {len(data)} came; {line.channel.mute_causes}, {line.channel.staged} staged"
            if chooser.random() < 0.1:
                net.pool.common.release(PENDING, used)
                used = chooser.choice([0, POOL, POOL])
                net.pool.common.charge(PENDING, used)
            room = chooser.choice([0, 1, 500, 10_000, 100_000, NO_LIMIT, NO_LIMIT])
            net.listener.room = (room, room > 100_000 or (room != 0 and chooser.random() < 0.2))
            line.send(chooser.randint(1, most))
            net.poll()
            net.clock.advance_ms(chooser.choice([0, 1, 10, 30]))
            line.channel.unmute(mute.PEER)
            assert data.startswith(line.came), "other bytes came than were sent"
            assert net.pool.used == used + line.channel.leased
        assert line.came == data
        assert net.listener.frames[line.channel] == len(sizes)
        assert (line.channel.staged, line.channel.lost_bytes, line.channel.leased) == (0, 0, 0)
        net.pool.common.release(PENDING, used)


@pytest.mark.parametrize("kind", ["tcp", "tls"])
@pytest.mark.parametrize("size", [1000, 70_000, SMALL - 4])
def test_while_it_waits_for_bytes_it_costs_nothing(kind: str, size: int, tls_world: TlsWorld) -> None:
    with short_bench() as net:
        line = Line(net, kind, tls_world)
        line.say(frame(size)[:-1])
        line.turn(200, ms=0)
        events = count_events(net, line.channel, 50)
        assert events == 0
        assert net.pool.begun <= (LITTLE + PIECE_OVERHEAD if kind == "tls" else 0)
        assert line.channel.is_receiving
        assert line.channel.begun_bytes >= 4 + size - 1 - (LITTLE if kind == "tls" else 0), "a record begun may lie in the transport"
        line.say(b"x")
        net.poll_until(lambda: line.turn() or line.channel.frames_received == 1)
        assert (line.came, net.pool.begun) == (frame(size), 0)


def count_events(net: NetBench, channel: Channel, polls: int) -> int:
    """How often the channel's socket has something to say in so many polls, if nothing happens."""
    interest = max(int(channel._interest), 0)
    with select.epoll() as epoll:
        if channel._interest >= 0:
            epoll.register(int(channel.fd), interest)
        found = 0
        for _ in range(polls):
            net.poll()
            found += len(epoll.poll(0)) if channel._interest == interest else 1
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("room", [0, 10])
def test_while_it_waits_for_room_it_costs_nothing(kind: str, room: int, tls_world: TlsWorld) -> None:
    with short_bench() as net:
        line = Line(net, kind, tls_world)
        net.listener.room = (room if kind == "tls" else 0, False)
        line.say(frame(30_000))
        line.turn(20)
        assert line.channel.mute_causes == mute.PEER
        assert count_events(net, line.channel, 50) == 0
        assert net.listener.words().count("wait_for_room") == 1


@pytest.mark.parametrize("kind", KINDS)
def test_while_it_waits_for_its_turn_it_costs_nothing(kind: str, tls_world: TlsWorld) -> None:
    with short_bench(used=2 * POOL) as net:
        line = Line(net, kind, tls_world)
        line.say(frame(1 << 20))
        net.poll_until(lambda: line.turn() or line.channel.mute_causes == mute.MEMORY)
        line.turn(20, ms=0)
        assert count_events(net, line.channel, 50) == 0
        assert line.channel.frames_received == 0
        net.pool.common.release(PENDING, POOL + LITTLE + 2 * PIECE_OVERHEAD)
        net.poll_until(lambda: line.turn(ms=1) or line.channel.frames_received == 1)
        net.pool.common.charge(PENDING, POOL + LITTLE + 2 * PIECE_OVERHEAD)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("end", ["fin", "reset", "close"])
@pytest.mark.parametrize("size", [5000, SMALL - 4, 1 << 20])
def test_an_end_within_a_frame_is_seen_and_what_came_of_it_is_lost(kind: str, end: str, size: int, tls_world: TlsWorld) -> None:
    with short_bench() as net:
        line = Line(net, kind, tls_world)
        line.say(frame(3) + frame(size)[:3000])
        line.turn(3, ms=0)
        if end == "fin":
            line.sock.shutdown(socket.SHUT_WR)
        elif end == "reset" and kind != "unix":
            reset(line.sock)
        else:
            line.sock.close()
        for _ in range(40):
            net.poll()
            net.clock.advance_ms(10)
        channel = line.channel
        assert net.listener.data[channel] == frame(3)
        if end == "reset" and kind != "unix":
            assert (channel.state, channel.close_cause) == (ChannelState.CLOSED, Cause.PEER_RESET)
        else:
            assert channel.state is ChannelState.READ_ENDED or not channel.is_open
            assert channel.lost_bytes == 3000
        assert (net.pool.begun, net.pool.waiting) == (0, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_many_frames_and_an_end_behind_the_one_that_is_waited_for_come_one_event_at_a_time(kind: str, tls_world: TlsWorld) -> None:
    """All that lies in the kernel in one event would keep everybody else waiting."""
    with short_bench() as net:
        line = Line(net, kind, tls_world)
        line.say(frame(100)[:50])
        line.turn(3, ms=0)
        line.say(frame(100)[50:] + frame(1) * 3000)
        line.send()
        line.sock.shutdown(socket.SHUT_WR)
        before = net.stats.reads
        net.poll()
        assert net.stats.reads - before <= 2
        for _ in range(100):
            net.poll()
            net.clock.advance_ms(10)
        assert line.came == frame(100) + frame(1) * 3000
        assert line.channel.state is ChannelState.READ_ENDED


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cause", [mute.ADMIN, mute.TAP])
def test_a_mute_while_it_waits_holds_and_ends(kind: str, cause: int, tls_world: TlsWorld) -> None:
    with short_bench() as net:
        line = Line(net, kind, tls_world)
        line.say(frame(50_000)[:30_000])
        line.turn(3, ms=0)
        line.channel.mute(cause)
        line.say(frame(50_000)[30_000:])
        line.turn(10)
        if cause == mute.TAP:
            assert line.channel.frames_received == 0
        assert count_events(net, line.channel, 20) == 0
        line.channel.unmute(cause)
        net.poll_until(lambda: line.turn() or line.channel.frames_received == 1)
        assert line.came == frame(50_000)


@pytest.mark.parametrize("kind", ["tcp", "tls"])
def test_tiny_segments_and_records_do_not_stop_a_frame(kind: str, tls_world: TlsWorld) -> None:
    """Each fills the kernel's buffer with far more than it holds: the frame goes on like a large one, or when the kernel has joined them."""
    with short_bench() as net:
        line = Line(net, kind, tls_world)
        data = frame(20_000)
        line.say(data, record=20)
        while line.out:
            line.send(60)
            net.poll()
        net.poll_until(lambda: line.turn() or line.channel.frames_received == 1)
        assert line.came == data
        assert net.pool.begun == 0


class Lying(MemoryTransport):
    """As TLS with padded records: all seems to be there, and is not."""

    def __init__(self, data: bytes) -> None:
        super().__init__(Wire(), Wire(), is_plain=False)
        self.inbound.put(data)

    def obtainable(self, wanted: int) -> int:
        return wanted


def test_records_that_hold_less_than_they_seem_to_make_a_frame_go_on_like_a_large_one() -> None:
    """An empty record counts as data when it is looked at; then it is not, again and again."""
    pool = MemoryPool(POOL, FakeClock().now_ns)
    pool.set_largest(POOL, 0)
    pool.common.charge(PENDING, SHORT)
    sock, peer = tcp_pair()
    transport = Lying(frame(30_000)[:100])
    receive = Receive(pool.common, ReceiveLimit(-1), SideStats())
    care = Careful(sock, transport, receive, pool.requests, Owner())
    with sock, peer:
        for reads in range(TLS_READS + 1):
            size = care.plan_read(NO_LIMIT, drained=True, readable=True)
            assert size > 0
            assert care.turn is None, f"after {reads} reads"
            data = transport.read(10) or b""
            receive.feed(data)
            care.after_read(len(data), whole=False)
        assert care.plan_read(NO_LIMIT, drained=True, readable=True) == receive.unit()
        assert care.turn is not None
        assert care.turn.is_in
        care.leave()
    assert (pool.promised, pool.trusted, pool.requests.reserved) == (0, 0, None)


def test_what_deceivers_have_us_hold_is_bounded_for_all_of_them_together() -> None:
    """Each has all but a byte of a frame of 200 KiB read; the next one waits for its turn."""
    size = 200 * 1024
    pool = MemoryPool(POOL, FakeClock().now_ns)
    pool.common.charge(PENDING, 2 * POOL)
    sock, peer = tcp_pair()
    cares = []
    with sock, peer:
        for expected in (size - LITTLE, WAIT_FOR_TURN, WAIT_FOR_TURN):
            transport = Lying(frame(size - 4)[:-1])
            receive = Receive(pool.common, ReceiveLimit(-1), SideStats())
            care = Careful(sock, transport, receive, pool.requests, Owner())
            cares.append(care)
            first = care.plan_read(NO_LIMIT, drained=True, readable=True)
            assert first == LITTLE
            receive.feed(transport.read(int(first)) or b"")
            assert care.plan_read(NO_LIMIT, drained=True, readable=True) == expected
        cares[0].leave()
        assert pool.trusted == 0


def test_over_tls_a_frame_goes_whole_only_as_far_as_an_empty_socket_takes_nearly_all_of_it(tls_world: TlsWorld) -> None:
    with short_bench(used=2 * POOL) as net:
        for size, waits in ((AT_ONCE - 4, False), (AT_ONCE + 20_000, True)):
            line = Line(net, "tls", tls_world)
            net.listener.room = (20_000, True)
            line.say(frame(size))
            for _ in range(300):
                line.turn(ms=1)
            assert (line.channel.mute_causes == mute.MEMORY) is waits, size
            assert (line.channel.frames_received == 0) is waits
            line.channel.close(Cause.ADMIN)
