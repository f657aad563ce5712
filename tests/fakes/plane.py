"""The parts of steering without processors: rows in a dict, real cells, and errors on demand. What they refuse is what the real ones refuse: both run
the suite ``tests/conformance/test_control_plane.py``.
"""

import dataclasses
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from framegate.control.bounds import MAX_HOLDERS, rows_per_page
from framegate.control.configuration.limit_rules import limit_faults, quota_faults
from framegate.control.configuration.tap_rules import tap_rule_faults
from framegate.control.errors import (
    AbortedError,
    AlreadyExistsError,
    ControlError,
    EtagError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    Violation,
)
from framegate.control.events import Bus, Row, Subscription
from framegate.control.identity.users_file import name_fault
from framegate.control.logs import Levels
from framegate.control.rotation.rotation import Rotation
from framegate.control.rotation.tls_stores import TlsStores
from framegate.control.status import (
    RETIRED,
    Attributes,
    BuildInfo,
    CertificateStatus,
    DownEndpoint,
    DrainResult,
    HandlerProcessStatus,
    HandlerStatus,
    Health,
    Holder,
    Limit,
    ListenerStatus,
    LogStatus,
    NodeLimits,
    Origin,
    Outcome,
    PoolShare,
    PoolStatus,
    ProcessorStatus,
    ReloadOutcome,
    TapRuleStatus,
    TapStop,
    UpstreamStatus,
    UsersStatus,
    UserStatus,
)
from framegate.control.steering.channels import Channels, Verb
from framegate.control.steering.drain import Drain
from framegate.control.steering.limits import Limits
from framegate.control.steering.listeners import Listeners, Upstreams
from framegate.control.steering.pool import Pool, equal_shares, too_small
from framegate.control.steering.rows import Audit, LogRows
from framegate.control.steering.state import State
from framegate.control.steering.steering import Parts
from framegate.control.steering.taps import Taps
from framegate.control.steering.users import Users
from framegate.proxy.auth.auth_requests import ScramCredential
from framegate.proxy.cells import CellLayout, CellReader, CellWriter, create
from framegate.proxy.config.limits import RateLimits
from framegate.proxy.config.log import LogLevel
from framegate.proxy.config.model import (
    MAX_PROCESSORS,
    MAX_RECEIVE_SIZE,
    POOL_SIZE,
    AdminConfig,
    DrainAccept,
    HealthConfig,
    ListenerConfig,
    MemoryPoolConfig,
    ProxyConfig,
    TapConfig,
    TapRule,
    UpstreamConfig,
    forwarding_of,
    largest_whole,
    whole_request,
)
from framegate.proxy.network.connection_id import format_connection_id, parse_connection_id
from framegate.proxy.server.rows import OpenRow
from tests.fakes import rows
from tests.fakes.rows import OPENED_NS

__all__ = [
    "FakeAudit",
    "FakeCertificates",
    "FakeChannels",
    "FakeDrain",
    "FakeLimits",
    "FakeListeners",
    "FakeLog",
    "FakePlane",
    "FakePool",
    "FakeRotation",
    "FakeTaps",
    "FakeUpstreams",
    "FakeUsers",
    "certificate",
    "channel_row",
    "closed_row",
    "fake_config",
    "handler_process",
    "holder",
]

MIB = 1024 * 1024


def fake_config(admin: str, health: str | None = "127.0.0.1:0", tap: TapConfig | None = None) -> ProxyConfig:
    """Two listeners, one upstream."""
    return ProxyConfig(
        node="edge-1",
        listeners=(
            ListenerConfig(name="kafka", address="127.0.0.1:0", upstream="brokers", protocol="kafka"),
            ListenerConfig(name="plain", address="127.0.0.1:0", upstream="brokers", limits=RateLimits(connections=10)),
        ),
        upstreams=(UpstreamConfig(name="brokers", endpoints=("broker:9092",)),),
        processors=2,
        admin=AdminConfig(address=admin),
        health=None if health is None else HealthConfig(address=health),
        memory_pool=MemoryPoolConfig(size=256 * MIB),
        tap=tap,
    )


