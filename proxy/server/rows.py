"""The rows that go over the link: JSON objects, as the log, the API and events show them. Each is declared once, here.

The writer of a row calls its class, so that the type checker sees every key; the reader checks it with its ``Schema``. Times are nanoseconds since
1970. A key that is ``X | None`` is None if it is not known: in the row that control writes for a connection whose processor died.

Only types and certificate stores are here, because control imports this module; ``pair_rows`` makes rows of pairs. All that is declared is public.
"""

import dataclasses
from collections.abc import Mapping
from typing import Final, Literal, NotRequired, TypedDict, final

RateLevel = Literal["node", "listener", "rule", "address"]
EndpointState = Literal["up", "full", "failing", "down", "ejected"]  # the last one is the worst
RateCounter = Literal["request_bytes", "request_frames", "response_bytes", "response_frames"]


LEFT_OUT: Final = (
    *("principal", "mechanism", "tls", "handshake_ns", "connect_ns", "attempts", "attempt_started_ns", "tcp_ns", "tls_ns", "login_ns"),
    *("state", "lost", "mutes", "detail"),
)
"""Keys of ``opened``, ``access`` and ``closed`` that a line has only if they say something: ``link.complete`` adds the others."""
RESTORED: Final = ("connect_started_ns", "closed_ns")
"""Keys that no line has: ``link.complete`` makes them of ``connect_after_ns`` and ``duration_ms``, which are shorter."""


class TlsRow(TypedDict):
    """The result of a handshake. ``certificate``: the fingerprint of the one that the client was shown; empty: not known."""

    version: str
    cipher: str
    certificate: str


class TrafficRow(TypedDict):
    """Frames, or bytes, by direction."""

    request: int | None
    response: int | None


class LostRow(TypedDict):
    """Bytes that were received and not passed on: of both directions together, and of each."""

    bytes: int | None
    request: int | None
    response: int | None


class MuteRow(TypedDict):
    """How often a cause was set, and how long it lasted."""

    count: int
    ns: int


class ChannelRow(TypedDict):
    """The keys that the rows of open and of closed pairs share."""

    id: int  # a number on the link and in events; the log prints it as text (``format_connection_id``)
    listener: str
    peer: str
    upstream: str  # empty if a handler answers
    endpoint: str | None  # the upstream's address that was tried last; empty: none
    principal: str | None  # None: not known yet, or never
    mechanism: str | None  # of SASL, by which the client authenticated; None: it did not
    tls: TlsRow | None  # of the client; None: plaintext, or not known
    broker: NotRequired[int]  # node id of the Kafka broker that the client reached, -1: the bootstrap; only of listeners with ``brokers``
    # frames, bytes: received from the client, and received from the upstream (or sent to the client, if a handler answers)
    frames: TrafficRow
    bytes: TrafficRow
    opened_ns: int


@final
class OpenRow(ChannelRow):
    """A pair that is not CLOSED."""

    state: str
    # client_id, software, software_version: what a Kafka client said of itself; empty: nothing yet, or no Kafka
    client_id: str
    software: str
    software_version: str
    # muted, muted_upstream: the causes for which the client, and the upstream, is not read
    muted: list[str]
    muted_upstream: list[str]
    # muted_ns, muted_upstream_ns: since when the oldest of these causes is set; 0: there is none
    muted_ns: int
    muted_upstream_ns: int
    muting: bool  # the client's mute is not in force yet, because a frame has begun
    mute_reason: str  # of an operator's mute
    in_flight: int  # requests without a response; 0 without pairing
    oldest_ns: int  # when the oldest of them came; without pairing: since when it waits for an answer. 0: it does not, or that is not known.
    # pending_send, leased: bytes of both channels
    pending_send: int
    leased: int
    unsent: TrafficRow  # bytes that the peer has not taken, of those that framegate or its kernel has for the upstream, and for the client
    limit_rule: str  # the name of the limit rule that it matches; empty: none
    throttle: NotRequired["ThrottleRow"]  # missing: an operator gave it no rates
    last_active_ns: int


