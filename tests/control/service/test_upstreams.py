"""UpstreamService over a real socket."""

import grpc
import pytest

from framegate.control.v1 import upstream_service_pb2 as pb2
from framegate.control.v1.upstream_service_pb2_grpc import UpstreamServiceStub
from tests.fakes.serving import Serving, run


def test_upstreams_are_listed_and_got() -> None:
    async def body(at: Serving) -> None:
        stub = UpstreamServiceStub(at.channel)
        (listed,) = (await stub.ListUpstreams(pb2.ListUpstreamsRequest())).upstreams
        assert listed == (await stub.GetUpstream(pb2.GetUpstreamRequest(name="brokers"))).upstream
        assert (list(listed.endpoints), list(listed.addresses), listed.max_receive_size_bytes) == (["broker:9092"], ["10.1.0.1:9092"], 2**31 - 1)
        assert [(down.address, down.reason, down.processor_count) for down in listed.down_endpoints] == [("10.1.0.2:9092", "refused", 2)]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.GetUpstream(pb2.GetUpstreamRequest(name="nobody"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND

    run(body)
