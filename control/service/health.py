"""grpc.health.v1 for the kubelet and for load balancers. It imports grpc; ``probes`` imports it for the first probe over gRPC.

The number of watches is bounded, and one poll in each interval serves them all, because anyone who reaches the port may watch.
"""

import asyncio
import logging
from typing import TYPE_CHECKING, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from framegate.control.steering.state import State

if TYPE_CHECKING:
    from framegate.control.service.interceptor import CallObserver, Context

Answer = health_pb2.HealthCheckResponse
SERVICES: Final = {"": "alive", "framegate-startup": "started", "framegate-liveness": "alive", "framegate-readiness": "ready"}
"""The attribute of ``framegate.control.status.Health`` for each service name; the empty one is the server itself."""
WATCH_INTERVAL: Final = 0.25  # seconds between two polls while there are watches
MAX_WATCHES: Final = 64  # At once, of all clients together. Checks are not counted, so that watches do not keep the kubelet out.

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


def health_server(state: State, observe: "CallObserver | None") -> grpc.aio.Server:
    """The server, which is not started."""
    server = grpc.aio.server(options=_OPTIONS)
    health_pb2_grpc.add_HealthServicer_to_server(HealthService(state, observe), server)
    return server
