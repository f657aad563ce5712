"""The protocol between control and a processor: what is judged when it arrives, which reply belongs to which command, and the version of it all.

Both ends say in their first words which version they speak, and have nothing to do with another one (``WIRE_VERSION``): a new release may be
installed while an old control runs, and starts a processor anew. Afterwards each message is judged by its declaration (``messages``, ``rows``) where
it arrives, and what is not as declared is refused with the name of the key: a command by an error, an answer as if the processor had failed, a
notice with an exception.
"""

import functools
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar, cast

from proxy.server.handler_messages import HandlerNotice, HandlerReadyMessage, HandlerStartMessage
from proxy.server.messages import (
    AbortedReply,
    AccessCommand,
    AccessNotice,
    AccessReply,
    BulkCommand,
    BulkReply,
    Change,
    ClosedNotice,
    Command,
    CommitCommand,
    CommittedReply,
    DemandNotice,
    DescribeCommand,
    DescribeReply,
    DrainCommand,
    DrainedNotice,
    DrainReply,
    ErrorReply,
    EventRow,
    EvictCommand,
    EvictReply,
    ForgetNotice,
    HoldersCommand,
    HoldersReply,
    ListCommand,
    ListReply,
    LogNotice,
    Notice,
    OpenedNotice,
    PartedNotice,
    PrepareCommand,
    PreparedReply,
    QuestionNotice,
    ReadyMessage,
    RefusedReply,
    RevokedRow,
    StartMessage,
    UpstreamsCommand,
    UpstreamsReply,
)
from proxy.server.question_rows import ANSWERS, QUESTIONS
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
from proxy.server.shape import shape_of

__all__ = [
    "EVENTS",
    "HANDLER_NOTICES",
    "NOTICES",
    "REPLIES",
    "WIRE_VERSION",
    "Message",
    "MessageError",
    "Request",
    "access_request",
    "bulk_request",
    "change_fault",
    "commit_request",
    "describe_request",
    "drain_request",
    "event_notice",
    "evict_request",
    "holders_request",
    "list_request",
    "prepare_request",
    "read_command",
    "read_handler_notice",
    "read_handler_ready",
    "read_handler_start",
    "read_notice",
    "read_ready",
    "read_start",
    "revoked_row",
    "upstreams_request",
]

WIRE_VERSION: Final = 7
"""Of ``messages`` and ``rows``: one more with every release that changes one of them."""

Message = dict[str, Any]
"""One that was read, and not judged."""
R = TypeVar("R")


class MessageError(Exception):
    """A message that is not what its type says; the text names the key."""


class Event(NamedTuple):
    """What a row of the log is called by, besides its name."""

    level: Literal["info", "warning", "error"]
    row: type[EventRow]


EVENTS: Final = {
    "endpoint_down": Event("warning", EndpointDownRow),
    "endpoint_up": Event("info", EndpointUpRow),
    "handler_raised": Event("error", HandlerRaisedRow),
    "handover_failed": Event("error", HandoverFailedRow),
    "internal_error": Event("error", InternalErrorRow),
    "tap_incomplete": Event("error", TapIncompleteRow),
    "tap_rule_off": Event("warning", TapRuleOffRow),
    "tap_segment_deleted": Event("error", TapSegmentDeletedRow),
}
"""What a processor or a handler process logs, by name."""


def event_notice(event: str, row: EventRow) -> LogNotice:
    """The notice of a row that is in ``EVENTS``."""
    return LogNotice(type="log", level=EVENTS[event].level, event=event, fields=cast(dict[str, Any], row))


# Judging what arrives.


_shape: Final = functools.cache(shape_of)
"""A declaration is read when it is needed first: a processor hears no replies, and is to start fast."""


def _by_type(*declared: Any) -> dict[str, Any]:
    return {word: each for each in declared for word in typing.get_args(each.__annotations__["type"])}


NOTICES: Final = _by_type(
    OpenedNotice, AccessNotice, ClosedNotice, LogNotice, DrainedNotice, DemandNotice, PartedNotice, QuestionNotice, ForgetNotice
)
HANDLER_NOTICES: Final = _by_type(LogNotice, PartedNotice)
"""Of a handler process."""
_COMMANDS: Final = _by_type(*typing.get_args(Command))
REPLIES: Final = {
    "prepare": _by_type(PreparedReply, RefusedReply),
    "commit": _by_type(CommittedReply, RefusedReply),
    "abort": _by_type(AbortedReply),
    "list": _by_type(ListReply),
    "describe": _by_type(DescribeReply),
    "mute": _by_type(BulkReply),
    "unmute": _by_type(BulkReply),
    "close": _by_type(BulkReply),
    "evict": _by_type(EvictReply),
    "upstreams": _by_type(UpstreamsReply),
    "holders": _by_type(HoldersReply),
    "access": _by_type(AccessReply),
    "drain": _by_type(DrainReply),
}
"""What may answer a command, besides an error: what is declared, by type. Of ``stop`` and ``answer`` there is none."""


MAX_REVOKED: Final = 10_000
"""Names in a change; beyond that everybody is asked again, who then connects again."""


def revoked_row(users: Sequence[str] = (), serials: Sequence[str] = ()) -> RevokedRow:
    """Whose proof was taken back; everybody's where that are more than ``MAX_REVOKED``."""
    return RevokedRow(users=list(users) if len(users) <= MAX_REVOKED else None, serials=list(serials) if len(serials) <= MAX_REVOKED else None)


