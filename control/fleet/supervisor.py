"""The processors: started, watched, restarted, changed and ended. All on the event loop.

Each slot has one task that starts a process, waits for its end and starts the next after a growing pause (0.1 to 10 s); what cannot be started is
tried again the same way. A process whose heartbeat stands for 10 s is killed, for whatever else it may be needed. What a process must know
is in ``DesiredState``; a change of them goes through ``control.fleet.two_phases``. A process that was starting while a change was made gets all of it
once more, the same way, before it may take connections.

A slot that is not wanted any more goes, with its status and its series of metrics; what it counted stays in the sum under ``RETIRED``.
"""

import asyncio
import functools
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from framegate.control.accept.acceptor import Acceptor, Target
from framegate.control.errors import UnavailableError
from framegate.control.events import Bus, Row
from framegate.control.fleet.child import SpawnOptions
from framegate.control.fleet.connections import Connections
from framegate.control.fleet.demands import Demands
from framegate.control.fleet.desired_state import DesiredState
from framegate.control.fleet.lost_connections import FORCED, end_cause
from framegate.control.fleet.process_slot import Respawner
from framegate.control.fleet.processor import COMMAND, KIND, Processor
from framegate.control.fleet.reaper import Reaper
from framegate.control.fleet.slot import Slot
from framegate.control.fleet.slot_cells import ProcessorTotals
from framegate.control.fleet.two_phases import PATIENCE_S, TwoPhases
from framegate.control.logs import RowLog
from framegate.control.meters import Meters
from framegate.control.status import RETIRED, ProcessorStatus
from framegate.control.task_monitor import TaskMonitor
from framegate.proxy.cells import CellLayout, CellReader
from framegate.proxy.server.messages import Change, PartedNotice
from framegate.proxy.server.protocol import NOTICES, Message, drain_request, read_notice

if TYPE_CHECKING:
    from framegate.control.fleet.auth_requests import AuthRequests

__all__ = ["Supervisor"]

HEARTBEAT_LIMIT_S: Final = 10.0
_WATCH_INTERVAL_S: Final = 0.5
_WATCH_STANDS_S: Final = 5.0


