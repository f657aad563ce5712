"""The messages that control and its child processes send each other over the command socket. Each is declared once, here; their rows in ``rows``.

Control's first message is ``start``; the child answers ``ready`` or ``failed``. Then control sends commands. Those with an id get one reply with the
same id: of the types in ``protocol.REPLIES``, or ``error`` if the command cannot be read, fails, or is cut short by the end of the processor.
``parts``, ``answer`` and ``stop`` get no reply. Notices are sent without a command; a handler process sends only ``log`` and ``parted``.

A sender calls the class, so that the type checker sees every key; a receiver lets ``protocol`` check the message; ``link`` encodes it. All that is
declared here is public.
"""

from typing import Any, Literal, NotRequired, TypedDict

from framegate.proxy.server.rows import (
    ClientRow,
    DemandRow,
    EndpointRow,
    HolderRow,
    OpenRow,
    PartRow,
    RefusedFrameRow,
    RequestSpanRow,
    SeenBrokerRow,
    StandingRow,
    StoresRow,
)

Endpoints = dict[str, list[list[str | int]]]  # Addresses by upstream, each ``[host, family, path]`` or ``[host, family, address, port]``


class BrokerRow(TypedDict):
    """One broker of a cluster. ``addresses``: as in ``Endpoints``."""

    id: int
    rack: str
    addresses: list[list[str | int]]


class AdvertisedRow(TypedDict):
    """What clients of a listener are told: ``[host, port]`` of the bootstrap, and ``[id, host, port]`` of each broker that they can reach."""

    bootstrap: list[str | int]
    brokers: list[list[str | int]]


class ClusterRow(TypedDict):
    """The brokers of a cluster, and what the listeners in front of it advertise, by listener."""

    brokers: list[BrokerRow]
    listeners: dict[str, AdvertisedRow]


# The first messages.


class StartMessage(TypedDict):
    """The first message to a processor."""

    type: Literal["start"]
    wire: int
    config: dict[str, Any]  # of ``framegate.proxy.config.model.to_wire``
    slot: int
    generation: int
    boot_id: str
    share: int  # bytes of the memory pool
    endpoints: Endpoints
    # the places of ``framegate.proxy.cells.CellLayout``, kind and names; without it they follow from the configuration
    cells: NotRequired[list[list[str]]]
    brokers: NotRequired[dict[str, ClusterRow]]  # of each upstream that is a cluster
    failing: NotRequired[dict[str, dict[str, str]]]  # as of ``Change``
    part: NotRequired[int]  # millionths of each rate, until the first ``parts``; without it all of it
    stores: NotRequired[StoresRow]  # certificates and keys of all listeners and upstreams with TLS; without it their files are read from the disk
    rows_at_open: NotRequired[bool]  # whether the notice ``opened`` is sent for each connection that opens; without it it is not
    request_sample: NotRequired[float]  # the share of Kafka requests that are reported for a span; without it none is
    standing: NotRequired[list[StandingRow]]  # as of ``Change``


class ReadyMessage(TypedDict):
    """A processor serves. ``modules``: the names and files of its modules."""

    type: Literal["ready"]
    wire: int
    pid: int
    modules: dict[str, str]


class HandlerStartMessage(TypedDict):
    """The first message to a handler process."""

    type: Literal["start"]
    wire: int
    slot: int
    generation: int
    node: str
    handlers: dict[str, str]  # ``package.module:name`` by listener
    path: list[str]  # absolute folders, searched after the rest of Python's path


class HandlerFacts(TypedDict):
    """``directions``: of the frames that a handler handles; ``description``: the first line of its docstring."""

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
    """Of a listener: users that were removed or have other passwords, and serial numbers of revoked certificates; None: all."""

    users: list[str] | None
    serials: list[str] | None


