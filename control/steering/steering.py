"""The parts that show and change a running framegate, put together."""

import asyncio
import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

from framegate.control.accept.acceptor import Acceptor
from framegate.control.accept.resolver import Resolver
from framegate.control.configuration.child import Loaded
from framegate.control.events import Bus
from framegate.control.fleet.supervisor import Supervisor
from framegate.control.logs import AuditFile, RowLog
from framegate.control.meters import Meters
from framegate.control.rotation.rotation import Rotation
from framegate.control.rotation.tls_stores import Judge, TlsStores
from framegate.control.steering.brokers import Brokers
from framegate.control.steering.channels import EXPIRY_LIMIT_S, EXPIRY_S, Channels
from framegate.control.steering.checks import Checks
from framegate.control.steering.clients import LOOK_LIMIT_S as CLIENTS_LIMIT_S
from framegate.control.steering.clients import STEP_S as CLIENTS_S
from framegate.control.steering.clients import Clients
from framegate.control.steering.configuration import Configuration
from framegate.control.steering.configuration_file import ConfigurationFile
from framegate.control.steering.drain import Drain
from framegate.control.steering.explanation import Explanations
from framegate.control.steering.identities import Identities
from framegate.control.steering.limits import EVICTION_INTERVAL_S, EVICTION_LIMIT_S, Eviction, Limits, RulesAboutKafka
from framegate.control.steering.listeners import Listeners, RefusedFrames, Upstreams
from framegate.control.steering.pool import Pool
from framegate.control.steering.problems import LIMIT_S as PROBLEMS_LIMIT_S
from framegate.control.steering.problems import STEP_S as PROBLEMS_S
from framegate.control.steering.problems import Watch
from framegate.control.steering.rates import INTERVAL_S as RATES_INTERVAL_S
from framegate.control.steering.rates import LIMIT_S as RATES_LIMIT_S
from framegate.control.steering.rates import Rates
from framegate.control.steering.rows import ACCESS_LIMIT_S, AccessRows, Audit, LogRows, interval_s
from framegate.control.steering.sizes import Sizes
from framegate.control.steering.sizing import Chosen, Sizing
from framegate.control.steering.state import ALIVE_MS, State
from framegate.control.steering.taps import MAX_RULES, STOPPED_EVENT, Rules, TapLosses, Taps
from framegate.control.steering.transactions import Transactions
from framegate.control.steering.users import Users
from framegate.control.task_monitor import TICK_S, LoopLag, TaskMonitor
from framegate.proxy.config.model import MAX_PROCESSORS, ProxyConfig

if TYPE_CHECKING:
    from framegate.control.fleet.handlers import Handlers
    from framegate.control.telemetry.export import Export


@dataclasses.dataclass(kw_only=True)
class Parts:
    """What the gRPC service shows and changes, in one part for each subject. Event loop only, unless a docstring says otherwise.

    A change of limits, the pool, tap rules or rules about Kafka returns when it is in force in every processor. If it raises, no processor has it,
    unless the reason is CHANGE_PENDING. If its call is cancelled, it is taken back or completed in the background. Errors are the classes of
    ``framegate.control.errors``. ``ask``: a question of the validator process.
    """

    state: State
    events: Bus
    rows: Bus
    audit: Audit
    log: LogRows
    channels: Channels
    clients: Clients
    explanations: Explanations
    refused_frames: RefusedFrames
    sizes: Sizes
    limits: Limits
    kafka_rules: RulesAboutKafka
    pool: Pool
    taps: Taps
    drain: Drain
    listeners: Listeners
    upstreams: Upstreams
    brokers: Brokers
    certificates: TlsStores
    rotation: Rotation
    users: Users
    configuration: Configuration
    configuration_file: ConfigurationFile
    watch: Watch
    ask: Judge


