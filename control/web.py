"""A small HTTP server for ports that anybody may reach: Prometheus' scrapes, and probes. Each connection is asked once, answered and closed.

asyncio moves the bytes, on the loop that starts it; whoever makes a server says how a request is answered. Connections are bounded, and so is the
time of each: to say what it wants, and to take the answer.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from framegate.proxy.config.address import parse_address

__all__ = ["Server", "bind", "response"]

MAX_CONNECTIONS: Final = 512
"""At once. When one more comes, the one that has kept its request back for longest has to go."""
TIME_LIMIT_S: Final = 5.0
"""For a client to say what it wants, and once more to take the answer."""
_HEAD_BYTES: Final = 8192
_BACKLOG: Final = 1024
"""Connections that the kernel keeps. One more is tried again by its client after a second."""
_ACCEPTS: Final = 64
"""At one go: less than a quarter of the connections, so that a request among many that say nothing is read before it is the oldest."""
_HEAD_END: Final = b"\r\n\r\n"

_log = logging.getLogger(__name__)


def bind(address: str) -> socket.socket:
    """A socket that listens on ``host:port`` or ``[v6]:port``; port 0 asks the kernel for a free one. Raises OSError."""
    parsed = parse_address(address, port_zero=True, unix=False)
    sock = socket.socket(socket.AF_INET6 if parsed.kind == "ipv6" else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((parsed.host, parsed.port))
        sock.listen(_BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def response(status: HTTPStatus, body: bytes = b"", headers: tuple[tuple[str, str], ...] = (), *, head_only: bool = False) -> bytes:
    """An answer as it goes over the wire; ``head_only`` leaves out the body, as HEAD asks, and not its length."""
    lines = [f"HTTP/1.0 {status.value} {status.phrase}", *(f"{name}: {value}" for name, value in headers)]
    head = "\r\n".join([*lines, f"Content-Length: {len(body)}", "Connection: close", "", ""]).encode("ascii")
    return head if head_only else head + body


class Server:
    """Answers what comes to a socket that listens already, one request after the other.

    Args:
        sock: closed by ``stop``.
        answer: gives what is sent back for the head of a request, which is whole, up to the empty line; called on the loop.

    Attributes:
        refused: connections that were closed without what they asked for, or that asked for nothing.
    """

    def __init__(self, sock: socket.socket, answer: Callable[[bytes], bytes]) -> None:
        self.refused = 0
        self._socket = sock
        self._answer = answer
        self._open: dict[asyncio.StreamWriter, bool] = {}
        """Oldest first; True while the request has not come."""
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Answer from now on, on this loop."""
        self._server = await asyncio.start_server(self._connected, sock=self._socket, limit=_HEAD_BYTES, backlog=_ACCEPTS)
        self._socket.listen(_BACKLOG)  # asyncio takes one number for both

    def stop(self) -> None:
        """Close the socket and every connection; nobody is waited for."""
        if self._server is not None:
            self._server.close()
        for writer in tuple(self._open):
            writer.transport.abort()
        self._socket.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= MAX_CONNECTIONS:
            self._refuse_oldest()
        self._open[writer] = True
        try:
            await self._exchange(reader, writer)
        except OSError:  # a timeout is one
            self.refused += 1  # it did not take its answer
        finally:
            del self._open[writer]
            writer.transport.abort()

    def _refuse_oldest(self) -> None:
        writer = next((writer for writer, waits in self._open.items() if waits), None)
        if writer is None:
            next(iter(self._open)).transport.abort()
        else:
            self._open[writer] = False
            writer.write(response(HTTPStatus.SERVICE_UNAVAILABLE))
            writer.close()  # its reader sees the end, as when a client hangs up

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answer = await self._answered(reader)
        if writer.transport.is_closing():
            return
        self._open[writer] = False
        async with asyncio.timeout(TIME_LIMIT_S):
            writer.write(answer)
            await writer.drain()
            writer.close()
            await writer.wait_closed()

    async def _answered(self, reader: asyncio.StreamReader) -> bytes:
        try:
            async with asyncio.timeout(TIME_LIMIT_S):
                head = await reader.readuntil(_HEAD_END)
        except TimeoutError:
            status = HTTPStatus.REQUEST_TIMEOUT
        except asyncio.LimitOverrunError:
            status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        except (asyncio.IncompleteReadError, OSError):
            status = HTTPStatus.BAD_REQUEST
        else:
            try:
                return self._answer(head)
            except Exception:  # our bug: it costs this request
                _log.exception("a request could not be answered")
                status = HTTPStatus.INTERNAL_SERVER_ERROR
        self.refused += 1
        return response(status)
