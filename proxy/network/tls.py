"""The TLS transport: OpenSSL between two memory BIOs, so that framegate reads and writes the socket itself.

Theory of operation
- *The BIOs are shared* by all connections of a thread, and lent for the calls of one connection. The bytes that OpenSSL wrote go to its socket, and
  those that it did not read stay with the connection (``tls_wire``).
- *One read of the socket* is fed to OpenSSL as far as records are whole. Then plaintext is read until OpenSSL has used all of it, and not once more.
- *Plaintext is encrypted* in slices of a few records, at most ``AHEAD`` bytes before the socket has taken them. Waiting ciphertext is booked at the
  memory pool. Messages of OpenSSL itself (alerts, key updates, tickets) are flushed after every call.
- *The states* are a table (``tls_state``). A failed handshake produces an alert, which is sent before the failure is raised. Input is read and
  dropped before the close, because a close with unread bytes sends a reset, which can overtake the alert.
- *A failed write* before the peer has accepted us: first look for an alert in the input. In TLS 1.3 a client learns of a refused certificate only
  with its first read, and may be writing by then.
- *Ends.* close-notify ends one direction, as FIN does; the other continues. FIN without close-notify is an end, too, but ``clean_end`` is False then.
  ``shutdown`` sends close-notify, but also reads: it is called only if no input waits.
- *The connection in C* (``tls_connection.h``) takes over behind the handshake, if the fast path was compiled: it reads, decrypts, encrypts and writes
  in one call, and the fast path uses it without Python (``tls_connection``).
- A server makes its SSL object with the first record, so a silent connection is cheap, and bytes that are not TLS never reach OpenSSL. If the host or
  the protocols in the ClientHello matter, it makes the object when that message is complete (``tls_hello``).
- The context refuses renegotiation (``tls_context``).
"""

import socket
import ssl
import sys
from typing import Any, Final

from mypy_extensions import i64

from framegate.proxy.errors import TlsError, TransportError, quoted
from framegate.proxy.network.certificate import serial_of, subject_of
from framegate.proxy.network.framing import foreign_protocol
from framegate.proxy.network.memory_pool import TLS, Account
from framegate.proxy.network.options import TlsSettings
from framegate.proxy.network.run import Buffer
from framegate.proxy.network.socket_buffers import queued
from framegate.proxy.network.state import transition
from framegate.proxy.network.tls_connection import BUFFERED, FIN, ConnectionWire
from framegate.proxy.network.tls_failure import describe
from framegate.proxy.network.tls_hello import HelloReader
from framegate.proxy.network.tls_record import least_overhead, most_plaintext
from framegate.proxy.network.tls_state import CLOSED, FAILING, FINISHING, NEW, READY, SHAKING, TRANSITIONS, UNPROVEN, TlsEvent, TlsState
from framegate.proxy.network.tls_wire import BioPair
from framegate.proxy.network.transport import DONE, ENDED, PLAIN_RECORD, WANT_READ, WANT_WRITE, Identity

RECORD: Final = PLAIN_RECORD + 256 + 5  # the longest record
SLICE: Final = 65536  # encrypted at a time; a megabyte costs 0.9 of what it costs a record at a time, and larger slices are not better
AHEAD: Final = 262144
MAX_PEEK: Final = 1 << 20  # if the socket holds more ciphertext, it is not peeked at
SMALL_READ: Final = 448  # for a smaller read of plaintext, a whole record is read from the socket
# The first byte of a handshake and of an alert. An SSLv2-style hello (0x80) is refused: its records differ, and no client of today sends one.
FIRST_BYTES: Final = b"\x16\x15"
FATAL: Final = b"\x15\x03\x03\x00\x02\x02"  # an unencrypted record with a fatal alert, whose number follows
DECODE_ERROR: Final = b"\x32"
NO_APPLICATION_PROTOCOL: Final = b"\x78"
MOST_NAMED: Final = 10  # protocols of a client that an error message names
THROWN_AWAY: Final = 16  # reads of the socket before the close of a connection that failed


