"""The API and the probes of a running framegate: their sockets from the start, gRPC from the first bytes of a caller on (``backend``)."""

import contextlib
from typing import TYPE_CHECKING

from framegate.control.service.backend import Backend
from framegate.control.service.peers import Peers
from framegate.control.service.probes import Probes
from framegate.control.service.sockets import Sockets
from framegate.control.steering.steering import Parts
from framegate.proxy.config.model import ProxyConfig

if TYPE_CHECKING:
    from framegate.control.service.interceptor import CallObserver, Tracer


class Service:
    """The running servers."""

    def __init__(self, address: str, sockets: Sockets, backend: Backend, probes: Probes | None, undo: contextlib.AsyncExitStack) -> None:
        self.address = address  # ``unix:PATH`` of the role admin
        self.tcp_address = sockets.tcp_address  # ``host:port`` with the port bound, or None
        # health_address, health_http_address: ``host:port`` with the port bound, or None
        self.health_address = None if probes is None else probes.address
        self.health_http_address = None if probes is None else probes.http_address
        self._sockets = sockets
        self._backend = backend
        self._probes = probes
        self._undo = undo

    async def stop(self, grace_ms: int = 500) -> None:
        """Accept no new calls, wait ``grace_ms`` for those in progress, and close; then stop the probes, remove the sockets and release the locks."""
        try:
            await self._sockets.stop_accepting()
            await self._backend.stop(grace_ms)
            if self._probes is not None:
                await self._probes.stop()
        finally:
            await self._undo.aclose()


async def start(parts: Parts, config: ProxyConfig, observe: "CallObserver | None" = None, tracer: "Tracer" = lambda: None) -> Service:
    """Serve the API on the sockets of ``config.admin`` and health on the addresses of ``config.health``.

    Args:
        config: only its addresses are read.
        observe: called for every call that ended; ``Telemetry.record_call``.
        tracer: returns what makes spans of the API's calls. Probes have none, because there are many and they are all alike.

    Raises StartError: another instance serves the socket, or an address cannot be bound.
    """
    subscription = parts.events.subscribe(("closed",))
    peers = Peers()
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(subscription.close)
        sockets = Sockets(config.admin)
        stack.push_async_callback(sockets.close)
        arguments = parts, config.admin, subscription.take, peers, observe, tracer
        backend = Backend("framegate.control.service.api", lambda api: api.api_server(*arguments), sockets.folder)
        stack.push_async_callback(backend.stop)
        sockets.serve(backend.path, peers, parts.rotation, parts.ask)
        probes = None
        if config.health is not None:
            probes = Probes(parts.state, config.health, sockets.folder, observe)
            stack.push_async_callback(probes.stop)
            await probes.start()
        return Service(config.admin.address, sockets, backend, probes, stack.pop_all())
