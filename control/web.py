"""A small HTTP server on asyncio for Prometheus' scrapes, probes and admission reviews, whose ports any client may reach.

A connection has one request and is then closed. The number of connections is bounded, and so is the time for the request and for the answer.
"""

import asyncio
import logging
import re
import socket
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from framegate.proxy.config.address import parse_address

if TYPE_CHECKING:
    import ssl

MAX_CONNECTIONS: Final = 512  # At once. One more closes the connection that has been without a request for longest.
TIME_LIMIT_S: Final = 5.0  # for the request, and once more for the answer
_HEAD_BYTES: Final = 8192
BACKLOG: Final = 1024  # Connections that wait in the kernel. The client of one more repeats its attempt after a second.
_ACCEPTS: Final = 64  # Connections accepted at once: less than a quarter of the limit, so that a request is read before its connection is the oldest
_HEAD_END: Final = b"\r\n\r\n"
_HTTP2: Final = b"PRI * HTTP/2.0\r\n\r\n"  # the head with which every connection of HTTP/2 begins; no answer begins so
_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,15})[ \t]*\r\n", re.IGNORECASE)

Http2 = Callable[[bytes, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
_log = logging.getLogger(__name__)


def bind(address: str, *, beside: bool = False) -> socket.socket:
    """A socket that listens on ``host:port`` or ``[v6]:port``; port 0 asks the kernel for a free one. Raises OSError. ``beside``: the address may
    overlap with that of another socket of this process that shares it (SO_REUSEPORT). It does not listen yet, so clients still connect to the other
    one.
    """
    parsed = parse_address(address, port_zero=True, unix=False)
    sock = socket.socket(socket.AF_INET6 if parsed.kind == "ipv6" else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, beside)
        sock.bind((parsed.host, parsed.port))
        if not beside:
            sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def response(status: HTTPStatus, body: bytes = b"", headers: tuple[tuple[str, str], ...] = (), *, head_only: bool = False) -> bytes:
    """The bytes of an answer; ``head_only`` leaves out the body, for HEAD, but not its length."""
    lines = [f"HTTP/1.0 {status.value} {status.phrase}", *(f"{name}: {value}" for name, value in headers)]
    head = "\r\n".join([*lines, f"Content-Length: {len(body)}", "Connection: close", "", ""]).encode("ascii")
    return head if head_only else head + body


class Server:
    """Answers requests to a socket that listens already.

    Args:
        sock: closed by ``stop``.
        answer: returns the answer to the head of a request, up to the empty line; called on the loop.
        body_limit: the most bytes of a body. If it is not 0, ``answer`` gets head and body, and is called in a thread.
        tls: the certificate to serve with; None: in plain text.
        http2: serves a connection that begins as one of HTTP/2 does, given what was read of it; None: such a connection is refused.
    """

    def __init__(
        self,
        sock: socket.socket,
        answer: Callable[[bytes], bytes],
        *,
        body_limit: int = 0,
        tls: "ssl.SSLContext | None" = None,
        http2: Http2 | None = None,
    ) -> None:
        self.refused = 0  # connections that were closed without a complete answer
        self._socket = sock
        self._answer = answer
        self._body_limit = body_limit
        self._tls = tls
        self._http2 = http2
        self._open: dict[asyncio.StreamWriter, bool] = {}
        """Oldest first; True until the request has arrived."""
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(
            self._connected,
            sock=self._socket,
            limit=_HEAD_BYTES,
            backlog=_ACCEPTS,
            ssl=self._tls,
            ssl_handshake_timeout=None if self._tls is None else TIME_LIMIT_S,
        )
        self._socket.listen(BACKLOG)  # asyncio uses ``backlog`` for both

    def stop(self) -> None:
        """Close the socket and every connection at once."""
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
            self.refused += 1  # the client did not read the answer
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
        if answer == _HTTP2 and self._http2 is not None:
            await self._http2(_HTTP2, reader, writer)
            answer = b""
        async with asyncio.timeout(TIME_LIMIT_S):
            writer.write(answer)
            await writer.drain()
            writer.close()
            await writer.wait_closed()

    async def _answered(self, reader: asyncio.StreamReader) -> bytes:
        try:
            async with asyncio.timeout(TIME_LIMIT_S):
                request = await reader.readuntil(_HEAD_END)
                if request == _HTTP2 and self._http2 is not None:
                    return _HTTP2
                length = int(found[1]) if self._body_limit and (found := _LENGTH.search(request)) else 0
                if 0 < length <= self._body_limit:
                    request += await reader.readexactly(length)
        except TimeoutError:
            status = HTTPStatus.REQUEST_TIMEOUT
        except asyncio.LimitOverrunError:
            status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        except (asyncio.IncompleteReadError, OSError):
            status = HTTPStatus.BAD_REQUEST
        else:
            try:
                if length > self._body_limit:
                    return response(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
                return await asyncio.to_thread(self._answer, request) if self._body_limit else self._answer(request)
            except Exception:  # a defect: only this request fails
                _log.exception("a request could not be answered")
                status = HTTPStatus.INTERNAL_SERVER_ERROR
        self.refused += 1
        return response(status)