class OpeningRow(ChannelRow):
    """The further keys of the rows ``opened``, ``access`` and ``closed``: how the connection was opened."""

    # duration of the client's TLS handshake and authentication together, also of failed ones; None: there is neither, it is not finished, or not
    # known
    handshake_ns: int | None
    # from the first attempt to connect to the upstream until one is READY, TLS and login included, or until the last one failed; None: there was no
    # attempt, it is not finished, or not known
    connect_ns: int | None
    connect_started_ns: int | None  # the time of the first attempt; None: there was none, or it is not known
    attempts: int | None  # to connect to the upstream, each at one endpoint; None: not known
    attempt_started_ns: int | None  # the time of the last attempt that has ended; None: there was none, or it is not known
    # tcp_ns, tls_ns, login_ns: how long it took to connect to the endpoint, the TLS handshake behind that, and the login behind both; 0: there is no
    # such part; None: it was not finished, or is not known
    tcp_ns: int | None
    tls_ns: int | None
    login_ns: int | None


@final
class OpenedRow(OpeningRow):
    """A connection is open: its client is authenticated, and its upstream, if it has one, is READY. No frame is read yet."""


@final
class AccessRow(OpeningRow):
    """A connection that is still open; ``frames`` and ``bytes`` count since it was opened, ``mutes`` the mutes that have ended."""

    state: str
    # muted, muted_upstream, in_flight, last_active_ns: as of ``OpenRow``
    muted: list[str]
    muted_upstream: list[str]
    in_flight: int
    last_active_ns: int
    # lost, mutes: as of ``ClosedRow``
    lost: LostRow
    mutes: dict[str, MuteRow]


@final
class ClosedRow(OpeningRow):
    """A connection that is over."""

    # client_id, software, software_version: as of ``OpenRow``; missing: not known
    client_id: NotRequired[str]
    software: NotRequired[str]
    software_version: NotRequired[str]
    # the name with which a client's login failed, with control characters escaped, cut to 100 characters; missing: none
    attempted_user: NotRequired[str]
    cause: str  # of ``framegate.proxy.cells.CAUSES``
    detail: str
    side: str  # who ended it: ``downstream``, ``upstream`` or ``internal``
    state: str  # when the cause occurred; empty: not known
    closed_ns: int
    duration_ms: float  # to the nanosecond, from ``opened_ns`` to ``closed_ns``
    lost: LostRow
    mutes: dict[str, MuteRow]  # of the client, by cause


class ConditionRow(TypedDict):
    """A condition of a standing action; see ``framegate.proxy.relay.standing.Condition``. ``value``: a pattern, of ``address`` also a network."""

    field: Literal["listener", "address", "principal", "client_id"]
    value: str
    negated: bool


class StandingRow(TypedDict):
    """A standing action; see ``framegate.proxy.relay.standing.Standing``."""

    number: int
    verb: Literal["mute", "close", "throttle"]
    reason: str
    request_rate: int
    response_rate: int
    conditions: list[ConditionRow]


class ThrottleRow(TypedDict):
    """The rates that an operator gave to one pair, in bytes per second; 0: no limit."""

    request_rate: int
    response_rate: int
    reason: str


class RefusedFrameRow(TypedDict):
    """A frame whose size was refused, for which the connection was closed; or, with ``report_only``, counted as too large."""

    id: int  # of the connection
    listener: str
    side: Literal["downstream", "upstream"]  # who sent it: ``downstream`` or ``upstream``; ``peer``: its address
    peer: str
    # principal, client_id: of the client; empty: none, or not known yet
    principal: str
    client_id: str
    cause: Literal["frame_too_large", "negative_size"]  # ``frame_too_large`` or ``negative_size``
    # size, limit: of its body, in bytes; of text with a delimiter ``size`` is what had arrived
    size: int
    limit: int
    rule: str  # the name of the limit rule whose limit it is; empty: it is the listener's, or the upstream's
    report_only: bool  # the frame was passed on
    head: str  # its first 16 bytes, as far as they had arrived, in hexadecimal; empty for frames of an authentication
    time_ns: int


