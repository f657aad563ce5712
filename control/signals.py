"""The signals that end a framegate, or have it read its files again, from the first moment on."""

import asyncio
import signal
from collections.abc import Callable
from types import FrameType
from typing import Final

__all__ = ["Signals"]

_NUMBERS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Signals:
    """SIGTERM and SIGINT, which end, and SIGHUP, which does not, from the first moment on: what comes before the loop runs is kept for it. What was
    blocked until now (``framegate.control.cli``) comes now.
    """

    def __init__(self) -> None:
        self.count = 0
        self._hung_up = False
        self._listener: Callable[[], None] | None = None
        for number in _NUMBERS:
            signal.signal(number, self._early)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _NUMBERS)

    def _early(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            self._hung_up = True
        else:
            self.count += 1

    def attach(self, loop: asyncio.AbstractEventLoop, listener: Callable[[], None], on_hangup: Callable[[], None]) -> None:
        """Call ``listener`` on the loop at every signal that ends, ``on_hangup`` at every SIGHUP, and now if there were some."""
        self._listener = listener
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        loop.add_signal_handler(signal.SIGHUP, on_hangup)
        if self.count:
            loop.call_soon(listener)
        if self._hung_up:
            loop.call_soon(on_hangup)

    def ignore(self) -> None:
        """What comes after the end changes nothing, above all not the exit code."""
        for number in _NUMBERS:
            signal.signal(number, signal.SIG_IGN)

    def _on_signal(self) -> None:
        self.count += 1
        if self._listener is not None:
            self._listener()
