"""What control and a processor say to each other over the command socket. Each message is declared once: here, and what a processor tells unasked in
``notices``.

::

    control asks                              a processor answers, with the same ``id``
    start {wire, config, …}                   ready {wire, pid, modules} | failed {error}        without ids: the first words of both
    prepare {change}                          prepared | refused {reason}
    commit | abort                            committed, aborted | refused {reason}   committed: when open connections follow
    list {after, limit, listener|null}        result {rows, next}            next: 0 when that was all
    describe {connection}                     result {row|null}
    mute | unmute | close {connections | listener | principal, reason}
                                              result {affected, missing, undone}   mute: when no further header will be read
    evict {count, spared: listener|null}      result {affected}              the longest idle pairs are closed (cause limit)
    upstreams                                 result {rows}                  of endpoints that are left out
    holders {limit}                           result {rows}                  who holds most of the memory pool, most first
    parts {default, parts}                    no answer: of the rates: see ``proxy.relay.quotas``; what is not named stays
    answer {number, kind, row}                no answer: it is one itself, to the question of that number
    access {after, limit, every_ms, since_ns, until_ns}
                                              the notice access, where there are such; then result {next}: as of a page
    drain {timeout_ms}                        result {} at once; later the notice drained {open, cut_off}
    stop                                      no answer: flush and exit

Each connection of a bulk command is in one of three lists. ``affected``: what was asked for is in force. ``missing``: not here, or its end had
begun. ``undone``: here, and not in force: a mute that was taken away before it was, an error of ours, or the processor ended before it came to
that. Where ``listener`` or ``principal`` chose them, those whose turn did not come are undone.

Anything else, and what cannot be read, is answered with ``error {error}``; so is a list that the end of the processor cut short.

Unasked, a processor tells ``closed`` and, where ``rows_at_open``, ``opened`` (rows: see ``row_lines``; of a connection ``opened`` comes first, then
``access``, then ``closed``), ``log {level, event, fields}`` (``protocol.EVENTS``), ``drained``,
``demand {demands}``: five times a second, what is asked of the rates that somebody waits for, where several processors share them,
``parted {pair, error}``, and
``question {number, desk, kind, row}``: what an authenticator has to ask (``question_rows``), to which control says ``answer``, unless
``forget {number}`` comes first.

What a handler process is told and tells is in ``handler_messages``.

Who makes a message calls its class, so that the type checker sees every key; who gets one has it judged (``protocol``). ``link`` puts it on the
wire.
"""

from typing import Any, Literal, NotRequired, TypedDict

from proxy.server.limit_rows import LimitsRow, PartRow
from proxy.server.notices import (
    AccessNotice,
    ClosedNotice,
    DemandNotice,
    DrainedNotice,
    EventRow,
    ForgetNotice,
    LogNotice,
    Notice,
    OpenedNotice,
    PartedNotice,
    QuestionNotice,
)
from proxy.server.rows import (
    EndpointDownRow,
    HolderRow,
    OpenRow,
)
from proxy.server.store_rows import StoresRow

__all__ = [
    "AbortCommand",
    "AbortedReply",
    "AccessCommand",
    "AccessNotice",
    "AccessReply",
    "AnswerCommand",
    "BulkCommand",
    "BulkReply",
    "Change",
    "ClosedNotice",
    "Command",
    "CommitCommand",
    "CommittedReply",
    "DemandNotice",
    "DescribeCommand",
    "DescribeReply",
    "DrainCommand",
    "DrainReply",
    "DrainedNotice",
    "Endpoints",
    "ErrorReply",
    "EventRow",
    "EvictCommand",
    "EvictReply",
    "FailedMessage",
    "ForgetNotice",
    "HoldersCommand",
    "HoldersReply",
    "ListCommand",
    "ListReply",
    "LogNotice",
    "Notice",
    "OpenedNotice",
    "PartedNotice",
    "PartsCommand",
    "PrepareCommand",
    "PreparedReply",
    "QuestionNotice",
    "ReadyMessage",
    "RefusedReply",
    "Reply",
    "RevokedRow",
    "StartMessage",
    "StopCommand",
    "UpstreamsCommand",
    "UpstreamsReply",
]

Endpoints = dict[str, list[list[str | int]]]
"""Addresses by upstream: ``[host, family, path]`` or ``[host, family, address, port]``."""


