"""A slot in which one process follows another, and the restarts."""

import abc
import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from framegate.control.errors import ControlError
from framegate.control.fleet.child import Child, ChildKind
from framegate.control.logs import RowLog
from framegate.control.status import ProcessorState
from framegate.control.task_monitor import TaskMonitor
from framegate.proxy.network.connection_id import GENERATION_BITS

__all__ = ["Backoff", "Heartbeat", "ProcessSlot", "Respawner"]

_BACKOFF_FIRST_S: Final = 0.1
_BACKOFF_MOST_S: Final = 10.0
_HEALTHY_AFTER_S: Final = 10.0
_STOP_TIMEOUT_S: Final = 7.0
_GENERATION_EPOCH_S: Final = 1_735_689_600
_GENERATION_MASK: Final = (1 << GENERATION_BITS) - 1
Live = Callable[[asyncio.Future[None]], Awaitable[None]]


class Backoff:
    """The pauses between one try and the next: 0.1 s, doubled up to 10 s, and from 0.1 s again after what lasted for 10 s.

    Attributes:
        next_s: the next pause, unless what comes before it lasts.
    """

    def __init__(self) -> None:
        self.next_s = _BACKOFF_FIRST_S

    def pause(self, lasted_s: float) -> float:
        """Seconds to wait after what lasted for ``lasted_s``."""
        pause_s = _BACKOFF_FIRST_S if lasted_s >= _HEALTHY_AFTER_S else self.next_s
        self.next_s = min(pause_s * 2, _BACKOFF_MOST_S)
        return pause_s


class Heartbeat:
    """How long a heartbeat has not moved, in looks at it. Time in which nobody looked does not count: who was stopped himself, or paused with the
    whole machine, has learned nothing of it.
    """

    def __init__(self) -> None:
        self._last = 0
        self._looks = 0

    def look(self, heartbeat: int) -> int:
        """So many looks in a row, this one included, found what the one before them did."""
        self._looks = self._looks + 1 if heartbeat == self._last else 0
        self._last = heartbeat
        return self._looks


class ProcessSlot(abc.ABC):
    """A place.

    Args:
        generation: the last one that this place had, 0 when it had none.

    Attributes:
        wanted: a process shall run here.
        leaving: what runs here is the last.
        task: has one process after another run here.
        backoff: between two of them.
        started_ns: when the last one was started, since 1970.
    """

    def __init__(self, number: int, generation: int = 0) -> None:
        self.number = number
        self.generation = generation
        self.restarts = 0
        self.wanted = True
        self.leaving = False
        self.state: ProcessorState = "stopped"
        self.started_ns = 0
        self.task: asyncio.Task[None] | None = None
        self.backoff = Backoff()

    @property
    @abc.abstractmethod
    def child(self) -> Child | None:
        """What runs here."""

    def begin(self) -> None:
        """A process shall run here, from a fresh start."""
        self.wanted = True
        self.leaving = False
        self.backoff = Backoff()

    @property
    def lives_on(self) -> bool:
        """Whether a process that ends here gets a successor."""
        return self.wanted and not self.leaving

    def next_life(self) -> None:
        """One is about to be started."""
        self.state = "starting" if self.restarts == 0 else "restarting"
        self.started_ns = time.time_ns()
        self.next_generation()

    def next_generation(self) -> int:
        """Tenths of a second since 2025 (28 bits, 310 days), or one more than the last: unique over restarts of control too, for no process is up
        and gone again within a tenth. (In whole seconds a quick successor ran ahead of the clock, and the next control met its numbers.)
        """
        self.generation = max(self.generation + 1, int((time.time() - _GENERATION_EPOCH_S) * 10) & _GENERATION_MASK)
        return self.generation


class Respawner:
    """How the places of one kind of process get one after another. Event loop only.

    Args:
        task: what ``task_monitor`` calls it, one of ``framegate.proxy.cells.TASKS``.
    """

    def __init__(self, kind: ChildKind, log: RowLog, task_monitor: TaskMonitor, task: str) -> None:
        self._kind = kind
        self._log = log
        self._task_monitor = task_monitor
        self._task = task

    def begin(self, place: ProcessSlot, live: Live) -> asyncio.Future[None]:
        """Let processes run in a place until it is not wanted.

        Args:
            live: has one process live from its start to its end; it raises when that does not come up, and sets the future when it has.

        Returns:
            Becomes done when the first is up, or raises why it is not; then there is no second.
        """
        place.begin()
        first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        place.task = asyncio.create_task(self._run(place, first, live))
        place.task.add_done_callback(lambda _: _fail(first, self._kind.start_error(place.number, "was stopped before it was ready")))
        return first

    async def end(self, place: ProcessSlot) -> None:
        """End what runs in a place that is not wanted any more: it is asked to, and killed after a while."""
        if place.child is not None:
            await place.child.stop(_STOP_TIMEOUT_S)
        if place.task is not None:
            if place.child is None:
                place.task.cancel()
            await asyncio.wait((place.task,))

    async def _run(self, place: ProcessSlot, first: asyncio.Future[None], live: Live) -> None:
        try:
            while place.lives_on:
                began = time.monotonic()
                await self._run_one(place, first, live)
                if place.lives_on:
                    place.state = "restarting"
                    place.restarts += 1
                    await asyncio.sleep(place.backoff.pause(time.monotonic() - began))
        finally:
            place.state = "stopped"

    async def _run_one(self, place: ProcessSlot, first: asyncio.Future[None], live: Live) -> None:
        """One process from its start to its end. A first one that fails is the last; that is raised where ``first`` is waited for."""
        try:
            await live(first)
        except Exception as error:
            if not isinstance(error, ControlError):
                self._task_monitor.failed(self._task, error)
            if first.done():
                self._log.write(f"{self._kind.word}_start_failed", level="error", slot=place.number, error=str(error))
            else:
                place.wanted = False
                _fail(first, error if isinstance(error, ControlError) else self._kind.start_error(place.number, f"could not be started: {error!r}"))


def _fail(first: asyncio.Future[None], error: ControlError) -> None:
    """Set the exception of a first start, if it is still waited for."""
    if not first.done():
        first.set_exception(error)
        first.exception()
