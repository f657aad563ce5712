"""The rows that go over the link: JSON objects, as the log, the API and events show them. Each is declared here, and only here.

Who makes a row calls its class, so that the type checker sees every key; who gets one has its ``Shape`` judge it. Times are nanoseconds of the
time of day. A key that is ``X | None`` is None where it is not known: in the row that control writes of a connection whose processor is gone.

Types only: control imports this, and must not pay for the data path. ``pair_rows`` makes rows of pairs.
"""

from typing import NotRequired, TypedDict, final

__all__ = [
    "AccessRow",
    "ChannelRow",
    "ClosedRow",
    "EndpointDownRow",
    "EndpointUpRow",
    "HandoverFailedRow",
    "HolderRow",
    "InternalErrorRow",
    "LostRow",
    "MuteRow",
    "OpenRow",
    "OpenedRow",
    "OpeningRow",
    "TapIncompleteRow",
    "TapRuleOffRow",
    "TapSegmentDeletedRow",
    "TlsRow",
    "TrafficRow",
]


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
        cause: of ``proxy.cells.CAUSES``.
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