# The first words.


class StartMessage(TypedDict):
    """What a processor starts with.

    Attributes:
        config: of ``proxy.config.model.to_wire``.
        share: bytes of the memory pool.
        part: millionths of each rate, until ``parts`` says otherwise; without it all of it.
        stores: of all that speak TLS; without it their files are read from the disk.
        rows_at_open: whether each connection that opens has a row, in the notice ``opened``; without it none has.
    """

    type: Literal["start"]
    wire: int
    config: dict[str, Any]
    slot: int
    generation: int
    boot_id: str
    share: int
    endpoints: Endpoints
    part: NotRequired[int]
    stores: NotRequired[StoresRow]
    rows_at_open: NotRequired[bool]


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


class RevokedRow(TypedDict):
    """Of a listener: users that are gone or have other passwords, and serial numbers of certificates that are revoked; None: all."""

    users: list[str] | None
    serials: list[str] | None


class Change(TypedDict, total=False):
    """What may change while a processor runs; what is not named stays.

    Attributes:
        max_receive_size: bytes by listener.
        limits: all quotas, in place of all that were.
        share: bytes of the memory pool.
        stores: of certificates, those that take the place of others.
        revoked: by listener, whose proof of who they are was taken back.
        tap_rules: all of them, of ``proxy.config.model.rules_to_wire``; ``tap_rule`` names the one that was changed, which is on again.
    """

    max_receive_size: dict[str, int]
    limits: LimitsRow
    share: int
    endpoints: Endpoints
    stores: StoresRow
    revoked: dict[str, RevokedRow]
    tap_rules: list[dict[str, Any]]
    tap_rule: str


class _Asked(TypedDict):
    id: NotRequired[int]


class PrepareCommand(_Asked):
    """Judge a change and keep it. What is in it is judged with what is in force: see ``protocol.change_fault``."""

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
    """Mute, unmute or close pairs: those that are named, all of a listener, or all of a principal."""

    type: Literal["mute", "unmute", "close"]
    connections: NotRequired[list[int]]
    listener: NotRequired[str | None]
    principal: NotRequired[str | None]
    reason: NotRequired[str]


class EvictCommand(_Asked):
    """Close up to ``count`` pairs, those first of which no byte passed for longest, but none of the listener ``spared``."""

    type: Literal["evict"]
    count: int
    spared: str | None


class UpstreamsCommand(_Asked):
    """Which endpoints are left out."""

    type: Literal["upstreams"]


class HoldersCommand(_Asked):
    """Who holds most of the memory pool."""

    type: Literal["holders"]
    limit: int


class PartsCommand(TypedDict):
    """Which part of each rate this processor has."""

    type: Literal["parts"]
    default: int
    parts: list[PartRow]


class AccessCommand(_Asked):
    """Rows of pairs that are open and have been for long: those whose moment, of one each ``every_ms``, lies behind ``since_ns`` and not behind
    ``until_ns`` (``row_lines.is_due``).

    Attributes:
        after, limit: up to so many rows, of ids above that.
        since_ns, until_ns: of the monotonic clock.
    """

    type: Literal["access"]
    after: int
    limit: int
    every_ms: int
    since_ns: int
    until_ns: int


class DrainCommand(_Asked):
    """Drain, or shorten the time that is left of a drain."""

    type: Literal["drain"]
    timeout_ms: int


class AnswerCommand(TypedDict):
    """What an authenticator is told; ``row``: of that kind, of ``question_rows.ANSWERS``."""

    type: Literal["answer"]
    number: int
    kind: str
    row: dict[str, Any]


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
    | EvictCommand
    | UpstreamsCommand
    | HoldersCommand
    | PartsCommand
    | AccessCommand
    | DrainCommand
    | AnswerCommand
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


class EvictReply(TypedDict):
    """Ids of pairs whose end has begun."""

    type: Literal["result"]
    id: int
    affected: list[int]


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


class AccessReply(TypedDict):
    """The rows were told before. ``next``: the last id that was looked at when there may be more, 0 otherwise."""

    type: Literal["result"]
    id: int
    next: int


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
    | EvictReply
    | UpstreamsReply
    | HoldersReply
    | AccessReply
    | DrainReply
)
