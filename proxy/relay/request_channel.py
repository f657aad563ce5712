"""The request channel: between the connections of a processor and the handler processes.

When its first frame is to be read, a connection is assigned to the process with the fewest connections of this processor. It stays there, because the
handler's state is there. While there is no process, connections wait in order, for ``timeout`` at most.

Source: Kafka's RequestChannel; but nothing blocks (``handler_process``).
"""

import socket
from typing import Final

from mypy_extensions import i64

from framegate.proxy.network.options import ChannelOptions
from framegate.proxy.network.receive import ReceiveLimit
from framegate.proxy.network.selector import Selector
from framegate.proxy.network.stats import SideStats
from framegate.proxy.network.timer import NEVER, CallbackTimer
from framegate.proxy.relay.handled_connection import HandledParty
from framegate.proxy.relay.handler_process import HandlerProcess

UNLIMITED: Final = -1
CHANNEL_ID: Final = 0  # no connection has it


class RequestChannel:
    """All the handler processes, as one processor has them. ``queue``: the most requests without a reply of one process. ``timeout_ns``: how long a
    connection waits for a process; 0: for ever.
    """

    def __init__(self, queue: i64, timeout_ns: i64) -> None:
        self.processes: Final[list[HandlerProcess]] = []  # those that have sent HELLO
        self._queue: i64 = queue
        self._timeout_ns: i64 = timeout_ns
        self._retired: set[str] = set()
        self._selector: Selector | None = None
        self._options: Final = ChannelOptions(side="upstream", limit=ReceiveLimit(UNLIMITED), stats=SideStats())
        self._waiting: Final[dict[int, tuple[HandledParty, i64]]] = {}  # by twice the id plus the direction, with the deadline
        self._patience: Final = CallbackTimer(self._end_waiting)

    def attach(self, selector: Selector) -> None:
        """Set the selector, before the first process."""
        self._selector = selector

    def configure(self, queue: i64, timeout_ns: i64) -> None:
        """Set the values for processes and connections that come later."""
        self._queue = queue
        self._timeout_ns = timeout_ns

    def retire(self, names: list[str]) -> None:
        """Give no further connections to the processes of these names, also if they are added later. Those named before are gone or retired."""
        self._retired = set(names)
        for process in self.processes:
            process.retired = process.retired or process.name in self._retired

    def take_over(self, sock: socket.socket, name: str) -> HandlerProcess:
        """Add a handler process. ``sock``: to the process; belongs to the request channel from here on. ``name``: ``slot.generation``. Raises
        OSError: the socket cannot be used; it stays the caller's.
        """
        selector = self._selector
        assert selector is not None, "attach comes first"
        process = HandlerProcess(self, selector, selector.pool.common, name, self._queue)
        channel = selector.register(sock, CHANNEL_ID, self._options, process, peer=f"handler process {name}")
        channel.read_half.is_urgent = True
        process.channel = channel
        process.retired = name in self._retired
        return process

    def choose(self, listener: str) -> HandlerProcess | None:
        """The process for a new connection: of those that handle its listener, the one with the fewest connections."""
        best: HandlerProcess | None = None
        for process in self.processes:
            if listener in process.handles and not process.is_gone and not process.retired and (best is None or process.active < best.active):
                best = process
        return best

    def wait(self, connection: i64, direction: i64, party: HandledParty) -> None:
        """There is no process: the party is woken when there is one, or its ``timed_out`` is called."""
        selector = self._selector
        assert selector is not None, "attach comes first"
        key = int(2 * connection + direction)
        if key in self._waiting:
            return
        until_ns = selector.now_ns + self._timeout_ns if self._timeout_ns != 0 else NEVER
        self._waiting[key] = (party, until_ns)
        if self._timeout_ns != 0 and self._patience.deadline_ns == NEVER:
            selector.call_at(until_ns, self._patience)

    def leave(self, connection: i64) -> None:
        """A connection does not wait any more. No effect if it did not."""
        if self._waiting:
            self._waiting.pop(int(2 * connection), None)
            self._waiting.pop(int(2 * connection + 1), None)

    def _end_waiting(self) -> None:
        selector = self._selector
        assert selector is not None, "attach comes first"
        while self._waiting:
            key = next(iter(self._waiting))
            party, until_ns = self._waiting[key]
            if until_ns > selector.now_ns:
                selector.call_at(until_ns, self._patience)
                return
            del self._waiting[key]
            try:
                party.timed_out()
            except Exception as error:
                party.crash(error)

    def process_ready(self, process: HandlerProcess) -> None:
        """A handler process has said what it handles: connections that wait go on."""
        self.processes.append(process)
        waiting = dict(self._waiting)
        self._waiting.clear()
        for key, (party, _) in waiting.items():
            try:
                party.wake(key & 1)
            except Exception as error:
                party.crash(error)

    def process_gone(self, process: HandlerProcess) -> None:
        """The socket of a handler process is closed."""
        if process in self.processes:
            self.processes.remove(process)
