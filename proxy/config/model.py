"""The configuration model: what a configuration file becomes. Each field is one key, and all that is said of the key is said there.

Every size is in bytes, every time in milliseconds, every instant in nanoseconds since 1970; the unit of a time or an instant ends the field's name.
``control.configuration`` reads a YAML file, validates it against these classes and reports every fault at once; a processor gets the finished
model over its link (``to_wire`` and ``from_wire``) and never sees a file.

The keys of the file are the field names; a time is written with a unit there (``idle: 10m`` becomes ``idle_ms``), and so is a size (``100MiB``).
"""

import dataclasses
from typing import Annotated, Any, Final, Literal

from proxy.config.key import Key, model_from_wire
from proxy.config.limits import UNLIMITED, UNLIMITED_NODE, LimitsConfig, RateLimits, limits_to_wire
from proxy.config.log import DEFAULT_LOG, LogConfig
from proxy.config.sasl import ListenerSasl
from proxy.config.tls import BY_SUBJECT, ListenerTls, PrincipalConfig, UpstreamTls
from proxy.config.upstream_sasl import UpstreamSasl

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB
TIB: Final = 1024 * GIB
MAX_INT32: Final = 2**31 - 1
"""The largest body of a frame, as its size header can say it."""
MAX_PROCESSORS: Final = 64
"""As many as a connection's id has slots for (``proxy.network.connection_id``)."""
MAX_HANDLER_PROCESSES: Final = 64
LEAST_POOL: Final = 64 * KIB
CUT_ABOVE: Final = 256 * KIB
"""A frame of at most so many bytes, its size header counted, always passes whole."""
_SECOND: Final = 1_000
_MINUTE: Final = 60 * _SECOND
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR

