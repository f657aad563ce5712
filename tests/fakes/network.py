"""A selector over real sockets with a clock of the test's, and sinks that write down what they are told."""

import contextlib
import socket
import struct
import weakref
from collections.abc import Callable, Iterator

from framegate.proxy.network.authenticator import AuthenticatorFactory
from framegate.proxy.network.channel import Channel
from framegate.proxy.network.channel_sink import ChannelSink
from framegate.proxy.network.mute import PEER
from framegate.proxy.network.options import ChannelOptions, TlsSettings
from framegate.proxy.network.pool_kinds import make_pool
from framegate.proxy.network.receive import NEVER_CUT, ReceiveLimit
from framegate.proxy.network.run import Run
from framegate.proxy.network.selector import Selector
from framegate.proxy.network.stats import SideStats
from framegate.proxy.network.transport import MAX_READ, Transport
from framegate.proxy.network.write_half import WriteHalf
from tests.fakes.clock import SECOND, FakeClock
from tests.fakes.pools import KIND, found_in
from tests.fakes.upstream import reset as reset


def frame(size: int, fill: bytes = b"x") -> bytes:
    return struct.pack(">i", size) + fill * size


def run_of(data: bytes, frames: int = 1) -> Run:
    return Run(None, 0, data, 0, len(data), frames, 0)


class Trace:
    """Is deleted together with the object that holds it."""


def trace_of(owner: object) -> "weakref.ref[Trace]":
    """Says whether an object of a test's class is still there. A weak reference to itself dangles where it derives from a compiled class."""
    trace = Trace()
    owner.trace = trace  # type: ignore[attr-defined]
    return weakref.ref(trace)