def change_fault(change: dict[str, Any]) -> str:
    """What is wrong with a change that is to be prepared, if it is none; see ``Shape.fault``."""
    return _shape(Change).fault(change)


def read_command(message: Message) -> Command:
    """What control asks for.

    Raises:
        MessageError: it is none, or not what its type says.
    """
    kind = message["type"]
    declared = _COMMANDS.get(kind)
    if declared is None:
        raise MessageError(f"no command {kind}")
    _judge(kind, declared, message)
    if kind == "answer":
        _judge_row(message, ANSWERS)
    if kind in REPLIES and "id" not in message:
        raise MessageError(f"{kind}.id is missing")
    return cast(Command, message)


def read_notice(message: Message) -> Notice:
    """What a processor tells unasked; its type is in ``NOTICES``.

    Raises:
        MessageError: it is not what its type says, or the row of an event is not what its name says.
    """
    _judge_notice(message, NOTICES)
    return cast(Notice, message)


def read_handler_notice(message: Message) -> HandlerNotice:
    """What a handler process tells; its type is in ``HANDLER_NOTICES``. See ``read_notice``."""
    _judge_notice(message, HANDLER_NOTICES)
    return cast(HandlerNotice, message)


def _judge_notice(message: Message, declared: Mapping[str, Any]) -> None:
    kind = message["type"]
    _judge(kind, declared[kind], message)
    if kind == "log":
        event = EVENTS.get(message["event"])
        if event is None:
            raise MessageError(f"no event {message['event']}")
        _judge(message["event"], event.row, message["fields"])
    elif kind == "question":
        _judge_row(message, QUESTIONS)


def _judge_row(message: Message, declared: Mapping[str, Any]) -> None:
    if message["kind"] not in declared:
        raise MessageError(f"no {message['type']} of the kind {message['kind']:.100}")
    _judge(message["kind"], declared[message["kind"]], message["row"])


def read_start(message: Message) -> StartMessage:
    """Control's first words.

    Raises:
        MessageError: something else, or control speaks another version.
    """
    _judge_start(message, "this processor", StartMessage)
    return cast(StartMessage, message)


def read_handler_start(message: Message) -> HandlerStartMessage:
    """Control's first words to a handler process; see ``read_start``."""
    _judge_start(message, "this handler process", HandlerStartMessage)
    return cast(HandlerStartMessage, message)


def _judge_start(message: Message, we: str, declared: Any) -> None:
    if message["type"] != "start":
        raise MessageError(f"the first message is {message['type']}, not start")
    _judge_version(message, "control", we)
    _judge("start", declared, message)


def read_ready(message: Message) -> ReadyMessage:
    """A processor's first words, if it did not fail.

    Raises:
        MessageError: something else, or it speaks another version.
    """
    _judge_version(message, "it", "control")
    _judge("ready", ReadyMessage, message)
    return cast(ReadyMessage, message)


def read_handler_ready(message: Message) -> HandlerReadyMessage:
    """A handler process's first words; see ``read_ready``."""
    _judge_version(message, "it", "control")
    _judge("ready", HandlerReadyMessage, message)
    return cast(HandlerReadyMessage, message)


def _judge_version(message: Message, they: str, we: str) -> None:
    theirs = message.get("wire")
    if theirs != WIRE_VERSION:
        said = "no version" if theirs is None else f"version {theirs!r:.20}"
        raise MessageError(f"{they} speaks {said} of the link, and {we} version {WIRE_VERSION}: they are of different releases")


def _judge(name: str, declared: Any, value: object) -> None:
    fault = _shape(declared).fault(value)
    if fault:
        raise MessageError(f"{name}{fault}")


class Request(Generic[R]):
    """A command, and what may answer it.

    Args:
        message: without an id.
        replies: one of ``REPLIES``.
    """

    __slots__ = ("message", "replies")

    def __init__(self, message: Mapping[str, Any], replies: Mapping[str, Any]) -> None:
        self.message: Final = message
        self.replies: Final = replies

    def read(self, answer: Message) -> R | ErrorReply:
        """Judge an answer. One that is not what it should be becomes an error, as if the processor had said so."""
        kind = answer["type"]
        declared = ErrorReply if kind == "error" else self.replies.get(kind)
        fault = f": {kind} is no answer" if declared is None else _shape(declared).fault(answer)
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


def evict_request(count: int, spared: str | None) -> Request[EvictReply]:
    """Ask for the end of the longest idle pairs."""
    return Request(EvictCommand(type="evict", count=count, spared=spared), REPLIES["evict"])


def upstreams_request() -> Request[UpstreamsReply]:
    """Ask for the endpoints that are left out."""
    return Request(UpstreamsCommand(type="upstreams"), REPLIES["upstreams"])


def holders_request(limit: int) -> Request[HoldersReply]:
    """Ask who holds most."""
    return Request(HoldersCommand(type="holders", limit=limit), REPLIES["holders"])


def access_request(*, after: int, limit: int, every_ms: int, since_ns: int, until_ns: int) -> Request[AccessReply]:
    """Ask for rows of pairs that have been open for long."""
    command = AccessCommand(type="access", after=after, limit=limit, every_ms=every_ms, since_ns=since_ns, until_ns=until_ns)
    return Request(command, REPLIES["access"])


def drain_request(timeout_ms: int) -> Request[DrainReply]:
    """Ask for a drain."""
    return Request(DrainCommand(type="drain", timeout_ms=timeout_ms), REPLIES["drain"])
