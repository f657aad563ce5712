"""UpstreamService."""

from typing import Any

import grpc

from framegate.control.errors import NotFoundError
from framegate.control.service import paging
from framegate.control.service.convert import upstream_message
from framegate.control.service.validate import Violations, required
from framegate.control.steering import listeners as steering
from framegate.control.v1 import upstream_service_pb2 as pb2
from framegate.control.v1.upstream_service_pb2_grpc import UpstreamServiceServicer

__all__ = ["Upstreams"]

Context = grpc.aio.ServicerContext[Any, Any]


class Upstreams(UpstreamServiceServicer):
    """Shows where frames go."""

    def __init__(self, upstreams: steering.Upstreams) -> None:
        self._upstreams = upstreams

    async def ListUpstreams(self, request: pb2.ListUpstreamsRequest, context: Context) -> pb2.ListUpstreamsResponse:
        """One page of upstreams, by name."""
        statuses = sorted(await self._upstreams.statuses(), key=lambda status: status.name)
        chosen, token = paging.page([(status.name, status) for status in statuses], request.page_size, request.page_token)
        return pb2.ListUpstreamsResponse(upstreams=[upstream_message(status) for status in chosen], next_page_token=token)

    async def GetUpstream(self, request: pb2.GetUpstreamRequest, context: Context) -> pb2.GetUpstreamResponse:
        """One upstream."""
        violations = Violations()
        required(request.name, "name", violations)
        violations.check()
        for status in await self._upstreams.statuses():
            if status.name == request.name:
                return pb2.GetUpstreamResponse(upstream=upstream_message(status))
        raise NotFoundError("upstream", request.name)
