"""Startup, liveness and readiness for the kubelet and for load balancers, on plaintext listeners: over grpc.health.v1, and over HTTP.

The state is read for each answer. Readiness ends as soon as a drain begins, while liveness stays: a pod that drains must not be killed for it. The
number of watches is bounded, and one poll in each interval serves them all, because anyone who reaches the port may watch.
"""

import asyncio
import logging
from http import HTTPMethod, HTTPStatus
from typing import TYPE_CHECKING, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from framegate.control.errors import StartError
from framegate.control.status import Health
from framegate.control.steering.state import State
from framegate.control.web import Server, bind, response
from framegate.proxy.config.address import parse_address
from framegate.proxy.config.model import HealthConfig

if TYPE_CHECKING:
    from framegate.control.service.interceptor import CallObserver, Context

Answer = health_pb2.HealthCheckResponse
SERVICES: Final = {"": "alive", "framegate-startup": "started", "framegate-liveness": "alive", "framegate-readiness": "ready"}
"""The attribute of ``framegate.control.status.Health`` for each service name; the empty one is the server itself."""
WATCH_INTERVAL: Final = 0.25  # seconds between two polls while there are watches
MAX_WATCHES: Final = 64  # At once, of all clients together. Checks are not counted, so that watches do not keep the kubelet out.

PATHS: Final = {"/healthz": "alive", "/ready": "ready", "/startup": "started"}  # the attribute of ``framegate.control.status.Health`` for each path
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
"""Anyone who reaches the health port may connect, so everything is bounded: connections, calls of each, the time of connections without a request,
and of all. After five minutes a client must connect again.
"""
_log = logging.getLogger(__name__)


class HealthService(health_pb2_grpc.HealthServicer):
    """Answers probes over gRPC. ``observe``: called for each watch that was refused; None: not needed."""

    def __init__(self, state: State, observe: "CallObserver | None" = None) -> None:
        self._state = state
        self._observe = observe
        self._watches = 0
        self._poller: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    def _answer(self, service: str) -> int:
        if service not in SERVICES:
            return Answer.SERVICE_UNKNOWN
        return Answer.SERVING if getattr(self._state.health(), SERVICES[service]) else Answer.NOT_SERVING

    async def Check(self, request: health_pb2.HealthCheckRequest, context: "Context") -> health_pb2.HealthCheckResponse:
        """The state of one service; NOT_FOUND for an unknown name."""
        state = self._answer(request.service)
        if state == Answer.SERVICE_UNKNOWN:
            known = ", ".join(filter(None, SERVICES))
            await context.abort(grpc.StatusCode.NOT_FOUND, f"there is no service {request.service[:64]!r}; there are {known}")
        return Answer(status=state)

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: "Context") -> None:
        """The state of a service, now and after each change; an unknown name and too many watches have their own codes."""
        if self._watches >= MAX_WATCHES:
            if self._observe is not None:
                self._observe("grpc.health.v1.Health/Watch", grpc.StatusCode.RESOURCE_EXHAUSTED.name, 0.0)
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{MAX_WATCHES} clients watch already; Check is answered at any time")
        self._watches += 1
        try:
            if self._poller is None:
                self._poller = asyncio.create_task(self._poll())
            last = None
            while True:
                changed = self._changed
                state = self._answer(request.service)
                if state != last:
                    await context.write(Answer(status=state))
                    last = state
                await changed.wait()
        finally:
            self._watches -= 1
            if self._watches == 0 and self._poller is not None:
                self._poller.cancel()
                self._poller = None

    async def _poll(self) -> None:
        """Wake the watches after each change."""
        last = None
        while True:
            await asyncio.sleep(WATCH_INTERVAL)
            try:
                health = self._state.health()
            except Exception:
                _log.exception("health could not be asked")
                continue
            if health != last:
                last = health
                self._changed.set()
                self._changed = asyncio.Event()


class Probes:
    """The running listeners. Attributes: ``grpc_address``, ``http_address``: ``host:port`` with the port bound, or None."""

    def __init__(self, grpc_server: grpc.aio.Server, grpc_address: str) -> None:
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
        """Close both without waiting for calls in progress."""
        if self._http is not None:
            self._http.stop()
        await self._grpc.stop(0)


async def start_probes(state: State, config: HealthConfig, observe: "CallObserver | None" = None) -> Probes:
    """Serve the configured listeners. Raises StartError: an address cannot be bound."""
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


def _unusable(address: str, error: Exception) -> StartError:
    return StartError(f"the health listener cannot bind {address}: {error}", reason="HEALTH_ADDRESS_UNUSABLE", address=address)


def _with_port(address: str, port: int) -> str:
    return str(parse_address(address, port_zero=True)._replace(port=port))


async def start_whole(server: grpc.aio.Server) -> None:
    """Finish a server's start even if this call is cancelled, then stop it: an exception of grpc's cancelled ``start`` would be lost."""
    starting = asyncio.ensure_future(server.start())
    try:
        await asyncio.shield(starting)
    except asyncio.CancelledError:
        await starting
        await server.stop(0)
        raise
