"""What control and a processor say to each other over the command socket: each message is declared here, and judged here when it arrives.

::

    control asks                              a processor answers, with the same ``id``
    start {wire, config, …}                   ready {wire, pid, modules} | failed {error}        without ids: the first words of both
    prepare {change}                          prepared | refused {reason}
    commit | abort                            committed, aborted | refused {reason}   committed: when open connections follow
    list {after, limit, listener|null}        result {rows, next}            next: 0 when that was all
    describe {connection}                     result {row|null}
    mute | unmute | close {connections | listener, reason}
                                              result {affected, missing, undone}   mute: when no further header will be read
    upstreams                                 result {rows}                  of endpoints that are left out
    holders {limit}                           result {rows}                  who holds most of the memory pool, most first
    drain {timeout_ms}                        result {} at once; later the notice drained {open, cut_off}
    stop                                      no answer: flush and exit

Each connection of a bulk command is in one of three lists. ``affected``: what was asked for is in force. ``missing``: not here, or its end had
begun. ``undone``: here, and not in force: a mute that was taken away before it was, an error of ours, or the processor ended before it came to
that. Where ``listener`` chose them, those whose turn did not come are undone.

Anything else, and what cannot be read, is answered with ``error {error}``; so is a list that the end of the processor cut short.

Unasked, a processor tells ``closed`` (rows: see ``closed``), ``log {level, event, fields}`` (``EVENTS``) and ``drained``.

Both ends say in their first words which version of all this they speak, and have nothing to do with another one (``WIRE_VERSION``): a new release
may be installed while an old control runs, and starts a processor anew. Who makes a message calls its class, so that the type checker sees every
key; ``link`` puts it on the wire.
"""

import typing
from collections.abc import Mapping
from typing import Any, Final, Generic, Literal, NamedTuple, NotRequired, TypedDict, TypeVar, cast

from proxy.server.rows import (
    EndpointDownRow,
    EndpointUpRow,
    HandoverFailedRow,
    HolderRow,
    InternalErrorRow,
    OpenRow,
    TapIncompleteRow,
    TapRuleOffRow,
)
from proxy.server.shape import Shape, shape_of

__all__ = [
    "CHANGE",
    "EVENTS",
    "NOTICES",
    "REPLIES",
    "WIRE_VERSION",
    "AbortCommand",
    "AbortedReply",
    "BulkCommand",
    "BulkReply",
    "Change",
    "ClosedNotice",
    "Command",
    "CommitCommand",
    "CommittedReply",
    "DescribeCommand",
    "DescribeReply",
    "DrainCommand",
    "DrainReply",
    "DrainedNotice",
    "Endpoints",
    "ErrorReply",
    "EventRow",
    "FailedMessage",
    "HoldersCommand",
    "HoldersReply",
    "ListCommand",
    "ListReply",
    "LogNotice",
    "Message",
    "MessageError",
    "Notice",
    "PrepareCommand",
    "PreparedReply",
    "ReadyMessage",
    "RefusedReply",
    "Reply",
    "Request",
    "StartMessage",
    "StopCommand",
    "UpstreamsCommand",
    "UpstreamsReply",
    "bulk_request",
    "commit_request",
    "describe_request",
    "drain_request",
    "event_notice",
    "holders_request",
    "list_request",
    "prepare_request",
    "read_command",
    "read_notice",
    "read_ready",
    "read_start",
    "upstreams_request",
]

WIRE_VERSION: Final = 1
"""Of everything here and in ``rows``: one more with every release that changes a message or a row."""

Message = dict[str, Any]
"""One that was read, and not judged."""
R = TypeVar("R")
Endpoints = dict[str, list[list[str | int]]]
"""Addresses by upstream: ``[host, family, path]`` or ``[host, family, address, port]``."""


class MessageError(Exception):
    """A message that is not what its type says; the text names the key."""


# The first words.


