"""What Kafka's network layer promises and no other test here shows; ``tests/conformance/KAFKA.md`` is the whole list."""

import contextlib
import os
import socket
import struct

import pytest

from framegate.proxy.cause import Cause
from framegate.proxy.network import mute
from framegate.proxy.network.channel import Channel
from framegate.proxy.network.memory_pool import PENDING, MemoryPool
from framegate.proxy.network.plaintext import PlaintextTransport
from framegate.proxy.network.receive import Receive, ReceiveLimit
from framegate.proxy.network.run import Buffer, Run
from framegate.proxy.network.state import ChannelState
from framegate.proxy.network.stats import SideStats
from tests.fakes.cases import each_of
from tests.fakes.clock import SECOND, FakeClock
from tests.fakes.network import NetBench, frame, net_bench, reset, run_of, tcp_pair
from tests.fakes.tls import TlsWorld, hold_frames, tls_pair
from tests.fakes.transport import MemoryTransport, Wire
from tests.fakes.upstream import refusing_port
from tests.proxy.network.conftest import pass_ms

# Receiving.


def test_a_frame_without_a_body_books_nothing_and_dropping_what_follows_touches_no_memory() -> None:
    pool = MemoryPool(1 << 20, FakeClock().now_ns)
    receive = Receive(pool.common, ReceiveLimit(0), SideStats())
    for count in (1, 3):
        run = receive.feed(frame(0) * count)
        assert run is not None
        assert (run.frames, run.size, run.lease, pool.used, pool.most_used) == (count, 4 * count, 0, 0, 0)
    assert (receive.drop(), receive.within, receive.size) == (0, False, -1)


@each_of(("sent", "lost"), [(0, 0), (2, 2), (4, 4), (50, 50)], fresh={"net": net_bench})
def test_an_end_within_a_header_or_a_body_is_the_end_of_the_frame(net: NetBench, sent: int, lost: int) -> None:
    """At once, and with no frame of it."""
    channel, peer = net.ready_pair()
    peer.send(frame(3) + frame(100)[:sent])
    peer.shutdown(socket.SHUT_WR)
    net.poll(3)
    assert net.listener.words(channel) == ["ready", "received", "end_of_stream"]
    assert (channel.frames_received, channel.lost_bytes, net.stats.refused_incomplete, net.pool.used) == (1, lost, int(lost != 0), 0)


def test_bytes_count_as_they_come_and_frames_when_they_are_whole(net: NetBench) -> None:
    """In both directions, at every poll."""
    channel, peer = net.ready_pair()
    data = frame(100)
    for sent in range(1, len(data) + 1):
        peer.send(data[sent - 1 : sent])
        net.poll()
        assert (channel.bytes_received, net.stats.bytes_received) == (sent, sent)
        assert channel.frames_received == net.stats.frames_received == int(sent == len(data))
    large = frame(900_000)
    assert not channel.send(run_of(large))
    peer.setblocking(False)
    seen = 0
    while seen < len(large):
        seen += len(peer.recv(50_000))
        net.poll()
        assert seen <= channel.write_half.bytes_sent == net.stats.bytes_sent == len(large) - channel.pending_send
        assert channel.write_half.frames_sent == net.stats.frames_sent == int(channel.pending_send == 0)


@each_of("tls", [False, True])
@each_of(("sizes", "most"), [([10 * 65_536], 2000), ([512 * 1024] * 20, 8000)])
def test_frames_many_times_as_large_as_a_sockets_buffer_come_back_in_order(tls_world: TlsWorld, tls: bool, sizes: list[int], most: int) -> None:
    with net_bench(pool=64 << 20) as net:
        if tls:
            server, client = tls_pair(net, tls_world)
        else:
            ours, theirs = tcp_pair()
            server, client = net.register(ours, 1, net.options()), net.register(theirs, 2, net.options(side="upstream"))
            net.poll_until(lambda: server.is_open and client.is_open)
        left = [frame(size, bytes([index])) for index, size in enumerate(sizes)]
        expected = b"".join(left)
        back: list[Run] = []

        def echo(channel: Channel, run: Run) -> None:
            if channel is server:
                data = b"".join(run.pieces())
                back.append(Run(None, 0, data, 0, len(data), int(run.frames), 0))

        net.listener.on_run = echo

        def done() -> bool:
            if left and client.can_send:
                client.send(run_of(left.pop(0)))
            if back and server.can_send:
                server.send(back.pop(0))
            return client.frames_received == len(sizes)

        net.poll_until(done, most)
        assert net.listener.data[client] == expected


