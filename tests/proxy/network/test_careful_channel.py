"""framegate.proxy.network.low_memory_reader in whole channels: nothing is lost or spins, over TCP, Unix and TLS, while memory is short."""

import contextlib
import random
import select
import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framegate.proxy.cause import Cause
from framegate.proxy.network import mute
from framegate.proxy.network.channel import Channel
from framegate.proxy.network.low_memory_reader import AT_ONCE, LITTLE, SMALL, TLS_READS, WAIT_FOR_SLOT, LowMemoryReader
from framegate.proxy.network.memory_pool import PENDING, PIECE_OVERHEAD, MemoryPool
from framegate.proxy.network.receive import NEVER_CUT, Receive, ReceiveLimit
from framegate.proxy.network.state import ChannelState
from framegate.proxy.network.stats import SideStats
from tests.fakes.admission_slots import Owner
from tests.fakes.cases import each_of
from tests.fakes.clock import FakeClock
from tests.fakes.network import NetBench, frame, net_bench, reset, tcp_pair
from tests.fakes.tls import TlsWorld
from tests.fakes.transport import MemoryTransport, Wire
from tests.proxy.network.conftest import short_bench
from tests.proxy.network.test_tls import BioPeer

NO_LIMIT = 1 << 31
POOL = 1 << 20
SHORT = POOL - 100_000  # used from outside: memory is short, and the reserve is free
LARGEST = 4 << 20


class Line:
    """A channel, and a peer that sends bytes in pieces of any size, over TCP, Unix or TLS."""

    def __init__(self, net: NetBench, kind: str, world: TlsWorld, *, cut_from: int = NEVER_CUT) -> None:
        self.net = net
        options = net.options(tls=world.server_settings() if kind == "tls" else None, cut_from=cut_from)
        self.channel, self.sock = net.pair(options, tcp=kind != "unix")
        self.sock.setblocking(False)
        self.out = bytearray()  # on the wire's side, not sent yet
        self.tls: BioPeer | None = None
        if kind == "tls":
            self.tls = BioPeer(self.sock, world.client_settings())
            net.poll_until(self.tls.shake)
        net.poll_until(lambda: self.channel.is_open or not self.send())

    def say(self, data: bytes, record: int = 16384) -> None:
        """Queue bytes; over TLS in records of so many."""
        if self.tls is None:
            self.out += data
            return
        for start in range(0, len(data), record):
            self.tls.tls.write(data[start : start + record])
            self.out += self.tls.outgoing.read()

    def send(self, size: int = 1 << 30) -> int:
        """So many bytes of what is queued, as far as the socket takes them."""
        if self.tls is not None:
            self.out += self.tls.outgoing.read()
        with contextlib.suppress(BlockingIOError):
            sent = self.sock.send(memoryview(self.out)[:size]) if self.out else 0
            del self.out[:sent]
            return sent
        return 0

    def pass_time(self, times: int = 1, ms: float = 10) -> None:
        """Send, poll, and let time pass."""
        for _ in range(times):
            self.send()
            self.net.poll()
            self.net.clock.advance_ms(ms)

    @property
    def came(self) -> bytes:
        return self.net.listener.data.get(self.channel, b"")


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


@each_of("kind", ["tcp", "tls"])
@each_of("size", [1000, 70_000, SMALL - 4])
def test_while_it_waits_for_bytes_it_costs_nothing(kind: str, size: int, tls_world: TlsWorld) -> None:
    with short_bench(SHORT, LARGEST) as net:
        line = Line(net, kind, tls_world)
        line.say(frame(size)[:-1])
        line.pass_time(200, ms=0)
        events = count_events(net, line.channel, 50)
        assert events == 0
        assert net.pool.begun <= (LITTLE + PIECE_OVERHEAD if kind == "tls" else 0)
        assert line.channel.read_half.is_receiving
        assert line.channel.read_half.begun_bytes >= 4 + size - 1 - (LITTLE if kind == "tls" else 0), "a record begun may lie in the transport"
        line.say(b"x")
        net.poll_until(lambda: line.pass_time() or line.channel.frames_received == 1)
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


@each_of("kind", KINDS)
@each_of("room", [0, 10])
def test_while_it_waits_for_room_it_costs_nothing(kind: str, room: int, tls_world: TlsWorld) -> None:
    with short_bench(SHORT, LARGEST) as net:
        line = Line(net, kind, tls_world)
        net.listener.room = (room if kind == "tls" else 0, False)
        line.say(frame(30_000))
        line.pass_time(20)
        assert line.channel.mute_causes == mute.PEER
        assert count_events(net, line.channel, 50) == 0
        assert net.listener.words().count("wait_for_room") == 1


@each_of("kind", KINDS)
def test_while_it_waits_for_its_turn_it_costs_nothing(kind: str, tls_world: TlsWorld) -> None:
    with short_bench(2 * POOL, LARGEST) as net:
        line = Line(net, kind, tls_world)
        line.say(frame(1 << 20))
        net.poll_until(lambda: line.pass_time() or line.channel.mute_causes == mute.MEMORY)
        line.pass_time(20, ms=0)
        assert count_events(net, line.channel, 50) == 0
        assert line.channel.frames_received == 0
        net.pool.common.release(PENDING, POOL + LITTLE + 2 * PIECE_OVERHEAD)
        net.poll_until(lambda: line.pass_time(ms=1) or line.channel.frames_received == 1)
        net.pool.common.charge(PENDING, POOL + LITTLE + 2 * PIECE_OVERHEAD)


