"""The parts of steering without processes. Most are the real ones over ``FakeSupervisor``, whose processors have rows in a dict and real cells. The
state, users, certificates and audit rows are fakes, with errors on demand: they run ``tests/conformance/test_control_plane.py`` like the real ones.
"""

import dataclasses
import os
import pathlib
from array import array
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from framegate.control.accept.admission import Refusals
from framegate.control.configuration.child import Loaded
from framegate.control.configuration.difference import differences
from framegate.control.errors import (
    AbortedError,
    AlreadyExistsError,
    ControlError,
    EtagError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
    Violation,
)
from framegate.control.events import Bus, Row, Subscription
from framegate.control.fleet.desired_state import DesiredState
from framegate.control.fleet.supervisor import Supervisor
from framegate.control.identity.users_file import name_fault
from framegate.control.logs import Levels
from framegate.control.meters import Meters
from framegate.control.rotation.questions import answer
from framegate.control.rotation.rotation import Rotation
from framegate.control.rotation.source import Source
from framegate.control.rotation.tls_stores import TlsStores
from framegate.control.status import (
    RETIRED,
    Attributes,
    BrokerStatus,
    BuildInfo,
    CertificateStatus,
    ChannelVerb,
    DrainResult,
    HandlerProcessStatus,
    HandlerStatus,
    Health,
    Holder,
    Outcome,
    ProcessorStatus,
    ReloadOutcome,
    TapStop,
    UsersStatus,
    UserStatus,
)
from framegate.control.steering.brokers import Brokers
from framegate.control.steering.channels import TERMS, Channels, Terms
from framegate.control.steering.clients import Clients
from framegate.control.steering.configuration import Applied, Configuration
from framegate.control.steering.configuration_file import ConfigurationFile
from framegate.control.steering.drain import Drain
from framegate.control.steering.explanation import Explanations
from framegate.control.steering.filter import Filter
from framegate.control.steering.limits import Limits, RulesAboutKafka
from framegate.control.steering.listeners import Listeners, RefusedFrames, Upstreams
from framegate.control.steering.pool import Pool, equal_shares
from framegate.control.steering.problems import Watch
from framegate.control.steering.rows import Audit, LogRows, Place
from framegate.control.steering.sizes import Sizes
from framegate.control.steering.state import State
from framegate.control.steering.steering import Parts
from framegate.control.steering.taps import Taps
from framegate.control.steering.transactions import Changed, Transactions, etag_of
from framegate.control.steering.users import Users
from framegate.proxy.auth.auth_requests import ScramCredential
from framegate.proxy.cells import CellLayout, CellReader, CellWriter, create
from framegate.proxy.config.limits import LimitsConfig, ListenerLimits
from framegate.proxy.config.model import (
    AdminConfig,
    DrainAccept,
    HandlersConfig,
    HealthConfig,
    KafkaRules,
    ListenerConfig,
    MemoryPoolConfig,
    ProxyConfig,
    TapConfig,
    TapRule,
    UpstreamConfig,
)
from framegate.proxy.network.connection_id import format_connection_id, parse_connection_id, slot_of
from framegate.proxy.server.messages import Change
from framegate.proxy.server.protocol import Request
from framegate.proxy.server.rows import ClientRow, OpenRow
from tests.fakes import rows
from tests.fakes.rows import OPENED_NS

MIB = 1024 * 1024


