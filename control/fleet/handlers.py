"""The handler processes: started, watched, restarted and ended, and joined with the processors. All on the event loop.

Each place has one task that starts a process, waits for its end and starts the next after a growing pause, as the slots of processors do. One that
is longer in a handler than ``handlers.timeout``, whose heartbeat stands for 10 s, or that has more memory than ``handlers.memory`` is killed: what
it was busy with is lost to the connections that asked for it, and to nobody else. Whatever its handlers have started goes with it. A socket between
two that breaks costs no process (``wiring``).
"""

import asyncio
import functools
from collections.abc import Sequence
from typing import Final

from framegate.control.configuration.units import format_duration_ms, format_size
from framegate.control.events import Bus, Row
from framegate.control.fleet.child import Child, SpawnOptions
from framegate.control.fleet.handler_process import COMMAND, KIND, HandlerProcess, HandlerSlot
from framegate.control.fleet.lost_connections import FORCED
from framegate.control.fleet.process_slot import Respawner
from framegate.control.fleet.processor import Processor
from framegate.control.fleet.reaper import Reaper
from framegate.control.fleet.wiring import Rejoined, Wiring
from framegate.control.logs import RowLog
from framegate.control.meters import Meters
from framegate.control.status import HandlerProcessStatus
from framegate.control.task_monitor import TaskMonitor
from framegate.proxy.config.model import ProxyConfig
from framegate.proxy.server.messages import HandlerStartMessage, PartedNotice
from framegate.proxy.server.protocol import HANDLER_NOTICES, WIRE_VERSION, Message, read_handler_notice

__all__ = ["Handlers", "handler_names"]

HEARTBEAT_LIMIT_S: Final = 10.0
_WATCH_INTERVAL_S: Final = 0.25
_WATCH_STANDS_S: Final = 5.0
_LOOK_AT_MEMORY: Final = 4
"""In one of so many looks; each opens a file."""


def handler_names(config: ProxyConfig) -> dict[str, str]:
    """The handlers of a configuration, by listener; without any there is nothing here to do."""
    return {listener.name: listener.handler for listener in config.listeners if listener.handler is not None}


