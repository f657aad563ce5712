"""What handlers are written with: the context of a frame, the verdicts, and the decorator.

A handler is a function, or a class with ``handle`` and, if it likes, ``start`` and ``stop``; each may be ``async def``::

    from framegate.proxy.handler import Answer, Context, handler

    @handler(directions=("request",))
    def shout(frame: bytes, context: Context) -> bytes:
        return frame.upper()

    class Counting:
        def start(self) -> None: ...              # once in each handler process, before the first frame; what it raises keeps framegate from starting
        async def handle(self, frame: bytes, context: Context) -> Answer:
            context.state["count"] = context.state.get("count", 0) + 1
            return Answer(b"%d" % context.state["count"], throttle=0.5)
        def stop(self) -> None: ...               # once, when the process ends in good order; it has two seconds

``listeners[].handler: module:name`` names it. What ``handle`` returns:

=================== ================================= ====================================
returned            listener without an upstream      listener with an upstream
=================== ================================= ====================================
bytes               the answer                        goes on in the frame's place
None                no answer                         the frame goes on as it came
``PASS``            a failure                         the frame goes on as it came
``Replace(frame)``  a failure                         goes on in the frame's place
``DROP``            no answer                         nothing goes on
``Answer(frame)``   the answer                        of a request: goes to the client, in the upstream's place; of an answer: a failure
``CLOSE``           the connection ends, cause ``handler_closed``; what was sent before is still written
=================== ================================= ====================================

Whatever else it returns, and whatever it raises, is a failure: the connection ends with the cause ``handler_failed``, the log shows the traceback.
``Pass``, ``Replace``, ``Drop`` and ``Answer`` take a ``throttle`` in seconds: so long the client is not read after this.

Frames are bodies: what the framing puts around them is ``context.header``, and is made anew for what a handler sends.

A function that is not ``async def`` has the process for itself while it runs: a blocking call holds up all connections of this process. Handles
that are ``async def`` run side by side, those of one connection too, requests and answers alike; what they return leaves in the order of the frames
all the same. A handler that needs one at a time uses a lock of its own: ``async with context.state.setdefault("lock", asyncio.Lock()):``. A
connection that ends cancels its handles (``asyncio.CancelledError``).

What a handler prints, on stdout or stderr, becomes rows ``handler_output`` of framegate's log, one for each line, of the level ``info``; the two
cannot be told apart. Of more than 500 lines a second of one process the others are counted, and the last of them has a row. ``sys.exit`` in a handle
is a failure like any other. The environment has what Python needs, and the variables that ``FRAMEGATE_HANDLER_ENV`` names, with commas between them.
"""

import dataclasses
import math
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Final, Literal, Protocol, TypeVar

from framegate.proxy.relay import handler_wire as wire
from framegate.proxy.relay.handler_wire import DIRECTIONS, MAX_THROTTLE_MS, TlsFacts

__all__ = [
    "CLOSE", "DROP", "PASS", "Answer", "Close", "Context", "Direction", "Drop", "Handle", "Handler", "Pass", "Replace", "Result", "TlsFacts",
    "Verdict", "handler",
]  # fmt: skip

Direction = Literal["request", "response"]


class Verdict:
    """What to do with a frame: the base of ``Pass``, ``Replace``, ``Drop``, ``Answer`` and ``Close``, which alone are used."""

    __slots__ = ("frame", "throttle_ms")
    action: ClassVar[int]

    def __init__(self, frame: bytes | bytearray | memoryview = b"", throttle: float = 0.0) -> None:
        self.frame = frame if type(frame) is bytes else _to_bytes(frame)  # the body that is sent; empty if none is
        self.throttle_ms = _milliseconds(throttle) if throttle else 0  # how long the client is not read after this

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and (other.frame, other.throttle_ms) == (self.frame, self.throttle_ms)

    def __hash__(self) -> int:
        return hash((type(self), self.frame, self.throttle_ms))

    def __repr__(self) -> str:
        frame = f"{self.frame!r}" if isinstance(self, Replace | Answer) else ""
        throttle = f"throttle={self.throttle_ms / 1000}" if self.throttle_ms else ""
        return f"{type(self).__name__}({', '.join(part for part in (frame, throttle) if part)})"


class Pass(Verdict):
    """The frame is passed on unchanged."""

    __slots__ = ()
    action = wire.PASS

    def __init__(self, *, throttle: float = 0.0) -> None:
        super().__init__(throttle=throttle)


