"""PoolService over a real socket."""

import grpc

from framegate.control.errors import UnavailableError
from framegate.control.v1 import pool_service_pb2 as pb2
from framegate.control.v1.channel_service_pb2 import MUTE_CAUSE_MEMORY
from tests.control.service.served import code_of, served
from tests.fakes.plane import holder
from tests.fakes.serving import Serving


@served()
async def test_the_memory_pool_is_got_and_resized(at: Serving) -> None:
    updated = await at.api.UpdateMemoryPool(pb2.UpdateMemoryPoolRequest(memory_pool=pb2.MemoryPool(size_bytes=200 << 20)))
    got = (await at.api.GetMemoryPool(pb2.GetMemoryPoolRequest())).memory_pool
    assert updated.memory_pool == got
    assert (got.size_bytes, got.usage_bytes) == (200 << 20, 10)
    assert [(share.processor_slot, share.size_bytes, share.usage_bytes) for share in got.shares] == [(0, 100 << 20, 5), (1, 100 << 20, 5)]
    assert (got.begun_bytes, got.pending_bytes, got.tls_bytes, got.tap_bytes, got.waiting_count) == (4, 4, 2, 14, 1)
    for slot, share in enumerate(got.shares):
        assert (share.begun_bytes, share.pending_bytes, share.tls_bytes, share.tap_bytes, share.waiting_count) == (2, 2, 1, 7, slot)
    assert (got.tap_limit_bytes, dict(got.guaranteed_percents)) == (0, {})
    assert at.plane.audits[0]["before"] == {"size_bytes": 256 * 1024 * 1024}


@served()
async def test_the_largest_holders_are_listed_if_they_are_requested(at: Serving) -> None:
    at.plane.holders = [holder("0-1-1", 5), holder("1-1-2", 9, kind="tls", side="upstream", muted=(), muted_ns=0), holder("0-1-3", 7)]
    assert not (await at.api.GetMemoryPool(pb2.GetMemoryPoolRequest())).holders
    first, second = (await at.api.GetMemoryPool(pb2.GetMemoryPoolRequest(holder_count=2))).holders
    assert (first.channel_id, first.held_bytes, first.kind, first.side) == ("1-1-2", 9, pb2.MemoryHolder.KIND_TLS, pb2.MemoryHolder.SIDE_UPSTREAM)
    assert (list(first.mute_causes), first.HasField("mute_time")) == ([], False)
    assert (second.channel_id, second.kind, second.side) == ("0-1-3", pb2.MemoryHolder.KIND_BEGUN, pb2.MemoryHolder.SIDE_DOWNSTREAM)
    assert (second.listener, second.peer_address, list(second.mute_causes)) == ("kafka", "10.0.0.9:51000", [MUTE_CAUSE_MEMORY])
    assert second.mute_time.ToNanoseconds() - second.last_active_time.ToNanoseconds() == 10**9
    for wrong in (-1, 101):
        assert await code_of(at.api.GetMemoryPool(pb2.GetMemoryPoolRequest(holder_count=wrong))) is grpc.StatusCode.INVALID_ARGUMENT
    at.plane.failure = UnavailableError("processor 1 did not answer", reason="PROCESSOR_SILENT")
    assert await code_of(at.api.GetMemoryPool(pb2.GetMemoryPoolRequest(holder_count=1))) is grpc.StatusCode.UNAVAILABLE
    assert (await at.api.GetMemoryPool(pb2.GetMemoryPoolRequest())).memory_pool.usage_bytes == 10


@served()
async def test_the_processors_are_got_and_their_number_changed(at: Serving) -> None:
    at.plane.pool = 300 << 20
    await at.api.UpdateProcessorPool(pb2.UpdateProcessorPoolRequest(processor_pool=pb2.ProcessorPool(processor_count=3)))
    pool = (await at.api.GetProcessorPool(pb2.GetProcessorPoolRequest())).processor_pool
    assert pool.processor_count == 3
    assert [(item.slot, item.pid, item.state) for item in pool.processors] == [(slot, 100 + slot, pb2.Processor.STATE_RUNNING) for slot in range(3)]
    assert pool.processors[0].heartbeat_age.ToMilliseconds() == 12
    assert not pool.processors[1].HasField("heartbeat_age")
