"""Kafka's headers, byte for byte: request header v1 without a client id, response header v0."""

import struct

from tests.fakes.upstream import frame as framed


def request(key: int, version: int, correlation: int, rest: bytes = b"", client_id: bytes = b"\xff\xff") -> bytes:
    return framed(struct.pack(">hhi", key, version, correlation) + client_id + rest)


def answer(correlation: int, rest: bytes = b"") -> bytes:
    return framed(struct.pack(">i", correlation) + rest)