def fake_config(admin: str, health: str | None = "127.0.0.1:0", tap: TapConfig | None = None) -> ProxyConfig:
    """Two listeners, one upstream."""
    return ProxyConfig(
        node="edge-1",
        listeners=(
            ListenerConfig(name="kafka", address="127.0.0.1:0", upstream="brokers", protocol="kafka", kafka=KafkaRules()),
            ListenerConfig(name="plain", address="127.0.0.1:0", upstream="brokers", limits=ListenerLimits(connections=10)),
        ),
        upstreams=(UpstreamConfig(name="brokers", endpoints=("broker:9092",)),),
        processors=2,
        admin=AdminConfig(address=admin),
        health=None if health is None else HealthConfig(address=health),
        memory_pool=MemoryPoolConfig(size=256 * MIB),
        tap=tap,
        handlers=HandlersConfig(path=(str(pathlib.Path(admin.removeprefix("unix:")).parent),)),
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
    mechanisms = {mechanism: item.iterations for mechanism, item in entry.items()}
    return UserStatus(name=name, mechanisms=mechanisms, etag=etag_of([item.salt.hex() for item in entry.values()]))


class FakeProcessor:
    """A processor of the plane, whose channels are rows in a dict. It does at once what it is asked."""

    def __init__(self, fake: "FakePlane", slot: int) -> None:
        self.fake = fake
        self.slot = slot

    async def request(self, request: Request[Any], timeout_ms: int) -> Any:
        command: Any = request.message
        if command["type"] in ("mute", "unmute", "close", "throttle"):
            return self.act(command)
        return getattr(self, command["type"])(command)

    def rows(self) -> list[OpenRow]:
        """Those of its slot; the last processor has those of all further slots, too."""
        last = max(self.fake._supervisor.slots)
        return [row for key, row in sorted(self.fake.rows.items()) if min(slot_of(key), last) == self.slot]

    def list(self, command: Any) -> Any:
        rows = [row for row in self.rows() if row["id"] > command["after"] and command["listener"] in (None, row["listener"])]
        page = rows[: command["limit"]]
        return {"rows": page, "next": page[-1]["id"] if len(rows) > len(page) else 0}

    def describe(self, command: Any) -> Any:
        return {"row": self.fake.rows.get(command["connection"])}

    def act(self, command: Any) -> Any:
        named = command.get("connections", ())
        affected = [row for row in self.rows() if row["id"] in named]
        for row in affected:
            if command["type"] == "mute":
                row.update(muted=["admin"], mute_reason=command["reason"])
            elif command["type"] == "unmute":
                row["muted"] = []
            elif command["type"] == "throttle":
                rates = {key: command.get(key, 0) for key in ("request_rate", "response_rate")}
                row["throttle"] = {**rates, "reason": command["reason"]}
            else:
                del self.fake.rows[row["id"]]
                self.fake.tell(closed_row(format_connection_id(row["id"]), "admin", row["listener"], detail=command["reason"]))
        missing = [channel for channel in named if channel not in [row["id"] for row in affected]]
        return {"affected": [row["id"] for row in affected], "missing": missing, "undone": []}

    def holders(self, command: Any) -> Any:
        self.fake._fail()
        rows = [{**dataclasses.asdict(holder), "id": holder.channel} for holder in self.fake.holders if slot_of(holder.channel) == self.slot]
        return {"rows": rows}

    def clients(self, command: Any) -> Any:
        clients, self.fake.client_rows = self.fake.client_rows, []
        totals = [{**row, "client": row["client"][:1]} for row in clients]
        return {"rows": clients, "totals": totals}

    def upstreams(self, command: Any) -> Any:
        up = {"endpoint": "10.1.0.1:9092", "state": "up", "reason": "", "detail": "", "since_ns": 0, "out": 0}
        up |= {"connections": 7, "weight": 2, "zone": "a", "latency_ns": 3_000_000}
        down = {"endpoint": "10.1.0.2:9092", "broker": 3, "state": "down", "reason": "refused", "detail": "Connection refused"}
        down |= {"since_ns": 1_000_000_000, "out": 1, "connections": 0, "weight": 1, "zone": "", "latency_ns": 0}
        return {"rows": [{"upstream": upstream.name, **row} for upstream in self.fake.config.upstreams for row in (up, down)]}


class NotedChannels(Channels):
    """The real part, whose changes are noted, or fail."""

    def __init__(self, fake: "FakePlane", supervisor: Any, transactions: Transactions) -> None:
        super().__init__(supervisor, transactions)
        self.fake = fake

    async def act(self, verb: ChannelVerb, channels: Sequence[int] | Filter, terms: Terms = TERMS) -> Outcome:
        chosen = channels.text if isinstance(channels, Filter) else tuple(channels)
        self.fake.asked.append((verb, chosen, terms.reason))
        self.fake._fail()
        return await super().act(verb, channels, terms)


class NotedDrain(Drain):
    """The real part, whose runs are noted, or fail."""

    fake: "FakePlane"

    async def run(
        self, timeout_ms: int | None = None, *, wait: bool = True, accept: DrainAccept | None = None, by: str = "", reason: str = ""
    ) -> DrainResult:
        self.fake.asked.append(("drain", timeout_ms, wait, accept, by, reason))
        self.fake._fail()
        return await super().run(timeout_ms, wait=wait, accept=accept, by=by, reason=reason)


class FakeSupervisor:
    """The state that processors must have, over processors of this process: a change is in force at once, or raises the plane's failure."""

    def __init__(self, fake: "FakePlane", config: ProxyConfig) -> None:
        self.fake = fake
        self.desired = DesiredState(config, {}, equal_shares(config.memory_pool.size, config.processors))
        self.slots: dict[int, SimpleNamespace] = {}
        self.connections = SimpleNamespace(count_handed=lambda: None)

    @property
    def running(self) -> list[FakeProcessor]:
        return [FakeProcessor(self.fake, slot) for slot in self.slots]

    @property
    def cells(self) -> list[tuple[int, CellReader]]:
        return self.fake.cells

    async def change(
        self,
        build: Callable[[int], Change],
        commit: Callable[[DesiredState], None],
        check: Callable[[], None] = lambda: None,
        decided: Callable[[], None] = lambda: None,
        done: Callable[[], None] = lambda: None,
    ) -> None:
        self.fake._fail()
        check()
        commit(self.desired)
        decided()
        done()

    change_config: Any = Supervisor.change_config

    async def start_slots(self, numbers: Sequence[int], *, held: bool) -> None:
        self.fake._fail()
        for slot in numbers:
            self.fake.hire(slot)
            self.slots[slot].held = held

    def release_slots(self, numbers: Sequence[int]) -> None:
        for slot in numbers:
            self.slots[slot].held = False

    def leave_slots(self, numbers: Sequence[int]) -> None:
        for slot in numbers:
            self.slots[slot].leaving = True

    async def remove_slots(self, numbers: Sequence[int], timeout_ms: int) -> None:
        await self.discard_slots(numbers)

    async def discard_slots(self, numbers: Sequence[int]) -> None:
        for slot in numbers:
            del self.slots[slot]

    async def drain_slots(self, numbers: Sequence[int], timeout_ms: int, *, wait: bool) -> list[int]:
        if wait:
            self.fake.rows.clear()
        return []

    async def lead_in_slots(self, delay_ms: int, timeout_ms: int) -> None:
        """Connections stay."""

    async def drained(self) -> None:
        """At once."""


class FakeListening:
    """An open listener of the configuration."""

    def __init__(self, fake: "FakePlane", name: str, address: str) -> None:
        self.fake = fake
        self.name = name
        self.address = address

    @property
    def open(self) -> int:
        return sum(row["listener"] == self.name for row in self.fake.rows.values())

    @property
    def accepting(self) -> bool:
        return self.fake.accepting


class FakeAcceptor:
    """Listens on ports that nobody reaches."""

    def __init__(self, fake: "FakePlane") -> None:
        self.fake = fake
        names = [listener.name for listener in fake.config.listeners]
        self.listeners = {name: FakeListening(fake, name, f"127.0.0.1:{9093 + number}") for number, name in enumerate(names)}

    @property
    def open(self) -> int:
        return sum(item.open for item in self.listeners.values())

    def set_limits(self, limits: Any, protected: str | None = None) -> None:
        """Nobody connects."""

    def stop(self) -> None:
        self.fake.accepting = False


class FakeBrokers(Brokers):
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
    def __init__(self, fake: "FakePlane") -> None:
        self.fake = fake

    def statuses(self, rotation: Rotation) -> list[CertificateStatus]:
        return list(self.fake.certificates)


class FakeRotation(Rotation):
    """Outcomes that a test gives."""

    def __init__(self, fake: "FakePlane") -> None:
        self.fake = fake
        self.sources: list[Source] = []

    def watch(self, source: Source) -> None:
        self.sources.append(source)

    async def reload(self) -> list[ReloadOutcome]:
        self.fake.asked.append(("reload",))
        self.fake._fail()
        return list(self.fake.outcomes)


class FakeConfiguration(Configuration):
    """Puts any configuration in force at once, but for what needs a restart."""

    def __init__(self, fake: "FakePlane") -> None:
        self.fake = fake

    @property
    def etag(self) -> str:
        return etag_of(self.fake.config)

    async def apply(self, loaded: Loaded, etag: str = "", *, validate_only: bool = False) -> Applied:
        self.fake._fail()
        before, after = self.fake.config, loaded.config
        if etag and etag != self.etag:
            raise EtagError("configuration", before.node)
        found = differences(before, after)
        keys = ",".join(item.path for item in found if item.effect == "restart")
        if keys:
            raise FailedPreconditionError(f"nothing is applied: a restart is needed to change {keys}", reason="NEEDS_RESTART", keys=keys)
        if not validate_only:
            self.fake.desired.config = after
        return Applied(before, after, found)


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
        self,
        listener: str,
        name: str,
        credentials: Mapping[str, ScramCredential],
        etag: str = "",
        *,
        create: bool,
        replace: bool,
        validate_only: bool = False,
    ) -> Changed[UserStatus | None]:
        users = self._of(listener)
        before = _user(name, users[name]) if name in users else None
        if etag and before is not None and etag != before.etag:
            raise EtagError("user", name)
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
        return Changed(before, _user(name, credentials))

    async def delete(self, listener: str, name: str, etag: str = "", *, validate_only: bool = False) -> Changed[UserStatus | None]:
        users = self._of(listener)
        if name not in users:
            raise NotFoundError("user", name)
        before = _user(name, users[name])
        if etag and etag != before.etag:
            raise EtagError("user", name)
        self.fake._fail()
        if not validate_only:
            del users[name]
        return Changed(before, None)