class Change(TypedDict, total=False):
    """A change while a processor runs; a key that is missing changes nothing."""

    # the keys that are new, of ``framegate.proxy.config.model.difference_to_wire``. Of upstreams and listeners that are new, or whose addresses or
    # files are, the change has the rest too.
    config: dict[str, Any]
    cells: list[list[str]]  # as of ``StartMessage``, when names have come or gone; made from the places in force
    share: int  # bytes of the memory pool
    endpoints: Endpoints
    brokers: dict[str, ClusterRow]  # by upstream, all brokers of the cluster; they replace the previous ones
    failing: dict[str, dict[str, str]]  # by upstream, all endpoints that fail their checks, by address as text, and why
    stores: StoresRow  # the certificate stores that replace others
    retired: list[str]  # handler processes that get no connections any more; the connections of all listeners that had a handler are drained
    revoked: dict[str, RevokedRow]  # by listener, identities that are no longer valid
    tap_rule: str  # the name of a tap rule that is turned on again
    standing: list[StandingRow]  # all standing actions, in order
    # rows_at_open, request_sample: as of ``StartMessage``
    rows_at_open: bool
    request_sample: float


class _Asked(TypedDict):
    id: NotRequired[int]


class PrepareCommand(_Asked):
    """Check a change against what is in force, and keep it; see ``settings``."""

    type: Literal["prepare"]
    change: dict[str, Any]


class PlainCommand(_Asked):
    """Put the change of that id in force, or forget it; report the endpoints that are down; flush and exit."""

    type: Literal["commit", "abort", "upstreams", "stop"]


class ListCommand(_Asked):
    """Report up to ``limit`` pairs with ids above ``after``, of one listener or of all."""

    type: Literal["list"]
    after: NotRequired[int]
    limit: NotRequired[int]
    listener: NotRequired[str | None]


class DescribeCommand(_Asked):
    """Report one pair."""

    type: Literal["describe"]
    connection: int


class BulkCommand(_Asked):
    """Mute, unmute, close or throttle pairs. A mute is answered when no further header will be read."""

    type: Literal["mute", "unmute", "close", "throttle"]
    connections: NotRequired[list[int]]  # the ids of the pairs; without them ``lifts`` chooses
    # of ``unmute``, and of ``throttle`` without rates: undo it for all pairs to which the operator's action of this number did it last
    lifts: NotRequired[int]
    action: NotRequired[int]  # the number of the operator's action that mutes or throttles; 0, or missing: it has none
    reason: NotRequired[str]
    # request_rate, response_rate: of ``throttle``: bytes per second; 0, or missing: no limit
    request_rate: NotRequired[int]
    response_rate: NotRequired[int]


class EvictCommand(_Asked):
    """Close up to ``count`` pairs, the longest idle first, but none of the listener ``spared``."""

    type: Literal["evict"]
    count: int
    spared: str | None


class HoldersCommand(_Asked):
    """Report the ``limit`` channels that hold most of the memory pool."""

    type: Literal["holders"]
    limit: int


class ClientsCommand(_Asked):
    """Report what clients used since the last such command: of each measure the ``limit`` clients with most."""

    type: Literal["clients"]
    limit: int


class PartsCommand(TypedDict):
    """Set the part of each rate that this processor may use (``framegate.proxy.relay.quotas``); rates that are not named keep theirs."""

    type: Literal["parts"]
    default: int
    parts: list[PartRow]


class AccessCommand(_Asked):
    """Report open pairs in the notice ``access``: each pair once in ``every_ms``, if its time is after ``since_ns`` and not after ``until_ns``
    (``pair_rows.is_due``).
    """

    type: Literal["access"]
    # after, limit: up to ``limit`` rows, of ids above ``after``
    after: int
    limit: int
    every_ms: int
    # since_ns, until_ns: of the monotonic clock
    since_ns: int
    until_ns: int


class DrainCommand(_Asked):
    """Drain, or shorten the rest of a drain. The reply is sent at once, the notice ``drained`` when it is over. ``delay_ms``: begin a lead-in instead
    (``relay.drain``), which has no notice.
    """

    type: Literal["drain"]
    timeout_ms: int
    delay_ms: NotRequired[int]


class AnswerCommand(TypedDict):
    """The response to an auth request; ``row``: of that kind (``credentials``)."""

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
    | ClientsCommand
    | PartsCommand
    | AccessCommand
    | DrainCommand
    | AnswerCommand
)


# Replies.


class ErrorReply(TypedDict):
    """A command that could not be read, an internal error, or a job that the end cut short."""

    type: Literal["error"]
    id: int | None
    error: str


class _Answer(TypedDict):
    id: int


class DecidedReply(_Answer):
    """The change is possible and kept; it is in force, for open connections too; or it is forgotten."""

    type: Literal["prepared", "committed", "aborted"]


