"""The rows that go over the link: JSON objects, as the log, the API and events show them. Each is declared here, and only here.

The writer of a row calls its class, so that the type checker sees every key; the reader has its ``Schema`` check it. Times are nanoseconds of the
time of day. A key that is ``X | None`` is None where it is not known: in the row that control writes of a connection whose processor is gone.

Types only, and certificate stores as rows: control imports this, and must not pay for the data path. ``pair_rows`` makes rows of pairs. All that is
declared here is public.
"""

import dataclasses
from collections.abc import Mapping
from typing import Literal, NotRequired, TypedDict, final

RateLevel = Literal["node", "listener", "address"]
RateCounter = Literal["request_bytes", "request_frames", "response_bytes", "response_frames"]


class TlsRow(TypedDict):
    """What a handshake came to.

    Attributes:
        certificate: the fingerprint of the one that the client was shown; empty: not known.
    """

    version: str
    cipher: str
    certificate: str


class TrafficRow(TypedDict):
    """Frames, or bytes, by direction."""

    request: int | None
    response: int | None


class LostRow(TypedDict):
    """Bytes received that were not passed on: both directions, and each."""

    bytes: int | None
    request: int | None
    response: int | None


class MuteRow(TypedDict):
    """How often a cause was set, and how long it lasted."""

    count: int
    ns: int


class ChannelRow(TypedDict):
    """What the rows of open and of closed pairs have.

    Attributes:
        id: a number on the link and in events; the log prints it as text (``format_connection_id``).
        upstream: empty where a handler answers.
        endpoint: the upstream's address tried last; empty: none.
        mechanism: of SASL, by which the client proved to us who it is; None: by none.
        tls: of the client; None: plaintext, or not known.
        frames, bytes: received from the client, and from the upstream; or sent to the client, where a handler answers.
    """

    id: int
    listener: str
    peer: str
    upstream: str
    endpoint: str | None
    principal: str | None
    mechanism: str | None
    tls: TlsRow | None
    frames: TrafficRow
    bytes: TrafficRow
    opened_ns: int


@final
class OpenRow(ChannelRow):
    """A pair that is not CLOSED.

    Attributes:
        muted, muted_upstream: why the client, and the upstream, is not read.
        muting: of the client, and not in force yet: a frame begun has not ended.
        mute_reason: of an operator's mute.
        in_flight: requests without an answer; 0 where nobody looks.
        pending_send, leased: bytes of both channels.
    """

    state: str
    muted: list[str]
    muted_upstream: list[str]
    muting: bool
    mute_reason: str
    in_flight: int
    pending_send: int
    leased: int
    last_active_ns: int


class OpeningRow(ChannelRow):
    """What the rows of a connection's life have besides: how it came to be open.

    Attributes:
        handshake_ns: from when a processor had the client's connection until the client was let in, TLS and login together, or until that failed;
            None: neither was asked for, it goes on, or it is not known.
        connect_ns: from the first attempt to reach the upstream until one was READY, TLS and login included, or until the last one failed; None:
            there was none, it goes on, or it is not known.
        connect_started_ns: when that began; None: it did not, or that is not known.
        attempts: to reach the upstream, each at one endpoint; None: not known.
    """

    handshake_ns: int | None
    connect_ns: int | None
    connect_started_ns: int | None
    attempts: int | None


@final
class OpenedRow(OpeningRow):
    """A connection is open: its client was let in, and its upstream, if it has one, is READY. What it has sent by then is not read yet."""


@final
class AccessRow(OpeningRow):
    """A connection that is still open; ``frames`` and ``bytes`` count since it was opened, ``lost`` and ``mutes`` what has ended.

    Attributes:
        muted, muted_upstream, in_flight, last_active_ns: as of ``OpenRow``.
        lost, mutes: as of ``ClosedRow``.
    """

    state: str
    muted: list[str]
    muted_upstream: list[str]
    in_flight: int
    last_active_ns: int
    lost: LostRow
    mutes: dict[str, MuteRow]


@final
class ClosedRow(OpeningRow):
    """A connection that is over.

    Attributes:
        cause: of ``framegate.proxy.cells.CAUSES``.
        side: who ended it: ``downstream``, ``upstream`` or ``internal``.
        state: the one it was in when the cause came up; empty: not known.
        mutes: of the client, by cause.
    """

    cause: str
    detail: str
    side: str
    state: str
    closed_ns: int
    lost: LostRow
    mutes: dict[str, MuteRow]


class HolderRow(TypedDict):
    """What one channel of a pair holds of the memory pool, of one kind (``cells.MEMORY_KINDS``).

    Attributes:
        muted: why it is not read; ``muted_ns`` since when, 0 when nothing mutes it.
        last_active_ns: when a byte last moved.
    """

    id: int
    listener: str
    side: str
    peer: str
    kind: str
    bytes: int
    muted: list[str]
    muted_ns: int
    last_active_ns: int


