"""Control's end of the command socket of one child process, on the event loop.

Neither end blocks: bytes that the socket does not take wait in ``LinkWriter`` until it is writable. Requests carry an id and are answered in any
order; every other message is a notice. When the socket ends, every open request fails with UnavailableError.
"""

import asyncio
import itertools
import socket
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from framegate.control.errors import UnavailableError
from framegate.proxy.server.link import LinkError, LinkReader, LinkWriter
from framegate.proxy.server.messages import ErrorReply
from framegate.proxy.server.protocol import Message, Request

R = TypeVar("R")
_READ_BYTES: Final = 64 * 1024  # a larger buffer is mapped and unmapped with each read


class _Asked(NamedTuple):
    """A request without an answer."""

    request: Request[Any]
    answer: asyncio.Future[Any]


class Link:
    """One command socket.

    Args:
        sock: this end of the pair; becomes non-blocking and is closed by ``close``.
        on_notice: called with every message that answers no request.
        on_end: called once with the reason when the other side ended or broke the link.
    """

    def __init__(self, sock: socket.socket, on_notice: Callable[[Message], None], on_end: Callable[[str], None]) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._reader = LinkReader()
        self._writer = LinkWriter(sock)
        self._on_notice = on_notice
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._ids = itertools.count(1)
        self._waiting: dict[int, _Asked] = {}
        self._writing = False
        self.open = True
        self._loop.add_reader(sock.fileno(), self._readable)

    def post(self, message: Mapping[str, object]) -> None:
        """Send without waiting for an answer. Does nothing on a link that has ended."""
        if not self.open:
            return
        try:
            drained = self._writer.send(message)
        except OSError as error:
            self._end(f"cannot be written: {error}")
            return
        if not drained and not self._writing:
            self._writing = True
            self._loop.add_writer(self._socket.fileno(), self._writable)

    def next_id(self) -> int:
        """A number for a request that is made in two steps."""
        return next(self._ids)

    def ask(self, request: Request[R], identifier: int | None = None) -> asyncio.Future[R | ErrorReply]:
        """Send a request. Cancel the future if the answer is not needed any more. ``identifier``: of ``next_id``; none: the next one. Returns:
        Becomes the answer, or an error reply if it cannot be read; UnavailableError with the reason PROCESSOR_GONE if the link ends.
        """
        future: asyncio.Future[R | ErrorReply] = self._loop.create_future()
        if identifier is None:
            identifier = next(self._ids)
        self._waiting[identifier] = _Asked(request, future)
        future.add_done_callback(lambda _: self._forget(identifier, future))
        self.post({**request.message, "id": identifier})
        if not self.open and not future.done():
            future.set_exception(UnavailableError("the processor is gone", reason="PROCESSOR_GONE"))
        return future

    def _forget(self, identifier: int, future: asyncio.Future[Any]) -> None:
        asked = self._waiting.get(identifier)
        if asked is not None and asked.answer is future:
            del self._waiting[identifier]

    async def request(self, request: Request[R], timeout_ms: int) -> R | ErrorReply:
        """Send and wait for the answer. Raises UnavailableError: the link has ended (PROCESSOR_GONE), or there was no answer (PROCESSOR_SILENT)."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await self.ask(request)
        except TimeoutError as error:
            raise UnavailableError(f"the processor did not answer within {timeout_ms} ms", reason="PROCESSOR_SILENT") from error

    def close(self) -> None:
        """End the link from this side, without calling ``on_end``. The process takes that as the end of control."""
        if self.open:
            self._shut("control closed the link")

    def _readable(self) -> None:
        try:
            data = self._socket.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(f"cannot be read: {error}")
            return
        if not data:
            self._end("was closed by the processor")
            return
        try:
            messages = self._reader.feed(data)
        except LinkError as error:
            self._end(f"is out of step: {error}")
            return
        for message in messages:
            self._dispatch(message)

    def _dispatch(self, message: Message) -> None:
        identifier = message.get("id")
        if identifier is None:
            self._on_notice(message)
            return
        asked = self._waiting.pop(identifier, None)
        if asked is not None and not asked.answer.done():
            asked.answer.set_result(asked.request.read(message))

    def _writable(self) -> None:
        try:
            drained = self._writer.flush()
        except OSError as error:
            self._end(f"cannot be written: {error}")
            return
        if drained:
            self._writing = False
            self._loop.remove_writer(self._socket.fileno())

    def _end(self, reason: str) -> None:
        if self.open:
            self._shut(reason)
            self._on_end(reason)

    def _shut(self, reason: str) -> None:
        self.open = False
        self._loop.remove_reader(self._socket.fileno())
        if self._writing:
            self._loop.remove_writer(self._socket.fileno())
        self._socket.close()
        for asked in self._waiting.values():
            if not asked.answer.done():
                asked.answer.set_exception(UnavailableError(f"the processor's link {reason}", reason="PROCESSOR_GONE"))
        self._waiting.clear()
