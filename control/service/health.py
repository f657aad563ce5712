"""Startup, liveness and readiness over grpc.health.v1, for the kubelet and for load balancers.

Every answer is asked at that moment, so readiness is gone as soon as a drain has begun, while liveness stays: a pod that drains
must not be killed for it. Watches are bounded in number, and one poll in each interval serves them all: whoever reaches the port may ask.
"""

import asyncio
import logging
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from framegate.control.service.interceptor import CallObserver
from framegate.control.steering.state import State

__all__ = ["MAX_WATCHES", "SERVICES", "HealthService"]

Context = grpc.aio.ServicerContext[Any, Any]
Answer = health_pb2.HealthCheckResponse

SERVICES: Final = {"": "alive", "framegate-startup": "started", "framegate-liveness": "alive", "framegate-readiness": "ready"}
"""Which fact of ``framegate.control.status.Health`` each service name stands for; the empty one is the server itself."""
WATCH_INTERVAL: Final = 0.25
"""Seconds between two polls while anybody watches."""
MAX_WATCHES: Final = 64
"""At once, of all clients together. Checks are not counted: watchers must not keep the kubelet out."""

_log = logging.getLogger(__name__)


class HealthService(health_pb2_grpc.HealthServicer):
    """Answers probes.

    Args:
        state: knows how we are.
        observe: is told of each watch that was refused; None when nobody wants to know.
    """

    def __init__(self, state: State, observe: CallObserver | None = None) -> None:
        self._state = state
        self._observe = observe
        self._watches = 0
        self._poller: asyncio.Task[None] | None = None
        self._news = asyncio.Event()

    def _answer(self, service: str) -> int:
        if service not in SERVICES:
            return Answer.SERVICE_UNKNOWN
        return Answer.SERVING if getattr(self._state.health(), SERVICES[service]) else Answer.NOT_SERVING

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Context) -> health_pb2.HealthCheckResponse:
        """How one service is now; NOT_FOUND for a name that is not ours."""
        state = self._answer(request.service)
        if state == Answer.SERVICE_UNKNOWN:
            known = ", ".join(filter(None, SERVICES))
            await context.abort(grpc.StatusCode.NOT_FOUND, f"there is no service {request.service[:64]!r}; there are {known}")
        return Answer(status=state)

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Context) -> None:
        """How one service is, now and whenever that changes; SERVICE_UNKNOWN for a name that is not ours, RESOURCE_EXHAUSTED when too many watch."""
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
                news = self._news
                state = self._answer(request.service)
                if state != last:
                    await context.write(Answer(status=state))
                    last = state
                await news.wait()
        finally:
            self._watches -= 1
            if self._watches == 0 and self._poller is not None:
                self._poller.cancel()
                self._poller = None

    async def _poll(self) -> None:
        """Wake the watches whenever something changed."""
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
                self._news.set()
                self._news = asyncio.Event()
