"""The API and the probes of a running framegate.

The API's sockets are served from the start, its gRPC server only from the first bytes of a caller on: grpc, the messages of the API and what handles
them take 20 MiB and a third of the processor time of a start, and most sidecars are never steered.
"""

import asyncio
import contextlib
import gc
import importlib
import logging
from typing import TYPE_CHECKING, Any

from framegate.control.errors import StartError
from framegate.control.service.peers import Peers
from framegate.control.service.sockets import Sockets
from framegate.control.steering.steering import Parts
from framegate.proxy.config.model import ProxyConfig

if TYPE_CHECKING:
    import grpc

    from framegate.control.service.api import Take
    from framegate.control.service.interceptor import CallObserver, Tracer
    from framegate.control.service.probes import Probes

_API = "framegate.control.service.api"
_log = logging.getLogger(__name__)


class Backend:
    """The API's gRPC server, started when it is needed. Event loop only. The arguments are those of ``framegate.control.service.api.api_server``."""

    def __init__(
        self, parts: Parts, config: ProxyConfig, sockets: Sockets, take: "Take", peers: Peers, observe: "CallObserver | None", tracer: "Tracer"
    ) -> None:
        self._arguments = parts, config.admin, sockets.folder, take, peers, observe, tracer
        self._stack = contextlib.AsyncExitStack()
        self._starting: asyncio.Task[tuple[grpc.aio.Server, str]] | None = None
        self._ended = False

    async def path(self) -> str:
        """The path of its socket, once it serves. Raises StartError: it could not be started, and the next call tries again; or framegate ends."""
        if self._starting is None:
            if self._ended:
                raise StartError("framegate ends", reason="ENDING")
            self._starting = asyncio.create_task(self._start())
        starting = self._starting
        try:
            return (await asyncio.shield(starting))[1]
        except Exception:
            if self._starting is starting:
                self._starting = None
            raise

    async def _start(self) -> tuple["grpc.aio.Server", str]:
        try:
            api: Any = await asyncio.to_thread(_load)
            server: tuple[grpc.aio.Server, str] = await self._stack.enter_async_context(api.api_server(*self._arguments))
        except Exception as error:
            _log.exception("the API cannot be started")
            raise error if isinstance(error, StartError) else StartError(str(error), reason="API_UNUSABLE") from error
        return server

    async def stop(self, grace_ms: int) -> None:
        """Accept no new calls, wait ``grace_ms`` for those in progress, and close."""
        self._ended = True
        if self._starting is not None:
            await asyncio.wait((self._starting,))
            if self._starting.exception() is None:
                await self._starting.result()[0].stop(grace_ms / 1000)
        await self._stack.aclose()


def _load() -> object:
    """Import the API, and let no later collection look at what stays for ever."""
    api = importlib.import_module(_API)
    gc.collect()
    gc.freeze()
    return api


class Service:
    """The running servers."""

    def __init__(self, address: str, sockets: Sockets, backend: Backend, probes: "Probes | None", undo: contextlib.AsyncExitStack) -> None:
        self.address = address  # ``unix:PATH`` of the role admin
        self.tcp_address = sockets.tcp_address  # ``host:port`` with the port bound, or None
        # health_address, health_http_address: ``host:port`` with the port bound, or None
        self.health_address = None if probes is None else probes.grpc_address
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
        backend = Backend(parts, config, sockets, subscription.take, peers, observe, tracer)
        stack.push_async_callback(backend.stop, 0)
        sockets.serve(backend.path, peers, parts.rotation, parts.ask)
        probes = None
        if config.health is not None:
            from framegate.control.service.probes import start_probes  # with grpc

            probes = await start_probes(parts.state, config.health, observe)
        return Service(config.admin.address, sockets, backend, probes, stack.pop_all())
