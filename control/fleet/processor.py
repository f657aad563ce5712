"""One processor: requests to it and its connections; and its slot. ``framegate.control.fleet.supervisor`` starts and ends it."""

import asyncio
import sys
import time
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar, cast

from framegate.control.errors import UnavailableError
from framegate.control.fleet.child import Child, ChildKind, SpawnOptions
from framegate.control.fleet.process_slot import ProcessSlot
from framegate.control.fleet.slot_cells import SlotCells
from framegate.control.status import ProcessorStatus
from framegate.proxy.cells import CellLayout
from framegate.proxy.network.connection_id import COUNTER_BITS, GENERATION_BITS, make_connection_id
from framegate.proxy.server.link import Handover
from framegate.proxy.server.messages import ErrorReply, StartMessage
from framegate.proxy.server.protocol import Message, Request, read_ready

R = TypeVar("R")
COMMAND: Final = (sys.executable, "-P", "-m", "framegate.proxy.server")
KIND: Final = ChildKind(
    word="processor",
    name="processor",
    failed="PROCESSOR_START_FAILED",
    ready_s=20.0,
    environment="FRAMEGATE_PROCESSOR_ENV",
    restarts="worker.restarts",
    reasons=("heartbeat", "commit"),
    lag="worker.lag.time",
)
REQUEST_MS: Final = 5_000  # The time limit of an answer. A processor reads its commands within 50 ms, under any traffic.


class AssignedConnection(NamedTuple):
    """A connection that was passed to a processor, and its id there."""

    handover: Handover
    number: int


class Processor(Child):
    """One process in one slot."""

    def __init__(
        self, slot: int, generation: int, cells: SlotCells, spawn_options: SpawnOptions, on_notice: Callable[["Processor", Message], None]
    ) -> None:
        self.modules: dict[str, str] = {}  # hot module names and files, as the process reported
        # passed connections that are not reported closed, by ``accepted_ns``; None for one that was reported before it was added
        self.open: dict[int, AssignedConnection | None] = {}
        self._cells = cells
        self._given = 0
        self._first_id = make_connection_id(slot, generation & (1 << GENERATION_BITS) - 1, 0)
        super().__init__(slot, generation, spawn_options, {"--cells-fd": cells.descriptor}, lambda message: on_notice(self, message))

    async def start(self, message: StartMessage) -> None:
        """Send ``start`` and wait until the process is ready. Raises StartError, also for another version of the link."""
        self.modules = (await self.first_answer(message, read_ready))["modules"]

    def look(self) -> int:
        return self.heartbeat.look(self._cells.reader.heartbeat_ns)

    def book(self, handover: Handover) -> AssignedConnection:
        """Add a passed connection. The n-th has the counter n in its id; the processor counts in the same order."""
        self._given = self._given + 1 & (1 << COUNTER_BITS) - 1
        given = AssignedConnection(handover, self._first_id + self._given)
        if self.open.setdefault(handover.accepted_ns, given) is None:
            del self.open[handover.accepted_ns]
        return given

    def unbook(self, accepted_ns: int) -> None:
        """Remove a connection that ended, or remember its end: the report may come before the acceptor's thread has told of the connection."""
        if self.open.pop(accepted_ns, None) is None:
            self.open[accepted_ns] = None

    async def request(self, request: Request[R], timeout_ms: int) -> R:
        """Ask over the link; see ``Link.request``. An ``error`` answer raises UnavailableError."""
        answer = await self.link.request(request, timeout_ms)
        if cast(Message, answer)["type"] == "error":
            raise UnavailableError(f"processor {self.slot}: {cast(ErrorReply, answer)['error']}", reason="PROCESSOR_FAILED")
        return cast(R, answer)


class Slot(ProcessSlot[Processor]):
    """The slot of a processor: the state that outlives its processes. Raises OSError: see ``SlotCells``."""

    def __init__(self, number: int, layout: CellLayout, generation: int = 0) -> None:
        super().__init__(number, generation)
        self.cells = SlotCells(number, layout)
        self.boot_id = ""
        self.drained: asyncio.Future[int] | None = None  # becomes the number of connections left, once a drain was asked for
        self.held = False  # it has no share of the memory pool yet, and takes no connections

    def begin(self) -> None:
        super().begin()
        self.drained = None

    def report_drained(self, count: int) -> None:
        """The processor has drained, or ended; ``count`` connections are left."""
        if self.drained is not None and not self.drained.done():
            self.drained.set_result(count)

    @property
    def takes_connections(self) -> bool:
        """Whether the acceptor may pass connections to it."""
        return self.lives_on and not self.held and self.state == "running" and self.drained is None

    def heartbeat_age_ms(self) -> int:
        """The time since the last heartbeat; -1 without a process that has sent one."""
        reader = self.cells.reader
        if self.child is None or reader.generation != self.generation or reader.heartbeat_ns == 0:
            return -1
        return max(0, (time.monotonic_ns() - reader.heartbeat_ns) // 1_000_000)

    def status(self) -> ProcessorStatus:
        return ProcessorStatus(
            slot=self.number,
            pid=self.pid,
            generation=self.generation,
            state=self.state,
            restarts=self.restarts,
            heartbeat_age_ms=self.heartbeat_age_ms(),
        )
