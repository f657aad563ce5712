"""One processor: requests to it, and its connections. ``framegate.control.fleet.supervisor`` starts and ends it."""

import sys
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar, cast

from framegate.control.errors import UnavailableError
from framegate.control.fleet.child import Child, ChildKind, SpawnOptions
from framegate.control.fleet.process_slot import Heartbeat
from framegate.control.fleet.slot_cells import SlotCells
from framegate.proxy.network.connection_id import COUNTER_BITS, GENERATION_BITS, make_connection_id
from framegate.proxy.server.link import Handover
from framegate.proxy.server.messages import ErrorReply, StartMessage
from framegate.proxy.server.protocol import Message, MessageError, Request, read_ready

__all__ = ["COMMAND", "KIND", "AssignedConnection", "Processor"]

R = TypeVar("R")
COMMAND: Final = (sys.executable, "-P", "-m", "framegate.proxy.server")
KIND: Final = ChildKind("processor", "processor", "PROCESSOR_START_FAILED", 20.0, "FRAMEGATE_PROCESSOR_ENV")
REQUEST_MS: Final = 5_000
"""How long an answer to a question may take: a processor looks at what it is asked within 50 ms of traffic."""


class AssignedConnection(NamedTuple):
    """A connection that a processor was given, and the id under which it is listed there."""

    handover: Handover
    number: int


class Processor(Child):
    """One process in one slot.

    Args:
        cells: its counters.
        on_notice: gets what it says unasked.

    Attributes:
        ready: it is ready; its heartbeat is watched from then on.
        heartbeat: see ``Heartbeat``.
        modules: hot module names and files, as the process reported.
        open: passed connections that are not reported closed, by ``accepted_ns``; None for one that was reported before it was added.
    """

    def __init__(
        self, slot: int, generation: int, cells: SlotCells, spawn_options: SpawnOptions, on_notice: Callable[["Processor", Message], None]
    ) -> None:
        self.modules: dict[str, str] = {}
        self.heartbeat = Heartbeat()
        self.open: dict[int, AssignedConnection | None] = {}
        self._given = 0
        self._first_id = make_connection_id(slot, generation & (1 << GENERATION_BITS) - 1, 0)
        super().__init__(slot, generation, spawn_options, {"--cells-fd": cells.descriptor}, lambda message: on_notice(self, message))

    async def start(self, message: StartMessage) -> None:
        """Send ``start`` and wait until the process is ready.

        Raises:
            StartError: it said ``failed``, ended, was silent for 20 s, or speaks another version of the link.
        """
        answer = await self.first_words(message)
        try:
            self.modules = read_ready(answer)["modules"]
        except MessageError as error:
            raise self.start_error(f"could not start: {error}") from error
        self.ready = True

    def book(self, handover: Handover) -> AssignedConnection:
        """Add a passed connection. The n-th has the counter n in its id; the processor counts in the same order."""
        self._given = self._given + 1 & (1 << COUNTER_BITS) - 1
        given = AssignedConnection(handover, self._first_id + self._given)
        if self.open.setdefault(handover.accepted_ns, given) is None:
            del self.open[handover.accepted_ns]
        return given

    def unbook(self, accepted_ns: int) -> None:
        """Take a connection off the books that ended; it may come before the connection is booked."""
        if self.open.pop(accepted_ns, None) is None:  # the acceptor's thread has handed it over, and has not come to saying so
            self.open[accepted_ns] = None

    async def request(self, request: Request[R], timeout_ms: int) -> R:
        """Ask over the link; see ``Link.request``. An ``error`` answer raises UnavailableError."""
        answer = await self.link.request(request, timeout_ms)
        if cast(Message, answer)["type"] == "error":
            raise UnavailableError(f"processor {self.slot}: {cast(ErrorReply, answer)['error']}", reason="PROCESSOR_FAILED")
        return cast(R, answer)
