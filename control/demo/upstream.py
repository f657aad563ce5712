"""The demo's upstream: a process that answers every frame with the same frame, and counts them.

``python -m control.demo.upstream`` listens on a free port of 127.0.0.1 and says so in one JSON line; it ends, with a line of what it
counted, when its standard input ends.
"""

import json
import select
import socket
import struct
import sys
from typing import Final

__all__ = ["Upstream", "main"]

_READ_SIZE: Final = 256 * 1024
_PENDING_LIMIT: Final = 1024 * 1024
_SIZE: Final = struct.Struct(">i")


class _Connection:
    """One accepted connection: the tail of a frame begun, and answers that the peer has not taken."""

    __slots__ = ("ended", "pending", "socket", "tail")

    def __init__(self, accepted: socket.socket) -> None:
        self.socket = accepted
        self.ended = False
        self.tail = bytearray()
        self.pending = bytearray()


class Upstream:
    """Accepts, reads whole frames and answers them in order, all in one thread.

    Args:
        listener: bound and listening.
        watched: a descriptor whose end of file ends ``run``.
    """

    def __init__(self, listener: socket.socket, watched: int) -> None:
        self.frame_count = 0
        self.byte_count = 0
        self._listener = listener
        self._watched = watched
        self._connections: dict[int, _Connection] = {}
        self._epoll = select.epoll()
        listener.setblocking(False)
        self._epoll.register(listener, select.EPOLLIN)
        self._epoll.register(watched, select.EPOLLIN | select.EPOLLHUP)

    def run(self) -> None:
        """Serve until the watched descriptor has something to say."""
        while True:
            for descriptor, events in self._epoll.poll():
                if descriptor == self._watched:
                    return
                if descriptor == self._listener.fileno():
                    self._accept()
                elif descriptor in self._connections:
                    self._serve(self._connections[descriptor], events)

    def close(self) -> None:
        for connection in list(self._connections.values()):
            self._close(connection)
        self._epoll.close()
        self._listener.close()

    def _accept(self) -> None:
        accepted, _ = self._listener.accept()
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connections[accepted.fileno()] = _Connection(accepted)
        self._epoll.register(accepted, select.EPOLLIN)

    def _serve(self, connection: _Connection, events: int) -> None:
        try:
            if events & select.EPOLLOUT:
                self._write(connection)
            if events & ~select.EPOLLOUT and not connection.ended:
                self._read(connection)
        except (ConnectionError, ValueError):
            self._close(connection)
            return
        if connection.ended and not connection.pending:
            self._close(connection)

    def _read(self, connection: _Connection) -> None:
        """Answer the whole frames of one read."""
        data = connection.socket.recv(_READ_SIZE)
        connection.ended = not data
        connection.tail += data
        end = self._whole(connection.tail)
        if end:
            connection.pending += connection.tail[:end]
            del connection.tail[:end]
        self._write(connection)

    def _whole(self, data: bytearray) -> int:
        """Where the last whole frame ends; counts them."""
        position, length = 0, len(data)
        while length - position >= _SIZE.size:
            size = _SIZE.unpack_from(data, position)[0]
            if size < 0:
                raise ValueError("negative size")
            if position + _SIZE.size + size > length:
                break
            position += _SIZE.size + size
            self.frame_count += 1
            self.byte_count += _SIZE.size + size
        return position

    def _write(self, connection: _Connection) -> None:
        """Write what is pending; reading stops while too much waits."""
        if connection.pending:
            try:
                sent = connection.socket.send(connection.pending)
            except BlockingIOError:
                sent = 0
            del connection.pending[:sent]
        waiting = len(connection.pending)
        reads = waiting < _PENDING_LIMIT and not connection.ended
        self._epoll.modify(connection.socket, (select.EPOLLOUT if waiting else 0) | (select.EPOLLIN if reads else 0))

    def _close(self, connection: _Connection) -> None:
        del self._connections[connection.socket.fileno()]
        self._epoll.unregister(connection.socket)
        connection.socket.close()


def main() -> int:
    """Serve until standard input ends."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    upstream = Upstream(listener, sys.stdin.fileno())
    print(json.dumps({"event": "listening", "port": listener.getsockname()[1]}), flush=True)
    upstream.run()
    upstream.close()
    print(json.dumps({"event": "final", "frames": upstream.frame_count, "bytes": upstream.byte_count}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