class RequestSpanRow(TypedDict):
    """A Kafka request that was chosen to have a span (``framegate.proxy.relay.request_sampler.RequestSpan``)."""

    id: int  # of the connection; ``peer``: the client's address; ``endpoint``: the upstream's; empty: a handler answers
    listener: str
    upstream: str
    endpoint: str
    peer: str
    principal: str
    client_id: str
    # key, version, correlation_id: of the request
    key: int
    version: int
    correlation_id: int
    # size, answer_size: of the bodies, in bytes; -1: there was no answer
    size: int
    answer_size: int
    began_ns: int
    ended_ns: int
    code: int  # the error code of the answer as a whole; 0: none
    failure: str  # ``unanswered``, ``pairing_lost``, ``refused`` (by a rule) or ``handler`` (it answered, or dropped the request); empty: none
    # topic, partition, records, parents: as of ``framegate.proxy.kafka.trace_parents.Produced``
    topic: str
    partition: int
    records: int
    parents: list[str]


class HolderRow(TypedDict):
    """The memory that one channel of a pair holds, of one kind (``cells.MEMORY_KINDS``)."""

    id: int
    listener: str
    side: str
    peer: str
    kind: str
    bytes: int
    muted: list[str]  # the causes for which it is not read; ``muted_ns``: since when, 0 if it is read
    muted_ns: int
    last_active_ns: int  # when a byte last moved


class ClientRow(TypedDict):
    """How much of something a client used since the last such row; of ``held`` how much it holds."""

    measure: str  # of ``framegate.proxy.relay.frequent.MEASURES``
    client: list[str]  # the texts of a ``framegate.proxy.relay.frequent.Key``, printable and cut; of all clients of a listener only its name
    amount: int  # never too high


class EndpointDownRow(TypedDict):
    """An endpoint that is down, and its last failure. ``broker``: the node id of its Kafka broker; missing: it is none's."""

    upstream: str
    endpoint: str
    server_name: NotRequired[str]
    broker: NotRequired[int]
    failures: int
    reason: str
    detail: str
    backoff_ms: int


class EndpointRow(TypedDict):
    """The state of an endpoint."""

    upstream: str
    endpoint: str
    broker: NotRequired[int]  # as of ``EndpointDownRow``
    state: EndpointState
    # reason, detail: why it is left out; empty: it is not. ``since_ns``: since when; 0: it is not, or control knows (``failing``).
    reason: str
    detail: str
    since_ns: int
    out: int  # in how many processors it is left out
    connections: int  # open ones and attempts
    weight: int
    zone: str
    latency_ns: int  # the mean time until the first answer; 0: not measured


class KafkaRefusedRow(TypedDict):
    """Requests that the rules of a listener refused since the last such row, or would have refused (``report_only``)."""

    listener: str
    count: int  # how many
    report_only: bool
    # principal, client_id, api, kind, name: of the first one. ``kind`` is one of ``framegate.proxy.cells.metrics.REFUSALS``. ``name`` is the first
    # topic, group or transactional id that is not allowed (``*``: all of them, or a topic by its id), of an API empty.
    principal: str
    client_id: str
    api: str
    kind: str
    name: str


class EndpointUpRow(TypedDict):
    """An endpoint that is up again, how long it was down, and why. ``broker``: as of ``EndpointDownRow``."""

    upstream: str
    endpoint: str
    server_name: NotRequired[str]
    broker: NotRequired[int]
    failures: int
    reason: str
    down_ms: int


class SeenBrokerRow(TypedDict):
    """A broker as an answer of its cluster names it. ``host``, ``port``: its own; ``rack``: empty: none."""

    id: int
    host: str
    port: int
    rack: str