class StartMessage(TypedDict):
    """What a processor starts with.

    Attributes:
        config: of ``proxy.config.model.to_wire``.
        share: bytes of the memory pool.
        files: certificates, keys and authorities by path, as latin-1; without it they are read from the disk.
    """

    type: Literal["start"]
    wire: int
    config: dict[str, Any]
    slot: int
    generation: int
    boot_id: str
    share: int
    endpoints: Endpoints
    files: NotRequired[dict[str, str]]


class ReadyMessage(TypedDict):
    """A processor serves. ``modules``: the names and files of what runs in it."""

    type: Literal["ready"]
    wire: int
    pid: int
    modules: dict[str, str]


class FailedMessage(TypedDict):
    """A processor could not start."""

    type: Literal["failed"]
    error: str


# Changes and commands. An id is given by who sends one.


class Change(TypedDict, total=False):
    """What may change while a processor runs; what is not named stays.

    Attributes:
        max_receive_size: bytes by listener.
        share: bytes of the memory pool.
        tap_rules: all of them, of ``proxy.config.model.rules_to_wire``; ``tap_rule`` names the one that was changed, which is on again.
    """

    max_receive_size: dict[str, int]
    share: int
    endpoints: Endpoints
    tap_rules: list[dict[str, Any]]
    tap_rule: str


class _Asked(TypedDict):
    id: NotRequired[int]


class PrepareCommand(_Asked):
    """Judge a change and keep it. What is in it is judged with what is in force: see ``CHANGE``."""

    type: Literal["prepare"]
    change: dict[str, Any]


class CommitCommand(_Asked):
    """Put the change of that id in force."""

    type: Literal["commit"]


class AbortCommand(_Asked):
    """Forget the change of that id."""

    type: Literal["abort"]


class ListCommand(_Asked):
    """Up to ``limit`` rows of a listener, or all, of ids above ``after``."""

    type: Literal["list"]
    after: NotRequired[int]
    limit: NotRequired[int]
    listener: NotRequired[str | None]


class DescribeCommand(_Asked):
    """The row of one pair."""

    type: Literal["describe"]
    connection: int


class BulkCommand(_Asked):
    """Mute, unmute or close pairs: those that are named, or all of a listener."""

    type: Literal["mute", "unmute", "close"]
    connections: NotRequired[list[int]]
    listener: NotRequired[str | None]
    reason: NotRequired[str]


class UpstreamsCommand(_Asked):
    """Which endpoints are left out."""

    type: Literal["upstreams"]


class HoldersCommand(_Asked):
    """Who holds most of the memory pool."""

    type: Literal["holders"]
    limit: int


class DrainCommand(_Asked):
    """Drain, or shorten the time that is left of a drain."""

    type: Literal["drain"]
    timeout_ms: int


class StopCommand(_Asked):
    """Flush and exit."""

    type: Literal["stop"]


Command = (
    PrepareCommand
    | CommitCommand
    | AbortCommand
    | ListCommand
    | DescribeCommand
    | BulkCommand
    | UpstreamsCommand
    | HoldersCommand
    | DrainCommand
    | StopCommand
)


# Replies.


class ErrorReply(TypedDict):
    """A command that could not be read, a fault of ours, or a job that the end cut short."""

    type: Literal["error"]
    id: int | None
    error: str


class PreparedReply(TypedDict):
    """The change can be, and is kept."""

    type: Literal["prepared"]
    id: int


class RefusedReply(TypedDict):
    """The change cannot be, or is not the one that is kept."""

    type: Literal["refused"]
    id: int
    reason: str


class CommittedReply(TypedDict):
    """The change is in force."""

    type: Literal["committed"]
    id: int


class AbortedReply(TypedDict):
    """The change is not kept."""

    type: Literal["aborted"]
    id: int


class ListReply(TypedDict):
    """A page. ``next``: the last id of it when there may be more, 0 otherwise."""

    type: Literal["result"]
    id: int
    rows: list[OpenRow]
    next: int