class TlsTransport(ConnectionWire):
    """One TLS connection over a non-blocking socket, as client or server."""

    def __init__(self, sock: socket.socket, settings: TlsSettings, account: Account, bios: BioPair) -> None:
        super().__init__(sock, account, bios, "client" if settings.server_side else "upstream")
        self._settings: Final = settings
        self._context: ssl.SSLContext = settings.context
        self._object: Any = None
        self._state: TlsState = NEW
        self._host: str = ""  # in the client's first message
        self._hello: HelloReader | None = None  # while the client's first message is incomplete
        self._ahead: bytes = b""  # plaintext from ``read_ahead``
        self._overhead: i64 = 0  # of a record; 0: not computed yet
        self._least: i64 = 1  # the result of ``least``
        self._notify_sent: bool = False

    # Handshake.

    def handshake(self) -> i64:
        if not self.flush():
            return WANT_WRITE
        self._on_out()
        self._raise_failure()
        state = self._state
        if state is UNPROVEN or state is READY:
            return DONE
        if state is NEW and not self._settings.server_side:
            return self._shake(b"")
        data = self._receive(RECORD)
        if data is None:
            return WANT_READ
        if len(data) == 0:
            return ENDED
        self._check_first(data)
        if state is NEW:
            data = self._read_hello(data)
            if len(data) == 0:
                return self._conclude(b"")
        return self._shake(data)

    def _check_first(self, data: bytes) -> None:
        if self.wire_received == len(data) and data[0] not in FIRST_BYTES:
            known = foreign_protocol(data[:4]) or ("a frame in plain text" if data[0] == 0 else "")
            as_of = f", as of {known}" if known else ""
            raise TlsError(f"not TLS: the first bytes of the {self._peer} are {data[:8].hex(' ')}{as_of}", reason="not_tls")

    def _read_hello(self, data: bytes) -> bytes:
        """Return the bytes for OpenSSL; empty while the client's first message is incomplete, or if the client is refused because of it."""
        store = self._settings.store
        if store is None or not store.reads_hello:
            return data
        reader, self._hello = self._hello or HelloReader(), None
        try:
            hello = reader.take(data)
        except TlsError as error:
            self._refuse(error, DECODE_ERROR)
            return b""
        if hello is None:
            self._hello = reader
            return b""
        self._host = hello.host
        self._context = store.context(hello.host)
        if not store.agrees(hello.protocols):
            asked, ours = ", ".join(map(quoted, hello.protocols[:MOST_NAMED])), ", ".join(store.protocols)
            self._refuse(TlsError(f"TLS failed: the client asks for {asked} (ALPN), and {ours} is spoken", reason="alpn"), NO_APPLICATION_PROTOCOL)
            return b""
        self._ensure_object()
        return reader.came()

    def _refuse(self, failure: TlsError, alert: bytes) -> None:
        """Refuse a client before OpenSSL has its bytes."""
        self._fail(failure)
        self._send_written(FATAL + alert)

    def _shake(self, data: bytes) -> i64:
        """Continue OpenSSL's handshake with received bytes; a client begins with none."""
        bios = self._bios
        bios.lend()
        try:
            if self._feed(data) or len(data) == 0:
                self._ensure_object().do_handshake()
                self._advance(TlsEvent.FINISH)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self._fail(describe(error, self._peer, tls=self._object))
        finally:
            written, unread = bios.give_back()
        self._hold(unread)
        return self._conclude(written)

    def _conclude(self, written: bytes) -> i64:
        """End a step of the handshake: send what OpenSSL wrote, and return the result."""
        if not self._send_written(written):
            return WANT_WRITE
        self._on_out()
        self._raise_failure()
        state = self._state
        return DONE if state is UNPROVEN or state is READY else WANT_READ

    def _on_out(self) -> None:
        if self._state is FINISHING:
            self._advance(TlsEvent.OUT)
            tls = self._object
            if tls is not None and tls.version() != "TLSv1.3":
                self._advance(TlsEvent.PROVED)
        elif self._state is FAILING:
            self._advance(TlsEvent.OUT)

    def _advance(self, event: TlsEvent) -> None:
        self._state = transition(TRANSITIONS, self._state, event)

    def _fail(self, failure: TlsError) -> None:
        if self._failure is None:  # later failures of OpenSSL follow from the first
            self._failure = failure
            self._advance(TlsEvent.FAIL)

    def _ensure_object(self) -> Any:
        if self._object is None:
            try:
                self._object = self._bios.wrap(self._settings, self._context)
            except (ssl.SSLError, ValueError) as error:
                raise TlsError(f"TLS cannot start: {error}", reason="setup") from error
            self._advance(TlsEvent.BEGIN)
        return self._object

    def _write_error(self, error: OSError) -> TransportError:
        """Return the alert that the peer sent before it closed, if there is one; else the error of the write."""
        failure = self._find_alert()
        return TransportError(f"write failed: {error.strerror}", errno=error.errno or 0) if failure is None else failure

    def _find_alert(self) -> TlsError | None:
        """Look for an alert of a peer that has closed, if it had not accepted us yet."""
        tls, state, bios = self._object, self._state, self._bios
        if tls is None or not (state is SHAKING or state is FINISHING or state is UNPROVEN):
            return None
        try:
            data = self._held + self._recv(RECORD)
        except OSError:
            return None
        self._held = b""
        self._whole = False
        bios.lend()
        try:
            if self._feed(data):
                if state is SHAKING:
                    tls.do_handshake()
                else:
                    tls.read(PLAIN_RECORD)
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            pass
        except ssl.SSLError as error:
            self._fail(describe(error, self._peer, unproven=state is UNPROVEN))
        finally:
            bios.give_back()
        return self._failure

    def identity(self) -> Identity:
        tls = self._object
        assert tls is not None, "an identity needs a finished handshake"
        cipher = tls.cipher()
        certificate = tls.getpeercert(True)
        is_verified = certificate is not None and self._context.verify_mode is not ssl.CERT_NONE
        subject = subject_of(certificate) if certificate is not None and is_verified else None
        # Interned, because there are few versions and ciphers, and OpenSSL's module makes new strings for each connection.
        settings = self._settings
        identity = Identity(
            sys.intern(tls.version() or ""),
            "" if cipher is None else sys.intern(cipher[0]),
            subject,
            certificate,
            settings.number,
            settings.shown_of(self._context),
            resumed=bool(tls.session_reused),
            serial=serial_of(certificate) if certificate is not None and is_verified else "",
        )
        identity.host = self._host
        return identity

    # Reading.

    def read(self, size: i64) -> bytes | None:
        ahead = self._ahead
        if len(ahead) != 0:
            self._ahead = ahead[size:]
            return ahead[:size]
        self._raise_failure()
        if self._at_end():
            return b""
        return self._read_through_bios(size) if self.native is None else self._read_native(self.native, size)

    def _read_through_bios(self, size: i64) -> bytes | None:
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
        if self._state is UNPROVEN:
            self._advance(TlsEvent.PROVED)
        if self._may_be_native and self._state is READY:
            self._begin_native(tls)
        return plain

    def read_ahead(self, size: i64) -> bytes:
        if len(self._ahead) == 0:
            self._ahead = self.read(RECORD) or b""
        return self._ahead[:size]

    def _decrypt(self, tls: Any, data: bytes, size: i64) -> bytes:
        """Give ``data`` to OpenSSL, and return at most ``size`` bytes of plaintext."""
        pieces: list[bytes] = []
        bios = self._bios
        bios.lend()
        try:
            if self._feed(data) or self._rest:
                self._read_records(tls, size, pieces)
        except ssl.SSLWantReadError:  # the last records held no data
            pass
        except ssl.SSLZeroReturnError:  # the peer's end, after ours
            self._notified = True
        except ssl.SSLError as error:
            self._fail(describe(error, self._peer, unproven=self._state is UNPROVEN))
        finally:
            written, unread = bios.give_back()
        if len(unread) != 0:
            self._hold(unread)
        if len(written) != 0:
            self._send_written(written)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _read_records(self, tls: Any, size: i64, pieces: list[bytes]) -> None:
        """Decrypt until there are ``size`` bytes, or OpenSSL has no input left; a further call would raise."""
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

    def has_buffered(self) -> bool:
        if self._object is None or self._fin:
            return len(self._ahead) != 0
        if self.native is not None and self.native.flags & ~FIN != 0:
            return True
        return self._failure is not None or self._notified or self._whole or self._rest or len(self._ahead) != 0

    def obtainable(self, wanted: i64) -> i64:
        tls, native = self._object, self.native
        there: i64 = len(self._ahead) + (tls.pending() if tls is not None and (native is not None or self._rest) else 0)
        if there >= wanted or self._failure is not None or self._at_end() or (native is not None and native.flags & ~BUFFERED != 0):
            return max(there, wanted)
        held = records = self._held if native is None else native.held
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
        except OSError as error:  # a socket reports an error only once
            raise TransportError(f"read failed: {error.strerror}", errno=error.errno or 0) from error
        found, begun = most_plaintext(records, self._overhead)
        self._least = len(records) - len(held) + max(wanted - there - found - begun, 1)
        return there + found

    def least(self, wanted: i64) -> i64:
        return self._least

    # Writing.

    def write(self, data: Buffer) -> i64:
        if self.booked != 0 and not self.flush():
            return 0
        if self.native is not None:
            return self._write_native(self.native, [data])
        length: i64 = len(data)
        if length > SLICE:
            return self.write_gather([data])
        self._push_one(self._encrypt(data))
        return length

    def write_gather(self, pieces: list[Buffer]) -> i64:
        if self.booked != 0 and not self.flush():
            return 0
        if self.native is not None:
            return self._write_native(self.native, pieces)
        total: i64 = 0
        for piece in pieces:
            total += len(piece)
        if total <= PLAIN_RECORD and len(pieces) > 1:
            pieces = [b"".join(pieces)]  # one record: the peer reads all of it at once
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
            failure = describe(error, self._peer)
            self._fail(failure)
            raise failure from error
        finally:
            written, _ = bios.give_back()
        return written

    # Ends.

    def shut_write(self) -> bool:
        if self._notify_sent:
            return self.flush()
        tls = self._object
        assert tls is not None, "an end needs a finished handshake"
        if self._failure is not None or not self.flush() or self._whole or self._rest:
            return False
        if self.native is not None and self.native.flags & BUFFERED != 0:
            return False
        return self._send_written(self._notify(tls))

    def _notify(self, tls: Any) -> bytes:
        """Return our close-notify."""
        self._notify_sent = True
        if self.native is not None:
            return self._end_native(self.native)
        bios = self._bios
        bios.lend()
        try:
            tls.shutdown()
            self._notified = True
        except ssl.SSLWantReadError:
            pass  # the peer has not sent its own
        except ssl.SSLZeroReturnError:
            self._notified = True
        except ssl.SSLError as error:
            self._fail(describe(error, self._peer, tls=self._object))
        finally:
            written, _ = bios.give_back()
        return written

    def close(self) -> None:
        state = self._state
        if state is CLOSED:
            return
        is_open = state is UNPROVEN or state is READY
        if is_open and self._object is not None and not self._notify_sent and self.booked == 0:
            try:
                self._send(self._notify(self._object))
            except OSError:
                self.clean_end = False  # the peer is gone
        if state is UNPROVEN or self._failure is not None:
            self._drop_input()
        self.native = None  # it knows only the number of the descriptor, which will be another connection's
        self._advance(TlsEvent.CLOSE)
        self._account.release(TLS, self.booked, self)
        self.booked = 0
        self._waiting = []
        self._held = b""
        self._hello = None
        self.pending_write = 0

    def _drop_input(self) -> None:
        """Read and drop input, because a close with unread bytes sends a reset, which can overtake the alert."""
        for _ in range(THROWN_AWAY):
            try:
                if not self._recv(RECORD):
                    return
            except OSError:
                return