@each_of("kind", KINDS)
@each_of("end", ["fin", "reset", "close"])
@each_of("size", [5000, SMALL - 4, 1 << 20])
def test_an_end_within_a_frame_is_seen_and_what_came_of_it_is_lost(kind: str, end: str, size: int, tls_world: TlsWorld) -> None:
    with short_bench(SHORT, LARGEST) as net:
        line = Line(net, kind, tls_world)
        line.say(frame(3) + frame(size)[:3000])
        line.pass_time(3, ms=0)
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


@each_of("kind", KINDS)
def test_many_frames_and_an_end_behind_the_one_that_is_waited_for_come_one_event_at_a_time(kind: str, tls_world: TlsWorld) -> None:
    """All that lies in the kernel in one event would keep everybody else waiting."""
    with short_bench(SHORT, LARGEST) as net:
        line = Line(net, kind, tls_world)
        line.say(frame(100)[:50])
        line.pass_time(3, ms=0)
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


@each_of("kind", KINDS)
@each_of("cause", [mute.ADMIN, mute.TAP])
def test_a_mute_while_it_waits_holds_and_ends(kind: str, cause: int, tls_world: TlsWorld) -> None:
    with short_bench(SHORT, LARGEST) as net:
        line = Line(net, kind, tls_world)
        line.say(frame(50_000)[:30_000])
        line.pass_time(3, ms=0)
        line.channel.mute(cause)
        line.say(frame(50_000)[30_000:])
        line.pass_time(10)
        if cause == mute.TAP:
            assert line.channel.frames_received == 0
        assert count_events(net, line.channel, 20) == 0
        line.channel.unmute(cause)
        net.poll_until(lambda: line.pass_time() or line.channel.frames_received == 1)
        assert line.came == frame(50_000)


@each_of("kind", ["tcp", "tls"])
def test_tiny_segments_and_records_do_not_stop_a_frame(kind: str, tls_world: TlsWorld) -> None:
    """Each fills the kernel's buffer with far more than it holds: the frame goes on like a large one, or when the kernel has joined them."""
    with short_bench(SHORT, LARGEST) as net:
        line = Line(net, kind, tls_world)
        data = frame(20_000)
        line.say(data, record=20)
        while line.out:
            line.send(60)
            net.poll()
        net.poll_until(lambda: line.pass_time() or line.channel.frames_received == 1)
        assert line.came == data
        assert net.pool.begun == 0


class Lying(MemoryTransport):
    """As TLS with padded records: all seems to be there, and is not."""

    def __init__(self, data: bytes) -> None:
        super().__init__(Wire(), Wire(), is_plain=False)
        self.inbound.put(data)

    def obtainable(self, wanted: int) -> int:
        return wanted


def lying_reader(pool: MemoryPool, sock: socket.socket, data: bytes) -> tuple[LowMemoryReader, Lying, Receive]:
    transport = Lying(data)
    receive = Receive(pool.common, ReceiveLimit(-1), SideStats())
    return LowMemoryReader(sock, transport, receive, pool.requests, Owner()), transport, receive


def test_records_that_hold_less_than_they_seem_to_make_a_frame_go_on_like_a_large_one() -> None:
    """An empty record counts as data when it is looked at; then it is not, again and again."""
    pool = MemoryPool(POOL, FakeClock().now_ns)
    pool.set_largest(POOL, 0)
    pool.common.charge(PENDING, SHORT)
    sock, peer = tcp_pair()
    with sock, peer:
        low_memory, transport, receive = lying_reader(pool, sock, frame(30_000)[:100])
        for reads in range(TLS_READS + 1):
            assert low_memory.plan_read(NO_LIMIT, drained=True, readable=True) > 0
            assert low_memory.slot is None, f"after {reads} reads"
            data = transport.read(10) or b""
            receive.feed(data)
            low_memory.after_read(len(data), whole=False)
        assert low_memory.plan_read(NO_LIMIT, drained=True, readable=True) == receive.unit()
        assert low_memory.slot is not None
        assert low_memory.slot.is_in
        low_memory.leave()
    assert (pool.promised, pool.trusted, pool.requests.reserved) == (0, 0, None)


def test_the_bytes_held_for_padded_records_are_bounded_for_all_connections_together() -> None:
    """Each has all but a byte of a frame of 200 KiB read; the next one waits for a slot."""
    size = 200 * 1024
    pool = MemoryPool(POOL, FakeClock().now_ns)
    pool.common.charge(PENDING, 2 * POOL)
    sock, peer = tcp_pair()
    readers = []
    with sock, peer:
        for expected in (size - LITTLE, WAIT_FOR_SLOT, WAIT_FOR_SLOT):
            low_memory, transport, receive = lying_reader(pool, sock, frame(size - 4)[:-1])
            readers.append(low_memory)
            first = low_memory.plan_read(NO_LIMIT, drained=True, readable=True)
            assert first == LITTLE
            receive.feed(transport.read(int(first)) or b"")
            assert low_memory.plan_read(NO_LIMIT, drained=True, readable=True) == expected
        readers[0].leave()
        assert pool.trusted == 0


def test_over_tls_a_frame_goes_whole_only_as_far_as_an_empty_socket_takes_nearly_all_of_it(tls_world: TlsWorld) -> None:
    with short_bench(2 * POOL, LARGEST) as net:
        for size, waits in ((AT_ONCE - 4, False), (AT_ONCE + 20_000, True)):
            line = Line(net, "tls", tls_world)
            net.listener.room = (20_000, True)
            line.say(frame(size))
            for _ in range(300):
                line.pass_time(ms=1)
            assert (line.channel.mute_causes == mute.MEMORY) is waits, size
            assert (line.channel.frames_received == 0) is waits
            line.channel.close(Cause.ADMIN)
