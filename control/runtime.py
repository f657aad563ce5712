"""All parts of one running framegate: started in order, and stopped in the reverse order."""

import asyncio
import contextlib
import gc
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final

from framegate.control.accept.acceptor import Acceptor
from framegate.control.accept.listening import Listening
from framegate.control.accept.resolver import Names, Resolver, in_thread
from framegate.control.configuration.capacity import fitted
from framegate.control.configuration.cgroup import container
from framegate.control.configuration.child import Loaded
from framegate.control.configuration.tls_files import first_stores
from framegate.control.events import Bus
from framegate.control.fleet.child import Reaper
from framegate.control.fleet.desired_state import DesiredState
from framegate.control.fleet.processor import Slot
from framegate.control.fleet.slot_cells import ProcessorTotals
from framegate.control.fleet.supervisor import Supervisor
from framegate.control.logs import AuditFile, RowLog
from framegate.control.meters import Meters
from framegate.control.notify import Notifier
from framegate.control.rotation.rotation import Rotation
from framegate.control.rotation.tls_stores import TlsStores
from framegate.control.rotation.validator_process import ValidatorProcess
from framegate.control.steering.identities import Identities
from framegate.control.steering.pool import equal_shares
from framegate.control.steering.sizing import Chosen
from framegate.control.steering.steering import Steering
from framegate.control.task_monitor import TaskMonitor
from framegate.control.telemetry.export import Export
from framegate.control.telemetry.watched import watched
from framegate.proxy.config.model import ProxyConfig

if TYPE_CHECKING:
    from framegate.control.fleet.handlers import Handlers
    from framegate.control.tap.keeper import TapKeeper
    from framegate.control.tap.shipping import ShippingProcess

GC_THRESHOLD: Final = 20_000
"""Allocations between two runs of the cycle collector: those of a few thousand connections. A connection leaves no reference cycles."""
SERVICE_GRACE_MS: Final = 500


