"""The handler processes: started, watched, restarted and ended (``Respawner``), and joined with the processors. All on the event loop.

A process that is in a handler for longer than ``handlers.timeout``, or uses more memory than ``handlers.memory``, is killed, with every process that
its handlers have started. Only connections with a frame in it are affected. When the socket between a processor and a handler process breaks,
both stay (``wiring``).

For other handlers while framegate runs, other processes are started in slots of their own (``stage``). Once the configuration is in force, they are
joined with the processors; those before them are not used for new connections, and end when theirs are drained (``follow``).
"""

import asyncio
import itertools
from collections.abc import Sequence, Set
from typing import Final

from framegate.control.configuration.units import format_duration_ms, format_size
from framegate.control.events import Bus, Row
from framegate.control.fleet.child import FORCED, Child, Reaper, SpawnOptions
from framegate.control.fleet.handler_process import COMMAND, KIND, HandlerProcess, HandlerSlot
from framegate.control.fleet.process_slot import Respawner
from framegate.control.fleet.processor import Processor
from framegate.control.fleet.wiring import Rejoined, Wiring
from framegate.control.logs import RowLog
from framegate.control.meters import Meters
from framegate.control.status import HandlerProcessStatus
from framegate.control.task_monitor import TaskMonitor
from framegate.proxy.config.model import ProxyConfig
from framegate.proxy.server.messages import HandlerStartMessage, PartedNotice
from framegate.proxy.server.protocol import HANDLER_NOTICES, WIRE_VERSION, Message, read_handler_notice

_AFTER_DRAIN_S: Final = 1.5  # more than a processor needs to end the connections that are left when a drain ends
_LOOK_AT_MEMORY: Final = 4  # the memory is read in one of this many looks; each opens a file


def handler_names(config: ProxyConfig) -> dict[str, str]:
    """The handlers of a configuration, by listener."""
    return {listener.name: listener.handler for listener in config.listeners if listener.handler is not None}


