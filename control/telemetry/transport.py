"""Carries one export to a collector and judges the answer. ``grpc_transport`` and ``http_transport`` are the two ways.

OpenTelemetry's own exporters are not used for this: they take no notice of a partial success, wait by the wall clock, and read an answer over HTTP
however long it is. A collector gets ``timeout_s`` for an export with all its attempts, and an answer of it at most 64 KiB of memory.
"""

import random
import ssl
import threading
import time
from collections.abc import Callable
from typing import Final

from control.errors import StartError
from control.telemetry.attempt import Outcome, Transport
from control.telemetry.environment import Target

__all__ = ["Carrier", "transport"]

_FIRST_PAUSE_S: Final = 1.0
_LAST_PAUSE_S: Final = 30.0


class Carrier:
    """Sends one export after the other, each as often as it makes sense and is allowed.

    Args:
        transport: to one collector.
        timeout_s: of one export, with all its attempts.
        clock: seconds; steps of the wall clock must not move it.
    """

    def __init__(self, transport: Transport, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._transport = transport
        self._timeout_s = timeout_s
        self._clock = clock
        self._closed = threading.Event()

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._closed.is_set()

    def carry(self, request: bytes) -> Outcome:
        """Send, and on what passes try again, until the time is over or ``close`` is called."""
        deadline = self._clock() + self._timeout_s
        pause_s = _FIRST_PAUSE_S
        while True:
            if self._closed.is_set():
                return Outcome("other", "telemetry ends")
            outcome = self._transport.send(request, max(deadline - self._clock(), 0.001))
            wait_s = pause_s * random.uniform(0.8, 1.2) if outcome.pause_s is None else outcome.pause_s
            if not outcome.again or wait_s > deadline - self._clock():
                return outcome
            if self._closed.wait(wait_s):
                return outcome
            pause_s = min(2 * pause_s, _LAST_PAUSE_S)

    def close(self) -> None:
        """End what is under way; nothing is sent any more. Any thread."""
        self._closed.set()
        self._transport.close()


def transport(target: Target) -> Transport:
    """The way to a collector. It connects when something is sent.

    Raises:
        StartError: certificates or the key cannot be used.
    """
    try:
        if target.protocol == "grpc":
            from control.telemetry.grpc_transport import GrpcTransport

            return GrpcTransport(target)
        from control.telemetry.http_transport import HttpTransport

        return HttpTransport(target)
    except (OSError, ssl.SSLError) as error:
        text = f"the certificates of the collector for {target.signal} ({target.endpoint}) cannot be used: {error}"
        raise StartError(text, reason="TELEMETRY_CERTIFICATE_UNUSABLE", signal=target.signal) from error
