"""What there is in a running framegate, and what a change of it came to: values that steering gives, and that service and telemetry show."""

import dataclasses
from collections.abc import Mapping
from typing import Final, Literal

from framegate.control.events import Row
from framegate.proxy.config.limits import UNLIMITED, LimitsConfig, RateLimits
from framegate.proxy.config.log import LogFormat, LogLevel
from framegate.proxy.config.model import Forwarding, PoolKind, TapRule

__all__ = [
    "RETIRED",
    "TAP_RULE",
    "Attributes",
    "BuildInfo",
    "CertificateStatus",
    "DownEndpoint",
    "DrainResult",
    "HandlerProcessStatus",
    "HandlerStatus",
    "Health",
    "Holder",
    "Limit",
    "ListenerStatus",
    "LogStatus",
    "NodeLimits",
    "Origin",
    "Outcome",
    "PoolShare",
    "PoolStatus",
    "ProcessorState",
    "ProcessorStatus",
    "ReloadOutcome",
    "ReloadResult",
    "Row",
    "TapRuleStatus",
    "TapStop",
    "UpstreamStatus",
    "UserStatus",
    "UsersStatus",
]

RETIRED: Final = -1
"""Stands for a slot with the counters of all slots that are gone."""
TAP_RULE: Final = "tap rule"
"""The kind of a rule, as ``NotFoundError`` and others name it."""
Attributes = tuple[tuple[str, str], ...]
Origin = Literal["configuration", "container", "operator"]
"""Who decides a size: the configuration, what the container allows (0 there), or an operator, until the next start."""
ReloadResult = Literal["unchanged", "replaced", "refused"]
ProcessorState = Literal["starting", "running", "draining", "restarting", "stopped"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HandlerStatus:
    """One handler: what its own process says of it."""

    listener: str
    handler: str
    directions: tuple[str, ...]
    description: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HandlerProcessStatus:
    """One place of a handler process, and what runs there; what is counted begins anew with each process.

    Attributes:
        pid: 0 when nothing runs there.
        restarts, last_reason, last_ended_ns: processes that were started after the first, and why and when (since 1970) the last one ended; empty
            and 0 when none has.
        started_ns: since 1970.
        handled, failed: frames, and those at which a handler raised.
        in_handler, queued: frames that are being handled, and that wait for it.
        oldest_ms: for how long the one that is handled longest is; 0 when none is.
        busy: share of the last seconds in which a frame was being handled, 0.0 to 1.0.
        resident: bytes.
        handlers: those that it has, by listener; empty before it is ready.
    """

    slot: int
    pid: int
    generation: int
    state: ProcessorState
    restarts: int
    last_reason: str
    last_ended_ns: int
    started_ns: int
    handled: int
    failed: int
    in_handler: int
    queued: int
    oldest_ms: int
    busy: float
    resident: int
    handlers: tuple[HandlerStatus, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ListenerStatus:
    """One listener. ``address`` is the bound one (port 0 resolved), ``connections`` those open now in all processors; ``upstream`` and ``handler``
    are empty where there is none.
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
class DownEndpoint:
    """An address that a processor leaves out. ``reason`` and ``detail`` of its last failure; ``processors``: how many leave it out."""

    address: str
    reason: str
    detail: str
    processors: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamStatus:
    """One upstream. ``endpoints`` as configured, ``addresses`` as resolved last, ``error`` of the last resolution (empty: none), ``down``: addresses
    that are left out for now because they failed.
    """

    name: str
    endpoints: tuple[str, ...]
    addresses: tuple[str, ...]
    tls: bool
    max_receive_size: int
    error: str
    down: tuple[DownEndpoint, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CertificateStatus:
    """One certificate in force.

    Attributes:
        owner: ``listener/NAME`` or ``upstream/NAME``.
        use: the key of its file: ``certificate``, ``client_ca``, ``ca``; ``crl``: it is a revocation list.
        position: in the file, from 0.
        subject, issuer: in RFC 4514 form.
        names: the alternative ones, as in ``DNS:host``.
        serial, fingerprint: in hexadecimal; the fingerprint is SHA-256.
        begins, ends: seconds since 1970.
        store: how often its owner's files were taken, the start included.
        loaded_ns: when they were last, since 1970.
        error: why what lies in its owner's files now is not in force; empty when it is.
    """

    owner: str
    use: str
    file: str
    position: int
    subject: str
    names: tuple[str, ...]
    issuer: str
    serial: str
    fingerprint: str
    begins: float
    ends: float
    store: int
    loaded_ns: int
    error: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReloadOutcome:
    """What a reload came to, for one owner's files of one kind (``proxy.cells.FILE_KINDS``). ``file`` and ``reason`` of a refusal; the file is empty
    when it is about no single one.
    """

    owner: str
    kind: str
    result: ReloadResult
    file: str = ""
    reason: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorStatus:
    """One processor slot. ``pid`` is 0 while none runs; ``generation`` grows with every start, over restarts of control too (it starts from the
    clock), and is part of every channel id; ``heartbeat_age_ms`` is -1 before the first beat.
    """

    slot: int
    pid: int
    generation: int
    state: ProcessorState
    restarts: int
    heartbeat_age_ms: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The largest frame body, in bytes, that clients of a listener may send, and the listener's quotas."""

    listener: str
    max_receive_size: int
    quotas: RateLimits = UNLIMITED


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NodeLimits:
    """The quotas of the node, of addresses and of networks. ``etag`` stands for them as they are."""

    quotas: LimitsConfig
    etag: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PoolShare:
    """What one processor may retain and retains, in bytes: ``begun`` of frames begun, ``pending`` of sends, ``tls`` of ciphertext. ``tap``: what its
    tap's queue holds, beside the pool. ``waiting``: turns that frames wait for.
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
        """Bytes of all kinds."""
        return self.begun + self.pending + self.tls


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PoolStatus:
    """The memory pool. ``kind`` is that of ``MemoryPoolConfig``; ``size`` is the sum of the shares; ``processors`` is the number configured now;
    ``tap_limit`` the most that all taps' queues may take; ``guaranteed`` the percent of each share that listeners are guaranteed, by name;
    ``size_origin`` and ``processors_origin``: who decides them.
    """

    kind: PoolKind
    size: int
    shares: tuple[PoolShare, ...]
    processors: int
    tap_limit: int
    guaranteed: Mapping[str, int]
    size_origin: Origin = "configuration"
    processors_origin: Origin = "configuration"

    @property
    def usage(self) -> int:
        """Bytes that all processors retain."""
        return sum(item.usage for item in self.shares)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """What one side (``downstream``, ``upstream``) of a channel holds of the pool, of one kind (``begun``, ``pending``, ``tls``).

    ``muted``: why that side is not read, ``muted_ns`` since when, 0 when it is read; ``last_active_ns``: when a byte last moved there. Times are
    CLOCK_REALTIME.
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
class Outcome:
    """What a request on channels did: ids it is in force for, ids that are not (or no longer) open."""

    affected: tuple[int, ...]
    missing: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DrainResult:
    """``closed`` pairs ended by the drain, ``open`` pairs still there when it returned (closed by force at the deadline count as closed)."""

    closed: int
    open: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """For probes. ``started``: every processor and every handler process was ready once and the listeners are bound; ``alive``: control's loop and
    every processor's heartbeat move; ``ready``: started, listening and not draining, with a processor that runs and, where a listener has a handler,
    a handler process; ``draining``: that is over, for good; ``problems``: in words, why it is not all of the first three.
    """

    started: bool
    alive: bool
    ready: bool
    draining: bool = False
    problems: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BuildInfo:
    """``compiled`` says whether the processors run compiled modules."""

    version: str
    compiled: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TapStop:
    """That a tap rule has turned itself off in a processor. ``cause`` is ``loss`` or ``cpu``, ``percent`` what that came to, and ``limit`` what it
    might; ``since_ns`` is of CLOCK_REALTIME.
    """

    slot: int
    cause: str
    percent: float
    limit: float
    since_ns: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TapRuleStatus:
    """One tap rule. ``etag`` stands for the rule as it is; ``expired``: its time is over, it goes with the next change; ``stops`` by slot;
    ``losing``: the log does not take all that rules record.
    """

    rule: TapRule
    etag: str
    expired: bool
    stops: tuple[TapStop, ...] = ()
    losing: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UserStatus:
    """Who may come in with a password: the iterations of what is stored of it, by mechanism. Nothing else of that is told."""

    name: str
    mechanisms: Mapping[str, int]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UsersStatus:
    """The users in force of a listener, in the order of their file; ``error``: why what lies in the listener's files is not in force, or nothing."""

    users: tuple[UserStatus, ...]
    error: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LogStatus:
    """Which rows are written, and how.

    Attributes:
        level: the least that is.
        silenced: events whose rows are not, by name.
        dropped: rows that were not kept since the start.
    """

    format: LogFormat
    level: LogLevel
    silenced: tuple[str, ...]
    dropped: int
