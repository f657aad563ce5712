"""HandlerService over a real socket."""

import grpc
import pytest

from framegate.control.v1 import handler_service_pb2 as pb2
from framegate.control.v1.handler_service_pb2_grpc import HandlerServiceStub
from tests.fakes.plane import handler_process
from tests.fakes.rows import OPENED_NS
from tests.fakes.serving import Serving, run


def test_handler_processes_are_listed_with_their_handlers() -> None:
    async def body(at: Serving) -> None:
        at.plane.handlers = [handler_process()]
        (found,) = (await HandlerServiceStub(at.channel).ListHandlers(pb2.ListHandlersRequest())).processes
        assert (found.slot, found.generation, found.state, found.restart_count) == (0, 7, pb2.HandlerProcess.STATE_RUNNING, 1)
        assert (found.start_time.ToNanoseconds(), found.last_end_time.ToNanoseconds()) == (OPENED_NS, OPENED_NS - 10**9)
        assert (found.last_end_reason, found.handled_count, found.failed_count) == ("timeout", 500, 3)
        assert (found.in_handler_count, found.queued_count, found.oldest_age.ToMilliseconds(), found.busy_share) == (1, 2, 40, 0.25)
        assert found.resident_bytes == 30 * 2**20
        (echo,) = found.handlers
        assert (echo.listener, echo.name) == ("plain", "framegate.proxy.handler.echo:echo")
        assert (echo.requests, echo.responses, echo.description) == (True, False, "Answers every frame.")

    run(body)


def test_what_is_not_known_is_absent() -> None:
    async def body(at: Serving) -> None:
        at.plane.handlers = [
            handler_process(pid=0, state="starting", last_reason="", last_ended_ns=0, started_ns=0, in_handler=0, oldest_ms=0, handlers=())
        ]
        (found,) = (await HandlerServiceStub(at.channel).ListHandlers(pb2.ListHandlersRequest())).processes
        assert not any(found.HasField(name) for name in ("start_time", "last_end_time", "oldest_age"))
        assert found.state == pb2.HandlerProcess.STATE_STARTING

    run(body)


def test_they_come_in_pages_by_slot() -> None:
    async def body(at: Serving) -> None:
        stub = HandlerServiceStub(at.channel)
        assert (await stub.ListHandlers(pb2.ListHandlersRequest())).processes == []
        at.plane.handlers = [handler_process(slot) for slot in range(12)]
        first = await stub.ListHandlers(pb2.ListHandlersRequest(page_size=10))
        second = await stub.ListHandlers(pb2.ListHandlersRequest(page_size=10, page_token=first.next_page_token))
        assert [item.slot for item in (*first.processes, *second.processes)] == list(range(12))
        assert second.next_page_token == ""
        for request in (pb2.ListHandlersRequest(page_size=-1), pb2.ListHandlersRequest(page_token="?")):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.ListHandlers(request)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    run(body)