class DescribeReply(TypedDict):
    """A pair, or None."""

    type: Literal["result"]
    id: int
    row: OpenRow | None


class BulkReply(TypedDict):
    """Ids of pairs; see the module."""

    type: Literal["result"]
    id: int
    affected: list[int]
    missing: list[int]
    undone: list[int]


class UpstreamsReply(TypedDict):
    """Endpoints that are left out."""

    type: Literal["result"]
    id: int
    rows: list[EndpointDownRow]


class HoldersReply(TypedDict):
    """Who holds most, most first."""

    type: Literal["result"]
    id: int
    rows: list[HolderRow]


class DrainReply(TypedDict):
    """It drains."""

    type: Literal["result"]
    id: int


Reply = (
    ErrorReply
    | PreparedReply
    | RefusedReply
    | CommittedReply
    | AbortedReply
    | ListReply
    | DescribeReply
    | BulkReply
    | UpstreamsReply
    | HoldersReply
    | DrainReply
)


# Notices.


class ClosedNotice(TypedDict):
    """Connections that are over; ``rows`` are the lines behind the message (``closed``)."""

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


Notice = ClosedNotice | LogNotice | DrainedNotice
EventRow = EndpointDownRow | EndpointUpRow | HandoverFailedRow | InternalErrorRow | TapIncompleteRow | TapRuleOffRow


class Event(NamedTuple):
    """What a row of the log is called by, besides its name."""

    level: Literal["info", "warning", "error"]
    shape: Shape


EVENTS: Final = {
    "endpoint_down": Event("warning", shape_of(EndpointDownRow)),
    "endpoint_up": Event("info", shape_of(EndpointUpRow)),
    "handover_failed": Event("error", shape_of(HandoverFailedRow)),
    "internal_error": Event("error", shape_of(InternalErrorRow)),
    "tap_incomplete": Event("error", shape_of(TapIncompleteRow)),
    "tap_rule_off": Event("warning", shape_of(TapRuleOffRow)),
}
"""What a processor logs, by name."""


def event_notice(event: str, row: EventRow) -> LogNotice:
    """The notice of a row that is in ``EVENTS``."""
    return LogNotice(type="log", level=EVENTS[event].level, event=event, fields=cast(dict[str, Any], row))


# Judging what arrives.


def _by_type(*declared: Any) -> dict[str, Shape]:
    return {word: shape_of(each) for each in declared for word in typing.get_args(typing.get_type_hints(each)["type"])}


CHANGE: Final = shape_of(Change)
NOTICES: Final = _by_type(ClosedNotice, LogNotice, DrainedNotice)
_COMMANDS: Final = _by_type(*typing.get_args(Command))
_START: Final = shape_of(StartMessage)
_READY: Final = shape_of(ReadyMessage)
_ERROR: Final = shape_of(ErrorReply)
REPLIES: Final = {
    "prepare": _by_type(PreparedReply, RefusedReply),
    "commit": _by_type(CommittedReply, RefusedReply),
    "abort": _by_type(AbortedReply),
    "list": _by_type(ListReply),
    "describe": _by_type(DescribeReply),
    "mute": _by_type(BulkReply),
    "unmute": _by_type(BulkReply),
    "close": _by_type(BulkReply),
    "upstreams": _by_type(UpstreamsReply),
    "holders": _by_type(HoldersReply),
    "drain": _by_type(DrainReply),
}
"""What may answer a command, besides an error: shapes by type. Of ``stop`` there is no answer."""


def read_command(message: Message) -> Command:
    """What control asks for.

    Raises:
        MessageError: it is none, or not what its type says.
    """
    kind = message["type"]
    shape = _COMMANDS.get(kind)
    if shape is None:
        raise MessageError(f"no command {kind}")
    _judge(kind, shape, message)
    if kind in REPLIES and "id" not in message:
        raise MessageError(f"{kind}.id is missing")
    return cast(Command, message)


