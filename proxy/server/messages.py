"""What control and its children send each other over the command socket. Each message is declared once, here; the rows in it are in ``rows``.

::

    control sends                             a processor answers, with the same ``id``
    start {wire, config, …}                   ready {wire, pid, modules} | failed {error}        without ids: the first messages
    prepare {change}                          prepared | refused {reason}
    commit | abort                            committed, aborted | refused {reason}   committed: when open connections follow
    list {after, limit, listener|null}        result {rows, next}            next: 0 when that was all
    describe {connection}                     result {row|null}
    mute | unmute | close {connections | listener | principal, reason}
                                              result {affected, missing, undone}   mute: when no further header will be read
    evict {count, spared: listener|null}      result {affected}              the longest idle pairs are closed (cause limit)
    upstreams                                 result {rows}                  of endpoints that are left out
    holders {limit}                           result {rows}                  channels that hold most of the memory pool, most first
    parts {default, parts}                    no answer: of the rates: see ``framegate.proxy.relay.quotas``; what is not named stays
    answer {number, kind, row}                no answer: it is one itself, to the question of that number
    access {after, limit, every_ms, since_ns, until_ns}
                                              the notice access, where there are such; then result {next}: as of a page
    drain {timeout_ms}                        result {} at once; later the notice drained {open, cut_off}
    stop                                      no answer: flush and exit

Each connection of a bulk command is in one of three lists. ``affected``: the command is in force. ``missing``: not here, or its end had begun.
``undone``: here, and not in force: a mute that was taken away before it was, an error of ours, or the processor ended first. Where ``listener`` or
``principal`` chose them, those that were not reached are undone.

Anything else, and what cannot be read, is answered with ``error {error}``; so is a list that the end of the processor cut short.

Notices come unasked: ``closed`` and, where ``rows_at_open``, ``opened`` (rows: see ``link.split_line``; of a connection ``opened`` comes first, then
``access``, then ``closed``), ``log {level, event, fields}`` (``protocol.EVENTS``), ``drained``, ``demand {demands}``: five times a second, what is
asked of the rates that connections wait for, where several processors share them, ``parted {pair, error}``, and
``question {number, desk, kind, row}``: an authenticator's request (``question_codec``), to which control sends ``answer``, unless
``forget {number}`` comes first.

A handler process has the same link and sends less: it starts with ``start {wire, slot, generation, node, handlers, path}``, answers
``ready {wire, pid, handlers}`` or ``failed {error}``, and sends ``log`` and ``parted`` until it gets ``stop``. How it stands is in shared cells
(``framegate.proxy.handler.activity``).

A sender calls the class, so that the type checker sees every key; a receiver has ``protocol`` check the message. ``link`` puts it on the wire. All
that is declared here is public.
"""

from typing import Any, Literal, NotRequired, TypedDict

from framegate.proxy.server.rows import DemandRow, EndpointDownRow, HolderRow, LimitsRow, OpenRow, PartRow, StoresRow

Endpoints = dict[str, list[list[str | int]]]
"""Addresses by upstream: ``[host, family, path]`` or ``[host, family, address, port]``."""


# The first messages.


class StartMessage(TypedDict):
    """What a processor starts with.

    Attributes:
        config: of ``framegate.proxy.config.model.to_wire``.
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


class HandlerStartMessage(TypedDict):
    """What a handler process starts with.

    Attributes:
        handlers: ``package.module:name`` by listener.
        path: folders in which Python looks behind all others, absolute.
    """

    type: Literal["start"]
    wire: int
    slot: int
    generation: int
    node: str
    handlers: dict[str, str]
    path: list[str]


class HandlerFacts(TypedDict):
    """What a handler states about itself; ``description``: the first line of its docstring."""

    directions: list[str]
    description: str


class HandlerReadyMessage(TypedDict):
    """A handler process serves; its handlers by listener."""

    type: Literal["ready"]
    wire: int
    pid: int
    handlers: dict[str, HandlerFacts]


class FailedMessage(TypedDict):
    """A child could not start."""

    type: Literal["failed"]
    error: str


# Changes and commands. The sender of a command gives it its id.


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
        revoked: by listener, identities that are not valid any more.
        tap_rules: all of them, of ``framegate.proxy.config.model.rules_to_wire``; ``tap_rule`` names the one that was changed, which is on again.
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
    """Check a change and keep it. What is in it is compared with what is in force: see ``settings``."""

    type: Literal["prepare"]
    change: dict[str, Any]


class PlainCommand(_Asked):
    """Put the change of that id in force, or forget it; report the endpoints that are left out; flush and exit."""

    type: Literal["commit", "abort", "upstreams", "stop"]


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
    """Close up to ``count`` pairs, the longest idle first, but none of the listener ``spared``."""

    type: Literal["evict"]
    count: int
    spared: str | None


class HoldersCommand(_Asked):
    """Report the channels that hold most of the memory pool."""

    type: Literal["holders"]
    limit: int


class PartsCommand(TypedDict):
    """Which part of each rate this processor has."""

    type: Literal["parts"]
    default: int
    parts: list[PartRow]


class AccessCommand(_Asked):
    """Rows of pairs that are open and have been for long: those whose moment, of one each ``every_ms``, lies behind ``since_ns`` and not behind
    ``until_ns`` (``pair_rows.is_due``).

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
    """The answer to an authenticator's question; ``row``: of that kind, of ``question_codec``."""

    type: Literal["answer"]
    number: int
    kind: str
    row: dict[str, Any]


