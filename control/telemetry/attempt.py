"""One attempt to send an export: what a transport offers, what became of it, and whom we trust."""

import ssl
from dataclasses import dataclass
from typing import Final, Protocol

from control.telemetry.environment import Target

__all__ = ["MAX_ANSWER", "Outcome", "Transport", "tls_context"]

MAX_ANSWER: Final = 64 * 1024
"""Bytes of an answer that are read."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one attempt.

    Attributes:
        end: one of ``proxy.cells.metrics.EXPORT_ERRORS``.
        text: why, for people; it has none of our headers.
        answer: what the collector said; only of a good end.
        again: whether another attempt makes sense.
        pause_s: how long the collector asks to wait before it; none: it does not say.
    """

    end: str
    text: str = ""
    answer: bytes = b""
    again: bool = False
    pause_s: float | None = None


class Transport(Protocol):
    """Sends once."""

    def send(self, request: bytes, timeout_s: float) -> Outcome:
        """One attempt, over in about ``timeout_s``."""

    def close(self) -> None:
        """Ends what is under way, and the connection. Any thread."""


def tls_context(target: Target) -> ssl.SSLContext:
    """Whom we trust, and who we are. Raises OSError: the files cannot be used."""
    context = ssl.create_default_context(cafile=target.certificate)
    if target.client_certificate is not None:
        context.load_cert_chain(target.client_certificate, target.client_key)
    return context
