"""The thread that talks to the control process. It works also while a handler blocks the main thread.

It owns the command socket: rows go out, ``stop`` comes in. It publishes the state of the process in shared cells. The process begins to end after
``stop``, at the end of file of the socket, or after SIGTERM. Then a call of users' code that has not returned after 2 s is interrupted
(``Interrupted`` is raised in it), again after 3 and 4 s, and after 4.8 s this thread exits the process.
"""

import contextlib
import os
import select
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Final

from framegate.proxy.handler.activity import Activity, HeartbeatCells, Interrupted
from framegate.proxy.server.link import LinkError, LinkReader, LinkWriter

BEAT_NS: Final = 250_000_000
INTERRUPTS_NS: Final = (2_000_000_000, 3_000_000_000, 4_000_000_000)  # when users' code is interrupted, after the beginning of the end
EXIT_NS: Final = 4_800_000_000
_FINISH: Final[Mapping[str, object]] = {"type": "finish"}  # Follows the last row; it is not sent
_MUST_ARRIVE: Final = frozenset({"ready", "failed", "parted"})


class Reporter:
    """Made in the main thread, which it interrupts. ``command``: the command socket; made non-blocking."""

    def __init__(self, command: socket.socket, reader: LinkReader, activity: Activity, cells: HeartbeatCells) -> None:
        command.setblocking(False)
        self.is_ending = False  # the process is to end
        self.is_interruptible = True  # the main thread may be interrupted. False while it runs framegate's own code, which ends by itself.
        self._command: Final = command
        self._reader: Final = reader
        self._writer: Final = LinkWriter(command)
        self._activity: Final = activity
        self._cells: Final = cells
        self._rows: Final[deque[Mapping[str, object]]] = deque()
        self._wakeup, self._waker = socket.socketpair()
        self._wakeup.setblocking(False)
        self._waker.setblocking(False)
        self._beats = False
        self._is_overdue = False
        self._interrupts = list(INTERRUPTS_NS)
        self._ended_ns = 0
        self._on_end: Callable[[], None] | None = None
        self._lock: Final = threading.Lock()
        self._flushed: Final = threading.Event()
        self._main: Final = threading.get_ident()
        self._thread: Final = threading.Thread(target=self._run, name="reporter", daemon=True)

    def start(self) -> None:
        """Start the thread, and handle SIGTERM from now on."""
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._on_signal)
        self._thread.start()

    def notify(self, message: Mapping[str, object]) -> None:
        """Send a message after those before it. May be called from any thread."""
        self._rows.append(message)
        self._wake()

    def notify_ready(self, message: Mapping[str, object]) -> None:
        """Send the first message, and publish the state from now on."""
        self._rows.append(message)
        self._beats = True
        self._wake()

    def at_end(self, callback: Callable[[], None]) -> None:
        """Set what begins the end in the main thread. It is called once, from any thread; at once if the process already ends."""
        with self._lock:
            self._on_end = callback
            if not self.is_ending:
                return
        callback()

    def begin_end(self) -> None:
        """Begin the end of the process, and its deadlines. May be called from any thread; a second call has no effect."""
        with self._lock:
            if self.is_ending:
                return
            self.is_ending = True
            self._ended_ns = time.monotonic_ns()
            callback = self._on_end
        if callback is not None:
            callback()

    def finish(self) -> None:
        """Write all messages that control takes within a second. The deadlines go on."""
        self._beats = False
        self.begin_end()
        self.notify(_FINISH)
        self._flushed.wait(1.0)

    # In the main thread.

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """SIGTERM comes from outside, to end the process, or from this process, to interrupt users' code."""
        if not self._is_overdue:
            self._wake(number)  # in case users' code has replaced the wake-up descriptor
        elif self.is_interruptible:
            raise Interrupted("the process ends")

    # In the thread.

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._wakeup, select.POLLIN)
        poll.register(self._command, select.POLLIN)
        listens = True
        next_ns = 0
        while True:
            now_ns = time.monotonic_ns()
            if now_ns >= next_ns:
                next_ns = now_ns + BEAT_NS
                self._heartbeat(now_ns)
            self._enforce(now_ns)
            ready = dict(poll.poll(max(1, (next_ns - now_ns) // 1_000_000)))
            if self._wakeup.fileno() in ready:
                self._read_wakeup()
            if listens and self._command.fileno() in ready and not self._read_command():
                listens = False
                poll.unregister(self._command)
            self._write()

    def _read_wakeup(self) -> None:
        """Read numbers of signals; 0 means that a message was added."""
        if signal.SIGTERM in self._wakeup.recv(4096) and not self._is_overdue:
            self.begin_end()

    def _read_command(self) -> bool:
        """Read from control; False: end of file."""
        try:
            data = self._command.recv(65_536)
            messages = self._reader.feed(data)
        except BlockingIOError:
            return True
        except (OSError, LinkError):
            data, messages = b"", []
        if not data or any(message["type"] == "stop" for message in messages):
            self.begin_end()
        return bool(data)

    def _heartbeat(self, now_ns: int) -> None:
        if self._beats:
            self._cells.write(self._activity.heartbeat(now_ns), now_ns)

    def _write(self) -> None:
        """Write messages. Rows that control does not take are lost, ``_MUST_ARRIVE`` are not."""
        finish = False
        try:
            while self._rows:
                message = self._rows.popleft()
                finish = finish or message is _FINISH
                if message["type"] in _MUST_ARRIVE:
                    self._writer.queue(message)
                elif message is not _FINISH:
                    self._writer.offer(message)
            if not self._writer.flush() and finish:
                self._rows.append(_FINISH)
                return
        except OSError:  # control is gone
            self.begin_end()
        if finish:
            self._flushed.set()

    def _enforce(self, now_ns: int) -> None:
        """Interrupt users' code, or exit, when the deadline has passed."""
        if not self.is_ending:
            return
        took_ns = now_ns - self._ended_ns
        if took_ns >= EXIT_NS:
            os._exit(1)
        if self._interrupts and took_ns >= self._interrupts[0]:
            del self._interrupts[0]
            self._is_overdue = True
            signal.pthread_kill(self._main, signal.SIGTERM)

    def _wake(self, number: int = 0) -> None:
        with contextlib.suppress(BlockingIOError):  # full: it wakes in any case
            self._waker.send(bytes((number,)))
