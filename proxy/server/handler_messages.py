"""The messages between control and a handler process.

It has the same link as a processor, and says less: it starts with ``start {wire, slot, generation, node, handlers, path, upstreams}``, answers
``ready {wire, pid, handlers}`` or ``failed {error}``, and tells ``beat`` (four times a second), ``log`` and ``parted`` until it is told ``stop``.
"""

from typing import Literal, TypedDict

from proxy.server.messages import LogNotice, PartedNotice

__all__ = ["BeatNotice", "HandlerFacts", "HandlerNotice", "HandlerReadyMessage", "HandlerStartMessage"]


class HandlerStartMessage(TypedDict):
    """What a handler process starts with.

    Attributes:
        handlers: ``package.module:name`` by listener.
        path: folders in which Python looks behind all others, absolute.
        upstreams: by listener, whether it has one.
    """

    type: Literal["start"]
    wire: int
    slot: int
    generation: int
    node: str
    handlers: dict[str, str]
    path: list[str]
    upstreams: dict[str, bool]


class HandlerFacts(TypedDict):
    """What a handler said of itself; ``description``: the first line of its docstring."""

    ordered_pipelining: bool
    directions: list[str]
    description: str


class HandlerReadyMessage(TypedDict):
    """A handler process serves; its handlers by listener."""

    type: Literal["ready"]
    wire: int
    pid: int
    handlers: dict[str, HandlerFacts]


class BeatNotice(TypedDict):
    """A handler process lives. It tells from a thread of its own, so that a handler that never returns is seen.

    Attributes:
        handled, failed: frames since the start, and those of them at which a handler raised.
        busy_ns: for how long at least one frame was being handled, since the start.
        in_handler: frames that are being handled now; the one that is longest for ``oldest_ns``, 0 when there is none.
        queued: frames that wait for their turn.
    """

    type: Literal["beat"]
    handled: int
    failed: int
    busy_ns: int
    in_handler: int
    oldest_ns: int
    queued: int


HandlerNotice = BeatNotice | LogNotice | PartedNotice