def read_notice(message: Message) -> Notice:
    """What a processor tells unasked; its type is in ``NOTICES``.

    Raises:
        MessageError: it is not what its type says, or the row of an event is not what its name says.
    """
    kind = message["type"]
    _judge(kind, NOTICES[kind], message)
    if kind == "log":
        event = EVENTS.get(message["event"])
        if event is None:
            raise MessageError(f"no event {message['event']}")
        _judge(message["event"], event.shape, message["fields"])
    return cast(Notice, message)


def read_start(message: Message) -> StartMessage:
    """Control's first words.

    Raises:
        MessageError: something else, or control speaks another version.
    """
    if message["type"] != "start":
        raise MessageError(f"the first message is {message['type']}, not start")
    _judge_version(message, "control", "this processor")
    _judge("start", _START, message)
    return cast(StartMessage, message)


def read_ready(message: Message) -> ReadyMessage:
    """A processor's first words, if it did not fail.

    Raises:
        MessageError: something else, or it speaks another version.
    """
    _judge_version(message, "it", "control")
    _judge("ready", _READY, message)
    return cast(ReadyMessage, message)


def _judge_version(message: Message, they: str, we: str) -> None:
    theirs = message.get("wire")
    if theirs != WIRE_VERSION:
        said = "no version" if theirs is None else f"version {theirs!r:.20}"
        raise MessageError(f"{they} speaks {said} of the link, and {we} version {WIRE_VERSION}: they are of different releases")


def _judge(name: str, shape: Shape, value: object) -> None:
    fault = shape.fault(value)
    if fault:
        raise MessageError(f"{name}{fault}")


class Request(Generic[R]):
    """A command, and what may answer it.

    Args:
        message: without an id.
        replies: one of ``REPLIES``.
    """

    __slots__ = ("message", "replies")

    def __init__(self, message: Mapping[str, Any], replies: Mapping[str, Shape]) -> None:
        self.message: Final = message
        self.replies: Final = replies

    def read(self, answer: Message) -> R | ErrorReply:
        """Judge an answer. One that is not what it should be becomes an error, as if the processor had said so."""
        kind = answer["type"]
        shape = _ERROR if kind == "error" else self.replies.get(kind)
        fault = f": {kind} is no answer" if shape is None else shape.fault(answer)
        if fault:
            return ErrorReply(type="error", id=answer["id"], error=f"the answer to {self.message['type']} cannot be read: {kind}{fault}")
        return cast(R, answer)


def prepare_request(change: Change) -> Request[PreparedReply | RefusedReply]:
    """Ask for the first phase of a change."""
    return Request(PrepareCommand(type="prepare", change=cast(dict[str, Any], change)), REPLIES["prepare"])


def commit_request() -> Request[CommittedReply | RefusedReply]:
    """Ask for the second phase; the id is that of the first."""
    return Request(CommitCommand(type="commit"), REPLIES["commit"])


def list_request(*, after: int, limit: int, listener: str | None) -> Request[ListReply]:
    """Ask for a page."""
    return Request(ListCommand(type="list", after=after, limit=limit, listener=listener), REPLIES["list"])


def describe_request(connection: int) -> Request[DescribeReply]:
    """Ask for one row."""
    return Request(DescribeCommand(type="describe", connection=connection), REPLIES["describe"])


def bulk_request(command: BulkCommand) -> Request[BulkReply]:
    """Ask for what shall happen to pairs."""
    return Request(command, REPLIES[command["type"]])


def upstreams_request() -> Request[UpstreamsReply]:
    """Ask for the endpoints that are left out."""
    return Request(UpstreamsCommand(type="upstreams"), REPLIES["upstreams"])


def holders_request(limit: int) -> Request[HoldersReply]:
    """Ask who holds most."""
    return Request(HoldersCommand(type="holders", limit=limit), REPLIES["holders"])


def drain_request(timeout_ms: int) -> Request[DrainReply]:
    """Ask for a drain."""
    return Request(DrainCommand(type="drain", timeout_ms=timeout_ms), REPLIES["drain"])