class FakeAudit(Audit):
    """Rows in a list."""

    def __init__(self, fake: "FakePlane") -> None:
        self.fake = fake

    @property
    def warning(self) -> str:
        return "" if self.fake.audit_failure is None else str(self.fake.audit_failure)

    async def reserve(self, *, urgent: bool = False) -> Place:
        if self.fake.audit_failure is not None and not urgent:
            raise self.fake.audit_failure
        self.fake.audit_places += 1
        return Place(blocked=self.fake.audit_failure)

    def publish(self, record: Row, place: Place) -> None:
        assert self.fake.audit_places > 0, "a place is taken before a change is made"
        self.fake.audit_places -= 1
        self.fake.audits.append(record)
        self.fake._events.publish(record, reserved=True)

    async def written(self) -> None:
        """At once."""


async def _answered(question: Row) -> Row:
    """A question of the validator process, answered in this one."""
    return answer(question)


class FakePlane(State):
    """Set ``failure`` to have every change raise it; look at ``audits`` and ``asked`` afterwards."""

    def __init__(self, config: ProxyConfig) -> None:
        supervisor: Any = FakeSupervisor(self, config)
        self.desired: DesiredState = supervisor.desired
        self.rows: dict[int, OpenRow] = {}
        self.holders: list[Holder] = []
        self.client_rows: list[ClientRow] = []
        self.now_ns = OPENED_NS + 10 * 10**9
        self.levels = Levels()
        self.troubles: list[str] = []
        self.losing = False
        self.brokers: list[BrokerStatus] = []
        self.certificates: list[CertificateStatus] = []
        self.outcomes: list[ReloadOutcome] = []
        self.users: dict[str, dict[str, Mapping[str, ScramCredential]]] = {"kafka": {}}  # of listeners that have a file of them
        self.users_error = ""
        self.handlers: list[HandlerProcessStatus] = []
        self.accepting = True
        self.started = True
        self.alive = True
        self.failure: Exception | None = None
        self.audits: list[Row] = []
        self.audit_places = 0
        self.audit_failure: UnavailableError | None = None
        self.asked: list[tuple[object, ...]] = []
        self.failures: list[Exception] = []
        self._events = Bus(on_failure=self.failures.append)
        self.written = Bus(on_failure=self.failures.append)
        self.measured: dict[tuple[str, Attributes], float] = {}
        self._supervisor = supervisor
        self._layout = CellLayout.of(config)
        self._descriptors: list[int] = []
        self.writers: list[CellWriter] = []
        self._readers: list[CellReader] = []
        self._slots: dict[int, CellReader] = {}
        for slot in range(config.processors):
            self.hire(slot)
        meters = Meters()
        self.file = pathlib.Path(config.admin.address.removeprefix("unix:")).with_name("framegate.yaml")
        loaded = Loaded(config, [], {}, {}, str(self.file))
        log: Any = SimpleNamespace(levels=self.levels, format="json", dropped=7)
        acceptor: Any = FakeAcceptor(self)
        losses: Any = self
        task_monitor: Any = SimpleNamespace(repeat=lambda *arguments: SimpleNamespace(cancel=lambda: None))
        resolver: Any = SimpleNamespace(current=defaultdict(lambda: SimpleNamespace(texts=lambda: ("10.1.0.1:9092",), error="")))
        transactions = Transactions(self._events, meters)
        pool = Pool(supervisor, transactions, log, task_monitor)
        listeners = Listeners(supervisor, acceptor)
        drain = NotedDrain(supervisor, acceptor, listeners, pool, transactions, self._events)
        drain.fake = self
        channels, upstreams = NotedChannels(self, supervisor, transactions), Upstreams(supervisor, resolver, log)
        engine, audit = FakeConfiguration(self), FakeAudit(self)
        self.parts = Parts(
            state=self,
            events=self._events,
            rows=self.written,
            audit=audit,
            log=LogRows(supervisor, log),
            channels=channels,
            clients=Clients(supervisor, Refusals(), meters),
            explanations=Explanations(supervisor, channels, listeners, upstreams, pool, lambda: self.now_ns),
            refused_frames=RefusedFrames(supervisor),
            sizes=Sizes(lambda: supervisor.cells),
            limits=Limits(supervisor, acceptor, transactions, pool),
            kafka_rules=RulesAboutKafka(supervisor, transactions),
            pool=pool,
            taps=Taps(supervisor, transactions, lambda rules: None, losses),
            drain=drain,
            listeners=listeners,
            upstreams=upstreams,
            brokers=FakeBrokers(self),
            certificates=FakeCertificates(self),
            rotation=FakeRotation(self),
            users=FakeUsers(self),
            configuration=engine,
            configuration_file=ConfigurationFile(
                loaded,
                engine,
                lambda: self.config,
                pool,
                _answered,
                Rotation(config.rotation, self._events, meters, task_monitor),
                audit,
                self._events,
                meters,
            ),
            watch=Watch(),
            ask=_answered,
        )

    def close(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())

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
    def pool(self) -> int:
        return self.config.memory_pool.size

    @pool.setter
    def pool(self, size: int) -> None:
        self.desired.config = dataclasses.replace(self.config, memory_pool=dataclasses.replace(self.config.memory_pool, size=size))
        self.desired.shares = equal_shares(size, self.processors)

    @property
    def processors(self) -> int:
        return len(self._supervisor.slots)

    @property
    def draining(self) -> bool:
        return self.parts.pool.draining

    @draining.setter
    def draining(self, there: bool) -> None:
        self.parts.pool.draining = there

    def limit(self, size: int) -> None:
        """Set the largest frame of the listener ``kafka``, as by hand."""
        self.desired.config = self.limited(size)

    def limited(self, size: int) -> ProxyConfig:
        """The configuration with another largest frame of the listener ``kafka``."""
        first, *others = self.config.listeners
        return dataclasses.replace(self.config, listeners=(dataclasses.replace(first, max_receive_size=size), *others))

    @property
    def limits(self) -> dict[str, int]:
        return {listener.name: listener.max_receive_size for listener in self.config.listeners}

    @property
    def quotas(self) -> dict[str, ListenerLimits]:
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
        if slot == len(self._readers):
            self._descriptors.append(create(self._layout))
            self.writers.append(CellWriter(self._descriptors[slot], self._layout))
            self._readers.append(CellReader(self._descriptors[slot], self._layout))
            image = array("q", self.writers[slot].start(os.getpid() if slot == 0 else 0, 1, 1))
            for value, name in (
                (2, ("usage", "frames", "begun")),
                (2, ("usage", "frames", "pending")),
                (1, ("usage", "frames", "tls")),
                (slot, ("waiting", "frames")),
            ):
                image[self._layout.index(f"framegate.memory_pool.{name[0]}", *name[1:])] = value
            image[self._layout.index("framegate.queue.usage", "tap")] = 7
            self.writers[slot].publish(image)
        self._slots[slot] = self._readers[slot]
        self._supervisor.slots[slot] = SimpleNamespace(generation=1, wanted=True, held=False, leaving=False)

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
