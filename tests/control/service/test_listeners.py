"""ListenerService over a real socket."""

import grpc
import pytest

from framegate.control.v1 import listener_service_pb2 as pb2
from framegate.control.v1.listener_service_pb2_grpc import ListenerServiceStub
from tests.fakes.plane import channel_row
from tests.fakes.serving import Serving, run


def test_listeners_are_listed_by_name_with_what_is_open() -> None:
    async def body(at: Serving) -> None:
        at.plane.add(channel_row("0-1-1", "plain"))
        listed = (await ListenerServiceStub(at.channel).ListListeners(pb2.ListListenersRequest())).listeners
        assert [(item.name, item.address, item.protocol) for item in listed] == [
            ("kafka", "127.0.0.1:9093", pb2.PROTOCOL_KAFKA),
            ("plain", "127.0.0.1:9094", pb2.PROTOCOL_FRAMED),
        ]
        assert {(item.request_forwarding, item.response_forwarding) for item in listed} == {(pb2.FORWARDING_WHOLE, pb2.FORWARDING_CUT_THROUGH)}
        assert (listed[1].open_connection_count, listed[1].max_connection_count, listed[1].accepting) == (1, 10, True)

    run(body)


def test_one_is_got_by_its_name_only() -> None:
    async def body(at: Serving) -> None:
        stub = ListenerServiceStub(at.channel)
        assert (await stub.GetListener(pb2.GetListenerRequest(name="plain"))).listener.upstream == "brokers"
        for name, code in (("nobody", grpc.StatusCode.NOT_FOUND), ("", grpc.StatusCode.INVALID_ARGUMENT)):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.GetListener(pb2.GetListenerRequest(name=name))
            assert caught.value.code() is code

    run(body)