# Sending.


def test_a_send_is_not_out_while_its_ciphertext_waits(net: NetBench) -> None:
    """The transport has taken every byte of it, and the socket has not: it is told as sent by a write that moves nothing of it."""
    ours, other = socket.socketpair()
    held = _Holding(Wire(), Wire())
    with other:
        channel = net.adopted(held, ours)
        assert not channel.send(run_of(frame(10)))
        assert (channel.write_half.pending.remaining, channel.pending_send, channel.can_send) == (0, 14, False)
        net.poll(3)
        assert net.listener.words(channel) == ["ready"]
        held.flushed = True
        net.poll()
        assert net.listener.words(channel) == ["ready", "sent"]
        assert channel.write_half.frames_sent == 1
        channel.close(Cause.ADMIN)
        net.poll()


class _Holding(MemoryTransport):
    """Takes all that it is given, and holds it as TLS holds ciphertext, until ``flushed``."""

    flushed = False

    def write(self, data: Buffer) -> int:
        taken = super().write(data)
        self.pending_write += taken
        return taken

    def flush(self) -> bool:
        self.pending_write = 0 if self.flushed else self.pending_write
        return self.pending_write == 0


# Connecting.


def test_a_connection_that_fails_was_never_ready(net: NetBench) -> None:
    """Refused at once, and after it was on its way: one end is told, and nothing else."""
    with refusing_port() as port:
        at_once = net.connect(socket.AF_INET, ("127.0.0.1", port), 1, net.options(side="upstream"))
        ours = socket.socket()
        ours.setblocking(False)
        ours.connect_ex(("127.0.0.1", port))
        on_its_way = net.adopt(ours, PlaintextTransport(ours), 2, net.options(side="upstream"), connecting=True)
        net.poll_until(lambda: net.selector.channel_count == 0)
    for channel in (at_once, on_its_way):
        assert net.listener.words(channel) == ["closed"]


def test_a_connection_that_cannot_be_begun_leaves_nothing(net: NetBench) -> None:
    """What raises has made no channel, and no socket stays open."""
    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(OSError, match="path too long"):
            net.connect(socket.AF_UNIX, "x" * 200, 1, net.options(side="upstream"))
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert (net.selector.channel_count, len(net.selector._channels), net.listener.told) == (0, 0, [])
    assert not any(handler is not None for handler in net.selector._handlers)


def test_a_channel_that_cannot_be_built_takes_no_socket_over(net: NetBench) -> None:
    """The selector knows nothing of it, and it stays the caller's."""
    ours, peer = socket.socketpair()
    with ours, peer:
        ours.close()
        with pytest.raises(OSError, match="Bad file"):
            net.register(ours, 1, net.options())
    assert (net.selector.channel_count, net.listener.told) == (0, [])


# Ends.


def test_the_selector_closes_every_channel_though_telling_the_first_fails() -> None:
    with net_bench() as net:
        pairs = [net.ready_pair() for _ in range(3)]
        first = [True]

        def fail(_: Channel) -> None:
            if first.pop() if first else False:
                raise RuntimeError("a bug")

        net.listener.on["closed"] = fail
        net.faults = 1
        net.selector.close_channels()
        assert [channel.state for channel, _ in pairs] == [ChannelState.CLOSED] * 3
        assert net.listener.words().count("closed") == 3
        assert net.selector.faults.take()[0][:3] == ("callback", 1, "RuntimeError: a bug")
        for _, peer in pairs:
            assert peer.recv(1) == b""


