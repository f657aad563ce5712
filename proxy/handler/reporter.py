"""The thread that speaks with control: whatever a handler does to the main thread, control hears how things stand and the process can be ended.

It owns the command socket: rows go out, ``stop`` comes in. How things stand goes to shared cells, with a heartbeat. The end of the process begins
with ``stop``, with the end of file of the socket, or with SIGTERM. Then the main thread has its time: after 2 s a call of the user's code that
has not returned is interrupted (``Interrupted`` is raised in it), again after 3 and 4 s, and after 4.8 s the process is ended from here.
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

__all__ = ["Reporter"]

BEAT_NS: Final = 250_000_000
INTERRUPTS_NS: Final = (2_000_000_000, 3_000_000_000, 4_000_000_000)
"""After these times the user's code is interrupted."""
EXIT_NS: Final = 4_800_000_000
_FINISH: Final[Mapping[str, object]] = {"type": "finish"}
"""Behind the last row: not sent."""
_MUST_ARRIVE: Final = frozenset({"ready", "failed", "parted"})


class Reporter:
    """Made in the main thread, which is the one that is interrupted.

    Args:
        command: non-blocking from here on.
        reader: what was read of it is in here.
        cells: where control finds how things stand.

    Attributes:
        is_ending: the process is to end.
        is_interruptible: when it is time, the main thread is interrupted. False while it is known to be in code of ours, which ends by itself.
    """

    def __init__(self, command: socket.socket, reader: LinkReader, activity: Activity, cells: HeartbeatCells) -> None:
        command.setblocking(False)
        self.is_ending = False
        self.is_interruptible = True
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
        """Begin; SIGTERM is ours from here on."""
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._on_signal)
        self._thread.start()

    def notify(self, message: Mapping[str, object]) -> None:
        """Send a message, in order, soon. From any thread."""
        self._rows.append(message)
        self._wake()

    def notify_ready(self, message: Mapping[str, object]) -> None:
        """Send the first words; from then on the cells say how things stand."""
        self._rows.append(message)
        self._beats = True
        self._wake()

    def at_end(self, callback: Callable[[], None]) -> None:
        """Call back once when the process is to end, at once if it is already; from the thread. It begins the end in the main thread."""
        with self._lock:
            self._on_end = callback
            if not self.is_ending:
                return
        callback()

    def begin_end(self) -> None:
        """The process is to end, and its time runs. From any thread; a second call does nothing."""
        with self._lock:
            if self.is_ending:
                return
            self.is_ending = True
            self._ended_ns = time.monotonic_ns()
            callback = self._on_end
        if callback is not None:
            callback()

    def finish(self) -> None:
        """Write what was told, as far as control takes it within a second. What is left of the process has its time, as ever."""
        self._beats = False
        self.begin_end()
        self.notify(_FINISH)
        self._flushed.wait(1.0)

    # In the main thread.

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """SIGTERM: of somebody who wants an end, or our own to interrupt the user's code."""
        if not self._is_overdue:
            self._wake(number)  # should the user's code have taken the descriptor that signals wake
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
        """A number of a signal, or 0: somebody told something."""
        if signal.SIGTERM in self._wakeup.recv(4096) and not self._is_overdue:
            self.begin_end()

    def _read_command(self) -> bool:
        """What control says; False: it will say no more."""
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
        """Write what was told; rows that control does not take are lost, what must arrive is not."""
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
        """What the end has come to."""
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
        with contextlib.suppress(BlockingIOError):  # it wakes anyhow
            self._waker.send(bytes((number,)))
