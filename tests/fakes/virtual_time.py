"""An event loop whose time passes only while nothing is left to do, and then at once."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any


class VirtualLoop(asyncio.SelectorEventLoop):
    """``skip`` lets time pass as if the process had been stopped: nothing runs meanwhile."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        super().__init__(_Waiting(self))

    def time(self) -> float:
        return self.now_s

    def skip(self, seconds: float) -> None:
        self.now_s += seconds


class _Waiting(selectors.DefaultSelector):
    """Does not wait: time passes instead."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._of = loop

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(0)
        if not found and timeout is not None and timeout > 0:
            self._of.now_s += timeout
        return found


def in_virtual_time(scenario: Callable[[VirtualLoop], Coroutine[Any, Any, None]]) -> None:
    loop = VirtualLoop()
    try:
        loop.run_until_complete(scenario(loop))
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
