"""The wire of a TLS connection: what comes from its socket, in whole records, and ciphertext that waits for the socket to take it.

- *Records in.* OpenSSL is given whole ones only (``tls_record``); the one that is begun is held here, at most ``LONGEST`` bytes of it, and so are
  whole ones that OpenSSL did not come to.
- *Ciphertext out.* One write of the socket; what it does not take waits, and is booked at the memory pool.
"""

import socket
from typing import Final

from mypy_extensions import i64

from framegate.proxy.errors import TlsError, TransportError
from framegate.proxy.network.memory_pool import PIECE_OVERHEAD, TLS, Account
from framegate.proxy.network.run import Buffer, held, shorten
from framegate.proxy.network.tls_bio import BioPair
from framegate.proxy.network.tls_record import RECORD_HEADER, is_refused, missing, whole_records
from framegate.proxy.network.transport import Transport

__all__ = ["TlsWire"]


class TlsWire(Transport):
    """The part of a TLS transport that knows its socket, and no key."""

    def __init__(self, sock: socket.socket, account: Account, bios: BioPair) -> None:
        super().__init__()
        self._sock: Final = sock
        self._recv: Final = sock.recv
        self._send: Final = sock.send
        self._account: Final = account
        self._bios: Final = bios
        self._failure: TlsError | None = None
        self._held: bytes = b""  # what came and OpenSSL has not seen: a record begun
        self._whole: bool = False  # what is held begins with a whole record
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
        """Give OpenSSL the records that are whole with ``data``, and hold the one that is begun; whether there were any."""
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
        """Keep the whole records that OpenSSL did not come to, before the one that is begun; behind an end there is nothing to keep."""
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
        if not self._push(waiting):  # what still waits is booked instead of what waited before
            return False
        self._account.release(TLS, self.booked, self)
        self.booked = 0
        return True

    def _say(self, written: bytes) -> bool:
        """Send what OpenSSL wrote by itself, behind what waits; True when nothing waits."""
        if len(written) == 0:
            return self.flush()
        if self.booked != 0:
            waiting = self._waiting
            waiting.append(written)
            self._keep(waiting)
            return self.flush()
        return self._push_one(written)

    def _push_one(self, data: Buffer) -> bool:
        """One write of the socket when nothing waits; what it does not take waits."""
        try:
            sent: i64 = self._send(data)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise self._lost(error) from error
        self.wire_sent += sent
        if sent == len(data):
            return True
        self._keep([shorten(data, sent)])
        return False

    def _push(self, pieces: list[Buffer]) -> bool:
        """As ``_push_one``, for several pieces, or none."""
        if len(pieces) <= 1:
            return not pieces or self._push_one(pieces[0])
        try:
            sent: i64 = self._sock.sendmsg(pieces)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise self._lost(error) from error
        self.wire_sent += sent
        for index, piece in enumerate(pieces):
            size: i64 = len(piece)
            if sent < size:
                self._keep([shorten(piece, sent), *pieces[index + 1 :]])
                return False
            sent -= size
        return True

    def _keep(self, pieces: list[Buffer]) -> None:
        """Let ciphertext wait; what it keeps in memory is booked, with its overhead, instead of what was booked before."""
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

    def _lost(self, error: OSError) -> TransportError:
        """What a write that failed is told as."""
        return TransportError(f"write failed: {error.strerror}", errno=error.errno or 0)
