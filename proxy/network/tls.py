"""The TLS transport: OpenSSL between two memory BIOs, so that we do the reads and writes of the socket.

Theory of operation
- *The BIOs are shared* by all the connections of a thread (``tls_bio``): an idle connection holds none. They are lent for the calls of one
  connection; what OpenSSL wrote meanwhile goes to its socket, and what it did not read stays with the connection.
- *One read of the socket* is fed as far as records are whole (``tls_record``), then OpenSSL is asked for plaintext until it has read all of
  it; asking once more would raise. The record begun is held here, at most ``LONGEST`` bytes of it.
- *Plaintext is encrypted* in slices of a few records, at most ``AHEAD`` bytes before the socket has taken them. Ciphertext that waits is
  booked at the memory pool. Whatever OpenSSL wants to say by itself (alerts, key updates, tickets) is flushed after every call.
- *A handshake that fails* leaves an alert, which goes out before the failure is raised. In TLS 1.3 a client learns only with its first
  read that its certificate was refused: errors while reading are failures of TLS too.
- *Ends.* close-notify ends one direction, as FIN does; the other goes on. FIN without close-notify is an end too, but ``clean_end`` is
  then False. ``unwrap`` says close-notify, but it also reads: it is called only when nothing is waiting to be read.
- A server has no SSL object before the first record came: a silent connection is cheap, and bytes that are not TLS never reach OpenSSL.
- Renegotiation is refused by the context (``tls_context``).
"""

import socket
import ssl
import sys
from typing import Final

from mypy_extensions import i64

from proxy.errors import TlsError, TransportError
from proxy.network.distinguished_name import format_name
from proxy.network.memory_pool import PIECE_OVERHEAD, TLS, Account
from proxy.network.options import TlsSettings
from proxy.network.run import Buffer, held, shorten
from proxy.network.socket_buffers import queued
from proxy.network.tls_bio import BioPair
from proxy.network.tls_record import RECORD_HEADER, is_refused, least_overhead, missing, most_plaintext, whole_records
from proxy.network.transport import DONE, ENDED, WANT_READ, WANT_WRITE, Identity, Transport

__all__ = ["TlsTransport"]

PLAIN_RECORD: Final = 16384  # the most plaintext that a record holds
RECORD: Final = PLAIN_RECORD + 256 + 5  # the longest record
SLICE: Final = 65536  # encrypted at a time: a megabyte costs 0.9 of what it does a record at a time, and no less in larger slices
AHEAD: Final = 262144
MAX_PEEK: Final = 1 << 20  # ciphertext looked at; more is worth a read
SMALL_READ: Final = 448  # reads below this are exact reads of plaintext; the socket is asked for a record
# Handshake and alert. An SSLv2-style hello (0x80) is refused: its records have another form, and no client of today sends one.
FIRST_BYTES: Final = b"\x16\x15"


