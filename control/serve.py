"""The main of ``framegate serve``.

Start, in this order: signals; the configuration; the tap's lock; the listeners are bound; the names of upstreams looked up; the processors
start while the gRPC service comes up; telemetry; when every processor is ready the listeners listen and the row ``serving`` is written. Whatever
fails undoes what was done before and the process ends with 1 (2 for a faulty configuration). The end is the other way round: no new
connections, drain, service, processors (they flush the tap), telemetry, rows. A second signal kills the processors and ends at once.
"""

import asyncio
import contextlib
import dataclasses
import gc
import logging
import os
import pathlib
import resource
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from control.acceptor import Acceptor, Listening
from control.configuration.apart import load_apart
from control.configuration.capacity import cpu_limit, largest_frame, memory_limit, memory_warning, processor_count
from control.configuration.fault import ConfigurationError
from control.errors import StartError
from control.guard import Guard
from control.logs import LibraryRows, RowLog
from control.meters import Meters
from control.pool import equal_shares
from control.reaper import Reaper
from control.resolver import Resolution, Resolver, resolve
from control.slot import Slot
from control.slot_cells import Life
from control.steering import Events, Steering
from control.supervisor import Facts, Supervisor
from proxy.config.model import ProxyConfig

if TYPE_CHECKING:
    from control.tap_keeper import TapKeeper

__all__ = ["EXIT_CONFIGURATION", "EXIT_FAILED", "serve"]

EXIT_FAILED: Final = 1
EXIT_CONFIGURATION: Final = 2
SWITCH_INTERVAL_S: Final = 0.0001
"""How long the acceptor waits for the interpreter, at each of its system calls, while the loop's thread is busy: with 0.5 ms, a list of all
channels made a new connection wait several times as long as with this.
"""
RESOLVE_TIMEOUT_S: Final = 10.0
SERVICE_GRACE_MS: Final = 500


class Signals:
    """SIGTERM and SIGINT from the first moment on: what comes before the loop runs is kept for it."""

    def __init__(self) -> None:
        self.count = 0
        self._listener: Callable[[], None] | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._early)

    def _early(self, number: int, frame: FrameType | None) -> None:
        self.count += 1

    def attach(self, loop: asyncio.AbstractEventLoop, listener: Callable[[], None]) -> None:
        """Call ``listener`` on the loop at every signal, and now if there were some."""
        self._listener = listener
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        if self.count:
            loop.call_soon(listener)

    def _on_signal(self) -> None:
        self.count += 1
        if self._listener is not None:
            self._listener()


