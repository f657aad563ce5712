"""One handler process, and its slot. ``framegate.control.fleet.handlers`` starts and ends it."""

import contextlib
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from framegate.control.configuration.cgroup import resident_memory
from framegate.control.fleet.child import Child, ChildKind, SpawnOptions
from framegate.control.fleet.process_slot import ProcessSlot
from framegate.control.status import HandlerProcessStatus, HandlerStatus
from framegate.proxy.handler.activity import HeartbeatCells, HeartbeatSample, create_cells
from framegate.proxy.server.messages import HandlerFacts, HandlerStartMessage
from framegate.proxy.server.protocol import Message, read_handler_ready

COMMAND: Final = (sys.executable, "-P", "-m", "framegate.proxy.handler")
KIND: Final = ChildKind(
    "handler",
    "handler process",
    "HANDLER_START_FAILED",
    60.0,  # a handler may load data in its ``start``
    "FRAMEGATE_HANDLER_ENV",
    "handler.restarts",
    ("heartbeat", "timeout", "memory"),
    output_level="info",
)
BUSY_OVER_NS: Final = 5_000_000_000  # the time over which ``busy`` is measured
_NO_SAMPLE: Final = HeartbeatSample(handled=0, failed=0, busy_ns=0, in_handler=0, oldest_ns=0, queued=0)


class HandlerProcess(Child):
    """One process in one slot."""

    def __init__(self, slot: int, generation: int, spawn_options: SpawnOptions, on_notice: Callable[["HandlerProcess", Message], None]) -> None:
        self.handlers: dict[str, HandlerFacts] = {}  # what its handlers reported about themselves, by listener
        self._busy: deque[tuple[int, int]] = deque()
        descriptor = create_cells(f"framegate-handler-{slot}")
        try:
            self._cells = HeartbeatCells(descriptor)
            super().__init__(slot, generation, spawn_options, {"--cells-fd": descriptor}, lambda message: on_notice(self, message))
        finally:
            os.close(descriptor)

    async def start(self, message: HandlerStartMessage) -> None:
        """Send ``start`` and wait until the handlers are loaded. Raises StartError, also for another version of the link."""
        self.handlers = (await self.first_answer(message, read_handler_ready))["handlers"]

    @property
    def last_sample(self) -> HeartbeatSample | None:
        """Its last report; None before the first."""
        return self._cells.read() if self._cells.heartbeat_ns else None

    def look(self) -> int:
        beat_ns = self._cells.heartbeat_ns
        if beat_ns and (not self._busy or beat_ns != self._busy[-1][0]):
            self._busy.append((beat_ns, self._cells.read().busy_ns))
            while len(self._busy) > 1 and self._busy[1][0] <= beat_ns - BUSY_OVER_NS:
                self._busy.popleft()
        return self.heartbeat.look(beat_ns)

    @property
    def busy(self) -> float:
        """The share of the last seconds in which a frame was being handled."""
        if len(self._busy) < 2:
            return 0.0
        (began_ns, before), (now_ns, after) = self._busy[0], self._busy[-1]
        return min(1.0, max(0.0, (after - before) / max(1, now_ns - began_ns)))

    @property
    def resident(self) -> int:
        return resident_memory(self.pid)

    def kill(self, reason: str) -> None:
        """SIGKILL, also to the processes that its handlers have started."""
        if not self.ended.done():
            super().kill(reason)
            self._kill_rest()

    def _reaped(self, code: int) -> None:
        self._kill_rest()
        super()._reaped(code)

    def _kill_rest(self) -> None:
        """Kill what is left of its process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


class HandlerSlot(ProcessSlot[HandlerProcess]):
    """A slot for handler processes."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        # last_reason, last_ended_ns: why and when (since 1970) the last one ended
        self.last_reason = ""
        self.last_ended_ns = 0

    def ended(self, reason: str) -> None:
        """Note the end of a process."""
        self.last_reason = reason
        self.last_ended_ns = time.time_ns()

    def status(self, names: dict[str, str]) -> HandlerProcessStatus:
        """Its status for the API; ``names`` are those of the handlers, by listener."""
        process = self.child
        sample = (None if process is None else process.last_sample) or _NO_SAMPLE
        return HandlerProcessStatus(
            slot=self.number,
            pid=self.pid,
            generation=self.generation,
            state=self.state,
            restarts=self.restarts,
            last_reason=self.last_reason,
            last_ended_ns=self.last_ended_ns,
            started_ns=self.started_ns,
            handled=sample.handled,
            failed=sample.failed,
            in_handler=sample.in_handler,
            queued=sample.queued,
            oldest_ms=sample.oldest_ns // 1_000_000,
            busy=0.0 if process is None else process.busy,
            resident=0 if process is None else process.resident,
            handlers=tuple(
                HandlerStatus(listener=listener, handler=names[listener], directions=tuple(facts["directions"]), description=facts["description"])
                for listener, facts in sorted(() if process is None else process.handlers.items())
                if listener in names
            ),
        )
