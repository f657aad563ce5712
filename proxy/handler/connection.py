"""A connection as a handler process knows it: its context, and what an answer of its handler means on it."""

import inspect
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from framegate.proxy.handler.api import Answer, Context, Pass, Replace, Verdict
from framegate.proxy.handler.load import LoadedHandler
from framegate.proxy.relay.handler_wire import ANSWER, CLOSE, FRAME, MAX_BODY, MAX_THROTTLE_MS, NOTHING, PASS, Facts

if TYPE_CHECKING:
    from framegate.proxy.handler.tasks import Request

__all__ = ["Connection"]


class Connection:
    """One connection.

    Attributes:
        bytes_action: what an answer of bytes does.
        order: of handles that are ``async def``: the requests without a reply, by direction, oldest first.
        tasks: their handles under way.
        closed: nothing it answers is wanted any more.
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
        self.bytes_action: Final = FRAME if facts["upstream"] else ANSWER
        self._none_action: Final = PASS if facts["upstream"] else NOTHING
        self.closed = False
        if handler.is_async:
            self.order: Final[tuple[deque[Request], deque[Request]]] = (deque(), deque())
            self.tasks: Final[set[Any]] = set()

    def decide(self, result: object, direction: int) -> tuple[int, int, bytes]:
        """What a handle's answer comes to: action, throttle_ms, body.

        Raises:
            TypeError, ValueError: it is no answer, or none here.
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
    """What a verdict says; a handler may have put anything into it."""
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
