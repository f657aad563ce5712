"""Accepts the connections of callers, notes who they are, and passes their bytes to gRPC's own socket and back.

The first bytes of a caller are awaited before gRPC's socket is asked for: gRPC may not have been started yet, and whoever only connects (a check of
the port, the preStop hook) does not need it.

gRPC for Python does not tell which process is at the other end of a Unix socket, and takes no connection that others have accepted. So gRPC listens
on a socket that nobody else can reach, because its file is removed as soon as it is bound, and the connections to it come from here. Each has a name
of its own in the abstract namespace, which gRPC gives to handlers as the peer's address, and by which ``Peers`` finds the caller.
"""

import asyncio
import collections
import contextlib
import errno
import logging
import math
import socket
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, cast

from framegate.control import asyncio_tls
from framegate.control.service.peers import Peer, Peers

if TYPE_CHECKING:
    import ssl

MAX_CONNECTIONS: Final = 64  # Of one address and role. Further ones are closed at once.
MAX_HANDSHAKES: Final = 32  # Of TLS, of one address. A further one ends the oldest, which had far more time than a client needs that means well.
_HANDSHAKE_S: Final = 5.0
FIRST_BYTES_S: Final = 20.0  # A client of gRPC sends first; until then a connection takes one of the places
_PAUSE_S: Final = 0.1
_BUFFER: Final = 64 * 1024  # bytes that wait for one side before the other is no longer read
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_log = logging.getLogger(__name__)

Wanted = Callable[[socket.socket, asyncio.Transport], Awaitable[Peer]]  # Says who a connection is of; raises if it is to be closed
Path = Callable[[], Awaitable[str]]  # Gives the path of gRPC's socket, once gRPC listens; raises OSError if it cannot


class _Side(asyncio.Protocol):
    """One side of a connection: what it reads is written to the other one, no faster than that takes it. ``began``: it has sent something, or is
    closed; ``ended``: it is closed.
    """

    own: asyncio.Transport

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.ended = asyncio.Event()
        self._other: _Side | None = None
        self._early = b""
        self._pauses = set[str]()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.own = cast(asyncio.Transport, transport)
        self.own.set_write_buffer_limits(_BUFFER)

    def join(self, other: "_Side") -> None:
        """Pass bytes from now on, the early ones first."""
        self._other = other
        if self._early:
            other.own.write(self._early)
            self._early = b""
        self.pause("early", paused=False)

    def pause(self, why: str, *, paused: bool) -> None:
        """Have a reason not to read it, or have it no longer."""
        (self._pauses.add if paused else self._pauses.discard)(why)
        if not self.own.is_closing():
            (self.own.pause_reading if self._pauses else self.own.resume_reading)()

    def data_received(self, data: bytes) -> None:
        if self._other is not None:
            self._other.own.write(data)
        else:  # it is read once, and then waits for the other side
            self._early = data
            self.pause("early", paused=True)
            self.began.set()

    def pause_writing(self) -> None:
        if self._other is not None:
            self._other.pause("full", paused=True)

    def resume_writing(self) -> None:
        if self._other is not None:
            self._other.pause("full", paused=False)

    def connection_lost(self, exc: Exception | None) -> None:
        self.began.set()
        self.ended.set()


class Relay:
    """Serves one listening socket until ``close``. ``listening``: non-blocking. ``context``: of TLS, asked for each connection; None: no TLS."""

    def __init__(
        self, listening: socket.socket, backend: Path, peers: Peers, wanted: Wanted, context: "Callable[[], ssl.SSLContext] | None" = None
    ) -> None:
        self._listening = listening
        self._backend = backend
        self._peers = peers
        self._wanted = wanted
        if context is not None:
            asyncio_tls.load()
        self._context = context
        self.connections: dict[asyncio.Task[None], Peer | None] = {}  # the open ones, each with its caller; None: that is not known yet
        self._handshakes: dict[asyncio.Task[None], None] = {}
        self._roles = collections.Counter[int]()
        self._accepting = asyncio.create_task(self._accept())

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(self._listening)
            except OSError as error:  # otherwise it is of a client that has gone
                await asyncio.sleep(_PAUSE_S if error.errno in _EXHAUSTED else 0)
                continue
            if self._context is None and len(self.connections) >= MAX_CONNECTIONS:
                sock.close()
                continue
            task = asyncio.create_task(self._serve(sock))
            self.connections[task] = None
            task.add_done_callback(self.connections.pop)
            if self._context is not None:
                self._handshakes[task] = None
                if len(self._handshakes) > MAX_HANDSHAKES:
                    oldest = next(iter(self._handshakes))
                    del self._handshakes[oldest]
                    oldest.cancel()

    async def _serve(self, sock: socket.socket) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None, "it is run as one"
        with sock, contextlib.ExitStack() as stack:
            try:
                tls: dict[str, Any] = {} if self._context is None else {"ssl": self._context(), "ssl_handshake_timeout": _HANDSHAKE_S}
                stack.callback(self._handshakes.pop, task, None)
                front, client = await loop.connect_accepted_socket(_Side, sock, **tls)
                stack.callback(front.abort)
                peer = await self._wanted(sock, front)
                self._handshakes.pop(task, None)
                if self._roles[peer.role] >= MAX_CONNECTIONS:
                    return
                self._roles[peer.role] += 1
                self.connections[task] = peer
                stack.callback(self._roles.subtract, (peer.role,))
                name = self._peers.add(peer, lambda held: client.pause("held", paused=held))
                stack.callback(self._peers.remove, name)
                async with asyncio.timeout(FIRST_BYTES_S):
                    await client.began.wait()
                if client.ended.is_set():
                    return
                backend = await self._backend()
                inner = socket.socket(socket.AF_UNIX)
                stack.callback(inner.close)
                inner.setblocking(False)
                inner.bind(f"\0{name}")
                await loop.sock_connect(inner, backend)
                back, server = await loop.create_unix_connection(_Side, sock=inner)
                stack.callback(back.abort)
            except OSError as error:
                _log.info("a connection of a caller failed", exc_info=error)
                return
            client.join(server)
            server.join(client)
            ends = [asyncio.ensure_future(side.ended.wait()) for side in (client, server)]
            left_s = peer.ends_s - time.time()
            try:
                await asyncio.wait(ends, timeout=left_s if left_s < math.inf else None, return_when=asyncio.FIRST_COMPLETED)
                (back if client.ended.is_set() else front).close()  # what is written already still arrives
                await asyncio.wait(ends, timeout=_HANDSHAKE_S)
            finally:
                for end in ends:
                    end.cancel()

    async def stop(self) -> None:
        self._accepting.cancel()
        await asyncio.gather(self._accepting, return_exceptions=True)
        self._listening.close()

    async def end(self, tasks: Iterable[asyncio.Task[None]]) -> None:
        """Close connections: whoever may connect again does so."""
        tasks = list(tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        """Accept no more, and close the connections."""
        await self.stop()
        await self.end(self.connections)
