"""Sockets and transports in memory, which can delay, split, drop and stall.

``MemorySocket`` stands for a non-blocking stream socket under the real transports; ``MemoryTransport`` is a transport of its own, proven
by the same check suite as the real ones.
"""

import errno
import os
import socket
import weakref
from collections import deque
from typing import cast

from framegate.proxy.errors import TransportError
from framegate.proxy.network.run import Buffer
from framegate.proxy.network.transport import DONE, Identity, Transport


class Wire:
    """One direction between two ends: bytes in flight, then FIN."""

    def __init__(self, capacity: int = 1 << 20, split: int | None = None) -> None:
        self.capacity = capacity  # bytes that may be in flight; writing beyond is refused
        self.split = split  # the most that one read gets; None for all there is
        self.stalled = False  # nothing arrives while it is set
        self.fin = False
        self._bytes = bytearray()

    def put(self, data: bytes | memoryview) -> int:
        taken = min(len(data), self.capacity - len(self._bytes))
        self._bytes += data[:taken]
        return taken

    def take(self, size: int) -> bytes | None:
        """Bytes, ``b""`` at the end, None when nothing has arrived."""
        data = self.peek(size)
        del self._bytes[: len(data or b"")]
        return data

    def peek(self, size: int) -> bytes | None:
        if self.stalled or not (self._bytes or self.fin):
            return None
        return bytes(self._bytes[: min(size, self.split or size)])

    def __len__(self) -> int:
        return len(self._bytes)


class MemorySocket:
    """As much of a non-blocking ``socket.socket`` as a transport uses."""

    def __init__(self, inbound: Wire, outbound: Wire) -> None:
        # inbound, outbound: the two wires
        self.inbound = inbound
        self.outbound = outbound
        self.calls: list[str] = []  # names of the calls made
        self.errors: dict[str, deque[int]] = {"recv": deque(), "send": deque()}  # numbers that the next calls of a name fail with
        self._fd = -1

    def fileno(self) -> int:
        """Of a file as long as what has arrived: so FIONREAD says of it what it says of a socket."""
        if self._fd < 0:
            self._fd = os.memfd_create("arrived")
            weakref.finalize(self, os.close, self._fd)
        os.ftruncate(self._fd, 0 if self.inbound.stalled else len(self.inbound))
        return self._fd

    def recv(self, size: int, flags: int = 0) -> bytes:
        self._called("recv", "recv")
        data = self.inbound.peek(size) if flags & socket.MSG_PEEK else self.inbound.take(size)
        if data is None:
            raise BlockingIOError(errno.EAGAIN, "nothing has arrived")
        return data

    def send(self, data: bytes | memoryview) -> int:
        self._called("send", "send")
        return self._put([data])

    def sendmsg(self, pieces: list[bytes | memoryview]) -> int:
        self._called("sendmsg", "send")
        return self._put(pieces)

    def shutdown(self, how: int) -> None:
        assert how == socket.SHUT_WR, "only the write side is ever shut alone"
        self.calls.append("shutdown")
        self.outbound.fin = True

    def close(self) -> None:
        self.calls.append("close")
        self.outbound.fin = True

    def _called(self, name: str, kind: str) -> None:
        self.calls.append(name)
        if self.errors[kind]:
            number = self.errors[kind].popleft()
            raise OSError(number, "an error of the test")

    def _put(self, pieces: list[bytes | memoryview]) -> int:
        total = 0
        for piece in pieces:
            taken = self.outbound.put(piece)
            total += taken
            if taken < len(piece):
                break
        if total == 0 and any(len(piece) for piece in pieces):
            raise BlockingIOError(errno.EAGAIN, "the wire is full")
        return total


def as_socket(fake: MemorySocket) -> socket.socket:
    return cast(socket.socket, fake)


def memory_sockets(capacity: int = 1 << 20, split: int | None = None) -> tuple[MemorySocket, MemorySocket]:
    """Two connected ends; both wires have the same limits."""
    there, back = Wire(capacity, split), Wire(capacity, split)
    return MemorySocket(back, there), MemorySocket(there, back)


class MemoryTransport(Transport):
    """A transport over two wires, without a socket. Buffers nothing itself."""

    def __init__(self, inbound: Wire, outbound: Wire, *, is_plain: bool = True) -> None:
        super().__init__(is_plain=is_plain)
        self.inbound = inbound
        self.outbound = outbound
        self.reset = False
        self.closed = 0

    def handshake(self) -> int:
        self._check()
        return DONE

    def read(self, size: int) -> bytes | None:
        self._check()
        data = self.inbound.take(size)
        self.wire_received += len(data or b"")
        return data

    def has_buffered(self) -> bool:
        return False

    def peek(self, size: int) -> bytes:
        self._check()
        return self.inbound.peek(size) or b""

    def obtainable(self, wanted: int) -> int:
        self._check()
        return 0 if self.inbound.stalled else len(self.inbound)

    def write(self, data: Buffer) -> int:
        self._check()
        taken = self.outbound.put(data)
        self.wire_sent += taken
        return taken

    def write_gather(self, pieces: list[Buffer]) -> int:
        total = 0
        for piece in pieces:
            taken = self.write(piece)
            total += taken
            if taken < len(piece):
                break
        return total

    def flush(self) -> bool:
        self._check()
        return True

    def shut_write(self) -> bool:
        self._check()
        self.outbound.fin = True
        return True

    def identity(self) -> Identity:
        return Identity()

    def close(self) -> None:
        self.closed += 1

    def _check(self) -> None:
        if self.reset:
            raise TransportError("reset by the test", errno=errno.ECONNRESET)


def memory_transports(capacity: int = 1 << 20, split: int | None = None) -> tuple[MemoryTransport, MemoryTransport]:
    there, back = Wire(capacity, split), Wire(capacity, split)
    return MemoryTransport(back, there), MemoryTransport(there, back)