def channel_row(text: str, listener: str = "kafka", **changes: Any) -> OpenRow:
    """An open pair, as processors give it."""
    return rows.open_row(id=int(parse_connection_id(text)), listener=listener, **changes)


def holder(text: str, size: int, **changes: Any) -> Holder:
    """Who holds ``size`` bytes of a frame begun."""
    made = Holder(
        channel=int(parse_connection_id(text)),
        listener="kafka",
        side="downstream",
        peer="10.0.0.9:51000",
        kind="begun",
        bytes=size,
        muted=("memory",),
        muted_ns=OPENED_NS + 10**9,
        last_active_ns=OPENED_NS,
    )
    return dataclasses.replace(made, **changes)


def closed_row(text: str, cause: str, listener: str = "kafka", **changes: Any) -> Row:
    """A pair that ended, as the plane tells its subscribers."""
    return {"event": "closed", **rows.closed_row(id=int(parse_connection_id(text)), cause=cause, listener=listener, **changes)}


def handler_process(slot: int = 0, **changes: Any) -> HandlerProcessStatus:
    """A place in which a handler process runs, its second."""
    echo = HandlerStatus(listener="plain", handler="framegate.proxy.handler.echo:echo", directions=("request",), description="Answers every frame.")
    status = HandlerProcessStatus(
        slot=slot,
        pid=os.getpid(),
        generation=7,
        state="running",
        restarts=1,
        last_reason="timeout",
        last_ended_ns=OPENED_NS - 10**9,
        started_ns=OPENED_NS,
        handled=500,
        failed=3,
        in_handler=1,
        queued=2,
        oldest_ms=40,
        busy=0.25,
        resident=30 * MIB,
        handlers=(echo,),
    )
    return dataclasses.replace(status, **changes)


def certificate(owner: str, **changes: Any) -> CertificateStatus:
    """A certificate in force until 2096."""
    return dataclasses.replace(
        CertificateStatus(
            owner=owner,
            use="certificate",
            file="/tls.crt",
            position=0,
            subject="CN=a",
            names=("DNS:a",),
            issuer="CN=ca",
            serial="1f",
            fingerprint="f" * 64,
            begins=1.0,
            ends=4e9,
            store=3,
            loaded_ns=2 * 10**9,
            error="",
        ),
        **changes,
    )


def _user(name: str, entry: Mapping[str, ScramCredential]) -> UserStatus:
    return UserStatus(name=name, mechanisms={mechanism: item.iterations for mechanism, item in entry.items()})


