"""The TLS transport behind its handshake, where C has the connection (``tls_connection.h``): what C finds beside plaintext is handled here.

C reads the socket, decrypts, encrypts and writes the socket in one call, and the fast path uses the connection without Python. Without a C compiler,
or with an SSL object of a kind that is not known, Python does the same through memory BIOs (``tls``).
"""

import _socket
import _ssl
import abc
import os
import socket
import ssl
from typing import TYPE_CHECKING, Any, Final

from mypy_extensions import i64

from framegate.proxy.errors import TlsError, TransportError
from framegate.proxy.network.memory_pool import Account
from framegate.proxy.network.run import Buffer
from framegate.proxy.network.tls_failure import describe
from framegate.proxy.network.tls_wire import BioPair, TlsWire

try:
    from framegate.proxy.network.fast_path import TlsConnection as NativeConnection
    from framegate.proxy.network.fast_path import load_openssl
except ImportError:  # it was not compiled
    IS_LOADED = False
else:
    IS_LOADED = load_openssl(str(getattr(_ssl, "__file__", "")))

if TYPE_CHECKING:
    from framegate.proxy.network.fast_path import TlsConnection

IS_NATIVE: Final = IS_LOADED

# Bits of ``TlsConnection.flags``.
BUFFERED: Final = 1  # it has records that were not read
NOTIFIED: Final = 2  # the peer's close-notify was read
FIN: Final = 4  # the peer's end of the stream was read
FAILED: Final = 8  # OpenSSL failed
WRITTEN: Final = 16  # OpenSSL wrote by itself


class ConnectionWire(TlsWire):
    """The part of a TLS transport that uses C."""

    def __init__(self, sock: socket.socket, account: Account, bios: BioPair, peer: str) -> None:
        super().__init__(sock, account, bios)
        self._peer: Final = peer
        self._fin: bool = False
        self._rest: bool = False  # OpenSSL may have more plaintext of the last record; it is called only then
        self._may_be_native: bool = IS_NATIVE and isinstance(sock, _socket.socket)

    @abc.abstractmethod
    def _fail(self, failure: TlsError) -> None:
        """Note a failure. The first one counts."""

    def _begin_native(self, tls: Any) -> None:
        """Have C read and write what follows, if it knows the SSL object."""
        self._may_be_native = False
        if self._notified or self._failure is not None:
            return
        try:
            self.native = NativeConnection(tls, self._sock.fileno(), self._held)
        except ValueError:
            return
        self._held = b""
        self._whole = self._rest = False

    def _read_native(self, native: "TlsConnection", size: i64) -> bytes | None:
        if native.flags & ~(BUFFERED | FIN) != 0:  # the fast path found it
            self._heed(native, native.flags)
            self._raise_failure()
            if self._notified:
                return b""
        try:
            plain, received, flags = native.read(size)
        except OSError as error:
            raise TransportError(f"read failed: {error.strerror}", errno=error.errno or 0) from error
        self.wire_received += received
        if flags != 0:
            self._heed(native, flags)
        if plain:
            return plain
        self._raise_failure()
        return b"" if self._at_end() else None

    def _heed(self, native: "TlsConnection", flags: i64) -> None:
        """Handle what C found beside plaintext."""
        if flags & NOTIFIED != 0:
            self._notified = True
        if flags & FIN != 0:
            self._fin = True
            self.clean_end = False
        if flags & FAILED != 0:
            self._fail(describe(ssl.SSLError(f"[SSL] {native.failure}"), self._peer))
        if flags & WRITTEN != 0:
            self._send_written(native.take_written())

    def _write_native(self, native: "TlsConnection", pieces: list[Buffer]) -> i64:
        taken, sent, rest, code = native.write(pieces)
        if taken < 0:
            self._heed(native, FAILED)
            self._raise_failure()
        self.wire_sent += sent
        if code != 0:
            raise self._write_error(OSError(code, os.strerror(code)))
        if rest is not None:
            self._keep([rest])
        return taken

    def _end_native(self, native: "TlsConnection") -> bytes:
        """Return our close-notify."""
        written = native.end()
        self._heed(native, native.flags & ~WRITTEN)
        return written

    def keep_rest(self, rest: bytes) -> None:
        self._keep([rest])

    def _at_end(self) -> bool:
        return self._notified or self._fin

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
