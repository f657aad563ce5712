"""A gRPC server behind sockets of framegate's own, started when somebody needs it.

grpc, the messages and what handles them take up to 20 MiB and a third of the processor time of a start, and most sidecars are never steered.
"""

import asyncio
import contextlib
import gc
import importlib
import logging
import os
import pathlib
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from framegate.control.accept.resolver import in_thread

if TYPE_CHECKING:
    import grpc

_log = logging.getLogger(__name__)


class Backend:
    """Event loop only.

    Args:
        module: imports grpc; it is imported when the server is needed, in a thread.
        make: makes the server, given that module.
        folder: the server's socket is bound in it, for a moment.
    """

    def __init__(self, module: str, make: Callable[[Any], "grpc.aio.Server"], folder: pathlib.Path) -> None:
        self._module = module
        self._make = make
        self._folder = folder
        self._stack = contextlib.AsyncExitStack()
        self._server: grpc.aio.Server | None = None
        self._starting: asyncio.Task[str] | None = None
        self._ended = False

    async def path(self) -> str:
        """The path of the server's socket, once it serves. Raises ConnectionError: it could not be started, and the next call tries again; or it has
        ended.
        """
        if self._starting is None:
            if self._ended:
                raise ConnectionAbortedError("framegate ends")
            self._starting = asyncio.create_task(self._start())
        return await asyncio.shield(self._starting)

    async def _start(self) -> str:
        try:
            server = self._make(await in_thread(lambda: load(self._module)))
            path = await self._stack.enter_async_context(_serving(server, self._folder))
            self._server = server
            return path
        except Exception as error:
            self._starting = None
            _log.exception("a gRPC server cannot be started")
            raise ConnectionAbortedError(f"gRPC cannot be started: {error}") from error

    async def stop(self, grace_ms: int = 0) -> None:
        """Accept no new calls, wait ``grace_ms`` for those in progress, and close."""
        self._ended = True
        if self._starting is not None:
            await asyncio.wait((self._starting,))
        if self._server is not None:
            await self._server.stop(grace_ms / 1000)
        await self._stack.aclose()


def load(name: str) -> Any:
    """Import a module, and let no later collection look at what stays for ever."""
    module = importlib.import_module(name)
    gc.collect()
    gc.freeze()
    return module


@contextlib.asynccontextmanager
async def _serving(server: "grpc.aio.Server", folder: pathlib.Path) -> AsyncIterator[str]:
    """Serve on a socket whose file is removed at once, so that only this process can connect to it; the path by which it can, whatever the length of
    the folder's. Raises OSError, RuntimeError: the socket cannot be bound.
    """
    with contextlib.ExitStack() as stack:
        directory = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        stack.callback(os.close, directory)
        path = f"/proc/self/fd/{directory}/.grpc-{os.urandom(8).hex()}"
        before = os.umask(0o177)
        try:
            server.add_insecure_port(f"unix:{path}")
        finally:
            os.umask(before)
        bound = os.open(path, os.O_PATH | os.O_CLOEXEC)
        os.unlink(path)
    try:
        await server.start()
        yield f"/proc/self/fd/{bound}"
    finally:
        os.close(bound)
