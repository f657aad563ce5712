"""Worlds whose lanes are watched: clients and upstreams in plaintext and over TLS."""

import contextlib
import select
import socket
import ssl
from typing import Any

from framegate.proxy.relay.pair import Leg, Pair
from tests.fakes.crowd import KIB, MIB, Crowd
from tests.fakes.tls import TlsWorld
from tests.fakes.world import World, _is_shaken, frame


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
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        accepted.setblocking(False)
        upstream = self.contexts[1].wrap_socket(accepted, server_side=True, do_handshake_on_connect=False)
        self.sockets.append(upstream)
        self.until(lambda: _is_shaken(upstream) and pair.state.value == "open")
        for sock in (client, upstream):
            sock.settimeout(2)
        return client, upstream, pair


def served(world: World, leg: Leg) -> bool:
    """Whether the fast path passes on what a leg receives next."""
    channel, fast_path = leg.channel, world.selector.fast_path
    assert fast_path is not None
    return channel is not None and channel.lane is not None and fast_path.served(channel.lane) is not None


def opened(world: World) -> tuple[socket.socket, socket.socket, Pair]:
    """A pair whose lanes are open both ways."""
    client, upstream, pair = world.pair()
    for _ in range(2):
        for source, sink in ((client, upstream), (upstream, client)):
            source.sendall(frame(b"any"))
            assert world.read(sink, 7) == frame(b"any")
    assert served(world, pair.client)
    assert served(world, pair.upstream)
    return client, upstream, pair


PARTLY_TAKEN = ((64, 700), (200, 700), (64, 64, 64, 700), (45, 60, 60), (100, 30))  # KiB of frames of which the socket takes a part


def give_partly_taken(crowd: Crowd, sizes: tuple[int, ...], *, reported: bool) -> None:
    """Twenty times: two frames of 100 B on open lanes, and then what the peer's socket does not take at once: whole frames, and behind them what only
    Python passes on: the first piece of a frame that is cut through, frames above a limit that only reports, the beginning of a frame.
    """
    couple = crowd.join(buffer=16 * KIB)
    limit = couple.pair.client.channel.options.limit
    limit.value, limit.passed_to = (50 * KIB, MIB) if reported else (MIB, -1)
    was_served = 0
    for _ in range(20):
        for peer in couple.peers * 2:
            peer.give(100)
            crowd.settle(lambda peer=peer: peer.done)
        was_served += served(crowd, couple.pair.client)
        couple.client.give(*(size * KIB for size in sizes))
        crowd.settle(lambda: couple.done)
    assert was_served >= 4
