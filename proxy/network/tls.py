"""The TLS transport: OpenSSL between two memory BIOs, so that we do the reads and writes of the socket.

Theory of operation
- *One read of the socket* goes into the incoming BIO, then OpenSSL is asked for plaintext as long as whole records are there
  (``tls_record``); asking once more would raise. Portions are at most ``PORTION`` bytes: a BIO never shrinks below its largest fill.
- *Plaintext is encrypted* in slices of one record, at most ``AHEAD`` bytes before the socket has taken them. Ciphertext that waits is
  booked at the memory pool. Whatever OpenSSL wants to say by itself (alerts, key updates, tickets) is flushed after every call.
- *A handshake that fails* leaves an alert, which goes out before the failure is raised. In TLS 1.3 a client learns only with its first
  read that its certificate was refused: errors while reading are failures of TLS too.
- *Ends.* close-notify ends one direction, as FIN does; the other goes on. FIN without close-notify is an end too, but ``clean_end`` is
  then False. ``unwrap`` says close-notify, but it also reads: it is called only when nothing is waiting to be read.
- A server has no SSL object before the first bytes came: a silent connection is cheap, and bytes that are not TLS never reach OpenSSL.
- Renegotiation is refused by the context (``tls_context``).
"""

import socket
import ssl
from typing import Final

from mypy_extensions import i64

from proxy.errors import TlsError, TransportError
from proxy.network.distinguished_name import format_name
from proxy.network.memory_pool import PIECE_OVERHEAD, MemoryPool
from proxy.network.options import TlsSettings
from proxy.network.run import Buffer
from proxy.network.tls_record import RecordCutter
from proxy.network.transport import DONE, ENDED, WANT_READ, WANT_WRITE, Identity, Transport

__all__ = ["TlsTransport"]

SLICE: Final = 16384  # the most plaintext that a record holds
RECORD: Final = SLICE + 256 + 5  # the longest record
PORTION: Final = RECORD
AHEAD: Final = 262144
SMALL_READ: Final = 2048  # reads below this are exact reads of plaintext; the socket is asked for a record
HANDSHAKE_READ: Final = 16384
# Handshake and alert. An SSLv2-style hello (0x80) is refused: its records have another form, and no client of today sends one.
FIRST_BYTES: Final = b"\x16\x15"


