"""The protocol between control and its children: how a message is checked when it arrives, which reply belongs to which command, and the version.

Both ends state their version in their first message, and refuse another one (``WIRE_VERSION``): a new release may be installed while an old control
runs, and starts a processor anew. Afterwards each message is compared with its declaration (``messages``, ``rows``) where it arrives, and what is not
as declared is refused with the name of the key: a command by an error, an answer as if the processor had failed, a notice with an exception.
"""

import typing
from collections.abc import Mapping, Sequence
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar, cast

from framegate.proxy.server import messages, rows
from framegate.proxy.server.messages import BulkCommand, Change, ErrorReply
from framegate.proxy.server.schema import MessageError, check, schema_of

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
"""One that was read, and not checked."""
R = TypeVar("R")


class Event(NamedTuple):
    """What a row of the log is called by, besides its name."""

    level: Literal["info", "warning", "error"]
    row: type[rows.EventRow]


EVENTS: Final = {
    "endpoint_down": Event("warning", rows.EndpointDownRow),
    "endpoint_up": Event("info", rows.EndpointUpRow),
    "handler_raised": Event("error", rows.HandlerRaisedRow),
    "handover_failed": Event("error", rows.HandoverFailedRow),
    "internal_error": Event("error", rows.InternalErrorRow),
    "tap_incomplete": Event("error", rows.TapIncompleteRow),
    "tap_rule_off": Event("warning", rows.TapRuleOffRow),
    "tap_segment_deleted": Event("error", rows.TapSegmentDeletedRow),
}
"""What a processor or a handler process logs, by name."""


def event_notice(event: str, row: rows.EventRow) -> messages.LogNotice:
    """The notice of a row that is in ``EVENTS``."""
    return messages.LogNotice(type="log", level=EVENTS[event].level, event=event, fields=cast(dict[str, Any], row))


# Checking what arrives.


def _by_type(union: Any) -> dict[str, Any]:
    return {word: each for each in typing.get_args(union) for word in typing.get_args(each.__annotations__["type"])}


NOTICES: Final = _by_type(messages.Notice)
HANDLER_NOTICES: Final = _by_type(messages.HandlerNotice)
"""Of a handler process."""
_COMMANDS: Final = _by_type(messages.Command)
REPLIES: Final[dict[str, dict[str, Any]]] = {
    "prepare": {"prepared": messages.DecidedReply, "refused": messages.RefusedReply},
    "commit": {"committed": messages.DecidedReply, "refused": messages.RefusedReply},
    "abort": {"aborted": messages.DecidedReply},
    "list": {"result": messages.ListReply},
    "describe": {"result": messages.DescribeReply},
    "mute": {"result": messages.BulkReply},
    "unmute": {"result": messages.BulkReply},
    "close": {"result": messages.BulkReply},
    "evict": {"result": messages.EvictReply},
    "upstreams": {"result": messages.UpstreamsReply},
    "holders": {"result": messages.HoldersReply},
    "access": {"result": messages.AccessReply},
    "drain": {"result": messages.DrainReply},
}
"""What may answer a command, besides an error: what is declared, by type. ``stop``, ``answer`` and ``parts`` have no answer."""
MAX_REVOKED: Final = 10_000
"""Names in a change; beyond that all clients are asked to authenticate again."""


def revoked_row(users: Sequence[str] = (), serials: Sequence[str] = ()) -> messages.RevokedRow:
    """Identities that are not valid any more; all of a kind where there are more than ``MAX_REVOKED``."""
    return messages.RevokedRow(
        users=list(users) if len(users) <= MAX_REVOKED else None, serials=list(serials) if len(serials) <= MAX_REVOKED else None
    )


def read_command(message: Message) -> messages.Command:
    """A command of control.

    Raises:
        MessageError: it is none, or not what its type says.
    """
    kind = message["type"]
    declared = _COMMANDS.get(kind)
    if declared is None:
        raise MessageError(f"no command {kind}")
    check(kind, declared, message)
    if kind in REPLIES and "id" not in message:
        raise MessageError(f"{kind}.id is missing")
    return cast(messages.Command, message)


def read_notice(message: Message) -> messages.Notice:
    """A notice of a processor; its type is in ``NOTICES``.

    Raises:
        MessageError: it is not what its type says, or the row of an event is not what its name says.
    """
    _check_notice(message, NOTICES)
    return cast(messages.Notice, message)


def read_handler_notice(message: Message) -> messages.HandlerNotice:
    """A notice of a handler process; its type is in ``HANDLER_NOTICES``. See ``read_notice``."""
    _check_notice(message, HANDLER_NOTICES)
    return cast(messages.HandlerNotice, message)


