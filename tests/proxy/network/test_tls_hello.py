"""framegate.proxy.network.tls_hello: what OpenSSL's own clients ask for, cut and broken in every way."""

import contextlib
import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framegate.proxy.errors import TlsError
from framegate.proxy.network.tls_hello import MAX_CAME, MAX_HELLO, Hello, HelloReader
from tests.fakes.cases import each_of


def hello_of(host: str | None, protocols: tuple[str, ...] = (), version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> bytes:
    """The first record of an OpenSSL client."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.minimum_version = context.maximum_version = version
    if protocols:
        context.set_alpn_protocols(protocols)
    outgoing = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=host)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def read_hello(*pieces: bytes) -> Hello | None:
    """What is known after each of the pieces came, but for the last nothing."""
    reader = HelloReader()
    assert [reader.take(piece) for piece in pieces[:-1]] == [None] * (len(pieces) - 1)
    hello = reader.take(pieces[-1])
    assert reader.came() == b"".join(pieces), "OpenSSL begins with all of it"
    return hello


def shown(data: bytes) -> tuple[str, list[str]] | None:
    hello = read_hello(data)
    return None if hello is None else (hello.host, hello.protocols)


def record(message: bytes, kind: int = 0x16) -> bytes:
    return bytes((kind, 3, 1)) + len(message).to_bytes(2, "big") + message


def in_records(message: bytes, size: int) -> bytes:
    return b"".join(record(message[start : start + size]) for start in range(0, len(message), size))


GOOD = hello_of("broker.example.org", ("kafka", "h2"))


@each_of("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_what_a_client_asks_for(version: ssl.TLSVersion) -> None:
    assert shown(hello_of("Broker.Example.org", ("kafka", "h2"), version)) == ("broker.example.org", ["kafka", "h2"])
    assert shown(hello_of("127.0.0.1", version=version)) == ("", [])
    assert shown(hello_of(None, version=version)) == ("", [])


def test_it_is_read_when_all_of_it_is_here_and_not_before() -> None:
    assert [shown(GOOD[:end]) for end in range(len(GOOD))] == [None] * len(GOOD)
    assert shown(GOOD + b"more") == ("broker.example.org", ["kafka", "h2"])


@each_of("size", [1, 3, 4, 5, 100, 16_384])
def test_a_message_in_many_records_and_many_pieces_is_one_message(size: int) -> None:
    data = in_records(GOOD[5:], size)
    for hello in (read_hello(data), read_hello(*(data[place : place + 1] for place in range(len(data))))):
        assert hello is not None
        assert (hello.host, hello.protocols) == ("broker.example.org", ["kafka", "h2"])
    assert shown(data[:-1]) is None


@each_of("first", [b"\x15\x03\x01\x00\x02\x02\x28", b"\x17\x03\x03", b"GET / HTTP/1.1", record(b"\x02\0\0\0"), b"\x16\x07\x07\x00\x05"])
def test_what_is_no_client_hello_asks_for_nothing(first: bytes) -> None:
    assert shown(first) == ("", [])


def test_a_message_longer_than_any_is_refused_before_it_is_here() -> None:
    with pytest.raises(TlsError, match="more than 32768") as caught:
        read_hello(record(b"\x01" + MAX_HELLO.to_bytes(3, "big") + b"x"))
    assert caught.value.reason == "hello_too_long"


def begun(came: int, size: int) -> bytes:
    """So many bytes of the records of a long message, in records of a size."""
    data = in_records(b"\x01" + (MAX_HELLO - 4).to_bytes(3, "big") + bytes(MAX_HELLO - 5), size)
    return data[:came]


@each_of("size", [1, 2, 4])
def test_records_so_small_that_their_headers_are_most_of_them_are_waited_behind_to_a_bound(size: int) -> None:
    assert read_hello(begun(MAX_CAME - 1, size)) is None
    assert read_hello(begun(MAX_CAME, size)) is None
    with pytest.raises(TlsError, match="not whole after 65536 bytes") as caught:
        read_hello(begun(MAX_CAME, size), begun(MAX_CAME + 1, size)[MAX_CAME:])
    assert caught.value.reason == "hello_too_long"


@each_of("before", [b"", b"\x01", GOOD[5:100]])
def test_records_without_a_byte_are_not_waited_behind_for_ever(before: bytes) -> None:
    with pytest.raises(TlsError, match="not whole after"):
        read_hello(record(before), record(b"") * (MAX_CAME // 5 + 1))


def test_what_was_looked_at_is_not_looked_at_again() -> None:
    data = begun(MAX_CAME, 1)
    assert read_hello(*(data[place : place + 1] for place in range(len(data)))) is None, "hours, if each byte had all records read again"


@given(st.integers(5, len(GOOD) - 1), st.integers(0, 255))
def test_a_byte_changed_anywhere_is_read_or_not_and_never_raises(place: int, value: int) -> None:
    data = bytearray(GOOD)
    data[place] = value
    with contextlib.suppress(TlsError):
        found = read_hello(bytes(data))
        assert found is None or isinstance(found, Hello)


@given(st.binary(max_size=400))
def test_any_bytes_behind_a_good_header(body: bytes) -> None:
    message = b"\x01" + len(body).to_bytes(3, "big") + body
    found = read_hello(record(message))
    assert found is not None
