"""The parts that show and change a running framegate, put together."""

import asyncio
import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

from framegate.control.accept.acceptor import Acceptor
from framegate.control.accept.resolver import Resolver
from framegate.control.events import Bus
from framegate.control.fleet.supervisor import Supervisor
from framegate.control.logs import RowLog
from framegate.control.meters import Meters
from framegate.control.rotation.rotation import Rotation
from framegate.control.rotation.tls_stores import TlsStores
from framegate.control.steering.access import AccessRows
from framegate.control.steering.channels import Channels
from framegate.control.steering.drain import Drain
from framegate.control.steering.eviction import Eviction
from framegate.control.steering.limits import Limits
from framegate.control.steering.listeners import Listeners
from framegate.control.steering.pool import Pool
from framegate.control.steering.rates import Rates
from framegate.control.steering.rows import Audit, LogRows
from framegate.control.steering.sizing import Chosen, Sizing
from framegate.control.steering.state import ALIVE_MS, State
from framegate.control.steering.tap_losses import TapLosses
from framegate.control.steering.taps import MAX_RULES, STOPPED_EVENT, Rules, Taps
from framegate.control.steering.transactions import Transactions
from framegate.control.steering.upstreams import Upstreams
from framegate.control.steering.users import Users
from framegate.control.task_monitor import TaskMonitor
from framegate.proxy.config.model import MAX_PROCESSORS

if TYPE_CHECKING:
    from framegate.control.fleet.handlers import Handlers
    from framegate.control.fleet.identity import Identity

__all__ = ["Parts", "Steering"]


@dataclasses.dataclass(kw_only=True)
class Parts:
    """What the gRPC service shows and changes, each by the module that has its name. All belong to the control process' event loop unless a
    docstring says otherwise. A change of a limit, a pool or tap rules returns when it is in force in every processor, or raises and none has it; or
    the reason is CHANGE_PENDING. Cancelled, it is still either taken back or completed in the background. Failures are the classes of
    ``framegate.control.errors``.
    """

    state: State
    events: Bus
    audit: Audit
    log: LogRows
    channels: Channels
    limits: Limits
    pool: Pool
    taps: Taps
    drain: Drain
    listeners: Listeners
    upstreams: Upstreams
    certificates: TlsStores
    rotation: Rotation
    users: Users


class Steering(Parts):
    """The parts over running processors. ``acceptor.listeners`` and ``supervisor.desired`` are the truth; nothing is kept twice.

    Args:
        tapped: see ``Taps``.
        rotation, certificates: what is watched, and what is in force of it.
        handlers: the handler processes, where a listener has a handler.
        identity: what answers authenticators, where there are any.
        chosen: what was chosen by what the container allows, where something was.
        tap_low: why the tap's disk is about to be full, in words; empty while it is not.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        acceptor: Acceptor,
        resolver: Resolver,
        meters: Meters,
        log: RowLog,
        events: Bus,
        task_monitor: TaskMonitor,
        tapped: Callable[[Rules], None],
        rotation: Rotation,
        certificates: TlsStores,
        handlers: "Handlers | None" = None,
        identity: "Identity | None" = None,
        chosen: Chosen | None = None,
        tap_low: Callable[[], str] = str,
    ) -> None:
        config = supervisor.desired.config
        self.transactions = Transactions(events)
        self._losses = None if config.tap is None else TapLosses(lambda: supervisor.cells, log, config.tap.directory, tap_low)
        listeners = Listeners(supervisor, acceptor)
        pool = Pool(supervisor, self.transactions, meters, log, task_monitor)
        drain = Drain(supervisor, acceptor, listeners, pool, self.transactions, events)
        super().__init__(
            state=State(supervisor, meters, task_monitor, pool, drain, handlers),
            events=events,
            audit=Audit(log, events),
            log=LogRows(supervisor, log),
            channels=Channels(supervisor, self.transactions),
            limits=Limits(supervisor, acceptor, self.transactions, meters, pool),
            pool=pool,
            taps=Taps(supervisor, self.transactions, meters, tapped, self._losses),
            drain=drain,
            listeners=listeners,
            upstreams=Upstreams(supervisor, resolver, log),
            certificates=certificates,
            rotation=rotation,
            users=Users(supervisor, self.transactions, rotation, identity),
        )
        self._sizing = None if chosen is None else Sizing(pool, lambda: supervisor.desired.config, chosen, events, log, task_monitor)
        self._rates = Rates(supervisor, task_monitor)
        every_ms = config.log.access.every_ms
        self._access = AccessRows(supervisor, every_ms, log, task_monitor) if every_ms else None
        self._eviction = Eviction(supervisor, acceptor, log, task_monitor)
        self._tap_events = events.subscribe((STOPPED_EVENT,), max_events=MAX_RULES * MAX_PROCESSORS)
        self._following = asyncio.create_task(self._tap_events.each(self.taps.note))
        self._ticker = asyncio.create_task(task_monitor.job("loop", ALIVE_MS / 1000).keep_going(self._tick))
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
        self.drain.close()
        if self._sizing is not None:
            self._sizing.close()
        self.pool.close()
        self._rates.close()
        self.transactions.close()