async def _in_thread(work: Callable[[], Any], timeout_s: float) -> Any:
    """Run something that may hang on a thread that cannot hold up the process' end. Raises TimeoutError."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(result: Any, error: Exception | None) -> None:
        if not future.done():
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

    def run() -> None:
        try:
            result, failure = work(), None
        except Exception as error:
            result, failure = None, error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=run, name="framegate-start", daemon=True).start()
    async with asyncio.timeout(timeout_s):
        return await future


class Proxy:
    """Everything of one running framegate."""

    def __init__(self, config: ProxyConfig, log: RowLog) -> None:
        self._log = log
        self._config = config
        self._undo: list[Callable[[], Awaitable[None] | None]] = []
        self._supervisor: Supervisor | None = None
        self._steering: Steering | None = None
        self._keeper: TapKeeper | None = None
        self._background: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Bring everything up. Raises StartError; ``stop`` must be called in any case."""
        log, meters, events = self._log, Meters(), Events(self._log)
        guard = Guard(log, meters)
        config = _with_processor_count(self._config, log)
        if config.tap is not None:
            from control.tap_keeper import TapKeeper  # only who taps pays for the log's modules

            self._keeper = TapKeeper(config, config.tap, meters, log)
            self._undo.append(self._keeper.stop)
        acceptor = self._bind(config, meters)
        first = await self._resolve(config)
        facts = Facts(
            config=config,
            endpoints={name: resolution.addresses for name, resolution in first.items()},
            shares=equal_shares(config.memory_pool.size, config.processors),
        )
        reaper = Reaper()
        self._undo.append(reaper.close)
        supervisor = Supervisor(facts, acceptor, reaper, meters, log, guard, on_event=events.publish, on_begin=self._begun, on_end=self._ended)
        self._supervisor = supervisor
        self._undo += [supervisor.close, supervisor.stop]
        resolver = Resolver(config.upstreams, first, self._addresses_changed)
        self._undo.append(resolver.stop)
        steering = Steering(supervisor, acceptor, resolver, meters, log, events, guard)
        self._steering = steering
        self._undo.append(steering.close)
        starting = asyncio.create_task(supervisor.start_slots(range(config.processors)))
        try:
            addresses = await self._start_faces(steering, config)
        except BaseException:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            raise
        await starting
        acceptor.start()
        steering.set_serving()
        self._announce(acceptor, steering, addresses)

    def _bind(self, config: ProxyConfig, meters: Meters) -> Acceptor:
        meters.prepare([listener.name for listener in config.listeners])
        listeners: list[Listening] = []
        for listener in config.listeners:
            listening = Listening(listener)
            self._undo.append(listening.close)
            listeners.append(listening)
        acceptor = Acceptor(listeners, meters, self._log)
        self._undo += [acceptor.close, acceptor.stop]
        return acceptor

    async def _resolve(self, config: ProxyConfig) -> dict[str, Resolution]:
        try:
            found: dict[str, Resolution] = await _in_thread(lambda: {item.name: resolve(item) for item in config.upstreams}, RESOLVE_TIMEOUT_S)
        except TimeoutError:
            found = {item.name: Resolution([], f"no answer within {RESOLVE_TIMEOUT_S:g} s") for item in config.upstreams}
        for name, resolution in found.items():
            if resolution.error:
                self._log.write("resolve_failed", level="warning", upstream=name, error=resolution.error)
        return found

    async def _start_faces(self, steering: Steering, config: ProxyConfig) -> dict[str, Any]:
        """Telemetry and the gRPC service; what they bound."""
        await asyncio.to_thread(_load_faces, config)  # the loop starts the processors meanwhile
        from control import service

        addresses: dict[str, Any] = {"admin": config.admin.address, "health": None, "prometheus": None}
        observe = None
        if config.telemetry.otlp is not None or config.telemetry.prometheus is not None:
            from control import telemetry

            exporter = telemetry.start(steering, config)
            if exporter is not None:
                # Ends after the processors, whose last counts it exports, and before the cells are given back.
                self._undo.insert(self._undo.index(self._supervisor_stop()), exporter.stop)
                addresses["prometheus"] = exporter.prometheus_address
                observe = exporter.record_call
        server = await service.start(steering, config, observe)
        self._undo.append(lambda: server.stop(SERVICE_GRACE_MS))
        addresses["health"] = server.health_address
        return addresses

    def _supervisor_stop(self) -> Callable[[], Awaitable[None]]:
        assert self._supervisor is not None, "the faces are started after the supervisor"
        return self._supervisor.stop

    def _announce(self, acceptor: Acceptor, steering: Steering, addresses: dict[str, Any]) -> None:
        build = steering.build
        gc.collect()
        gc.freeze()
        self._log.write(
            "serving",
            listeners={name: listening.address for name, listening in acceptor.listeners.items()},
            **addresses,
            processors=steering.config.processors,
            version=build.version,
            compiled=build.compiled,
            pid=os.getpid(),
        )

    def _addresses_changed(self) -> None:
        assert self._steering is not None, "the resolver is started before the steering it reports to"
        task = asyncio.ensure_future(self._steering.set_endpoints())
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _begun(self, slot: Slot) -> None:
        if self._keeper is not None:
            self._keeper.born(slot.number, slot.boot_id)

    def _ended(self, slot: Slot, life: Life) -> None:
        if self._keeper is not None:
            from control.tap_keeper import Death

            self._keeper.died(Death(slot.number, slot.boot_id, slot.started_ns, life))

    async def drain(self) -> None:
        """End the connections in order, as far as the drain's timeout allows."""
        if self._steering is not None:
            await self._steering.drain()

    async def stop(self) -> None:
        """Undo everything, last first."""
        while self._undo:
            try:
                done = self._undo.pop()()
                if done is not None:
                    await done
            except Exception as error:
                self._log.write("stop_failed", level="error", error=repr(error))

    def kill(self) -> None:
        """The forced end of the processors."""
        if self._supervisor is not None:
            self._supervisor.kill_all()


