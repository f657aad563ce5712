"""LimitService."""

from typing import Any, Final

import grpc

from control.gen.framegate.control.v1 import limit_service_pb2 as pb2
from control.gen.framegate.control.v1.limit_service_pb2_grpc import LimitServiceServicer
from control.plane import ControlPlane
from control.service import paging
from control.service.convert import limit_message
from control.service.interceptor import note
from control.service.validate import Violations, changed_fields, required
from proxy.config.model import MAX_RECEIVE_SIZE

__all__ = ["Limits"]

Context = grpc.aio.ServicerContext[Any, Any]
_FIELD: Final = "max_receive_size_bytes"


class Limits(LimitServiceServicer):
    """Shows and changes what a listener's clients may send."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    async def ListLimits(self, request: pb2.ListLimitsRequest, context: Context) -> pb2.ListLimitsResponse:
        """One page of limits, by listener name."""
        limits = sorted(await self._plane.get_limits(), key=lambda limit: limit.listener)
        chosen, token = paging.page([(limit.listener, limit) for limit in limits], request.page_size, request.page_token)
        return pb2.ListLimitsResponse(limits=[limit_message(limit) for limit in chosen], next_page_token=token)

    async def GetLimit(self, request: pb2.GetLimitRequest, context: Context) -> pb2.GetLimitResponse:
        """The limits of one listener."""
        violations = Violations()
        required(request.listener, "listener", violations)
        violations.check()
        (limit,) = await self._plane.get_limits(request.listener)
        return pb2.GetLimitResponse(limit=limit_message(limit))

    async def UpdateLimit(self, request: pb2.UpdateLimitRequest, context: Context) -> pb2.UpdateLimitResponse:
        """Change maxReceiveSize in every processor or in none."""
        violations = Violations()
        required(request.limit.listener, "limit.listener", violations)
        changed_fields(request.limit, request.update_mask, {_FIELD}, "limit", violations)
        size = request.limit.max_receive_size_bytes
        if request.limit.HasField(_FIELD) and not MAX_RECEIVE_SIZE.takes(size):
            violations.add(f"limit.{_FIELD}", f"must be {MAX_RECEIVE_SIZE.least} to {MAX_RECEIVE_SIZE.most}, not {size}")
        violations.check()
        (before,) = await self._plane.get_limits(request.limit.listener)
        note(before={_FIELD: before.max_receive_size})
        after = await self._plane.set_limit(request.limit.listener, size)
        note(after={_FIELD: after.max_receive_size})
        return pb2.UpdateLimitResponse(limit=limit_message(after))
