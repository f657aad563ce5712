"""The configuration model, made from a configuration file. Each field is one key, with its type, default, unit and range.

Every size is in bytes, every time in milliseconds, every instant in nanoseconds since 1970; the unit of a time or an instant ends the field's name.
``control.configuration`` reads a YAML file, validates it against these classes and reports every fault at once; a processor gets the finished
model over its link (``to_wire`` and ``from_wire``) and never sees a file.

The keys of the file are the field names; a time is written with a unit there (``idle: 10m`` becomes ``idle_ms``), and so is a size (``100MiB``).
"""

import dataclasses
from collections.abc import Generator
from typing import Annotated, Any, Final, Literal

from framegate.proxy.config.key import Key, changed_model, model_from_wire, model_to_wire
from framegate.proxy.config.limits import MAX_INT32, MAX_RECEIVE_SIZE, UNLIMITED_LISTENER, UNLIMITED_NODE, LimitsConfig, ListenerLimits
from framegate.proxy.config.log import DEFAULT_LOG, LogConfig
from framegate.proxy.config.sasl import ListenerSasl, UpstreamSasl
from framegate.proxy.config.tls import BY_SUBJECT, ListenerTls, PrincipalConfig, UpstreamTls

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB
TIB: Final = 1024 * GIB
MAX_PROCESSORS: Final = 64  # the number of slots in a connection's id (``framegate.proxy.network.connection_id``)
MAX_HANDLER_PROCESSES: Final = 64
LEAST_POOL: Final = 64 * KIB
CUT_ABOVE: Final = 256 * KIB  # a frame of at most so many bytes, with its size header, always passes whole
LISTS_WHOLE: Final = 4 * MIB
"""The same for responses on a listener with ``kafka``, whose lists of topics and groups must be whole to be examined, and with ``brokers`` for long
answers to FindCoordinator, whose addresses are replaced."""
_SECOND: Final = 1_000
_MINUTE: Final = 60 * _SECOND
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR

