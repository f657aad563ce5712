"""PoolService."""

from typing import Any

import grpc

from framegate.control.bounds import MAX_HOLDERS
from framegate.control.service.convert import holder_message, memory_pool_message, origin_value, processor_message
from framegate.control.service.interceptor import note
from framegate.control.service.validate import Violations, changed_fields
from framegate.control.steering.channels import Channels
from framegate.control.steering.pool import Pool
from framegate.control.steering.state import State
from framegate.control.v1 import pool_service_pb2 as pb2
from framegate.control.v1.pool_service_pb2_grpc import PoolServiceServicer
from framegate.proxy.config.model import MAX_PROCESSORS, POOL_SIZE

__all__ = ["Pools"]

Context = grpc.aio.ServicerContext[Any, Any]


class Pools(PoolServiceServicer):
    """Shows and changes what the processors share."""

    def __init__(self, pool: Pool, state: State, channels: Channels) -> None:
        self._pool = pool
        self._state = state
        self._channels = channels

    async def GetMemoryPool(self, request: pb2.GetMemoryPoolRequest, context: Context) -> pb2.GetMemoryPoolResponse:
        """Size, usage and shares, and who holds most."""
        violations = Violations()
        if not 0 <= request.holder_count <= MAX_HOLDERS:
            violations.add("holder_count", f"must be 0 to {MAX_HOLDERS}, not {request.holder_count}")
        violations.check()
        holders = await self._channels.top_holders(request.holder_count) if request.holder_count else []
        pool = self._pool.status()
        return pb2.GetMemoryPoolResponse(memory_pool=memory_pool_message(pool), holders=map(holder_message, holders))

    async def UpdateMemoryPool(self, request: pb2.UpdateMemoryPoolRequest, context: Context) -> pb2.UpdateMemoryPoolResponse:
        """Change the size in every processor or in none."""
        violations = Violations()
        changed_fields(request.memory_pool, request.update_mask, {"size_bytes"}, "memory_pool", violations)
        size = request.memory_pool.size_bytes
        if request.memory_pool.HasField("size_bytes") and not POOL_SIZE.takes(size):
            violations.add("memory_pool.size_bytes", f"must be {POOL_SIZE.least} to {POOL_SIZE.most}, not {size}")
        violations.check()
        note(before={"size_bytes": self._pool.status().size})
        after = await self._pool.set_size(size)
        note(after={"size_bytes": after.size})
        return pb2.UpdateMemoryPoolResponse(memory_pool=memory_pool_message(after))

    async def GetProcessorPool(self, request: pb2.GetProcessorPoolRequest, context: Context) -> pb2.GetProcessorPoolResponse:
        """The processors."""
        return pb2.GetProcessorPoolResponse(processor_pool=await self._processors())

    async def UpdateProcessorPool(self, request: pb2.UpdateProcessorPoolRequest, context: Context) -> pb2.UpdateProcessorPoolResponse:
        """Change how many processors there are."""
        violations = Violations()
        changed_fields(request.processor_pool, request.update_mask, {"size"}, "processor_pool", violations)
        size = request.processor_pool.size
        if request.processor_pool.HasField("size") and not 1 <= size <= MAX_PROCESSORS:
            violations.add("processor_pool.size", f"must be 1 to {MAX_PROCESSORS}, not {size}")
        violations.check()
        note(before={"size": self._pool.status().processors})
        note(after={"size": (await self._pool.set_processors(size)).processors})
        return pb2.UpdateProcessorPoolResponse(processor_pool=await self._processors())

    async def _processors(self) -> pb2.ProcessorPool:
        processors = [processor_message(status) for status in self._state.processor_statuses()]
        pool = self._pool.status()
        return pb2.ProcessorPool(size=pool.processors, processors=processors, size_origin=origin_value(pool.processors_origin))
