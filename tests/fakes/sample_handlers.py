"""Handlers that do what a frame tells them to, for tests that start a handler process with this folder on its path."""

import asyncio
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from framegate.proxy.handler import CLOSE, DROP, PASS, Answer, Context, Drop, Pass, Replace, Result, handler


def _exit(rest: bytes, context: Context) -> Result:
    sys.exit(3)


def _raise(rest: bytes, context: Context) -> Result:
    raise RuntimeError(rest.decode(errors="replace"))


def _count(rest: bytes, context: Context) -> Result:
    context.state["count"] = context.state.get("count", 0) + 1
    return b"%d" % context.state["count"]


def _facts(rest: bytes, context: Context) -> Result:
    names = ("connection", "listener", "peer", "principal", "principal_type", "tls", "direction", "sequence", "has_upstream")
    return json.dumps({name: getattr(context, name) for name in names} | {"header": context.header.hex()}).encode()


def _block(rest: bytes, context: Context) -> Result:
    print(rest.decode(), flush=True)
    time.sleep(1000)
    return None


def _print(rest: bytes, context: Context) -> Result:
    print(rest.decode())
    return b""


WORDS: dict[bytes, Callable[[bytes, Context], object]] = {
    b"echo": lambda rest, context: rest,
    b"none": lambda rest, context: None,
    b"pass": lambda rest, context: PASS,
    b"pass-slowly": lambda rest, context: Pass(throttle=0.5),
    b"replace": lambda rest, context: Replace(rest),
    b"drop": lambda rest, context: DROP,
    b"drop-slowly": lambda rest, context: Drop(throttle=0.25),
    b"answer": lambda rest, context: Answer(rest),
    b"answer-slowly": lambda rest, context: Answer(rest, throttle=1.5),
    b"close": lambda rest, context: CLOSE,
    b"bytearray": lambda rest, context: bytearray(rest),
    b"view": lambda rest, context: memoryview(rest)[::2],
    b"many": lambda rest, context: bytes(int(rest)),
    b"number": lambda rest, context: 5,
    b"text": lambda rest, context: Answer("x"),  # type: ignore[arg-type]
    b"negative": lambda rest, context: Answer(b"", throttle=-1),
    b"coroutine": lambda rest, context: asyncio.sleep(0),
    b"sleep": lambda rest, context: time.sleep(float(rest)),
    b"exit": _exit,
    b"raise": _raise,
    b"count": _count,
    b"facts": _facts,
    b"block": _block,
    b"print": _print,
}


def scripted(frame: bytes, context: Context) -> object:
    word, _, rest = frame.partition(b" ")
    return WORDS[word](rest, context)


class Patient:
    """Answers a frame when the next comes on another connection; ``never`` is never answered, ``block`` blocks the loop."""

    def __init__(self) -> None:
        self.waiting: list[asyncio.Event] = []

    async def handle(self, frame: bytes, context: Context) -> bytes:
        if frame == b"block":
            time.sleep(1000)
        for event in self.waiting:
            event.set()
        if frame == b"go":
            return b"gone"
        event = asyncio.Event()
        self.waiting.append(event)
        await event.wait()
        return frame


class Journal:
    """Writes what happens to it into the file ``journal`` of the last folder of the path."""

    name = "journal"

    def write(self, word: str) -> None:
        with (Path(sys.path[-1]) / "journal").open("a") as file:
            file.write(f"{self.name} {word}\n")

    def start(self) -> None:
        self.write("start")

    def handle(self, frame: bytes, context: Context) -> object:
        return scripted(frame, context)

    def stop(self) -> None:
        self.write("stop")


shared = Journal()


class AsyncJournal(Journal):
    name = "async"

    async def start(self) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        self.write("start")

    async def stop(self) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        self.write("stop")


class HangsAtStart(Journal):
    def start(self) -> None:
        self.write("start")
        time.sleep(1000)


class HangsAtAsyncStart(Journal):
    async def start(self) -> None:  # type: ignore[override]
        self.write("start")
        await asyncio.sleep(1000)


class FailsAtStart(Journal):
    def start(self) -> None:
        raise ValueError("no table")


class HangsAtStop(Journal):
    name = "hanging"

    def stop(self) -> None:
        self.write("stop")
        time.sleep(1000)


class FailsAtStop(Journal):
    name = "failing"

    def stop(self) -> None:
        self.write("stop")
        raise ValueError("no end")


class Stubborn:
    """Does not end when it is cancelled."""

    async def handle(self, frame: bytes, context: Context) -> None:
        while True:
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                continue


@handler(directions=("request",))
class OneWay:
    """Sees requests only.

    And has a second line.
    """

    def handle(self, frame: bytes, context: Context) -> None: ...