class Supervisor:
    """All processors of this framegate.

    Args:
        desired: changed in place by committed changes.
        acceptor: gets the processors that take connections.
        guard: watches over what watches over the processors.
        events: gets every row that others may see (``closed``, ``processor_died``, …), and what processors log.
        on_ready: is called when a processor is up, before it takes connections.
        on_begin, on_end: are called before a process starts in a slot, and after it ended in whatever way, before its successor starts.
        on_parted: called when a processor reports a broken socket to a handler process.
        inherited: descriptors that every processor keeps as long as it lives.
        auth_requests: the way to the auth worker pool; None: no authentication.

    Attributes:
        connections: which processor has which connection.
        demands: what is asked of the rates.
    """

    def __init__(
        self,
        desired: DesiredState,
        acceptor: Acceptor,
        reaper: Reaper,
        meters: Meters,
        log: RowLog,
        task_monitor: TaskMonitor,
        *,
        events: Bus,
        on_ready: Callable[[Processor], None] = lambda processor: None,
        on_begin: Callable[[Slot], None] = lambda slot: None,
        on_end: Callable[[Slot, ProcessorTotals], None] = lambda slot, life: None,
        on_parted: Callable[[Processor, PartedNotice], None] = lambda processor, notice: None,
        command: Sequence[str] = COMMAND,
        inherited: Sequence[int] = (),
        auth_requests: "AuthRequests | None" = None,
    ) -> None:
        self.desired = desired
        self.slots: dict[int, Slot] = {}
        self._acceptor = acceptor
        self._meters = meters
        self._log = log
        self._events = events
        self._on_begin = on_begin
        self._on_end = on_end
        self._on_ready = on_ready
        self._on_parted = on_parted
        self._auth_requests = auth_requests
        self._spawn_options = SpawnOptions(KIND, command, reaper, log, inherited)
        self._respawner = Respawner(KIND, log, task_monitor, "slot")
        self._layout = CellLayout.of(desired.config)
        self._phases = TwoPhases(log)
        self.connections = Connections(acceptor, desired, events)
        self.demands = Demands()
        self._generations: dict[int, int] = {}
        self._cells: tuple[tuple[int, CellReader], ...] = ()
        self._ending = False
        self._task_monitor = task_monitor
        self._watcher = asyncio.create_task(task_monitor.job("heartbeats", _WATCH_STANDS_S).keep_going(self._watch))

    # --- slots -----------------------------------------------------------------------------------------------------------------

    @property
    def running(self) -> list[Processor]:
        """Processors that answer, by slot."""
        return [slot.processor for slot in self._ordered() if slot.processor is not None and slot.state in ("running", "draining")]

    @property
    def alive(self) -> list[Processor]:
        """All that were started and have not ended, by slot."""
        return [slot.processor for slot in self._ordered() if slot.processor is not None]

    @property
    def cells(self) -> list[tuple[int, CellReader]]:
        """The counters of every slot that there is, by slot, after those of all that are gone under ``RETIRED``. Any thread."""
        return list(self._cells)

    def _ordered(self) -> list[Slot]:
        return [slot for _, slot in sorted(self.slots.items())]

    def status(self) -> list[ProcessorStatus]:
        """Every slot."""
        return [slot.status() for slot in self._ordered()]

    async def start_slots(self, numbers: Sequence[int]) -> None:
        """Start a processor in each slot and wait until all are ready. Shares must be in the desired state.

        Raises:
            StartError: one could not start. Then, and when the call is cancelled, the others of this call are stopped again and the slots are gone.
        """
        first: list[asyncio.Future[None]] = []
        try:
            first.extend(map(self._start_slot, numbers))
            await asyncio.gather(*first)
        except BaseException:
            await self._forget_slots(numbers)
            raise

    def _start_slot(self, number: int) -> asyncio.Future[None]:
        if self._ending:
            raise KIND.start_error(number, "is not started: the proxy ends")
        if number not in self.slots:
            try:
                self.slots[number] = Slot(number, self._layout, list(self._acceptor.listeners), self._generations.get(number, 0))
            except OSError as error:
                raise KIND.start_error(number, f"could not be started: {error}") from error
            self._show_cells()
        slot = self.slots[number]
        return self._respawner.begin(slot, functools.partial(self._live, slot))

    async def remove_slots(self, numbers: Sequence[int], timeout_ms: int) -> None:
        """Let these slots drain, end their processors, and forget the slots."""
        for number in numbers:
            self.slots[number].leaving = True
        await self.drain_slots(numbers, timeout_ms)
        await self._forget_slots(numbers)

    async def _forget_slots(self, numbers: Sequence[int]) -> None:
        await self.stop_slots(numbers)
        gone = [self.slots.pop(number) for number in numbers if number in self.slots]
        for slot in gone:
            self._generations[slot.number] = slot.generation
        if gone:
            self._show_cells(*gone)
        for slot in gone:
            slot.cells.close()

    def _show_cells(self, *gone: Slot) -> None:
        """What other threads see, exchanged in one go, so that no sum of theirs has a slot twice, or not at all."""
        retired = [reader for number, reader in self._cells if number == RETIRED] + [slot.cells.reader for slot in gone]
        total = ((RETIRED, CellReader.sum_of(retired)),) if retired else ()
        self._cells = (*total, *((slot.number, slot.cells.reader) for slot in self._ordered()))

    async def stop_slots(self, numbers: Sequence[int]) -> None:
        """End the processors of these slots: they flush and exit, or are killed after a while."""
        slots = [self.slots[number] for number in numbers if number in self.slots]
        for slot in slots:
            slot.wanted = False
        self._update_targets()
        await asyncio.gather(*(self._respawner.end(slot) for slot in slots))

    async def _live(self, slot: Slot, first: asyncio.Future[None]) -> None:
        processor = self._spawn(slot)
        try:
            await self._bring_up(slot, processor)
        except BaseException:
            processor.kill("died")
            await processor.ended
            self._release(slot, processor)
            raise
        if not first.done():
            first.set_result(None)
        await processor.ended
        self._ended(slot, processor)

    def _spawn(self, slot: Slot) -> Processor:
        slot.next_life()
        slot.boot_id = uuid.uuid4().hex
        slot.cells.begin()
        self._on_begin(slot)
        try:
            slot.processor = Processor(slot.number, slot.generation, slot.cells, self._spawn_options, self._notice)
        except OSError as error:
            self._on_end(slot, slot.cells.end())
            raise KIND.start_error(slot.number, f"could not be started: {error}") from error
        self.connections.enter(slot.processor)
        return slot.processor

    async def _bring_up(self, slot: Slot, processor: Processor) -> None:
        revision = self.desired.revision
        await processor.start(self.desired.start_message(slot.number, slot.generation, slot.boot_id))
        self._on_ready(processor)

        def plan() -> dict[Processor, Change]:
            return {} if revision == self.desired.revision else {processor: self.desired.whole(slot.number)}

        def serves() -> None:
            slot.state = "running"

        await self._phases.make(plan, lambda: None, serves)
        self._events.publish({"event": "processor_ready", "slot": slot.number, "pid": processor.pid, "generation": slot.generation})
        self._update_targets()

    def _ended(self, slot: Slot, processor: Processor) -> None:
        code = processor.ended.result()
        casualties = self._release(slot, processor)
        event: Row = {"slot": slot.number, "pid": processor.pid, "generation": slot.generation, "exit_code": code, "connections": casualties}
        if processor.kill_reason == FORCED:
            self._events.publish({"event": "processor_stopped", "level": "warning", "forced": True, **event}, level="warning")
            return
        if not slot.wanted and code == 0:
            self._log.write("processor_stopped", **event)
            return
        reason = processor.kill_reason or "died"
        if slot.wanted:
            self._meters.add("worker.restarts", reason if reason in ("heartbeat", "commit") else "died")
        self._events.publish({"event": "processor_died", "level": "error", "reason": reason, **event}, level="error")

    def _release(self, slot: Slot, processor: Processor) -> int:
        """Give back what a dead processor held, account for what went with it; how many connections that were."""
        slot.processor = None
        slot.state = "stopped"
        self._update_targets()
        processor.close()
        casualties = self.connections.forget(processor)
        self.demands.forget(processor)
        if self._auth_requests is not None:
            self._auth_requests.forget(processor)
        if slot.drained is not None and not slot.drained.done():
            slot.drained.set_result(0)
        self._on_end(slot, slot.cells.end(end_cause(processor)))
        return casualties

    # --- connections and notices -----------------------------------------------------------------------------------------------

    def _update_targets(self) -> None:
        targets = [
            Target(slot.number, slot.processor.handover, self.connections.token(slot.processor))
            for slot in self._ordered()
            if slot.processor is not None and slot.takes_connections
        ]
        self._acceptor.set_targets(targets)

    def _notice(self, processor: Processor, message: Message) -> None:
        """What a processor tells; what cannot be read, or fails, costs that and no more."""
        try:
            self._take_notice(processor, message)
        except Exception as error:
            self._task_monitor.failed("slot", error)

    def _take_notice(self, processor: Processor, message: Message) -> None:
        if message["type"] not in NOTICES:
            self._log.write("link_unknown", level="error", slot=processor.slot, type=message["type"])
            return
        notice = read_notice(message)
        if notice["type"] == "closed":
            self.connections.closed(processor, notice.get("rows", ()), lambda error: self._task_monitor.failed("slot", error))
        elif notice["type"] == "opened" or notice["type"] == "access":
            level = "debug" if notice["type"] == "opened" and not self.desired.config.log.access.open else "info"  # made for others than the log
            self.connections.reported(notice["type"], notice.get("rows", ()), lambda error: self._task_monitor.failed("slot", error), level=level)
        elif notice["type"] == "log":
            fields = {"slot": processor.slot, **notice["fields"]}
            row = {"event": notice["event"], "generation": processor.generation, **fields}
            self._events.publish(row, level=notice["level"], line=fields)
        elif notice["type"] == "demand":
            self.demands.hear(processor, notice["demands"])
        elif notice["type"] == "parted":
            self._on_parted(processor, notice)
        elif self._auth_requests is not None and (notice["type"] == "question" or notice["type"] == "forget"):
            self._auth_requests.hear(processor, notice)
        elif notice["type"] == "drained":
            slot = self.slots[processor.slot]
            if slot.drained is not None and not slot.drained.done():
                slot.drained.set_result(notice["open"])

    # --- changes ---------------------------------------------------------------------------------------------------------------

    async def change(
        self,
        build: Callable[[int], Change],
        commit: Callable[[DesiredState], None],
        check: Callable[[], None] = lambda: None,
        decided: Callable[[], None] = lambda: None,
    ) -> None:
        """Make a change in every processor or in none, and return when it is in force; cancelled, it still ends one way or the other.

        Args:
            build: the change for a slot.
            check: raises when the desired state does not allow the change; called when earlier changes are done.
            commit: writes it into the desired state, between the phases.
            decided: called when the change is committed.

        Raises:
            AbortedError, UnavailableError: see ``TwoPhases.make``.
        """

        def plan() -> dict[Processor, Change]:
            check()
            return {processor: build(processor.slot) for processor in self.running if self.slots[processor.slot].wanted}

        def decide() -> None:
            commit(self.desired)
            self.desired.revision += 1
            decided()

        await self._phases.make(plan, decide)

    # --- health, drain and end -------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        await asyncio.sleep(_WATCH_INTERVAL_S)
        self.connections.count_handed()
        for slot in self._ordered():
            processor = slot.processor
            if processor is None or not processor.ready:
                continue
            if processor.heartbeat.look(slot.cells.reader.heartbeat_ns) * _WATCH_INTERVAL_S >= HEARTBEAT_LIMIT_S:
                reason = f"its heartbeat stands for {HEARTBEAT_LIMIT_S:g} s"
                processor.log("killed", level="error", reason=reason)
                processor.kill("heartbeat")

    async def drain_slots(self, numbers: Sequence[int], timeout_ms: int, *, wait: bool = True) -> list[int]:
        """Let these slots take no more connections and end those they have at a frame boundary; at the deadline the processors close the rest.

        Returns:
            The slots whose processors have not said that they do so; each is in a row of the log, too.
        """
        slots = [self.slots[number] for number in numbers]
        begun = await asyncio.gather(*(self._drain_slot(slot, timeout_ms, wait) for slot in slots))
        return [slot.number for slot, drains in zip(slots, begun, strict=True) if not drains]

    async def _drain_slot(self, slot: Slot, timeout_ms: int, wait: bool) -> bool:
        processor = slot.processor
        if processor is None or slot.state not in ("running", "draining"):
            return True
        if slot.drained is None:
            slot.drained = asyncio.get_running_loop().create_future()
        slot.state = "draining"
        self._update_targets()
        try:
            await processor.request(drain_request(timeout_ms), int(PATIENCE_S * 1000))
        except UnavailableError as error:
            self._log.write("drain_incomplete", level="warning", slot=slot.number, reason=str(error))
            if error.reason != "PROCESSOR_GONE":
                return False
            await asyncio.shield(slot.drained)  # its end is on its way; until then its connections count as open
        if wait:
            try:
                async with asyncio.timeout(timeout_ms / 1000 + 2.0):
                    await asyncio.shield(slot.drained)
            except TimeoutError:
                self._log.write("drain_incomplete", level="warning", slot=slot.number, reason="the deadline of the drain passed")
        return True

    async def drained(self) -> None:
        """Wait until none of the slots that drain has a connection."""
        await asyncio.gather(*(asyncio.shield(slot.drained) for slot in self._ordered() if slot.drained is not None))

    def kill_all(self) -> None:
        """The forced end: SIGKILL to every processor."""
        self._ending = True
        for slot in self._ordered():
            slot.wanted = False
            if slot.processor is not None:
                slot.processor.kill(FORCED)

    async def stop(self) -> None:
        """End every processor, and account for each end. Cancelled, it waits for that all the same: who cuts it off kills first (``kill_all``)."""
        self._ending = True
        self._watcher.cancel()
        ending = asyncio.ensure_future(self.stop_slots(list(self.slots)))
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            await ending
            raise

    def close(self) -> None:
        """Give the counters back, after ``stop`` and after everybody who reads them."""
        for slot in self._ordered():
            slot.cells.close()