class EndpointDownRow(TypedDict):
    """An endpoint that is left out, and its last failure."""

    upstream: str
    endpoint: str
    server_name: NotRequired[str]
    failures: int
    reason: str
    detail: str
    backoff_ms: int


class EndpointUpRow(TypedDict):
    """An endpoint that is used again, and how long it was left out."""

    upstream: str
    endpoint: str
    server_name: NotRequired[str]
    failures: int
    down_ms: int


class HandlerRaisedRow(TypedDict):
    """A handler raised: for which connection, what, and where. ``suppressed``: how often one did since the last row, that have none."""

    listener: str
    handler: str
    connection: str
    error: str
    traceback: str
    suppressed: int


class HandoverFailedRow(TypedDict):
    """A connection that could not be taken over, and has no listener to count it."""

    error: str


class InternalErrorRow(TypedDict):
    """A fault of ours: where it was noted, how often, the last one's text, and where it was raised."""

    place: str
    count: int
    error: str
    at: str


class TapRuleOffRow(TypedDict):
    """A tap rule has turned itself off: for what, how much that was, and how much it might be."""

    rule: str
    cause: str
    percent: float
    limit: float


class TapIncompleteRow(TypedDict):
    """The tap's log does not hold all that it was given."""

    error: str


class TapSegmentDeletedRow(TypedDict):
    """Somebody else deleted a segment of the tap's log while it was written: what was in it is gone. ``segments``: how many, ``path`` of the last."""

    segments: int
    path: str


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
"""Of the notice ``log``."""


# Quotas.


class RateRow(TypedDict):
    """Quotas, of ``framegate.proxy.config.limits.RateLimits``. 0 is unlimited."""

    connections: int
    connection_rate: int
    request_bytes_rate: int
    response_bytes_rate: int
    request_frames_rate: int
    response_frames_rate: int


class OverrideRow(TypedDict):
    """Quotas of the addresses of a network, of ``framegate.proxy.config.limits.LimitOverride``. None: as ``per_address``."""

    network: str
    access: Literal["allow", "deny"]
    connections: int | None
    connection_rate: int | None
    request_bytes_rate: int | None
    response_bytes_rate: int | None
    request_frames_rate: int | None
    response_frames_rate: int | None


class LimitsRow(TypedDict):
    """All quotas; ``proxy.config.limits`` makes (``limits_to_wire``) and reads (``limits_from_wire``) it. ``listeners``: every one, by name."""

    node: RateRow
    listeners: dict[str, RateRow]
    per_address: RateRow
    overrides: list[OverrideRow]


class PartRow(TypedDict):
    """Millionths of one rate; -1: as of keys that are not named. ``name`` is empty for the node."""

    level: RateLevel
    name: str
    counter: RateCounter
    part: int


class DemandRow(TypedDict):
    """What was asked of one rate.

    Attributes:
        used: millionths of it.
        waiting: how many connections waited for it, on average, in thousandths; 0: hardly any.
        wanting: likewise, for it or for another that holds for them, too.
    """

    level: RateLevel
    name: str
    counter: RateCounter
    used: int
    waiting: int
    wanting: int


# Certificates, keys and authorities: one store for each listener and upstream that speaks TLS.


class StoreRow(TypedDict):
    """One store. ``files``: where in ``StoresRow.contents`` each file's content is, by path; the others as of ``Store``."""

    number: int
    shown: str
    files: dict[str, int]


class StoresRow(TypedDict):
    """Stores by owner. ``contents``: what is in files, each once, however many stores have it; each character stands for one byte (Latin-1)."""

    contents: list[str]
    stores: dict[str, StoreRow]


@dataclasses.dataclass(frozen=True, slots=True)
class Store:
    """What one listener, or one upstream, has of files, all of one moment.

    Attributes:
        number: 1 for what was there at the start of control, one more for each that replaced it.
        shown: the fingerprint of the certificate that peers are shown; empty: none is.
        files: what is in each file, by path; Latin-1.
    """

    number: int
    shown: str = ""
    files: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)


def listener_owner(name: str) -> str:
    """Who a listener's store belongs to, as it is called everywhere."""
    return f"listener/{name}"


def upstream_owner(name: str) -> str:
    """Who an upstream's store belongs to."""
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
    """The inverse.

    Raises:
        ValueError: a store has content that did not come along.
    """
    contents = row["contents"]
    found = {}
    for owner, each in row["stores"].items():
        if not all(0 <= place < len(contents) for place in each["files"].values()):
            raise ValueError(f"what is in the files of {owner} was not sent along")
        found[owner] = Store(each["number"], each["shown"], {path: contents[place] for path, place in each["files"].items()})
    return found
