"""Notifies the service manager of start, reload and stop, by systemd's protocol (``sd_notify(3)``): a datagram with a line for each value.

The manager names its socket in ``NOTIFY_SOCKET``: a path, or an abstract name after ``@``. Without it nothing is sent. The variables of the protocol
are removed from the environment, so that child processes do not use them.
"""

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator, MutableMapping
from typing import Final

SEND_TIMEOUT_S: Final = 0.2  # How long the loop may wait for a manager whose queue is full. Then the message is lost, which is a row.
STOP_MARGIN_MS: Final = 15_000  # the time of a stop after the drain: the tap is flushed, processors end, the last counts are exported


class Notifier:
    """Sends messages to the manager. On the event loop's thread. ``environment``: ``NOTIFY_SOCKET``, ``WATCHDOG_USEC`` and ``WATCHDOG_PID`` are
    removed from it. ``on_failure``: gets the reason of the first of several failures in a row.
    """

    def __init__(self, environment: MutableMapping[str, str], on_failure: Callable[[str], None]) -> None:
        self._address: Final = environment.pop("NOTIFY_SOCKET", "")
        self._on_failure: Final = on_failure
        interval_s = _interval_s(environment.pop("WATCHDOG_USEC", ""), environment.pop("WATCHDOG_PID", ""))
        # the time between two keep-alive messages, half of the manager's limit; 0: it asks for none
        self.interval_s: Final = interval_s if self._address else 0.0
        self._failed = False
        self._stopping = False
        self._signing = False

    def ready(self, status: str, alive: Callable[[], bool]) -> None:
        """Report that framegate serves. From now on keep-alive messages are sent, whenever ``alive`` returns True."""
        self._send("READY=1", f"STATUS={status}")
        if self.interval_s and not self._signing:
            self._signing = True
            self._sign(asyncio.get_running_loop(), alive)

    @contextlib.contextmanager
    def reloading(self) -> Iterator[None]:
        """Report that files are reloaded while the block runs."""
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
        """Report that framegate drains, for ``drain_ms`` at most, and then ends; the manager is asked to wait for that."""
        self._stopping = True
        self._send("STOPPING=1", "STATUS=draining", f"EXTEND_TIMEOUT_USEC={(drain_ms + STOP_MARGIN_MS) * 1000}")

    def _sign(self, loop: asyncio.AbstractEventLoop, alive: Callable[[], bool]) -> None:
        """Send keep-alive messages as long as the liveness probe succeeds; without them the manager kills framegate."""
        loop.call_later(self.interval_s, self._sign, loop, alive)
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
    """The address for the socket module. Raises ValueError for other kinds than Unix sockets, such as ``vsock:``."""
    if address.startswith("@"):
        return "\0" + address[1:]
    if not address.startswith("/"):
        raise ValueError("NOTIFY_SOCKET is neither a path nor an abstract name")
    return address


def _interval_s(microseconds: str, pid: str) -> float:
    """Half of the manager's limit, in seconds; 0 if it has none, or it is for another process."""
    if not microseconds.isdecimal() or (pid and pid != str(os.getpid())):
        return 0.0
    return int(microseconds) / 2e6