Command = (
    PrepareCommand
    | PlainCommand
    | ListCommand
    | DescribeCommand
    | BulkCommand
    | EvictCommand
    | HoldersCommand
    | PartsCommand
    | AccessCommand
    | DrainCommand
    | AnswerCommand
)


# Replies.


class ErrorReply(TypedDict):
    """A command that could not be read, a fault of ours, or a job that the end cut short."""

    type: Literal["error"]
    id: int | None
    error: str


class _Answer(TypedDict):
    id: int


class DecidedReply(_Answer):
    """The change can be and is kept; it is in force; or it is not kept."""

    type: Literal["prepared", "committed", "aborted"]


class RefusedReply(_Answer):
    """The change cannot be, or is not the one that is kept."""

    type: Literal["refused"]
    reason: str


class DrainReply(_Answer):
    """The drain has begun."""

    type: Literal["result"]


class ListReply(DrainReply):
    """A page. ``next``: the last id of it when there may be more, 0 otherwise."""

    rows: list[OpenRow]
    next: int


class DescribeReply(DrainReply):
    """A pair, or None."""

    row: OpenRow | None


class EvictReply(DrainReply):
    """Ids of pairs whose end has begun."""

    affected: list[int]


class BulkReply(EvictReply):
    """Ids of pairs; see the module."""

    missing: list[int]
    undone: list[int]


class UpstreamsReply(DrainReply):
    """Endpoints that are left out."""

    rows: list[EndpointDownRow]


class HoldersReply(DrainReply):
    """The channels that hold most, most first."""

    rows: list[HolderRow]


class AccessReply(DrainReply):
    """The rows came before. ``next``: the last id that was looked at when there may be more, 0 otherwise."""

    next: int


Reply = (
    ErrorReply
    | DecidedReply
    | RefusedReply
    | DrainReply
    | ListReply
    | DescribeReply
    | EvictReply
    | BulkReply
    | UpstreamsReply
    | HoldersReply
    | AccessReply
)


# Notices.


class RowsNotice(TypedDict):
    """Connections that have opened, are still open, or are over; ``rows`` are the lines behind the message (``link.split_line``)."""

    type: Literal["opened", "access", "closed"]
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
    """What was asked of the rates that connections wait for, or that have a part of their own."""

    type: Literal["demand"]
    demands: list[DemandRow]


class PartedNotice(TypedDict):
    """A processor and a handler process are not connected any more, though both live: each reports its end of the pair of sockets.

    Attributes:
        pair: its number, ``Handover.accepted_ns``.
        error: why; empty: the other end was closed.
    """

    type: Literal["parted"]
    pair: int
    error: str


class QuestionNotice(TypedDict):
    """An authenticator's question.

    Attributes:
        number: of the question; one that is asked later has a greater one.
        desk: the recipient, ``listener:NAME`` or ``upstream:NAME``.
        address: of the client that it is about, as ``limits.client_key`` has it; empty: of none.
        row: of that kind, of ``question_codec``.
    """

    type: Literal["question"]
    number: int
    desk: str
    address: str
    kind: str
    row: dict[str, Any]


class ForgetNotice(TypedDict):
    """The answer is not wanted any more."""

    type: Literal["forget"]
    number: int


HandlerNotice = LogNotice | PartedNotice
Notice = RowsNotice | DrainedNotice | DemandNotice | QuestionNotice | ForgetNotice | HandlerNotice