Protocol = Literal["framed", "kafka"]
Capture = Literal["full", "lengths", "hash"]
OnFull = Literal["drop", "mute"]
Keep = Literal["budget", "shipped"]
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
PortsBy = Literal["node_id", "order"]
CheckKind = Literal["connect", "tls", "kafka"]
ReadyWhen = Literal["listening", "upstream"]
ProxyVersion = Literal["v1", "v2"]
AcceptedVersion = Literal["v1", "v2", "any"]
Balance = Literal["round_robin", "least_connections", "random_two", "first_available"]
UnknownVersions = Literal["narrow", "pass"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ListenerTimeouts:
    """Timeouts of a listener's connections."""

    handshake_ms: Annotated[int, Key("ms", (100, 10 * _MINUTE))] = 10_000
    idle_ms: Annotated[int, Key("ms", (0, 30 * _DAY))] = 600_000
    max_connection_age_ms: Annotated[int, Key("ms", (0, 30 * _DAY))] = 0
    failed_authentication_ms: Annotated[int, Key("ms", (0, 10 * _MINUTE))] = 100
    stall_ms: Annotated[int, Key("ms", (_SECOND, _HOUR))] = 30_000
    half_close_ms: Annotated[int, Key("ms", (0, _HOUR))] = 30_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KeepAlive:
    """TCP keep-alive. Times are rounded up to whole seconds."""

    idle_ms: Annotated[int, Key("ms", (_SECOND, 32_767 * _SECOND))] = 60_000
    interval_ms: Annotated[int, Key("ms", (_SECOND, 32_767 * _SECOND))] = 10_000
    probes: Annotated[int, Key(range=(1, 127))] = 6


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SocketConfig:
    """Socket options of one side."""

    receive_buffer: Annotated[int, Key("bytes", (0, GIB))] = 0
    send_buffer: Annotated[int, Key("bytes", (0, GIB))] = 0
    keep_alive: KeepAlive | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Forwarding:
    """How frames above 256 KiB, with their size header, pass; smaller ones always pass whole."""

    requests: Forward = "whole"
    responses: Forward = "cut_through"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HeaderConfig:
    """The header of ``framing: header``: a number of bytes, in which an unsigned integer is the length of the frame."""

    size: Annotated[int, Key("bytes", (1, 64))]
    offset: Annotated[int, Key("bytes", (0, 63))] = 0
    width: Annotated[int, Key("bytes", (1, 8))] = 4
    byte_order: ByteOrder = "big"
    counts: Counted = "body"
    other_bytes: OtherBytes = "keep"
    fill: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BrokersConfig:
    """How clients of a listener reach each broker of a cluster: by a port for each (``ports``), or by the TLS server name (``hosts``)."""

    ports: str = ""
    by: PortsBy = "node_id"
    hosts: str = ""
    advertise: str = ""
    advertise_port: Annotated[int, Key(range=(0, 65_535))] = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProxyProtocolConfig:
    """The PROXY protocol of a listener whose clients are proxies."""

    version: AcceptedVersion = "any"
    trusted: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KafkaRule:
    """Which Kafka APIs, topics, groups and transactional ids some clients may use. An empty tuple restricts nothing."""

    principals: tuple[str, ...] = ()
    client_ids: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    transactional_ids: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KafkaRules:
    """What the clients of a listener may ask of Kafka. The first rule that matches a request decides; without one, all is allowed."""

    unknown_versions: UnknownVersions = "narrow"
    report_only: Annotated[bool, Key(effect="now")] = False
    rules: Annotated[tuple[KafkaRule, ...], Key(effect="now")] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ListenerConfig:
    """One address that clients connect to."""

    name: str
    address: Annotated[str, Key("address")]
    upstream: str | None = None
    handler: str | None = None
    protocol: Protocol = "framed"
    brokers: BrokersConfig | None = None
    proxy_protocol: ProxyProtocolConfig | None = None
    kafka: KafkaRules | None = None
    framing: Framing = "int32"
    header: HeaderConfig | None = None
    max_receive_size: Annotated[int, MAX_RECEIVE_SIZE] = 100 * MIB
    limits: Annotated[ListenerLimits, Key(effect="now")] = UNLIMITED_LISTENER
    backlog: Annotated[int, Key(range=(1, 65_535), effect="now")] = 1024
    socket: SocketConfig = SocketConfig()
    forwarding: Forwarding = Forwarding()
    timeouts: ListenerTimeouts = ListenerTimeouts()
    half_close_before_data: BeforeData = "close"
    min_rate: Annotated[int, Key("bytes/s", (0, GIB))] = KIB
    tls: ListenerTls | None = None
    principal: PrincipalConfig = BY_SUBJECT
    allowed_principals: tuple[str, ...] = ()
    close_revoked: bool = True
    sasl: ListenerSasl | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamTimeouts:
    """A connection tries each address at most once: it is refused after ``connect_ms`` for each address of the upstream, at the latest."""

    connect_ms: Annotated[int, Key("ms", (10, 10 * _MINUTE))] = 5_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KafkaCluster:
    """A Kafka cluster, whose brokers framegate finds by itself."""

    bootstrap: Annotated[tuple[str, ...], Key("address")]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EndpointConfig:
    """An endpoint that is more than an address."""

    address: Annotated[str, Key("address")]
    weight: Annotated[int, Key(range=(1, 1_000))] = 1
    zone: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EjectionConfig:
    """When an endpoint is left out that fails, or is slow beside the others, though it takes connections; and when it is used again."""

    failures: Annotated[int, Key(range=(0, 1_000))] = 5
    latency_factor: Annotated[float, Key(range=(0.0, 1_000.0))] = 0.0
    time_ms: Annotated[int, Key("ms", (_SECOND, _HOUR))] = 30_000
    successes: Annotated[int, Key(range=(1, 1_000))] = 3
    at_most_percent: Annotated[int, Key("percent", (1, 100))] = 50


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CheckConfig:
    """Active checks of endpoints, by the control process."""

    kind: CheckKind = "connect"
    every_ms: Annotated[int, Key("ms", (100, _HOUR))] = 5_000
    timeout_ms: Annotated[int, Key("ms", (10, 10 * _MINUTE))] = 2_000
    rise: Annotated[int, Key(range=(1, 1_000))] = 2
    fall: Annotated[int, Key(range=(1, 1_000))] = 3


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamConfig:
    """Where a listener's frames go: to ``endpoints``, or to the brokers of a cluster (``kafka``)."""

    name: str
    endpoints: Annotated[tuple[str | EndpointConfig, ...], Key("address", effect="now")] = ()
    kafka: Annotated[KafkaCluster | None, Key(effect="now")] = None
    balance: Annotated[Balance, Key(effect="now")] = "round_robin"
    max_connections: Annotated[int, Key(range=(0, 1_000_000), effect="now")] = 0
    ejection: Annotated[EjectionConfig | None, Key(effect="now")] = None
    check: Annotated[CheckConfig | None, Key(effect="now")] = None
    send_proxy_protocol: ProxyVersion | None = None
    framing: Framing = "int32"
    header: HeaderConfig | None = None
    max_receive_size: Annotated[int, Key("bytes", (1, MAX_INT32), effect="now")] = MAX_INT32
    timeouts: UpstreamTimeouts = UpstreamTimeouts()
    socket: SocketConfig = SocketConfig()
    tls: UpstreamTls | None = None
    sasl: UpstreamSasl | None = None

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses of the configuration: the endpoints, or the bootstrap servers of a cluster."""
        return tuple(item.address for item in self.each_endpoint) if self.kafka is None else self.kafka.bootstrap

    @property
    def each_endpoint(self) -> tuple[EndpointConfig, ...]:
        """The endpoints; one that is only an address has the weight 1 and no zone."""
        return tuple(item if isinstance(item, EndpointConfig) else EndpointConfig(address=item) for item in self.endpoints)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TapRule:
    """Which frames the tap records, and how. The first rule that matches a frame is used; a frame without a match is not recorded. A file gives
    ``expires_ns`` as an instant or as a time from now. If the instant has passed, the rule is off: a warning in a file, an error in the API.
    """

    name: str
    listeners: tuple[str, ...] = ()
    directions: tuple[Direction, ...] = ("request", "response")
    principals: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    min_size: Annotated[int, Key("bytes", (0, MAX_INT32))] = 0
    max_size: Annotated[int, Key("bytes", (0, MAX_INT32))] = 0
    apis: tuple[str, ...] = ()
    clients: tuple[str, ...] = ()
    capture: Capture = "full"
    max_frame_bytes: Annotated[int, Key("bytes", (0, MAX_INT32))] = 0
    blank: tuple[str, ...] = ()
    hash: tuple[str, ...] = ()
    sample_connections: Annotated[float, Key("share", (0.0, 1.0))] = 1.0
    sample_frames: Annotated[float, Key("share", (0.0, 1.0))] = 1.0
    expires_ns: Annotated[int, Key("ns")] = 0
    on_full: OnFull = "drop"
    max_loss_percent: Annotated[float, Key("percent", (0.0, 100.0))] = 0.0
    max_cpu_percent: Annotated[float, Key("percent", (0.0, 100.0))] = 0.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ShipConfig:
    """Where the log is sent. Nodes have a folder each below ``to``."""

    to: str
    interval_ms: Annotated[int, Key("ms", (_SECOND, _HOUR))] = 60_000
    bandwidth: Annotated[int, Key("bytes/s", (0, TIB))] = 0
    keep: Keep = "budget"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TapConfig:
    """The segment log. The log may exceed the budget by a reserve of 1 MiB, a ledger of about the same size, open segments, and its growth between
    two sweeps, 1 s apart.
    """

    directory: Annotated[str, Key("path")]
    budget: Annotated[int, Key("bytes", (MIB, 1024 * TIB))] = 4 * GIB
    max_age_ms: Annotated[int, Key("ms", (0, 3650 * _DAY))] = 0
    segment_size: Annotated[int, Key("bytes", (64 * KIB, 4 * GIB))] = 128 * MIB
    segment_age_ms: Annotated[int, Key("ms", (_SECOND, _DAY))] = 300_000
    flush_size: Annotated[int, Key("bytes", (4 * KIB, 64 * MIB))] = 256 * KIB
    flush_ms: Annotated[int, Key("ms", (1, 10 * _SECOND))] = 20
    queue_size: Annotated[int, Key("bytes", (64 * KIB, 4 * GIB))] = 8 * MIB
    ship: ShipConfig | None = None
    rules: Annotated[tuple[TapRule, ...], Key(effect="now")] = ()


POOL_SIZE: Final = Key("bytes", (LEAST_POOL, 1024 * TIB))  # Of the memory pool; changes over the API use its range. In a file it may also be 0.


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPoolConfig:
    """The memory for traffic. Each processor's part holds at least the largest frame that passes whole."""

    kind: Annotated[PoolKind, Key(effect="restart")] = "bounded"
    size: Annotated[int, POOL_SIZE._replace(range=(0, POOL_SIZE.most))] = 256 * MIB
    shares: Annotated[dict[str, int], Key("percent", (1, 100))] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HandlersConfig:
    """The handler processes; there are none if no listener has a handler."""

    processes: Annotated[int, Key(range=(1, MAX_HANDLER_PROCESSES))] = 1
    queue: Annotated[int, Key(range=(1, 1_000_000))] = 500
    timeout_ms: Annotated[int, Key("ms", (0, _HOUR))] = 30_000
    memory: Annotated[int, Key("bytes", (0, TIB))] = 0
    path: Annotated[tuple[str, ...], Key("path")] = (".",)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RoleSocket:
    """A Unix socket of the admin API, whose callers have one role."""

    address: Annotated[str, Key("address")]
    mode: str = "0600"
    group: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AdminTcp:
    """The admin API over TCP with mutual TLS. A caller has the highest role whose list has its principal, and is refused if none has."""

    address: Annotated[str, Key("address")]
    certificate: Annotated[str, Key("path")]
    key: Annotated[str, Key("path")]
    client_ca: Annotated[str, Key("path")]
    crl: Annotated[tuple[str, ...], Key("path")] = ()
    principal: PrincipalConfig = BY_SUBJECT
    view: tuple[str, ...] = ()
    operate: tuple[str, ...] = ()
    admin: tuple[str, ...] = ()

    @property
    def tls(self) -> ListenerTls:
        """As of a listener that wants certificates of its clients."""
        certificates = ListenerTls(certificate=self.certificate, key=self.key, client_ca=self.client_ca, crl=self.crl)
        return dataclasses.replace(certificates, client_auth="required", min_version="1.3", alpn=("h2",))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AdminConfig:
    """The gRPC control plane. ``address``, ``mode`` and ``group`` are those of the socket of the role admin."""

    address: Annotated[str, Key("address")] = "unix:/run/framegate/admin.sock"
    mode: str = "0600"
    group: str = ""
    operate: RoleSocket | None = None
    view: RoleSocket | None = None
    tcp: AdminTcp | None = None

    @property
    def sockets(self) -> dict[str, RoleSocket]:
        """The Unix sockets by role, the highest first."""
        made = {"admin": RoleSocket(address=self.address, mode=self.mode, group=self.group), "operate": self.operate, "view": self.view}
        return {role: socket for role, socket in made.items() if socket is not None}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HealthConfig:
    """Plaintext listeners for health probes."""

    address: Annotated[str, Key("address")]
    http_address: Annotated[str | None, Key("address")] = None
    ready_when: ReadyWhen = "listening"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RotationConfig:
    """How files are watched that may be replaced at run time: certificates, keys, authorities."""

    poll_ms: Annotated[int, Key("ms", (100, _HOUR))] = 1_000
    grace_ms: Annotated[int, Key("ms", (0, _HOUR))] = 10_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FileConfig:
    """What happens when the configuration file changes while framegate runs."""

    watch: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DrainConfig:
    """How connections end when the proxy stops: frames pass until a connection is quiet, or until its client is no longer read."""

    timeout_ms: Annotated[int, Key("ms", (0, _HOUR))] = 30_000
    quiet_ms: Annotated[int, Key("ms", (0, 10 * _MINUTE))] = 1_000
    accept: DrainAccept = "until_stop"
    delay_ms: Annotated[int, Key("ms", (0, _HOUR))] = 5_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OtlpConfig:
    """An OTLP collector. For a missing key the environment variable of OpenTelemetry is used."""

    endpoint: str | None = None
    protocol: OtlpProtocol | None = None
    signals: tuple[Signal, ...] | None = None
    interval_ms: Annotated[int | None, Key("ms", (100, _HOUR))] = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PrometheusConfig:
    """The endpoint for Prometheus."""

    address: Annotated[str, Key("address")]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryConfig:
    """Where telemetry is sent, to both, to one or to none; and the share of Kafka requests that have a span."""

    otlp: OtlpConfig | None = None
    prometheus: PrometheusConfig | None = None
    request_sample: Annotated[float, Key("share", (0.0, 1.0))] = 0.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProxyConfig:
    """The whole configuration."""

    node: Annotated[str, Key(effect="restart")] = ""
    listeners: Annotated[tuple[ListenerConfig, ...], Key(effect="new connections")]
    zone: Annotated[str, Key(effect="now")] = ""
    upstreams: Annotated[tuple[UpstreamConfig, ...], Key(effect="new connections")] = ()
    processors: Annotated[int, Key(range=(0, MAX_PROCESSORS), effect="now")] = 0
    admin: Annotated[AdminConfig, Key(effect="restart")] = AdminConfig()
    health: Annotated[HealthConfig | None, Key(effect="restart")] = None
    memory_pool: Annotated[MemoryPoolConfig, Key(effect="now")] = MemoryPoolConfig()
    handlers: Annotated[HandlersConfig, Key(effect="new connections")] = HandlersConfig()
    limits: Annotated[LimitsConfig, Key(effect="now")] = UNLIMITED_NODE
    tap: Annotated[TapConfig | None, Key(effect="restart")] = None
    telemetry: Annotated[TelemetryConfig, Key(effect="now")] = TelemetryConfig()
    log: Annotated[LogConfig, Key(effect="restart")] = DEFAULT_LOG
    drain: Annotated[DrainConfig, Key(effect="now")] = DrainConfig()
    rotation: Annotated[RotationConfig, Key(effect="now")] = RotationConfig()
    config: Annotated[FileConfig, Key(effect="now")] = FileConfig()


def whole_request(max_receive_size: int, listener: ListenerConfig) -> int:
    """The largest body of a request that passes whole, of a listener with that limit."""
    return max_receive_size if forwarding_of(listener).requests == "whole" else min(max_receive_size, CUT_ABOVE - 4)


def receive_sizes(listener: ListenerConfig) -> list[int]:
    """The max_receive_size of a listener, and those of its rules."""
    return [listener.max_receive_size, *(rule.max_receive_size for rule in listener.limits.rules if rule.max_receive_size is not None)]


def whole_response(max_receive_size: int, listener: ListenerConfig) -> int:
    """The same for responses of an upstream with that limit; 0 if they are cut through and not examined, because those need no memory."""
    if forwarding_of(listener).responses == "whole":
        return max_receive_size
    return min(max_receive_size, LISTS_WHOLE - 4) if listener.brokers is not None or listener.kafka is not None else 0


def responses_cut_above(listener: ListenerConfig) -> int:
    """The size, header included, above which responses are cut through, if they are."""
    return CUT_ABOVE if listener.kafka is None else LISTS_WHOLE


def forwarding_of(listener: ListenerConfig) -> Forwarding:
    """How a listener's frames pass: as configured, but whole if a handler gets them."""
    return listener.forwarding if listener.handler is None else Forwarding(requests="whole", responses="whole")


def largest_whole(config: ProxyConfig) -> tuple[int, int]:
    """The largest bodies that pass whole, of requests and of responses. A processor's part of the pool holds either."""
    answers = {upstream.name: upstream.max_receive_size for upstream in config.upstreams}
    return (
        max((whole_request(max(receive_sizes(item)), item) for item in config.listeners), default=1),
        max((whole_response(answers[item.upstream], item) for item in config.listeners if item.upstream), default=0),
    )


def to_wire(config: ProxyConfig) -> dict[str, Any]:
    """The model as JSON values, for the link."""
    row: dict[str, Any] = model_to_wire(config)
    return row


def from_wire(row: dict[str, Any]) -> ProxyConfig:
    """The inverse of ``to_wire``; raises TypeError if fields are missing or unknown."""
    return model_from_wire(ProxyConfig, row)


_NAMED: Final = {"listeners": ListenerConfig, "upstreams": UpstreamConfig}


def difference_to_wire(before: ProxyConfig, after: ProxyConfig) -> dict[str, Any]:
    """The keys that differ in ``after``, as JSON values; of a listener or upstream that is the same, the list has the name alone."""
    row: dict[str, Any] = {}
    for field in dataclasses.fields(ProxyConfig):
        old, new = getattr(before, field.name), getattr(after, field.name)
        if field.name in _NAMED and old != new:
            known = {item.name: item for item in old}
            row[field.name] = [item.name if known.get(item.name) == item else model_to_wire(item) for item in new]
        elif old != new:
            row[field.name] = model_to_wire(new)
    return row


def changed_from_wire(before: ProxyConfig, row: dict[str, Any]) -> Generator[None, None, ProxyConfig]:
    """The inverse, in pieces of less than a millisecond: a configuration with other keys. Listeners and upstreams that are the same are those of
    ``before``. Raises TypeError: a row that cannot be read, or a name that is not known.
    """
    values = {name: value for name, value in row.items() if name not in _NAMED}
    for name, model in _NAMED.items():
        known = {item.name: item for item in getattr(before, name)}
        if name in row:
            items = []
            for item in row[name]:
                items.append(_item(model, known, item))
                if not isinstance(item, str):
                    yield
            values[name] = tuple(items)
    return changed_model(before, values)


def _item(model: Any, known: dict[str, Any], row: Any) -> Any:
    if isinstance(row, str):
        if row not in known:
            raise TypeError(f"no {row} is known")
        return known[row]
    made = model_from_wire(model, row)
    return known[made.name] if known.get(made.name) == made else made
