"""Handles that are ``async def``: tasks of the loop, whose replies leave in the order of their requests.

Those of a connection run side by side, requests and answers alike. A reply waits for those before it, of its connection and direction.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from framegate.proxy.handler.activity import Activity
from framegate.proxy.handler.connection import Connection
from framegate.proxy.handler.failures import Failures
from framegate.proxy.relay.handler_wire import DIRECTIONS, FAILED, Reply

__all__ = ["Request", "Tasks"]


class Request:
    """A frame that was accepted; ``reply``: None: it has none yet."""

    __slots__ = ("began_ns", "connection", "direction", "ended_ns", "frame", "header", "reply", "sequence")

    def __init__(self, connection: Connection, direction: int, sequence: int, header: bytes, frame: bytes) -> None:
        self.connection: Final = connection
        self.direction: Final = direction
        self.sequence: Final = sequence
        self.header: Final = header
        self.frame = frame
        self.began_ns = 0
        self.ended_ns = 0
        self.reply: Reply | None = None


class Tasks:
    """The handles of one processor's connections.

    Args:
        emit: takes a reply that may leave.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        now: Callable[[], int],
        activity: Activity,
        failures: Failures,
        emit: Callable[[Reply], None],
    ) -> None:
        self._loop: Final = loop
        self._now: Final = now
        self._activity: Final = activity
        self._failures: Final = failures
        self._emit: Final = emit
        self._requests: Final[dict[asyncio.Task[tuple[int, int, bytes]], Request]] = {}

    @property
    def under_way(self) -> set[asyncio.Task[Any]]:
        """The tasks that are not over."""
        return set(self._requests)

    def accept(self, connection: Connection, direction: int, sequence: int, header: bytes, frame: bytes) -> None:
        """Begin to handle a frame."""
        request = Request(connection, direction, sequence, header, frame)
        connection.order[direction].append(request)
        task = self._loop.create_task(self._run(request))
        if not self._activity.tasks:
            self._activity.tasks_since_ns = self._now()
        self._requests[task] = request
        self._activity.tasks[task] = request
        connection.tasks.add(task)
        task.add_done_callback(self._done)

    def close(self, connection: Connection) -> None:
        """The connection is over: its handles are cancelled; they may take their time to end."""
        connection.closed = True
        for order in connection.order:
            order.clear()
        for task in tuple(connection.tasks):
            task.cancel()

    async def _run(self, request: Request) -> tuple[int, int, bytes]:
        """The handle, and what it came to. Whatever it raises ends here: a task that ends with SystemExit would end the loop."""
        connection = request.connection
        context = connection.context.at(DIRECTIONS[request.direction], request.sequence, request.header)
        request.began_ns = self._now()
        try:
            result = await connection.handle(request.frame, context)
            return connection.decide(result, request.direction)
        except BaseException as error:
            if connection.closed:  # cancelled, or it would not be: nobody waits for the answer
                return FAILED, 0, b""
            return FAILED, 0, self._failures.raised(connection.handler.name, context, error)
        finally:
            request.ended_ns = self._now()
            request.frame = b""

    def _done(self, task: "asyncio.Task[tuple[int, int, bytes]]") -> None:
        request = self._requests.pop(task)
        connection = request.connection
        connection.tasks.discard(task)
        activity = self._activity
        del activity.tasks[task]
        activity.handled += 1
        if not activity.tasks:
            activity.busy_ns += self._now() - activity.tasks_since_ns
            activity.tasks_since_ns = 0
        if connection.closed:
            return
        if task.cancelled():  # by other code of the user's, before its first step
            action, throttle_ms, body = FAILED, 0, self._failures.raised(connection.handler.name, connection.context, asyncio.CancelledError())
        else:
            action, throttle_ms, body = task.result()
        request.reply = (action, request.direction, throttle_ms, connection.number, request.sequence, request.began_ns, request.ended_ns, body)
        self._release(connection, request.direction)

    def _release(self, connection: Connection, direction: int) -> None:
        """Let the replies leave that no other is before."""
        order = connection.order[direction]
        while order and (reply := order[0].reply) is not None:
            order.popleft()
            self._emit(reply)
