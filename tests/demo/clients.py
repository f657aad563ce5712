"""Clients of the dashboards' environment beside the load generator, each on a thread, and the handler that answers Kafka's requests.

The handler processes import this module: it imports only the standard library and what handlers use.
"""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Final

from framegate.proxy.handler import Context

__all__ = ["KafkaUpstream", "call_kafka", "repeating", "visit"]

_TIMEOUT_S: Final = 10.0
_PAUSE_S: Final = 0.02
_ROUNDS: Final = 20
_HELLO: Final = struct.pack(">i", 12) + b"good morning"
_CALLS: Final = ((18, 0, 10), (3, 1, 40), (0, 7, 2_000), (0, 7, 6_000), (1, 4, 80), (1, 4, 80), (8, 2, 90))
"""Key and version of the API, and bytes of a request beyond its header."""
_ANSWERS: Final = {0: 40, 1: 20_000, 3: 600, 8: 60, 18: 400}
"""Bytes by the key of the API: Produce, Fetch, Metadata, OffsetCommit, ApiVersions."""
_CLIENT_ID: Final = b"framegate-demo"


@contextlib.contextmanager
def repeating(step: Callable[[threading.Event], None], count: int = 1, pause_s: float = 0.2) -> Iterator[None]:
    """Call a step again and again, on ``count`` threads, until the block ends.

    Args:
        step: gets the event that is set at the end of the block. An OSError ends one call only: refused connections are part of the scenarios.
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


class KafkaUpstream:
    """Answers each of Kafka's requests with its correlation id and as many zeros as a broker's answer has bytes."""

    def handle(self, frame: bytes, context: Context) -> bytes:
        return frame[4:8] + bytes(_ANSWERS.get(int.from_bytes(frame[:2], "big"), 20))


def call_kafka(address: tuple[str, int], over: threading.Event) -> None:
    """One connection of a Kafka client in plaintext: requests of five APIs, one at a time, for some seconds. A wrong correlation id ends it."""
    with socket.create_connection(address, timeout=_TIMEOUT_S) as connection:
        for correlation, (key, version, size) in enumerate(_CALLS * _ROUNDS):
            body = struct.pack(">hhih", key, version, correlation, len(_CLIENT_ID)) + _CLIENT_ID + bytes(size)
            connection.sendall(struct.pack(">i", len(body)) + body)
            answer = _exactly(connection, int.from_bytes(_exactly(connection, 4), "big"))
            if int.from_bytes(answer[:4], "big") != correlation or over.wait(_PAUSE_S):
                return


def visit(connection: socket.socket) -> None:
    """Send one frame to a listener whose upstream answers a frame with itself, wait for the answer, and leave."""
    with connection:
        connection.sendall(_HELLO)
        _exactly(connection, len(_HELLO))


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise ConnectionResetError("the connection ended within an answer")
        data += piece
    return bytes(data)