def _load_faces(config: ProxyConfig) -> None:
    """Import what answers gRPC and exports telemetry: a third of the time that a start takes."""
    import control.service

    if config.telemetry.otlp is not None or config.telemetry.prometheus is not None:
        import control.telemetry  # noqa: F401


def _with_processor_count(config: ProxyConfig, log: RowLog) -> ProxyConfig:
    """The configuration with the number of processors that 0 stands for; warns when the pool does not fit the container."""
    largest = largest_frame(listener.max_receive_size for listener in config.listeners)
    count = processor_count(config.processors, config.memory_pool.size, largest, cpu_limit())
    warning = memory_warning(config, count, memory_limit())
    if warning is not None:
        log.write("memory_warning", level="warning", reason=warning)
    return dataclasses.replace(config, processors=count)


async def _run(config: ProxyConfig, signals: Signals, log: RowLog) -> int:
    first, second = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (second if first.is_set() or signals.count > 1 else first).set()
        first.set()

    signals.attach(asyncio.get_running_loop(), on_signal)
    proxy = Proxy(config, log)
    started = await _until(proxy.start(), first)
    if started is not None:
        await proxy.stop()  # first, so that the reason is the last that is said, after processors that had come up already
        log.write("start_failed", level="error", reason=getattr(started, "reason", "INTERNAL"), error=str(started) or repr(started))
        print(f"framegate: {started}", file=sys.stderr)
        return EXIT_FAILED
    await first.wait()
    log.write("stopping", reason="signal")
    failure = await _until(_end(proxy), second)
    if failure is None and not second.is_set():
        log.write("stopped")
        return 0
    proxy.kill()
    await proxy.stop()
    log.write("stopped", level="warning", reason="forced" if failure is None else repr(failure))
    return EXIT_FAILED


async def _end(proxy: Proxy) -> None:
    await proxy.drain()
    await proxy.stop()


async def _until(work: Any, event: asyncio.Event) -> Exception | None:
    """Run something until it is done or the event comes, which cancels it; the error it ended with."""
    task, stop = asyncio.ensure_future(work), asyncio.ensure_future(event.wait())
    await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    if not task.done():
        task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return None
    except Exception as error:
        if not isinstance(error, StartError):
            import traceback

            traceback.print_exc()
        return error
    return None


def serve(path: str | pathlib.Path) -> int:
    """Run until a signal; the exit code. Faults of the configuration go to stderr, one on each line."""
    signals = Signals()
    try:
        config = load_apart(path)
    except ConfigurationError as error:
        for fault in error.faults:
            print(f"{path}: {fault}", file=sys.stderr)
        return EXIT_CONFIGURATION
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    _raise_descriptor_limit()
    log = RowLog()
    library_rows = LibraryRows(log)
    logging.getLogger().addHandler(library_rows)
    try:
        return asyncio.run(_run(config, signals, log))
    finally:
        logging.getLogger().removeHandler(library_rows)
        log.close()


def _raise_descriptor_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    sys.exit(serve(sys.argv[sys.argv.index("--config") + 1]))
