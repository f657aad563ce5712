"""framegate.proxy.network.channel: small frames pass though memory is short, large ones take turns, and those above the limit pass in pieces."""

import socket
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framegate.proxy.cause import Cause
from framegate.proxy.network import mute
from framegate.proxy.network.channel import Channel
from framegate.proxy.network.memory_pool import PENDING
from framegate.proxy.network.options import ChannelOptions
from framegate.proxy.network.run import PART, PART_FIRST, PART_LAST, Run
from framegate.proxy.network.tls_record import LONGEST
from tests.fakes.cases import each_of
from tests.fakes.network import NetBench, frame, net_bench, run_of, tcp_pair
from tests.fakes.reached import bytes_reached
from tests.fakes.tls import TlsWorld
from tests.proxy.network.conftest import short_bench


@each_of("size", [100, 65_532])
def test_the_beginning_of_a_small_frame_stays_in_the_kernel(size: int) -> None:
    with short_bench() as net:
        channel, peer = net.ready_pair(tcp=True)
        peer.send(frame(3) + frame(size)[:-1])
        net.poll(10)
        assert (channel.frames_received, net.pool.begun, channel.mute_causes, channel.read_half.is_receiving) == (1, 0, 0, True)
        assert channel.read_half.begun_bytes == 4 + size - 1
        peer.send(b"x")
        net.poll_until(lambda: channel.frames_received == 2, step_ms=1)
        assert net.listener.data[channel] == frame(3) + frame(size)
        peer.send(frame(1))
        net.poll_until(lambda: channel.frames_received == 3, step_ms=1)


def test_a_large_frame_takes_its_turn_and_goes_on_when_there_is_room() -> None:
    with net_bench(pool=1 << 20) as net:
        net.pool.set_largest(400_000, 0)
        net.pool.common.charge(PENDING, 1 << 21)
        channel, peer = net.ready_pair(tcp=True)
        sender = threading.Thread(target=peer.sendall, args=(frame(390_000),))
        sender.start()
        net.poll_until(lambda: channel.mute_causes == mute.MEMORY, step_ms=1)
        assert (net.pool.waiting, net.pool.refused, channel.frames_received) == (1, 1, 0)
        assert net.pool.begun < 256
        net.pool.common.release(PENDING, (1 << 20) + 1000)
        net.poll_until(lambda: channel.frames_received == 1, step_ms=1)
        assert (channel.mute_causes, net.pool.waiting, net.pool.begun) == (0, 0, 0)
        net.pool.common.release(PENDING, (1 << 20) - 1000)
        sender.join()


def test_closing_a_channel_that_waits_for_memory_ends_its_wait() -> None:
    with short_bench(1 << 21) as net:
        channel, peer = net.ready_pair(tcp=True)
        peer.send(frame(400_000)[:100_000])
        net.poll_until(lambda: channel.mute_causes == mute.MEMORY, step_ms=1)
        channel.close(Cause.ADMIN)
        assert net.pool.waiting == 0


# Cut through.


def test_whole_frames_before_and_behind_a_frame_in_pieces(net: NetBench) -> None:
    channel, peer = net.ready_pair(net.options(cut_from=1024), tcp=True)
    runs: list[tuple[int, int]] = []
    net.listener.on_run = lambda _, run: runs.append((run.part, run.frames))
    data = frame(10) + frame(20) + frame(2000) + frame(30)
    peer.send(data[:100])
    net.poll(3)
    assert runs == [(0, 2), (PART | PART_FIRST, 0)]
    peer.send(data[100:])
    net.poll(3)
    assert runs[2:] == [(PART | PART_LAST, 1), (0, 1)]
    assert (net.listener.data[channel], channel.frames_received) == (data, 4)


def test_a_stream_that_ends_within_a_frame_in_pieces_says_so(net: NetBench) -> None:
    channel, peer = net.ready_pair(net.options(cut_from=1024), tcp=True)
    peer.send(frame(2000)[:500])
    net.poll()
    peer.close()
    net.poll(2)
    assert (channel.read_half.cut_short_at, channel.lost_bytes, net.stats.cut_short, net.stats.refused_incomplete) == (500, 0, 1, 1)


