"""Brokers of a cluster that say what a test wants: ApiVersions and Metadata over plain asyncio servers."""

import asyncio
import socket
import ssl
import struct
from collections.abc import Iterable, Sequence
from typing import Any, Self

from framegate.control.accept.broker_list import Broker

METADATA, API_VERSIONS = 3, 18
KNOWN = ((METADATA, 0, 12), (API_VERSIONS, 0, 4))


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text.encode())) + text.encode()


def metadata_answer(brokers: Iterable[Broker], version: int = 8) -> bytes:
    """The body of an answer without its correlation id, with no topic."""
    rows = [struct.pack(">i", item.node) + _string(item.host) + struct.pack(">i", item.port) + _string(item.rack) for item in brokers]
    cluster = _string("cluster") if version >= 2 else b""
    rights = struct.pack(">i", -(2**31)) if version >= 8 else b""
    return (bytes(4) if version >= 3 else b"") + struct.pack(">i", len(rows)) + b"".join(rows) + cluster + struct.pack(">ii", -1, 0) + rights


def versions_answer(ranges: Sequence[tuple[int, int, int]] = KNOWN, error: int = 0) -> bytes:
    """Of version 0, likewise."""
    return struct.pack(">hi", error, len(ranges)) + b"".join(struct.pack(">hhh", *item) for item in ranges)


class FakeBroker:
    def __init__(self, brokers: Sequence[Broker] | str = (), context: ssl.SSLContext | None = None) -> None:
        # of Metadata; a text stands for another behaviour: ``silent``, ``closes`` when Metadata is asked, ``cut`` in the middle of the answer,
        # ``garbage``, ``large``
        self.brokers = brokers
        self.ranges: Sequence[tuple[int, int, int]] = KNOWN  # of ApiVersions
        self.asked = 0  # how often Metadata was asked for
        self.open = 0  # connections that are open now
        self._context = context
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Refuse, and end open connections."""
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def wire(self) -> list[Any]:
        """Its address as the link has it."""
        return ["127.0.0.1", int(socket.AF_INET), "127.0.0.1", self.port]

    def named(self, node: int, rack: str = "") -> Broker:
        """As Metadata would name it."""
        return Broker(node, "127.0.0.1", self.port, rack)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.open += 1
        try:
            while True:
                body = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
                answer = self._answer(*struct.unpack_from(">hh", body))
                if answer is None:
                    return
                if not answer:
                    await reader.read()  # until the client ends
                    return
                answer = body[4:8] + answer
                size = len(answer)
                writer.write(size.to_bytes(4, "big") + (answer[: size // 2] if self.brokers == "cut" else answer))
                await writer.drain()
                if self.brokers == "cut":
                    return
        except (OSError, EOFError, asyncio.CancelledError):
            return
        finally:
            self.open -= 1
            writer.transport.abort()

    def _answer(self, key: int, version: int) -> bytes | None:
        if self.brokers == "silent":
            return b""
        if key == API_VERSIONS:
            return versions_answer(self.ranges)
        self.asked += 1
        if isinstance(self.brokers, str):
            return {"closes": None, "garbage": b"\xff" * 64, "large": bytes(17 << 20), "cut": bytes(100)}[self.brokers]
        return metadata_answer(self.brokers, version)
