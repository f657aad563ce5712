"""The parts of steering without processors. Limits, tap rules and the levels of the log are the real parts over ``FakeSupervisor``; the others are
fakes: rows in a dict, real cells, and errors on demand. They refuse what the real ones refuse: both run ``tests/conformance/test_control_plane.py``.
"""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from framegate.control.bounds import MAX_HOLDERS, rows_per_page
from framegate.control.errors import (
    AbortedError,
    AlreadyExistsError,
    ControlError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    Violation,
)
from framegate.control.events import Bus, Row, Subscription
from framegate.control.fleet.desired_state import DesiredState
from framegate.control.identity.users_file import name_fault
from framegate.control.logs import Levels
from framegate.control.meters import Meters
from framegate.control.rotation.rotation import Rotation
from framegate.control.rotation.tls_stores import TlsStores
from framegate.control.status import (
    RETIRED,
    Attributes,
    BrokerStatus,
    BuildInfo,
    CertificateStatus,
    DownEndpoint,
    DrainResult,
    HandlerProcessStatus,
    HandlerStatus,
    Health,
    Holder,
    ListenerStatus,
    Origin,
    Outcome,
    PoolShare,
    PoolStatus,
    ProcessorStatus,
    ReloadOutcome,
    TapStop,
    UpstreamStatus,
    UsersStatus,
    UserStatus,
)
from framegate.control.steering.brokers import Brokers
from framegate.control.steering.channels import Channels, Verb
from framegate.control.steering.drain import Drain
from framegate.control.steering.kafka_rules import RulesAboutKafka
from framegate.control.steering.limits import Limits
from framegate.control.steering.listeners import Listeners, Upstreams
from framegate.control.steering.pool import Pool, equal_shares, too_small
from framegate.control.steering.rows import Audit, LogRows
from framegate.control.steering.state import State
from framegate.control.steering.steering import Parts
from framegate.control.steering.taps import Taps
from framegate.control.steering.transactions import Transactions
from framegate.control.steering.users import Users
from framegate.proxy.auth.auth_requests import ScramCredential
from framegate.proxy.cells import CellLayout, CellReader, CellWriter, create
from framegate.proxy.config.limits import LimitsConfig, RateLimits
from framegate.proxy.config.model import (
    MAX_PROCESSORS,
    POOL_SIZE,
    AdminConfig,
    DrainAccept,
    HealthConfig,
    KafkaRules,
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
from framegate.proxy.server.messages import Change
from framegate.proxy.server.rows import OpenRow
from tests.fakes import rows
from tests.fakes.rows import OPENED_NS

__all__ = [
    "FakeAudit",
    "FakeCertificates",
    "FakeChannels",
    "FakeDrain",
    "FakeListeners",
    "FakePlane",
    "FakePool",
    "FakeRotation",
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
            ListenerConfig(name="kafka", address="127.0.0.1:0", upstream="brokers", protocol="kafka", kafka=KafkaRules()),
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


class FakePool(Pool):
    """Divides equally."""

    def __init__(self, fake: "FakePlane") -> None:
        self.fake = fake

    def least_share(self) -> int:
        return self.fake.pool // self.fake.processors

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


class FakeSupervisor:
    """The state that processors must have, without processors: a change is in force at once, or raises the plane's failure."""

    def __init__(self, fake: "FakePlane", config: ProxyConfig) -> None:
        self.fake = fake
        self.desired = DesiredState(config, {}, equal_shares(config.memory_pool.size, config.processors))
        self.slots = {number: SimpleNamespace(generation=1) for number in range(config.processors)}

    async def change(
        self, build: Callable[[int], Change], commit: Callable[[DesiredState], None], check: Callable[[], None], decided: Callable[[], None]
    ) -> None:
        self.fake._fail()
        check()
        commit(self.desired)
        decided()


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


class FakeBrokers(Brokers):
    """Those that a test gives."""

    def __init__(self, fake: "FakePlane") -> None:
        self.fake = fake

    async def statuses(self, upstream: str = "") -> list[BrokerStatus]:
        if upstream not in ("", *(item.name for item in self.fake.config.upstreams)):
            raise NotFoundError("upstream", upstream)
        return self.fake.brokers


def broker_status(node: int, **changes: Any) -> BrokerStatus:
    """A broker that is up, unless a change says otherwise."""
    given: dict[str, Any] = {
        "upstream": "brokers", "listener": "kafka", "node": node, "address": f"b{node}:9092", "advertised": f"edge:{9100 + node}", "rack": "",
        "state": "up", "reason": "", "connections": 0, **changes,
    }  # fmt: skip
    return BrokerStatus(**given)


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
        supervisor: Any = FakeSupervisor(self, config)
        self.desired: DesiredState = supervisor.desired
        self.rows: dict[int, OpenRow] = {}
        self.holders: list[Holder] = []
        self.levels = Levels()
        self.pool = config.memory_pool.size
        self.processors = config.processors
        self.size_origin: Origin = "configuration"
        self.processors_origin: Origin = "configuration"
        self.troubles: list[str] = []
        self.losing = False
        self.brokers: list[BrokerStatus] = []
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
        log: Any = SimpleNamespace(levels=self.levels, format="json", dropped=7)
        acceptor: Any = SimpleNamespace(set_limits=lambda limits: None)
        losses: Any = self
        transactions = Transactions(self._events, Meters())
        pool = FakePool(self)
        self.parts = Parts(
            state=self,
            events=self._events,
            audit=FakeAudit(self),
            log=LogRows(supervisor, log),
            channels=FakeChannels(self),
            limits=Limits(supervisor, acceptor, transactions, pool),
            kafka_rules=RulesAboutKafka(supervisor, transactions),
            pool=pool,
            taps=Taps(supervisor, transactions, lambda rules: None, losses),
            drain=FakeDrain(self),
            listeners=FakeListeners(self),
            upstreams=FakeUpstreams(self),
            brokers=FakeBrokers(self),
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
        return self.desired.config

    @property
    def limits(self) -> dict[str, int]:
        return {listener.name: listener.max_receive_size for listener in self.config.listeners}

    @property
    def quotas(self) -> dict[str, RateLimits]:
        return {listener.name: listener.limits for listener in self.config.listeners}

    @property
    def node_quotas(self) -> LimitsConfig:
        return self.config.limits

    @node_quotas.setter
    def node_quotas(self, limits: LimitsConfig) -> None:
        self.desired.config = dataclasses.replace(self.config, limits=limits)

    @property
    def tap_rules(self) -> list[TapRule]:
        return [] if self.config.tap is None else list(self.config.tap.rules)

    @tap_rules.setter
    def tap_rules(self, rules: Sequence[TapRule]) -> None:
        assert self.config.tap is not None, "there is a tap"
        self.desired.config = dataclasses.replace(self.config, tap=dataclasses.replace(self.config.tap, rules=tuple(rules)))

    def stop_rule(self, name: str, stop: TapStop) -> None:
        """A rule has turned itself off."""
        self.parts.taps._stops.setdefault(name, {})[stop.slot] = 1, stop

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
