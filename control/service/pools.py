"""PoolService."""

from typing import Final

from framegate.control.bounds import MAX_HOLDERS
from framegate.control.service.convert import duration
from framegate.control.service.interceptor import Context
from framegate.control.service.update import Resource, fill, update
from framegate.control.service.validate import Violations
from framegate.control.status import Holder, Origin, PoolStatus, ProcessorStatus
from framegate.control.steering.channels import Channels
from framegate.control.steering.pool import Pool
from framegate.control.steering.state import State
from framegate.control.steering.transactions import etag_of
from framegate.control.v1 import pool_service_pb2 as pb2
from framegate.control.v1.pool_service_pb2_grpc import PoolServiceServicer
from framegate.proxy.network.connection_id import format_connection_id

MEMORY: Final = Resource(pb2.MemoryPool, PoolStatus, "memory_pool", fixed=("kind", "shares", "size_origin"))
_USES: Final = {"begun_bytes": "begun", "pending_bytes": "pending", "tls_bytes": "tls", "tap_bytes": "tap", "waiting_count": "waiting"}
PROCESSORS: Final = Resource(pb2.ProcessorPool, PoolStatus, "processor_pool", fixed=("processors", "size_origin"))


class Pools(PoolServiceServicer):
    """Shows and changes the memory pool and the number of processors."""

    def __init__(self, pool: Pool, state: State, channels: Channels) -> None:
        self._pool = pool
        self._state = state
        self._channels = channels

    async def GetMemoryPool(self, request: pb2.GetMemoryPoolRequest, context: Context) -> pb2.GetMemoryPoolResponse:
        violations = Violations()
        if not 0 <= request.holder_count <= MAX_HOLDERS:
            violations.add("holder_count", f"must be 0 to {MAX_HOLDERS}, not {request.holder_count}")
        violations.check()
        holders = await self._channels.top_holders(request.holder_count) if request.holder_count else []
        return pb2.GetMemoryPoolResponse(memory_pool=_memory_pool(self._pool.status()), holders=map(_holder, holders))

    async def UpdateMemoryPool(self, request: pb2.UpdateMemoryPoolRequest, context: Context) -> pb2.UpdateMemoryPoolResponse:
        after = await update(request, MEMORY, lambda changes, **how: self._pool.set_size(changes["size"], **how))
        return pb2.UpdateMemoryPoolResponse(memory_pool=_memory_pool(after))

    async def GetProcessorPool(self, request: pb2.GetProcessorPoolRequest, context: Context) -> pb2.GetProcessorPoolResponse:
        return pb2.GetProcessorPoolResponse(processor_pool=self._processors(self._pool.status()))

    async def UpdateProcessorPool(self, request: pb2.UpdateProcessorPoolRequest, context: Context) -> pb2.UpdateProcessorPoolResponse:
        after = await update(request, PROCESSORS, lambda changes, **how: self._pool.set_processors(changes["processors"], **how))
        return pb2.UpdateProcessorPoolResponse(processor_pool=self._processors(after))

    def _processors(self, pool: PoolStatus) -> pb2.ProcessorPool:
        return pb2.ProcessorPool(
            processor_count=pool.processors,
            processors=map(_processor, self._state.processor_statuses()),
            size_origin=_origin(pool.processors_origin),
            etag=etag_of(pool.processors),
        )


def _memory_pool(status: PoolStatus) -> pb2.MemoryPool:
    return pb2.MemoryPool(
        kind=pb2.MemoryPool.Kind.Value(f"KIND_{status.kind.upper()}"),
        size_bytes=status.size,
        usage_bytes=status.usage,
        shares=[fill(pb2.MemoryShare(usage_bytes=item.usage), item, processor_slot="slot", size_bytes="share", **_USES) for item in status.shares],
        tap_limit_bytes=status.tap_limit,
        **{name: sum(getattr(item, own) for item in status.shares) for name, own in _USES.items()},
        guaranteed_percents=status.guaranteed,
        size_origin=_origin(status.size_origin),
        etag=etag_of(status.size),
    )


def _origin(origin: Origin) -> pb2.Origin.ValueType:
    return pb2.Origin.Value(f"ORIGIN_{origin.upper()}")


def _holder(holder: Holder) -> pb2.MemoryHolder:
    names = {"peer_address": "peer", "held_bytes": "bytes", "mute_causes": "muted", "mute_time": "muted_ns", "last_active_time": "last_active_ns"}
    return fill(pb2.MemoryHolder(channel_id=format_connection_id(holder.channel)), holder, **names)


def _processor(status: ProcessorStatus) -> pb2.Processor:
    age = None if status.heartbeat_age_ms < 0 else duration(status.heartbeat_age_ms * 10**6)
    return fill(pb2.Processor(heartbeat_age=age), status, restart_count="restarts")
