"""The messages between control and a handler process.

It has the same link as a processor, and says less: it starts with ``start {wire, slot, generation, node, handlers, path, upstreams}``, answers
``ready {wire, pid, handlers}`` or ``failed {error}``, and tells ``log`` and ``parted`` until it is told ``stop``. How it stands is in shared cells
(``proxy.handler.cells``).
"""

from typing import Literal, TypedDict

from proxy.server.messages import LogNotice, PartedNotice

__all__ = ["HandlerFacts", "HandlerNotice", "HandlerReadyMessage", "HandlerStartMessage"]


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

    directions: list[str]
    description: str


class HandlerReadyMessage(TypedDict):
    """A handler process serves; its handlers by listener."""

    type: Literal["ready"]
    wire: int
    pid: int
    handlers: dict[str, HandlerFacts]


HandlerNotice = LogNotice | PartedNotice
