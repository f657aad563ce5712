"""PoolService."""

from framegate.control.bounds import MAX_HOLDERS
from framegate.control.service.convert import duration, timestamp
from framegate.control.service.interceptor import Context, note
from framegate.control.service.validate import Violations, changed_fields
from framegate.control.status import Holder, Origin, PoolStatus, ProcessorStatus
from framegate.control.steering.channels import Channels
from framegate.control.steering.pool import Pool
from framegate.control.steering.state import State
from framegate.control.v1 import pool_service_pb2 as pb2
from framegate.control.v1.pool_service_pb2_grpc import PoolServiceServicer
from framegate.proxy.config.model import MAX_PROCESSORS, POOL_SIZE
from framegate.proxy.network.connection_id import format_connection_id

__all__ = ["Pools"]


class Pools(PoolServiceServicer):
    """Shows and changes the memory pool and the number of processors."""

    def __init__(self, pool: Pool, state: State, channels: Channels) -> None:
        self._pool = pool
        self._state = state
        self._channels = channels

    async def GetMemoryPool(self, request: pb2.GetMemoryPoolRequest, context: Context) -> pb2.GetMemoryPoolResponse:
        """Size, usage and shares, and the largest holders."""
        violations = Violations()
        if not 0 <= request.holder_count <= MAX_HOLDERS:
            violations.add("holder_count", f"must be 0 to {MAX_HOLDERS}, not {request.holder_count}")
        violations.check()
        holders = await self._channels.top_holders(request.holder_count) if request.holder_count else []
        return pb2.GetMemoryPoolResponse(memory_pool=_memory_pool(self._pool.status()), holders=map(_holder, holders))

    async def UpdateMemoryPool(self, request: pb2.UpdateMemoryPoolRequest, context: Context) -> pb2.UpdateMemoryPoolResponse:
        """Change the size in every processor or in none."""
        violations = Violations()
        changed_fields(request.memory_pool, request.update_mask, ("size_bytes",), "memory_pool", violations)
        size = request.memory_pool.size_bytes
        if request.memory_pool.HasField("size_bytes") and not POOL_SIZE.takes(size):
            violations.add("memory_pool.size_bytes", f"must be {POOL_SIZE.least} to {POOL_SIZE.most}, not {size}")
        violations.check()
        note(before={"size_bytes": self._pool.status().size})
        after = await self._pool.set_size(size)
        note(after={"size_bytes": after.size})
        return pb2.UpdateMemoryPoolResponse(memory_pool=_memory_pool(after))

    async def GetProcessorPool(self, request: pb2.GetProcessorPoolRequest, context: Context) -> pb2.GetProcessorPoolResponse:
        return pb2.GetProcessorPoolResponse(processor_pool=self._processors())

    async def UpdateProcessorPool(self, request: pb2.UpdateProcessorPoolRequest, context: Context) -> pb2.UpdateProcessorPoolResponse:
        violations = Violations()
        changed_fields(request.processor_pool, request.update_mask, ("size",), "processor_pool", violations)
        size = request.processor_pool.size
        if request.processor_pool.HasField("size") and not 1 <= size <= MAX_PROCESSORS:
            violations.add("processor_pool.size", f"must be 1 to {MAX_PROCESSORS}, not {size}")
        violations.check()
        note(before={"size": self._pool.status().processors})
        note(after={"size": (await self._pool.set_processors(size)).processors})
        return pb2.UpdateProcessorPoolResponse(processor_pool=self._processors())

    def _processors(self) -> pb2.ProcessorPool:
        pool = self._pool.status()
        processors = map(_processor, self._state.processor_statuses())
        return pb2.ProcessorPool(size=pool.processors, processors=processors, size_origin=_origin(pool.processors_origin))


def _memory_pool(status: PoolStatus) -> pb2.MemoryPool:
    return pb2.MemoryPool(
        kind=pb2.MemoryPool.Kind.Value(f"KIND_{status.kind.upper()}"),
        size_bytes=status.size,
        usage_bytes=status.usage,
        shares=[
            pb2.MemoryShare(
                processor_slot=item.slot,
                size_bytes=item.share,
                usage_bytes=item.usage,
                begun_bytes=item.begun,
                pending_bytes=item.pending,
                tls_bytes=item.tls,
                tap_bytes=item.tap,
                waiting_count=item.waiting,
            )
            for item in status.shares
        ],
        begun_bytes=sum(item.begun for item in status.shares),
        pending_bytes=sum(item.pending for item in status.shares),
        tls_bytes=sum(item.tls for item in status.shares),
        tap_bytes=sum(item.tap for item in status.shares),
        tap_limit_bytes=status.tap_limit,
        waiting_count=sum(item.waiting for item in status.shares),
        guaranteed_percents=status.guaranteed,
        size_origin=_origin(status.size_origin),
    )


def _origin(origin: Origin) -> pb2.Origin.ValueType:
    return pb2.Origin.Value(f"ORIGIN_{origin.upper()}")


def _holder(holder: Holder) -> pb2.MemoryHolder:
    return pb2.MemoryHolder(
        channel_id=format_connection_id(holder.channel),
        listener=holder.listener,
        side=pb2.MemoryHolder.Side.Value(f"SIDE_{holder.side.upper()}"),
        peer_address=holder.peer,
        kind=pb2.MemoryHolder.Kind.Value(f"KIND_{holder.kind.upper()}"),
        held_bytes=holder.bytes,
        mute_causes=holder.muted,
        mute_time=timestamp(holder.muted_ns) if holder.muted_ns else None,
        last_active_time=timestamp(holder.last_active_ns),
    )


def _processor(status: ProcessorStatus) -> pb2.Processor:
    return pb2.Processor(
        slot=status.slot,
        pid=status.pid,
        generation=status.generation,
        state=pb2.Processor.State.Value(f"STATE_{status.state.upper()}"),
        restart_count=status.restarts,
        heartbeat_age=None if status.heartbeat_age_ms < 0 else duration(status.heartbeat_age_ms * 10**6),
    )