class Replace(Verdict):
    """This body is passed on in place of the frame."""

    __slots__ = ()
    action = wire.FRAME

    def __init__(self, frame: bytes | bytearray | memoryview, *, throttle: float = 0.0) -> None:
        super().__init__(frame, throttle)


class Drop(Verdict):
    """Nothing is passed on, and nothing is answered."""

    __slots__ = ()
    action = wire.NOTHING

    def __init__(self, *, throttle: float = 0.0) -> None:
        super().__init__(throttle=throttle)


class Answer(Verdict):
    """This body is sent to the client."""

    __slots__ = ()
    action = wire.ANSWER

    def __init__(self, frame: bytes | bytearray | memoryview, *, throttle: float = 0.0) -> None:
        super().__init__(frame, throttle)


class Close(Verdict):
    """The connection ends."""

    __slots__ = ()
    action = wire.CLOSE

    def __init__(self) -> None:
        super().__init__()


PASS: Final = Pass()
DROP: Final = Drop()
CLOSE: Final = Close()

Result = bytes | bytearray | memoryview | Verdict | None  # what a handle may return


def _to_bytes(frame: object) -> bytes:
    """A copy, unless it is ``bytes``, because the handler may change its buffer afterwards."""
    if type(frame) is bytes:
        return frame
    if isinstance(frame, bytes | bytearray | memoryview):
        return bytes(frame)
    raise TypeError(f"a frame is bytes, bytearray or memoryview, not {type(frame).__name__}")


def _milliseconds(throttle: float) -> int:
    if not 0 <= throttle <= MAX_THROTTLE_MS / 1000:  # nor is nan
        raise ValueError(f"throttle is in seconds, from 0 to {MAX_THROTTLE_MS // 1000}, not {throttle!r}")
    return math.ceil(throttle * 1000)


@dataclasses.dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Context:
    """Where a frame comes from. To be read; only ``state`` is the handler's to change. Everything has a default, so that tests make one easily. A
    connection of a handler that is not ``async def`` has one context, whose frame's facts (``direction``, ``sequence``, ``header``) change from frame
    to frame; each frame of an ``async def`` has its own.
    """

    connection: str = "0-0-0"  # the connection's id, as in framegate's log
    listener: str = ""
    peer: str = ""  # the client, ``host:port``, or ``unix:``
    # principal, principal_type: who the client is, as far as it was asked
    principal: str = ""
    principal_type: str = ""
    # what the handshake came to: ``version``, ``cipher`` and, where they are known, ``server_name``, ``peer_certificate``; None: plaintext
    tls: TlsFacts | None = None
    has_upstream: bool = False  # whether the listener has one
    # the connection's own, empty at first. It is in this process only: when the process ends and the connection goes on, it is empty again.
    state: dict[Any, Any] = dataclasses.field(default_factory=dict)
    direction: Direction = "request"  # ``request``: the frame comes from the client; ``response``: from the upstream
    sequence: int = 0  # of the frame in its direction on this connection, from 0
    header: bytes = b""  # what came before the frame's body, the size included, as it came

    def __repr__(self) -> str:
        return f"<Context {self.connection} {self.listener} {self.peer} {self.direction} {self.sequence}>"

    def at(self, direction: Direction, sequence: int, header: bytes) -> "Context":
        """The context of another frame of the connection; ``state`` is shared."""
        return Context(
            connection=self.connection,
            listener=self.listener,
            peer=self.peer,
            principal=self.principal,
            principal_type=self.principal_type,
            tls=self.tls,
            has_upstream=self.has_upstream,
            state=self.state,
            direction=direction,
            sequence=sequence,
            header=header,
        )


Handle = Callable[[bytes, Context], Result | Awaitable[Result]]


class Handler(Protocol):
    """A handler that is a class. It may have ``start(self)`` and ``stop(self)``, too."""

    def handle(self, frame: bytes, context: Context, /) -> Result | Awaitable[Result]: ...


H = TypeVar("H", bound=Handle | type[Handler])


def handler(*, directions: tuple[Direction, ...] = DIRECTIONS) -> Callable[[H], H]:
    """Say of a function or class how it is used; it stays what it is. ``directions``: what it is given, on a listener with an upstream. What it
    leaves out passes at the relay's full speed.
    """

    def mark(target: H) -> H:
        target.directions = directions  # type: ignore[union-attr]
        return target

    return mark
