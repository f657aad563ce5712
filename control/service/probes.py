"""The plaintext listeners of probes: grpc.health.v1, and the same over HTTP for who cannot speak that. Both ask the state at that moment."""

import asyncio
from http import HTTPMethod, HTTPStatus
from typing import Final

import grpc
from grpc_health.v1 import health_pb2_grpc

from framegate.control.errors import StartError
from framegate.control.service.health import HealthService
from framegate.control.service.interceptor import CallObserver
from framegate.control.status import Health
from framegate.control.steering.state import State
from framegate.control.web import Server, bind, response
from framegate.proxy.config.address import parse_address
from framegate.proxy.config.model import HealthConfig

__all__ = ["PATHS", "Probes", "answer_probe", "start_probes", "start_whole"]

PATHS: Final = {"/healthz": "alive", "/ready": "ready", "/startup": "started"}
"""Which fact of ``framegate.control.status.Health`` each path stands for."""
_METHODS: Final = (HTTPMethod.GET.value, HTTPMethod.HEAD.value)
_PLAIN: Final = ("Content-Type", "text/plain; charset=utf-8")
_FRESH: Final = ("Cache-Control", "no-store")
_OPTIONS: Final = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", 4096),
    ("grpc.max_metadata_size", 8192),
    ("grpc.max_allowed_incoming_connections", 1024),
    ("grpc.max_concurrent_streams", 4),
    ("grpc.server_handshake_timeout_ms", 2_000),
    ("grpc.max_connection_idle_ms", 10_000),
    ("grpc.max_connection_age_ms", 300_000),
    ("grpc.max_connection_age_grace_ms", 5_000),
)
"""Whoever reaches the health port may ask, so everything is bounded: connections, calls of each, the time of those that say nothing, and of all. What
watches for longer than five minutes is told to connect again.
"""


class Probes:
    """The listeners that were started. Attributes: ``grpc_address``, ``http_address``: ``host:port`` with the port bound, or None."""

    def __init__(self, grpc_server: grpc.aio.Server | None = None, grpc_address: str | None = None) -> None:
        self.grpc_address = grpc_address
        self.http_address: str | None = None
        self._grpc = grpc_server
        self._http: Server | None = None

    async def start_http(self, state: State, address: str) -> None:
        """Answer over HTTP, too. Raises StartError."""
        try:
            sock = bind(address)
        except OSError as error:
            raise _unusable(address, error) from error
        self.http_address = _with_port(address, sock.getsockname()[1])
        self._http = Server(sock, lambda head: answer_probe(head, state.health()))
        await self._http.start()

    async def stop(self) -> None:
        """Close both; nobody is waited for."""
        if self._http is not None:
            self._http.stop()
        if self._grpc is not None:
            await self._grpc.stop(0)


async def start_probes(state: State, config: HealthConfig | None, observe: CallObserver | None = None) -> Probes:
    """Serve what is configured. Raises StartError: an address cannot be bound."""
    if config is None:
        return Probes()
    server = grpc.aio.server(options=_OPTIONS)
    health_pb2_grpc.add_HealthServicer_to_server(HealthService(state, observe), server)
    try:
        port = server.add_insecure_port(config.address)
    except RuntimeError as error:
        raise _unusable(config.address, error) from error
    await start_whole(server)
    probes = Probes(server, _with_port(config.address, port))
    if config.http_address is not None:
        try:
            await probes.start_http(state, config.http_address)
        except BaseException:
            await probes.stop()
            raise
    return probes


def answer_probe(head: bytes, health: Health) -> bytes:
    """What is sent back for the head of a request: 200 or 503 for the paths that there are; 400, 404, 405 or 505 for anything else."""
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


def _unusable(address: str, error: Exception) -> StartError:
    return StartError(f"the health listener cannot bind {address}: {error}", reason="HEALTH_ADDRESS_UNUSABLE", address=address)


def _with_port(address: str, port: int) -> str:
    return str(parse_address(address, port_zero=True)._replace(port=port))


async def start_whole(server: grpc.aio.Server) -> None:
    """Start a server even if we are cancelled meanwhile, then stop it: grpc's ``start``, cancelled itself, fails where nobody sees it."""
    starting = asyncio.ensure_future(server.start())
    try:
        await asyncio.shield(starting)
    except asyncio.CancelledError:
        await starting
        await server.stop(0)
        raise
