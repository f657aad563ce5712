"""The control plane over running processors: what ``control.plane`` promises, each part of it done by the module that has its name."""

import asyncio
import dataclasses
import importlib.metadata
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from control.errors import UnavailableError
from control.events import Bus, Subscription
from control.fleet.supervisor import Supervisor
from control.guard import Guard
from control.intake.acceptor import Acceptor
from control.intake.resolver import Resolver
from control.logs import RowLog
from control.meters import Meters
from control.plane import (
    Attributes,
    BuildInfo,
    CertificateStatus,
    ControlPlane,
    DrainResult,
    HandlerProcessStatus,
    Health,
    Holder,
    Limit,
    ListenerStatus,
    LogStatus,
    NodeLimits,
    Outcome,
    PoolStatus,
    ProcessorStatus,
    ReloadOutcome,
    Row,
    TapRuleStatus,
    UpstreamStatus,
    UsersStatus,
    UserStatus,
)
from control.rotation.rotation import Rotation
from control.rotation.tls_stores import TlsStores
from control.steering.access import AccessRows
from control.steering.channels import Channels
from control.steering.drain import Drain
from control.steering.eviction import Eviction
from control.steering.limits import Limits
from control.steering.listeners import Listeners
from control.steering.pool import Pool
from control.steering.rates import Rates
from control.steering.sizing import Chosen, Sizing
from control.steering.tap_losses import TapLosses
from control.steering.taps import MAX_RULES, STOPPED_EVENT, Rules, Taps
from control.steering.transactions import Transactions
from control.steering.upstreams import Upstreams
from control.steering.users import Users
from proxy.cells import CellReader
from proxy.cells.metrics import PROBE
from proxy.config.log import LogLevel
from proxy.config.model import MAX_PROCESSORS, DrainAccept, ProxyConfig, TapRule
from proxy.server.rows import OpenRow

if TYPE_CHECKING:
    from control.fleet.handlers import Handlers
    from control.fleet.identity import Identity
    from proxy.auth.questions import ScramCredential

__all__ = ["Steering"]

ALIVE_MS: Final = 5_000


