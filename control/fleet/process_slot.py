"""A slot in which one process follows another, and how the processes of one kind are started, watched, restarted and ended."""

import abc
import asyncio
import time
from collections.abc import Sequence
from typing import Any, Final, Generic, TypeVar

from framegate.control.errors import ControlError
from framegate.control.events import Bus, Row
from framegate.control.fleet.child import FORCED, Child, SpawnOptions
from framegate.control.logs import RowLog
from framegate.control.meters import Meters
from framegate.control.status import ProcessorState
from framegate.control.task_monitor import TaskMonitor
from framegate.proxy.network.connection_id import GENERATION_BITS
from framegate.proxy.server.messages import LogNotice
from framegate.proxy.server.protocol import Message

C = TypeVar("C", bound=Child)
S = TypeVar("S", bound="ProcessSlot[Any]")
HEARTBEAT_LIMIT_S: Final = 10.0
_LEAST_STOOD_S: Final = 1.0
_WATCH_LIMIT_S: Final = 5.0
_BACKOFF_FIRST_S: Final = 0.1
_BACKOFF_MOST_S: Final = 10.0
_HEALTHY_AFTER_S: Final = 10.0
_STOP_TIMEOUT_S: Final = 7.0
_GENERATION_EPOCH_S: Final = 1_735_689_600
_GENERATION_MASK: Final = (1 << GENERATION_BITS) - 1


class Backoff:
    """The pauses between tries: 0.1 s, doubled up to 10 s, and 0.1 s again after a try that lasted 10 s."""

    def __init__(self) -> None:
        self.next_s = _BACKOFF_FIRST_S  # the next pause, if the try before it is short

    def pause(self, lasted_s: float) -> float:
        """Seconds to wait after a try that lasted ``lasted_s``."""
        pause_s = _BACKOFF_FIRST_S if lasted_s >= _HEALTHY_AFTER_S else self.next_s
        self.next_s = min(pause_s * 2, _BACKOFF_MOST_S)
        return pause_s


class ProcessSlot(Generic[C]):
    """A slot. ``generation``: that of the last process in this slot; 0 if there was none."""

    def __init__(self, number: int, generation: int = 0) -> None:
        self.number = number
        self.generation = generation
        self.child: C | None = None  # the process that runs here
        self.restarts = 0
        self.wanted = True  # a process shall run here
        self.leaving = False  # the process here gets no successor
        self.state: ProcessorState = "stopped"
        self.started_ns = 0  # when the last one was started, since 1970
        self.task: asyncio.Task[None] | None = None  # runs one process after another here
        self.backoff = Backoff()  # the pauses between two of them

    @property
    def pid(self) -> int:
        """Of the process; 0 when none runs."""
        return 0 if self.child is None else self.child.pid

    def begin(self) -> None:
        self.wanted = True
        self.leaving = False
        self.backoff = Backoff()

    @property
    def lives_on(self) -> bool:
        """Whether a process that ends here gets a successor."""
        return self.wanted and not self.leaving

    def next_life(self) -> None:
        self.state = "starting" if self.restarts == 0 else "restarting"
        self.started_ns = time.time_ns()
        self.next_generation()

    def next_generation(self) -> int:
        """Tenths of a second since 2025 (28 bits, 310 days), or one more than the last. It is unique over restarts of control, too, since no process
        starts and ends within a tenth of a second.
        """
        self.generation = max(self.generation + 1, int((time.time() - _GENERATION_EPOCH_S) * 10) & _GENERATION_MASK)
        return self.generation


