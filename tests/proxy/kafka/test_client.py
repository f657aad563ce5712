"""framegate.proxy.kafka.client: what the first request of a connection says of its client, also if it is cut short or no request."""

import random
import struct

from framegate.proxy.kafka.client import MAX_TEXT, Client, client_of


def texts(client: Client) -> tuple[str, str, str]:
    return client.client_id, client.software, client.version


def request(key: int, version: int, client_id: bytes | None, rest: bytes = b"") -> bytes:
    named = b"\xff\xff" if client_id is None else struct.pack(">h", len(client_id)) + client_id
    return struct.pack(">hhi", key, version, 7) + named + rest


def compact(text: bytes) -> bytes:
    return bytes([len(text) + 1]) + text


SOFTWARE = compact(b"librdkafka") + compact(b"v2.3") + b"\0"


def test_client_id_and_software_are_read_from_the_first_request() -> None:
    for data, expected in (
        (request(3, 9, b"billing"), ("billing", "", "")),
        (request(3, 9, None), ("", "", "")),
        (request(18, 2, b"billing", SOFTWARE), ("billing", "", "")),
        (request(18, 3, b"billing", b"\0" + SOFTWARE), ("billing", "librdkafka", "v2.3")),
        (request(18, 4, None, b"\0" + SOFTWARE), ("", "librdkafka", "v2.3")),
        (request(18, 4, b"x", b"\2\1\3abc\5\0" + SOFTWARE), ("x", "librdkafka", "v2.3")),
        (request(18, 4, b"x", b"\0\0" + compact(b"1")), ("x", "", "")),
        (request(3, 9, b"a" * (MAX_TEXT + 1)), ("a" * MAX_TEXT, "", "")),
        (request(3, 9, b"a\xff"), ("a\ufffd", "", "")),
    ):
        assert texts(client_of(data)) == expected


def test_a_request_that_is_cut_short_gives_what_is_whole() -> None:
    data = request(18, 3, b"billing", b"\0" + SOFTWARE)
    known = [texts(client_of(data[:size])) for size in range(len(data) + 1)]
    named, software = 10 + len(b"billing"), 10 + len(b"billing") + 1 + len(compact(b"librdkafka"))
    for size, found in enumerate(known):
        expected = ("billing" if size >= named else "", "librdkafka" if size >= software else "", "v2.3" if size >= len(data) - 1 else "")
        assert found == expected, size


def test_bytes_that_are_no_request_raise_nothing() -> None:
    chance = random.Random(7)
    for size in range(300):
        client_of(chance.randbytes(size % 40))
        client_of(struct.pack(">hhi", 18, 3, 0) + chance.randbytes(size % 60))
