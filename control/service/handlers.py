"""HandlerService."""

from typing import Any

import grpc

from framegate.control.service import paging
from framegate.control.service.convert import handler_process_message
from framegate.control.steering.state import State
from framegate.control.v1 import handler_service_pb2 as pb2
from framegate.control.v1.handler_service_pb2_grpc import HandlerServiceServicer

__all__ = ["Handlers"]

Context = grpc.aio.ServicerContext[Any, Any]


class Handlers(HandlerServiceServicer):
    """Shows the processes in which handlers run."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def ListHandlers(self, request: pb2.ListHandlersRequest, context: Context) -> pb2.ListHandlersResponse:
        """One page of handler processes, by slot."""
        statuses = [(str(status.slot), status) for status in self._state.handler_processes()]
        chosen, token = paging.page(statuses, request.page_size, request.page_token)
        return pb2.ListHandlersResponse(processes=[handler_process_message(status) for status in chosen], next_page_token=token)
