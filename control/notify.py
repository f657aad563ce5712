"""What a service manager is told of a framegate's life: systemd's notification protocol (``sd_notify(3)``), a line for each fact in one datagram.

The manager names its socket in ``NOTIFY_SOCKET``: a path, or an abstract name behind ``@``. Where there is none, nothing is sent. The variables of
the protocol leave the environment, so that no process that framegate starts speaks for it.
"""

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator, MutableMapping
from typing import Final

__all__ = ["Notifier"]

SEND_TIMEOUT_S: Final = 0.2
"""The manager's queue is full: so long the loop may wait for it. What is not taken then is lost, and a row."""
STOP_MARGIN_MS: Final = 15_000
"""What a stop takes behind the drain: the tap is flushed, processors end, the last counts are exported."""


class Notifier:
    """Speaks to the manager. On the event loop's thread.

    Args:
        environment: holds ``NOTIFY_SOCKET``, ``WATCHDOG_USEC`` and ``WATCHDOG_PID``, which are taken out of it.
        on_failure: is told why the manager could not be told something, the first time in a row.
    """

    def __init__(self, environment: MutableMapping[str, str], on_failure: Callable[[str], None]) -> None:
        self._address: Final = environment.pop("NOTIFY_SOCKET", "")
        self._on_failure: Final = on_failure
        self._interval_s = _interval_s(environment.pop("WATCHDOG_USEC", ""), environment.pop("WATCHDOG_PID", ""))
        self._failed = False
        self._stopping = False
        self._signing = False

    @property
    def interval_s(self) -> float:
        """Between two signs of life, half of what the manager waits; 0: it asks for none."""
        return self._interval_s if self._address else 0.0

    def ready(self, status: str, alive: Callable[[], bool]) -> None:
        """It serves. From now on signs of life go out, for as long as ``alive`` says so whenever it is asked."""
        self._send("READY=1", f"STATUS={status}")
        if self.interval_s and not self._signing:
            self._signing = True
            self._sign(asyncio.get_running_loop(), alive)

    @contextlib.contextmanager
    def reloading(self) -> Iterator[None]:
        """Files are read again for the length of a block."""
        if self._stopping:
            yield
            return
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
        try:
            yield
        finally:
            if not self._stopping:
                self._send("READY=1")

    def stopping(self, drain_ms: int) -> None:
        """It drains, for so long at most, and ends then: the manager is asked to wait for that."""
        self._stopping = True
        self._send("STOPPING=1", "STATUS=draining", f"EXTEND_TIMEOUT_USEC={(drain_ms + STOP_MARGIN_MS) * 1000}")

    def _sign(self, loop: asyncio.AbstractEventLoop, alive: Callable[[], bool]) -> None:
        """The manager kills who is silent: so a framegate that found itself dead says nothing any more, as the liveness probe has it."""
        loop.call_later(self._interval_s, self._sign, loop, alive)
        if alive():
            self._send("WATCHDOG=1")

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.settimeout(SEND_TIMEOUT_S)
                sock.connect(_sockaddr(self._address))
                sock.send("\n".join(lines).encode())
        except (OSError, ValueError) as error:
            if not self._failed:
                self._on_failure(f"{lines[0]} could not be told to {self._address}: {getattr(error, 'strerror', None) or error}")
            self._failed = True
        else:
            self._failed = False


def _sockaddr(address: str) -> str:
    """As the socket module has it. Raises ValueError for what is no Unix socket, as ``vsock:``."""
    if address.startswith("@"):
        return "\0" + address[1:]
    if not address.startswith("/"):
        raise ValueError("NOTIFY_SOCKET is neither a path nor an abstract name")
    return address


def _interval_s(microseconds: str, pid: str) -> float:
    """Half of the manager's patience, in seconds; 0 when it has none, or means another process."""
    if not microseconds.isdecimal() or (pid and pid != str(os.getpid())):
        return 0.0
    return int(microseconds) / 2e6
