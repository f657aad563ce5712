"""What a handler process is at: written by its main thread as it goes, read by the reporter's thread at any moment.

Each attribute is one store, so that nothing is locked; a reader may see a frame's count before its time. The path of a frame stores two of them.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from proxy.handler.cells import Beat
from proxy.relay.handler_wire import REQUEST, record_end

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
        batch, position: the requests that were read and are not begun: the records of ``batch`` from ``position`` on.
        tasks: handles that are ``async def`` and under way, oldest first.
        tasks_since_ns: since when there are any.
        waiting: frames that wait until their connection's handle before is over.
    """

    __slots__ = ("batch", "began_ns", "busy_ns", "failed", "handled", "position", "tasks", "tasks_since_ns", "waiting")

    def __init__(self) -> None:
        self.handled = 0
        self.failed = 0
        self.busy_ns = 0
        self.began_ns = 0
        self.batch = b""
        self.position = 0
        self.tasks: dict[Any, Begun] = {}
        self.tasks_since_ns = 0
        self.waiting = 0

    def batch_done(self, handled: int, took_ns: int) -> None:
        """Some frames were handled one after another, and that took so long."""
        self.handled += handled
        if not self.tasks:  # whose time is counted, and this is within it
            self.busy_ns += took_ns

    def beat(self, now_ns: int) -> Beat:
        """How things stand. Of the calling thread's own pace: it counts what is left of a batch."""
        began_ns = self.began_ns
        in_task_ns = _oldest(self.tasks)
        oldest_ns = min((began for began in (began_ns, in_task_ns) if began), default=now_ns)
        busy_since_ns = min((since for since in (began_ns, self.tasks_since_ns) if since), default=now_ns)
        return Beat(
            handled=self.handled,
            failed=self.failed,
            busy_ns=self.busy_ns + max(0, now_ns - busy_since_ns),
            in_handler=len(self.tasks) + (began_ns != 0),
            oldest_ns=max(0, now_ns - oldest_ns),
            queued=self.waiting + _requests(self.batch, self.position),
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


def _requests(batch: bytes, position: int) -> int:
    """How many requests of a batch begin at a position or behind it; its records were judged, or will be."""
    found = 0
    while position < len(batch):
        try:
            end = record_end(batch, position)
        except Exception:  # whoever handles the batch says so
            break
        if end < 0:
            break
        found += batch[position + 4] == REQUEST
        position = end
    return found