class HandlerRaisedRow(TypedDict):
    """A handler raised an exception. ``suppressed``: how many exceptions since the last row have no row."""

    listener: str
    handler: str
    connection: str
    error: str
    traceback: str
    suppressed: int


class HandoverFailedRow(TypedDict):
    """A connection that could not be taken over and belongs to no known listener."""

    error: str


class InternalErrorRow(TypedDict):
    """An internal error: where it was caught, how often, the text of the last one, and where that was raised."""

    place: str
    count: int
    error: str
    at: str


class TapRuleOffRow(TypedDict):
    """A tap rule has turned itself off: the cause, the measured value, and its limit."""

    rule: str
    cause: str
    percent: float
    limit: float


class TapIncompleteRow(TypedDict):
    """The tap could not write everything to its log."""

    error: str


class TapSegmentDeletedRow(TypedDict):
    """Segments of the tap's log were deleted from outside while they were written. ``segments``: how many; ``path``: of the last."""

    segments: int
    path: str


EventRow = (
    EndpointDownRow
    | EndpointUpRow
    | HandlerRaisedRow
    | HandoverFailedRow
    | InternalErrorRow
    | KafkaRefusedRow
    | TapIncompleteRow
    | TapRuleOffRow
    | TapSegmentDeletedRow
)  # of the notice ``log``


# Quotas.


class PartRow(TypedDict):
    """``part``: millionths of one rate; -1: the default of the command. ``name`` is empty for the node."""

    level: RateLevel
    name: str
    counter: RateCounter
    part: int


class DemandRow(TypedDict):
    """The demand for one rate."""

    level: RateLevel
    name: str
    counter: RateCounter
    used: int  # millionths of it
    waiting: int  # average number of connections that waited for it, in thousandths
    wanting: int  # the same, for it or for another rate that holds for the same connections


# Certificates, keys and authorities: one store for each listener and upstream that speaks TLS.


class StoreRow(TypedDict):
    """One store. ``files``: the index in ``StoresRow.contents`` of each file's content, by path; the rest as in ``Store``."""

    number: int
    shown: str
    files: dict[str, int]


class StoresRow(TypedDict):
    """Stores by owner. ``contents``: contents of files, each once, however many stores have it; each character is one byte (Latin-1)."""

    contents: list[str]
    stores: dict[str, StoreRow]


@dataclasses.dataclass(frozen=True, slots=True)
class Store:
    """The contents of the files of one listener or one upstream, all read at the same time."""

    number: int  # 1 at the start of control, one more for each store that replaced it
    shown: str = ""  # the fingerprint of the certificate that peers are shown; empty: none is
    files: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)  # the content of each file, by path; Latin-1


def listener_owner(name: str) -> str:
    """The owner of a listener's store."""
    return f"listener/{name}"


def upstream_owner(name: str) -> str:
    """The owner of an upstream's store."""
    return f"upstream/{name}"


def pack_stores(stores: Mapping[str, Store]) -> StoresRow:
    """Stores, by owner, as a row."""
    places: dict[str, int] = {}
    rows = {
        owner: StoreRow(
            number=store.number, shown=store.shown, files={path: places.setdefault(content, len(places)) for path, content in store.files.items()}
        )
        for owner, store in stores.items()
    }
    return StoresRow(contents=list(places), stores=rows)


def read_stores(row: StoresRow) -> dict[str, Store]:
    """The inverse of ``pack_stores``. Raises ValueError: the content of a file is missing."""
    contents = row["contents"]
    found = {}
    for owner, each in row["stores"].items():
        if not all(0 <= place < len(contents) for place in each["files"].values()):
            raise ValueError(f"what is in the files of {owner} was not sent along")
        found[owner] = Store(each["number"], each["shown"], {path: contents[place] for path, place in each["files"].items()})
    return found
