"""How long a produce request takes, by each of several ways to one broker, in turn within one run; one line of JSON.

``latency.py NAME=HOST:PORT …``: the first is the way without a proxy. Each request is one record of 1 KiB, acknowledged by the broker, over one
connection; the next one is sent when the answer came.
"""

import json
import socket
import statistics
import struct
import sys
import time

from confluent_kafka.admin import AdminClient, NewTopic

ROUNDS = 20
REQUESTS = 400
WARM_UP = 100
TOPIC = "latency"
VALUE = b"." * 1024


def crc32c(data: bytes) -> int:
    """Castagnoli's, which the standard library does not have; it is asked for once."""
    total = 0xFFFFFFFF
    for byte in data:
        total ^= byte
        for _ in range(8):
            total = total >> 1 ^ (0x82F63B78 if total & 1 else 0)
    return total ^ 0xFFFFFFFF


def varint(number: int) -> bytes:
    """A signed number as Kafka's records write it."""
    number, found = (number << 1) ^ (number >> 63), bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def text(word: str) -> bytes:
    return struct.pack(">h", len(word)) + word.encode()


def produce_request() -> bytes:
    """Produce, version 3, acknowledged by all, of one record for partition 0."""
    record = bytes(1) + varint(0) + varint(0) + varint(-1) + varint(len(VALUE)) + VALUE + varint(0)
    now = int(time.time() * 1000)
    checked = struct.pack(">hiqqqhii", 0, 0, now, now, -1, -1, -1, 1) + varint(len(record)) + record
    batch = struct.pack(">ibI", -1, 2, crc32c(checked)) + checked
    batch = struct.pack(">qi", 0, len(batch)) + batch
    body = struct.pack(">hhi", -1, -1, 30_000) + struct.pack(">i", 1) + text(TOPIC) + struct.pack(">ii", 1, 0) + struct.pack(">i", len(batch)) + batch
    frame = struct.pack(">hhi", 0, 3, 7) + text("latency") + body
    return struct.pack(">i", len(frame)) + frame


class Way:
    """A connection, and the seconds that its requests took."""

    def __init__(self, name: str, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.name = name
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.took: list[float] = []

    def ask(self, request: bytes) -> None:
        began = time.perf_counter()
        self._socket.sendall(request)
        answer = self._receive(struct.unpack(">i", self._receive(4))[0])
        self.took.append(time.perf_counter() - began)
        # correlation id, one topic with its name, one partition: its number and the error
        error = struct.unpack_from(">h", answer, 4 + 4 + 2 + len(TOPIC) + 4 + 4)[0]
        if error:
            raise SystemExit(f"{self.name}: the broker answers with error {error}")

    def _receive(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            piece = self._socket.recv(size - len(found))
            if not piece:
                raise SystemExit(f"{self.name}: the connection ended")
            found += piece
        return found


def main() -> None:
    admin = AdminClient({"bootstrap.servers": "127.0.0.1:9094"})
    for future in admin.create_topics([NewTopic(TOPIC, 1, 1)]).values():
        future.result()
    request = produce_request()
    ways = [Way(*word.split("=", 1)) for word in sys.argv[1:]]
    for way in ways:
        for _ in range(WARM_UP):
            way.ask(request)
        way.took.clear()
    for turn in range(ROUNDS):
        for way in ways[turn % len(ways) :] + ways[: turn % len(ways)]:
            for _ in range(REQUESTS):
                way.ask(request)
    said = {}
    for way in ways:
        cuts = statistics.quantiles(way.took, n=100)
        said[way.name] = {"p50_us": round(cuts[49] * 1e6), "p99_us": round(cuts[98] * 1e6), "requests": len(way.took)}
    print(json.dumps(said))


if __name__ == "__main__":
    main()
