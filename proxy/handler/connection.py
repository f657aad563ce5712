"""One connection in a handler process: its context, what results and exceptions of its handler mean, and handlers that are ``async def``.

Calls of a handler that is ``async def`` are tasks of the loop; those of one connection run side by side, requests and responses alike. A reply waits
for the replies before it, of its connection and direction.
"""

import asyncio
import inspect
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from framegate.proxy.handler.activity import Activity
from framegate.proxy.handler.api import Answer, Context, Pass, Replace, Verdict
from framegate.proxy.handler.load import LoadedHandler
from framegate.proxy.relay.handler_wire import (
    ANSWER,
    CLOSE,
    DIRECTIONS,
    FAILED,
    FRAME,
    MAX_BODY,
    MAX_THROTTLE_MS,
    NOTHING,
    PASS,
    Facts,
    Reply,
    error_text,
)
from framegate.proxy.server.rows import HandlerRaisedRow

EVERY_NS: Final = 1_000_000_000
MOST_TEXT: Final = 16_384  # Characters of a traceback, of which the end tells most


class Request:
    """A frame for a handler that is ``async def``; ``reply`` is None while its call is not over."""

    __slots__ = ("began_ns", "connection", "direction", "ended_ns", "frame", "header", "reply", "sequence")

    def __init__(self, connection: "Connection", direction: int, sequence: int, header: bytes, frame: bytes) -> None:
        self.connection: Final = connection
        self.direction: Final = direction
        self.sequence: Final = sequence
        self.header: Final = header
        self.frame = frame
        self.began_ns = 0
        self.ended_ns = 0
        self.reply: Reply | None = None


class Connection:
    """One connection.

    Attributes:
        order: with an ``async def`` handler: the requests without a reply, by direction, oldest first.
        tasks: likewise, their calls that are not over.
    """

    __slots__ = ("_none_action", "bytes_action", "closed", "context", "handle", "handler", "is_async", "number", "order", "tasks")

    def __init__(self, number: int, handler: LoadedHandler, facts: Facts) -> None:
        self.number: Final = number
        self.handler: Final = handler
        self.handle: Final = handler.handle
        self.is_async: Final = handler.is_async
        self.context: Final = Context(
            connection=facts["id"],
            listener=facts["listener"],
            peer=facts["peer"],
            principal=facts["principal"],
            principal_type=facts["principal_type"],
            tls=facts["tls"],
            has_upstream=facts["upstream"],
        )
        self.bytes_action: Final = FRAME if facts["upstream"] else ANSWER  # the action of a result that is bytes
        self._none_action: Final = PASS if facts["upstream"] else NOTHING
        self.closed = False  # replies are not wanted any more
        if handler.is_async:
            self.order: Final[tuple[deque[Request], deque[Request]]] = (deque(), deque())
            self.tasks: Final[set[Any]] = set()

    def decide(self, result: object, direction: int) -> tuple[int, int, bytes]:
        """The reply to a result of the handler: action, throttle_ms, body. Raises TypeError, ValueError: the result is not allowed, or not on this
        listener or in this direction.
        """
        if result is None:
            return self._none_action, 0, b""
        if isinstance(result, Verdict):
            if isinstance(result, Pass | Replace) and not self.context.has_upstream:
                raise ValueError(
                    f"{type(result).__name__} on the listener {self.context.listener}, which has no upstream: there is nowhere to go on to"
                )
            if isinstance(result, Answer) and direction:
                raise ValueError("Answer to an answer: what goes on to the client in its place is Replace")
            return _verdict(result)
        if isinstance(result, bytes | bytearray | memoryview):
            return self.bytes_action, 0, _fitting(bytes(result))
        if inspect.iscoroutine(result):
            result.close()
            raise TypeError(f"{self.handler.name} is not async def, and gave a coroutine")
        raise TypeError(f"a handler returns bytes, None or a verdict of framegate.proxy.handler, not {type(result).__name__}")