class TlsTransport(Transport):
    """One TLS connection over a non-blocking socket, as client or server."""

    def __init__(self, sock: socket.socket, settings: TlsSettings, account: Account, bios: BioPair) -> None:
        super().__init__()
        self._sock: Final = sock
        self._recv: Final = sock.recv
        self._send: Final = sock.send
        self._settings: Final = settings
        self._account: Final = account
        self._bios: Final = bios
        self._object: ssl.SSLObject | None = None
        self._failure: TlsError | None = None
        self._held: bytes = b""  # what came and OpenSSL has not seen: a record begun
        self._whole: bool = False  # what is held begins with a whole record
        self._ahead: bytes = b""  # what was read before it was asked for
        self._rest: bool = False  # the record read last may hold more plaintext: only then OpenSSL is asked
        self._waiting: list[Buffer] = []
        self._finished: bool = False
        self._notified: bool = False  # the peer's close-notify was read
        self._fin: bool = False
        self._overhead: i64 = 0  # of a record; known once it was asked for
        self._least: i64 = 1  # as ``least`` gives it
        self._said_notify: bool = False
        self._closed: bool = False

    # Handshake.

    def handshake(self) -> i64:
        if not self.flush():
            return WANT_WRITE
        if self._failure is not None:
            raise self._failure
        if self._finished:
            return DONE
        if self._object is None and not self._settings.server_side:
            return self._shake(b"")
        data = self._receive(RECORD)
        if data is None:
            return WANT_READ
        if len(data) == 0:
            return ENDED
        self._check_first(data)
        return self._shake(data)

    def _check_first(self, data: bytes) -> None:
        if self.wire_received == len(data) and data[0] not in FIRST_BYTES:
            raise TlsError(f"not TLS: the first bytes are {data[:8].hex(' ')}", reason="not_tls")

    def _shake(self, data: bytes) -> i64:
        """Go on with what came; a client begins with nothing."""
        bios = self._bios
        bios.lend()
        try:
            if self._feed(data) or len(data) == 0:
                self._ensure_object().do_handshake()
                self._finished = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self._failure = describe(error)
        finally:
            written, unread = bios.give_back()
        self._hold(unread)
        if not self._say(written):
            return WANT_WRITE
        self._raise_failure()
        return DONE if self._finished else WANT_READ

    def _ensure_object(self) -> ssl.SSLObject:
        if self._object is None:
            try:
                self._object = self._bios.wrap(self._settings)
            except (ssl.SSLError, ValueError) as error:
                raise TlsError(f"TLS cannot start: {error}", reason="setup") from error
        return self._object

    def identity(self) -> Identity:
        tls = self._object
        assert tls is not None, "an identity needs a finished handshake"
        cipher = tls.cipher()
        certificate = tls.getpeercert(binary_form=True)
        fields = None if certificate is None else tls.getpeercert()
        subject = format_name(fields["subject"]) if fields else None
        # The words are few, and OpenSSL's module makes new ones for each connection.
        settings = self._settings
        return Identity(
            sys.intern(tls.version() or ""), "" if cipher is None else sys.intern(cipher[0]), subject, certificate, settings.number, settings.shown
        )

    # Reading.

    def read(self, size: i64) -> bytes | None:
        ahead = self._ahead
        if len(ahead) != 0:
            self._ahead = ahead[size:]
            return ahead[:size]
        self._raise_failure()
        if self._at_end():
            return b""
        tls = self._object
        assert tls is not None, "a read needs a finished handshake"
        data = b""
        if self._whole:
            data = self._held
            self._held = b""
            self._whole = False
        elif not self._rest:
            received = self._receive(size if size >= SMALL_READ else RECORD)
            if received is None:
                return None
            if len(received) == 0:
                self._fin = True
                self.clean_end = False
                return b""
            data = received
        plain = self._decrypt(tls, data, size)
        if len(plain) == 0:
            self._raise_failure()
            return b"" if self._at_end() else None
        return plain

    def read_ahead(self, size: i64) -> bytes:
        if len(self._ahead) == 0:
            self._ahead = self.read(RECORD) or b""
        return self._ahead[:size]

    def _decrypt(self, tls: ssl.SSLObject, data: bytes, size: i64) -> bytes:
        """At most ``size`` bytes of what OpenSSL holds, of what is held here, and of ``data``."""
        pieces: list[bytes] = []
        bios = self._bios
        bios.lend()
        try:
            if self._feed(data) or self._rest:
                self._read_records(tls, size, pieces)
        except ssl.SSLWantReadError:  # the last records held no data
            pass
        except ssl.SSLZeroReturnError:  # how the end is told once we have said ours
            self._notified = True
        except ssl.SSLError as error:
            self._failure = describe(error)
        finally:
            written, unread = bios.give_back()
        if len(unread) != 0:
            self._hold(unread)
        if len(written) != 0:
            self._say(written)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _read_records(self, tls: ssl.SSLObject, size: i64, pieces: list[bytes]) -> None:
        """Decrypt until ``size`` bytes are there, or OpenSSL has nothing left, which it is not asked for: it would raise."""
        bios = self._bios
        while size > 0:
            wanted = min(size, PLAIN_RECORD)
            self._rest = False
            piece: bytes = tls.read(wanted)
            length: i64 = len(piece)
            if length == 0:
                self._notified = True
                return
            pieces.append(piece)
            size -= length
            self._rest = length == wanted and tls.pending() > 0
            if not self._rest and not bios.is_fed:
                return

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

    def _at_end(self) -> bool:
        return self._notified or self._fin

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def has_buffered(self) -> bool:
        if self._object is None or self._fin:
            return len(self._ahead) != 0
        return self._failure is not None or self._notified or self._whole or self._rest or len(self._ahead) != 0

    def _receive(self, size: i64) -> bytes | None:
        try:
            data = self._recv(size)
        except BlockingIOError:
            return None
        except OSError as error:
            raise TransportError(f"read failed: {error.strerror}", errno=error.errno or 0) from error
        self.wire_received += len(data)
        return data

    def obtainable(self, wanted: i64) -> i64:
        tls = self._object
        there: i64 = len(self._ahead) + (tls.pending() if tls is not None and self._rest else 0)
        if there >= wanted or self._failure is not None or self._at_end():
            return max(there, wanted)
        records = self._held
        waiting = queued(self._sock)
        if waiting > MAX_PEEK:
            return wanted
        if self._overhead == 0 and tls is not None:
            cipher = tls.cipher()
            self._overhead = least_overhead(tls.version() or "", "" if cipher is None else cipher[0])
        try:
            records += self._recv(max(waiting, 1), socket.MSG_PEEK)
        except BlockingIOError:
            pass
        except OSError as error:  # the socket tells it once
            raise TransportError(f"read failed: {error.strerror}", errno=error.errno or 0) from error
        found, begun = most_plaintext(records, self._overhead)
        self._least = len(records) - len(self._held) + max(wanted - there - found - begun, 1)
        return there + found

    def least(self, wanted: i64) -> i64:
        return self._least

    # Writing.

    def write(self, data: Buffer) -> i64:
        if self.booked != 0 and not self.flush():
            return 0
        length: i64 = len(data)
        if length > SLICE:
            return self.write_gather([data])
        self._push_one(self._encrypt(data))
        return length

    def write_gather(self, pieces: list[Buffer]) -> i64:
        if self.booked != 0 and not self.flush():
            return 0
        taken: i64 = 0
        fresh: list[Buffer] = []
        for piece in pieces:
            length: i64 = len(piece)
            position: i64 = 0
            view = memoryview(piece) if length > SLICE else piece
            while position < length and taken < AHEAD:
                size = min(length - position, SLICE, AHEAD - taken)
                fresh.append(self._encrypt(view[position : position + size] if size < length else piece))
                position += size
                taken += size
        self._push(fresh)
        return taken

    def _encrypt(self, data: Buffer) -> bytes:
        tls = self._object
        assert tls is not None, "a write needs a finished handshake"
        if len(data) == 0:
            return b""
        bios = self._bios
        bios.lend()
        try:
            tls.write(data)
        except ssl.SSLError as error:
            raise describe(error) from error
        finally:
            written, _ = bios.give_back()
        return written

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
            raise TransportError(f"write failed: {error.strerror}", errno=error.errno or 0) from error
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
            raise TransportError(f"write failed: {error.strerror}", errno=error.errno or 0) from error
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

    # Ends.

    def shut_write(self) -> bool:
        if self._said_notify:
            return self.flush()
        tls = self._object
        assert tls is not None, "an end needs a finished handshake"
        if self._failure is not None or not self.flush() or self._whole or self._rest:
            return False
        return self._say(self._notify(tls))

    def _notify(self, tls: ssl.SSLObject) -> bytes:
        """Our close-notify, to be sent."""
        self._said_notify = True
        bios = self._bios
        bios.lend()
        try:
            tls.unwrap()
            self._notified = True
        except ssl.SSLWantReadError:
            pass  # said; the peer has not
        except ssl.SSLZeroReturnError:
            self._notified = True
        except ssl.SSLError as error:
            self._failure = describe(error)
        finally:
            written, _ = bios.give_back()
        return written

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._object is not None and self._finished and not self._said_notify and self._failure is None and self.booked == 0:
            try:
                self._send(self._notify(self._object))
            except OSError:
                self.clean_end = False  # the peer is gone: there is nobody to tell
        self._account.release(TLS, self.booked, self)
        self.booked = 0
        self._waiting = []
        self._held = b""
        self.pending_write = 0


def describe(error: Exception) -> TlsError:
    """OpenSSL's error as ours; the reason is its word in lower case, such as ``certificate_verify_failed``."""
    reason = getattr(error, "reason", None) or type(error).__name__
    text = getattr(error, "verify_message", None) or str(error.args[-1] if error.args else error)
    failure = TlsError(f"TLS failed: {text}", reason=str(reason).lower())
    failure.__cause__ = error
    return failure
