"""Clients beside the generator's. Kafka's in miniature: requests of five APIs, one at a time on each connection, every answer waited for and its
correlation id checked; visitors, which connect, send one frame, and leave; and the handler that answers the requests.
"""

import socket
import struct
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Final

from framegate.proxy.handler import Context

__all__ = ["KafkaClients", "KafkaUpstream", "Visitors", "request"]

_TIMEOUT_S: Final = 10.0
_PAUSE_S: Final = 0.02
_ROUNDS: Final = 20
_VISIT_S: Final = 0.5
_HELLO: Final = struct.pack(">i", 12) + b"good morning"
_CALLS: Final = ((18, 0, 10), (3, 1, 40), (0, 7, 2_000), (0, 7, 6_000), (1, 4, 80), (1, 4, 80), (8, 2, 90))
"""Key and version of the API, and bytes of a request beyond its header."""
_ANSWERS: Final = {0: 40, 1: 20_000, 3: 600, 8: 60, 18: 400}
"""Bytes by the key of the API: Produce, Fetch, Metadata, OffsetCommit, ApiVersions."""
_CLIENT_ID: Final = b"framegate-demo"


def request(key: int, version: int, correlation: int, size: int) -> bytes:
    """A frame with a request header (version 1) and zeros."""
    body = struct.pack(">hhih", key, version, correlation, len(_CLIENT_ID)) + _CLIENT_ID + bytes(size)
    return struct.pack(">i", len(body)) + body


class KafkaUpstream:
    """Answers requests of Kafka with their correlation id and zeros: one answer of a broker's size for each."""

    def handle(self, frame: bytes, context: Context) -> bytes:
        return frame[4:8] + bytes(_ANSWERS.get(int.from_bytes(frame[:2], "big"), 20))


class KafkaClients:
    """Connections that call, each from a thread, for the length of a block. After some seconds, or when it is cut off, one connects again.

    Args:
        address: of the listener, in plaintext.
        count: of connections.
    """

    def __init__(self, address: tuple[str, int], count: int = 3) -> None:
        self.answered = 0
        self.cut_off = 0
        self.wrong = 0
        self._address = address
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._run, name=f"kafka-client-{number}", daemon=True) for number in range(count)]

    def __enter__(self) -> "KafkaClients":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(_TIMEOUT_S)

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                with socket.create_connection(self._address, timeout=_TIMEOUT_S) as connection:
                    self._talk(connection)
            except OSError:
                self.cut_off += 1
                self._over.wait(0.2)

    def _talk(self, connection: socket.socket) -> None:
        correlation = 0
        for _ in range(_ROUNDS):
            for key, version, size in _CALLS:
                correlation += 1
                connection.sendall(request(key, version, correlation, size))
                length = int.from_bytes(_exactly(connection, 4), "big")
                answer = _exactly(connection, length)
                self.answered += 1
                self.wrong += int.from_bytes(answer[:4], "big") != correlation
                if self._over.wait(_PAUSE_S):
                    return


class Visitors:
    """Clients that come one after another, send a frame, wait for its answer and leave, for the length of a block.

    Args:
        connect: a connection to a listener whose upstream answers a frame with itself.
    """

    def __init__(self, connect: Callable[[], socket.socket]) -> None:
        self.answered = 0
        self.refused = 0
        self._connect = connect
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="visitors", daemon=True)

    def __enter__(self) -> "Visitors":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        self._thread.join(_TIMEOUT_S)

    def _run(self) -> None:
        while not self._over.wait(_VISIT_S):
            try:
                with self._connect() as connection:
                    connection.sendall(_HELLO)
                    self.answered += _exactly(connection, len(_HELLO)) == _HELLO
            except OSError:
                self.refused += 1


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise ConnectionResetError("the connection ended within an answer")
        data += piece
    return bytes(data)
