"""What a processor tells control unasked, declared as ``messages`` are; whose part this is."""

from typing import Any, Literal, NotRequired, TypedDict

from proxy.server.limit_rows import DemandRow
from proxy.server.rows import (
    EndpointDownRow,
    EndpointUpRow,
    HandlerRaisedRow,
    HandoverFailedRow,
    InternalErrorRow,
    TapIncompleteRow,
    TapRuleOffRow,
    TapSegmentDeletedRow,
)

__all__ = [
    "AccessNotice",
    "ClosedNotice",
    "DemandNotice",
    "DrainedNotice",
    "EventRow",
    "ForgetNotice",
    "LogNotice",
    "Notice",
    "OpenedNotice",
    "PartedNotice",
    "QuestionNotice",
]


class OpenedNotice(TypedDict):
    """Connections that have opened; ``rows`` are the lines behind the message (``row_lines``)."""

    type: Literal["opened"]
    rows: NotRequired[list[str]]


class AccessNotice(TypedDict):
    """Connections that are still open."""

    type: Literal["access"]
    rows: NotRequired[list[str]]


class ClosedNotice(TypedDict):
    """Connections that are over."""

    type: Literal["closed"]
    rows: NotRequired[list[str]]


class LogNotice(TypedDict):
    """A row for the log and for events."""

    type: Literal["log"]
    level: Literal["info", "warning", "error"]
    event: str
    fields: dict[str, Any]


class DrainedNotice(TypedDict):
    """A drain is over: pairs that are left, and pairs that did not become quiet in time."""

    type: Literal["drained"]
    open: int
    cut_off: int


class DemandNotice(TypedDict):
    """What was asked of the rates that somebody waits for, or that have a part of their own."""

    type: Literal["demand"]
    demands: list[DemandRow]


class PartedNotice(TypedDict):
    """A processor and a handler process are not joined any more, though both live: either says so of its end of the pair of sockets.

    Attributes:
        pair: its number, ``Handover.accepted_ns``.
        error: why; empty: the other end was closed.
    """

    type: Literal["parted"]
    pair: int
    error: str


class QuestionNotice(TypedDict):
    """What an authenticator asks.

    Attributes:
        number: of the question; one that is asked later has a greater one.
        desk: whom it asks, ``listener:NAME`` or ``upstream:NAME``.
        address: of the client that it is about, as ``limits.client_key`` has it; empty: of none.
        row: of that kind, of ``question_rows.QUESTIONS``.
    """

    type: Literal["question"]
    number: int
    desk: str
    address: str
    kind: str
    row: dict[str, Any]


class ForgetNotice(TypedDict):
    """Nobody waits for the answer any more."""

    type: Literal["forget"]
    number: int


Notice = OpenedNotice | AccessNotice | ClosedNotice | LogNotice | DrainedNotice | DemandNotice | PartedNotice | QuestionNotice | ForgetNotice
EventRow = (
    EndpointDownRow
    | EndpointUpRow
    | HandlerRaisedRow
    | HandoverFailedRow
    | InternalErrorRow
    | TapIncompleteRow
    | TapRuleOffRow
    | TapSegmentDeletedRow
)
