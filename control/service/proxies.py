"""ProxyService."""

import asyncio
import os
import time
from typing import Final

from framegate.control.configuration.capacity import memory_need, memory_warning
from framegate.control.configuration.cgroup import memory_limit, memory_usage, process_memory
from framegate.control.configuration.units import format_size
from framegate.control.service.configuration import status_message
from framegate.control.service.convert import timestamp
from framegate.control.service.interceptor import Context, note, peer
from framegate.control.service.validate import Violations, reason
from framegate.control.status import CertificateStatus
from framegate.control.steering.state import State
from framegate.control.steering.steering import Parts
from framegate.control.v1 import proxy_service_pb2 as pb2
from framegate.control.v1.proxy_service_pb2_grpc import ProxyServiceServicer
from framegate.proxy.config.key import keys
from framegate.proxy.config.model import DrainAccept, DrainConfig

_DIFFERENCES: Final = 20
_TIMEOUT: Final = keys(DrainConfig)["timeout_ms"]
_ACCEPTS: Final[dict[int, DrainAccept]] = {pb2.DrainProxyRequest.ACCEPT_REFUSE: "refuse", pb2.DrainProxyRequest.ACCEPT_UNTIL_STOP: "until_stop"}
_MEASURED_S: Final = 1.0
_OWN: Final = "certificate"
_REVISION: Final = ("framegate.config.revision", ())


def config_revision(state: State) -> int:
    """1 for the configuration file, plus 1 for each change since."""
    return int(state.measurements().get(_REVISION, 1))


class Proxies(ProxyServiceServicer):
    """Shows and drains the proxy."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._measured: asyncio.Future[int] | None = None
        self._measured_s = 0.0

    async def GetProxy(self, request: pb2.GetProxyRequest, context: Context) -> pb2.GetProxyResponse:
        open_count, problems = self._open_count(), await self._parts.watch.found()
        proxy = pb2.Proxy(
            node=self._parts.state.config.node,
            version=self._parts.state.build.version,
            compiled=self._parts.state.build.compiled,
            state=self._state(open_count),
            start_time=timestamp(self._parts.state.started_ns),
            pid=os.getpid(),
            open_connection_count=open_count,
            config_revision=config_revision(self._parts.state),
            memory=await self._memory(),
            configuration=status_message(self._parts.configuration_file, _DIFFERENCES),
            warnings=filter(None, [*map(str, problems), self._memory_warning(), self._parts.audit.warning, *self._parts.taps.troubles()]),
        )
        self._report_certificates(proxy, self._parts.certificates.statuses(self._parts.rotation))
        return pb2.GetProxyResponse(proxy=proxy)

    def _report_certificates(self, proxy: pb2.Proxy, certificates: list[CertificateStatus]) -> None:
        """Fill in which of our certificates expires first, and what was refused."""
        ours = [item for item in certificates if item.use == _OWN and item.position == 0]
        if ours:
            first = min(ours, key=lambda item: item.ends)
            proxy.certificate_end_time.CopyFrom(timestamp(int(first.ends) * 10**9))
            proxy.certificate_owner = first.owner
        for owner, error in {item.owner: item.error for item in certificates if item.error}.items():
            proxy.warnings.append(f"what lies in the files of {owner} is not in force: {error}")

    async def _memory(self) -> pb2.Memory:
        config = self._parts.state.config
        need = memory_need(config, config.processors)
        limit = memory_limit()
        return pb2.Memory(
            need_bytes=need.total,
            parts=[pb2.MemoryPart(name=name, need_bytes=size) for name, size in need.parts],
            uncounted_listeners=need.uncounted,
            limit_bytes=limit,
            usage_bytes=None if limit is None else memory_usage(),
            process_bytes=await self._process_bytes(),
        )

    async def _process_bytes(self) -> int:
        """Measured at most once in ``_MEASURED_S``, for all calls: the kernel walks through the memory of each process, which may wait for it."""
        if self._measured is None or (self._measured.done() and time.monotonic() - self._measured_s >= _MEASURED_S):
            self._measured_s = time.monotonic()
            self._measured = asyncio.ensure_future(asyncio.to_thread(process_memory, os.getpid()))
        return await asyncio.shield(self._measured)

    def _memory_warning(self) -> str:
        config = self._parts.state.config
        warning = memory_warning(config, config.processors, memory_limit())
        return "" if warning is None else f"the memory pool of {format_size(config.memory_pool.size)} {warning}"

    async def DrainProxy(self, request: pb2.DrainProxyRequest, context: Context) -> pb2.DrainProxyResponse:
        violations = Violations()
        timeout_ms = request.timeout.ToMilliseconds() if request.HasField("timeout") else None
        if timeout_ms is not None and not _TIMEOUT.takes(timeout_ms):
            violations.add("timeout", "must be 0 s to 1 h")
        reason(request.reason, violations)
        accept = _ACCEPTS.get(request.accept)
        if accept is None and request.accept != pb2.DrainProxyRequest.ACCEPT_UNSPECIFIED:
            violations.add("accept", f"there is no value {request.accept}")
        violations.check()
        note(before={"open_connection_count": self._open_count()})
        result = await self._parts.drain.run(timeout_ms, wait=request.wait, accept=accept, by=peer().fields["who"], reason=request.reason)
        note(after={"open_connection_count": result.open})
        return pb2.DrainProxyResponse(closed_connection_count=result.closed, open_connection_count=result.open)

    def _open_count(self) -> int:
        return sum(status.connections for status in self._parts.listeners.statuses())

    def _state(self, open_count: int) -> pb2.Proxy.State.ValueType:
        if not self._parts.state.health().started:
            return pb2.Proxy.STATE_STARTING
        accepting = any(status.accepting for status in self._parts.listeners.statuses())
        if accepting and not self._parts.state.health().draining:
            return pb2.Proxy.STATE_SERVING
        return pb2.Proxy.STATE_DRAINING if open_count or accepting else pb2.Proxy.STATE_DRAINED
