"""LimitService. Quotas are the same six of a listener, of the node, of an address and of a network's addresses."""

from typing import Final

from framegate.control.service.convert import duration
from framegate.control.service.interceptor import Context
from framegate.control.service.update import Resource, fill, update
from framegate.control.service.validate import check_required, page
from framegate.control.status import Limit
from framegate.control.steering import limits as steering
from framegate.control.steering.sizes import Sizes
from framegate.control.steering.transactions import etag_of
from framegate.control.v1 import limit_service_pb2 as pb2
from framegate.control.v1.limit_service_pb2_grpc import LimitServiceServicer
from framegate.proxy.config.limits import LimitsConfig

LIMIT: Final = Resource(pb2.Limit, Limit, "limit", key="listener")
NODE: Final = Resource(pb2.NodeLimits, LimitsConfig, "node_limits", fixed=("protected_listener",))


class Limits(LimitServiceServicer):
    """Shows and changes the limits of clients."""

    def __init__(self, limits: steering.Limits, sizes: Sizes) -> None:
        self._limits = limits
        self._sizes = sizes

    async def ListLimits(self, request: pb2.ListLimitsRequest, context: Context) -> pb2.ListLimitsResponse:
        limits = sorted(self._limits.get(), key=lambda limit: limit.listener)
        chosen, token = page([(limit.listener, limit) for limit in limits], request.page_size, request.page_token)
        return pb2.ListLimitsResponse(limits=[limit_message(limit) for limit in chosen], next_page_token=token)

    async def GetLimit(self, request: pb2.GetLimitRequest, context: Context) -> pb2.GetLimitResponse:
        check_required(request.listener, "listener")
        (limit,) = self._limits.get(request.listener)
        return pb2.GetLimitResponse(limit=limit_message(limit))

    async def UpdateLimit(self, request: pb2.UpdateLimitRequest, context: Context) -> pb2.UpdateLimitResponse:
        after = await update(request, LIMIT, self._limits.change)
        if not request.validate_only:
            return pb2.UpdateLimitResponse(limit=limit_message(after))
        found = self._sizes.forecast(after.listener, after.max_receive_size)
        forecast = pb2.SizeForecast(
            window=duration(int(found.window_s * 1e9)), frame_count=found.frames, least_refused_count=found.least, most_refused_count=found.most
        )
        return pb2.UpdateLimitResponse(limit=limit_message(after), size_forecast=forecast)

    async def GetNodeLimits(self, request: pb2.GetNodeLimitsRequest, context: Context) -> pb2.GetNodeLimitsResponse:
        return pb2.GetNodeLimitsResponse(node_limits=node_message(self._limits.get_node()))

    async def UpdateNodeLimits(self, request: pb2.UpdateNodeLimitsRequest, context: Context) -> pb2.UpdateNodeLimitsResponse:
        return pb2.UpdateNodeLimitsResponse(node_limits=node_message(await update(request, NODE, self._limits.change_node)))


def limit_message(limit: Limit) -> pb2.Limit:
    """The limits of a listener."""
    return fill(pb2.Limit(etag=etag_of(limit)), limit)


def node_message(limits: LimitsConfig) -> pb2.NodeLimits:
    """The quotas of the node, of addresses and of networks."""
    return fill(pb2.NodeLimits(etag=etag_of(limits)), limits)
