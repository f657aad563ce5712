"""The memory BIOs between OpenSSL and the sockets: one pair for all the TLS connections of a thread.

A memory BIO never shrinks below its largest fill, so two for each connection would be most of what an idle one costs. An SSL object only
refers to its BIOs, and touches them within calls alone; so all of a thread's may refer to the same two, if no byte stays there between the
calls of one connection and those of the next. This module is the only one that sees the BIOs, and sees to that:

- ``lend`` is the way in, ``give_back`` the way out, from a ``finally``: it empties both, whatever happened, and what they held returns to the
  connection whose call it was.
- Should a connection not have come to its ``give_back`` (it cannot, but memory may run out within), ``lend`` forgets what it left: the
  exception has closed it, and its bytes are nobody else's.

Between calls OpenSSL holds by itself what it needs: the flight of a handshake that is not whole in a buffer before the BIO, a record begun in a
buffer behind it.
"""

import ssl
from typing import Any, Final

from framegate.proxy.network.options import TlsSettings
from framegate.proxy.network.run import Buffer

__all__ = ["BioPair"]


class BioPair:
    """Lent to one connection at a time, empty; one thread uses it."""

    def __init__(self) -> None:
        self._incoming: Final = ssl.MemoryBIO()
        self._outgoing: Final = ssl.MemoryBIO()
        self._lent: bool = False

    def wrap(self, settings: TlsSettings, context: ssl.SSLContext) -> Any:
        """An SSL object over the pair; of a listener that has several contexts, with this one. It is the one that ``ssl.SSLObject`` is around: that
        passes each call on by a call of Python's, and does nothing else (but for ``unwrap``, which is ``shutdown`` here).

        Raises:
            ssl.SSLError, ValueError: OpenSSL does not want the settings.
        """
        name = None if settings.server_side else settings.server_name
        outer: Any = context.wrap_bio(self._incoming, self._outgoing, server_side=settings.server_side, server_hostname=name)
        return outer._sslobj

    def lend(self) -> None:
        """Before the calls of one connection."""
        if self._lent:
            self._forget()
        self._lent = True

    def feed(self, data: Buffer) -> None:
        """Give OpenSSL bytes to read."""
        assert self._lent, "bytes belong to the connection that has the pair"
        self._incoming.write(data)

    @property
    def is_fed(self) -> bool:
        """Whether OpenSSL has bytes left to read."""
        return bool(self._incoming.pending)

    def give_back(self) -> tuple[bytes, bytes]:
        """After the calls of one connection, however they ended: what OpenSSL wrote, and what it was fed and did not read."""
        written: bytes = self._outgoing.read() if self._outgoing.pending else b""
        unread: bytes = self._incoming.read() if self._incoming.pending else b""
        self._lent = False
        return written, unread

    def _forget(self) -> None:
        self._incoming.read()
        self._outgoing.read()
