"""How a demo ends early: Ctrl-C and SIGTERM are exceptions, so that all processes are ended; each error is one line and an exit code."""

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Final, NoReturn

import grpc

from framegate.control.demo.processes import ChildError
from framegate.control.demo.workspace import WorkspaceError

__all__ = ["EXIT_FAILED", "EXIT_INTERRUPTED", "EXIT_MISSING", "EXIT_OK", "TerminatedError", "ended", "exit_code", "signals_ignored"]

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_MISSING: Final = 2
EXIT_INTERRUPTED: Final = 128 + signal.SIGINT
EXIT_TERMINATED: Final = 128 + signal.SIGTERM


class TerminatedError(BaseException):
    """SIGTERM came; like KeyboardInterrupt, no ``except Exception`` on the way may keep it."""


def exit_code(perform: Callable[[], int], *errors: type[Exception]) -> int:
    """The exit code of a demo; an error is printed as one line.

    Args:
        perform: the demo; returns its exit code.
        errors: more exceptions that mean that the demo failed.
    """
    failures: tuple[type[Exception], ...] = (ChildError, grpc.RpcError, OSError, *errors)
    try:
        with _handlers({signal.SIGTERM: _terminate}):
            return perform()
    except WorkspaceError as error:
        return ended(str(error), EXIT_MISSING)
    except failures as error:
        return ended(" ".join(str(error).split()), EXIT_FAILED)
    except KeyboardInterrupt:
        return ended("interrupted", EXIT_INTERRUPTED)
    except TerminatedError:
        return ended("terminated", EXIT_TERMINATED)


def ended(text: str, code: int) -> int:
    """Print one line on standard error; the exit code that goes with it."""
    print(f"framegate demo: {text}", file=sys.stderr)
    return code


@contextlib.contextmanager
def signals_ignored() -> Iterator[None]:
    """For the length of a block that cleans up, which must be short, neither signal does anything."""
    with _handlers({signal.SIGINT: signal.SIG_IGN, signal.SIGTERM: signal.SIG_IGN}):
        yield


@contextlib.contextmanager
def _handlers(wanted: "dict[signal.Signals, signal._HANDLER]") -> Iterator[None]:
    """Other handlers for the length of a block; only the main thread can set them."""
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
