"""The main of ``framegate serve``.

Start, in this order: signals; the configuration; the tap's lock; the listeners are bound; the names of upstreams are looked up; the processors and
the handler processes start while the gRPC service and telemetry come up; when all are ready, the listeners listen and the row ``serving`` is written.
If a step fails, the steps before it are undone and the process exits with 1. A fault of the configuration, or of what it needs of this machine, is
printed as by ``framegate check`` before anything starts, and the exit code is 2. The end is in the reverse order: no new connections, drain, service,
processors (they flush the tap), handler processes, telemetry, rows. A second signal kills the processors and the handler processes, and ends at once.
"""

import asyncio
import dataclasses
import functools
import logging
import os
import pathlib
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, Final

from framegate.control.configuration.child import Loaded, load_in_child
from framegate.control.configuration.document import ConfigurationError
from framegate.control.errors import StartError
from framegate.control.logs import Levels, LibraryRows, RowLog, form_of
from framegate.control.meters import Meters
from framegate.control.notify import Notifier
from framegate.control.runtime import Proxy
from framegate.control.task_monitor import TaskMonitor, catch_in_loop, catch_in_process
from framegate.proxy.config.log import LogFormat

EXIT_FAILED: Final = 1
EXIT_CONFIGURATION: Final = 2
SWITCH_INTERVAL_S: Final = 0.0001
"""The time that the acceptor waits for the interpreter, at each of its system calls, while the loop's thread is busy. With 0.5 ms, a new connection
waited several times as long as with this value during a list of all channels.
"""
_STDOUT: Final = 1
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)


class Signals:
    """SIGTERM and SIGINT, which end framegate; SIGHUP, which reloads files; SIGUSR1, with which a preStop hook begins a drain. Signals that arrive
    before the loop runs are kept for it. Signals that were blocked until now (``framegate.control.cli``) are unblocked.
    """

    def __init__(self) -> None:
        self.count = 0
        self._early_calls: set[int] = set()
        self._listener: Callable[[], None] | None = None
        for number in _SIGNALS:
            signal.signal(number, self._early)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)

    def _early(self, number: int, frame: FrameType | None) -> None:
        if number in (signal.SIGHUP, signal.SIGUSR1):
            self._early_calls.add(number)
        else:
            self.count += 1

    def attach(self, loop: asyncio.AbstractEventLoop, listener: Callable[[], None], others: Mapping[int, Callable[[], None]]) -> None:
        """Call ``listener`` on the loop at every SIGTERM and SIGINT, ``others`` at each of their signals, and now for those that have arrived."""
        self._listener = listener
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        if self.count:
            loop.call_soon(listener)
        for other, call in others.items():
            loop.add_signal_handler(other, call)
            if other in self._early_calls:
                loop.call_soon(call)

    def ignore(self) -> None:
        """Ignore further signals, so that they do not change the exit code."""
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    def _on_signal(self) -> None:
        self.count += 1
        if self._listener is not None:
            self._listener()


async def _run(loaded: Loaded, signals: Signals, log: RowLog, meters: Meters, task_monitor: TaskMonitor) -> int:
    notifier = Notifier(os.environ, lambda error: log.write("notify_failed", level="warning", error=error))
    catch_in_loop(asyncio.get_running_loop(), task_monitor)
    first, second = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (second if first.is_set() or signals.count > 1 else first).set()
        first.set()

    proxy = Proxy(loaded, log, meters, task_monitor, notifier)
    signals.attach(asyncio.get_running_loop(), on_signal, {signal.SIGHUP: proxy.reload_soon, signal.SIGUSR1: proxy.lead_in_soon})
    try:
        return await _live(proxy, loaded, log, notifier, first, second)
    finally:
        await proxy.stop_export()


async def _live(proxy: Proxy, loaded: Loaded, log: RowLog, notifier: Notifier, first: asyncio.Event, second: asyncio.Event) -> int:
    """From the start to the last row; the exit code. ``first`` and ``second`` are the signals to end."""
    started = await _until(proxy.start(), first)
    if started is not None:
        await proxy.stop()  # first, so that the row with the reason is the last one
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
    """Run ``work`` until it is done or the event is set, which calls ``on_event`` and cancels the work. Returns the error that it ended with."""
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
    """Run until a signal; the exit code. Faults of the configuration go to stderr, one on each line. ``log_format``: how rows are written; None: as
    the configuration says.
    """
    signals = Signals()
    _leave_no_core()
    _occupy_stdout()
    try:
        loaded = load_in_child(path)
    except ConfigurationError as error:
        for fault in error.faults:
            print(fault.in_file(path), file=sys.stderr)
        return EXIT_CONFIGURATION
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    _raise_descriptor_limit()
    logged = loaded.config.log
    log = RowLog(_STDOUT, form=form_of(log_format or logged.format, _STDOUT, os.environ), levels=Levels(logged.level, logged.access.sample))
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
    """Allow no core files of this process and its children: they would hold keys and passwords. ``prlimit --core=unlimited --pid`` allows one."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def _occupy_stdout() -> None:
    """If standard output is closed, keep its number from later files and sockets: rows would go there. Writing to it fails (EBADF)."""
    try:
        os.fstat(_STDOUT)
    except OSError:
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, _STDOUT)
        if null != _STDOUT:
            os.close(null)


def _raise_descriptor_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    sys.exit(serve(sys.argv[sys.argv.index("--config") + 1]))
