"""The lower part of the TLS transport: between the socket and OpenSSL.

- *The memory BIOs are shared.* A memory BIO never shrinks below its largest fill, so two for each connection would be most of the memory of an idle
  one. An SSL object uses its BIOs only within calls, so all connections of a thread share one pair (``BioPair``). It must be empty between the calls
  of two connections: ``give_back``, from a ``finally``, empties both BIOs and returns their bytes to the connection that made the calls; if a
  connection did not reach it, because memory ran out, ``lend`` drops the bytes. Between calls OpenSSL keeps an incomplete flight or record.
- *Records in.* OpenSSL is given whole records only (``tls_record``). The incomplete one, at most ``LONGEST`` bytes, is held here, and so are whole
  records that OpenSSL has not read.
- *Ciphertext out.* It is written with one write of the socket. The rest waits, and is booked at the memory pool.
"""

import socket
import ssl
from typing import Any, Final

from mypy_extensions import i64

from framegate.proxy.errors import TlsError, TransportError
from framegate.proxy.network.memory_pool import PIECE_OVERHEAD, TLS, Account
from framegate.proxy.network.options import TlsSettings
from framegate.proxy.network.run import Buffer, held, shorten
from framegate.proxy.network.tls_record import RECORD_HEADER, is_refused, missing, whole_records
from framegate.proxy.network.transport import Transport


class BioPair:
    """The two memory BIOs of a thread, lent to one connection at a time."""

    def __init__(self) -> None:
        self._incoming: Final = ssl.MemoryBIO()
        self._outgoing: Final = ssl.MemoryBIO()
        self._lent: bool = False

    def wrap(self, settings: TlsSettings, context: ssl.SSLContext) -> Any:
        """Make an SSL object over the pair, with one of the contexts of the settings. It is the inner object of an ``ssl.SSLObject``, which only adds
        a Python call to each call; ``unwrap`` is called ``shutdown`` here. Raises ssl.SSLError, ValueError: OpenSSL refuses the settings.
        """
        name = None if settings.server_side else settings.server_name
        outer: Any = context.wrap_bio(self._incoming, self._outgoing, server_side=settings.server_side, server_hostname=name)
        return outer._sslobj

    def lend(self) -> None:
        """Lend the pair to a connection, before its calls of OpenSSL."""
        if self._lent:
            self._incoming.read()
            self._outgoing.read()
        self._lent = True

    def feed(self, data: Buffer) -> None:
        assert self._lent, "bytes belong to the connection that has the pair"
        self._incoming.write(data)

    @property
    def is_fed(self) -> bool:
        """Whether OpenSSL has not read all bytes."""
        return bool(self._incoming.pending)

    def give_back(self) -> tuple[bytes, bytes]:
        """End the loan, after the calls. Returns the bytes that OpenSSL wrote, and those that it did not read."""
        written: bytes = self._outgoing.read() if self._outgoing.pending else b""
        unread: bytes = self._incoming.read() if self._incoming.pending else b""
        self._lent = False
        return written, unread


class TlsWire(Transport):
    """The part of a TLS transport that reads and writes the socket."""

    def __init__(self, sock: socket.socket, account: Account, bios: BioPair) -> None:
        super().__init__()
        self._sock: Final = sock
        self._recv: Final = sock.recv
        self._send: Final = sock.send
        self._account: Final = account
        self._bios: Final = bios
        self._failure: TlsError | None = None
        self._held: bytes = b""  # received bytes that OpenSSL does not have: an incomplete record
        self._whole: bool = False  # ``_held`` begins with a whole record
        self._notified: bool = False  # the peer's close-notify was read
        self._waiting: list[Buffer] = []

    # In.

    def _receive(self, size: i64) -> bytes | None:
        try:
            data = self._recv(size)
        except BlockingIOError:
            return None
        except OSError as error:
            raise TransportError(f"read failed: {error.strerror}", errno=error.errno or 0) from error
        self.wire_received += len(data)
        return data

    def _feed(self, data: bytes) -> bool:
        """Give OpenSSL the records that are whole with ``data``, and hold the incomplete one. Returns whether there were whole ones."""
        held = self._held
        start: i64 = 0
        if len(held) != 0:
            start = missing(held)
            if start > len(data) or len(held) < RECORD_HEADER:
                data = held + data
                start = 0
            else:
                self._bios.feed(held)
        end = whole_records(data, start)
        begun = data[end:]
        if is_refused(begun):
            begun = b""
            end = len(data)
        self._held = begun
        if end == 0:
            return False
        self._bios.feed(data if len(begun) == 0 else memoryview(data)[:end])
        return True

    def _hold(self, unread: bytes) -> None:
        """Hold the whole records that OpenSSL has not read, unless the stream has ended or failed."""
        if len(unread) != 0 and not self._notified and self._failure is None:
            self._held = unread + self._held
            self._whole = True

    # Out.

    def flush(self) -> bool:
        if self.booked == 0:
            return True
        waiting = self._waiting
        self._waiting = []
        self.pending_write = 0
        if not self._push(waiting):  # it has replaced the booking by that of the rest
            return False
        self._account.release(TLS, self.booked, self)
        self.booked = 0
        return True

    def _send_written(self, written: bytes) -> bool:
        """Send ciphertext that OpenSSL wrote by itself, behind what waits. Returns True if nothing waits."""
        if len(written) == 0:
            return self.flush()
        if self.booked != 0:
            waiting = self._waiting
            waiting.append(written)
            self._keep(waiting)
            return self.flush()
        return self._push_one(written)

    def _push_one(self, data: Buffer) -> bool:
        """Write to the socket once, if nothing waits. The rest waits."""
        try:
            sent: i64 = self._send(data)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise self._write_error(error) from error
        self.wire_sent += sent
        if sent == len(data):
            return True
        self._keep([shorten(data, sent)])
        return False

    def _push(self, pieces: list[Buffer]) -> bool:
        if len(pieces) <= 1:
            return not pieces or self._push_one(pieces[0])
        try:
            sent: i64 = self._sock.sendmsg(pieces)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise self._write_error(error) from error
        self.wire_sent += sent
        for index, piece in enumerate(pieces):
            size: i64 = len(piece)
            if sent < size:
                self._keep([shorten(piece, sent), *pieces[index + 1 :]])
                return False
            sent -= size
        return True

    def _keep(self, pieces: list[Buffer]) -> None:
        """Keep ciphertext that waits. Its booking, with the overhead, replaces the one before."""
        size: i64 = 0
        booked: i64 = 0
        for piece in pieces:
            size += len(piece)
            booked += held(piece) + PIECE_OVERHEAD
        self._account.charge(TLS, booked, self)
        self._account.release(TLS, self.booked, self)
        self.booked = booked
        self._waiting = pieces
        self.pending_write = size

    def _write_error(self, error: OSError) -> TransportError:
        return TransportError(f"write failed: {error.strerror}", errno=error.errno or 0)
