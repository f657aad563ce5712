"""The processors: started, watched, restarted, changed and ended. All on the event loop.

Each slot has one task that starts a process, waits for its end and starts the next after a growing pause (0.1 to 10 s). A process whose
heartbeat stands for 10 s is killed. What a process must know is in ``Facts``; a change of them goes through two phases:

    prepare     every running processor says prepared; refused or silent for 500 ms: abort everywhere, nobody has the change
    commit      the facts are changed here, then every processor confirms; one that does not within 500 ms is killed, and its successor
                starts with the new facts

One lock serializes changes. A process that was starting while a change was made gets all facts once more, the same way, before it may take
connections.
"""

import asyncio
import contextlib
import dataclasses
import itertools
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Final

from control.acceptor import Acceptor, Target
from control.errors import AbortedError, ControlError, UnavailableError
from control.guard import Guard
from control.logs import RowLog
from control.meters import Meters
from control.plane import ProcessorState, ProcessorStatus, Row
from control.processor import COMMAND, Processor
from control.reaper import Reaper
from control.slot_cells import Life, SlotCells
from proxy.cells import CellLayout, CellReader
from proxy.config.model import ProxyConfig, to_wire
from proxy.network.connection_id import format_connection_id, make_connection_id
from proxy.server.link import Handover, decode_closed

__all__ = ["CONFIRM_MS", "Change", "Facts", "Supervisor"]

CONFIRM_MS: Final = 500
HEARTBEAT_LIMIT_S: Final = 10.0
STOP_TIMEOUT_S: Final = 7.0
_WATCH_INTERVAL_S: Final = 0.5
_WATCH_STANDS_S: Final = 5.0
_BACKOFF_FIRST_S: Final = 0.1
_BACKOFF_MOST_S: Final = 10.0
_HEALTHY_AFTER_S: Final = 10.0
_GENERATION_EPOCH_S: Final = 1_735_689_600
_GENERATION_MASK: Final = 2**28 - 1
_LAST_COUNTER: Final = 2**29 - 1

Endpoints = dict[str, list[list[Any]]]
Change = dict[str, Any]


@dataclasses.dataclass(slots=True)
class Facts:
    """What every processor must agree on.

    Attributes:
        config: with the limits and the pool size in force.
        endpoints: addresses of each upstream, resolved.
        shares: bytes of the memory pool by slot.
        tls_files: certificates, keys and authorities, by path, as they were at the start of control (``control.configuration.tls_files``).
        revision: grows with every committed change.
    """

    config: ProxyConfig
    endpoints: Endpoints
    shares: dict[int, int]
    revision: int = 1
    tls_files: dict[str, str] = dataclasses.field(default_factory=dict, repr=False)

    def whole(self, slot: int) -> Change:
        """All of it as one change for one slot."""
        limits = {listener.name: listener.max_receive_size for listener in self.config.listeners}
        return {"max_receive_size": limits, "share": self.shares[slot], "endpoints": self.endpoints}


