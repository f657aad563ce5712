"""Counts the long replies that wait in this process until their processors have memory for them, and stops handling when they are too many.

While these replies have ``MOST_BYTES`` or more, no frame of any processor is handled, so a process holds that much and one reply at most. If none of
them has left for ``PATIENCE_S``, their clients do not read, which must not stop others: frames are handled again, and further long replies are
dropped.
"""

import asyncio
from collections.abc import Callable
from typing import Final

MOST_BYTES: Final = 16 << 20
PATIENCE_S: Final = 2.0


class ReplyBuffer:
    """The waiting replies of one process."""

    __slots__ = ("_bytes", "_loop", "_timer", "_waiting", "drops", "puts_off")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.puts_off = False  # no frame is to be handled
        self.drops = False  # further long replies are to be dropped
        self._loop: Final = loop
        self._bytes = 0
        self._waiting: dict[Callable[[], object], None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, size: int) -> None:
        """A reply of so many bytes waits."""
        self._bytes += size
        if self._bytes >= MOST_BYTES and not self.drops:
            self.puts_off = True
            self._start_wait_timer()

    def remove(self, size: int) -> None:
        """A reply has left, or was dropped."""
        self._bytes -= size
        if self._bytes < MOST_BYTES:
            self.drops = self.puts_off = False
            self._on_wait_timeout()
            self._wake()
        elif self.puts_off:
            self._start_wait_timer()

    def wait(self, go_on: Callable[[], object]) -> None:
        """Call a function once, when frames are handled again."""
        self._waiting[go_on] = None

    def leave(self, go_on: Callable[[], object]) -> None:
        """Do not call it. No effect if it does not wait."""
        self._waiting.pop(go_on, None)

    def _start_wait_timer(self) -> None:
        self._on_wait_timeout()
        self._timer = self._loop.call_later(PATIENCE_S, self._time_out_waiting)

    def _on_wait_timeout(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_out_waiting(self) -> None:
        self._timer = None
        self.puts_off = False
        self.drops = True
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for go_on in waiting:
            go_on()
