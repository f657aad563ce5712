"""The transport: moves bytes between one socket and one channel, in plaintext or over TLS; and how many bytes a read asks for.

The contract, which one test suite checks for every implementation:

- Nothing blocks. ``read`` returns None if nothing can be read now, and ``b""`` at the end of the stream and from then on.
- ``write`` takes as many bytes as it can. ``pending_write`` of these are not sent yet; ``flush`` sends them.
- Errors of the network and of the peer are raised as ``TransportError``; a peer can cause no other exception.
- ``close`` may be called at any time, and twice. The socket stays open until the selector closes it.
"""

import abc
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64, mypyc_attr

from framegate.proxy.network.run import Buffer

if TYPE_CHECKING:
    from framegate.proxy.network.fast_path import TlsConnection

MIN_READ: Final = 448  # with the header of a ``bytes`` this is a small block of the interpreter's allocator, ten times cheaper than malloc
MAX_READ: Final = 262144  # 64 KiB frames cost 0.92 (plaintext) and 0.96 (TLS) of what they cost with 131072, in one run beside HAProxy
FIRST_READ: Final = 8 * MIN_READ
PLAIN_RECORD: Final = 16384  # the most plaintext of a record of TLS


def adapted(suits: i64, size: i64, length: i64) -> i64:
    """Return the read size that suits the traffic, after a read of ``size`` bytes returned ``length``. A large buffer for few bytes is expensive.
    ``suits``: the previous result; ``size`` may differ from it, for example within a frame that is cut through.
    """
    if length > size - (size >> 2):
        return min(max(size << 2, suits), MAX_READ)
    if length < size >> 2 and size == suits:
        return max(size >> 1, MIN_READ)
    return suits


# What a handshake step waits for.
DONE: Final = 0
WANT_READ: Final = 1
WANT_WRITE: Final = 2
ENDED: Final = 3


class Identity:
    """The facts about the peer that a transport knows after its handshake."""

    def __init__(
        self,
        version: str = "",
        cipher: str = "",
        subject: str | None = None,
        certificate: bytes | None = None,
        number: i64 = 0,
        shown: str = "",
        *,
        resumed: bool = False,
        serial: str = "",
    ) -> None:
        self.mechanism: str = ""  # the SASL mechanism with which the peer authenticated, or empty
        # the name that a client gave for the server (SNI), in lower case, without a trailing dot; empty: none, or it was not read
        self.host: str = ""
        self.peer: str = ""  # the peer's address as text
        self.serial: Final = serial  # the serial number of the verified certificate, as from ``certificate.serial_of``; empty without one
        # version, cipher: of TLS; empty for plaintext
        self.version = version
        self.cipher = cipher
        # the distinguished name of the verified certificate, in RFC 2253 form, most specific part first; None without a certificate
        self.subject = subject
        self.certificate = certificate  # the peer's certificate in DER form, or None; a channel drops it when the peer is authenticated
        # number, shown: of the ``TlsSettings`` of the handshake
        self.number: Final[i64] = number
        self.shown: Final = shown
        self.resumed: Final = resumed  # a TLS session was resumed, so no certificate was exchanged


@mypyc_attr(allow_interpreted_subclasses=True)
class Transport(abc.ABC):
    """Base class of transports."""

    def __init__(self, *, is_plain: bool = False) -> None:
        self.is_plain: Final = is_plain  # the bytes of the socket are those of the channel: ``peek`` works, and bytes may bypass the transport
        # wire_received, wire_sent: bytes on the wire
        self.wire_received: i64 = 0
        self.wire_sent: i64 = 0
        self.pending_write: i64 = 0  # bytes taken by ``write`` that the socket has not taken
        self.booked: i64 = 0  # the memory that they keep, booked at the memory pool
        self.native: TlsConnection | None = None  # of TLS, if C has it; only a transport of bytes that need no more handshake has one
        self.clean_end: bool = True  # False if a TLS peer ended its stream with FIN but without close-notify

    @abc.abstractmethod
    def handshake(self) -> i64:
        """Continue the handshake as far as possible now. Returns DONE, WANT_READ, WANT_WRITE, or ENDED if the peer closed within it."""

    @abc.abstractmethod
    def read(self, size: i64) -> bytes | None:
        """Read at most ``size`` bytes (at least 1), with at most one read of the socket."""

    @abc.abstractmethod
    def has_buffered(self) -> bool:
        """Whether ``read`` would return bytes or an end for which the socket gives no event."""

    def peek(self, size: i64) -> bytes:
        """Return at most ``size`` bytes that ``read`` will return, and leave them in the socket; empty at the end, or if there are none now. Raises
        NotImplementedError: the transport is not ``is_plain``.
        """
        raise NotImplementedError

    def read_ahead(self, size: i64) -> bytes:
        """As ``peek``, for every transport. One that is not ``is_plain`` keeps the bytes until ``read`` returns them."""
        return self.peek(size)

    @abc.abstractmethod
    def obtainable(self, wanted: i64) -> i64:
        """Return how many bytes can be read now, at least ``wanted`` if there are so many; too many if TLS records are padded. May raise."""

    def keep_rest(self, rest: bytes) -> None:  # noqa: B027 - only for a transport of TLS that C has
        """Keep ciphertext that the fast path could not write, to send it before anything else."""

    def least(self, wanted: i64) -> i64:
        """Return how many bytes the socket must hold before ``wanted`` can be read. Call it after ``obtainable`` has returned less than that."""
        return max(wanted, 1)

    @abc.abstractmethod
    def write(self, data: Buffer) -> i64:
        """Take bytes to send, with at most one write of the socket. Returns how many were taken."""

    @abc.abstractmethod
    def write_gather(self, pieces: list[Buffer]) -> i64:
        """As ``write``, for several pieces in order."""

    @abc.abstractmethod
    def flush(self) -> bool:
        """Send pending bytes. Returns True if none are left."""

    @abc.abstractmethod
    def shut_write(self) -> bool:
        """End our stream once nothing is pending. Returns False if the end was not sent yet; call it again then."""

    @abc.abstractmethod
    def identity(self) -> Identity:
        """Return the identity of the peer, after the handshake."""

    @abc.abstractmethod
    def close(self) -> None:
        """End the stream if possible, and release everything booked."""