class Respawner(abc.ABC, Generic[S, C]):
    """Runs the processes of one kind, one after another in each slot. Event loop only.

    Each slot has a task that starts a process, waits for its end and starts the next after a growing pause. A process whose heartbeat does not move
    for ``HEARTBEAT_LIMIT_S`` is killed.

    ``events``: gets the rows of ends (``processor_died``), and the rows that processes log. ``task``: the name of this part in
    ``framegate.task.failures``, one of ``framegate.proxy.cells.TASKS``.
    """

    watch_interval_s = 0.5  # the time between two looks at the heartbeats

    def __init__(
        self, spawn_options: SpawnOptions, events: Bus, meters: Meters, log: RowLog, task_monitor: TaskMonitor, task: str, watch: str
    ) -> None:
        self.slots: dict[int, S] = {}  # by number
        self._spawn_options = spawn_options
        self._kind = spawn_options.kind
        self._events = events
        self._meters = meters
        self._log = log
        self._task_monitor = task_monitor
        self._task = task
        self._ending = False
        self._watcher = task_monitor.repeat(watch, self._look, self.watch_interval_s, _WATCH_LIMIT_S)

    # --- what each kind does in its own way ------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def _spawn(self, slot: S) -> C:
        """Start a process. Raises OSError."""

    @abc.abstractmethod
    async def _bring_up(self, slot: S, child: C) -> None:
        """Return when the process works. Raises StartError."""

    @abc.abstractmethod
    def _release(self, slot: S, child: C) -> Row:
        """Clean up after a process has ended. Returns further fields of the row about its end."""

    @abc.abstractmethod
    def _take_notice(self, child: C, message: Message) -> None:
        """Handle a message that answers no request."""

    def _fault(self, child: C) -> tuple[str, str] | None:
        """Why a process must be killed, besides its heartbeat: the reason, and the text of the row."""
        del child
        return None

    def _slots_changed(self) -> None:
        """Slots are not wanted any more."""

    # --- lives ------------------------------------------------------------------------------------------------------------------------

    def _ordered(self) -> list[S]:
        return [slot for _, slot in sorted(self.slots.items())]

    def _begin(self, slot: S) -> asyncio.Future[None]:
        """Run processes in a slot until it is not wanted any more. Returns: Becomes done when the first process is up, or raises why it is not; then
        there is no second one.
        """
        if self._ending:
            raise self._kind.start_error(slot.number, "is not started: the proxy ends")
        slot.begin()
        first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        slot.task = asyncio.create_task(self._run(slot, first))
        slot.task.add_done_callback(lambda _: _fail(first, self._kind.start_error(slot.number, "was stopped before it was ready")))
        return first

    async def _run(self, slot: S, first: asyncio.Future[None]) -> None:
        try:
            while slot.lives_on:
                began = time.monotonic()
                try:
                    await self._live(slot, first)
                except Exception as error:
                    self._report_failure(slot, first, error)
                if slot.lives_on:
                    slot.state = "restarting"
                    slot.restarts += 1
                    await asyncio.sleep(slot.backoff.pause(time.monotonic() - began))
        finally:
            slot.state = "stopped"

    def _report_failure(self, slot: S, first: asyncio.Future[None], error: Exception) -> None:
        """A first process that fails is the last; its error is raised where ``first`` is awaited."""
        if not isinstance(error, ControlError):
            self._task_monitor.failed(self._task, error)
        if first.done():
            self._log.write(f"{self._kind.word}_start_failed", level="error", slot=slot.number, error=str(error))
        else:
            slot.wanted = False
            _fail(first, error if isinstance(error, ControlError) else self._kind.start_error(slot.number, f"could not be started: {error!r}"))

    async def _live(self, slot: S, first: asyncio.Future[None]) -> None:
        """One process from its start to its end."""
        slot.next_life()
        try:
            child = self._spawn(slot)
        except OSError as error:
            raise self._kind.start_error(slot.number, f"could not be started: {error}") from error
        slot.child = child
        try:
            await self._bring_up(slot, child)
        except BaseException:
            child.kill("died")
            await child.ended
            self._end(slot, child)
            raise
        if not first.done():
            first.set_result(None)
        await child.ended
        self._report_end(slot, child, self._end(slot, child))

    def _end(self, slot: S, child: C) -> Row:
        slot.child = None
        slot.state = "stopped"
        return self._release(slot, child)

    def _report_end(self, slot: S, child: C, further: Row) -> None:
        event: Row = {"slot": slot.number, "pid": child.pid, "generation": slot.generation, "exit_code": child.ended.result(), **further}
        reason = child.kill_reason or "died"
        if reason == FORCED:
            self._events.publish({"event": f"{self._kind.word}_stopped", "level": "warning", "forced": True, **event}, level="warning")
        elif not slot.wanted and event["exit_code"] == 0:
            self._log.write(f"{self._kind.word}_stopped", **event)
        else:
            if slot.wanted:
                self._meters.add(self._kind.restarts, reason if reason in self._kind.reasons else "died")
            self._events.publish({"event": f"{self._kind.word}_died", "level": "error", "reason": reason, **event}, level="error")

    # --- notices and heartbeats -------------------------------------------------------------------------------------------------------

    def _notice(self, child: C, message: Message) -> None:
        """Handle a message; one that cannot be read, or whose handling fails, is reported and dropped."""
        try:
            self._take_notice(child, message)
        except Exception as error:
            self._task_monitor.failed(self._task, error)

    def _publish_log(self, child: C, notice: LogNotice) -> None:
        fields = {"slot": child.slot, **notice["fields"]}
        self._events.publish({"event": notice["event"], "generation": child.generation, **fields}, level=notice["level"], line=fields)

    def _look(self) -> None:
        for slot in self._ordered():
            child = slot.child
            if child is None or not child.ready:
                continue
            fault = self._fault(child)
            stood_s = child.look() * self.watch_interval_s
            if stood_s > _LEAST_STOOD_S and self._kind.lag:
                self._meters.add(self._kind.lag, str(child.slot), amount=self.watch_interval_s)
            if stood_s >= HEARTBEAT_LIMIT_S:
                fault = "heartbeat", f"its heartbeat stands for {HEARTBEAT_LIMIT_S:g} s"
            if fault is not None and not child.kill_reason:
                child.log("killed", level="error", reason=fault[1])
                child.kill(fault[0])

    # --- the end ----------------------------------------------------------------------------------------------------------------------

    async def stop_slots(self, numbers: Sequence[int]) -> None:
        """End the processes of these slots: each is asked to exit, and killed after a while."""
        slots = [self.slots[number] for number in numbers if number in self.slots]
        for slot in slots:
            slot.wanted = False
        self._slots_changed()
        await asyncio.gather(*map(self._stop_slot, slots))

    async def _stop_slot(self, slot: S) -> None:
        if slot.child is not None:
            await slot.child.stop(_STOP_TIMEOUT_S)
        if slot.task is not None:
            if slot.child is None:
                slot.task.cancel()
            await asyncio.wait((slot.task,))

    def kill_all(self) -> None:
        """The forced end: SIGKILL to every process."""
        self._ending = True
        for slot in self._ordered():
            slot.wanted = False
            if slot.child is not None:
                slot.child.kill(FORCED)

    async def stop(self) -> None:
        """End every process, and report each end. When cancelled it still waits for that; call ``kill_all`` first to end it soon."""
        self._ending = True
        self._watcher.cancel()
        ending = asyncio.ensure_future(self.stop_slots(list(self.slots)))
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            await ending
            raise


def _fail(first: asyncio.Future[None], error: ControlError) -> None:
    """Set the exception of a first start, if it is still waited for."""
    if not first.done():
        first.set_exception(error)
        first.exception()
