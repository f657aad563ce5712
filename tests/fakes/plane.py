"""A control plane without processors: rows in a dict, real cells, and errors on demand. What it refuses is what ``Steering`` refuses: both run
the suite ``tests/conformance/test_control_plane.py``.
"""

import dataclasses
import os
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from control.configuration.limit_rules import limit_faults, quota_faults
from control.configuration.tap_rule import tap_rule_faults
from control.errors import (
    AbortedError,
    AlreadyExistsError,
    ControlError,
    EtagError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    Violation,
)
from control.events import Bus, Subscription
from control.identity.users_file import name_fault
from control.logs import Levels
from control.plane import (
    MAX_HOLDERS,
    RETIRED,
    Attributes,
    BuildInfo,
    CertificateStatus,
    ControlPlane,
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
    Row,
    TapRuleStatus,
    TapStop,
    UpstreamStatus,
    UsersStatus,
    UserStatus,
    rows_per_page,
)
from control.steering.pool import equal_shares, too_small
from proxy.auth.questions import ScramCredential
from proxy.cells import CellLayout, CellReader, CellWriter, create
from proxy.config.limits import RateLimits
from proxy.config.log import LogLevel
from proxy.config.model import (
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
from proxy.network.connection_id import format_connection_id, parse_connection_id
from proxy.server.rows import OpenRow
from tests.fakes import rows
from tests.fakes.rows import OPENED_NS

__all__ = ["FakePlane", "certificate", "channel_row", "closed_row", "fake_config", "handler_process", "holder"]

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
    echo = HandlerStatus(listener="plain", handler="proxy.handler.echo:echo", directions=("request",), description="Answers every frame.")
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


class FakePlane(ControlPlane):
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

    async def list_channels(self, listener: str | None = None, page_size: int = 0, page_token: str = "") -> tuple[list[OpenRow], str]:
        self._listener(listener)
        if page_token and not page_token.isdigit():
            raise InvalidArgumentError([Violation("page_token", "is not ours")])
        rows = [row for _, row in sorted(self.rows.items()) if listener in (None, row["listener"])]
        start = int(page_token or 0)
        end = start + rows_per_page(page_size)
        return rows[start:end], str(end) if end < len(rows) else ""

    async def describe_channel(self, channel: int) -> OpenRow:
        if channel not in self.rows:
            raise NotFoundError("channel", format_connection_id(channel))
        return self.rows[channel]

    async def _change(self, name: str, channels: Sequence[int], listener: str | None, reason: str, principal: str | None) -> Outcome:
        self.asked.append((name, tuple(channels), listener if principal is None else f"principal {principal}", reason))
        self._fail()
        if bool(channels) + (listener is not None) + (principal is not None) != 1:
            raise InvalidArgumentError([Violation("channels", "name channels, a listener or a principal, and one of these only")])
        self._listener(listener)
        if len(channels) == 1 and channels[0] not in self.rows:
            raise NotFoundError("channel", format_connection_id(channels[0]))
        wanted = list(channels) or [key for key, row in self.rows.items() if row["listener"] == listener or row["principal"] == principal]
        return Outcome(
            affected=tuple(channel for channel in wanted if channel in self.rows),
            missing=tuple(channel for channel in wanted if channel not in self.rows),
        )

    def _fail(self) -> None:
        if self.failure is not None:
            raise self.failure

    async def mute_channels(
        self, channels: Sequence[int] = (), listener: str | None = None, reason: str = "", principal: str | None = None
    ) -> Outcome:
        outcome = await self._change("mute", channels, listener, reason, principal)
        for channel in outcome.affected:
            self.rows[channel].update(muted=["admin"], mute_reason=reason)
        return outcome

    async def unmute_channels(
        self, channels: Sequence[int] = (), listener: str | None = None, reason: str = "", principal: str | None = None
    ) -> Outcome:
        outcome = await self._change("unmute", channels, listener, reason, principal)
        for channel in outcome.affected:
            self.rows[channel]["muted"] = []
        return outcome

    async def close_channels(
        self, channels: Sequence[int] = (), listener: str | None = None, reason: str = "", principal: str | None = None
    ) -> Outcome:
        outcome = await self._change("close", channels, listener, reason, principal)
        for channel in outcome.affected:
            row = self.rows.pop(channel)
            self.tell(closed_row(format_connection_id(channel), "admin", row["listener"], detail=reason))
        return outcome

    async def get_limits(self, listener: str | None = None) -> list[Limit]:
        self._listener(listener)
        return [self._limit(name) for name in self.limits if listener in (None, name)]

    def _limit(self, listener: str) -> Limit:
        return Limit(listener=listener, max_receive_size=self.limits[listener], quotas=self.quotas[listener])

    @staticmethod
    def _check_share(size: int, count: int, largest: int) -> None:
        if size // count < largest:
            raise too_small(size // count, largest)

    def _largest(self) -> int:
        whole = [whole_request(self.limits[item.name], forwarding_of(item).requests) for item in self._config.listeners]
        return max(*whole, largest_whole(self._config)[1])

    async def set_limit(self, listener: str, max_receive_size: int | None = None, quotas: Mapping[str, int] | None = None) -> Limit:
        self._fail()
        self._listener(listener)
        size = self.limits[listener] if max_receive_size is None else max_receive_size
        self._judge_quotas(quotas or {})
        if not MAX_RECEIVE_SIZE.takes(size) or (max_receive_size is None and not quotas):
            raise InvalidArgumentError([Violation("max_receive_size", f"must be from {MAX_RECEIVE_SIZE.least} to {MAX_RECEIVE_SIZE.most} bytes")])
        forward = next(forwarding_of(item).requests for item in self._config.listeners if item.name == listener)
        self._check_share(self.pool, self.processors, whole_request(size, forward))
        self.limits[listener] = size
        self.quotas[listener] = dataclasses.replace(self.quotas[listener], **(quotas or {}))
        return self._limit(listener)

    @staticmethod
    def _judge_quotas(quotas: Mapping[str, int]) -> None:
        faults = quota_faults(quotas)
        if faults:
            raise InvalidArgumentError([Violation(*fault) for fault in faults])

    async def get_node_limits(self) -> NodeLimits:
        return NodeLimits(quotas=self.node_quotas, etag=f"etag-{hash(self.node_quotas)}")

    async def set_node_limits(self, changes: Mapping[str, Any], etag: str = "") -> NodeLimits:
        self._fail()
        if etag and etag != (await self.get_node_limits()).etag:
            raise EtagError("node limits", self._config.node)
        if not changes or "protected_listener" in changes:
            raise InvalidArgumentError([Violation("node_limits", "cannot be changed so")])
        self._judge_quotas(changes.get("per_address", {}))
        values = dict(changes)
        if "per_address" in values:
            values["per_address"] = dataclasses.replace(self.node_quotas.per_address, **values["per_address"])
        quotas = dataclasses.replace(self.node_quotas, **values)
        faults = limit_faults(quotas, [item.name for item in self._config.listeners])
        if faults:
            raise InvalidArgumentError([Violation(*fault) for fault in faults])
        self.node_quotas = quotas
        return await self.get_node_limits()

    async def get_log(self) -> LogStatus:
        return LogStatus(format="json", level=self.levels.level, silenced=tuple(sorted(self.levels.silenced)), dropped=7)

    async def set_log(self, level: LogLevel | None = None, events: Mapping[str, bool] | None = None) -> LogStatus:
        self._fail()
        self.levels.change(level, events or {})
        self._config = dataclasses.replace(self._config, log=dataclasses.replace(self._config.log, level=self.levels.level))
        return await self.get_log()

    async def get_pool(self) -> PoolStatus:
        shares = tuple(
            PoolShare(slot=slot, share=share, begun=2, pending=2, tls=1, tap=7, waiting=slot)
            for slot, share in equal_shares(self.pool, self.processors).items()
        )
        config = self._config
        tap_limit = config.tap.queue_size * self.processors if config.tap else 0
        memory = config.memory_pool
        return PoolStatus(
            kind=memory.kind,
            size=self.pool,
            shares=shares,
            processors=self.processors,
            tap_limit=tap_limit,
            guaranteed=memory.shares,
            size_origin=self.size_origin,
            processors_origin=self.processors_origin,
        )

    async def top_holders(self, count: int) -> list[Holder]:
        self._fail()
        if not 1 <= count <= MAX_HOLDERS:
            raise InvalidArgumentError([Violation("count", f"must be from 1 to {MAX_HOLDERS}")])
        return sorted(self.holders, key=lambda holder: -holder.bytes)[:count]

    async def set_pool_size(self, size: int) -> PoolStatus:
        self._fail()
        if not POOL_SIZE.takes(size):
            raise InvalidArgumentError([Violation("size", "out of range")])
        self._check_share(size, self.processors, self._largest())
        self.pool, self.size_origin = size, "operator"
        return await self.get_pool()

    async def set_processors(self, count: int) -> PoolStatus:
        self._fail()
        if not 1 <= count <= MAX_PROCESSORS:
            raise InvalidArgumentError([Violation("processors", f"must be from 1 to {MAX_PROCESSORS}")])
        if self.draining or not self.accepting:
            raise FailedPreconditionError("the proxy drains", reason="DRAINING")
        self._check_share(self.pool, count, self._largest())
        self.processors, self.processors_origin = count, "operator"
        return await self.get_pool()

    def _tap_status(self, rule: TapRule) -> TapRuleStatus:
        stops = (self.tap_stops[rule.name],) if rule.name in self.tap_stops else ()
        return TapRuleStatus(rule=rule, etag=f"{hash(rule):x}", expired=0 < rule.expires_ns <= time.time_ns(), stops=stops)

    def tap_troubles(self) -> list[str]:
        return self.troubles

    async def list_tap_rules(self) -> list[TapRuleStatus]:
        return [self._tap_status(rule) for rule in self.tap_rules]

    def _tap_rule(self, name: str, etag: str = "") -> TapRuleStatus:
        found = [self._tap_status(rule) for rule in self.tap_rules if rule.name == name]
        if self._config.tap is None:
            raise FailedPreconditionError("there is no tap", reason="NO_TAP")
        if not found:
            raise NotFoundError("tap rule", name)
        if etag not in ("", found[0].etag):
            raise EtagError("tap rule", name)
        return found[0]

    def _put_tap_rule(self, rule: TapRule, before: str, validate_only: bool) -> TapRuleStatus:
        rest = [item for item in self.tap_rules if item.name != rule.name]
        names = [item.name for item in rest]
        if before and before not in names:
            raise NotFoundError("tap rule", before)
        faults = tap_rule_faults(rule, {item.name: item.protocol == "kafka" for item in self._config.listeners})
        if faults:
            raise InvalidArgumentError([Violation(*fault) for fault in faults])
        if not validate_only:
            rest.insert(names.index(before) if before else len(rest), rule)
            self._keep_tap_rules(rest, rule.name)
        return self._tap_status(rule)

    def _keep_tap_rules(self, rules: list[TapRule], changed: str) -> None:
        self.tap_rules = [rule for rule in rules if rule.name == changed or not self._tap_status(rule).expired]
        self.tap_stops.pop(changed, None)

    async def create_tap_rule(self, rule: TapRule, before: str = "", *, validate_only: bool = False) -> TapRuleStatus:
        self._fail()
        try:
            if not self._tap_rule(rule.name).expired:
                raise AlreadyExistsError("tap rule", rule.name, "tap_rule.name")
        except NotFoundError:
            pass
        return self._put_tap_rule(rule, before, validate_only)

    async def update_tap_rule(
        self, name: str, changes: Mapping[str, Any], before: str | None = None, etag: str = "", *, validate_only: bool = False
    ) -> TapRuleStatus:
        self._fail()
        rule = dataclasses.replace(self._tap_rule(name, etag).rule, **changes)
        if before in (None, name):
            names = [item.name for item in self.tap_rules] + [""]
            before = names[names.index(name) + 1]
        assert before is not None
        return self._put_tap_rule(rule, before, validate_only)

    async def delete_tap_rule(self, name: str, etag: str = "", *, validate_only: bool = False) -> None:
        self._fail()
        self._tap_rule(name, etag)
        if not validate_only:
            self._keep_tap_rules([rule for rule in self.tap_rules if rule.name != name], name)

    async def drain(
        self, timeout_ms: int | None = None, *, wait: bool = True, accept: DrainAccept | None = None, by: str = "", reason: str = ""
    ) -> DrainResult:
        self.asked.append(("drain", timeout_ms, wait, accept, by.partition(",")[0], reason))
        self._fail()
        if timeout_ms is not None and not 0 <= timeout_ms <= 3_600_000:
            raise InvalidArgumentError([Violation("timeout", "out of range")])
        ends = wait or timeout_ms is not None
        if accept == "until_stop" and ends:
            raise InvalidArgumentError([Violation("accept", "has no end to wait for")])
        self.draining = True
        if (accept or ("refuse" if ends else self._config.drain.accept)) == "until_stop":
            return DrainResult(closed=0, open=len(self.rows))
        self.accepting = False
        closed = len(self.rows) if wait else 0
        if wait:
            self.rows.clear()
        return DrainResult(closed=closed, open=len(self.rows))

    async def list_listeners(self) -> list[ListenerStatus]:
        return [
            ListenerStatus(
                name=listener.name,
                address=f"127.0.0.1:{9093 + number}",
                upstream=listener.upstream or "",
                handler=listener.handler or "",
                protocol=listener.protocol,
                framing=listener.framing,
                tls=listener.tls is not None,
                max_receive_size=self.limits[listener.name],
                max_connections=listener.limits.connections,
                connections=sum(row["listener"] == listener.name for row in self.rows.values()),
                accepting=self.accepting,
                forwarding=forwarding_of(listener),
            )
            for number, listener in enumerate(self._config.listeners)
        ]

    async def list_certificates(self) -> list[CertificateStatus]:
        return list(self.certificates)

    def _users(self, listener: str) -> dict[str, Mapping[str, ScramCredential]]:
        self._listener(listener)
        if listener not in self.users:
            raise FailedPreconditionError("no file of users", reason="NO_USERS_FILE", listener=listener)
        return self.users[listener]

    async def list_users(self, listener: str) -> UsersStatus:
        return UsersStatus(users=tuple(_user(name, entry) for name, entry in self._users(listener).items()), error=self.users_error)

    async def create_user(self, listener: str, name: str, credentials: Mapping[str, ScramCredential], *, validate_only: bool = False) -> UserStatus:
        users = self._users(listener)
        if name in users:
            raise AlreadyExistsError("user", name, "user.name")
        return self._put(users, name, credentials, validate_only)

    async def update_user(
        self, listener: str, name: str, credentials: Mapping[str, ScramCredential], *, allow_missing: bool = False, validate_only: bool = False
    ) -> UserStatus:
        users = self._users(listener)
        if name not in users and not allow_missing:
            raise NotFoundError("user", name)
        return self._put(users, name, credentials, validate_only)

    def _put(
        self, users: dict[str, Mapping[str, ScramCredential]], name: str, credentials: Mapping[str, ScramCredential], validate_only: bool
    ) -> UserStatus:
        fault = name_fault(name)
        if fault is not None:
            raise InvalidArgumentError([Violation("user.name", fault)])
        self._fail()
        if not validate_only:
            users.pop(name, None)
            users[name] = credentials
        return _user(name, credentials)

    async def delete_user(self, listener: str, name: str, *, validate_only: bool = False) -> None:
        users = self._users(listener)
        if name not in users:
            raise NotFoundError("user", name)
        self._fail()
        if not validate_only:
            del users[name]

    async def reload(self) -> list[ReloadOutcome]:
        self.asked.append(("reload",))
        self._fail()
        return list(self.outcomes)

    async def list_upstreams(self) -> list[UpstreamStatus]:
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
            for upstream in self._config.upstreams
        ]

    async def status(self) -> list[ProcessorStatus]:
        return [
            ProcessorStatus(slot=slot, pid=100 + slot, generation=1, state="running", restarts=0, heartbeat_age_ms=12 if slot == 0 else -1)
            for slot in range(self.processors)
        ]

    def subscribe(self, names: Collection[str] = (), after: int | None = None) -> Subscription:
        return self._events.subscribe(names, after)

    def reserve_audit(self) -> None:
        if self.audit_failure is not None:
            raise self.audit_failure
        self.audit_places += 1

    def audit(self, record: Row) -> None:
        assert self.audit_places > 0, "a place is taken before a change is made"
        self.audit_places -= 1
        self.audits.append(record)
        self._events.publish({"event": "audit", **record}, reserved=True)

    @staticmethod
    def aborted() -> ControlError:
        return AbortedError("processor 1 did not answer within 30 s", reason="PROCESSOR_SILENT", slot="1")
