"""SIGTERM and SIGINT, as a job takes them: the batch in hand is finished, or nothing is."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Final

__all__ = ["StoppedError", "Stopping", "stop_signals"]

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class StoppedError(BaseException):
    """A signal ends the job at once; no ``except Exception`` on the way may keep it."""


class Stopping:
    """What SIGTERM and SIGINT ask for: an end in order while the query runs, else at once, and at once when they come again.

    Attributes:
        asked: an end in order is wanted.
        in_order: it can be had.
    """

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.in_order = False
        self._number = 0

    @property
    def word(self) -> str:
        return "interrupted" if self._number == signal.SIGINT else "terminated"

    @property
    def exit_code(self) -> int:
        return 128 + self._number

    def on_signal(self, number: int, _frame: FrameType | None) -> None:
        """The handler.

        Raises:
            StoppedError: unless an end in order can be had, and this is the first to ask. What ends at once takes seconds; nobody need ask again.
        """
        self._number = number
        if self.in_order and not self.asked.is_set():
            self.asked.set()
            return
        for other in _SIGNALS:
            signal.signal(other, signal.SIG_IGN)
        raise StoppedError

    def listen(self) -> None:
        """Become the handler; once more when Spark has started, which has a handler of its own for SIGINT."""
        if _may_handle_signals():
            for number in _SIGNALS:
                signal.signal(number, self.on_signal)


@contextlib.contextmanager
def stop_signals(stopping: Stopping) -> Iterator[None]:
    """Hand SIGTERM and SIGINT to ``stopping``, where this thread may say so."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    stopping.listen()
    try:
        yield
    finally:
        if _may_handle_signals():
            for number, handler in before.items():
                signal.signal(number, handler)


def _may_handle_signals() -> bool:
    return threading.current_thread() is threading.main_thread()