@each_of("end", ["close", "peer", "reset", "idle"], fresh={"net": net_bench})
def test_a_channel_with_bytes_that_tls_holds_leaves_nothing_when_it_ends(net: NetBench, tls_world: TlsWorld, end: str) -> None:
    """Queued for a visit, muted before, closed within: no collection keeps it."""
    server, client = tls_pair(net, tls_world, idle_ns=60 * SECOND)
    hold_frames(net, server, client)
    server.unmute(mute.ADMIN)
    assert len(net.selector._buffered) == 1
    if end == "idle":
        server.mute(mute.ADMIN)
        net.clock.advance_ms(60_000)
    elif end == "reset":
        client._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if end != "idle":
        (server if end == "close" else client).close(Cause.ADMIN)
    net.poll(3)
    server.close(Cause.ADMIN)
    client.close(Cause.ADMIN)
    net.poll(2)
    selector = net.selector
    for collection in (selector._channels, selector._buffered, selector._handshakes, selector._closed, selector._write_ended, selector._left):
        assert len(collection) == 0
    assert not any(handler is not None for handler in selector._handlers)


def test_the_idle_time_of_a_muted_channel_is_not_renewed_by_bytes_that_tls_holds(net: NetBench, tls_world: TlsWorld) -> None:
    """In small steps of the clock: a jump would hide it."""
    server, client = tls_pair(net, tls_world, idle_ns=10 * SECOND)
    hold_frames(net, server, client)
    server.unmute(mute.ADMIN)
    server.mute(mute.ADMIN)  # it is to be visited, and is not to be read
    for _ in range(99):
        pass_ms(net, 100)
        assert server.is_open
        assert len(net.selector._buffered) == 0, "a muted channel is not visited"
    pass_ms(net, 100)
    assert (server.close_cause, server.frames_received) == (Cause.IDLE, 1)


def test_a_failing_write_gives_up_what_is_to_be_read_and_a_failing_read_does_not(net: NetBench) -> None:
    """The frames that came before the peer's reset are delivered, if they are in our hands; those behind a send that failed are not waited for."""
    channel, peer = net.ready_pair(tcp=True)
    peer.send(frame(5) * 3)
    net.poll_until(lambda: channel.frames_received == 3)
    reset(peer)
    net.poll_until(lambda: channel.close_cause)
    assert (channel.close_cause, net.listener.words(channel)) == (Cause.PEER_RESET, ["ready", "received", "closed"])
    ours, other = socket.socketpair()
    with other:
        transport = MemoryTransport(Wire(), Wire())
        broken = net.adopted(transport, ours)
        transport.inbound.put(frame(5))
        other.send(b"x")  # the socket is readable
        transport.reset = True
        assert not broken.send(run_of(frame(1)))
        net.poll(2)
        assert (broken.close_cause, broken.frames_received, net.listener.words(broken)) == (Cause.PEER_RESET, 0, ["ready", "closed"])


def test_with_little_memory_left_no_channel_is_always_the_last() -> None:
    """Many rounds of large frames of many channels while memory is short: none is served more than one frame ahead of another."""
    with net_bench(pool=1 << 20) as net:
        net.pool.set_largest(300_004, 0)
        pairs = [net.ready_pair(tcp=True) for _ in range(6)]
        held = int(net.pool.line)
        net.pool.common.charge(PENDING, held)
        left = [b""] * len(pairs)
        for _, peer in pairs:
            peer.setblocking(False)

        def served() -> bool:
            counts = [int(channel.frames_received) for channel, _ in pairs]
            assert max(counts) - min(counts) <= 2, counts
            for index, (channel, peer) in enumerate(pairs):
                if not left[index] and channel.frames_received < 5:
                    left[index] = frame(300_000)
                with contextlib.suppress(BlockingIOError):
                    left[index] = left[index][peer.send(left[index]) :]
            return min(counts) >= 5

        net.poll_until(served, 20_000, step_ms=1)
        for channel, _ in pairs:
            channel.close(Cause.ADMIN)
        net.poll(2)
        net.pool.common.release(PENDING, held)
