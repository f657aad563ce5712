"""What a channel keeps in memory is what it has booked: counted in the objects themselves, over real sockets, at every step."""

import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framegate.proxy.network import mute
from framegate.proxy.network.channel import Channel
from framegate.proxy.network.options import ChannelOptions
from framegate.proxy.network.run import Run
from framegate.proxy.network.tls_record import LONGEST
from tests.fakes.cases import each_of
from tests.fakes.network import NetBench, frame, net_bench, tcp_pair
from tests.fakes.reached import bytes_reached
from tests.fakes.tls import TlsWorld

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
        parts = [part for channel in self.channels for part in (channel._receive, channel._send, channel._transport)]
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
                self.source.send(Run(None, 0, data, 0, len(data), 1, 0))
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