class Steering(Parts):
    """The parts over running processors. Their state is in ``acceptor.listeners`` and ``supervisor.desired``.

    Args:
        new_handlers: makes the handler processes of a configuration, if there were none before.
        chosen: what the container decided at the start; None: nothing.
        export: what is exported; None: nothing.
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
        identities: Identities,
        loaded: Loaded,
        ask: Judge,
        new_handlers: Callable[[ProxyConfig], "Handlers"],
        chosen: Chosen | None = None,
        tap_low: Callable[[], str] = str,
        audit_file: AuditFile | None = None,
        export: "Export | None" = None,
    ) -> None:
        config = supervisor.desired.config
        self.transactions = Transactions(events, meters)
        self._losses = None if config.tap is None else TapLosses(lambda: supervisor.cells, log, config.tap.directory, tap_low)
        listeners = Listeners(supervisor, acceptor)
        pool = Pool(supervisor, self.transactions, log, task_monitor)
        channels = Channels(supervisor, self.transactions)
        upstreams = Upstreams(supervisor, resolver, log)
        drain = Drain(supervisor, acceptor, listeners, pool, self.transactions, events)
        taps = Taps(supervisor, self.transactions, tapped, self._losses)
        brokers = Brokers(supervisor, acceptor, channels, log, events, meters, task_monitor)
        self._checks = Checks(supervisor, log, task_monitor)
        log_rows = LogRows(supervisor, log)
        audit = Audit(log, events, config.log.audit.on_failure, audit_file, meters)
        configuration = Configuration(
            supervisor,
            acceptor,
            resolver,
            certificates,
            rotation,
            pool,
            taps,
            self._checks,
            brokers,
            identities,
            new_handlers,
            log_rows,
            export,
            self.transactions,
            meters,
            log,
            task_monitor,
        )
        super().__init__(
            state=State(supervisor, meters, task_monitor, pool, drain),
            events=events,
            rows=log.written,
            audit=audit,
            log=log_rows,
            channels=channels,
            clients=Clients(supervisor, acceptor.refusals, meters),
            explanations=Explanations(supervisor, channels, listeners, upstreams, pool),
            refused_frames=RefusedFrames(supervisor),
            sizes=Sizes(lambda: supervisor.cells),
            limits=Limits(supervisor, acceptor, self.transactions, pool),
            kafka_rules=RulesAboutKafka(supervisor, self.transactions),
            pool=pool,
            taps=taps,
            drain=drain,
            listeners=listeners,
            upstreams=upstreams,
            brokers=brokers,
            certificates=certificates,
            rotation=rotation,
            users=Users(supervisor, self.transactions, rotation, identities),
            configuration=configuration,
            configuration_file=ConfigurationFile(
                loaded, configuration, lambda: supervisor.desired.config, pool, ask, rotation, audit, events, meters
            ),
            watch=Watch(),
            ask=ask,
        )
        self._sizing = None if chosen is None else Sizing(pool, lambda: supervisor.desired.config, chosen, events, log, task_monitor)
        self._lag = LoopLag(meters, log)
        self._rates = Rates(supervisor)
        self._eviction = Eviction(supervisor, acceptor, log)
        self._tap_events = events.subscribe((STOPPED_EVENT,), max_events=MAX_RULES * MAX_PROCESSORS)
        self._tasks = [
            task_monitor.repeat("rates", self._rates.divide, RATES_INTERVAL_S, RATES_LIMIT_S),
            task_monitor.repeat("evictions", self._eviction.look, EVICTION_INTERVAL_S, EVICTION_LIMIT_S),
            task_monitor.repeat("channel actions", channels.expire, EXPIRY_S, EXPIRY_LIMIT_S),
            task_monitor.repeat("clients", self.clients.look, CLIENTS_S, CLIENTS_LIMIT_S),
            task_monitor.repeat("problems", self.watch.look, PROBLEMS_S, PROBLEMS_LIMIT_S),
            task_monitor.repeat("loop", self._tick, TICK_S, ALIVE_MS / 1000),
            asyncio.create_task(self._tap_events.each(self.taps.note)),
        ]
        every_ms = config.log.access.every_ms
        if every_ms:
            self._tasks.append(task_monitor.repeat("access", AccessRows(supervisor, every_ms, log).look, interval_s(every_ms), ACCESS_LIMIT_S))
        meters.gauge("config.revision", lambda: float(supervisor.desired.revision))

    def _tick(self) -> None:
        self._lag.look()
        self.sizes.look()
        if self._losses is not None:
            self._losses.look()

    def report_lost_frames(self) -> None:
        """Report the frames that the tap has lost; after the processors have ended."""
        if self._losses is not None:
            self._losses.close()

    def close(self) -> None:
        """End the background tasks, and take back changes that are not decided."""
        for task in self._tasks:
            task.cancel()
        self._tap_events.close()
        self.configuration.close()
        self.brokers.close()
        self._checks.close()
        self.drain.close()
        if self._sizing is not None:
            self._sizing.close()
        self.pool.close()
        self.transactions.close()
