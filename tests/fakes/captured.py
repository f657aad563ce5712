"""Logs with connections to replay, and upstreams to replay them against."""

import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from framegate.proxy.config.model import TapRule
from tests.fakes.tap_log import START_NS, FakeProcessor
from tests.fakes.upstream import ScriptedUpstream, frame, read_frame

MS = 1_000_000
API_VERSIONS = 18
SILENT = b"(nothing)"  # No answer


def asked(correlation: int, client: bytes = b"app") -> bytes:
    """An ApiVersions request, version 0."""
    return struct.pack(">hhih", API_VERSIONS, 0, correlation, len(client)) + client


def answered(correlation: int, error: int = 0, versions: int = 1) -> bytes:
    return struct.pack(">ihi", correlation, error, versions) + struct.pack(">hhh", 3, 0, 9) * versions


def exchange(
    log: FakeProcessor, correlation: int, *, connection: int = 1, at_ns: int = START_NS, latency_us: int = 500, answer: bytes | None = None
) -> None:
    """Append a request of Kafka and its answer."""
    log.send([asked(correlation)], connection=connection, protocol="kafka", at_ns=at_ns)
    body = answered(correlation) if answer is None else answer
    facts = {"keys": [API_VERSIONS << 16], "latencies": [latency_us], "correlations": [correlation]}
    log.send([body], connection=connection, direction="response", protocol="kafka", at_ns=at_ns + latency_us * 1000, **facts)  # type: ignore[arg-type]


def kafka_log(root: Path, exchanges: int = 4, connections: int = 2, apart_ms: int = 0, rule: TapRule | None = None) -> Path:
    log = FakeProcessor(root, rule=rule)
    for number in range(exchanges):
        exchange(log, number, connection=1 + number % connections, at_ns=START_NS + number * apart_ms * MS)
    log.flush()
    log.close()
    return root


def plain_log(root: Path, bodies: Sequence[bytes], rule: TapRule | None = None, **facts: int) -> Path:
    """Requests of one connection, each echoed."""
    log = FakeProcessor(root, rule=rule, **facts)
    for number, body in enumerate(bodies):
        for way, direction in enumerate(("request", "response")):
            log.send([body], direction=direction, at_ns=START_NS + (2 * number + way) * MS)
    log.flush()
    log.close()
    return root


class Upstream(ScriptedUpstream):
    """Answers each frame with what ``reply`` makes of it: a body, ``SILENT``, or None: it closes the connection."""

    def __init__(self, reply: Callable[[bytes], bytes | None], begin: bytes = b"") -> None:
        self.received: list[bytes] = []  # bodies, in order of arrival
        self.connections = 0
        self._reply = reply
        self._begin = begin
        self._lock = threading.Lock()
        super().__init__(self._talk)

    def _talk(self, sock: socket.socket) -> None:
        with self._lock:
            self.connections += 1
        if self._begin:
            sock.sendall(frame(self._begin))
        for body in _frames(sock):
            with self._lock:
                self.received.append(body)
            reply = self._reply(body)
            if reply is None:
                return
            if reply is not SILENT:
                sock.sendall(frame(reply))


def _frames(sock: socket.socket) -> Iterator[bytes]:
    while True:
        yield read_frame(sock)


def correlation_of(body: bytes) -> int:
    return int(struct.unpack_from(">i", body, 4)[0])


def broker(body: bytes) -> bytes:
    """The answer that ``exchange`` captures."""
    return answered(correlation_of(body))
