"""PoolService over a real socket."""

import grpc
import pytest

from control.errors import FailedPreconditionError
from control.gen.framegate.control.v1 import pool_service_pb2 as pb2
from control.gen.framegate.control.v1.pool_service_pb2_grpc import PoolServiceStub
from tests.fakes.serving import Serving, run


def test_the_memory_pool_is_got_and_resized() -> None:
    async def body(at: Serving) -> None:
        stub = PoolServiceStub(at.channel)
        updated = await stub.UpdateMemoryPool(pb2.UpdateMemoryPoolRequest(memory_pool=pb2.MemoryPool(size_bytes=200 << 20)))
        got = (await stub.GetMemoryPool(pb2.GetMemoryPoolRequest())).memory_pool
        assert updated.memory_pool == got
        assert (got.size_bytes, got.usage_bytes) == (200 << 20, 10)
        assert [(share.processor_slot, share.size_bytes, share.usage_bytes) for share in got.shares] == [(0, 100 << 20, 5), (1, 100 << 20, 5)]
        assert at.plane.audits[0]["before"] == {"size_bytes": 256 * 1024 * 1024}

    run(body)


def test_the_processors_are_got_and_their_number_changed() -> None:
    async def body(at: Serving) -> None:
        stub = PoolServiceStub(at.channel)
        at.plane.pool = 300 << 20
        await stub.UpdateProcessorPool(pb2.UpdateProcessorPoolRequest(processor_pool=pb2.ProcessorPool(size=3)))
        pool = (await stub.GetProcessorPool(pb2.GetProcessorPoolRequest())).processor_pool
        assert pool.size == 3
        assert [(item.slot, item.pid, item.state) for item in pool.processors] == [
            (slot, 100 + slot, pb2.Processor.STATE_RUNNING) for slot in range(3)
        ]
        assert pool.processors[0].heartbeat_age.ToMilliseconds() == 12
        assert not pool.processors[1].HasField("heartbeat_age")

    run(body)


@pytest.mark.parametrize("size", [0, -1, 65])
def test_a_number_of_processors_out_of_range_is_refused(size: int) -> None:
    async def body(at: Serving) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await PoolServiceStub(at.channel).UpdateProcessorPool(pb2.UpdateProcessorPoolRequest(processor_pool=pb2.ProcessorPool(size=size)))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert at.plane.processors == 2

    run(body)


def test_a_pool_that_the_state_forbids_is_a_failed_precondition() -> None:
    async def body(at: Serving) -> None:
        at.plane.failure = FailedPreconditionError("a share would be too small", reason="POOL_TOO_SMALL", share="1")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await PoolServiceStub(at.channel).UpdateMemoryPool(pb2.UpdateMemoryPoolRequest(memory_pool=pb2.MemoryPool(size_bytes=1)))
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        (audit,) = at.plane.audits
        assert (audit["result"], audit["error"], audit["after"]) == ("FAILED_PRECONDITION", "POOL_TOO_SMALL", None)

    run(body)
