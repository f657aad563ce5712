"""What nobody caught, in a thread, a callback, a task, a finalizer: a row, and one more of ``framegate.task.failures``; the process goes on."""

import asyncio
import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

from framegate.control.task_monitor import TaskMonitor

__all__ = ["catch_in_loop", "catch_in_process"]


def catch_in_loop(loop: asyncio.AbstractEventLoop, task_monitor: TaskMonitor) -> None:
    """Exceptions of callbacks (of readers, writers, timers, signals) and of tasks that nobody waits for."""

    def caught(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        message = str(context.get("message", ""))
        task_monitor.failed("callback", context.get("exception") or RuntimeError(message), message=message)

    loop.set_exception_handler(caught)


@contextlib.contextmanager
def catch_in_process(task_monitor: TaskMonitor) -> Iterator[None]:
    """Exceptions that end a thread, or that have nobody to be raised to (``__del__``, callbacks of the interpreter), as long as this lasts."""

    def in_thread(arguments: threading.ExceptHookArgs) -> None:
        if arguments.exc_value is not None and not isinstance(arguments.exc_value, SystemExit):
            task_monitor.failed("thread", arguments.exc_value, message=f"the thread {getattr(arguments.thread, 'name', '')} ended")

    def unraisable(arguments: "sys.UnraisableHookArgs") -> None:
        error = arguments.exc_value or RuntimeError(arguments.exc_type.__name__)
        task_monitor.failed("unraisable", error, message=f"{arguments.err_msg or 'exception ignored in'}: {arguments.object!r}")

    before = threading.excepthook, sys.unraisablehook
    threading.excepthook, sys.unraisablehook = in_thread, unraisable
    try:
        yield
    finally:
        threading.excepthook, sys.unraisablehook = before
