"""Answers that wait in this process until processors have memory for them, and those who wait until there are fewer.

A long answer stays here until its processor asks for it. While these come to ``MOST_BYTES``, no frame of any processor is handled, because nobody
knows how long its answer will be: so a process holds that much and one answer at most. When none of them has left for ``PATIENCE_S`` their clients do
not read; that must not hold up others. Frames are handled again then, and an answer that is too long to leave at once is dropped.
"""

import asyncio
from collections.abc import Callable
from typing import Final

__all__ = ["MOST_BYTES", "PATIENCE_S", "ReplyBuffer"]

MOST_BYTES: Final = 16 << 20
PATIENCE_S: Final = 2.0


class ReplyBuffer:
    """Those of one process.

    Attributes:
        puts_off: no frame is to be handled.
        drops: no further long answer is to be kept.
    """

    __slots__ = ("_bytes", "_loop", "_timer", "_waiting", "drops", "puts_off")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.puts_off = False
        self.drops = False
        self._loop: Final = loop
        self._bytes = 0
        self._waiting: dict[Callable[[], object], None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, size: int) -> None:
        """An answer waits here."""
        self._bytes += size
        if self._bytes >= MOST_BYTES and not self.drops:
            self.puts_off = True
            self._start_wait_timer()

    def remove(self, size: int) -> None:
        """It has gone, or nobody wants it any more."""
        self._bytes -= size
        if self._bytes < MOST_BYTES:
            self.drops = self.puts_off = False
            self._on_wait_timeout()
            self._wake()
        elif self.puts_off:
            self._start_wait_timer()

    def wait(self, go_on: Callable[[], object]) -> None:
        """Call this, once, when frames are handled again."""
        self._waiting[go_on] = None

    def leave(self, go_on: Callable[[], object]) -> None:
        """Do not; harmless when it does not wait."""
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