def _check_notice(message: Message, declared: Mapping[str, Any]) -> None:
    kind = message["type"]
    check(kind, declared[kind], message)
    if kind == "log":
        event = EVENTS.get(message["event"])
        if event is None:
            raise MessageError(f"no event {message['event']}")
        check(message["event"], event.row, message["fields"])


def read_start(message: Message) -> messages.StartMessage:
    """Control's first message.

    Raises:
        MessageError: something else, or control has another version.
    """
    _check_start(message, "this processor", messages.StartMessage)
    return cast(messages.StartMessage, message)


def read_handler_start(message: Message) -> messages.HandlerStartMessage:
    """Control's first message to a handler process; see ``read_start``."""
    _check_start(message, "this handler process", messages.HandlerStartMessage)
    return cast(messages.HandlerStartMessage, message)


def _check_start(message: Message, we: str, declared: Any) -> None:
    if message["type"] != "start":
        raise MessageError(f"the first message is {message['type']}, not start")
    _check_version(message, "control", we)
    check("start", declared, message)


def read_ready(message: Message) -> messages.ReadyMessage:
    """A processor's first message, if it did not fail.

    Raises:
        MessageError: something else, or it has another version.
    """
    _check_version(message, "it", "control")
    check("ready", messages.ReadyMessage, message)
    return cast(messages.ReadyMessage, message)


def read_handler_ready(message: Message) -> messages.HandlerReadyMessage:
    """A handler process's first message; see ``read_ready``."""
    _check_version(message, "it", "control")
    check("ready", messages.HandlerReadyMessage, message)
    return cast(messages.HandlerReadyMessage, message)


def _check_version(message: Message, they: str, we: str) -> None:
    theirs = message.get("wire")
    if theirs != WIRE_VERSION:
        said = "no version" if theirs is None else f"version {theirs!r:.20}"
        raise MessageError(f"{they} speaks {said} of the link, and {we} version {WIRE_VERSION}: they are of different releases")


class Request(Generic[R]):
    """A command, and what may answer it.

    Args:
        message: without an id; its type is in ``REPLIES``.
    """

    __slots__ = ("message",)

    def __init__(self, message: messages.Command) -> None:
        self.message: Final = message

    def read(self, answer: Message) -> R | ErrorReply:
        """Check an answer. One that is not what it should be becomes an error, as if the processor had reported it."""
        kind = answer["type"]
        declared = ErrorReply if kind == "error" else REPLIES[self.message["type"]].get(kind)
        fault = f": {kind} is no answer" if declared is None else schema_of(declared).fault(answer)
        if fault:
            return ErrorReply(type="error", id=answer["id"], error=f"the answer to {self.message['type']} cannot be read: {kind}{fault}")
        return cast(R, answer)


def prepare_request(change: Change) -> Request[messages.DecidedReply | messages.RefusedReply]:
    """The first phase of a change."""
    return Request(messages.PrepareCommand(type="prepare", change=cast(dict[str, Any], change)))


def commit_request() -> Request[messages.DecidedReply | messages.RefusedReply]:
    """The second phase; the id is that of the first."""
    return Request(messages.PlainCommand(type="commit"))


def list_request(*, after: int, limit: int, listener: str | None) -> Request[messages.ListReply]:
    """A page of rows."""
    return Request(messages.ListCommand(type="list", after=after, limit=limit, listener=listener))


def describe_request(connection: int) -> Request[messages.DescribeReply]:
    """One row."""
    return Request(messages.DescribeCommand(type="describe", connection=connection))


def bulk_request(command: BulkCommand) -> Request[messages.BulkReply]:
    """A command for many pairs."""
    return Request(command)


def evict_request(count: int, spared: str | None) -> Request[messages.EvictReply]:
    """The end of the longest idle pairs."""
    return Request(messages.EvictCommand(type="evict", count=count, spared=spared))


def upstreams_request() -> Request[messages.UpstreamsReply]:
    """The endpoints that are left out."""
    return Request(messages.PlainCommand(type="upstreams"))


def holders_request(limit: int) -> Request[messages.HoldersReply]:
    """The channels that hold most."""
    return Request(messages.HoldersCommand(type="holders", limit=limit))


def access_request(*, after: int, limit: int, every_ms: int, since_ns: int, until_ns: int) -> Request[messages.AccessReply]:
    """Rows of pairs that have been open for long."""
    return Request(messages.AccessCommand(type="access", after=after, limit=limit, every_ms=every_ms, since_ns=since_ns, until_ns=until_ns))


def drain_request(timeout_ms: int) -> Request[messages.DrainReply]:
    """A drain."""
    return Request(messages.DrainCommand(type="drain", timeout_ms=timeout_ms))