class Handlers:
    """All handler processes of this framegate.

    Args:
        config: has handlers.
        events: gets every row that others may see (``handler_died``, …), and what handler processes log.
    """

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
        self.names: Final = handler_names(config)
        self._config = config
        self._spawn_options = SpawnOptions(KIND, command, reaper, log)
        self._respawner = Respawner(KIND, log, task_monitor, "handlers")
        self._meters = meters
        self._log = log
        self._task_monitor = task_monitor
        self._events = events
        self._places = [HandlerSlot(number) for number in range(config.handlers.processes)]
        self._processors: list[Processor] = []
        self._wiring = Wiring(self._rejoined)
        self._ending = False
        self._looks = 0
        self._watcher = asyncio.create_task(task_monitor.job("handlers", _WATCH_STANDS_S).keep_going(self._watch))

    @property
    def running(self) -> list[HandlerProcess]:
        """Those that handle."""
        return [place.process for place in self._places if place.process is not None and place.state == "running"]

    def status(self) -> list[HandlerProcessStatus]:
        """Every place."""
        return [place.status(self.names) for place in self._places]

    async def start(self) -> None:
        """Start all and wait until they are ready.

        Raises:
            StartError: one could not start.
        """
        if self._ending:
            raise KIND.start_error(0, "is not started: the proxy ends")
        await asyncio.gather(*(self._respawner.begin(place, functools.partial(self._live, place)) for place in self._places))

    def enter(self, processor: Processor) -> None:
        """A processor is up: join it with each process that is."""
        self._processors = [other for other in self._processors if not other.ended.done()]
        self._processors.append(processor)
        for process in self.running:
            self._wiring.join(processor, process)

    def parted(self, child: Child, notice: PartedNotice) -> None:
        """A processor, or a handler process, says that it is not joined with one of the others any more: it will be again."""
        if not self._ending:
            self._wiring.parted(child, notice["pair"], notice["error"])

    def _rejoined(self, rejoined: Rejoined) -> None:
        processor, process, error, apart_s = rejoined
        row: Row = {"slot": process.slot, "pid": process.pid, "generation": process.generation, "processor": processor.slot, "error": error}
        self._events.publish({"event": "handler_rejoined", "level": "warning", **row, "apart_ms": round(apart_s * 1000)}, level="warning")

    async def _live(self, place: HandlerSlot, first: asyncio.Future[None]) -> None:
        process = self._spawn(place)
        try:
            await process.start(self._start_message(place))
        except BaseException:
            process.kill("died")
            await process.ended
            process.close()
            place.ended("stopped" if process.kill_reason == FORCED else process.kill_reason)
            raise
        place.state = "running"
        self._events.publish({"event": "handler_ready", "slot": place.number, "pid": process.pid, "generation": place.generation})
        for processor in self._processors:
            self._wiring.join(processor, process)
        if not first.done():
            first.set_result(None)
        await process.ended
        self._ended(place, process)

    def _spawn(self, place: HandlerSlot) -> HandlerProcess:
        place.next_life()
        try:
            place.process = HandlerProcess(place.number, place.generation, self._spawn_options, self._notice)
        except OSError as error:
            raise KIND.start_error(place.number, f"could not be started: {error}") from error
        return place.process

    def _start_message(self, place: HandlerSlot) -> HandlerStartMessage:
        config = self._config
        return HandlerStartMessage(
            type="start",
            wire=WIRE_VERSION,
            slot=place.number,
            generation=place.generation,
            node=config.node,
            handlers=self.names,
            path=list(config.handlers.path),
        )

    def _ended(self, place: HandlerSlot, process: HandlerProcess) -> None:
        process.close()
        code, reason = process.ended.result(), process.kill_reason or "died"
        event: Row = {"slot": place.number, "pid": process.pid, "generation": place.generation, "exit_code": code}
        if reason == FORCED:
            place.ended("stopped")
            self._events.publish({"event": "handler_stopped", "level": "warning", "forced": True, **event}, level="warning")
        elif not place.wanted and code == 0:
            place.ended("stopped")
            self._log.write("handler_stopped", **event)
        else:
            place.ended(reason)
            if place.wanted:
                self._meters.add("handler.restarts", reason)
            self._events.publish({"event": "handler_died", "level": "error", "reason": reason, **event}, level="error")

    # --- what they tell, and what they do not -------------------------------------------------------------------------------------

    def _notice(self, process: HandlerProcess, message: Message) -> None:
        """What one tells; what cannot be read, or fails, costs that and no more."""
        try:
            self._take_notice(process, message)
        except Exception as error:
            self._task_monitor.failed("handlers", error)

    def _take_notice(self, process: HandlerProcess, message: Message) -> None:
        if message["type"] not in HANDLER_NOTICES:
            self._log.write("link_unknown", level="error", handler=process.slot, type=message["type"])
            return
        notice = read_handler_notice(message)
        if notice["type"] == "parted":
            self.parted(process, notice)
            return
        fields = {"slot": process.slot, **notice["fields"]}
        self._events.publish({"event": notice["event"], "generation": process.generation, **fields}, level=notice["level"], line=fields)

    async def _watch(self) -> None:
        await asyncio.sleep(_WATCH_INTERVAL_S)
        self._looks += 1
        for process in self.running:
            fault = self._fault(process)
            if fault is not None and not process.kill_reason:
                process.log("killed", level="error", reason=fault[1])
                process.kill(fault[0])

    def _fault(self, process: HandlerProcess) -> tuple[str, str] | None:
        """Why a process is to be killed: the word for the metric, and the text for the row."""
        if process.look() * _WATCH_INTERVAL_S >= HEARTBEAT_LIMIT_S:
            return "heartbeat", f"its heartbeat stands for {HEARTBEAT_LIMIT_S:g} s"
        limits, last_sample = self._config.handlers, process.last_sample
        if limits.timeout_ms and last_sample is not None and last_sample.oldest_ns > limits.timeout_ms * 1_000_000:
            return "timeout", f"a handler is at one frame for more than {format_duration_ms(limits.timeout_ms)}"
        if limits.memory and self._looks % _LOOK_AT_MEMORY == 0:
            resident = process.resident
            if resident > limits.memory:
                return "memory", f"it has {format_size(resident)} of memory, more than {format_size(limits.memory)}"
        return None

    # --- the end ------------------------------------------------------------------------------------------------------------------

    def kill_all(self) -> None:
        """The forced end: SIGKILL to every process."""
        self._ending = True
        for place in self._places:
            place.wanted = False
            if place.process is not None:
                place.process.kill(FORCED)

    async def stop(self) -> None:
        """End every process, after the processors. Cancelled, it waits for that all the same: who cuts it off kills first (``kill_all``)."""
        self._ending = True
        self._watcher.cancel()
        for place in self._places:
            place.wanted = False
        ending = asyncio.gather(*(self._respawner.end(place) for place in self._places))
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            await ending
            raise
        finally:
            self._wiring.close()
