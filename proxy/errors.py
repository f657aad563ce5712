"""The errors of the data path, as a tree of classes.

::

    ProxyError
    ├── ConfigError                 the configuration cannot be used
    ├── PeerError                   the other end broke the rules
    │   ├── FrameTooLargeError      a size above the limit in force
    │   ├── NegativeSizeError       a size below zero
    │   ├── KafkaFormatError        a Kafka message that does not follow its schema
    │   └── WrongProtocolError      the first bytes belong to another protocol
    ├── TransportError              the network failed
    │   ├── ConnectError            an upstream refused, or did not answer in time
    │   └── TlsError                TLS failed
    ├── AuthenticationError         the other end did not prove its identity
    │   └── LoginError              our login to an upstream failed
    └── InternalError               our bug
        └── IllegalTransitionError  an event that the state table has no row for
"""

from typing import Literal

Side = Literal["downstream", "upstream", "internal"]


class ProxyError(Exception):
    """The base of the tree."""

    def __init__(self, message: str, *, side: Side = "internal") -> None:
        super().__init__(message)
        self.side: Side = side  # that caused the error: the client, the upstream, or framegate itself


class ConfigError(ProxyError):
    """The configuration cannot be used."""


class PeerError(ProxyError):
    """The other end broke the rules of the protocol."""


class FrameTooLargeError(PeerError):
    """A size header announces more than the limit. ``size`` and ``limit``: bytes of the body; ``framing``: of the other side, if its largest size is
    the limit; ``rule``: the name of the limit rule, if the limit is of one.
    """

    def __init__(self, size: int, limit: int, *, side: Side, framing: str = "", rule: str = "") -> None:
        field = f", the most that {framing} can say" if framing else f" of the limit rule {rule}" if rule else ""
        super().__init__(f"frame of {size} bytes exceeds the limit of {limit}{field}", side=side)
        self.size = size
        self.limit = limit
        self.rule = rule


class NegativeSizeError(PeerError):
    """A size header is below zero."""

    def __init__(self, size: int, *, side: Side) -> None:
        super().__init__(f"frame size {size} is negative", side=side)
        self.size = size


class KafkaFormatError(PeerError):
    """A Kafka message does not follow its schema. ``position``: of the fault, in bytes from the beginning of the frame's body."""

    def __init__(self, what: str, position: int, *, side: Side = "upstream") -> None:
        super().__init__(f"{what} at byte {position} of a Kafka message", side=side)
        self.position = position


class WrongProtocolError(PeerError):
    """The first bytes of a connection belong to another protocol than that of what is ``expected``; ``protocol`` names it."""

    def __init__(self, protocol: str, *, side: Side, expected: str = "a frame") -> None:
        super().__init__(f"the first bytes are {protocol}, not {expected}", side=side)
        self.protocol = protocol


class TransportError(ProxyError):
    """The network failed under a connection. ``errno``: of the system, 0 if there is none."""

    def __init__(self, message: str, *, side: Side = "internal", errno: int = 0) -> None:
        super().__init__(message, side=side)
        self.errno = errno


class ConnectError(TransportError):
    """A connection to an upstream could not be made."""


class TlsError(TransportError):
    """TLS failed, in the handshake or later. ``reason``: a short word for logs, such as ``unknown_ca`` or ``not_tls``."""

    def __init__(self, message: str, *, reason: str, side: Side = "internal") -> None:
        super().__init__(message, side=side)
        self.reason = reason


class AuthenticationError(ProxyError):
    """The other end did not prove its identity."""

    def __init__(self, message: str, *, side: Side = "internal", answer: bytes = b"") -> None:
        super().__init__(message, side=side)
        self.answer = answer  # the body of the frame to send to it; empty: none
        self.attempted = ""  # the name that it gave, cut but not escaped; empty: none, or not known
        self.failure = ""  # of a client's SASL: the word of ``cells.metrics.AUTHENTICATION_ERRORS``; empty: of something else


class LoginError(AuthenticationError):
    """Our login to an upstream failed."""

    def __init__(self, message: str, *, refused: bool, denied: bool = False) -> None:
        super().__init__(message, side="upstream")
        self.refused = refused  # the upstream refused it, or is not genuine; otherwise the secret was not available
        self.denied = denied  # there is no login for this client, so the client is refused; otherwise the client is not at fault


class InternalError(ProxyError):
    """A bug of framegate: a caller broke a contract."""


class IllegalTransitionError(InternalError):
    """A state table has no row for the event; the state is unchanged."""

    def __init__(self, state: object, event: object) -> None:
        super().__init__(f"no transition from {state} on {event}")
        self.state = state
        self.event = event


def quoted(text: str, most: int = 100) -> str:
    """A text from a peer for rows, labels and error messages: quoted, with escapes for characters that cannot be printed, and cut."""
    return repr(text if len(text) <= most else text[:most] + "…")


def shown(text: str, most: int = 100) -> str:
    """The same without the quotes."""
    return quoted(text, most)[1:-1]
