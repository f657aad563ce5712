"""A handler process's side of a socket to one processor, in the test's own loop; and the processor's, which sees records."""

import asyncio
import functools
import socket
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from framegate.proxy.handler.activity import Activity
from framegate.proxy.handler.connection import Failures
from framegate.proxy.handler.load import LoadedHandler
from framegate.proxy.handler.processor import Processor
from framegate.proxy.handler.reply_buffer import ReplyBuffer
from framegate.proxy.relay import handler_wire as wire
from framegate.proxy.relay.handler_wire import RecordReader
from tests.fakes.handler_process import HELD, Reply, reply_of, whole_records


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that is ``async def``, in a loop of its own, within seconds."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*arguments, **named), 30))

    return run


class Handled:
    """One processor of one runtime. ``now`` may be set before anything is sent."""

    def __init__(self, handlers: Mapping[str, Any], now: Callable[[], int] = time.monotonic_ns, answers: ReplyBuffer | None = None) -> None:
        self.ours, theirs = socket.socketpair()
        self.ours.setblocking(False)
        self.activity = Activity()
        self.answers = answers or ReplyBuffer(asyncio.get_running_loop())
        self.rows: list[Any] = []
        self.errors: list[Exception] = []
        self.ends = 0
        loaded = {listener: LoadedHandler(f"m:{listener}", target) for listener, target in handlers.items()}
        loop = asyncio.get_running_loop()
        failures = Failures(self.activity, now, self.rows.append)
        self.processor = Processor(
            theirs,
            "0.1",
            loaded,
            loop,
            now,
            self.activity,
            failures,
            self.answers,
            lambda _, error: self.errors.append(error),
            lambda _: self._count(),
        )
        self._reader = RecordReader()
        self._found: list[bytes] = []
        self.processor.begin(wire.encode_hello(wire.Hello(wire=wire.WIRE, slot=0, handlers={})))

    def _count(self) -> None:
        self.ends += 1

    async def __aenter__(self) -> "Handled":
        assert (await self.record())[4] == wire.HELLO
        return self

    async def __aexit__(self, *_: object) -> None:
        self.processor.end()
        self.ours.close()
        tasks = self.processor.tasks.under_way
        if tasks:
            await asyncio.wait(tasks, timeout=5)
        assert self.processor.connections == 0

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.ours, data)

    async def raw_reply(self) -> tuple[int, int, int, int]:
        """The next record, a reply: its action, connection, sequence and the bytes of its body."""
        data = await self.record()
        action, _, _, connection, sequence, _, _, body = wire.read_reply(data, 0, len(data))
        return action, connection, sequence, len(data) - body

    async def record(self) -> bytes:
        while not self._found:
            data = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(self.ours, 65536), 20)
            if not data:
                raise EOFError
            self._found += whole_records(self._reader, data)
        return self._found.pop(0)

    async def reply(self) -> Reply:
        """The next one; one that waits is asked for."""
        found = reply_of(await self.record())
        if found.action == HELD:
            await self.send(wire.encode_send(found.connection, wire.DIRECTIONS.index(found.direction)))
            return await self.reply()
        return found

    async def ended(self) -> bool:
        """Whether the socket was closed; records before that are passed over."""
        try:
            while True:
                await self.record()
        except (EOFError, ConnectionError):
            return True

    async def replies(self, count: int) -> list[Reply]:
        return [await self.reply() for _ in range(count)]
