"""The state of a handler process, and the heartbeat that publishes it: 64-bit cells in memory that the process shares with the control process.

The control process makes one memfd for each handler process, which is its only writer. Four times a second the ``reporter`` thread copies the state
into the cells, and stores the time last. An aligned store of 8 bytes is never seen half, so the control process reads at any time without a lock.
"""

import mmap
import os
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Protocol

_CELL: Final = 8


class Interrupted(BaseException):
    """The process is to end: raised within a call of users' code that blocks the main thread."""


class Begun(Protocol):
    """A call of a handler that is ``async def``; ``began_ns`` is 0 before its first step."""

    began_ns: int


class HeartbeatSample(NamedTuple):
    """The state of a handler process at one moment."""

    # handled, failed: frames since the start, and those of them at which a handler raised
    handled: int
    failed: int
    busy_ns: int  # for how long at least one frame was being handled, since the start
    in_handler: int  # frames that are being handled now
    oldest_ns: int  # for how long the oldest of these has been handled; 0 when there is none
    queued: int  # frames that were read and whose handling has not begun


_SIZE: Final = (1 + len(HeartbeatSample._fields)) * _CELL


def create_cells(name: str) -> int:
    """Make the memory of one process and return its descriptor (close on exec; hand it on with ``pass_fds``). Raises OSError."""
    descriptor = os.memfd_create(name)
    try:
        os.ftruncate(descriptor, _SIZE)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


class HeartbeatCells:
    """One end of the cells. The descriptor may be closed afterwards. Raises OSError."""

    def __init__(self, descriptor: int) -> None:
        self._cells: Final = memoryview(mmap.mmap(descriptor, _SIZE)).cast("q")

    @property
    def heartbeat_ns(self) -> int:
        """When ``write`` was called last, CLOCK_MONOTONIC; 0: never."""
        return int(self._cells[0])

    def read(self) -> HeartbeatSample:
        return HeartbeatSample(*self._cells[1:])

    def write(self, beat: HeartbeatSample, now_ns: int) -> None:
        for index, value in enumerate(beat, 1):
            self._cells[index] = value
        self._cells[0] = now_ns


class Activity:
    """The state of one process. The main thread writes it, and the thread of the reporter reads it at any time. Each attribute is set with one store,
    so there is no lock; a reader may see a new count with an old time.
    """

    __slots__ = ("began_ns", "busy_ns", "failed", "handled", "tasks", "tasks_since_ns", "waiting")

    def __init__(self) -> None:
        self.handled = 0  # frames that were handled, those at which the handler failed included
        self.failed = 0  # those
        self.busy_ns = 0  # time in which at least one frame was being handled, as far as that is over
        self.began_ns = 0  # when the call began that now has the main thread; 0: there is none
        self.tasks: dict[Any, Begun] = {}  # calls of handlers that are ``async def`` and not over, oldest first
        self.tasks_since_ns = 0  # since when there are any
        self.waiting = 0  # frames that were read and whose handling has not begun

    def batch_done(self, handled: int, took_ns: int) -> None:
        """Some frames were handled one after another, in so much time."""
        self.handled += handled
        if not self.tasks:  # their time is counted, and includes this one
            self.busy_ns += took_ns

    def heartbeat(self, now_ns: int) -> HeartbeatSample:
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
    """When the oldest began. The main thread may add and remove tasks meanwhile."""
    for _ in range(100):
        try:
            return next(iter(tasks.values())).began_ns
        except StopIteration:
            return 0
        except RuntimeError:  # the dict changed between the two calls
            continue
    return 0