def _check_share(size: int, count: int, largest: int) -> None:
    if size // count < largest:
        raise too_small(size // count, largest)


class FakeChannels(Channels):
    """Rows in a dict."""

    def __init__(self, fake: "FakePlane") -> None:
        self.fake = fake

    async def page(self, listener: str | None = None, page_size: int = 0, page_token: str = "") -> tuple[list[OpenRow], str]:
        self.fake._listener(listener)
        if page_token and not page_token.isdigit():
            raise InvalidArgumentError([Violation("page_token", "is not ours")])
        rows = [row for _, row in sorted(self.fake.rows.items()) if listener in (None, row["listener"])]
        start = int(page_token or 0)
        end = start + rows_per_page(page_size)
        return rows[start:end], str(end) if end < len(rows) else ""

    async def describe(self, channel: int) -> OpenRow:
        if channel not in self.fake.rows:
            raise NotFoundError("channel", format_connection_id(channel))
        return self.fake.rows[channel]

    async def act(
        self, verb: Verb, channels: Sequence[int] = (), listener: str | None = None, reason: str = "", principal: str | None = None
    ) -> Outcome:
        self.fake.asked.append((verb, tuple(channels), listener if principal is None else f"principal {principal}", reason))
        self.fake._fail()
        if bool(channels) + (listener is not None) + (principal is not None) != 1:
            raise InvalidArgumentError([Violation("channels", "name channels, a listener or a principal, and one of these only")])
        self.fake._listener(listener)
        if len(channels) == 1 and channels[0] not in self.fake.rows:
            raise NotFoundError("channel", format_connection_id(channels[0]))
        wanted = list(channels) or [key for key, row in self.fake.rows.items() if row["listener"] == listener or row["principal"] == principal]
        affected = tuple(channel for channel in wanted if channel in self.fake.rows)
        for channel in affected:
            if verb == "mute":
                self.fake.rows[channel].update(muted=["admin"], mute_reason=reason)
            elif verb == "unmute":
                self.fake.rows[channel]["muted"] = []
            else:
                row = self.fake.rows.pop(channel)
                self.fake.tell(closed_row(format_connection_id(channel), "admin", row["listener"], detail=reason))
        return Outcome(affected=affected, missing=tuple(channel for channel in wanted if channel not in affected))

    async def top_holders(self, count: int) -> list[Holder]:
        self.fake._fail()
        if not 1 <= count <= MAX_HOLDERS:
            raise InvalidArgumentError([Violation("count", f"must be from 1 to {MAX_HOLDERS}")])
        return sorted(self.fake.holders, key=lambda holder: -holder.bytes)[:count]


class FakeLimits(Limits):
    """Judges quotas as the real ones do."""

    def __init__(self, fake: "FakePlane") -> None:
        self.fake = fake

    def get(self, listener: str | None = None) -> list[Limit]:
        self.fake._listener(listener)
        return [self._limit_of(name) for name in self.fake.limits if listener in (None, name)]

    def _limit_of(self, listener: str) -> Limit:
        return Limit(listener=listener, max_receive_size=self.fake.limits[listener], quotas=self.fake.quotas[listener])

    async def change(self, listener: str, max_receive_size: int | None = None, quotas: Mapping[str, int] | None = None) -> Limit:
        self.fake._fail()
        self.fake._listener(listener)
        size = self.fake.limits[listener] if max_receive_size is None else max_receive_size
        self._check_quotas(quotas or {})
        if not MAX_RECEIVE_SIZE.takes(size) or (max_receive_size is None and not quotas):
            raise InvalidArgumentError([Violation("max_receive_size", f"must be from {MAX_RECEIVE_SIZE.least} to {MAX_RECEIVE_SIZE.most} bytes")])
        forward = next(forwarding_of(item).requests for item in self.fake.config.listeners if item.name == listener)
        _check_share(self.fake.pool, self.fake.processors, whole_request(size, forward))
        self.fake.limits[listener] = size
        self.fake.quotas[listener] = dataclasses.replace(self.fake.quotas[listener], **(quotas or {}))
        return self._limit_of(listener)

    @staticmethod
    def _check_quotas(quotas: Mapping[str, int]) -> None:
        faults = quota_faults(quotas)
        if faults:
            raise InvalidArgumentError([Violation(*fault) for fault in faults])

    def get_node(self) -> NodeLimits:
        return NodeLimits(quotas=self.fake.node_quotas, etag=f"etag-{hash(self.fake.node_quotas)}")

    async def change_node(self, changes: Mapping[str, Any], etag: str = "") -> NodeLimits:
        self.fake._fail()
        if etag and etag != (self.get_node()).etag:
            raise EtagError("node limits", self.fake.config.node)
        if not changes or "protected_listener" in changes:
            raise InvalidArgumentError([Violation("node_limits", "cannot be changed so")])
        self._check_quotas(changes.get("per_address", {}))
        values = dict(changes)
        if "per_address" in values:
            values["per_address"] = dataclasses.replace(self.fake.node_quotas.per_address, **values["per_address"])
        quotas = dataclasses.replace(self.fake.node_quotas, **values)
        faults = limit_faults(quotas, [item.name for item in self.fake.config.listeners])
        if faults:
            raise InvalidArgumentError([Violation(*fault) for fault in faults])
        self.fake.node_quotas = quotas
        return self.get_node()


class FakePool(Pool):
    """Divides equally."""

    def __init__(self, fake: "FakePlane") -> None:
        self.fake = fake

    def _largest(self) -> int:
        whole = [whole_request(self.fake.limits[item.name], forwarding_of(item).requests) for item in self.fake.config.listeners]
        return max(*whole, largest_whole(self.fake.config)[1])

    def status(self) -> PoolStatus:
        shares = tuple(
            PoolShare(slot=slot, share=share, begun=2, pending=2, tls=1, tap=7, waiting=slot)
            for slot, share in equal_shares(self.fake.pool, self.fake.processors).items()
        )
        config = self.fake.config
        tap_limit = config.tap.queue_size * self.fake.processors if config.tap else 0
        memory = config.memory_pool
        return PoolStatus(
            kind=memory.kind,
            size=self.fake.pool,
            shares=shares,
            processors=self.fake.processors,
            tap_limit=tap_limit,
            guaranteed=memory.shares,
            size_origin=self.fake.size_origin,
            processors_origin=self.fake.processors_origin,
        )

    async def set_size(self, size: int, origin: Origin = "operator") -> PoolStatus:
        self.fake._fail()
        if not POOL_SIZE.takes(size):
            raise InvalidArgumentError([Violation("size", "out of range")])
        _check_share(size, self.fake.processors, self._largest())
        self.fake.pool, self.fake.size_origin = size, "operator"
        return self.status()

    async def set_processors(self, count: int, origin: Origin = "operator") -> PoolStatus:
        self.fake._fail()
        if not 1 <= count <= MAX_PROCESSORS:
            raise InvalidArgumentError([Violation("processors", f"must be from 1 to {MAX_PROCESSORS}")])
        if self.fake.draining or not self.fake.accepting:
            raise FailedPreconditionError("the proxy drains", reason="DRAINING")
        _check_share(self.fake.pool, count, self._largest())
        self.fake.processors, self.fake.processors_origin = count, "operator"
        return self.status()


class FakeTaps(Taps):
    """Rules in a list."""

    def __init__(self, fake: "FakePlane") -> None:
        self.fake = fake

    def _tap_status(self, rule: TapRule) -> TapRuleStatus:
        stops = (self.fake.tap_stops[rule.name],) if rule.name in self.fake.tap_stops else ()
        return TapRuleStatus(rule=rule, etag=f"{hash(rule):x}", expired=0 < rule.expires_ns <= time.time_ns(), stops=stops)

    def troubles(self) -> list[str]:
        return self.fake.troubles

    def rules(self) -> list[TapRuleStatus]:
        return [self._tap_status(rule) for rule in self.fake.tap_rules]

    def _found(self, name: str, etag: str = "") -> TapRuleStatus:
        found = [self._tap_status(rule) for rule in self.fake.tap_rules if rule.name == name]
        if self.fake.config.tap is None:
            raise FailedPreconditionError("there is no tap", reason="NO_TAP")
        if not found:
            raise NotFoundError("tap rule", name)
        if etag not in ("", found[0].etag):
            raise EtagError("tap rule", name)
        return found[0]

    def _put_tap_rule(self, rule: TapRule, before: str, validate_only: bool) -> TapRuleStatus:
        rest = [item for item in self.fake.tap_rules if item.name != rule.name]
        names = [item.name for item in rest]
        if before and before not in names:
            raise NotFoundError("tap rule", before)
        faults = tap_rule_faults(rule, {item.name: item.protocol == "kafka" for item in self.fake.config.listeners})
        if faults:
            raise InvalidArgumentError([Violation(*fault) for fault in faults])
        if not validate_only:
            rest.insert(names.index(before) if before else len(rest), rule)
            self._keep_tap_rules(rest, rule.name)
        return self._tap_status(rule)

    def _keep_tap_rules(self, rules: list[TapRule], changed: str) -> None:
        self.fake.tap_rules = [rule for rule in rules if rule.name == changed or not self._tap_status(rule).expired]
        self.fake.tap_stops.pop(changed, None)

    async def create(self, rule: TapRule, before: str = "", *, validate_only: bool = False) -> TapRuleStatus:
        self.fake._fail()
        try:
            if not self._found(rule.name).expired:
                raise AlreadyExistsError("tap rule", rule.name, "tap_rule.name")
        except NotFoundError:
            pass
        return self._put_tap_rule(rule, before, validate_only)

    async def update(
        self, name: str, changes: Mapping[str, Any], before: str | None = None, etag: str = "", *, validate_only: bool = False
    ) -> TapRuleStatus:
        self.fake._fail()
        rule = dataclasses.replace(self._found(name, etag).rule, **changes)
        if before in (None, name):
            names = [item.name for item in self.fake.tap_rules] + [""]
            before = names[names.index(name) + 1]
        assert before is not None
        return self._put_tap_rule(rule, before, validate_only)

    async def delete(self, name: str, etag: str = "", *, validate_only: bool = False) -> None:
        self.fake._fail()
        self._found(name, etag)
        if not validate_only:
            self._keep_tap_rules([rule for rule in self.fake.tap_rules if rule.name != name], name)


class FakeDrain(Drain):
    """Ends at once."""

    def __init__(self, fake: "FakePlane") -> None:
        self.fake = fake

    async def run(
        self, timeout_ms: int | None = None, *, wait: bool = True, accept: DrainAccept | None = None, by: str = "", reason: str = ""
    ) -> DrainResult:
        self.fake.asked.append(("drain", timeout_ms, wait, accept, by.partition(",")[0], reason))
        self.fake._fail()
        if timeout_ms is not None and not 0 <= timeout_ms <= 3_600_000:
            raise InvalidArgumentError([Violation("timeout", "out of range")])
        ends = wait or timeout_ms is not None
        if accept == "until_stop" and ends:
            raise InvalidArgumentError([Violation("accept", "has no end to wait for")])
        self.fake.draining = True
        if (accept or ("refuse" if ends else self.fake.config.drain.accept)) == "until_stop":
            return DrainResult(closed=0, open=len(self.fake.rows))
        self.fake.accepting = False
        closed = len(self.fake.rows) if wait else 0
        if wait:
            self.fake.rows.clear()
        return DrainResult(closed=closed, open=len(self.fake.rows))


class FakeListeners(Listeners):
    """Those of the configuration."""

    def __init__(self, fake: "FakePlane") -> None:
        self.fake = fake

    def statuses(self) -> list[ListenerStatus]:
        return [
            ListenerStatus(
                name=listener.name,
                address=f"127.0.0.1:{9093 + number}",
                upstream=listener.upstream or "",
                handler=listener.handler or "",
                protocol=listener.protocol,
                framing=listener.framing,
                tls=listener.tls is not None,
                max_receive_size=self.fake.limits[listener.name],
                max_connections=listener.limits.connections,
                connections=sum(row["listener"] == listener.name for row in self.fake.rows.values()),
                accepting=self.fake.accepting,
                forwarding=forwarding_of(listener),
            )
            for number, listener in enumerate(self.fake.config.listeners)
        ]


class FakeUpstreams(Upstreams):
    """Those of the configuration."""

    def __init__(self, fake: "FakePlane") -> None:
        self.fake = fake

    async def statuses(self) -> list[UpstreamStatus]:
        return [
            UpstreamStatus(
                name=upstream.name,
                endpoints=upstream.endpoints,
                addresses=("10.1.0.1:9092",),
                tls=False,
                max_receive_size=upstream.max_receive_size,
                error="",
                down=(DownEndpoint(address="10.1.0.2:9092", reason="refused", detail="Connection refused", processors=2),),
            )
            for upstream in self.fake.config.upstreams
        ]


class FakeCertificates(TlsStores):
    """Those that a test gives."""

    def __init__(self, fake: "FakePlane") -> None:
        self.fake = fake

    def statuses(self, rotation: Rotation) -> list[CertificateStatus]:
        return list(self.fake.certificates)


class FakeRotation(Rotation):
    """Outcomes that a test gives."""

    def __init__(self, fake: "FakePlane") -> None:
        self.fake = fake

    async def reload(self) -> list[ReloadOutcome]:
        self.fake.asked.append(("reload",))
        self.fake._fail()
        return list(self.fake.outcomes)


class FakeUsers(Users):
    """Users in a dict, by listener."""

    def __init__(self, fake: "FakePlane") -> None:
        self.fake = fake

    def _of(self, listener: str) -> dict[str, Mapping[str, ScramCredential]]:
        self.fake._listener(listener)
        if listener not in self.fake.users:
            raise FailedPreconditionError("no file of users", reason="NO_USERS_FILE", listener=listener)
        return self.fake.users[listener]

    async def list(self, listener: str) -> UsersStatus:
        return UsersStatus(users=tuple(_user(name, entry) for name, entry in self._of(listener).items()), error=self.fake.users_error)

    async def put(
        self, listener: str, name: str, credentials: Mapping[str, ScramCredential], *, create: bool, replace: bool, validate_only: bool = False
    ) -> UserStatus:
        users = self._of(listener)
        if name in users and not replace:
            raise AlreadyExistsError("user", name, "user.name")
        if name not in users and not create:
            raise NotFoundError("user", name)
        fault = name_fault(name)
        if fault is not None:
            raise InvalidArgumentError([Violation("user.name", fault)])
        self.fake._fail()
        if not validate_only:
            users.pop(name, None)
            users[name] = credentials
        return _user(name, credentials)

    async def delete(self, listener: str, name: str, *, validate_only: bool = False) -> None:
        users = self._of(listener)
        if name not in users:
            raise NotFoundError("user", name)
        self.fake._fail()
        if not validate_only:
            del users[name]


class FakeLog(LogRows):
    """Levels, and nothing that is written."""

    def __init__(self, fake: "FakePlane") -> None:
        self.fake = fake

    def status(self) -> LogStatus:
        return LogStatus(format="json", level=self.fake.levels.level, silenced=tuple(sorted(self.fake.levels.silenced)), dropped=7)

    def change(self, level: LogLevel | None = None, events: Mapping[str, bool] | None = None) -> LogStatus:
        self.fake._fail()
        self.fake.levels.change(level, events or {})
        self.fake._config = dataclasses.replace(self.fake.config, log=dataclasses.replace(self.fake.config.log, level=self.fake.levels.level))
        return self.status()


class FakeAudit(Audit):
    """Rows in a list."""

    def __init__(self, fake: "FakePlane") -> None:
        self.fake = fake

    def reserve(self) -> None:
        if self.fake.audit_failure is not None:
            raise self.fake.audit_failure
        self.fake.audit_places += 1

    def publish(self, record: Row) -> None:
        assert self.fake.audit_places > 0, "a place is taken before a change is made"
        self.fake.audit_places -= 1
        self.fake.audits.append(record)
        self.fake._events.publish({"event": "audit", **record}, reserved=True)


class FakePlane(State):
    """Set ``failure`` to have every change raise it; look at ``audits`` and ``asked`` afterwards."""

    def __init__(self, config: ProxyConfig) -> None:
        self._config = config
        self.rows: dict[int, OpenRow] = {}
        self.holders: list[Holder] = []
        self.limits = {listener.name: listener.max_receive_size for listener in config.listeners}
        self.quotas = {listener.name: listener.limits for listener in config.listeners}
        self.node_quotas = config.limits
        self.levels = Levels()
        self.pool = config.memory_pool.size
        self.processors = config.processors
        self.size_origin: Origin = "configuration"
        self.processors_origin: Origin = "configuration"
        self.tap_rules = [] if config.tap is None else list(config.tap.rules)
        self.troubles: list[str] = []
        self.tap_stops: dict[str, TapStop] = {}
        self.certificates: list[CertificateStatus] = []
        self.outcomes: list[ReloadOutcome] = []
        self.users: dict[str, dict[str, Mapping[str, ScramCredential]]] = {"kafka": {}}  # of listeners that have a file of them
        self.users_error = ""
        self.handlers: list[HandlerProcessStatus] = []
        self.accepting = True
        self.draining = False
        self.started = True
        self.alive = True
        self.failure: Exception | None = None
        self.audits: list[Row] = []
        self.audit_places = 0
        self.audit_failure: ControlError | None = None
        self.asked: list[tuple[object, ...]] = []
        self.failures: list[Exception] = []
        self._events = Bus(on_failure=self.failures.append)
        self.measured: dict[tuple[str, Attributes], float] = {}
        self._layout = CellLayout.of(config)
        self._descriptors = [create(self._layout) for _ in range(config.processors)]
        self.writers = [CellWriter(descriptor, self._layout) for descriptor in self._descriptors]
        self._readers = [CellReader(descriptor, self._layout) for descriptor in self._descriptors]
        self._slots = dict(enumerate(self._readers))
        for slot, writer in enumerate(self.writers):
            writer.start(os.getpid() if slot == 0 else 0, 1, 1)
        self.parts = Parts(
            state=self,
            events=self._events,
            audit=FakeAudit(self),
            log=FakeLog(self),
            channels=FakeChannels(self),
            limits=FakeLimits(self),
            pool=FakePool(self),
            taps=FakeTaps(self),
            drain=FakeDrain(self),
            listeners=FakeListeners(self),
            upstreams=FakeUpstreams(self),
            certificates=FakeCertificates(self),
            rotation=FakeRotation(self),
            users=FakeUsers(self),
        )

    def close(self) -> None:
        for reader in self._readers:
            reader.close()
        for descriptor in self._descriptors:
            os.close(descriptor)

    def add(self, *rows: OpenRow) -> None:
        self.rows.update((row["id"], row) for row in rows)

    def drop(self, *texts: str) -> None:
        for text in texts:
            del self.rows[parse_connection_id(text)]

    def tell(self, row: Row) -> None:
        self._events.publish(row)

    @property
    def subscribers(self) -> list[Subscription]:
        return self._events.subscriptions

    @property
    def layout(self) -> CellLayout:
        return self._layout

    @property
    def config(self) -> ProxyConfig:
        return self._config

    @property
    def started_ns(self) -> int:
        return OPENED_NS - 10**9

    @property
    def build(self) -> BuildInfo:
        return BuildInfo(version="1.2.3", compiled=False)

    @property
    def cells(self) -> list[tuple[int, CellReader]]:
        return sorted(self._slots.items())

    def retire(self, slot: int) -> None:
        """A slot is gone; its counts stay."""
        gone = [self._slots[key] for key in (RETIRED, slot) if key in self._slots]
        self._slots[RETIRED] = CellReader.sum_of(gone)
        del self._slots[slot]

    def hire(self, slot: int) -> None:
        """A slot is there again, and counts on."""
        self._slots[slot] = self._readers[slot]

    def measurements(self) -> Mapping[tuple[str, Attributes], float]:
        return dict(self.measured)

    def health(self) -> Health:
        problems = {"dead": not self.alive, "starting": not self.started, "draining": self.draining or not self.accepting}
        return Health(
            started=self.started,
            alive=self.alive,
            ready=self.started and not problems["draining"],
            draining=problems["draining"],
            problems=tuple(problem for problem, there in problems.items() if there),
        )

    def _listener(self, name: str | None) -> None:
        if name is not None and name not in self.limits:
            raise NotFoundError("listener", name)

    def handler_processes(self) -> list[HandlerProcessStatus]:
        return self.handlers

    def _fail(self) -> None:
        if self.failure is not None:
            raise self.failure

    def processor_statuses(self) -> list[ProcessorStatus]:
        return [
            ProcessorStatus(slot=slot, pid=100 + slot, generation=1, state="running", restarts=0, heartbeat_age_ms=12 if slot == 0 else -1)
            for slot in range(self.processors)
        ]

    @staticmethod
    def aborted() -> ControlError:
        return AbortedError("processor 1 did not answer within 30 s", reason="PROCESSOR_SILENT", slot="1")
