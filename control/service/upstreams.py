"""UpstreamService."""

from typing import Any

import grpc

from control.errors import NotFoundError
from control.gen.framegate.control.v1 import upstream_service_pb2 as pb2
from control.gen.framegate.control.v1.upstream_service_pb2_grpc import UpstreamServiceServicer
from control.plane import ControlPlane
from control.service import paging
from control.service.convert import upstream_message
from control.service.validate import Violations, required

__all__ = ["Upstreams"]

Context = grpc.aio.ServicerContext[Any, Any]


class Upstreams(UpstreamServiceServicer):
    """Shows where frames go."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    async def ListUpstreams(self, request: pb2.ListUpstreamsRequest, context: Context) -> pb2.ListUpstreamsResponse:
        """One page of upstreams, by name."""
        statuses = sorted(await self._plane.list_upstreams(), key=lambda status: status.name)
        chosen, token = paging.page([(status.name, status) for status in statuses], request.page_size, request.page_token)
        return pb2.ListUpstreamsResponse(upstreams=[upstream_message(status) for status in chosen], next_page_token=token)

    async def GetUpstream(self, request: pb2.GetUpstreamRequest, context: Context) -> pb2.GetUpstreamResponse:
        """One upstream."""
        violations = Violations()
        required(request.name, "name", violations)
        violations.check()
        for status in await self._plane.list_upstreams():
            if status.name == request.name:
                return pb2.GetUpstreamResponse(upstream=upstream_message(status))
        raise NotFoundError("upstream", request.name)
