"""The command socket of one processor, from control's side, on the event loop.

Neither end ever blocks: what the socket refuses waits in the codec's writer until the loop sees it writable. Requests carry an id and are
answered in any order; everything else that arrives is a notice. When the socket ends, every open request fails with UnavailableError.
"""

import asyncio
import itertools
import socket
from collections.abc import Callable
from typing import Any, Final

from control.errors import UnavailableError
from proxy.server.link import LinkError, LinkReader, LinkWriter

__all__ = ["Link"]

Message = dict[str, Any]
_READ_BYTES: Final = 64 * 1024  # more is mapped anew and given back with each read


class Link:
    """One command socket.

    Args:
        sock: this end of the pair; becomes non-blocking and is closed by ``close``.
        on_notice: is called with every message that answers no request.
        on_end: is called once with the reason when the other side ended or broke the link.
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
        self._waiting: dict[int, asyncio.Future[Message]] = {}
        self._writing = False
        self._open = True
        self._loop.add_reader(sock.fileno(), self._readable)

    @property
    def open(self) -> bool:
        """Whether messages can still be sent."""
        return self._open

    def post(self, message: Message) -> None:
        """Send without waiting for an answer. Nothing happens on an ended link."""
        if not self._open:
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

    def ask(self, message: Message, identifier: int | None = None) -> asyncio.Future[Message]:
        """Send now; the answer comes when it comes. Who no longer wants it cancels the future.

        Args:
            message: without an id.
            identifier: of ``next_id``; none: the next one.

        Returns:
            The answer, or UnavailableError with the reason PROCESSOR_GONE when the link is, or comes, to its end.
        """
        future: asyncio.Future[Message] = self._loop.create_future()
        if identifier is None:
            identifier = next(self._ids)
        self._waiting[identifier] = future
        future.add_done_callback(lambda _: self._forget(identifier, future))
        self.post({**message, "id": identifier})
        if not self._open and not future.done():
            future.set_exception(UnavailableError("the processor is gone", reason="PROCESSOR_GONE"))
        return future

    def _forget(self, identifier: int, future: asyncio.Future[Message]) -> None:
        if self._waiting.get(identifier) is future:
            del self._waiting[identifier]

    async def request(self, message: Message, timeout_ms: int) -> Message:
        """Send and wait for the answer.

        Args:
            message: without an id.
            timeout_ms: for the answer.

        Raises:
            UnavailableError: the link is at its end, or no answer came in time (``reason`` PROCESSOR_GONE or PROCESSOR_SILENT).
        """
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await self.ask(message)
        except TimeoutError as error:
            raise UnavailableError(f"the processor did not answer within {timeout_ms} ms", reason="PROCESSOR_SILENT") from error

    def close(self) -> None:
        """End the link from this side; the processor takes that as control's end. ``on_end`` is not called."""
        if self._open:
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
        future = self._waiting.pop(identifier, None)
        if future is not None and not future.done():
            future.set_result(message)

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
        if self._open:
            self._shut(reason)
            self._on_end(reason)

    def _shut(self, reason: str) -> None:
        self._open = False
        self._loop.remove_reader(self._socket.fileno())
        if self._writing:
            self._loop.remove_writer(self._socket.fileno())
        self._socket.close()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(UnavailableError(f"the processor's link {reason}", reason="PROCESSOR_GONE"))
        self._waiting.clear()