class Handlers(Respawner[HandlerSlot, HandlerProcess]):
    """All handler processes of this framegate. ``events``: see ``Respawner``; also gets ``handler_ready`` and ``handler_rejoined``."""

    watch_interval_s = 0.25

    def __init__(
        self,
        config: ProxyConfig,
        reaper: Reaper,
        meters: Meters,
        log: RowLog,
        task_monitor: TaskMonitor,
        *,
        events: Bus,
        command: Sequence[str] = COMMAND,
    ) -> None:
        super().__init__(SpawnOptions(KIND, command, reaper, log), events, meters, log, task_monitor, "handlers", "handlers")
        self._first = config
        self._configs: dict[int, ProxyConfig] = {}  # by slot
        self._staged: set[int] = set()
        self._ends: set[asyncio.Task[None]] = set()
        self._processors: list[Processor] = []
        self._wiring = Wiring(self._rejoined)
        self._looks = 0

    @property
    def running(self) -> list[HandlerProcess]:
        return [slot.child for slot in self._ordered() if slot.child is not None and slot.state == "running" and self._serves(slot)]

    def _serves(self, slot: HandlerSlot) -> bool:
        return slot.number not in self._staged and not slot.leaving

    @property
    def wanted(self) -> bool:
        return any(map(self._serves, self.slots.values()))

    def status(self) -> list[HandlerProcessStatus]:
        """Every slot."""
        return [slot.status(handler_names(self._configs[slot.number])) for slot in self._ordered()]

    async def start(self) -> None:
        """Start all and wait until they are ready. Raises StartError: one could not start."""
        self.follow(await self.stage(self._first), 0)

    async def stage(self, config: ProxyConfig) -> set[int]:
        """Start processes with the handlers of another configuration; nobody uses them yet. Returns their slots. Raises StartError: one could not
        start, and the others are stopped again.
        """
        free = (number for number in itertools.count() if number not in self.slots)
        numbers = {next(free) for _ in range(config.handlers.processes if handler_names(config) else 0)}
        for number in numbers:
            self.slots[number], self._configs[number] = HandlerSlot(number), config
        self._staged |= numbers
        try:
            await asyncio.gather(*(self._begin(self.slots[number]) for number in sorted(numbers)))
        except BaseException:
            await self.release(numbers)
            raise
        return numbers

    async def release(self, numbers: Set[int]) -> None:
        await self.stop_slots(sorted(numbers))
        self._staged -= numbers
        for number in numbers:
            self.slots.pop(number, None)
            self._configs.pop(number, None)

    def retire(self, staged: Set[int]) -> list[str]:
        """What processors call the processes that are not to get connections any more once ``staged`` are used."""
        return [f"{slot.number}.{slot.generation}" for slot in self._ordered() if slot.number not in staged]

    def follow(self, staged: Set[int], timeout_ms: int) -> None:
        """Use the processes of ``stage``. Those before them end after this time, when their connections are drained."""
        old = self.slots.keys() - staged
        for number in old:
            self.slots[number].leaving = True
        self._staged -= staged
        for process in self.running:
            for processor in self._processors:
                self._wiring.join(processor, process)
        if old:
            ending = asyncio.create_task(self._end_later(old, timeout_ms / 1000 + _AFTER_DRAIN_S))
            self._ends.add(ending)
            ending.add_done_callback(self._ends.discard)

    async def _end_later(self, numbers: Set[int], after_s: float) -> None:
        await asyncio.sleep(after_s)
        await self.release(numbers)

    def enter(self, processor: Processor) -> None:
        self._processors = [other for other in self._processors if not other.ended.done()]
        self._processors.append(processor)
        for process in self.running:
            self._wiring.join(processor, process)

    def parted(self, child: Child, notice: PartedNotice) -> None:
        """Join a processor and a handler process again; one of them reports that their socket broke."""
        if not self._ending:
            self._wiring.parted(child, notice["pair"], notice["error"])

    def _rejoined(self, rejoined: Rejoined) -> None:
        processor, process, error, apart_s = rejoined
        row: Row = {"slot": process.slot, "pid": process.pid, "generation": process.generation, "processor": processor.slot, "error": error}
        self._events.publish({"event": "handler_rejoined", "level": "warning", **row, "apart_ms": round(apart_s * 1000)}, level="warning")

    def _spawn(self, slot: HandlerSlot) -> HandlerProcess:
        return HandlerProcess(slot.number, slot.generation, self._spawn_options, self._notice)

    async def _bring_up(self, slot: HandlerSlot, child: HandlerProcess) -> None:
        config = self._configs[slot.number]
        message = HandlerStartMessage(
            type="start",
            wire=WIRE_VERSION,
            slot=slot.number,
            generation=slot.generation,
            node=config.node,
            handlers=handler_names(config),
            path=list(config.handlers.path),
        )
        await child.start(message)
        slot.state = "running"
        self._events.publish({"event": "handler_ready", "slot": slot.number, "pid": child.pid, "generation": slot.generation})
        for processor in self._processors if self._serves(slot) else ():
            self._wiring.join(processor, child)

    def _release(self, slot: HandlerSlot, child: HandlerProcess) -> Row:
        child.close()
        forced = child.kill_reason == FORCED
        slot.ended("stopped" if forced or (not slot.wanted and child.ended.result() == 0) else child.kill_reason or "died")
        return {}

    def _take_notice(self, child: HandlerProcess, message: Message) -> None:
        if message["type"] not in HANDLER_NOTICES:
            self._log.write("link_unknown", level="error", handler=child.slot, type=message["type"])
            return
        notice = read_handler_notice(message)
        if notice["type"] == "parted":
            self.parted(child, notice)
        else:
            self._publish_log(child, notice)

    def _look(self) -> None:
        self._looks += 1
        super()._look()

    def _fault(self, child: HandlerProcess) -> tuple[str, str] | None:
        limits, last_sample = self._configs[child.slot].handlers, child.last_sample
        if limits.timeout_ms and last_sample is not None and last_sample.oldest_ns > limits.timeout_ms * 1_000_000:
            return "timeout", f"a handler is at one frame for more than {format_duration_ms(limits.timeout_ms)}"
        if limits.memory and self._looks % _LOOK_AT_MEMORY == 0:
            resident = child.resident
            if resident > limits.memory:
                return "memory", f"it has {format_size(resident)} of memory, more than {format_size(limits.memory)}"
        return None

    async def stop(self) -> None:
        """See ``Respawner.stop``; after the processors."""
        for ending in self._ends:
            ending.cancel()
        try:
            await super().stop()
        finally:
            self._wiring.close()
