"""The error tree. Every error of the data path is one of these, and the side that caused it can be read from the class.

::

    ProxyError
    ├── ConfigError                 the configuration cannot be used
    ├── PeerError                   the other end broke the rules
    │   ├── FrameTooLargeError      a size above the limit in force
    │   ├── NegativeSizeError       a size below zero
    │   └── WrongProtocolError      the first bytes belong to another protocol
    ├── TransportError              the network failed
    │   ├── ConnectError            an upstream refused, or did not answer in time
    │   └── TlsError                TLS failed
    ├── AuthenticationError         the other end is not who it should be
    │   └── LoginError              an upstream does not take us for who we say we are
    └── InternalError               our bug
        └── IllegalTransitionError  an event that the state table has no row for
"""

from typing import Literal

__all__ = [
    "AuthenticationError",
    "ConfigError",
    "ConnectError",
    "FrameTooLargeError",
    "IllegalTransitionError",
    "InternalError",
    "LoginError",
    "NegativeSizeError",
    "PeerError",
    "ProxyError",
    "Side",
    "TlsError",
    "TransportError",
    "WrongProtocolError",
    "quoted",
]

_MAX_QUOTED = 100

Side = Literal["downstream", "upstream", "internal"]


class ProxyError(Exception):
    """The base of the tree.

    Attributes:
        side: who is at fault or out of reach: the client's side, the upstream's, or we ourselves.
    """

    def __init__(self, message: str, *, side: Side = "internal") -> None:
        super().__init__(message)
        self.side: Side = side


class ConfigError(ProxyError):
    """The configuration cannot be used."""


class PeerError(ProxyError):
    """The other end broke the rules of the protocol."""


class FrameTooLargeError(PeerError):
    """A size header announced more than the limit allows. ``size`` and ``limit`` are bytes of the frame's body; ``framing`` is that of the side which
    could not say a larger size, when that is the limit.
    """

    def __init__(self, size: int, limit: int, *, side: Side, framing: str = "") -> None:
        field = f", the most that {framing} can say" if framing else ""
        super().__init__(f"frame of {size} bytes exceeds the limit of {limit}{field}", side=side)
        self.size = size
        self.limit = limit


class NegativeSizeError(PeerError):
    """A size header is below zero."""

    def __init__(self, size: int, *, side: Side) -> None:
        super().__init__(f"frame size {size} is negative", side=side)
        self.size = size


class WrongProtocolError(PeerError):
    """The first bytes of a connection belong to another protocol; ``protocol`` names it."""

    def __init__(self, protocol: str, *, side: Side) -> None:
        super().__init__(f"the first bytes are {protocol}, not a frame", side=side)
        self.protocol = protocol


class TransportError(ProxyError):
    """The network failed under a connection. ``errno`` is the system's number, 0 when there is none."""

    def __init__(self, message: str, *, side: Side = "internal", errno: int = 0) -> None:
        super().__init__(message, side=side)
        self.errno = errno


class ConnectError(TransportError):
    """A connection to an upstream could not be made."""


class TlsError(TransportError):
    """TLS failed, in the handshake or behind it. ``reason`` is a short word for logs, such as ``unknown_ca`` or ``not_tls``."""

    def __init__(self, message: str, *, reason: str, side: Side = "internal") -> None:
        super().__init__(message, side=side)
        self.reason = reason


class AuthenticationError(ProxyError):
    """The other end did not prove who it is. ``answer`` is the body of the frame that it is told so with; empty: it is told nothing."""

    def __init__(self, message: str, *, side: Side = "internal", answer: bytes = b"") -> None:
        super().__init__(message, side=side)
        self.answer = answer


class LoginError(AuthenticationError):
    """We are not let in by an upstream.

    Attributes:
        refused: it said so, or cannot be believed; else what proves who we are was not to be had.
        denied: there is no login for this client, which may not come in; otherwise the client may, and it is we who cannot log in.
    """

    def __init__(self, message: str, *, refused: bool, denied: bool = False) -> None:
        super().__init__(message, side="upstream")
        self.refused = refused
        self.denied = denied


class InternalError(ProxyError):
    """Our bug: a caller broke a contract."""


class IllegalTransitionError(InternalError):
    """A state table has no row for this event; the state is unchanged."""

    def __init__(self, state: object, event: object) -> None:
        super().__init__(f"no transition from {state} on {event}")
        self.state = state
        self.event = event


def quoted(text: str) -> str:
    """A name that a peer said, as an error's words have it: in quotes, in printable characters, and no longer than a line may be."""
    return repr(text if len(text) <= _MAX_QUOTED else text[:_MAX_QUOTED] + "…")
