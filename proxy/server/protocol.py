"""The protocol between control and its child processes: its version, the replies to each command, and the check of each message on arrival.

Both ends state their version (``WIRE_VERSION``) in their first message and refuse another one: a new release may be installed while an old control
runs and starts a processor. Every later message is compared with its declaration (``messages``, ``rows``) when it arrives. One that differs is
refused with the name of the key: a command by ``error``, a reply as if the processor had answered ``error``, a notice by an exception.
"""

import typing
from collections.abc import Mapping, Sequence
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar, cast

from framegate.proxy.server import messages, rows
from framegate.proxy.server.messages import BulkCommand, Change, ErrorReply
from framegate.proxy.server.schema import MessageError as MessageError
from framegate.proxy.server.schema import check, schema_of

WIRE_VERSION: Final = 12  # of ``messages`` and ``rows``: increased by 1 by every release that changes one of them

Message = dict[str, Any]  # a decoded message that is not checked yet
R = TypeVar("R")


class Event(NamedTuple):
    """The level and the fields of a log row."""

    level: Literal["info", "warning", "error"]
    row: type[rows.EventRow]


EVENTS: Final = {
    "endpoint_down": Event("warning", rows.EndpointDownRow),
    "endpoint_up": Event("info", rows.EndpointUpRow),
    "handler_raised": Event("error", rows.HandlerRaisedRow),
    "handover_failed": Event("error", rows.HandoverFailedRow),
    "internal_error": Event("error", rows.InternalErrorRow),
    "kafka_refused": Event("warning", rows.KafkaRefusedRow),
    "tap_incomplete": Event("error", rows.TapIncompleteRow),
    "tap_rule_off": Event("warning", rows.TapRuleOffRow),
    "tap_segment_deleted": Event("error", rows.TapSegmentDeletedRow),
}  # the log rows of processors and handler processes, by name


def event_notice(event: str, row: rows.EventRow) -> messages.LogNotice:
    """The notice for a row of ``EVENTS``."""
    return messages.LogNotice(type="log", level=EVENTS[event].level, event=event, fields=cast(dict[str, Any], row))


# Checking what arrives.


def _by_type(union: Any) -> dict[str, Any]:
    return {word: each for each in typing.get_args(union) for word in typing.get_args(each.__annotations__["type"])}


NOTICES: Final = _by_type(messages.Notice)
HANDLER_NOTICES: Final = _by_type(messages.HandlerNotice)  # of a handler process
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
    "throttle": {"result": messages.BulkReply},
    "evict": {"result": messages.EvictReply},
    "upstreams": {"result": messages.UpstreamsReply},
    "holders": {"result": messages.HoldersReply},
    "clients": {"result": messages.ClientsReply},
    "access": {"result": messages.AccessReply},
    "drain": {"result": messages.DrainReply},
}  # The declarations of the replies to each command, by their type; ``error`` may answer every command. Other commands have no reply.
MAX_REVOKED: Final = 10_000  # names in a change; if there are more, all clients must authenticate again


def revoked_row(users: Sequence[str] = (), serials: Sequence[str] = ()) -> messages.RevokedRow:
    """Identities that are no longer valid; None, which means all, for a kind with more than ``MAX_REVOKED``."""
    return messages.RevokedRow(
        users=list(users) if len(users) <= MAX_REVOKED else None, serials=list(serials) if len(serials) <= MAX_REVOKED else None
    )


def read_command(message: Message) -> messages.Command:
    """Check a command of control. Raises MessageError: there is no such command, or it is not as declared."""
    kind = message["type"]
    declared = _COMMANDS.get(kind)
    if declared is None:
        raise MessageError(f"no command {kind}")
    check(kind, declared, message)
    if kind in REPLIES and "id" not in message:
        raise MessageError(f"{kind}.id is missing")
    return cast(messages.Command, message)


def read_notice(message: Message) -> messages.Notice:
    """Check a notice of a processor; its type is in ``NOTICES``. Raises MessageError: it, or the row of an event, is not as declared."""
    return cast(messages.Notice, _checked_notice(message, NOTICES))


def read_handler_notice(message: Message) -> messages.HandlerNotice:
    """Check a notice of a handler process; its type is in ``HANDLER_NOTICES``. See ``read_notice``."""
    return cast(messages.HandlerNotice, _checked_notice(message, HANDLER_NOTICES))


