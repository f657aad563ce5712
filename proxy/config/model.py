"""The configuration model: what a configuration file becomes, with units, ranges and defaults.

Every size is in bytes, every time in milliseconds, every instant in nanoseconds since 1970; the unit ends the field's name unless the name is a
byte size by nature (``max_receive_size``, ``budget``). Ranges are those of ``control.configuration.schema``, both ends included.
``control.configuration`` reads a YAML file, validates it against these classes and reports every fault at once; a processor gets the finished
model over its link (``to_wire`` and ``from_wire``) and never sees a file.

The keys of the file are the field names; a time is written with a unit there (``idle: 10m`` becomes ``idle_ms``), and so is a size (``100MiB``).
"""

import dataclasses
from typing import Any, Final, Literal

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB
MAX_INT32: Final = 2**31 - 1
CUT_ABOVE: Final = 256 * KIB
"""A frame of at most so many bytes, its size header counted, always passes whole."""

Protocol = Literal["framed", "kafka"]
ClientAuth = Literal["none", "requested", "required"]
TlsVersion = Literal["1.2", "1.3"]
Capture = Literal["full", "lengths", "hash"]
OnFull = Literal["drop", "mute"]
BeforeData = Literal["close", "wait"]
Direction = Literal["request", "response"]
Forward = Literal["whole", "cut_through"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ListenerTimeouts:
    """How long a listener's connections may take.

    Attributes:
        handshake_ms: from accept to a READY channel, TLS and authentication together; 100ms to 10m.
        idle_ms: without a byte in either direction; 0 never expires; 0 to 30d.
        stall_ms: the window over which a frame begun or a pending send must move at least ``min_rate``; 1s to 1h.
        half_close_ms: how long one direction may outlive the other without a byte passing; 0 to 1h.
    """

    handshake_ms: int = 10_000
    idle_ms: int = 600_000
    stall_ms: int = 30_000
    half_close_ms: int = 30_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ListenerTls:
    """TLS towards clients. The files are read once, when framegate starts; what is in them then is served until it ends.

    Attributes:
        certificate: PEM file with the chain, leaf first.
        key: PEM file with the private key, not encrypted.
        client_auth: whether a client must, may or need not show a certificate.
        client_ca: PEM file with the authorities that clients' certificates must chain to; needed unless ``client_auth`` is none.
        min_version: the lowest protocol version spoken.
    """

    certificate: str
    key: str
    client_auth: ClientAuth = "none"
    client_ca: str | None = None
    min_version: TlsVersion = "1.2"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Forwarding:
    """How frames above 256 KiB, size header counted, pass; smaller ones always pass whole.

    Attributes:
        requests: ``whole`` when the last byte is here, so that the upstream never sees a part of a frame; ``cut_through`` in pieces as they come.
        responses: likewise, of what upstreams send.
    """

    requests: Forward = "whole"
    responses: Forward = "cut_through"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ListenerConfig:
    """One address that clients connect to.

    Attributes:
        name: unique; a label of metrics, log rows and tap records; ``[a-z0-9][a-z0-9-]{0,62}``.
        address: ``host:port``, ``[v6]:port`` or ``unix:PATH``; port 0 asks the kernel for a free one.
        upstream: the name of an upstream.
        protocol: ``framed`` looks at nothing but sizes; ``kafka`` also pairs requests with answers and keeps SASL out of the tap.
        framing: what clients speak, the only one there is; a big-endian signed int32 size, then that many bytes.
        max_receive_size: the largest frame body that a client may send, header not counted; 1B to 2147483647B.
        max_connections: connections open at once; 0 is unlimited; 0 to 10000000.
        backlog: of the listening socket; 1 to 65535.
        forwarding: see ``Forwarding``.
        timeouts: see ``ListenerTimeouts``.
        half_close_before_data: what the end of a client's stream means that comes before its first byte: ``close`` ends the connection at once;
            ``wait`` lets the client read what the server says first, until the server ends, or ``timeouts.half_close_ms`` pass without a byte.
        min_rate: bytes per second, over ``timeouts.stall_ms``, that a frame begun or a pending send must move; 0 switches it off; 0B to 1GiB.
        tls: none means plaintext.
    """

    name: str
    address: str
    upstream: str
    protocol: Protocol = "framed"
    framing: Literal["int32"] = "int32"
    max_receive_size: int = 100 * MIB
    max_connections: int = 0
    backlog: int = 1024
    forwarding: Forwarding = Forwarding()
    timeouts: ListenerTimeouts = ListenerTimeouts()
    half_close_before_data: BeforeData = "close"
    min_rate: int = KIB
    tls: ListenerTls | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamTls:
    """TLS towards an upstream. Attributes: ``ca`` (PEM file, none: the system's), ``server_name`` (SNI and the name verified, for every
    endpoint; none: each endpoint's own host, where a number is verified and not sent, and ``localhost`` stands for a Unix socket),
    ``certificate`` and ``key`` (our own identity, both or neither), ``min_version``.
    """

    ca: str | None = None
    server_name: str | None = None
    certificate: str | None = None
    key: str | None = None
    min_version: TlsVersion = "1.2"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamTimeouts:
    """``connect_ms``: of each attempt, from the first SYN to a READY channel, TLS included; 10ms to 10m. A connection tries each address
    once at most, so it is refused after so many of these as the upstream has addresses, at the latest.
    """

    connect_ms: int = 5_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamConfig:
    """Where a listener's frames go.

    Attributes:
        name: unique among upstreams, same form as a listener's.
        endpoints: one or more ``host:port``, ``[v6]:port`` or ``unix:PATH``; taken in turn. An address that fails is left out for 1 to 30 s, and a
            connection that it failed tries the others.
        framing: what the upstream speaks.
        max_receive_size: the largest answer body; 1B to 2147483647B.
        timeouts: see ``UpstreamTimeouts``.
        tls: none means plaintext.
    """

    name: str
    endpoints: tuple[str, ...]
    framing: Literal["int32"] = "int32"
    max_receive_size: int = MAX_INT32
    timeouts: UpstreamTimeouts = UpstreamTimeouts()
    tls: UpstreamTls | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TapRule:
    """Which frames the tap records, and how. The first rule that matches a frame decides; a frame that none matches is not seen.

    Attributes:
        name: unique among rules.
        listeners: names; empty matches every listener.
        directions: ``request`` (from the client), ``response`` (from the upstream).
        principals: exact principals of the client; empty matches all.
        networks: CIDR networks of the client's address; empty matches all.
        min_size: the smallest body that matches; 0B to 2147483647B.
        max_size: the largest body that matches; 0 is unlimited; 0B to 2147483647B.
        apis: Kafka's APIs, by name or key; of answers, that of the request. Empty matches all, else only frames whose API is known match.
        clients: patterns (``*``, ``?``, ``[...]``) of the client's own name, ``client.id`` of Kafka's requests; of answers, the name that the
            connection's requests had last. Empty matches all, else only where a name is known.
        capture: ``full`` bytes, ``lengths`` only, or ``hash`` (16 bytes of BLAKE2b for each body).
        max_frame_bytes: body bytes kept of each frame under ``full``; 0 keeps all; 0B to 2147483647B.
        blank: ranges of body bytes, the first and the last as in ``0-15``, or ``64-``, that are stored as zeros under ``full``.
        hash: ranges of body bytes that are stored as their 16 bytes of BLAKE2b, repeated or cut to the range's length, under ``full``. No byte
            is in two ranges of a rule.
        sample_connections: share of connections recorded, by a hash of the id; 0.0 to 1.0.
        sample_frames: share of frames recorded, by a hash of connection, direction and the frame's number; 0.0 to 1.0.
        expires_ns: from this instant on, in nanoseconds since 1970, the rule matches nothing; 0 never. A file has an instant or a time from now; an
            instant that has passed is a warning there, as a file grows old, and the rule is off. Over the API it is refused.
        max_loss_percent: a processor in which the log refuses more than this share of what the rule would record, over 10 s, turns the rule off; 0
            never does; 0.0 to 100.0.
        max_cpu_percent: one in which recording for the rule takes more than this share of a core, over 10 s, does, too; 0 never does; 0.0 to 100.0.
        on_full: what happens when the log cannot keep up or its disk is full: ``drop`` the frames and record a gap, or ``mute`` the source.
    """

    name: str
    listeners: tuple[str, ...] = ()
    directions: tuple[Direction, ...] = ("request", "response")
    principals: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    min_size: int = 0
    max_size: int = 0
    apis: tuple[str, ...] = ()
    clients: tuple[str, ...] = ()
    capture: Capture = "full"
    max_frame_bytes: int = 0
    blank: tuple[str, ...] = ()
    hash: tuple[str, ...] = ()
    sample_connections: float = 1.0
    sample_frames: float = 1.0
    expires_ns: int = 0
    on_full: OnFull = "drop"
    max_loss_percent: float = 0.0
    max_cpu_percent: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TapConfig:
    """The segment log.

    Attributes:
        directory: holds one folder for each stream.
        budget: bytes of all streams together; the oldest sealed segments go first; 1MiB to 1024TiB. Beside it there are a reserve of 1 MiB and a
            ledger of about as much; it is passed by open segments, and between two sweeps, a second apart, by a log that grows faster than before.
        max_age_ms: sealed segments older than this go; 0 keeps them until the budget asks; 0 to 3650d.
        segment_size: a segment is sealed at this size; 64KiB to 4GiB.
        segment_age_ms: or at this age; 1s to 1d.
        flush_size: a block is written at this many bytes; 4KiB to 64MiB.
        flush_ms: or when its first chunk is this old; 1ms to 10s.
        queue_size: memory that blocks may take while they wait for a processor's writer thread, before ``on_full`` holds, passed by one run at most;
            64KiB to 4GiB.
        rules: in order.
    """

    directory: str
    budget: int = 4 * GIB
    max_age_ms: int = 0
    segment_size: int = 128 * MIB
    segment_age_ms: int = 300_000
    flush_size: int = 256 * KIB
    flush_ms: int = 20
    queue_size: int = 8 * MIB
    rules: tuple[TapRule, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPoolConfig:
    """What traffic may hold in memory.

    Attributes:
        size: bytes that all processors together may retain, 64KiB to 1024TiB; each processor's part is at least the largest frame that passes whole.
        shares: percent of each processor's part that a listener is guaranteed, by its name; 1 to 100, together at most 100.
    """

    size: int = 256 * MIB
    shares: dict[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AdminConfig:
    """``address``: the gRPC control plane, ``unix:PATH`` (created with mode 0600)."""

    address: str = "unix:/run/framegate/admin.sock"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HealthConfig:
    """``address``: ``host:port`` of the plaintext gRPC health listener, which serves grpc.health.v1 and nothing else."""

    address: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DrainConfig:
    """How connections end when the proxy stops. Frames pass as ever until a connection is done, or its client is not read any more.

    Attributes:
        timeout_ms: after this, what is still open is closed with the cause ``drain_timeout``; 0 to 1h. A client that is never done is not read any
            more, from the end of a frame on, when a quarter of it is left (``framed``: twice ``quiet_ms`` at least): what was read is to be answered.
        quiet_ms: a ``framed`` pair is done when no byte passed for this long; a ``kafka`` pair is done whenever no answer is owed, and its client is
            read for this long at least, if it never comes to that; 0 to 10m.
    """

    timeout_ms: int = 30_000
    quiet_ms: int = 1_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OtlpConfig:
    """``endpoint``: of an OTLP/gRPC collector, ``http://host:port`` or ``https://host:port``; ``interval_ms`` between exports, 100ms to 1h."""

    endpoint: str
    interval_ms: int = 10_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PrometheusConfig:
    """``address``: ``host:port`` on which ``GET /metrics`` answers."""

    address: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryConfig:
    """Where metrics go. Both may be set, or neither."""

    otlp: OtlpConfig | None = None
    prometheus: PrometheusConfig | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProxyConfig:
    """All of one framegate.

    Attributes:
        node: names this proxy in tap streams and telemetry.
        listeners: at least one.
        upstreams: at least one.
        processors: processes of the data plane; 0 asks for the CPU limit of the pod; 0 to 64.
    """

    node: str
    listeners: tuple[ListenerConfig, ...]
    upstreams: tuple[UpstreamConfig, ...]
    processors: int = 0
    admin: AdminConfig = AdminConfig()
    health: HealthConfig | None = None
    memory_pool: MemoryPoolConfig = MemoryPoolConfig()
    tap: TapConfig | None = None
    telemetry: TelemetryConfig = TelemetryConfig()
    drain: DrainConfig = DrainConfig()


def whole_request(max_receive_size: int, forward: Forward) -> int:
    """The largest body of a request that is kept until it is whole, of a listener with that limit."""
    return max_receive_size if forward == "whole" else min(max_receive_size, CUT_ABOVE - 4)


def whole_response(max_receive_size: int, forward: Forward) -> int:
    """The same of answers, of an upstream with that limit. 0 when they are cut through: then none needs memory to go on."""
    return max_receive_size if forward == "whole" else 0


def largest_whole(config: ProxyConfig) -> tuple[int, int]:
    """The largest bodies that are kept until they are whole: of requests, and of answers. A processor's part of the pool holds either."""
    answers = {upstream.name: upstream.max_receive_size for upstream in config.upstreams}
    return (
        max((whole_request(item.max_receive_size, item.forwarding.requests) for item in config.listeners), default=1),
        max((whole_response(answers[item.upstream], item.forwarding.responses) for item in config.listeners), default=0),
    )


def to_wire(config: ProxyConfig) -> dict[str, Any]:
    """The model as JSON-ready values, for the link."""
    return dataclasses.asdict(config)


def _listener(row: dict[str, Any]) -> ListenerConfig:
    tls = row["tls"]
    return ListenerConfig(
        **{
            **row,
            "forwarding": Forwarding(**row["forwarding"]),
            "timeouts": ListenerTimeouts(**row["timeouts"]),
            "tls": None if tls is None else ListenerTls(**tls),
        }
    )


def _upstream(row: dict[str, Any]) -> UpstreamConfig:
    tls = row["tls"]
    return UpstreamConfig(
        **{
            **row,
            "endpoints": tuple(row["endpoints"]),
            "timeouts": UpstreamTimeouts(**row["timeouts"]),
            "tls": None if tls is None else UpstreamTls(**tls),
        }
    )


def rule_from_wire(row: dict[str, Any]) -> TapRule:
    """A rule out of JSON-ready values, the inverse of ``dataclasses.asdict``; see ``from_wire``."""
    names = ("listeners", "directions", "principals", "networks", "apis", "clients", "blank", "hash")
    tuples: dict[str, Any] = {name: tuple(row[name]) for name in names}
    return TapRule(**{**row, **tuples})


def rules_to_wire(rules: tuple[TapRule, ...]) -> list[dict[str, Any]]:
    """Rules as JSON-ready values, as they are within ``to_wire``."""
    return [dataclasses.asdict(rule) for rule in rules]


def _tap(row: dict[str, Any]) -> TapConfig:
    return TapConfig(**{**row, "rules": tuple(rule_from_wire(rule) for rule in row["rules"])})


def from_wire(row: dict[str, Any]) -> ProxyConfig:
    """The inverse of ``to_wire``; the values were validated by the sender, so a wrong shape raises TypeError or KeyError."""
    telemetry = row["telemetry"]
    otlp, prometheus = telemetry["otlp"], telemetry["prometheus"]
    return ProxyConfig(
        node=row["node"],
        listeners=tuple(_listener(item) for item in row["listeners"]),
        upstreams=tuple(_upstream(item) for item in row["upstreams"]),
        processors=row["processors"],
        admin=AdminConfig(**row["admin"]),
        health=None if row["health"] is None else HealthConfig(**row["health"]),
        memory_pool=MemoryPoolConfig(**row["memory_pool"]),
        tap=None if row["tap"] is None else _tap(row["tap"]),
        telemetry=TelemetryConfig(
            otlp=None if otlp is None else OtlpConfig(**otlp),
            prometheus=None if prometheus is None else PrometheusConfig(**prometheus),
        ),
        drain=DrainConfig(**row["drain"]),
    )
