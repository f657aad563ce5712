"""The processors: started, watched, restarted and ended (``Respawner``), changed and drained. All on the event loop.

The state that every processor must have is in ``DesiredState``; it is changed through ``control.fleet.two_phases``. A processor that was
starting while a change was made gets the whole state once more, the same way, before it takes connections.

A slot that is not wanted any more is removed, with its status and its series of metrics; its counts stay in the sum under ``RETIRED``.
"""

import asyncio
import copy
import dataclasses
import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from framegate.control.accept.acceptor import Acceptor, Target
from framegate.control.errors import UnavailableError
from framegate.control.events import Bus, Row
from framegate.control.fleet.child import Reaper, SpawnOptions
from framegate.control.fleet.connections import Connections, end_cause
from framegate.control.fleet.desired_state import DesiredState
from framegate.control.fleet.process_slot import Respawner
from framegate.control.fleet.processor import COMMAND, KIND, Processor, Slot
from framegate.control.fleet.slot_cells import ProcessorTotals
from framegate.control.fleet.two_phases import PATIENCE_S, TwoPhases
from framegate.control.logs import RowLog
from framegate.control.meters import Meters
from framegate.control.status import RETIRED, ProcessorStatus
from framegate.control.task_monitor import TaskMonitor
from framegate.proxy.cells import CellLayout, CellReader
from framegate.proxy.config.model import ProxyConfig, difference_to_wire
from framegate.proxy.server.messages import Change, Report
from framegate.proxy.server.protocol import NOTICES, Message, drain_request, read_notice
from framegate.proxy.server.rows import DemandRow, RefusedFrameRow, RequestSpanRow, SeenBrokerRow

if TYPE_CHECKING:
    from framegate.control.fleet.handlers import Handlers
    from framegate.control.fleet.identity import AuthRequests


class Changed(NamedTuple):
    """The configuration in force before and after a change, both read within it."""

    before: ProxyConfig
    after: ProxyConfig


