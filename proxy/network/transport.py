"""The transport: moves bytes between one socket and one channel. Plaintext and TLS look the same from above.

Contract, held by one check suite over every implementation:

- Nothing blocks. ``read`` gives None when there is nothing now, ``b""`` at the end of the stream, once and for ever.
- ``write`` takes what it can; what it has taken goes out by itself or by ``flush``. ``pending_write`` bytes have been taken and not gone out.
- Errors of the network and of the peer are ``TransportError``; nothing else is raised for what a peer does.
- ``close`` may be called at any time, and twice; the socket stays open until the selector closes it.
"""

import abc
from typing import Final

from mypy_extensions import i64, mypyc_attr

from framegate.proxy.network.run import Buffer

__all__ = ["DONE", "ENDED", "WANT_READ", "WANT_WRITE", "Identity", "Transport"]

# What a handshake step waits for.
DONE: Final = 0
WANT_READ: Final = 1
WANT_WRITE: Final = 2
ENDED: Final = 3


class Identity:
    """What a transport knows about the peer when its handshake is done.

    Attributes:
        version, cipher: of TLS; empty for plaintext.
        subject: the distinguished name of the certificate that was verified, in RFC 2253 form, most specific part first; None without a certificate.
        certificate: the peer's certificate in DER form, or None; a channel keeps it no longer than until the peer is authenticated.
        serial: the serial number of the certificate that was verified, as ``der.serial_of`` has it; empty without one.
        number, shown: of ``TlsSettings``, with which the handshake was done.
        resumed: a TLS session of before was taken up again: no certificate was exchanged.
        peer: its address, as the channel has it.
        mechanism: of SASL, with which the peer authenticated; empty: none.
    """

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
        self.mechanism: str = ""
        self.peer: str = ""
        self.serial: Final = serial
        self.version = version
        self.cipher = cipher
        self.subject = subject
        self.certificate = certificate
        self.number: Final[i64] = number
        self.shown: Final = shown
        self.resumed: Final = resumed


@mypyc_attr(allow_interpreted_subclasses=True)
class Transport(abc.ABC):
    """Bytes in, bytes out.

    Attributes:
        wire_received, wire_sent: bytes on the wire.
        pending_write: bytes taken by ``write`` that the socket has not.
        booked: what they keep in memory, booked at the memory pool.
        is_plain: what passes is what the socket has: ``peek`` can be asked, and bytes may pass the transport by.
        clean_end: the end of the stream was announced as the protocol wants it; False for a TLS peer that sends FIN without close-notify.
    """

    def __init__(self, *, is_plain: bool = False) -> None:
        self.is_plain: Final = is_plain
        self.wire_received: i64 = 0
        self.wire_sent: i64 = 0
        self.pending_write: i64 = 0
        self.booked: i64 = 0
        self.clean_end: bool = True

    @abc.abstractmethod
    def handshake(self) -> i64:
        """Take the handshake as far as it goes now: DONE, WANT_READ, WANT_WRITE, or ENDED when the peer closed within it."""

    @abc.abstractmethod
    def read(self, size: i64) -> bytes | None:
        """At most one read of the socket; at most ``size`` bytes, which is at least 1."""

    @abc.abstractmethod
    def has_buffered(self) -> bool:
        """Whether ``read`` would give something although the socket may stay silent."""

    def peek(self, size: i64) -> bytes:
        """The first bytes that ``read`` would give, at most ``size``, left where they are; none at the end, or when there are none now.

        Raises:
            NotImplementedError: it is not ``is_plain``: what ``read`` would give cannot be seen.
        """
        raise NotImplementedError

    def read_ahead(self, size: i64) -> bytes:
        """As ``peek``, also where what is read cannot be left where it is: then it is kept here until ``read`` gives it."""
        return self.peek(size)

    @abc.abstractmethod
    def obtainable(self, wanted: i64) -> i64:
        """How many bytes could be read now, by as many reads as it takes; ``wanted`` or more when there are so many. May say too much: of
        records that hold less than they seem to, and of what ``read`` will refuse. An error of the socket is raised.
        """

    def least(self, wanted: i64) -> i64:
        """How many bytes must at least lie in the socket before ``wanted`` can be read, when ``obtainable`` has just said that they cannot."""
        return max(wanted, 1)

    @abc.abstractmethod
    def write(self, data: Buffer) -> i64:
        """Take bytes to send, at most one write of the socket; how many were taken."""

    @abc.abstractmethod
    def write_gather(self, pieces: list[Buffer]) -> i64:
        """As ``write``, for several pieces in order."""

    @abc.abstractmethod
    def flush(self) -> bool:
        """Send what is pending; True when nothing is."""

    @abc.abstractmethod
    def shut_write(self) -> bool:
        """End our side of the stream once nothing is pending; False when it could not go out yet, and is to be called again."""

    @abc.abstractmethod
    def identity(self) -> Identity:
        """The identity of the peer, after the handshake."""

    @abc.abstractmethod
    def close(self) -> None:
        """Best effort at an orderly end; give back everything booked."""