class RefusedReply(_Answer):
    """The change is impossible, or is not the one that is kept."""

    type: Literal["refused"]
    reason: str


class DrainReply(_Answer):
    """The drain has begun."""

    type: Literal["result"]


class ListReply(DrainReply):
    """A page. ``next``: its last id if there may be more, else 0."""

    rows: list[OpenRow]
    next: int


class DescribeReply(DrainReply):
    """A pair; None: there is none with that id."""

    row: OpenRow | None


class EvictReply(DrainReply):
    """Ids of pairs for which the command is in force."""

    affected: list[int]


class BulkReply(EvictReply):
    """Ids of pairs, each in one of three lists."""

    missing: list[int]  # they do not exist, or their end had begun
    # they exist and the command is not in force: a mute that was taken away before, an internal error, or the end of the processor. If the command
    # had ``lifts``, these include pairs that were not reached.
    undone: list[int]


class UpstreamsReply(DrainReply):
    """All endpoints, in order."""

    rows: list[EndpointRow]


class HoldersReply(DrainReply):
    """The channels that hold most of the memory pool, the largest first."""

    rows: list[HolderRow]


class ClientsReply(DrainReply):
    """The clients with most, of each measure. ``totals``: of all clients of a listener."""

    rows: list[ClientRow]
    totals: list[ClientRow]


class AccessReply(DrainReply):
    """Sent after the rows. ``next``: the last id that was visited if there may be more, else 0."""

    next: int


Reply = ErrorReply | DecidedReply | RefusedReply | DrainReply  # the other replies are DrainReplies with further keys


# Notices.


class RowsNotice(TypedDict):
    """Connections that have opened, are still open, or are over: in this order for each. ``rows``: the lines of the frame (``link.split_line``)."""

    type: Literal["opened", "access", "closed"]
    rows: NotRequired[list[str]]


class LogNotice(TypedDict):
    """A row of ``protocol.EVENTS``, for the log and for events."""

    type: Literal["log"]
    level: Literal["info", "warning", "error"]
    event: str
    fields: dict[str, Any]


class DrainedNotice(TypedDict):
    """A drain is over: how many pairs are left, and how many did not become quiet in time."""

    type: Literal["drained"]
    open: int
    cut_off: int


class DemandNotice(TypedDict):
    """The demand for the rates that connections wait for, or that have a part of their own: five times a second if processors share them."""

    type: Literal["demand"]
    demands: list[DemandRow]


class FrameRefusedNotice(TypedDict):
    """A frame whose size was refused."""

    type: Literal["frame_refused"]
    row: RefusedFrameRow


class RequestSpansNotice(TypedDict):
    """Kafka requests that have a span. ``skipped``: how many more would have one, if there were not too many, since the last notice."""

    type: Literal["request_spans"]
    spans: list[RequestSpanRow]
    skipped: int


class PartedNotice(TypedDict):
    """A processor and a handler process are no longer connected, though both run; each reports its end of the pair of sockets."""

    type: Literal["parted"]
    pair: int  # the number of the pair of sockets, ``Handover.accepted_ns``
    error: str  # the reason; empty: the other end was closed


class QuestionNotice(TypedDict):
    """An auth request, which control answers with the command ``answer``."""

    type: Literal["question"]
    number: int  # later requests have greater numbers
    queue: str  # the queue, ``listener:NAME`` or ``upstream:NAME``
    address: str  # of the client, in the form of ``limits.client_key``; empty: it has none
    kind: str
    row: dict[str, Any]  # of that kind (``credentials``)


class ForgetNotice(TypedDict):
    """An auth request was cancelled."""

    type: Literal["forget"]
    number: int


class BrokersSeenNotice(TypedDict):
    """A Metadata answer named brokers that differ from the table in force (``ClusterRow``), or from the last notice; at most one a second for each
    upstream. ``brokers``: all that it named, by node id.
    """

    type: Literal["brokers_seen"]
    upstream: str
    brokers: list[SeenBrokerRow]


HandlerNotice = LogNotice | PartedNotice
Report = DemandNotice | BrokersSeenNotice | FrameRefusedNotice | RequestSpansNotice | QuestionNotice | ForgetNotice
"""What a processor needs to know, or has learned."""
Notice = RowsNotice | DrainedNotice | Report | HandlerNotice