class Supervisor(Respawner[Slot, Processor]):
    """All processors of this framegate.

    Args:
        events: see ``Respawner``; also gets ``processor_ready``, and the rows of connections.
        on_begin, on_end: called before a process starts in a slot, and after it ended in any way, before its successor starts.
        inherited: descriptors that every processor keeps open as long as it lives.
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
        on_begin: Callable[[Slot], None] = lambda slot: None,
        on_end: Callable[[Slot, ProcessorTotals], None] = lambda slot, life: None,
        command: Sequence[str] = COMMAND,
        inherited: Sequence[int] = (),
        handlers: "Handlers | None" = None,
    ) -> None:
        super().__init__(SpawnOptions(KIND, command, reaper, log, inherited), events, meters, log, task_monitor, "slot", "heartbeats")
        self.desired = desired
        self._acceptor = acceptor
        self._on_begin = on_begin
        self._on_end = on_end
        # the handler processes, joined with each processor before it takes connections; None: no listener has a handler, or had one
        self.handlers = handlers
        self.auth_requests: AuthRequests | None = None  # passes requests to the auth worker pool; None: no authentication
        self._phases = TwoPhases(log)
        self.connections = Connections(acceptor, events)  # which processor has which connection
        self.on_refused: Callable[[RefusedFrameRow], None] = lambda row: None  # called when a processor reports a frame whose size it has refused
        # called with Kafka requests that have a span, and with the number of those that were skipped
        self.on_requests: Callable[[Sequence[RequestSpanRow], int], None] = lambda rows, skipped: None
        # called when a processor reports its demand for rates
        self.on_demand: Callable[[Processor, Sequence[DemandRow]], None] = lambda processor, rows: None
        # called with the upstream and the brokers when a processor saw others in an answer than those in force
        self.on_brokers_seen: Callable[[str, Sequence[SeenBrokerRow]], None] = lambda upstream, rows: None
        self._lead_in: tuple[float, int, int] | None = None  # when it began on the loop's clock, in s; its delay and timeout, in ms
        self._generations: dict[int, int] = {}
        self._cells: tuple[tuple[int, CellReader], ...] = ()

    # --- slots -----------------------------------------------------------------------------------------------------------------

    @property
    def running(self) -> list[Processor]:
        return [slot.child for slot in self._ordered() if slot.child is not None and slot.state in ("running", "draining")]

    @property
    def alive(self) -> list[Processor]:
        """All that were started and have not ended, by slot."""
        return [slot.child for slot in self._ordered() if slot.child is not None]

    @property
    def cells(self) -> list[tuple[int, CellReader]]:
        """The counters of every slot, by slot, after the sum of all removed ones under ``RETIRED``. Any thread."""
        return list(self._cells)

    def status(self) -> list[ProcessorStatus]:
        """Every slot."""
        return [slot.status() for slot in self._ordered()]

    async def start_slots(self, numbers: Sequence[int], *, held: bool = False) -> None:
        """Start a processor in each slot and wait until all are ready. Shares must be in the desired state. ``held``: they take no connections before
        ``release_slots``. Raises StartError: one could not start. Then, and when the call is cancelled, the others of this call are stopped again and
        the slots removed.
        """
        first: list[asyncio.Future[None]] = []
        try:
            first.extend(self._start_slot(number, held) for number in numbers)
            await asyncio.gather(*first)
        except BaseException:
            await self.discard_slots(numbers)
            raise

    def release_slots(self, numbers: Iterable[int]) -> None:
        """Let held processors take connections."""
        for number in numbers:
            self.slots[number].held = False
        self._slots_changed()

    def leave_slots(self, numbers: Iterable[int]) -> None:
        """Let processors take no more connections; one that ends has no successor."""
        for number in numbers:
            self.slots[number].leaving = True
        self._slots_changed()

    def _start_slot(self, number: int, held: bool) -> asyncio.Future[None]:
        if number not in self.slots:
            try:
                self.slots[number] = Slot(number, self.desired.layout, self._generations.get(number, 0))
            except OSError as error:
                raise KIND.start_error(number, f"could not be started: {error}") from error
            self._show_cells()
        self.slots[number].held = held
        return self._begin(self.slots[number])

    async def remove_slots(self, numbers: Iterable[int], timeout_ms: int) -> None:
        """Drain these slots, end their processors, and remove the slots."""
        there = [number for number in numbers if number in self.slots]
        self.leave_slots(there)
        await self.drain_slots(there, timeout_ms)
        await self.discard_slots(there)

    async def discard_slots(self, numbers: Sequence[int]) -> None:
        """End the processors of these slots without a drain, and remove the slots."""
        await self.stop_slots(numbers)
        gone = [self.slots.pop(number) for number in numbers if number in self.slots]
        for slot in gone:
            self._generations[slot.number] = slot.generation
        if gone:
            self._show_cells(*gone)
        for slot in gone:
            slot.cells.close()

    def _show_cells(self, *gone: Slot) -> None:
        """Exchange what other threads see in one step, so that no sum counts a slot twice or not at all."""
        layout = self.desired.layout
        former = [reader for number, reader in self._cells if number == RETIRED]
        retired = [reader if reader.layout is layout else reader.following(layout) for reader in former] + [slot.cells.reader for slot in gone]
        total = ((RETIRED, CellReader.sum_of(retired)),) if retired else ()
        self._cells = (*total, *((slot.number, slot.cells.reader) for slot in self._ordered()))

    def _spawn(self, slot: Slot) -> Processor:
        slot.boot_id = os.urandom(16).hex()  # not by secrets, which loads OpenSSL
        slot.cells.begin()
        self._on_begin(slot)
        try:
            processor = Processor(slot.number, slot.generation, slot.cells, self._spawn_options, self._notice)
        except OSError:
            self._on_end(slot, slot.cells.end())
            raise
        self.connections.enter(processor)
        return processor

    async def _bring_up(self, slot: Slot, child: Processor) -> None:
        revision = self.desired.revision
        await child.start(self.desired.start_message(slot.number, slot.generation, slot.boot_id))
        if self.handlers is not None:
            self.handlers.enter(child)

        def plan() -> dict[Processor, Change]:
            return {} if revision == self.desired.revision else {child: self.desired.whole(slot.number)}

        def serves() -> None:
            slot.state = "running"

        await self._phases.make(plan, lambda: None, serves)
        self._events.publish({"event": "processor_ready", "slot": slot.number, "pid": child.pid, "generation": slot.generation})
        self._slots_changed()
        await self._lead_in_slot(slot)

    def _release(self, slot: Slot, child: Processor) -> Row:
        self._slots_changed()
        child.close()
        lost_count = self.connections.forget(child)
        if self.auth_requests is not None:
            self.auth_requests.forget(child)
        slot.report_drained(0)
        self._on_end(slot, slot.cells.end(end_cause(child)))
        return {"connections": lost_count}

    # --- connections and notices -----------------------------------------------------------------------------------------------

    def _slots_changed(self) -> None:
        targets = [
            Target(slot.number, slot.child.handover, self.connections.token(slot.child))
            for slot in self._ordered()
            if slot.child is not None and slot.takes_connections
        ]
        self._acceptor.set_targets(targets)

    def _take_notice(self, child: Processor, message: Message) -> None:
        if message["type"] not in NOTICES:
            self._log.write("link_unknown", level="error", slot=child.slot, type=message["type"])
            return
        notice = read_notice(message)
        if notice["type"] == "closed" or notice["type"] == "opened" or notice["type"] == "access":
            logged = notice["type"] != "opened" or self.desired.config.log.access.open  # otherwise the rows are for other subscribers
            self.connections.reported(child, notice["type"], notice.get("rows", ()), self._row_failed, level="info" if logged else "debug")
        elif notice["type"] == "log":
            self._publish_log(child, notice)
        elif notice["type"] == "parted":
            if self.handlers is not None:
                self.handlers.parted(child, notice)
        elif notice["type"] == "drained":
            self.slots[child.slot].report_drained(notice["open"])
        else:
            self._take_report(child, notice)

    def _take_report(self, child: Processor, notice: Report) -> None:
        """Handle what a processor needs to know, or has learned."""
        if notice["type"] == "frame_refused":
            self.on_refused(notice["row"])
        elif notice["type"] == "request_spans":
            self.on_requests(notice["spans"], notice["skipped"])
        elif notice["type"] == "demand":
            self.on_demand(child, notice["demands"])
        elif notice["type"] == "brokers_seen":
            self.on_brokers_seen(notice["upstream"], notice["brokers"])
        elif self.auth_requests is not None:
            self.auth_requests.hear(child, notice)

    def _row_failed(self, error: Exception) -> None:
        self._task_monitor.failed("slot", error)

    def _look(self) -> None:
        self.connections.count_handed()
        super()._look()

    # --- changes ---------------------------------------------------------------------------------------------------------------

    async def change_config(
        self,
        edit: Callable[[ProxyConfig], ProxyConfig],
        check: Callable[[], None] = lambda: None,
        decided: Callable[[], None] = lambda: None,
        *,
        further: Callable[[int], Change] = lambda slot: Change(),
        commit: Callable[[DesiredState], None] = lambda desired: None,
    ) -> Changed:
        """Change keys of the configuration in force, as ``change``. ``edit``: the new configuration, from the one in force when earlier changes are
        done; may raise. ``commit``: what else changes, after the configuration is written into the desired state.
        """
        before = after = self.desired.config
        row: dict[str, Any] = {}

        def plan() -> None:
            nonlocal before, after, row
            check()
            before = self.desired.config
            after = edit(before)
            row = difference_to_wire(before, after)

        def build(slot: int) -> Change:
            return Change(**further(slot), config=row) if row else further(slot)

        def write(desired: DesiredState) -> None:
            nonlocal after
            # Keys that no processor has are changed without it, perhaps since ``plan``.
            after = desired.config = dataclasses.replace(desired.config, **{name: getattr(after, name) for name in row})
            commit(desired)

        await self.change(build, write, plan, decided)
        return Changed(before, after)

    def make_room(self, layout: CellLayout) -> None:
        """Make room for the counters of another layout in every slot, and map it, so that ``follow_layout`` cannot fail. Raises UnavailableError:
        there is no memory.
        """
        try:
            for slot in self._ordered() if layout is not self.desired.layout else ():
                slot.cells.make_room(layout)
        except (OSError, ValueError) as error:
            raise UnavailableError(f"no memory for counters: {error}", reason="NO_MEMORY") from error

    def follow_layout(self, layout: CellLayout) -> None:
        """Read the counters of all slots by another layout, which was made from the present one and has room."""
        self.desired.layout = layout
        for slot in self._ordered():
            slot.cells.follow(layout)
        self._show_cells()

    async def change(
        self,
        build: Callable[[int], Change],
        commit: Callable[[DesiredState], None],
        check: Callable[[], None] = lambda: None,
        decided: Callable[[], None] = lambda: None,
        done: Callable[[], None] = lambda: None,
    ) -> None:
        """Make a change in every processor or in none, and return when it is in force. When cancelled it is still made or taken back.

        Args:
            check: raises when the desired state does not allow the change; called when earlier changes are done.
            commit: writes it into the desired state, between the phases. If it raises, nothing is changed.
            decided: called when the change is committed. What it raises is reported (``task_failed``), for nothing can be taken back any more.
            done: called when every processor has it, before the next change; likewise.

        Raises AbortedError, UnavailableError: see ``TwoPhases.make``.
        """

        def plan() -> dict[Processor, Change]:
            check()
            return {processor: build(processor.slot) for processor in self.running if self.slots[processor.slot].wanted}

        def decide() -> None:
            before = copy.copy(self.desired)
            try:
                commit(self.desired)
            except BaseException:
                for field in dataclasses.fields(before):
                    setattr(self.desired, field.name, getattr(before, field.name))
                raise
            self.desired.revision += 1
            self.attempt(decided)

        await self._phases.make(plan, decide, lambda: self.attempt(done))

    def attempt(self, *steps: Callable[[], object]) -> None:
        """Take steps that follow from what is decided. One that fails is reported (``task_failed``), and the others are taken."""
        for step in steps:
            try:
                step()
            except Exception as error:
                self._task_monitor.failed(self._task, error)

    # --- drain and end -----------------------------------------------------------------------------------------------------------

    async def drain_slots(self, numbers: Sequence[int], timeout_ms: int, *, wait: bool = True) -> list[int]:
        """Let these slots take no more connections and end those they have at a frame boundary; at the deadline the processors close the rest.
        Returns the slots whose processors have not confirmed the drain; the log has a row for each.
        """
        slots = [self.slots[number] for number in numbers]
        begun = await asyncio.gather(*(self._drain_slot(slot, timeout_ms, wait) for slot in slots))
        return [slot.number for slot, drains in zip(slots, begun, strict=True) if not drains]

    async def lead_in_slots(self, delay_ms: int, timeout_ms: int) -> None:
        """Let all processors, also those that start later, end the connections of other pods, one by one, while they take new ones. One that cannot
        be told has a row.
        """
        self._lead_in = asyncio.get_running_loop().time(), delay_ms, timeout_ms
        await asyncio.gather(*(self._lead_in_slot(slot) for slot in self._ordered() if slot.state == "running"))

    async def _lead_in_slot(self, slot: Slot) -> None:
        if self._lead_in is None or slot.child is None:
            return
        began_s, delay_ms, timeout_ms = self._lead_in
        passed_ms = int((asyncio.get_running_loop().time() - began_s) * 1000)
        request = drain_request(max(0, timeout_ms - max(0, passed_ms - delay_ms)), max(0, delay_ms - passed_ms))
        try:
            await slot.child.request(request, int(PATIENCE_S * 1000))
        except UnavailableError as error:
            self._log.write("drain_incomplete", level="warning", slot=slot.number, reason=str(error))

    async def _drain_slot(self, slot: Slot, timeout_ms: int, wait: bool) -> bool:
        processor = slot.child
        if processor is None or slot.state not in ("running", "draining"):
            return True
        if slot.drained is None:
            slot.drained = asyncio.get_running_loop().create_future()
        slot.state = "draining"
        self._slots_changed()
        try:
            await processor.request(drain_request(timeout_ms), int(PATIENCE_S * 1000))
        except UnavailableError as error:
            self._log.write("drain_incomplete", level="warning", slot=slot.number, reason=str(error))
            if error.reason != "PROCESSOR_GONE":
                return False
            await asyncio.shield(slot.drained)  # its end is reported soon; until then its connections count as open
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

    def close(self) -> None:
        """Close the counters, after ``stop`` and after all readers."""
        for slot in self._ordered():
            slot.cells.close()
