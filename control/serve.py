"""The main of ``framegate serve``.

Start, in this order: signals; the configuration; the tap's lock; the listeners are bound; the names of upstreams looked up; the processors
and the handler processes start while the gRPC service comes up; telemetry; when each of them is ready the listeners listen and the row ``serving``
is written. Whatever
fails undoes what was done before and the process ends with 1; with 2, before anything is done, for a fault of the configuration or of what it
needs of this machine, in the words of ``framegate check``. The end is the other way round: no new connections, drain, service, processors (they
flush the tap), handler processes, telemetry, rows. A second signal kills the processors and the handler processes, and ends at once.
"""

import asyncio
import dataclasses
import functools
import logging
import os
import pathlib
import resource
import sys
from collections.abc import Callable
from typing import Any, Final

from framegate.control.configuration.child import Loaded, load_in_child
from framegate.control.configuration.document import ConfigurationError
from framegate.control.errors import StartError
from framegate.control.logs import Levels, LibraryRows, RowLog, form_of
from framegate.control.meters import Meters
from framegate.control.notify import Notifier
from framegate.control.runtime import Proxy
from framegate.control.signals import Signals
from framegate.control.task_monitor import TaskMonitor
from framegate.control.uncaught import catch_in_loop, catch_in_process
from framegate.proxy.config.log import LogFormat

__all__ = ["EXIT_CONFIGURATION", "EXIT_FAILED", "serve"]

EXIT_FAILED: Final = 1
EXIT_CONFIGURATION: Final = 2
SWITCH_INTERVAL_S: Final = 0.0001
"""How long the acceptor waits for the interpreter, at each of its system calls, while the loop's thread is busy: with 0.5 ms, a list of all
channels made a new connection wait several times as long as with this.
"""
_STDOUT: Final = 1


async def _run(loaded: Loaded, signals: Signals, log: RowLog, meters: Meters, task_monitor: TaskMonitor) -> int:
    notifier = Notifier(os.environ, lambda error: log.write("notify_failed", level="warning", error=error))
    catch_in_loop(asyncio.get_running_loop(), task_monitor)
    first, second = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (second if first.is_set() or signals.count > 1 else first).set()
        first.set()

    proxy = Proxy(loaded, log, meters, task_monitor, notifier)
    signals.attach(asyncio.get_running_loop(), on_signal, proxy.reload_soon)
    try:
        return await _live(proxy, loaded, log, notifier, first, second)
    finally:
        await proxy.stop_export()


async def _live(proxy: Proxy, loaded: Loaded, log: RowLog, notifier: Notifier, first: asyncio.Event, second: asyncio.Event) -> int:
    """From the start to the last row; the exit code. ``first`` and ``second`` are the signals to end."""
    started = await _until(proxy.start(), first)
    if started is not None:
        await proxy.stop()  # first, so that the reason is the last that is said, after processors that had come up already
        log.write("start_failed", level="error", reason=getattr(started, "reason", "INTERNAL"), error=str(started) or repr(started))
        print(f"framegate: {started}", file=sys.stderr)
        return EXIT_FAILED
    if not first.is_set():
        notifier.ready("serving " + ", ".join(item.name for item in loaded.config.listeners), proxy.alive)
    await first.wait()
    notifier.stopping(loaded.config.drain.timeout_ms)
    log.write("stopping", reason="signal")
    failure = await _until(_end(proxy), second, proxy.kill)
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


async def _until(work: Any, event: asyncio.Event, on_event: Callable[[], None] = lambda: None) -> Exception | None:
    """Run something until it is done or the event comes, which is told and cancels it; the error it ended with."""
    task, stop = asyncio.ensure_future(work), asyncio.ensure_future(event.wait())
    await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    if not task.done():
        on_event()
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


def serve(path: str | pathlib.Path, log_format: LogFormat | None = None) -> int:
    """Run until a signal; the exit code. Faults of the configuration go to stderr, one on each line.

    Args:
        path: of the configuration.
        log_format: how rows are written; None: as the configuration says.
    """
    signals = Signals()
    _leave_no_core()
    try:
        loaded = load_in_child(path)
    except ConfigurationError as error:
        for fault in error.faults:
            print(f"{path}: {fault}", file=sys.stderr)
        return EXIT_CONFIGURATION
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    _raise_descriptor_limit()
    logged = loaded.config.log
    log = RowLog(_STDOUT, form=form_of(log_format or logged.format, _STDOUT, os.environ), levels=Levels(logged.level))
    meters = Meters()
    for warning in loaded.warnings:
        log.write("configuration_warning", level="warning", **dataclasses.asdict(warning))
    task_monitor = TaskMonitor(log, meters)
    log.on_failure = functools.partial(task_monitor.failed, "rows")
    meters.gauge("log.dropped", lambda: float(log.dropped))
    library_rows = LibraryRows(log, lambda: meters.add("task.failures", "library"))
    logging.getLogger().addHandler(library_rows)
    try:
        with catch_in_process(task_monitor):
            return asyncio.run(_run(loaded, signals, log, meters, task_monitor))
    finally:
        signals.ignore()
        logging.getLogger().removeHandler(library_rows)
        log.close()


def _leave_no_core() -> None:
    """A core file would hold keys and passwords, of this process and of all that it starts. ``prlimit --core=unlimited --pid`` has one written."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def _raise_descriptor_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    sys.exit(serve(sys.argv[sys.argv.index("--config") + 1]))
