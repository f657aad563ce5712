"""Echo servers as people write them with asyncio, for part `handlers`: frames of [int32 size][body], each given to a function, its answer framed.

    python echoing.py streams|protocol [--uvloop]

``streams`` awaits a header, then a body, of every frame, and drains after every answer: asyncio's own examples do so. ``protocol`` takes what one
read gave, and writes the answers to all of it at once: the most that is to be had without leaving Python. Both refuse a size above the limit before
they wait for a body, and stop reading who does not read. Prints {"port": …} when it listens.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import signal
import struct
import sys
from collections.abc import Callable, Coroutine
from typing import Any, cast

HEADER = struct.Struct(">i")
LIMIT = 100 << 20


def answer_to(frame: bytes) -> bytes:
    """The handler: what came goes back."""
    return frame


def judged(size: int) -> int:
    """The size of a body that is taken.

    Raises:
        ValueError: it is none.
    """
    if not 0 <= size <= LIMIT:
        raise ValueError(f"a body of {size} bytes")
    return size


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One connection, frame by frame."""
    try:
        while True:
            (size,) = HEADER.unpack(await reader.readexactly(HEADER.size))
            answer = answer_to(await reader.readexactly(judged(size)))
            writer.write(HEADER.pack(len(answer)) + answer)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError, ValueError):
        writer.close()


class Echo(asyncio.Protocol):
    """One connection, read by read."""

    def __init__(self) -> None:
        self._begun = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        """Answer every whole frame, with one write."""
        if self._begun:
            data = self._begun + data
        answers = []
        position, end = 0, len(data)
        while end - position >= HEADER.size:
            (size,) = HEADER.unpack_from(data, position)
            try:
                behind = position + HEADER.size + judged(size)
            except ValueError:
                self._transport.close()
                return
            if behind > end:
                break
            answer = answer_to(data[position + HEADER.size : behind])
            answers += [HEADER.pack(len(answer)), answer]
            position = behind
        self._begun = data[position:]
        if answers:
            self._transport.write(b"".join(answers))

    def pause_writing(self) -> None:
        """The client does not read."""
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """It does again."""
        self._transport.resume_reading()


async def run(kind: str) -> None:
    """Serve until SIGTERM."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    if kind == "streams":
        server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1024)
    else:
        server = await loop.create_server(Echo, "127.0.0.1", 0, backlog=1024)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    await stopped.wait()


def main(kind: str, *options: str) -> None:
    """The command line."""
    runner: Callable[[Coroutine[Any, Any, None]], None] = importlib.import_module("uvloop").run if "--uvloop" in options else asyncio.run
    runner(run(kind))


if __name__ == "__main__":
    main(*sys.argv[1:])
