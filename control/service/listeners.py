"""ListenerService."""

from typing import Any

import grpc

from framegate.control.errors import NotFoundError
from framegate.control.service import paging
from framegate.control.service.convert import listener_message
from framegate.control.service.validate import Violations, required
from framegate.control.steering import listeners as steering
from framegate.control.v1 import listener_service_pb2 as pb2
from framegate.control.v1.listener_service_pb2_grpc import ListenerServiceServicer

__all__ = ["Listeners"]

Context = grpc.aio.ServicerContext[Any, Any]


class Listeners(ListenerServiceServicer):
    """Shows where clients connect."""

    def __init__(self, listeners: steering.Listeners) -> None:
        self._listeners = listeners

    async def ListListeners(self, request: pb2.ListListenersRequest, context: Context) -> pb2.ListListenersResponse:
        """One page of listeners, by name."""
        statuses = sorted(self._listeners.statuses(), key=lambda status: status.name)
        chosen, token = paging.page([(status.name, status) for status in statuses], request.page_size, request.page_token)
        return pb2.ListListenersResponse(listeners=[listener_message(status) for status in chosen], next_page_token=token)

    async def GetListener(self, request: pb2.GetListenerRequest, context: Context) -> pb2.GetListenerResponse:
        """One listener."""
        violations = Violations()
        required(request.name, "name", violations)
        violations.check()
        for status in self._listeners.statuses():
            if status.name == request.name:
                return pb2.GetListenerResponse(listener=listener_message(status))
        raise NotFoundError("listener", request.name)
