"""The servers behind one node of ``make dashboards``, in a process of their own, which a trouble can stop: ``python backend.py BROKERS``.

It prints a row ``serving`` with its ports. The first one echoes frames. The others answer Kafka's requests with their correlation id and as many
zeros as a broker's answer has bytes. Lines on standard input change that, each a JSON object: ``closed``, the ports that are closed from now on;
``slow``, seconds by the key of an API.
"""

import asyncio
import contextlib
import json
import sys
from typing import Any, Final

_ANSWERS: Final = {0: 40, 1: 20_000, 3: 600, 8: 60, 18: 400}  # bytes by the key of the API: Produce, Fetch, Metadata, OffsetCommit, ApiVersions


class Backend:
    """An echo, and so many brokers."""

    def __init__(self, brokers: int) -> None:
        self._ports = [0] * (1 + brokers)
        self._slow: dict[str, float] = {}
        self._open: dict[int, asyncio.Server] = {}
        self._writers: dict[asyncio.StreamWriter, int] = {}

    async def run(self) -> None:
        """Serve until standard input ends."""
        for number in range(len(self._ports)):
            self._ports[number] = await self._listen(0)
        lines = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        print(json.dumps({"event": "serving", "ports": self._ports}), flush=True)
        while line := await lines.readline():
            await self._change(json.loads(line))

    async def _change(self, wanted: dict[str, Any]) -> None:
        self._slow = wanted.get("slow", {})
        for port in self._ports:
            if port in wanted.get("closed", ()):
                if port in self._open:
                    self._open.pop(port).close()
                for writer in [writer for writer, at in self._writers.items() if at == port]:
                    writer.transport.abort()
            elif port not in self._open:
                await self._listen(port)

    async def _listen(self, port: int) -> int:
        """Returns the port; a connection of others may have it for a while."""
        while True:
            with contextlib.suppress(OSError):
                server = await asyncio.start_server(self._serve, "127.0.0.1", port, backlog=512, limit=1 << 24)
                port = int(server.sockets[0].getsockname()[1])
                self._open[port] = server
                return port
            await asyncio.sleep(0.2)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers[writer] = port = writer.get_extra_info("sockname")[1]
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                size = await reader.readexactly(4)
                body = await reader.readexactly(int.from_bytes(size, "big"))
                if port != self._ports[0]:
                    key = int.from_bytes(body[:2], "big")
                    await asyncio.sleep(self._slow.get(str(key), 0.0))
                    body = body[4:8] + bytes(_ANSWERS.get(key, 20))
                writer.write(len(body).to_bytes(4, "big") + body)
                await writer.drain()
        del self._writers[writer]
        writer.close()


if __name__ == "__main__":
    asyncio.run(Backend(int(sys.argv[1])).run())
