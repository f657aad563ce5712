"""Startup, liveness and readiness over grpc.health.v1, for the kubelet and for load balancers.

Every answer is asked of the plane at that moment, so readiness is gone as soon as a drain has begun, while liveness stays: a pod that drains
must not be killed for it.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from control.plane import ControlPlane

__all__ = ["SERVICES", "HealthService"]

Context = grpc.aio.ServicerContext[Any, Any]
Answer = health_pb2.HealthCheckResponse

SERVICES: Final = {"": "alive", "framegate-startup": "started", "framegate-liveness": "alive", "framegate-readiness": "ready"}
"""Which fact of ``control.plane.Health`` each service name stands for; the empty one is the server itself."""
WATCH_INTERVAL: Final = 0.25
"""Seconds between two looks of a watch."""


class HealthService(health_pb2_grpc.HealthServicer):
    """Answers probes."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    def _state(self, service: str) -> int:
        if service not in SERVICES:
            return Answer.SERVICE_UNKNOWN
        return Answer.SERVING if getattr(self._plane.health(), SERVICES[service]) else Answer.NOT_SERVING

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Context) -> health_pb2.HealthCheckResponse:
        """How one service is now; NOT_FOUND for a name that is not ours."""
        state = self._state(request.service)
        if state == Answer.SERVICE_UNKNOWN:
            known = ", ".join(filter(None, SERVICES))
            await context.abort(grpc.StatusCode.NOT_FOUND, f"there is no service {request.service[:64]!r}; there are {known}")
        return Answer(status=state)

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Context) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        """How one service is, now and whenever that changes; SERVICE_UNKNOWN for a name that is not ours."""
        last = None
        while True:
            state = self._state(request.service)
            if state != last:
                yield Answer(status=state)
                last = state
            await asyncio.sleep(WATCH_INTERVAL)
