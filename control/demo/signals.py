"""How the demo takes Ctrl-C and SIGTERM: as exceptions, so that whatever it started is ended on the way out."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Final, NoReturn

__all__ = ["EXIT_INTERRUPTED", "EXIT_TERMINATED", "TerminatedError", "signals_ignored", "sigterm_raises"]

EXIT_INTERRUPTED: Final = 128 + signal.SIGINT
EXIT_TERMINATED: Final = 128 + signal.SIGTERM


class TerminatedError(BaseException):
    """SIGTERM came; like KeyboardInterrupt, no ``except Exception`` on the way may keep it."""


@contextlib.contextmanager
def sigterm_raises() -> Iterator[None]:
    """For the length of a block, SIGTERM is a ``TerminatedError`` in the main thread."""
    with _handlers({signal.SIGTERM: _terminate}):
        yield


@contextlib.contextmanager
def signals_ignored() -> Iterator[None]:
    """For the length of a block that cleans up, which must be short, neither signal does anything."""
    with _handlers({signal.SIGINT: signal.SIG_IGN, signal.SIGTERM: signal.SIG_IGN}):
        yield


@contextlib.contextmanager
def _handlers(wanted: "dict[signal.Signals, signal._HANDLER]") -> Iterator[None]:
    """Other handlers for the length of a block, where this thread may say so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number, handler in wanted.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _terminate(_number: int, _frame: FrameType | None) -> NoReturn:
    raise TerminatedError
