"""What a handler process is at: written by its main thread as it goes, read by the reporter's thread at any moment.

Each attribute is one store, so that nothing is locked; a reader may see a frame's count before its time. The path of a frame stores two of them.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from framegate.proxy.handler.cells import HeartbeatSample

__all__ = ["Activity", "Begun", "Interrupted"]


class Interrupted(BaseException):
    """The user's code is told to end, because the process is to: raised within a call that is not ``async``, or blocks the loop."""


class Begun(Protocol):
    """A handle that is ``async def``; ``began_ns`` is 0 until its first step."""

    began_ns: int


class Activity:
    """One process's.

    Attributes:
        handled: frames that a handle is done with, failed ones included.
        failed: of these.
        busy_ns: in which at least one handle was under way, as far as those are over.
        began_ns: when the handle began that now has the main thread; 0: none.
        tasks: handles that are ``async def`` and under way, oldest first.
        tasks_since_ns: since when there are any.
        waiting: frames that were read and are not begun.
    """

    __slots__ = ("began_ns", "busy_ns", "failed", "handled", "tasks", "tasks_since_ns", "waiting")

    def __init__(self) -> None:
        self.handled = 0
        self.failed = 0
        self.busy_ns = 0
        self.began_ns = 0
        self.tasks: dict[Any, Begun] = {}
        self.tasks_since_ns = 0
        self.waiting = 0

    def batch_done(self, handled: int, took_ns: int) -> None:
        """Some frames were handled one after another, and that took so long."""
        self.handled += handled
        if not self.tasks:  # whose time is counted, and this is within it
            self.busy_ns += took_ns

    def heartbeat(self, now_ns: int) -> HeartbeatSample:
        """How things stand."""
        began_ns = self.began_ns
        in_task_ns = _oldest(self.tasks)
        oldest_ns = min((began for began in (began_ns, in_task_ns) if began), default=now_ns)
        busy_since_ns = min((since for since in (began_ns, self.tasks_since_ns) if since), default=now_ns)
        return HeartbeatSample(
            handled=self.handled,
            failed=self.failed,
            busy_ns=self.busy_ns + max(0, now_ns - busy_since_ns),
            in_handler=len(self.tasks) + (began_ns != 0),
            oldest_ns=max(0, now_ns - oldest_ns),
            queued=self.waiting,
        )


def _oldest(tasks: Mapping[Any, Begun]) -> int:
    """When the oldest began. The main thread may add and remove while this looks."""
    for _ in range(100):
        try:
            return next(iter(tasks.values())).began_ns
        except StopIteration:
            return 0
        except RuntimeError:  # it changed between the two calls
            continue
    return 0
