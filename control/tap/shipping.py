"""The process that ships the tap's log (``framegate.proxy.tap.shipping``), as control starts it, and starts it again.

It is a child of low priority. It has the credentials of the clouds in its environment, which no other child has. What it does, or fails to do, does
not concern traffic, health or readiness: it is a row.
"""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from framegate.control.fleet.child import Reaper, child_environment
from framegate.control.logs import RowLog
from framegate.control.meters import Meters
from framegate.control.task_monitor import TaskMonitor
from framegate.proxy.config.model import ShipConfig
from framegate.proxy.tap.shipping import END_S, MESSAGE_BYTES

TELL_S: Final = 1.0
FIRST_DELAY_S: Final = 1.0
LONGEST_DELAY_S: Final = 60.0
STEADY_S: Final = 60.0  # a process that has lived so long is started again after ``FIRST_DELAY_S``
COMMAND: Final = (sys.executable, "-P", "-m", "framegate.proxy.tap.shipping")
_ALSO: Final = "FRAMEGATE_SHIP_ENV"  # the variable that names further variables to pass on
_PASSED: Final = ("AWS_", "AZURE_", "GOOGLE_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "IDENTITY_", "MSI_")


class Progress(NamedTuple):
    """A stream that a processor writes."""

    stream: str  # its name
    idle: bool  # all frames that it has seen are on disk
    errors: int  # writes that have failed


class ShippingProcess:
    """Event loop only, except ``stop``'s wait. ``log``: gets ``tap_shipping``, ``tap_ship_failed`` and ``tap_ship_died``; ``meters``: the gauge
    ``tap.ship.failing``.
    """

    def __init__(
        self,
        directory: str,
        node: str,
        ship: ShipConfig,
        progress: Callable[[], Sequence[Progress]],
        reaper: Reaper,
        log: RowLog,
        task_monitor: TaskMonitor,
        meters: Meters,
        command: Sequence[str] = COMMAND,
    ) -> None:
        self._to = ship.to
        url = f"{ship.to.rstrip('/')}/{node}"
        self._first = {"directory": directory, "url": url, "interval_ms": ship.interval_ms, "bandwidth": ship.bandwidth}
        self._progress = progress
        self._reaper = reaper
        self._log = log
        self._task_monitor = task_monitor
        self._command = tuple(command)
        self._loop = asyncio.get_running_loop()
        self._child: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._began_s = 0.0
        self._delay_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._stopping = False
        self._failing = False  # since its last word
        meters.gauge("tap.ship.failing", lambda: float(self._failing))
        self._errors: dict[str, tuple[int, int]] = {}
        """Of each stream: the number of failed writes, and when it was seen to grow, wall clock."""

    @property
    def pid(self) -> int | None:
        """Of the process; None: it is not running."""
        return None if self._child is None else self._child.pid

    def start(self) -> None:
        """Start it. If that fails, it is tried again."""
        self._timer = None
        try:
            self._spawn()
        except OSError as error:
            self._failing = True
            self._log.write("tap_ship_failed", level="warning", to=self._to, error=f"no process: {error.strerror or error}")
            self._again()
            return
        self._began_s = time.monotonic()
        self._tell()

    def _spawn(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, contextlib.ExitStack() as undo:
            undo.callback(ours.close)
            ours.setblocking(False)
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MESSAGE_BYTES)
            ours.send(json.dumps(self._first).encode())
            environment = child_environment(_ALSO) | {name: value for name, value in os.environ.items() if name.startswith(_PASSED)}
            self._child = subprocess.Popen(list(self._command), stdin=theirs.fileno(), stdout=subprocess.DEVNULL, env=environment, process_group=0)
            self._reaper.watch(self._child.pid, self._ended)
            undo.pop_all()
        self._socket = ours
        self._loop.add_reader(ours.fileno(), self._hear)

    def _tell(self) -> None:
        """Tell it each second what it cannot know. While it is busy, it does not listen, and what it does not take is not told."""
        self._timer = self._loop.call_later(TELL_S, self._tell)
        try:
            at_ns, at_s = time.time_ns(), time.monotonic()
            found = self._progress()
            errors: dict[str, tuple[int, int]] = {}
            for stream, _, count in found:
                known, since_ns = self._errors.get(stream, (count, at_ns))  # of those before, nobody knows when they were
                errors[stream] = (count, since_ns if count == known else at_ns)
            self._errors = errors
            streams = {stream: [at_ns if idle else 0, errors[stream][1]] for stream, idle, _ in found}
            if self._socket is not None:
                self._socket.send(json.dumps({"at_ns": at_ns, "at_s": at_s, "streams": streams}).encode())
        except (BlockingIOError, BrokenPipeError, ConnectionResetError):
            return
        except Exception as error:
            self._task_monitor.failed("tap_keeper", error)

    def _hear(self) -> None:
        assert self._socket is not None, "it is read"
        try:
            data = self._socket.recv(MESSAGE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._loop.remove_reader(self._socket.fileno())  # its end is reported by the reaper
            return
        error = json.loads(data)["error"]
        self._failing = bool(error)
        if error:
            self._log.write("tap_ship_failed", level="warning", to=self._to, error=error)
        else:
            self._log.write("tap_shipping", to=self._to)

    def _ended(self, code: int) -> None:
        assert self._child is not None, "it was started"
        pid, self._child.returncode = self._child.pid, code
        self._child = None
        self._close()
        if not self._stopping:
            self._failing = True
            self._again()
            self._log.write("tap_ship_died", level="error", pid=pid, code=code, delay_s=self._delay_s)

    def _again(self) -> None:
        """Start it later, and later each time unless it has lived long."""
        lived = time.monotonic() - self._began_s >= STEADY_S
        self._delay_s = FIRST_DELAY_S if lived or not self._delay_s else min(LONGEST_DELAY_S, 2 * self._delay_s)
        self._timer = self._loop.call_later(self._delay_s, self.start)

    def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._socket is not None:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None

    async def stop(self) -> None:
        """Let it ship what is left, at most for ``END_S``, and end it. The tap's directory is complete, and the reaper may be closed."""
        self._stopping = True
        child = self._child
        self._close()
        if child is None:
            return
        try:
            await asyncio.to_thread(child.wait, END_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