class Slot:
    """One place for a processor, with the counters that outlive it."""

    def __init__(self, number: int, layout: CellLayout, listeners: Sequence[str]) -> None:
        self.number = number
        self.cells = SlotCells(number, layout, listeners)
        self.generation = 0
        self.restarts = 0
        self.wanted = True
        self.state: ProcessorState = "stopped"
        self.processor: Processor | None = None
        self.boot_id = ""
        self.started_ns = 0
        self.drained: asyncio.Future[int] | None = None
        self.backoff_s = _BACKOFF_FIRST_S
        self.task: asyncio.Task[None] | None = None

    def next_generation(self) -> int:
        """Seconds since 2025 (28 bits, 8.5 years), or one more than the last: unique over restarts of control too."""
        self.generation = max(self.generation + 1, int(time.time()) - _GENERATION_EPOCH_S & _GENERATION_MASK)
        return self.generation

    def heartbeat_age_ms(self) -> int:
        """Since the loop's last sign of life; -1 without a process that has given one."""
        reader = self.cells.reader
        if self.processor is None or reader.generation != self.generation or reader.heartbeat_ns == 0:
            return -1
        return max(0, (time.monotonic_ns() - reader.heartbeat_ns) // 1_000_000)


class Supervisor:
    """All processors of this framegate.

    Args:
        facts: changed in place by committed changes.
        acceptor: is told which processors take connections.
        on_event: gets every row that others may see (``closed``, ``processor_died``, …).
        on_begin, on_end: are called before a process starts in a slot, and after it ended in whatever way, before its successor starts.
    """

    def __init__(
        self,
        facts: Facts,
        acceptor: Acceptor,
        reaper: Reaper,
        meters: Meters,
        log: RowLog,
        guard: Guard,
        *,
        on_event: Callable[[Row], None],
        on_begin: Callable[[Slot], None] = lambda slot: None,
        on_end: Callable[[Slot, Life], None] = lambda slot, life: None,
        command: Sequence[str] = COMMAND,
    ) -> None:
        self.facts = facts
        self.slots: dict[int, Slot] = {}
        self._acceptor = acceptor
        self._reaper = reaper
        self._meters = meters
        self._log = log
        self._on_event = on_event
        self._on_begin = on_begin
        self._on_end = on_end
        self._command = command
        self._layout = CellLayout.of(facts.config)
        self._lock = asyncio.Lock()
        self._tokens: dict[int, Processor] = {}
        self._last_token = itertools.count(1)
        self._token_of: dict[Processor, int] = {}
        self._watcher = asyncio.create_task(guard.job("heartbeats", _WATCH_STANDS_S).keep_going(self._watch))

    # --- slots -----------------------------------------------------------------------------------------------------------------

    @property
    def running(self) -> list[Processor]:
        """Processors that answer, by slot."""
        return [slot.processor for slot in self._ordered() if slot.processor is not None and slot.state in ("running", "draining")]

    @property
    def cells(self) -> list[tuple[int, CellReader]]:
        """The counters of every slot that ever ran."""
        return [(number, slot.cells.reader) for number, slot in sorted(self.slots.items())]

    def _ordered(self) -> list[Slot]:
        return [slot for _, slot in sorted(self.slots.items())]

    def status(self) -> list[ProcessorStatus]:
        """Every slot."""
        return [
            ProcessorStatus(
                slot=slot.number,
                pid=slot.processor.pid if slot.processor else 0,
                generation=slot.generation,
                state=slot.state,
                restarts=slot.restarts,
                heartbeat_age_ms=slot.heartbeat_age_ms(),
            )
            for slot in self._ordered()
        ]

    async def start_slots(self, numbers: Sequence[int]) -> None:
        """Start a processor in each slot and wait until all are ready. Shares must be in the facts.

        Raises:
            StartError: one could not start; the others of this call are stopped again.
        """
        first = [self._start_slot(number) for number in numbers]
        results = await asyncio.gather(*first, return_exceptions=True)
        failed = [result for result in results if isinstance(result, BaseException)]
        if failed:
            await self.stop_slots(numbers)
            raise failed[0]

    def _start_slot(self, number: int) -> asyncio.Future[None]:
        if number not in self.slots:
            self.slots[number] = Slot(number, self._layout, list(self._acceptor.listeners))
        slot = self.slots[number]
        slot.wanted = True
        slot.drained = None
        slot.backoff_s = _BACKOFF_FIRST_S
        first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        slot.task = asyncio.create_task(self._run(slot, first))
        return first

    async def stop_slots(self, numbers: Sequence[int]) -> None:
        """End the processors of these slots: they flush and exit, or are killed after a while."""
        slots = [self.slots[number] for number in numbers if number in self.slots]
        for slot in slots:
            slot.wanted = False
        self._update_targets()
        await asyncio.gather(*(self._stop_slot(slot) for slot in slots))

    async def _stop_slot(self, slot: Slot) -> None:
        if slot.processor is not None:
            await slot.processor.stop(STOP_TIMEOUT_S)
        if slot.task is not None:
            if slot.processor is None:
                slot.task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await slot.task
            slot.task = None

    async def _run(self, slot: Slot, first: asyncio.Future[None]) -> None:
        """A slot's life: one process after another until the slot is not wanted."""
        while slot.wanted:
            processor = self._spawn(slot)
            began = time.monotonic()
            try:
                await self._bring_up(slot, processor)
            except ControlError as error:
                processor.kill("died")
                await processor.ended
                self._buried(slot, processor)
                if not first.done():
                    first.set_exception(error)
                    return
                self._log.write("processor_start_failed", level="error", slot=slot.number, error=str(error))
            else:
                if not first.done():
                    first.set_result(None)
                code = await processor.ended
                self._died(slot, processor, code)
            if slot.wanted:
                await self._pause(slot, time.monotonic() - began)

    def _spawn(self, slot: Slot) -> Processor:
        slot.state = "starting" if slot.restarts == 0 else "restarting"
        slot.next_generation()
        slot.boot_id = uuid.uuid4().hex
        slot.started_ns = time.time_ns()
        slot.cells.begin()
        self._on_begin(slot)
        slot.processor = Processor(slot.number, slot.generation, slot.cells, self._reaper, self._log, self._notice, self._command)
        token = next(self._last_token)
        self._tokens[token] = slot.processor
        self._token_of[slot.processor] = token
        return slot.processor

    async def _bring_up(self, slot: Slot, processor: Processor) -> None:
        revision = self.facts.revision
        await processor.start(
            {
                "type": "start",
                "config": to_wire(self.facts.config),
                "slot": slot.number,
                "generation": slot.generation,
                "boot_id": slot.boot_id,
                "share": self.facts.shares[slot.number],
                "endpoints": self.facts.endpoints,
                "files": self.facts.tls_files,
            }
        )
        async with self._lock:
            if revision != self.facts.revision:
                await self._two_phases({processor: self.facts.whole(slot.number)}, lambda: None)
            slot.state = "running"
        self._log.write("processor_ready", slot=slot.number, pid=processor.pid, generation=slot.generation)
        self._update_targets()

    async def _pause(self, slot: Slot, ran_s: float) -> None:
        if ran_s >= _HEALTHY_AFTER_S:
            slot.backoff_s = _BACKOFF_FIRST_S
        slot.state = "restarting"
        slot.restarts += 1
        await asyncio.sleep(slot.backoff_s)
        slot.backoff_s = min(slot.backoff_s * 2, _BACKOFF_MOST_S)

    def _died(self, slot: Slot, processor: Processor, code: int) -> None:
        expected = not slot.wanted and code == 0
        victims = self._buried(slot, processor)
        event: Row = {"slot": slot.number, "pid": processor.pid, "generation": slot.generation, "exit_code": code, "connections": victims}
        if expected:
            self._log.write("processor_stopped", **event)
            return
        reason = processor.kill_reason or "died"
        if slot.wanted:
            self._meters.add("worker.restarts", reason if reason in ("heartbeat", "commit") else "died")
        self._emit({"event": "processor_died", "level": "error", "reason": reason, **event})

    def _buried(self, slot: Slot, processor: Processor) -> int:
        """Give back what a dead processor held, account for what went with it; how many connections that were."""
        slot.processor = None
        slot.state = "stopped"
        self._update_targets()
        self.count_handed()
        processor.close()
        self._tokens.pop(self._token_of.pop(processor))
        if slot.drained is not None and not slot.drained.done():
            slot.drained.set_result(0)
        self._on_end(slot, slot.cells.bury())
        victims = [handover for handover in processor.open.values() if handover is not None]
        offset_ns = time.time_ns() - time.monotonic_ns()
        for index, handover in enumerate(victims):
            self._acceptor.listeners[handover.listener].closed += 1
            self._emit(self._victim_row(processor, _LAST_COUNTER - index, handover, handover.accepted_ns + offset_ns))
        return len(victims)

    def _victim_row(self, processor: Processor, counter: int, handover: Handover, opened_ns: int) -> Row:
        """The closed row of a connection that went with its processor. Its id and counts went too: the id here counts down from the last possible."""
        nothing = {"request": 0, "response": 0}
        return {
            "event": "closed",
            "id": make_connection_id(processor.slot, processor.generation, counter),
            "listener": handover.listener,
            "peer": handover.peer,
            "upstream": next(item.upstream for item in self.facts.config.listeners if item.name == handover.listener),
            "principal": None,
            "cause": "processor_died",
            "detail": f"exit code {processor.ended.result()}; the counts went with the processor",
            "side": "internal",
            "state": "",
            "opened_ns": opened_ns,
            "closed_ns": time.time_ns(),
            "frames": nothing,
            "bytes": nothing,
            "lost": {"bytes": 0},
            "mutes": {},
        }

    def _emit(self, row: Row) -> None:
        fields = dict(row)
        event, level = str(fields.pop("event")), str(fields.pop("level", "info"))
        if event == "closed":
            fields["id"] = format_connection_id(row["id"])
        self._log.write(event, level=level, **fields)
        self._on_event(row)

    # --- connections and notices -----------------------------------------------------------------------------------------------

    def _update_targets(self) -> None:
        targets = [
            Target(slot.number, slot.processor.handover, self._token_of[slot.processor])
            for slot in self._ordered()
            if slot.processor is not None and slot.state == "running" and slot.wanted and slot.drained is None
        ]
        self._acceptor.set_targets(targets)

    def count_handed(self) -> None:
        """Book the connections that the acceptor handed over since the last look; before anything is taken off the books."""
        handed = self._acceptor.handed
        while handed:
            token, handover = handed.popleft()
            processor = self._tokens.get(token)
            if processor is None:
                self._acceptor.listeners[handover.listener].closed += 1
            elif processor.open.setdefault(handover.accepted_ns, handover) is None:
                del processor.open[handover.accepted_ns]

    def _notice(self, processor: Processor, message: Row) -> None:
        kind = message["type"]
        if kind == "closed":
            self.count_handed()
            for line in message["rows"]:
                self._closed(processor, line)
        elif kind == "log":
            self._log.write(message["event"], level=message["level"], slot=processor.slot, **message["fields"])
        elif kind == "drained":
            slot = self.slots[processor.slot]
            if slot.drained is not None and not slot.drained.done():
                slot.drained.set_result(int(message["open"]))
        else:
            self._log.write("link_unknown", level="error", slot=processor.slot, type=kind)

    def _closed(self, processor: Processor, line: str) -> None:
        accepted_ns, text, row = decode_closed(line)
        self._acceptor.listeners[row["listener"]].closed += 1
        if processor.open.pop(accepted_ns, None) is None:  # the acceptor's thread has handed it over, and has not come to saying so
            processor.open[accepted_ns] = None
        self._log.write_encoded("closed", text)
        row["event"] = "closed"
        self._on_event(row)

    # --- changes ---------------------------------------------------------------------------------------------------------------

    async def change(self, build: Callable[[int], Change], commit: Callable[[Facts], None], check: Callable[[], None] = lambda: None) -> None:
        """Make a change in every processor or in none, and return when it is in force.

        Args:
            build: the change for a slot.
            check: raises when the facts do not allow the change; asked under the lock.
            commit: writes it into the facts, between the phases.

        Raises:
            AbortedError: a processor refused or was silent.
        """

        def decide() -> None:
            commit(self.facts)
            self.facts.revision += 1

        async with self._lock:
            check()
            changes = {processor: build(processor.slot) for processor in self.running if self.slots[processor.slot].wanted}
            await self._two_phases(changes, decide)

    async def _two_phases(self, changes: dict[Processor, Change], decide: Callable[[], None]) -> None:
        numbers = {processor: processor.link.next_id() for processor in changes}
        reasons = await asyncio.gather(*(self._prepare(processor, numbers[processor], change) for processor, change in changes.items()))
        refused = [f"processor {processor.slot}: {reason}" for processor, reason in zip(changes, reasons, strict=True) if reason]
        if refused:
            for processor, number in numbers.items():
                processor.link.post({"type": "abort", "id": number})
            raise AbortedError(f"no processor has the change: {'; '.join(refused)}", reason="CHANGE_REFUSED")
        decide()
        await asyncio.gather(*(self._commit(processor, number) for processor, number in numbers.items()))

    async def _prepare(self, processor: Processor, number: int, change: Change) -> str:
        """Why the processor will not have the change; empty when it will, or when it is gone: its successor starts with the new facts."""
        try:
            answer = await processor.link.request({"type": "prepare", "change": change}, CONFIRM_MS, number)
        except UnavailableError as error:
            return "" if error.reason == "PROCESSOR_GONE" else str(error)
        return "" if answer["type"] == "prepared" else str(answer.get("reason", answer["type"]))

    async def _commit(self, processor: Processor, number: int) -> None:
        """After the decision there is no way back: a processor that does not confirm is replaced by one that has the change."""
        try:
            answer = await processor.link.request({"type": "commit"}, CONFIRM_MS, number)
            confirmed = answer["type"] == "committed"
        except UnavailableError:
            confirmed = False
        if not confirmed and not processor.ended.done():
            self._log.write("processor_killed", level="error", slot=processor.slot, pid=processor.pid, reason="did not confirm a change")
            processor.kill("commit")

    # --- health, drain and end -------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        await asyncio.sleep(_WATCH_INTERVAL_S)
        self.count_handed()
        for slot in self._ordered():
            if slot.processor is not None and slot.state == "running" and slot.heartbeat_age_ms() > HEARTBEAT_LIMIT_S * 1000:
                self._log.write("processor_killed", level="error", slot=slot.number, pid=slot.processor.pid, reason="its heartbeat stands for 10 s")
                slot.processor.kill("heartbeat")

    async def drain_slots(self, numbers: Sequence[int], timeout_ms: int, *, wait: bool = True) -> None:
        """Let these slots take no more connections and end those they have at a frame boundary; at the deadline the processors close the rest."""
        await asyncio.gather(*(self._drain_slot(self.slots[number], timeout_ms, wait) for number in numbers))

    async def _drain_slot(self, slot: Slot, timeout_ms: int, wait: bool) -> None:
        processor = slot.processor
        if processor is None or slot.state not in ("running", "draining"):
            return
        if slot.drained is None:
            slot.drained = asyncio.get_running_loop().create_future()
        slot.state = "draining"
        self._update_targets()
        try:
            await processor.request({"type": "drain", "timeout_ms": timeout_ms}, timeout_ms=CONFIRM_MS)
            if wait:
                async with asyncio.timeout(timeout_ms / 1000 + 2.0):
                    await asyncio.shield(slot.drained)
        except (UnavailableError, TimeoutError) as error:
            reason = str(error) or "the deadline of the drain passed"
            self._log.write("drain_incomplete", level="warning", slot=slot.number, reason=reason)

    def kill_all(self) -> None:
        """The forced end: SIGKILL to every processor."""
        for slot in self._ordered():
            slot.wanted = False
            if slot.processor is not None:
                slot.processor.kill("stop")

    async def stop(self) -> None:
        """End every processor and give everything back."""
        self._watcher.cancel()
        await self.stop_slots(list(self.slots))

    def close(self) -> None:
        """Give the counters back, after ``stop`` and after everybody who reads them."""
        for slot in self._ordered():
            slot.cells.close()
