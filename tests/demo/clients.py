"""Clients of the nodes of ``make dashboards`` beside the load generator, each on a thread, and the nodes' handler.

The handler processes import this module: it imports only the standard library and what handlers use.
"""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Final

from framegate.proxy.handler import Context

_TIMEOUT_S: Final = 10.0
_ROUNDS: Final = 20
_HELLO: Final = b"good morning"
PRODUCE: Final = b"\xff\xff" * 2  # the beginning of a Produce: no transaction, acknowledged by all
_CALLS: Final = (
    (18, 0, bytes(10)),
    (3, 1, bytes(40)),
    (0, 7, PRODUCE + bytes(2_000)),
    (0, 7, PRODUCE + bytes(6_000)),
    (1, 4, bytes(80)),
    (1, 4, bytes(80)),
    (8, 2, bytes(90)),
)  # Key and version of the API, and the request behind its header
KEEP: Final = b"keep"  # the handler keeps frames that begin so


@contextlib.contextmanager
def repeating(step: Callable[[threading.Event], None], count: int = 1, pause_s: float = 0.2) -> Iterator[None]:
    """Call a step again and again, on ``count`` threads, until the block ends.

    Args:
        step: gets the event that is set at the end of the block. An OSError ends one call only: refused connections are part of the troubles.
        count: number of threads.
        pause_s: between two calls.
    """
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError):
                step(over)
            over.wait(pause_s)

    threads = [threading.Thread(target=run, name=f"repeating-{number}", daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(_TIMEOUT_S)


class Handler:
    """Answers each frame with itself."""

    def __init__(self) -> None:
        self._kept: list[bytes] = []

    def handle(self, data: bytes, context: Context) -> bytes:
        if data.startswith(KEEP):
            self._kept.append(data)
        return data


def frame(body: bytes) -> bytes:
    """With its size before it."""
    return struct.pack(">i", len(body)) + body


def kafka_request(key: int, version: int, rest: bytes, correlation: int = 0, client_id: bytes = b"framegate-demo") -> bytes:
    return frame(struct.pack(">hhih", key, version, correlation, len(client_id)) + client_id + rest)


def call_kafka(
    address: tuple[str, int], over: threading.Event, *, patience_s: float = _TIMEOUT_S, pause_s: float = 0.1, client_id: bytes = b"framegate-demo"
) -> None:
    """One connection of a Kafka client in plaintext: requests of five APIs, one at a time, for some seconds. A wrong correlation id ends it."""
    with socket.create_connection(address, timeout=_TIMEOUT_S) as connection:
        connection.settimeout(patience_s)
        for correlation, (key, version, rest) in enumerate(_CALLS * _ROUNDS):
            answer = ask(connection, kafka_request(key, version, rest, correlation, client_id))
            if int.from_bytes(answer[:4], "big") != correlation or over.wait(pause_s):
                return


def log_in(address: tuple[str, int], user: str, password: str) -> None:
    """A login with PLAIN, as Kafka's clients do it; OSError if it is refused."""
    token = f"\0{user}\0{password}".encode()
    with socket.create_connection(address, timeout=_TIMEOUT_S) as connection:
        for request in (kafka_request(17, 1, struct.pack(">h", 5) + b"PLAIN"), kafka_request(36, 0, frame(token))):
            if ask(connection, request)[4:6] != b"\0\0":
                raise ConnectionRefusedError("the login was refused")


def visit(connection: socket.socket, body: bytes = _HELLO) -> None:
    """Send one frame to a server that answers a frame with itself, wait for the answer, and leave."""
    with connection:
        ask(connection, frame(body))


def ask(connection: socket.socket, request: bytes) -> bytes:
    """The answer to a request, both frames; OSError if there is none."""
    connection.sendall(request)
    return _exactly(connection, int.from_bytes(_exactly(connection, 4), "big"))


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise ConnectionResetError("the connection ended within an answer")
        data += piece
    return bytes(data)