class TlsTransport(Transport):
    """One TLS connection over a non-blocking socket, as client or server."""

    def __init__(self, sock: socket.socket, settings: TlsSettings, pool: MemoryPool) -> None:
        super().__init__()
        self._sock: Final = sock
        self._recv: Final = sock.recv
        self._send: Final = sock.send
        self._settings: Final = settings
        self._pool: Final = pool
        self._incoming: Final = ssl.MemoryBIO()
        self._outgoing: Final = ssl.MemoryBIO()
        self._cutter: Final = RecordCutter()
        self._object: ssl.SSLObject | None = None
        self._failure: TlsError | None = None
        self._rest: bool = False  # the record read last may hold more plaintext: only then OpenSSL is asked
        self._waiting: list[Buffer] = []
        self._booked: i64 = 0
        self._finished: bool = False
        self._notified: bool = False  # the peer's close-notify was read
        self._fin: bool = False
        self._said_notify: bool = False
        self._closed: bool = False

    # Handshake.

    def handshake(self) -> i64:
        data = self._receive(HANDSHAKE_READ)
        if data is not None:
            if len(data) == 0:
                return ENDED
            self._check_first(data)
            self._feed_all(data)
        if not self.flush():
            return WANT_WRITE
        if self._failure is not None:
            raise self._failure
        if self._finished:
            return DONE
        if self._settings.server_side and data is None and self._object is None:
            return WANT_READ
        return self._shake(self._ensure_object())

    def _shake(self, tls: ssl.SSLObject) -> i64:
        try:
            tls.do_handshake()
            self._finished = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self._failure = describe(error)
        if not self._flush_new():
            return WANT_WRITE
        if self._failure is not None:
            raise self._failure
        return DONE if self._finished else WANT_READ

    def _ensure_object(self) -> ssl.SSLObject:
        if self._object is None:
            settings = self._settings
            name = None if settings.server_side else settings.server_name
            try:
                self._object = settings.context.wrap_bio(self._incoming, self._outgoing, server_side=settings.server_side, server_hostname=name)
            except (ssl.SSLError, ValueError) as error:
                raise TlsError(f"TLS cannot start: {error}", reason="setup") from error
        return self._object

    def _check_first(self, data: bytes) -> None:
        if self.wire_received == len(data) and data[0] not in FIRST_BYTES:
            raise TlsError(f"not TLS: the first bytes are {data[:8].hex(' ')}", reason="not_tls")

    def identity(self) -> Identity:
        tls = self._object
        assert tls is not None, "an identity needs a finished handshake"
        cipher = tls.cipher()
        certificate = tls.getpeercert(binary_form=True)
        fields = tls.getpeercert()
        subject = format_name(fields["subject"]) if fields else None
        return Identity(tls.version() or "", "" if cipher is None else cipher[0], subject, certificate)

    # Reading.

    def read(self, size: i64) -> bytes | None:
        self._raise_failure()
        tls = self._object
        if self._at_end():
            return b""
        assert tls is not None, "a read needs a finished handshake"
        data = b""
        if not self._has_whole_record(tls):
            received = self._receive(size if size >= SMALL_READ else RECORD)
            if received is None:
                return None
            if len(received) == 0:
                self._fin = True
                self.clean_end = False
                return b""
            data = received
        plain = self._drain(tls, data, size)
        if self._outgoing.pending:
            self._flush_new()
        if len(plain) == 0:
            self._raise_failure()
            return b"" if self._at_end() else None
        return plain

    def _drain(self, tls: ssl.SSLObject, data: bytes, size: i64) -> bytes:
        """Feed ``data`` and decrypt what records are whole, up to ``size`` bytes."""
        pieces: list[bytes] = []
        got: i64 = 0
        position: i64 = 0
        while got < size:
            if self._has_whole_record(tls):
                piece = self._decrypt(tls, min(size - got, SLICE))
                if piece is None:
                    break
                if len(piece) != 0:
                    pieces.append(piece)
                    got += len(piece)
            elif position < len(data):
                position = self._feed(data, position)
            else:
                break
        while position < len(data):
            position = self._feed(data, position)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _decrypt(self, tls: ssl.SSLObject, size: i64) -> bytes | None:
        """Plaintext of at most one record, ``b""`` when the record held none; None at the end of the stream, or when TLS failed."""
        try:
            piece: bytes = tls.read(size)
        except ssl.SSLWantReadError:
            return b""
        except ssl.SSLZeroReturnError:  # how the end is told once we have said ours
            self._notified = True
            return None
        except ssl.SSLError as error:
            self._failure = describe(error)
            return None
        length: i64 = len(piece)
        if length == 0:
            self._notified = True
            return None
        self._rest = length == size
        return piece

    def _at_end(self) -> bool:
        return self._notified or self._fin

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def has_buffered(self) -> bool:
        if self._object is None or self._fin:
            return False
        return self._failure is not None or self._notified or self._has_whole_record(self._object)

    def _has_whole_record(self, tls: ssl.SSLObject) -> bool:
        return self._incoming.pending > self._cutter.partial or (self._rest and tls.pending() > 0)

    def _feed(self, data: bytes, start: i64) -> i64:
        end = self._cutter.cut(data, start, PORTION)
        self._incoming.write(data if start == 0 and end == len(data) else memoryview(data)[start:end])
        return end

    def _feed_all(self, data: bytes) -> None:
        position: i64 = 0
        while position < len(data):
            position = self._feed(data, position)

    def _receive(self, size: i64) -> bytes | None:
        try:
            data = self._recv(size)
        except BlockingIOError:
            return None
        except OSError as error:
            raise TransportError(f"read failed: {error.strerror}", errno=error.errno or 0) from error
        self.wire_received += len(data)
        return data

    # Writing.

    def write(self, data: Buffer) -> i64:
        if self._booked != 0 and not self.flush():
            return 0
        length: i64 = len(data)
        if length > SLICE:
            return self.write_gather([data])
        self._encrypt(data)
        self._push_one(self._outgoing.read())
        return length

    def write_gather(self, pieces: list[Buffer]) -> i64:
        if self._booked != 0 and not self.flush():
            return 0
        taken: i64 = 0
        fresh: list[Buffer] = []
        for piece in pieces:
            length: i64 = len(piece)
            position: i64 = 0
            view = memoryview(piece) if length > SLICE else piece
            while position < length and taken < AHEAD:
                size: i64 = min(length - position, SLICE)
                self._encrypt(view[position : position + size] if size < length else piece)
                fresh.append(self._outgoing.read())
                position += size
                taken += size
        self._push(fresh)
        return taken

    def _encrypt(self, data: Buffer) -> None:
        tls = self._object
        assert tls is not None, "a write needs a finished handshake"
        if len(data) == 0:
            return
        try:
            tls.write(data)
        except ssl.SSLError as error:
            raise describe(error) from error

    def flush(self) -> bool:
        if self._booked == 0:
            return True
        waiting = self._waiting
        self._waiting = []
        self._pool.release(self._booked)
        self._booked = 0
        self.pending_write = 0
        return self._push(waiting)

    def _flush_new(self) -> bool:
        """Send what OpenSSL has written, behind what waits; True when nothing waits."""
        if not self._outgoing.pending:
            return self.flush()
        if self._booked != 0:
            waiting = self._waiting
            waiting.append(self._outgoing.read())
            self._keep(waiting)
            return self.flush()
        return self._push_one(self._outgoing.read())

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
        self._keep([bytes(memoryview(data)[sent:]) if sent > 0 else data])
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
                rest = pieces[index:]
                if sent > 0:
                    rest[0] = bytes(memoryview(piece)[sent:])
                self._keep(rest)
                return False
            sent -= size
        return True

    def _keep(self, pieces: list[Buffer]) -> None:
        """Let ciphertext wait, booked with its overhead instead of what was booked before."""
        size: i64 = 0
        for piece in pieces:
            size += len(piece)
        booked = size + PIECE_OVERHEAD * len(pieces)
        self._pool.charge(booked)
        self._pool.release(self._booked)
        self._booked = booked
        self._waiting = pieces
        self.pending_write = size

    # Ends.

    def shut_write(self) -> bool:
        if self._said_notify:
            return self.flush()
        tls = self._object
        assert tls is not None, "an end needs a finished handshake"
        if self._failure is not None or not self.flush() or self._incoming.pending or tls.pending():
            return False
        self._say_notify(tls)
        return self._flush_new()

    def _say_notify(self, tls: ssl.SSLObject) -> None:
        self._said_notify = True
        try:
            tls.unwrap()
            self._notified = True
        except ssl.SSLWantReadError:
            return  # said; the peer has not
        except ssl.SSLZeroReturnError:
            self._notified = True
        except ssl.SSLError as error:
            self._failure = describe(error)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._object is not None and self._finished and self._failure is None and self._booked == 0:
            if not self._said_notify:
                self._say_notify(self._object)
            if self._outgoing.pending:
                try:
                    self._send(self._outgoing.read())
                except OSError:
                    self.clean_end = False  # the peer is gone: there is nobody to tell
        self._pool.release(self._booked)
        self._booked = 0
        self._waiting = []
        self.pending_write = 0


def describe(error: Exception) -> TlsError:
    """OpenSSL's error as ours; the reason is its word in lower case, such as ``certificate_verify_failed``."""
    reason = getattr(error, "reason", None) or type(error).__name__
    text = getattr(error, "verify_message", None) or str(error.args[-1] if error.args else error)
    failure = TlsError(f"TLS failed: {text}", reason=str(reason).lower())
    failure.__cause__ = error
    return failure
