"""The plaintext transport."""

import socket
from typing import Final

from mypy_extensions import i64

from framegate.proxy.errors import TransportError
from framegate.proxy.network.run import Buffer
from framegate.proxy.network.socket_buffers import queued
from framegate.proxy.network.transport import DONE, Identity, Transport

MAX_PIECES: Final = 64  # of one sendmsg; the system's IOV_MAX is 1024


class PlaintextTransport(Transport):
    """Reads and writes a non-blocking stream socket. It keeps the bound methods, because a look-up costs as much as a call."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(is_plain=True)
        self._sock: Final = sock
        self._recv: Final = sock.recv
        self._send: Final = sock.send

    def handshake(self) -> i64:
        return DONE

    def read(self, size: i64) -> bytes | None:
        try:
            data = self._recv(size)
        except BlockingIOError:
            return None
        except OSError as error:
            raise TransportError(f"read failed: {error.strerror}", errno=error.errno or 0) from error
        self.wire_received += len(data)
        return data

    def has_buffered(self) -> bool:
        return False

    def peek(self, size: i64) -> bytes:
        try:
            return self._recv(size, socket.MSG_PEEK)
        except BlockingIOError:
            return b""
        except OSError as error:  # a socket reports an error only once
            raise TransportError(f"read failed: {error.strerror}", errno=error.errno or 0) from error

    def obtainable(self, wanted: i64) -> i64:
        return queued(self._sock)

    def write(self, data: Buffer) -> i64:
        try:
            taken: i64 = self._send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise TransportError(f"write failed: {error.strerror}", errno=error.errno or 0) from error
        self.wire_sent += taken
        return taken

    def write_gather(self, pieces: list[Buffer]) -> i64:
        if len(pieces) == 1:
            return self.write(pieces[0])
        try:
            taken: i64 = self._sock.sendmsg(pieces if len(pieces) <= MAX_PIECES else pieces[:MAX_PIECES])
        except BlockingIOError:
            return 0
        except OSError as error:
            raise TransportError(f"write failed: {error.strerror}", errno=error.errno or 0) from error
        self.wire_sent += taken
        return taken

    def flush(self) -> bool:
        return True

    def shut_write(self) -> bool:
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError as error:
            raise TransportError(f"shutdown failed: {error.strerror}", errno=error.errno or 0) from error
        return True

    def identity(self) -> Identity:
        return Identity()  # a new one, because the authentication writes to it

    def close(self) -> None:
        pass
