"""An event loop that cancels a task in a turn of its choice, to see what a call leaves behind wherever it ends."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any


class CancellingLoop(asyncio.SelectorEventLoop):
    """Counts its turns, from one wait for events to the next."""

    victim: asyncio.Task[Any] | None = None
    turns_left = 0

    def _run_once(self) -> None:
        if self.victim is not None:
            if self.turns_left == 0:
                self.victim.cancel()
                self.victim = None
            self.turns_left -= 1
        super()._run_once()  # type: ignore[misc]


def run(main: Coroutine[Any, Any, None]) -> None:
    """Like ``asyncio.run``."""
    with asyncio.Runner(loop_factory=CancellingLoop) as runner:
        runner.run(main)


async def at_every_turn(call: Callable[[], Coroutine[Any, Any, Any]], check: Callable[[], Awaitable[None]], stride: int = 1) -> int:
    """Make a call again and again, cancelled in its first turn, its second and so on, until it ends before that; ``check`` after each. Returns: How
    often it was cancelled.
    """
    loop = asyncio.get_running_loop()
    assert isinstance(loop, CancellingLoop)
    cancelled = 0
    while True:
        task = asyncio.create_task(call())
        loop.victim, loop.turns_left = task, cancelled * stride
        with contextlib.suppress(asyncio.CancelledError):
            await task
        ended, loop.victim = loop.victim is not None, None
        await check()
        if ended:
            return cancelled
        cancelled += 1