class Steering(ControlPlane):
    """The one implementation. ``acceptor.listeners`` and ``supervisor.desired`` are the truth; nothing is kept twice.

    Args:
        tapped: see ``Taps``.
        rotation, certificates: what is watched, and what is in force of it.
        handlers: the handler processes, where a listener has a handler.
        identity: who answers authenticators, where there are any.
        chosen: what was chosen by what the container allows, where something was.
        tap_low: why the tap's disk is about to be full, in words; empty while it is not.

    Attributes:
        pool, upstreams: what changes without a call, too: shares move to where they are needed, and names get new addresses.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        acceptor: Acceptor,
        resolver: Resolver,
        meters: Meters,
        log: RowLog,
        events: Bus,
        guard: Guard,
        tapped: Callable[[Rules], None],
        rotation: Rotation,
        certificates: TlsStores,
        handlers: "Handlers | None" = None,
        identity: "Identity | None" = None,
        chosen: Chosen | None = None,
        tap_low: Callable[[], str] = str,
    ) -> None:
        self._supervisor = supervisor
        self._meters = meters
        self._log = log
        self._events = events
        self._started_ns = time.time_ns()
        self._serving = False
        self._guard = guard
        self._handlers = handlers
        self._rotation = rotation
        self._certificates = certificates
        self._transactions = Transactions(events)
        self.pool = Pool(supervisor, self._transactions, meters, log, guard)
        self._sizing = None if chosen is None else Sizing(self.pool, lambda: supervisor.desired.config, chosen, events, log, guard)
        self._rates = Rates(supervisor, guard)
        self.upstreams = Upstreams(supervisor, resolver, log)
        self._listeners = Listeners(supervisor, acceptor)
        self._channels = Channels(supervisor, self._transactions)
        self._limits = Limits(supervisor, acceptor, self._transactions, meters, self.pool)
        every_ms = supervisor.desired.config.log.access.every_ms
        self._access = AccessRows(supervisor, every_ms, log, guard) if every_ms else None
        self._eviction = Eviction(supervisor, acceptor, log, guard)
        tap = supervisor.desired.config.tap
        self._losses = None if tap is None else TapLosses(lambda: supervisor.cells, log, tap.directory, tap_low)
        self._taps = Taps(supervisor, self._transactions, meters, tapped, lambda: self._losses is not None and self._losses.losing)
        self._users = Users(supervisor, self._transactions, rotation, identity)
        self._drain = Drain(supervisor, acceptor, self._listeners, self.pool, self._transactions, events)
        self._tap_events = events.subscribe((STOPPED_EVENT,), max_events=MAX_RULES * MAX_PROCESSORS)
        self._following = asyncio.create_task(self._tap_events.each(self._taps.note))
        self._ticker = asyncio.create_task(guard.job("loop", ALIVE_MS / 1000).keep_going(self._tick))
        meters.gauge("config.revision", lambda: float(supervisor.desired.revision))

    async def _tick(self) -> None:
        await asyncio.sleep(0.5)
        if self._losses is not None:
            self._losses.look()

    def tell_lost_frames(self) -> None:
        """The processors have ended: what the tap lost until then is told."""
        if self._losses is not None:
            self._losses.close()

    def close(self) -> None:
        """End the background tasks, and take back what is not decided."""
        self._ticker.cancel()
        self._following.cancel()
        self._tap_events.close()
        self._eviction.close()
        if self._access is not None:
            self._access.close()
        self._drain.close()
        if self._sizing is not None:
            self._sizing.close()
        self.pool.close()
        self._rates.close()
        self._transactions.close()

    def set_serving(self) -> None:
        """Every processor was ready and the listeners accept."""
        self._serving = True

    # --- what is -----------------------------------------------------------------------------------------------------------------

    @property
    def config(self) -> ProxyConfig:
        return self._supervisor.desired.config

    @property
    def started_ns(self) -> int:
        return self._started_ns

    @property
    def build(self) -> BuildInfo:
        modules = next((processor.modules for processor in self._supervisor.running if processor.modules), {})
        compiled = any(file.endswith(".so") for file in modules.values())
        return BuildInfo(version=_version(), compiled=compiled)

    @property
    def cells(self) -> list[tuple[int, CellReader]]:
        return self._supervisor.cells

    def measurements(self) -> Mapping[tuple[str, Attributes], float]:
        health = self.health()
        probes = {"startup": health.started, "readiness": health.ready, "liveness": health.alive}
        ready: dict[tuple[str, Attributes], float] = {("framegate.ready", ((PROBE, probe),)): float(good) for probe, good in probes.items()}
        return {
            **self._meters.snapshot(),
            **ready,
            ("framegate.draining", ()): float(health.draining),
            ("framegate.drain.time", ()): self._drain.time_s,
        }

    def health(self) -> Health:
        statuses = self._supervisor.status()
        running = [item for item in statuses if item.state in ("running", "draining")]
        handled = self._handlers is None or bool(self._handlers.running)
        dead = [f"control's part {name!r} stands still" for name in self._guard.standing]
        dead += [f"processor {item.slot} has not moved for {item.heartbeat_age_ms} ms" for item in running if item.heartbeat_age_ms >= ALIVE_MS]
        away = [
            problem
            for problem, there in (
                ("framegate is starting", not self._serving),
                ("framegate drains", self.pool.draining),
                ("no processor runs", not running),
                ("no handler process runs", not handled),
            )
            if there
        ]
        return Health(started=self._serving, alive=not dead, ready=not away, draining=self.pool.draining, problems=(*dead, *away))

    async def status(self) -> list[ProcessorStatus]:
        return self._supervisor.status()

    def handler_processes(self) -> list[HandlerProcessStatus]:
        return [] if self._handlers is None else self._handlers.status()

    async def list_listeners(self) -> list[ListenerStatus]:
        return self._listeners.statuses()

    async def list_upstreams(self) -> list[UpstreamStatus]:
        return await self.upstreams.statuses()

    async def list_certificates(self) -> list[CertificateStatus]:
        return self._certificates.statuses(self._rotation)

    async def reload(self) -> list[ReloadOutcome]:
        return await self._rotation.reload()

    async def list_users(self, listener: str) -> UsersStatus:
        return await self._users.list(listener)

    async def create_user(self, listener: str, name: str, credentials: "Mapping[str, ScramCredential]", *, validate_only: bool = False) -> UserStatus:
        return await self._users.put(listener, name, credentials, create=True, replace=False, validate_only=validate_only)

    async def update_user(
        self, listener: str, name: str, credentials: "Mapping[str, ScramCredential]", *, allow_missing: bool = False, validate_only: bool = False
    ) -> UserStatus:
        return await self._users.put(listener, name, credentials, create=allow_missing, replace=True, validate_only=validate_only)

    async def delete_user(self, listener: str, name: str, *, validate_only: bool = False) -> None:
        await self._users.delete(listener, name, validate_only=validate_only)

    def subscribe(self, names: Collection[str] = (), after: int | None = None) -> Subscription:
        return self._events.subscribe(names, after)

    def reserve_audit(self) -> None:
        if not self._log.reserve():
            text = "nothing is changed that cannot be audited: stdout, where the audit rows go, is not read or cannot be written"
            raise UnavailableError(text, reason="AUDIT_BLOCKED")

    def audit(self, record: Row) -> None:
        self._events.publish({"event": "audit", **record}, size=len(repr(record)), reserved=True)

    async def get_log(self) -> LogStatus:
        levels = self._log.levels
        return LogStatus(format=self._log.format, level=levels.level, silenced=tuple(sorted(levels.silenced)), dropped=self._log.dropped)

    async def set_log(self, level: LogLevel | None = None, events: Mapping[str, bool] | None = None) -> LogStatus:
        self._log.levels.change(level, events or {})
        desired = self._supervisor.desired
        desired.config = dataclasses.replace(desired.config, log=dataclasses.replace(desired.config.log, level=self._log.levels.level))
        return await self.get_log()

    # --- channels ----------------------------------------------------------------------------------------------------------------

    async def list_channels(self, listener: str | None = None, page_size: int = 0, page_token: str = "") -> tuple[list[OpenRow], str]:
        return await self._channels.page(listener, page_size, page_token)

    async def describe_channel(self, channel: int) -> OpenRow:
        return await self._channels.describe(channel)

    async def mute_channels(
        self, channels: Sequence[int] = (), listener: str | None = None, reason: str = "", principal: str | None = None
    ) -> Outcome:
        return await self._channels.act("mute", channels, listener, reason, principal)

    async def unmute_channels(
        self, channels: Sequence[int] = (), listener: str | None = None, reason: str = "", principal: str | None = None
    ) -> Outcome:
        return await self._channels.act("unmute", channels, listener, reason, principal)

    async def close_channels(
        self, channels: Sequence[int] = (), listener: str | None = None, reason: str = "", principal: str | None = None
    ) -> Outcome:
        return await self._channels.act("close", channels, listener, reason, principal)

    # --- limits and the pool -----------------------------------------------------------------------------------------------------

    async def get_limits(self, listener: str | None = None) -> list[Limit]:
        return self._limits.get(listener)

    async def set_limit(self, listener: str, max_receive_size: int | None = None, quotas: Mapping[str, int] | None = None) -> Limit:
        return await self._limits.change(listener, max_receive_size, quotas or {})

    async def get_node_limits(self) -> NodeLimits:
        return self._limits.get_node()

    async def set_node_limits(self, changes: Mapping[str, Any], etag: str = "") -> NodeLimits:
        return await self._limits.change_node(changes, etag)

    async def get_pool(self) -> PoolStatus:
        return self.pool.status()

    async def top_holders(self, count: int) -> list[Holder]:
        return await self._channels.top_holders(count)

    async def set_pool_size(self, size: int) -> PoolStatus:
        return await self.pool.set_size(size)

    async def set_processors(self, count: int) -> PoolStatus:
        return await self.pool.set_processors(count)

    def tap_troubles(self) -> list[str]:
        return [] if self._losses is None else self._losses.troubles

    async def list_tap_rules(self) -> list[TapRuleStatus]:
        return self._taps.rules()

    async def create_tap_rule(self, rule: TapRule, before: str = "", *, validate_only: bool = False) -> TapRuleStatus:
        return await self._taps.create(rule, before, validate_only=validate_only)

    async def update_tap_rule(
        self, name: str, changes: Mapping[str, Any], before: str | None = None, etag: str = "", *, validate_only: bool = False
    ) -> TapRuleStatus:
        return await self._taps.update(name, changes, before, etag, validate_only=validate_only)

    async def delete_tap_rule(self, name: str, etag: str = "", *, validate_only: bool = False) -> None:
        await self._taps.delete(name, etag, validate_only=validate_only)

    # --- drain -------------------------------------------------------------------------------------------------------------------

    async def drain(
        self, timeout_ms: int | None = None, *, wait: bool = True, accept: DrainAccept | None = None, by: str = "", reason: str = ""
    ) -> DrainResult:
        return await self._drain.run(timeout_ms, wait=wait, accept=accept, by=by, reason=reason)


def _version() -> str:
    try:
        return importlib.metadata.version("framegate")
    except importlib.metadata.PackageNotFoundError:
        return "0+checkout"
