"""Accepts the connections of callers, notes who they are, and passes their bytes to gRPC's own socket and back.

gRPC for Python does not tell which process is at the other end of a Unix socket, and takes no connection that others have accepted. So gRPC listens
on a socket that nobody else can reach, because its file is removed as soon as it is bound, and the connections to it come from here. Each has a name
of its own in the abstract namespace, which gRPC gives to handlers as the peer's address, and by which ``Peers`` finds the caller.
"""

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

from framegate.control.service.peers import Peer, Peers

__all__ = ["MAX_CONNECTIONS", "Relay", "Wanted"]

MAX_CONNECTIONS: Final = 64
"""Of one address. Further ones are closed at once."""
_HANDSHAKE_S: Final = 5.0
_PAUSE_S: Final = 0.1
_BUFFER: Final = 64 * 1024
"""Bytes that wait for one side before the other is no longer read."""
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_log = logging.getLogger(__name__)

Wanted = Callable[[socket.socket, asyncio.Transport], Awaitable[Peer]]
"""Says who a connection is of; raises if it is to be closed."""


class _Side(asyncio.Protocol):
    """One side of a connection: what it reads is written to the other one, no faster than that takes it. ``ended``: it is closed."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.other: asyncio.Transport | None = None
        self.own: asyncio.Transport | None = None
        self._early = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.own = cast(asyncio.Transport, transport)
        self.own.set_write_buffer_limits(_BUFFER)

    def join(self, other: asyncio.Transport) -> None:
        """Pass bytes from now on, the early ones first."""
        assert self.own is not None, "a side is joined when it is connected"
        self.other = other
        if self._early:
            other.write(self._early)
            self._early = b""
            self.own.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            self.other.write(data)
        elif self.own is not None:  # it is read once, and then waits for the other side
            self._early = data
            self.own.pause_reading()

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and not self.other.is_closing():
            self.other.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set()


class Relay:
    """Serves one listening socket until ``close``.

    Args:
        listening: non-blocking.
        backend: the path of gRPC's socket.
        wanted: says who a connection is of.
        context: of TLS, asked for each connection; None: no TLS.
    """

    def __init__(
        self, listening: socket.socket, backend: str, peers: Peers, wanted: Wanted, context: Callable[[], ssl.SSLContext] | None = None
    ) -> None:
        self._listening = listening
        self._backend = backend
        self._peers = peers
        self._wanted = wanted
        self._context = context
        self._connections: set[asyncio.Task[None]] = set()
        self._accepting = asyncio.create_task(self._accept())

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(self._listening)
            except OSError as error:  # otherwise it is of a client that has gone
                await asyncio.sleep(_PAUSE_S if error.errno in _EXHAUSTED else 0)
                continue
            if len(self._connections) >= MAX_CONNECTIONS:
                sock.close()
                continue
            task = asyncio.create_task(self._serve(sock))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)

    async def _serve(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        name = ""
        with sock, contextlib.ExitStack() as stack:
            try:
                tls: dict[str, Any] = {} if self._context is None else {"ssl": self._context(), "ssl_handshake_timeout": _HANDSHAKE_S}
                front, client = await loop.connect_accepted_socket(_Side, sock, **tls)
                stack.callback(front.abort)
                name = self._peers.add(await self._wanted(sock, front))
                stack.callback(self._peers.remove, name)
                inner = socket.socket(socket.AF_UNIX)
                stack.callback(inner.close)
                inner.setblocking(False)
                inner.bind(f"\0{name}")
                await loop.sock_connect(inner, self._backend)
                back, server = await loop.create_unix_connection(_Side, sock=inner)
                stack.callback(back.abort)
            except OSError as error:
                _log.info("a connection of a caller failed", exc_info=error)
                return
            client.join(back)
            server.join(front)
            ends = [asyncio.ensure_future(side.ended.wait()) for side in (client, server)]
            try:
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                (back if client.ended.is_set() else front).close()  # what is written already still arrives
                await asyncio.wait(ends, timeout=_HANDSHAKE_S)
            finally:
                for end in ends:
                    end.cancel()

    async def stop(self) -> None:
        """Accept no more."""
        self._accepting.cancel()
        await asyncio.gather(self._accepting, return_exceptions=True)
        self._listening.close()

    async def close(self) -> None:
        """Accept no more, and close the connections."""
        await self.stop()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
