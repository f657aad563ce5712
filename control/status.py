"""State of a running framegate, and results of changes: values that steering returns, and that service and telemetry show."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Final, Literal

from framegate.proxy.config.key import keys
from framegate.proxy.config.limits import MAX_RECEIVE_SIZE, ListenerLimits
from framegate.proxy.config.log import LogFormat, LogLevel
from framegate.proxy.config.model import MAX_PROCESSORS, MIB, POOL_SIZE, Forwarding, PoolKind, ProxyConfig, TapRule
from framegate.proxy.server.rows import EndpointRow

RETIRED: Final = -1  # the number of the slot that has the counters of all removed slots
PROCESSORS: Final = keys(ProxyConfig)["processors"]._replace(range=(1, MAX_PROCESSORS))
"""Of a number in force; in a file 0 stands for one that follows the container."""
TAP_RULE: Final = "tap rule"  # the kind of resource in errors (``NotFoundError``)
Attributes = tuple[tuple[str, str], ...]
Origin = Literal["configuration", "container", "operator"]
"""Where a size comes from: the configuration, the container's limits (0 in the configuration), or an operator, until the next start."""
ChannelVerb = Literal["mute", "unmute", "close", "throttle"]
ClientMeasure = Literal["bytes", "frames", "held", "refusals", "logins"]  # what clients are ranked by; the last one: failed logins
ReloadResult = Literal["unchanged", "replaced", "refused"]
BrokerState = Literal["up", "down", "no_port", "gone"]
ProcessorState = Literal["starting", "running", "draining", "restarting", "stopped"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HandlerStatus:
    """One handler, as its process reports it."""

    listener: str
    handler: str
    directions: tuple[str, ...]
    description: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HandlerProcessStatus:
    """One slot of a handler process and its process; counts begin with each process."""

    slot: int
    pid: int  # 0: there is no process
    generation: int
    state: ProcessorState
    # restarts, last_reason, last_ended_ns: number of processes after the first, and why and when (since 1970) the last one ended; empty and 0: none
    # has ended
    restarts: int
    last_reason: str
    last_ended_ns: int
    started_ns: int  # since 1970
    # handled, failed: frames, and frames for which a handler raised an exception
    handled: int
    failed: int
    # in_handler, queued: frames that are being handled, and frames that wait
    in_handler: int
    queued: int
    oldest_ms: int  # how long the oldest frame in a handler has been there; 0: there is none
    busy: float  # share of the last seconds in which a frame was being handled, 0.0 to 1.0
    resident: int  # bytes
    handlers: tuple[HandlerStatus, ...]  # by listener; empty before the process is ready


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ListenerStatus:
    """One listener. ``address`` is the bound one (port 0 resolved), ``connections`` the open ones of all processors; ``upstream`` and ``handler`` are
    empty if there is none.
    """

    name: str
    address: str
    upstream: str
    handler: str
    protocol: str
    framing: str
    tls: bool
    max_receive_size: int
    max_connections: int
    connections: int
    accepting: bool
    forwarding: Forwarding


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamStatus:
    """One upstream. ``endpoints`` as configured, ``addresses`` as resolved last, ``error`` of the last resolution (empty: none), ``states`` of all
    addresses: of each the row of the processor where its state is worst, with the sums of ``connections`` and ``out``, and the greatest latency.
    """

    name: str
    endpoints: tuple[str, ...]
    addresses: tuple[str, ...]
    tls: bool
    max_receive_size: int
    error: str
    states: tuple[EndpointRow, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStatus:
    """One broker of a cluster, as clients of one listener reach it."""

    upstream: str
    listener: str
    node: int  # its node id
    address: str  # its own, ``host:port``
    advertised: str  # the address that clients are told; empty: they are told that of the bootstrap
    rack: str  # empty: none
    # ``up``; ``down``: each of its addresses has failed, or its name has none; ``no_port``: clients of this listener cannot reach it; ``gone``: the
    # cluster does not name it any more, and connections are left. ``reason`` says why, except of ``up``.
    state: BrokerState
    reason: str
    connections: int  # open now


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CertificateStatus:
    """One certificate in force."""

    owner: str  # ``listener/NAME`` or ``upstream/NAME``
    use: str  # the key of its file: ``certificate``, ``client_ca``, ``ca``; ``crl`` for a revocation list
    file: str
    position: int  # in the file, from 0
    # subject, issuer: in RFC 4514 form
    subject: str
    names: tuple[str, ...]  # the alternative names, for example ``DNS:host``
    issuer: str
    # serial, fingerprint: in hexadecimal; the fingerprint is SHA-256
    serial: str
    fingerprint: str
    # begins, ends: seconds since 1970
    begins: float
    ends: float
    store: int  # how often its owner's files were loaded, including the start
    loaded_ns: int  # when they were loaded last, since 1970
    error: str  # why the present contents of its owner's files are not in force; empty if they are


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReloadOutcome:
    """The result of a reload of one owner's files of one kind (``proxy.cells.FILE_KINDS``). ``file`` and ``reason`` of a refusal; the file is empty
    if the reason is not about a single file.
    """

    owner: str
    kind: str
    result: ReloadResult
    file: str = ""
    reason: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorStatus:
    """One processor slot. ``pid`` is 0 if no process runs; ``generation`` grows with every start, also over restarts of the control process (it
    starts from the clock), and is part of every channel id; ``heartbeat_age_ms`` is -1 before the first heartbeat.
    """

    slot: int
    pid: int
    generation: int
    state: ProcessorState
    restarts: int
    heartbeat_age_ms: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limit(ListenerLimits):
    """The largest frame body, in bytes, that clients of a listener may send, and the listener's quotas and rules."""

    listener: str
    max_receive_size: Annotated[int, MAX_RECEIVE_SIZE] = 100 * MIB


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PoolShare:
    """The share of one processor and its use, in bytes: ``begun`` of frames that are not whole, ``pending`` of sends, ``tls`` of ciphertext. ``tap``:
    bytes in its tap's queue, which are not part of the pool. ``waiting``: frames that wait for an admission slot.
    """

    slot: int
    share: int
    begun: int
    pending: int
    tls: int
    tap: int
    waiting: int

    @property
    def usage(self) -> int:
        return self.begun + self.pending + self.tls


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PoolStatus:
    """The memory pool. ``kind`` is that of ``MemoryPoolConfig``; ``size`` is the sum of the shares; ``processors`` is the number in force;
    ``tap_limit`` the bound of all taps' queues together; ``guaranteed`` the percentages of each share that listeners are guaranteed, by name;
    ``size_origin`` and ``processors_origin``: where they come from.
    """

    kind: PoolKind
    size: Annotated[int, POOL_SIZE]
    shares: tuple[PoolShare, ...]
    processors: Annotated[int, PROCESSORS]
    tap_limit: int
    guaranteed: Mapping[str, int]
    size_origin: Origin = "configuration"
    processors_origin: Origin = "configuration"

    @property
    def usage(self) -> int:
        return sum(item.usage for item in self.shares)


@dataclasses.dataclass(frozen=True, slots=True)
class ClientRank:
    """A client, or what failed logins have in common, and how much of a measure it has. ``principal``: of failed logins the name that was tried, or
    ``clients.MANY``, as ``address`` may be. ``value``: per second, or bytes held, and never too high. ``share``: of all clients of the listener.
    """

    listener: str
    principal: str
    client_id: str
    address: str
    value: float
    share: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Memory of the pool that one side (``downstream``, ``upstream``) of a channel holds, of one kind (``begun``, ``pending``, ``tls``). ``muted``:
    why that side is not read; ``muted_ns``: since when, 0 if it is read; ``last_active_ns``: when a byte last moved there. Times are CLOCK_REALTIME.
    """

    channel: int
    listener: str
    side: str
    peer: str
    kind: str
    bytes: int
    muted: tuple[str, ...]
    muted_ns: int
    last_active_ns: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ChannelAction:
    """What an operator does to channels for some time, or to new ones as well."""

    number: int  # names it; 0: it is not kept, because it is over when it is done
    verb: ChannelVerb
    filter: str  # of the channels; empty: they were named by id
    reason: str
    # request_rate, response_rate: of ``throttle``: bytes per second of each channel; 0: no limit
    request_rate: int = 0
    response_rate: int = 0
    standing: bool = False  # it is done to new connections, too
    # created_ns, expires_ns: since 1970; ``expires_ns`` 0: it does not expire
    created_ns: int = 0
    expires_ns: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a change of channels: ids for which it is in force, and ids that are not open, or not any more. ``action``: what is kept of it;
    None: nothing.
    """

    affected: tuple[int, ...]
    missing: tuple[int, ...]
    action: ChannelAction | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DrainResult:
    """``closed``: pairs that the drain ended, also those closed by force at its deadline; ``open``: pairs that were open when it returned."""

    closed: int
    open: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """For probes. ``started``: every processor and every handler process was ready once, and the listeners are bound; ``alive``: the control
    process's event loop and every processor's heartbeat move; ``ready``: started, listening and not draining, with a running processor and, if a
    listener has a handler, a running handler process; ``draining``: connections are refused for good; ``problems``: why one of the first three is
    false.
    """

    started: bool
    alive: bool
    ready: bool
    draining: bool = False
    problems: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BuildInfo:
    """``compiled``: whether the processors run compiled modules."""

    version: str
    compiled: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TapStop:
    """A tap rule that has turned itself off in a processor. ``cause`` is ``loss`` or ``cpu``, ``percent`` the measured value and ``limit`` the
    allowed one; ``since_ns`` is CLOCK_REALTIME.
    """

    slot: int
    cause: str
    percent: float
    limit: float
    since_ns: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TapRuleStatus:
    """One tap rule. ``expired``: its time is over, and the next change removes it; ``stops`` by slot; ``losing``: the
    log does not take all frames that rules record.
    """

    rule: TapRule
    expired: bool
    stops: tuple[TapStop, ...] = ()
    losing: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UserStatus:
    """A user with a password: the iterations of the stored credentials, by mechanism. Nothing else of them is shown. ``etag`` changes with them."""

    name: str
    mechanisms: Mapping[str, int]
    etag: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UsersStatus:
    """The users in force of a listener, in the order of their file; ``error``: why the listener's files are not in force, or empty."""

    users: tuple[UserStatus, ...]
    error: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LogStatus:
    """Which rows are written, and how."""

    format: LogFormat
    level: LogLevel = "info"  # the lowest level that is written
    silenced: tuple[str, ...] = ()  # names of events whose rows are not written
    dropped: int = 0  # rows that were dropped since the start