def _checked_notice(message: Message, declared: Mapping[str, Any]) -> Message:
    kind = message["type"]
    check(kind, declared[kind], message)
    if kind == "log":
        event = EVENTS.get(message["event"])
        if event is None:
            raise MessageError(f"no event {message['event']}")
        check(message["event"], event.row, message["fields"])
    return message


def read_start(message: Message) -> messages.StartMessage:
    """Check control's first message to a processor. Raises MessageError: it is another message, or of another version."""
    return cast(messages.StartMessage, _checked_start(message, "this processor", messages.StartMessage))


def read_handler_start(message: Message) -> messages.HandlerStartMessage:
    """Check control's first message to a handler process; see ``read_start``."""
    return cast(messages.HandlerStartMessage, _checked_start(message, "this handler process", messages.HandlerStartMessage))


def _checked_start(message: Message, we: str, declared: Any) -> Message:
    if message["type"] != "start":
        raise MessageError(f"the first message is {message['type']}, not start")
    _check_version(message, "control", we)
    check("start", declared, message)
    return message


def read_ready(message: Message) -> messages.ReadyMessage:
    """Check a processor's first message, if it is not ``failed``. Raises MessageError: it is another message, or of another version."""
    _check_version(message, "it", "control")
    check("ready", messages.ReadyMessage, message)
    return cast(messages.ReadyMessage, message)


def read_handler_ready(message: Message) -> messages.HandlerReadyMessage:
    """Check a handler process's first message; see ``read_ready``."""
    _check_version(message, "it", "control")
    check("ready", messages.HandlerReadyMessage, message)
    return cast(messages.HandlerReadyMessage, message)


def _check_version(message: Message, they: str, we: str) -> None:
    theirs = message.get("wire")
    if theirs != WIRE_VERSION:
        said = "no version" if theirs is None else f"version {theirs!r:.20}"
        raise MessageError(f"{they} speaks {said} of the link, and {we} version {WIRE_VERSION}: they are of different releases")


class Request(Generic[R]):
    """A command, and the type ``R`` of its reply. ``message``: without an id; its type is in ``REPLIES``."""

    __slots__ = ("message",)

    def __init__(self, message: messages.Command) -> None:
        self.message: Final = message

    def read(self, answer: Message) -> R | ErrorReply:
        """Check a reply. One that is not as declared becomes an ``ErrorReply``, as if the processor had sent that."""
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
    """One page of pairs."""
    return Request(messages.ListCommand(type="list", after=after, limit=limit, listener=listener))


def describe_request(connection: int) -> Request[messages.DescribeReply]:
    """One pair."""
    return Request(messages.DescribeCommand(type="describe", connection=connection))


def bulk_request(command: BulkCommand) -> Request[messages.BulkReply]:
    """A command for many pairs."""
    return Request(command)


def evict_request(count: int, spared: str | None) -> Request[messages.EvictReply]:
    """Close the longest idle pairs."""
    return Request(messages.EvictCommand(type="evict", count=count, spared=spared))


def upstreams_request() -> Request[messages.UpstreamsReply]:
    """The endpoints that are down."""
    return Request(messages.PlainCommand(type="upstreams"))


def holders_request(limit: int) -> Request[messages.HoldersReply]:
    """The channels that hold most of the memory pool."""
    return Request(messages.HoldersCommand(type="holders", limit=limit))


def clients_request(limit: int) -> Request[messages.ClientsReply]:
    """What clients used since the last such request."""
    return Request(messages.ClientsCommand(type="clients", limit=limit))


def access_request(*, after: int, limit: int, every_ms: int, since_ns: int, until_ns: int) -> Request[messages.AccessReply]:
    """Rows of pairs that are open for long."""
    return Request(messages.AccessCommand(type="access", after=after, limit=limit, every_ms=every_ms, since_ns=since_ns, until_ns=until_ns))


def drain_request(timeout_ms: int, delay_ms: int | None = None) -> Request[messages.DrainReply]:
    """Begin a drain, or, with a delay, the lead-in of one."""
    command = messages.DrainCommand(type="drain", timeout_ms=timeout_ms)
    if delay_ms is not None:
        command["delay_ms"] = delay_ms
    return Request(command)