def test_an_operators_mute_waits_for_the_end_of_a_frame_in_pieces(net: NetBench) -> None:
    channel, peer = net.ready_pair(net.options(cut_from=1024), tcp=True)
    peer.send(frame(2000)[:500])
    net.poll()
    assert not channel.mute(mute.ADMIN)
    peer.send(frame(2000)[500:] + frame(1))
    net.poll(3)
    assert (channel.frames_received, channel.mute_in_force) == (1, True)
    channel.unmute(mute.ADMIN)
    net.poll()
    assert channel.frames_received == 2


BUFFER = 32_768  # of each socket: most of a large frame waits before it


class Line:
    """Four channels in a row over two connections: the first sends, the second passes on to the third, the fourth reads when it may."""

    def __init__(self, net: NetBench, server: ChannelOptions, client: ChannelOptions) -> None:
        self.net = net
        self.source, self.entry = self._connect(1, client, server)
        self.exit, self.sink = self._connect(3, client, server)
        self.channels = (self.source, self.entry, self.exit, self.sink)
        self.tls_bytes = 4 * LONGEST if server.tls else 0  # a record begun is not booked
        self.most_held = 0
        net.listener.on_run = self._pass_on
        net.listener.on["sent"] = lambda channel: self.entry.unmute(mute.PEER) if channel is self.exit else None
        net.poll_until(lambda: all(channel.is_open for channel in self.channels))

    def _connect(self, number: int, client: ChannelOptions, server: ChannelOptions) -> tuple[Channel, Channel]:
        here, there = tcp_pair()
        for sock in (here, there):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
        return self.net.register(here, number, client), self.net.register(there, number + 1, server)

    def _pass_on(self, channel: Channel, run: Run) -> None:
        if channel is self.entry and not self.exit.send(run):
            self.entry.mute(mute.PEER)

    def step(self) -> None:
        """One poll; then what is in memory is what is booked."""
        self.net.poll()
        parts = [part for channel in self.channels for part in (channel._receive, channel._send, channel.transport)]
        held = bytes_reached(*parts, without=(self.net.pool,))
        booked = self.net.pool.used
        assert held <= booked + self.tls_bytes, f"{held} bytes in memory, {booked} booked"
        self.most_held = max(self.most_held, held)

    def pass_all(self, runs: list[bytes], pauses: list[int]) -> None:
        """Send the runs, and let the sink rest for so many steps now and then, until everything has come."""
        left = runs[::-1]
        expected = b"".join(runs)
        received = self.net.listener.data
        for number in range(20_000):
            if left and not self.source.write_half.is_sending:
                data = left.pop()
                self.source.send(run_of(data))
            pause = pauses[number // 64 % len(pauses)]
            if number % 64 < pause:
                self.sink.mute(mute.PEER)
            else:
                self.sink.unmute(mute.PEER)
            self.step()
            if len(received.get(self.sink, b"")) == len(expected):
                break
        assert received[self.sink] == expected


def options(net: NetBench, world: TlsWorld | None) -> tuple[ChannelOptions, ChannelOptions]:
    server, client = (None, None) if world is None else (world.server_settings(), world.client_settings())
    return net.options(tls=server), net.options(side="upstream", tls=client)


SIZES = st.one_of(st.integers(0, 2_000), st.integers(2_000, 70_000), st.integers(70_000, 700_000))


@pytest.mark.parametrize("tls", [False, True])
@settings(max_examples=12)
@given(st.lists(st.lists(SIZES, min_size=1, max_size=6), min_size=1, max_size=4), st.lists(st.integers(0, 60), min_size=1, max_size=6))
def test_what_is_held_is_booked(tls_world: TlsWorld, tls: bool, runs: list[list[int]], pauses: list[int]) -> None:
    with net_bench(pool=1 << 26) as net:
        line = Line(net, *options(net, tls_world if tls else None))
        line.pass_all([b"".join(frame(size) for size in sizes) for sizes in runs], pauses)
        assert net.pool.used == 0


@each_of("tls", [False, True])
def test_the_count_sees_what_waits(tls_world: TlsWorld, tls: bool) -> None:
    with net_bench(pool=1 << 26) as net:
        line = Line(net, *options(net, tls_world if tls else None))
        line.pass_all([frame(600_000) * 2], [60])
        assert line.most_held > 600_000