Protocol = Literal["framed", "kafka"]
Capture = Literal["full", "lengths", "hash"]
OnFull = Literal["drop", "mute"]
BeforeData = Literal["close", "wait"]
Direction = Literal["request", "response"]
Forward = Literal["whole", "cut_through"]
Framing = Literal["int32", "uint32_le", "int16", "varint", "int32_inclusive", "grpc_message", "mysql_packet", "header", "lines", "lines_crlf"]
PoolKind = Literal["bounded", "unbounded", "leak_finding"]
ByteOrder = Literal["big", "little"]
Counted = Literal["body", "rest", "frame"]
OtherBytes = Literal["keep", "set"]
OtlpProtocol = Literal["grpc", "http/protobuf"]
Signal = Literal["metrics", "traces", "logs"]
DrainAccept = Literal["refuse", "until_stop"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ListenerTimeouts:
    """How long a listener's connections may take."""

    handshake_ms: Annotated[int, Key("from accept to a READY channel, TLS and authentication together", "ms", (100, 10 * _MINUTE))] = 10_000
    idle_ms: Annotated[int, Key("without a byte in either direction; 0 never expires", "ms", (0, 30 * _DAY))] = 600_000
    failed_authentication_ms: Annotated[
        int,
        Key(
            "from the refusal of who a client says it is to the answer and the end, which come together; within ``handshake``; 0 answers at once",
            "ms",
            (0, 10 * _MINUTE),
        ),
    ] = 100
    stall_ms: Annotated[int, Key("the window over which a frame begun or a pending send must move at least ``min_rate``", "ms", (_SECOND, _HOUR))] = (
        30_000
    )
    half_close_ms: Annotated[int, Key("how long one direction may outlive the other without a byte passing", "ms", (0, _HOUR))] = 30_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KeepAlive:
    """TCP's question whether a silent peer is still there. Times are whole seconds, rounded up."""

    idle_ms: Annotated[int, Key("without a byte from the peer before it is asked", "ms", (_SECOND, 32_767 * _SECOND))] = 60_000
    interval_ms: Annotated[int, Key("between two questions", "ms", (_SECOND, 32_767 * _SECOND))] = 10_000
    probes: Annotated[int, Key("so many without an answer end the connection (``peer_reset``)", range=(1, 127))] = 6


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SocketConfig:
    """What the kernel is told of one side's sockets."""

    receive_buffer: Annotated[
        int, Key("what the kernel keeps of what was not read; 0 leaves it to the kernel, which then lets it grow", "bytes", (0, GIB))
    ] = 0
    send_buffer: Annotated[int, Key("what the kernel takes of what was not sent; 0 likewise", "bytes", (0, GIB))] = 0
    keep_alive: Annotated[KeepAlive | None, Key("none: a peer that is gone without a word is found by ``timeouts`` only")] = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Forwarding:
    """How frames above 256 KiB, size header counted, pass; smaller ones always pass whole."""

    requests: Annotated[
        Forward,
        Key("``whole`` when the last byte is here, so that the upstream never sees a part of a frame; ``cut_through`` in pieces as they come"),
    ] = "whole"
    responses: Annotated[Forward, Key("likewise, of what upstreams send")] = "cut_through"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HeaderConfig:
    """The header of ``framing: header``: so many bytes, in which an unsigned integer says how long the frame is."""

    size: Annotated[int, Key("of the header, the integer included", "bytes", (1, 64))]
    offset: Annotated[int, Key("what lies in the header before the integer", "bytes", (0, 63))] = 0
    width: Annotated[int, Key("of the integer", "bytes", (1, 8))] = 4
    byte_order: Annotated[ByteOrder, Key("which of the integer's bytes comes first: the most significant (``big``) or the least")] = "big"
    counts: Annotated[
        Counted, Key("what the integer counts: the ``body``; the ``rest`` of the frame behind it; or the ``frame``, all of the header included")
    ] = "body"
    other_bytes: Annotated[
        OtherBytes,
        Key(
            "what becomes of the header's other bytes when frames come from another framing: ``keep`` those of the header that came, if it has as "
            "many, else ``fill``; ``set`` them to ``fill`` always. Towards a framing without other bytes they are dropped"
        ),
    ] = "keep"
    fill: Annotated[str, Key("those bytes, in hexadecimal, two digits for each; empty means zeros")] = ""


MAX_RECEIVE_SIZE: Final = Key("the largest frame body that a client may send, header not counted", "bytes", (1, MAX_INT32), live=True)
"""Of a listener; who changes it asks this for the range."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ListenerConfig:
    """One address that clients connect to."""

    name: Annotated[str, Key("unique; a label of metrics, log rows and tap records; ``[a-z0-9][a-z0-9-]{0,62}``")]
    address: Annotated[str, Key("``host:port``, ``[v6]:port`` or ``unix:PATH``; port 0 asks the kernel for a free one", "address")]
    upstream: Annotated[str | None, Key("the name of an upstream; needed where there is no ``handler``")] = None
    handler: Annotated[
        str | None, Key("``package.module:name`` of Python that gets each frame whole, in a handler process: it answers, or changes what passes on")
    ] = None
    protocol: Annotated[
        Protocol, Key("``framed`` looks at nothing but sizes; ``kafka`` also pairs requests with answers and keeps SASL out of the tap")
    ] = "framed"
    framing: Annotated[Framing, Key("what clients speak: how each frame says how long it is; upstreams may speak another (re-framing)")] = "int32"
    header: Annotated[HeaderConfig | None, Key("of ``framing: header``, which needs it; of no other")] = None
    max_receive_size: Annotated[int, MAX_RECEIVE_SIZE] = 100 * MIB
    limits: Annotated[RateLimits, Key("how many connections, and how much traffic each second, it takes")] = UNLIMITED
    backlog: Annotated[int, Key("of the listening socket", range=(1, 65_535))] = 1024
    socket: Annotated[SocketConfig, Key("of the listening socket, and those of clients")] = SocketConfig()
    forwarding: Annotated[Forwarding, Key("how large frames pass")] = Forwarding()
    timeouts: Annotated[ListenerTimeouts, Key("how long connections may take")] = ListenerTimeouts()
    half_close_before_data: Annotated[
        BeforeData,
        Key(
            "what the end of a client's stream means that comes before its first byte: ``close`` ends the connection at once; ``wait`` lets the "
            "client read what the server says first, until the server ends, or ``timeouts.half_close_ms`` pass without a byte"
        ),
    ] = "close"
    min_rate: Annotated[
        int, Key("what a frame begun or a pending send must move, over ``timeouts.stall_ms``; 0 switches it off", "bytes/s", (0, GIB))
    ] = KIB
    tls: Annotated[ListenerTls | None, Key("none means plaintext")] = None
    principal: Annotated[PrincipalConfig, Key("of clients that show a certificate")] = BY_SUBJECT
    allowed_principals: Annotated[
        tuple[str, ...], Key("who may come in: principals, or ``RULE:`` and a pattern that must match all of one; empty allows all")
    ] = ()
    close_revoked: Annotated[
        bool,
        Key(
            "end a connection (``session_expired``) when its user is removed or gets another password, or its client's certificate is revoked; "
            "``false`` lets it go on until it ends by itself"
        ),
    ] = True
    sasl: Annotated[ListenerSasl | None, Key("none: clients are whom their certificates name; SASL that they speak passes through")] = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamTimeouts:
    """A connection tries each address once at most, so it is refused after so many of ``connect_ms`` as the upstream has addresses, at the latest."""

    connect_ms: Annotated[int, Key("of each attempt, from the first SYN to a READY channel, TLS included", "ms", (10, 10 * _MINUTE))] = 5_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamConfig:
    """Where a listener's frames go."""

    name: Annotated[str, Key("unique among upstreams, same form as a listener's")]
    endpoints: Annotated[
        tuple[str, ...],
        Key(
            "one or more ``host:port``, ``[v6]:port`` or ``unix:PATH``; taken in turn. An address that fails is left out for 1 to 30 s, and a "
            "connection that it failed tries the others",
            "address",
        ),
    ]
    framing: Annotated[Framing, Key("what the upstream speaks; likewise")] = "int32"
    header: Annotated[HeaderConfig | None, Key("of ``framing: header``; likewise")] = None
    max_receive_size: Annotated[int, Key("the largest answer body", "bytes", (1, MAX_INT32))] = MAX_INT32
    timeouts: Annotated[UpstreamTimeouts, Key("how long attempts may take")] = UpstreamTimeouts()
    socket: Annotated[SocketConfig, Key("of the sockets towards it")] = SocketConfig()
    tls: Annotated[UpstreamTls | None, Key("none means plaintext")] = None
    sasl: Annotated[UpstreamSasl | None, Key("who we are to it; none: we say nothing, and SASL that clients speak passes through")] = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TapRule:
    """Which frames the tap records, and how. The first rule that matches a frame decides; a frame that none matches is not seen.

    Of ``expires_ns`` a file has an instant or a time from now; an instant that has passed is a warning there, as a file grows old, and the rule is
    off. Over the API it is refused.
    """

    name: Annotated[str, Key("unique among rules")]
    listeners: Annotated[tuple[str, ...], Key("names; empty matches every listener")] = ()
    directions: Annotated[tuple[Direction, ...], Key("``request`` (from the client), ``response`` (from the upstream)")] = ("request", "response")
    principals: Annotated[tuple[str, ...], Key("exact principals of the client; empty matches all")] = ()
    networks: Annotated[tuple[str, ...], Key("CIDR networks of the client's address; empty matches all")] = ()
    min_size: Annotated[int, Key("the smallest body that matches", "bytes", (0, MAX_INT32))] = 0
    max_size: Annotated[int, Key("the largest body that matches; 0 is unlimited", "bytes", (0, MAX_INT32))] = 0
    apis: Annotated[
        tuple[str, ...],
        Key("Kafka's APIs, by name or key; of answers, that of the request. Empty matches all, else only frames whose API is known match"),
    ] = ()
    clients: Annotated[
        tuple[str, ...],
        Key(
            "patterns (``*``, ``?``, ``[...]``) of the client's own name, ``client.id`` of Kafka's requests; of answers, the name that the "
            "connection's requests had last. Empty matches all, else only where a name is known"
        ),
    ] = ()
    capture: Annotated[Capture, Key("``full`` bytes, ``lengths`` only, or ``hash`` (16 bytes of BLAKE2b for each body)")] = "full"
    max_frame_bytes: Annotated[int, Key("body bytes kept of each frame under ``full``; 0 keeps all", "bytes", (0, MAX_INT32))] = 0
    blank: Annotated[
        tuple[str, ...],
        Key("ranges of body bytes, the first and the last as in ``0-15``, or ``64-``, that are stored as zeros under ``full``"),
    ] = ()
    hash: Annotated[
        tuple[str, ...],
        Key(
            "ranges of body bytes that are stored as their 16 bytes of BLAKE2b, repeated or cut to the range's length, under ``full``; of a range "
            "that ``max_frame_bytes`` cuts, what is kept is hashed. No byte is in two ranges of a rule"
        ),
    ] = ()
    sample_connections: Annotated[float, Key("of connections recorded, by a hash of the id", "share", (0.0, 1.0))] = 1.0
    sample_frames: Annotated[float, Key("of frames recorded, by a hash of connection, direction and the frame's number", "share", (0.0, 1.0))] = 1.0
    expires_ns: Annotated[int, Key("from this instant on the rule matches nothing; 0 never", "ns")] = 0
    on_full: Annotated[
        OnFull, Key("what happens when the log cannot keep up or its disk is full: ``drop`` the frames and record a gap, or ``mute`` the source")
    ] = "drop"
    max_loss_percent: Annotated[
        float,
        Key(
            "a processor in which the log refuses more than this of what the rule would record, over 10 s, turns the rule off; 0 never does",
            "percent",
            (0.0, 100.0),
        ),
    ] = 0.0
    max_cpu_percent: Annotated[
        float, Key("one in which recording for the rule takes more than this of a core, over 10 s, does, too; 0 never does", "percent", (0.0, 100.0))
    ] = 0.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TapConfig:
    """The segment log.

    Beside the budget there are a reserve of 1 MiB and a ledger of about as much; it is passed by open segments, and between two sweeps, a second
    apart, by a log that grows faster than before.
    """

    directory: Annotated[str, Key("holds one folder for each stream", "path")]
    budget: Annotated[int, Key("all streams together; the oldest sealed segments go first", "bytes", (MIB, 1024 * TIB))] = 4 * GIB
    max_age_ms: Annotated[int, Key("sealed segments older than this go; 0 keeps them until the budget asks", "ms", (0, 3650 * _DAY))] = 0
    segment_size: Annotated[int, Key("a segment is sealed at this size", "bytes", (64 * KIB, 4 * GIB))] = 128 * MIB
    segment_age_ms: Annotated[int, Key("or at this age", "ms", (_SECOND, _DAY))] = 300_000
    flush_size: Annotated[int, Key("a block is written at this size", "bytes", (4 * KIB, 64 * MIB))] = 256 * KIB
    flush_ms: Annotated[int, Key("or when its first chunk is this old", "ms", (1, 10 * _SECOND))] = 20
    queue_size: Annotated[
        int,
        Key(
            "memory that blocks may take while they wait for a processor's writer thread, before ``on_full`` holds, passed by one run at most",
            "bytes",
            (64 * KIB, 4 * GIB),
        ),
    ] = 8 * MIB
    rules: Annotated[tuple[TapRule, ...], Key("in order", live=True)] = ()


POOL_SIZE: Final = Key(
    "what all processors together may retain, at least 64 KiB; 0 asks for what the memory limit of the pod allows",
    "bytes",
    (LEAST_POOL, 1024 * TIB),
    live=True,
)
"""Of the memory pool; who changes it asks this for the range. A file may also leave it open."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPoolConfig:
    """What traffic may hold in memory. Each processor's part is at least the largest frame that passes whole."""

    kind: Annotated[
        PoolKind,
        Key(
            "``bounded`` keeps what is held within ``size``, and one frame; ``unbounded`` counts, and lets nobody wait; ``leak_finding`` is bounded, "
            "knows who holds what, and notes a fault of the place ``pool`` for what is given back twice or not at all, for tests and debugging"
        ),
    ] = "bounded"
    size: Annotated[int, POOL_SIZE._replace(range=(0, POOL_SIZE.most))] = 256 * MIB
    shares: Annotated[
        dict[str, int],
        Key("of each processor's part, what a listener is guaranteed, by its name; together at most 100", "percent", (1, 100)),
    ] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HandlersConfig:
    """The processes in which the handlers of listeners run; there are none while no listener has a handler."""

    processes: Annotated[int, Key("so many; each has all handlers, and a connection belongs to one of them", range=(1, MAX_HANDLER_PROCESSES))] = 1
    queue: Annotated[
        int,
        Key(
            "requests of one processor that one handler process may have under way, waiting or being handled; connections of more are not read",
            range=(1, 1_000_000),
        ),
    ] = 500
    timeout_ms: Annotated[int, Key("for one frame: a process that is longer in a handler is killed and started anew; 0 never", "ms", (0, _HOUR))] = (
        30_000
    )
    memory: Annotated[int, Key("what a process may hold, resident; one that grows beyond is killed and started anew; 0 never", "bytes", (0, TIB))] = 0
    path: Annotated[tuple[str, ...], Key("folders in which Python looks for handlers, behind all others", "path")] = (".",)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AdminConfig:
    """The gRPC control plane."""

    address: Annotated[str, Key("``unix:PATH`` (created with mode 0600)", "address")] = "unix:/run/framegate/admin.sock"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HealthConfig:
    """Plaintext listeners for probes, which say how framegate is and nothing else."""

    address: Annotated[str, Key("``host:port`` for grpc.health.v1", "address")]
    http_address: Annotated[str | None, Key("``host:port`` for HTTP: ``/healthz``, ``/ready`` and ``/startup``; none: there is none", "address")] = (
        None
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RotationConfig:
    """How files are watched that may be replaced while framegate runs: certificates, keys, authorities."""

    poll_ms: Annotated[int, Key("between two looks at them; one that was replaced is taken when two looks found the same", "ms", (100, _HOUR))] = (
        1_000
    )
    grace_ms: Annotated[
        int,
        Key("so long files that are missing, or do not fit together, are taken for not written to the end; then it is a failure", "ms", (0, _HOUR)),
    ] = 10_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DrainConfig:
    """How connections end when the proxy stops. Frames pass as ever until a connection is done, or its client is not read any more."""

    timeout_ms: Annotated[
        int,
        Key(
            "after this, what is still open is closed with the cause ``drain_timeout``. A client that is never done is not read any more, from the "
            "end of a frame on, when a quarter of it is left (``framed``: twice ``quiet_ms`` at least): what was read is to be answered",
            "ms",
            (0, _HOUR),
        ),
    ] = 30_000
    quiet_ms: Annotated[
        int,
        Key(
            "a ``framed`` pair is done right behind an answer with which it has as many answers as requests, or when no byte passed for this long; "
            "a ``kafka`` pair is done whenever no answer is owed, and its client is "
            "read for this long at least, if it never comes to that",
            "ms",
            (0, 10 * _MINUTE),
        ),
    ] = 1_000
    accept: Annotated[
        DrainAccept,
        Key(
            "what a drain that is only begun (``framegate drain --no-wait``, a preStop hook) means for connections: ``until_stop`` takes and serves "
            "them until SIGTERM, for the application in the pod is not gone; ``refuse`` takes none and ends those that are open. Readiness is gone "
            "with either"
        ),
    ] = "until_stop"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OtlpConfig:
    """An OTLP collector. Where a key is not given, the variable of OpenTelemetry holds that says the same."""

    endpoint: Annotated[
        str | None,
        Key("``http://host:port`` or ``https://host:port``; none: OTEL_EXPORTER_OTLP_ENDPOINT, and without it port 4317 (HTTP: 4318) of 127.0.0.1"),
    ] = None
    protocol: Annotated[OtlpProtocol | None, Key("none: OTEL_EXPORTER_OTLP_PROTOCOL, and without it ``grpc``")] = None
    signals: Annotated[
        tuple[Signal, ...] | None,
        Key(
            "what is exported; none: what OTEL_METRICS_EXPORTER, OTEL_TRACES_EXPORTER and OTEL_LOGS_EXPORTER say, and without them metrics and traces"
        ),
    ] = None
    interval_ms: Annotated[
        int | None, Key("between exports of metrics; none: OTEL_METRIC_EXPORT_INTERVAL, and without it 10 s", "ms", (100, _HOUR))
    ] = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PrometheusConfig:
    """What Prometheus scrapes."""

    address: Annotated[str, Key("``host:port`` on which ``GET /metrics`` answers", "address")]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryConfig:
    """Where metrics go. Both may be set, or neither."""

    otlp: Annotated[OtlpConfig | None, Key("to a collector")] = None
    prometheus: Annotated[PrometheusConfig | None, Key("for Prometheus to scrape")] = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProxyConfig:
    """All of one framegate."""

    node: Annotated[str, Key("names this proxy in tap streams and telemetry")]
    listeners: Annotated[tuple[ListenerConfig, ...], Key("at least one")]
    upstreams: Annotated[tuple[UpstreamConfig, ...], Key("at least one, unless each listener has a handler")] = ()
    processors: Annotated[int, Key("processes of the data plane; 0 asks for the CPU limit of the pod", range=(0, MAX_PROCESSORS), live=True)] = 0
    admin: Annotated[AdminConfig, Key("the gRPC control plane")] = AdminConfig()
    health: Annotated[HealthConfig | None, Key("for probes; none: there is none")] = None
    memory_pool: Annotated[MemoryPoolConfig, Key("what traffic may hold")] = MemoryPoolConfig()
    handlers: Annotated[HandlersConfig, Key("the processes in which handlers run")] = HandlersConfig()
    limits: Annotated[LimitsConfig, Key("how many connections, and how much traffic each second, all take, and each address")] = UNLIMITED_NODE
    tap: Annotated[TapConfig | None, Key("the record of what passed; none: there is none")] = None
    telemetry: Annotated[TelemetryConfig, Key("where metrics go")] = TelemetryConfig()
    log: Annotated[LogConfig, Key("the rows on stdout")] = DEFAULT_LOG
    drain: Annotated[DrainConfig, Key("how connections end")] = DrainConfig()
    rotation: Annotated[RotationConfig, Key("how files are watched that may be replaced")] = RotationConfig()


def whole_request(max_receive_size: int, forward: Forward) -> int:
    """The largest body of a request that is kept until it is whole, of a listener with that limit."""
    return max_receive_size if forward == "whole" else min(max_receive_size, CUT_ABOVE - 4)


def whole_response(max_receive_size: int, forward: Forward) -> int:
    """The same of answers, of an upstream with that limit. 0 when they are cut through: then none needs memory to go on."""
    return max_receive_size if forward == "whole" else 0


def forwarding_of(listener: ListenerConfig) -> Forwarding:
    """How its frames pass: as it says, and whole where a handler gets them."""
    return listener.forwarding if listener.handler is None else Forwarding(requests="whole", responses="whole")


def largest_whole(config: ProxyConfig) -> tuple[int, int]:
    """The largest bodies that are kept until they are whole: of requests, and of answers. A processor's part of the pool holds either."""
    answers = {upstream.name: upstream.max_receive_size for upstream in config.upstreams}
    return (
        max((whole_request(item.max_receive_size, forwarding_of(item).requests) for item in config.listeners), default=1),
        max(
            (whole_response(answers[item.upstream], forwarding_of(item).responses) for item in config.listeners if item.upstream),
            default=0,
        ),
    )


def to_wire(config: ProxyConfig) -> dict[str, Any]:
    """The model as JSON-ready values, for the link."""
    return dataclasses.asdict(config)


def from_wire(row: dict[str, Any]) -> ProxyConfig:
    """The inverse of ``to_wire``; the values were validated by the sender, so a wrong shape raises TypeError."""
    return model_from_wire(ProxyConfig, row)


def quotas_to_wire(config: ProxyConfig) -> dict[str, Any]:
    """All quotas of a configuration as JSON-ready values; ``proxy.config.limits.limits_from_wire`` reads them."""
    return limits_to_wire(config.limits, {item.name: item.limits for item in config.listeners})


def rules_to_wire(rules: tuple[TapRule, ...]) -> list[dict[str, Any]]:
    """Rules as JSON-ready values, as they are within ``to_wire``."""
    return [dataclasses.asdict(rule) for rule in rules]


def rule_from_wire(row: dict[str, Any]) -> TapRule:
    """The inverse, of one rule; see ``from_wire``."""
    return model_from_wire(TapRule, row)