class Proxy:
    """All parts of one running framegate."""

    def __init__(self, loaded: Loaded, log: RowLog, meters: Meters, task_monitor: TaskMonitor, notifier: Notifier | None = None) -> None:
        self._log = log
        self._notifier = notifier
        self._meters = meters
        self._task_monitor = task_monitor
        self._loaded = loaded
        self._undo = contextlib.AsyncExitStack()
        self._undo_after_processors = contextlib.AsyncExitStack()
        self._supervisor: Supervisor | None = None
        self._steering: Steering | None = None
        self._keeper: TapKeeper | None = None
        self._shipping: ShippingProcess | None = None
        self._handlers: Handlers | None = None
        self._export: Export | None = None
        self._background: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Start all parts. Raises StartError; ``stop`` must be called in any case."""
        log, meters, task_monitor = self._log, self._meters, self._task_monitor
        events = Bus((log,), on_failure=self._subscriber_failed)
        asked, allowed = self._loaded.config, container()
        config = fitted(asked, allowed)
        self._export = export = Export(config, log, task_monitor)
        chosen = Chosen(allowed, processors=not asked.processors, pool=not asked.memory_pool.size)
        if config.tap is not None:
            from framegate.control.tap.keeper import TapKeeper  # loaded only with a tap

            self._on_stop(self._stop_shipping)  # after the keeper has finished the log
            self._keeper = TapKeeper(config, config.tap, meters, log, task_monitor, export.on_segment)
            self._on_stop(self._keeper.stop)
        acceptor = self._bind(config)
        names = Names(config.upstreams)
        meters.gauges("upstream.lookup.count", names.lookups)
        first = await in_thread(names.ask)
        desired = DesiredState(
            config=config,
            endpoints={name: resolution.addresses for name, resolution in first.items()},
            shares=equal_shares(config.memory_pool.size, config.processors),
            stores=first_stores(config, self._loaded.tls_files, self._loaded.certificates),
            rows_at_open=config.log.access.open or export.traces,
            request_sample=config.telemetry.request_sample if export.traces else 0.0,
        )
        reaper = Reaper()
        self._on_stop(reaper.close)

        def new_handlers(config: ProxyConfig) -> "Handlers":
            from framegate.control.fleet.handlers import Handlers  # loaded only with handlers

            return Handlers(config, reaper, meters, log, task_monitor, events=events)

        if any(listener.handler is not None for listener in config.listeners):
            self._handlers = new_handlers(config)
        supervisor = Supervisor(
            desired,
            acceptor,
            reaper,
            meters,
            log,
            task_monitor,
            events=events,
            on_begin=self._begun,
            on_end=self._ended,
            inherited=() if self._keeper is None else (self._keeper.writers,),
            handlers=self._handlers,
        )
        self._supervisor = supervisor
        supervisor.on_requests = export.on_requests
        self._on_stop(supervisor.close)
        rotation = Rotation(config.rotation, events, meters, task_monitor)
        identities = Identities(supervisor, rotation, meters, log, task_monitor)
        self._on_stop(identities.stop)
        identities.follow(await identities.stage(config))
        await self._undo.enter_async_context(self._undo_after_processors)
        self._on_stop(self._stop_handlers)
        self._on_stop(supervisor.stop)
        resolver = Resolver(names, first, self._addresses_asked, log)
        self._on_stop(resolver.stop)
        keeper = self._keeper
        tapped = keeper.tapped if keeper is not None else lambda rules: None
        low = (lambda: keeper.disk_low) if keeper is not None else str
        validator = ValidatorProcess(reaper)
        self._on_stop(validator.close)
        certificates = TlsStores(supervisor, validator.ask, self._loaded.certificates)
        for source in certificates.sources():
            rotation.watch(source)
        self._on_stop(rotation.close)
        steering = Steering(
            supervisor,
            acceptor,
            resolver,
            meters,
            log,
            events,
            task_monitor,
            tapped,
            rotation,
            certificates,
            identities,
            self._loaded,
            validator.ask,
            new_handlers,
            chosen,
            low,
            self._audit_file(config),
            export,
        )
        self._steering = steering
        self._on_stop(steering.audit.close)
        self._on_stop(steering.close)
        self._on_stop(steering.report_lost_frames, self._undo_after_processors)
        steering.brokers.start()
        starting = asyncio.ensure_future(self._start_processes(supervisor, config.processors))
        try:
            addresses = await self._start_servers(steering, config, certificates.validity, events, export)
        except BaseException:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            raise
        self._on_stop(log.written.close)
        self._on_stop(events.close)  # before the service ends, so that its subscribers get the waiting events, and then the end
        await starting
        await steering.brokers.looked()
        acceptor.start()
        rotation.start()
        steering.state.serving = True
        self._start_shipping(config, supervisor, reaper)
        self._announce(acceptor, steering, addresses)

    def _audit_file(self, config: ProxyConfig) -> AuditFile | None:
        path = config.log.audit.file
        if path is None:
            return None

        def changed(error: OSError | None) -> None:
            text = "" if error is None else error.strerror or str(error)
            self._log.write("audit_file", level="info" if error is None else "error", file=path, error=text)

        return AuditFile(path, changed, lambda: self._meters.add("audit.failures"))

    def _start_shipping(self, config: ProxyConfig, supervisor: Supervisor, reaper: Reaper) -> None:
        if config.tap is None or config.tap.ship is None:
            return
        from framegate.control.tap.shipping import Progress, ShippingProcess  # loaded only where it is used
        from framegate.proxy.tap.record import stream_name

        def progress() -> list[Progress]:
            slots = [slot for slot in supervisor.slots.values() if slot.child is not None]
            return [Progress(stream_name(config.node, str(slot.number), slot.boot_id), *slot.cells.tap_progress()) for slot in slots]

        tap, log, monitor = config.tap, self._log, self._task_monitor
        self._shipping = ShippingProcess(tap.directory, config.node, config.tap.ship, progress, reaper, log, monitor, self._meters)
        self._shipping.start()

    async def _stop_shipping(self) -> None:
        if self._shipping is not None:
            await self._shipping.stop()

    async def _stop_handlers(self) -> None:
        if self._supervisor is not None and self._supervisor.handlers is not None:
            await self._supervisor.handlers.stop()

    async def _start_processes(self, supervisor: Supervisor, processors: int) -> None:
        """Start processors and handler processes. Raises the first error."""
        starting = [asyncio.create_task(supervisor.start_slots(range(processors)))]
        if self._handlers is not None:
            starting.append(asyncio.create_task(self._handlers.start()))
        try:
            await asyncio.gather(*starting)
        except BaseException:
            for task in starting:
                task.cancel()
            await asyncio.gather(*starting, return_exceptions=True)
            raise

    def _bind(self, config: ProxyConfig) -> Acceptor:
        self._meters.prepare([listener.name for listener in config.listeners])
        listeners: list[Listening] = []
        for listener in config.listeners:
            listening = Listening(listener)
            self._on_stop(listening.close)
            listeners.append(listening)
        acceptor = Acceptor(listeners, self._meters, self._log, self._task_monitor, config.limits)
        self._on_stop(acceptor.close)
        self._on_stop(acceptor.stop)
        return acceptor

    async def _start_servers(
        self, steering: Steering, config: ProxyConfig, validity: Mapping[str, tuple[float, float]], events: Bus, export: Export
    ) -> dict[str, Any]:
        """Start telemetry and the gRPC service. Returns their addresses."""
        await asyncio.to_thread(_load_servers, export, config)  # the loop starts the processors meanwhile
        from framegate.control import service

        addresses: dict[str, Any] = {"admin": config.admin.address, "admin_tcp": None, "health": None, "health_http": None, "prometheus": None}
        # Metrics end after the processors, to export their last counts, and before the cells are closed.
        self._on_stop(export.stop_metrics, self._undo_after_processors)
        export.begin(steering.state, validity, events)
        addresses["prometheus"] = export.prometheus_address
        steering.watch.begin(watched(steering.state, validity, [export.measurements]))
        server = await service.start(steering, config, export.record_call, lambda: export.calls)
        self._on_stop(lambda: server.stop(SERVICE_GRACE_MS))
        addresses.update(admin_tcp=server.tcp_address, health=server.health_address, health_http=server.health_http_address)
        return addresses

    def _announce(self, acceptor: Acceptor, steering: Steering, addresses: dict[str, Any]) -> None:
        build = steering.state.build
        gc.collect()
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD, 20, 20)
        self._log.write(
            "serving",
            listeners={name: listening.address for name, listening in acceptor.listeners.items()},
            **addresses,
            processors=steering.state.config.processors,
            version=build.version,
            compiled=build.compiled,
            pid=os.getpid(),
        )

    def _subscriber_failed(self, error: Exception) -> None:
        self._log.write("subscriber_failed", level="error", error=repr(error))

    def _addresses_asked(self) -> None:
        assert self._steering is not None, "the resolver is started before the steering it reports to"
        self._run_background(self._steering.upstreams.set_endpoints(), "endpoints")

    def _run_background(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run a coroutine in a task of its own; an exception is reported under ``name``, one of ``framegate.proxy.cells.TASKS``."""

        def done(task: asyncio.Task[None]) -> None:
            self._background.discard(task)
            error = None if task.cancelled() else task.exception()
            if error is not None:
                self._task_monitor.failed(name, error)

        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(done)

    def _begun(self, slot: Slot) -> None:
        if self._keeper is not None:
            self._keeper.born(slot.number, slot.boot_id)

    def _ended(self, slot: Slot, life: ProcessorTotals) -> None:
        if self._keeper is not None:
            from framegate.control.tap.keeper import ProcessorExit

            self._keeper.died(ProcessorExit(slot.number, slot.boot_id, slot.started_ns, life))

    def reload_soon(self) -> None:
        """Apply the configuration file, and load replaced files now, before the next periodic check."""
        self._run_background(self._reload(), "rotation")

    async def _reload(self) -> None:
        if self._steering is None or not self._steering.state.health().started:
            self._log.write("reload_refused", level="warning", reason="framegate is starting, or could not start")
            return
        with contextlib.nullcontext() if self._notifier is None else self._notifier.reloading():
            # Files first: a configuration that names a changed file would else put it in force without ending the connections of removed users.
            outcomes = await self._steering.rotation.reload()
            configuration = await self._steering.configuration_file.reload()
        replaced, refused = ([f"{item.owner} ({item.kind})" for item in outcomes if item.result == result] for result in ("replaced", "refused"))
        self._log.write("reloaded", replaced=replaced, refused=refused, configuration=configuration)

    def alive(self) -> bool:
        """The result of the liveness probe."""
        return self._steering is not None and self._steering.state.health().alive

    def lead_in_soon(self) -> None:
        """Begin the end of the pod: a preStop hook has signalled."""
        self._run_background(self._lead_in(), "loop")

    async def _lead_in(self) -> None:
        if self._steering is not None:
            await self._steering.drain.run(wait=False, by="signal", reason="preStop")

    async def drain(self) -> None:
        """End the connections in order, as far as the drain's timeout allows."""
        if self._steering is not None:
            await self._steering.drain.run(by="signal")

    def _on_stop(self, undo: Callable[[], Awaitable[None] | None], stack: contextlib.AsyncExitStack | None = None) -> None:
        """Call ``undo`` at the stop, before those added earlier. A failure is a row, and the others are still called."""

        async def attempt() -> None:
            try:
                done = undo()
                if done is not None:
                    await done
            except Exception as error:
                self._log.write("stop_failed", level="error", error=repr(error))

        (self._undo if stack is None else stack).push_async_callback(attempt)

    async def stop(self) -> None:
        """Stop all parts, the last first. When cancelled it abandons the part that it waits for, and stops the rest."""
        await self._undo.aclose()

    async def stop_export(self) -> None:
        """Export the last spans and rows; after all other parts have stopped."""
        if self._export is not None:
            await self._export.stop()

    def kill(self) -> None:
        """The forced end of the processors, and of the handler processes."""
        if self._supervisor is not None:
            self._supervisor.kill_all()
        if self._supervisor is not None and self._supervisor.handlers is not None:
            self._supervisor.handlers.kill_all()


def _load_servers(export: Export, config: ProxyConfig) -> None:
    """Import what exports telemetry, which may take a third of the time of a start."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # otherwise gRPC writes to stderr for each handshake that fails

    export.load(config)
