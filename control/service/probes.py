"""Startup, liveness and readiness for the kubelet and for load balancers, on plaintext listeners: over HTTP, and over grpc.health.v1 (``health``).

The state is read for each answer. Readiness ends as soon as a drain begins, while liveness stays: a pod that drains must not be killed for it.
gRPC is loaded for the first connection that begins as one of HTTP/2 does.
"""

import asyncio
import pathlib
from http import HTTPMethod, HTTPStatus
from typing import TYPE_CHECKING, Final

from framegate.control.errors import StartError
from framegate.control.service.backend import Backend
from framegate.control.status import Health
from framegate.control.steering.state import State
from framegate.control.web import Server, bind, response
from framegate.proxy.config.address import parse_address
from framegate.proxy.config.model import HealthConfig

if TYPE_CHECKING:
    from framegate.control.service.interceptor import CallObserver

PATHS: Final = {"/healthz": "alive", "/ready": "ready", "/startup": "started"}  # the attribute of ``framegate.control.status.Health`` for each path
_METHODS: Final = (HTTPMethod.GET.value, HTTPMethod.HEAD.value)
_PLAIN: Final = ("Content-Type", "text/plain; charset=utf-8")
_FRESH: Final = ("Cache-Control", "no-store")
_BLOCK: Final = 16 * 1024


class Probes:
    """The listeners of a configuration, which are bound at once. Attributes: ``address``, ``http_address``: ``host:port`` with the port bound, or
    None. ``folder``: of gRPC's socket. Raises StartError: an address cannot be bound.
    """

    def __init__(self, state: State, config: HealthConfig, folder: pathlib.Path, observe: "CallObserver | None" = None) -> None:
        self._backend = Backend("framegate.control.service.health", lambda health: health.health_server(state, observe), folder)
        self._servers: list[Server] = []
        self._state = state
        try:
            self.address = self._bind(config.address)
            self.http_address = None if config.http_address is None else self._bind(config.http_address)
        except StartError:
            self._close()
            raise

    def _bind(self, address: str) -> str:
        try:
            sock = bind(address)
        except OSError as error:
            text = f"the health listener cannot bind {address}: {error}"
            raise StartError(text, reason="HEALTH_ADDRESS_UNUSABLE", address=address) from error
        grpc = None if self._servers else self._over_grpc
        self._servers.append(Server(sock, lambda head: answer_probe(head, self._state.health()), http2=grpc))
        return str(parse_address(address, port_zero=True)._replace(port=sock.getsockname()[1]))

    async def start(self) -> None:
        for server in self._servers:
            await server.start()

    async def _over_grpc(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass a connection to gRPC's server, which bounds its time. ``head``: what was read of it."""
        inner_reader, inner = await asyncio.open_unix_connection(await self._backend.path(), limit=_BLOCK)
        inner.write(head)
        ways = [asyncio.create_task(_pass(*way)) for way in ((reader, inner), (inner_reader, writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            inner.transport.abort()

    def _close(self) -> None:
        for server in self._servers:
            server.stop()

    async def stop(self) -> None:
        """Close all without waiting for calls in progress."""
        self._close()
        await self._backend.stop()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_BLOCK):
        writer.write(data)
        await writer.drain()


def answer_probe(head: bytes, health: Health) -> bytes:
    """The response to the head of a request: 200 or 503 for the known paths; 400, 404, 405 or 505 for anything else."""
    words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
    if len(words) != 3 or not words[1].startswith("/") or not words[2].startswith("HTTP/"):
        return _text(HTTPStatus.BAD_REQUEST, "this is no request of HTTP/1")
    method, target, version = words
    if not version.startswith("HTTP/1."):
        return _text(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "HTTP/1.0 and HTTP/1.1 are spoken here")
    head_only = method == HTTPMethod.HEAD.value
    fact = PATHS.get(target.partition("?")[0])
    if fact is None:
        return _text(HTTPStatus.NOT_FOUND, f"there are {', '.join(PATHS)}", head_only=head_only)
    if method not in _METHODS:
        return _text(HTTPStatus.METHOD_NOT_ALLOWED, f"{' and '.join(_METHODS)} are answered", ("Allow", ", ".join(_METHODS)))
    if getattr(health, fact):
        return _text(HTTPStatus.OK, "ok", head_only=head_only)
    return _text(HTTPStatus.SERVICE_UNAVAILABLE, f"not {fact}: {'; '.join(health.problems)}", head_only=head_only)


def _text(status: HTTPStatus, text: str, *headers: tuple[str, str], head_only: bool = False) -> bytes:
    return response(status, f"{text}\n".encode(), (_PLAIN, _FRESH, *headers), head_only=head_only)