def _verdict(result: Verdict) -> tuple[int, int, bytes]:
    """Action, throttle_ms and body of a verdict, whose attributes a handler may have set to anything."""
    action, throttle_ms, frame = result.action, result.throttle_ms, result.frame
    if type(action) is not int or not PASS <= action <= CLOSE:
        raise ValueError(f"{type(result).__name__} has the action {action!r:.40}, which is none")
    if type(throttle_ms) is not int or not 0 <= throttle_ms <= MAX_THROTTLE_MS:
        raise ValueError(f"{type(result).__name__} has the throttle_ms {throttle_ms!r:.40}, which is not from 0 to {MAX_THROTTLE_MS}")
    if type(frame) is not bytes:
        raise TypeError(f"{type(result).__name__} has a frame that is {type(frame).__name__}, not bytes")
    if frame and action in (PASS, NOTHING, CLOSE):
        raise ValueError(f"{type(result).__name__} has a frame of {len(frame)} bytes, and sends none")
    return action, throttle_ms, _fitting(frame)


def _fitting(body: bytes) -> bytes:
    if len(body) > MAX_BODY:
        raise ValueError(f"a frame of {len(body)} bytes is above {MAX_BODY}")
    return body


class Failures:
    """Counts exceptions of handlers, and reports them. ``tell``: takes a row for the log; called once a second at most."""

    def __init__(self, activity: Activity, now: Callable[[], int], tell: Callable[[HandlerRaisedRow], None]) -> None:
        self._activity: Final = activity
        self._now: Final = now
        self._report: Final = tell
        self._next_ns = 0
        self._suppressed = 0

    def raised(self, handler: str, context: Context, error: BaseException) -> bytes:
        """Count and report an exception; gives the body of the reply."""
        self._activity.failed += 1
        text = traceback.format_exception_only(error)[-1].strip()
        now_ns = self._now()
        if now_ns < self._next_ns:
            self._suppressed += 1
            return error_text(text)
        self._next_ns = now_ns + EVERY_NS
        behind = error.__traceback__.tb_next if error.__traceback__ else None  # without our own frame
        where = "".join(traceback.format_exception(type(error), error, behind))[-MOST_TEXT:]
        self._report(
            HandlerRaisedRow(
                listener=context.listener,
                handler=handler,
                connection=context.connection,
                error=text[:MOST_TEXT],
                traceback=where,
                suppressed=self._suppressed,
            )
        )
        self._suppressed = 0
        return error_text(text)


class Tasks:
    """The calls of ``async def`` handlers, for the connections of one processor."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, now: Callable[[], int], activity: Activity, failures: Failures, emit: Callable[[Reply], None]
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
        """The connection is over: cancel its calls, which may take some time to end."""
        connection.closed = True
        for order in connection.order:
            order.clear()
        for task in tuple(connection.tasks):
            task.cancel()

    async def _run(self, request: Request) -> tuple[int, int, bytes]:
        """Call the handler. All exceptions are caught: a task that ends with SystemExit would end the loop."""
        connection = request.connection
        context = connection.context.at(DIRECTIONS[request.direction], request.sequence, request.header)
        request.began_ns = self._now()
        try:
            result = await connection.handle(request.frame, context)
            return connection.decide(result, request.direction)
        except BaseException as error:
            if connection.closed:  # its call was cancelled, and no reply is wanted
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
        if task.cancelled():  # by other code of the user, before its first step
            action, throttle_ms, body = FAILED, 0, self._failures.raised(connection.handler.name, connection.context, asyncio.CancelledError())
        else:
            action, throttle_ms, body = task.result()
        request.reply = (action, request.direction, throttle_ms, connection.number, request.sequence, request.began_ns, request.ended_ns, body)
        self._release(connection, request.direction)

    def _release(self, connection: Connection, direction: int) -> None:
        """Send the replies that have none before them."""
        order = connection.order[direction]
        while order and (reply := order[0].reply) is not None:
            order.popleft()
            self._emit(reply)