class Recorder:
    """Keeps what the sinks of its channels were told, in order, as (word, channel); discards runs after copying them."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Channel]] = []  # everything
        self.data: dict[Channel, bytes] = {}  # bytes received, by channel
        self.frames: dict[Channel, int] = {}
        self.on: dict[str, Callable[[Channel], None]] = {}  # what to do additionally, by word
        self.on_run: Callable[[Channel, Run], None] | None = None  # likewise, with each run
        self.gate: Callable[[Channel], bool] | None = None  # answers for ``may_read``
        self.most = MAX_READ  # answer for ``read_limit``; what was read meanwhile is in ``reads``, by ``was_read``
        self.reads: list[int] = []
        self.room: tuple[int, bool] = (1 << 31, True)  # answers for ``room_for``
        self.passes: dict[Channel, Channel] = {}  # answers for ``pipe_target``

    def note(self, word: str, channel: Channel) -> None:
        self.told.append((word, channel))
        if word in self.on:
            self.on[word](channel)

    def words(self, channel: Channel | None = None) -> list[str]:
        return [word for word, who in self.told if channel is None or who is channel]

    def received(self, channel: Channel, run: Run) -> None:
        self.data[channel] = self.data.get(channel, b"") + b"".join(run.pieces())
        self.frames[channel] = self.frames.get(channel, 0) + run.frames
        if self.on_run is not None:
            self.on_run(channel, run)
        channel.discard(run)
        self.note("received", channel)


class RecorderSink(ChannelSink):
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.channel: Channel  # to be set when the call that makes it has returned

    def ready(self) -> None:
        self._recorder.note("ready", self.channel)

    def received(self, run: Run) -> None:
        self._recorder.received(self.channel, run)

    def may_read(self) -> bool:
        return self._recorder.gate is None or self._recorder.gate(self.channel)

    def read_limit(self) -> int:
        return self._recorder.most

    def was_read(self) -> None:
        self._recorder.reads.append(int(self.channel.bytes_received))

    def aged(self) -> None:
        self._recorder.note("aged", self.channel)

    def room_for(self) -> tuple[int, bool]:
        return self._recorder.room

    def wait_for_room(self) -> None:
        self.channel.mute(PEER)
        self._recorder.note("wait_for_room", self.channel)

    def pipe_target(self) -> WriteHalf | None:
        target = self._recorder.passes.get(self.channel)
        return None if target is None else target.write_half

    def was_piped(self, size: int, frames: int) -> None:
        self._recorder.frames[self.channel] = self._recorder.frames.get(self.channel, 0) + frames
        self._recorder.note("was_piped", self.channel)

    def sent(self) -> None:
        self._recorder.note("sent", self.channel)

    def muted(self) -> None:
        self._recorder.note("muted", self.channel)

    def end_of_stream(self) -> None:
        self._recorder.note("end_of_stream", self.channel)

    def write_ended(self) -> None:
        self._recorder.note("write_ended", self.channel)

    def closed(self) -> None:
        self._recorder.note("closed", self.channel)


class NetBench:
    """One selector, one recorder, and the peers' ends of its channels."""

    def __init__(self, *, pool: int = 1 << 20, kind: str = KIND) -> None:
        self.clock = FakeClock()
        self.pool = make_pool(kind, pool, self.clock.now_ns)
        self.listener = Recorder()
        self.selector = Selector(self.clock, self.pool)
        self.limit = ReceiveLimit(-1)
        self.stats = SideStats()
        self.faults = 0  # how many errors of our own the test provokes
        self.leaks: list[str] = []  # what a pool that finds leaks is to find of them
        self._peers: list[socket.socket] = []

    def options(
        self,
        *,
        side: str = "downstream",
        tls: TlsSettings | None = None,
        idle_ns: int = 0,
        stall_ns: int = 0,
        min_rate: int = 0,
        cut_from: int = NEVER_CUT,
        authenticators: AuthenticatorFactory | None = None,
        failed_authentication_delay_ns: int = 0,
    ) -> ChannelOptions:
        return ChannelOptions(
            side="upstream" if side == "upstream" else "downstream",
            limit=self.limit,
            stats=self.stats,
            handshake_timeout_ns=10 * SECOND,
            idle_ns=idle_ns,
            stall_ns=stall_ns,
            min_rate=min_rate,
            tls=tls,
            cut_from=cut_from,
            authenticators=authenticators,
            failed_authentication_delay_ns=failed_authentication_delay_ns,
        )

    def register(self, sock: socket.socket, channel_id: int, options: ChannelOptions, *, peer: str = "") -> Channel:
        """As ``Selector.register``, with a sink that tells the recorder."""
        sink = RecorderSink(self.listener)
        sink.channel = self.selector.register(sock, channel_id, options, sink, peer=peer)
        return sink.channel

    def connect(self, family: int, address: object, channel_id: int, options: ChannelOptions, *, peer: str = "") -> Channel:
        """As ``Selector.connect``, likewise."""
        sink = RecorderSink(self.listener)
        sink.channel = self.selector.connect(family, address, channel_id, options, sink, peer=peer)
        return sink.channel

    def adopt(self, sock: socket.socket, transport: Transport, channel_id: int, options: ChannelOptions, *, connecting: bool = False) -> Channel:
        """As ``Selector.adopt``, likewise."""
        sink = RecorderSink(self.listener)
        sink.channel = self.selector.adopt(sock, transport, channel_id, options, sink, connecting=connecting)
        return sink.channel

    def pair(self, options: ChannelOptions | None = None, *, tcp: bool = False) -> tuple[Channel, socket.socket]:
        """A registered channel, and the socket of its peer, which has a timeout."""
        ours, peer = tcp_pair() if tcp else socket.socketpair()
        peer.settimeout(5)
        self._peers.append(peer)
        channel = self.register(ours, len(self._peers), options or self.options())
        return channel, peer

    def keep(self, peer: socket.socket) -> None:
        self._peers.append(peer)

    def ready_pair(self, options: ChannelOptions | None = None, *, tcp: bool = False) -> tuple[Channel, socket.socket]:
        channel, peer = self.pair(options, tcp=tcp)
        self.poll()
        assert channel.is_open
        return channel, peer

    def adopted(self, transport: Transport, ours: socket.socket, options: ChannelOptions | None = None) -> Channel:
        """A ready channel over a transport of the test's; ``ours`` gives the descriptor."""
        ours.setblocking(False)
        channel = self.adopt(ours, transport, 1, options or self.options())
        self.poll()
        return channel

    def poll(self, times: int = 1) -> None:
        for _ in range(times):
            self.selector.poll(0)

    def poll_until(self, done: Callable[[], object], times: int = 2000, *, step_ms: int = 0) -> None:
        """Poll, a millisecond at a time, until ``done``; ``step_ms``: so far the test's clock goes each time."""
        for _ in range(times):
            if done():
                return
            self.selector.poll(1)
            self.clock.advance_ms(step_ms)
        raise AssertionError("it does not happen")

    def finish(self) -> None:
        """Close everything; everything booked must have come back, and nothing may be left."""
        self.selector.close()
        for peer in self._peers:
            peer.close()
        assert found_in(self.pool) == self.leaks
        assert self.pool.used == 0
        assert self.pool.waiting == 0
        assert self.selector.channel_count == 0
        assert (list(self.stats.muted), self.stats.pending) == ([0] * 7, 0)
        closed = [channel for word, channel in self.listener.told if word == "closed"]
        assert len(closed) == len(set(closed)), "closed is told once"
        assert self.selector.faults.total == self.faults, self.selector.faults.take()


@contextlib.contextmanager
def net_bench(*, pool: int = 1 << 20, kind: str = KIND) -> Iterator[NetBench]:
    """A bench that is finished at the end, whatever the test left."""
    bench = NetBench(pool=pool, kind=kind)
    try:
        yield bench
    finally:
        bench.finish()


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        peer = socket.create_connection(server.getsockname())
        ours, _ = server.accept()
    for sock in (ours, peer):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return ours, peer
