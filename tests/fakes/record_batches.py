"""Produce requests with record batches, byte for byte (ProduceRequest 2 to 13, magic 2)."""

import gzip
import struct
from collections.abc import Sequence

from framegate.proxy.kafka.values import varint
from tests.fakes.kafka_frames import request

Headers = Sequence[tuple[bytes, bytes | None]]


def context(trace: int, span: int = 1, flags: int = 1) -> bytes:
    """The value of a header ``traceparent``."""
    return f"00-{trace:032x}-{span:016x}-{flags:02x}".encode()


def signed(value: int) -> bytes:
    return varint(value * 2 if value >= 0 else -value * 2 - 1)


def sized(value: bytes | None) -> bytes:
    return signed(-1) if value is None else signed(len(value)) + value


def record(headers: Headers = (), value: bytes | None = b"value", key: bytes | None = None, header_count: int | None = None) -> bytes:
    body = b"\0" + signed(-(1 << 33)) + signed(0) + sized(key) + sized(value)
    body += signed(len(headers) if header_count is None else header_count)
    body += b"".join(sized(name) + sized(text) for name, text in headers)
    return signed(len(body)) + body


def batch(*records: bytes, codec: int = 0, magic: int = 2, count: int | None = None) -> bytes:
    packed = gzip.compress(b"".join(records)) if codec == 1 else b"".join(records)
    rest = struct.pack(">ihiqqqhii", 0, codec, len(records) - 1, 0, 0, -1, -1, -1, len(records) if count is None else count)
    return struct.pack(">qiib", 0, len(rest) + len(packed) + 5, -1, magic) + rest + packed


def produce(
    *topics: tuple[str, Sequence[bytes]], version: int = 9, correlation: int = 1, acks: int = -1, partition: int = 2, client_id: bytes = b"\0\x01c"
) -> bytes:
    """A frame. ``topics``: each with its batches, one for each partition from ``partition`` on."""
    compact = version >= 9

    def count(size: int) -> bytes:
        return varint(size + 1) if compact else struct.pack(">i", size)

    tags = b"\0" if compact else b""
    rest = tags + (b"" if version < 3 else b"\0" if compact else b"\xff\xff") + struct.pack(">hi", acks, 30_000) + count(len(topics))
    for name, batches in topics:
        text = name.encode()
        rest += text.rjust(16, b"\0")[:16] if version >= 13 else (count(len(text)) if compact else struct.pack(">h", len(text))) + text
        rest += count(len(batches))
        for index, each in enumerate(batches, partition):
            rest += struct.pack(">i", index) + count(len(each)) + each + tags
        rest += tags
    return request(0, version, correlation, rest + tags, client_id)
