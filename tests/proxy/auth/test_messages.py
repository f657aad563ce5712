"""proxy.auth.messages: byte for byte what kafka-python 3.0.12 writes (the hex below is its encoder's), and refused when it is cut or changed."""

import contextlib
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framegate.proxy.auth import messages
from framegate.proxy.auth.messages import (
    ApiRange,
    ApiVersionsAnswer,
    ApiVersionsRequest,
    HandshakeAnswer,
    HandshakeRequest,
    RequestHeader,
    TokenAnswer,
    TokenRequest,
    answer_reader,
    answer_writer,
    read_request_header,
    request_writer,
)
from framegate.proxy.auth.wire import MalformedError, Reader
from tests.fakes import sasl_frames as frames
from tests.fakes.cases import each_of

RANGES = (ApiRange(0, 3, 11), ApiRange(17, 0, 1))
MESSAGES: list[tuple[int, int, Any]] = [
    *((18, version, ApiVersionsRequest(*(("test", "1.0") if version >= 3 else ()))) for version in range(5)),
    *((17, version, HandshakeRequest("SCRAM-SHA-256")) for version in range(2)),
    *((36, version, TokenRequest(b"\0user\0pencil")) for version in range(3)),
]
ANSWERS: list[tuple[int, int, Any]] = [
    *((18, version, ApiVersionsAnswer(0, RANGES)) for version in range(5)),
    (18, 0, ApiVersionsAnswer(35, (ApiRange(18, 0, 4),))),
    *(
        (18, version, ApiVersionsAnswer(0, (ApiRange(0, 3, 11, ((5, b"later"),)),), ((0, b"\1"), (3, b"\1"), (7000, b"x" * 200))))
        for version in (3, 4)
    ),
    *((17, version, HandshakeAnswer(33, ("PLAIN", "SCRAM-SHA-256"))) for version in range(2)),
    *((36, version, TokenAnswer(58, "no", b"abc", 0 if version == 0 else 5000)) for version in range(3)),
    *((36, version, TokenAnswer(0, None, b"")) for version in range(3)),
]
VERSIONED = (ApiVersionsRequest, ApiVersionsAnswer, TokenRequest, TokenAnswer)


def request_of(key: int, version: int, message: Any) -> bytes:
    writer = request_writer(RequestHeader(key, version, 7, "c"))
    message.write(*((writer, version) if isinstance(message, VERSIONED) else (writer,)))
    return writer.message()


def answer_of(key: int, version: int, message: Any) -> bytes:
    writer = answer_writer(RequestHeader(key, version, 7))
    message.write(*((writer, version) if isinstance(message, VERSIONED) else (writer,)))
    return writer.message()


def read_request(data: bytes, kind: Any) -> tuple[RequestHeader, Any]:
    reader = Reader(data)
    header = read_request_header(reader)
    return header, kind.read(*((reader, header.version) if kind in VERSIONED else (reader,)))


def read_answer(data: bytes, key: int, version: int, kind: Any) -> Any:
    reader = answer_reader(data, RequestHeader(key, version, 7))
    return kind.read(*((reader, version) if kind in VERSIONED else (reader,)))


@each_of(("write", "key", "version", "message"), [*((request_of, *item) for item in MESSAGES), *((answer_of, *item) for item in ANSWERS)])
def test_a_message_is_read_as_it_was_written(write: Callable[[int, int, Any], bytes], key: int, version: int, message: Any) -> None:
    def read(data: bytes) -> Any:
        if write is answer_of:
            return read_answer(data, key, version, type(message))
        header, found = read_request(data, type(message))
        assert header == RequestHeader(key, version, 7, "c")
        return found

    data = write(key, version, message)
    assert read(data) == message
    for size in range(len(data)):
        with pytest.raises(MalformedError):
            read(data[:size])
    with pytest.raises(MalformedError, match="behind"):
        read(data + b"\0")


def test_the_bytes_are_those_of_the_protocol() -> None:
    assert request_of(18, 0, ApiVersionsRequest()) == frames.versions(0)
    assert request_of(18, 3, ApiVersionsRequest("test", "1.0")) == frames.versions(3)
    assert request_of(17, 1, HandshakeRequest("PLAIN")) == frames.handshake("PLAIN")
    for version in range(3):
        assert request_of(36, version, TokenRequest(b"t" * 200)) == frames.token(b"t" * 200, version=version)
        for message in (None, "why not"):
            written = answer_of(36, version, TokenAnswer(58, message, b"abc", 0 if version == 0 else 9))
            assert written == frames.token_answer(b"abc", error=58, message=message, lifetime=9, version=version)
    assert answer_of(18, 1, ApiVersionsAnswer(0, RANGES)) == frames.versions_answer(1, *RANGES)
    assert answer_of(17, 1, HandshakeAnswer(0, ("PLAIN", "x"))) == frames.handshake_answer("PLAIN", "x")


# What kafka-python's encoder writes for the same messages: correlation id 7, client id "c".
PYTHON = {
    "request 18 0": "0012000000000007000163",
    "request 18 1": "0012000100000007000163",
    "request 18 2": "0012000200000007000163",
    "request 18 3": "001200030000000700016300057465737404312e3000",
    "request 18 4": "001200040000000700016300057465737404312e3000",
    "request 17 0": "0011000000000007000163000d534352414d2d5348412d323536",
    "request 17 1": "0011000100000007000163000d534352414d2d5348412d323536",
    "request 36 0": "00240000000000070001630000000c00757365720070656e63696c",
    "request 36 1": "00240001000000070001630000000c00757365720070656e63696c",
    "request 36 2": "0024000200000007000163000d00757365720070656e63696c00",
    "answer 18 0": "0000000700000000000200000003000b001100000001",
    "answer 18 1": "0000000700000000000200000003000b00110000000100000000",
    "answer 18 2": "0000000700000000000200000003000b00110000000100000000",
    "answer 18 3": "0000000700000300000003000b00001100000001000000000000",
    "answer 18 4": "0000000700000300000003000b00001100000001000000000000",
    "answer 17 0": "000000070021000000020005504c41494e000d534352414d2d5348412d323536",
    "answer 17 1": "000000070021000000020005504c41494e000d534352414d2d5348412d323536",
    "answer 36 0": "00000007003a00026e6f00000003616263",
    "answer 36 1": "00000007003a00026e6f000000036162630000000000001388",
    "answer 36 2": "0000000700003a036e6f04616263000000000000138800",
}


@each_of(("name", "written"), PYTHON.items())
def test_another_librarys_bytes(name: str, written: str) -> None:
    what, key, version = name.split()
    made, kinds = (request_of, MESSAGES) if what == "request" else (answer_of, ANSWERS)
    message = next(item for kind, number, item in kinds if (kind, number) == (int(key), int(version)))
    assert made(int(key), int(version), message).hex() == written


@each_of(("key", "version"), [(0, 1), (3, 1), (19, 1), (99, 1), (-1, 1), (18, 5), (18, 99), (18, -1), (17, 2), (36, 3)])
def test_of_another_request_or_version_only_the_first_eight_bytes_are_read(key: int, version: int) -> None:
    reader = Reader(struct.pack(">hhi", key, version, 7) + b"\x7f\xffgarbage")
    header = read_request_header(reader)
    assert (header.is_supported, header.correlation_id, header.client_id, reader.position) == (False, 7, None, 8)


def test_a_client_without_an_id() -> None:
    header = read_request_header(Reader(b"\0\x12\0\3\0\0\0\7\xff\xff\0"))
    assert header == RequestHeader(18, 3, 7, None)


def test_tagged_fields_of_others_are_passed_over() -> None:
    data = b"\0\x12\0\3\0\0\0\7\0\1c" + b"\1\0\2ab" + b"\5test\x041.0" + b"\1\5\1x"
    assert read_request(data, ApiVersionsRequest)[1] == ApiVersionsRequest("test", "1.0")


def test_the_answer_to_another_request_is_none() -> None:
    with pytest.raises(MalformedError, match="correlation id 8 where 7 was asked"):
        answer_reader(b"\0\0\0\x08", RequestHeader(36, 2, 7))


@each_of(
    ("name", "version", "good"),
    [("a", "1", True), ("a-b.c", "1.0-rc.1", True), ("", "1", False), ("a", "", False), ("-a", "1", False), ("a-", "1", False), ("a b", "1", False)],
)
def test_the_name_of_a_clients_software(name: str, version: str, good: bool) -> None:
    request = ApiVersionsRequest(name, version)
    assert request.is_valid(3) is good
    assert request.is_valid(2), "which has none"


def test_a_token_is_in_no_repr() -> None:
    assert "pencil" not in repr(TokenRequest(b"pencil")) + repr(TokenAnswer(0, None, b"pencil"))


@given(st.sampled_from(MESSAGES), st.integers(0, 40), st.binary(min_size=1, max_size=6))
def test_garbage_is_refused_or_read(item: tuple[int, int, Any], position: int, noise: bytes) -> None:
    key, version, message = item
    data = request_of(key, version, message)
    try:
        header, found = read_request(data[:position] + noise + data[position + len(noise) :], type(message))
    except MalformedError:
        return
    except ValueError:
        pytest.fail("no error of ours")
    assert header.key in messages.SUPPORTED or found is not None


@given(st.integers(0, 3), st.binary(max_size=60))
def test_random_bytes_are_no_answer(version: int, data: bytes) -> None:
    for key, kind in ((18, ApiVersionsAnswer), (17, HandshakeAnswer), (36, TokenAnswer)):
        with contextlib.suppress(MalformedError):
            assert isinstance(read_answer(b"\0\0\0\7" + data, key, version, kind), kind)


FEATURES = bytes.fromhex(
    "00000007 0000"  # correlation id, error
    "03 0000 0003 000b 00 0012 0000 0004 01 05 02 abcd"  # Produce 3 to 11; ApiVersions 0 to 4, with a tagged field that nobody knows
    "00000000"  # throttle time
    "05"  # tagged fields
    "00 1a 02 14 7472616e73616374696f6e2e76657273696f6e 0000 0002 00"  # supported: transaction.version 0 to 2
    "01 08 0000000000000029"  # finalized features' epoch 41
    "02 1a 02 14 7472616e73616374696f6e2e76657273696f6e 0002 0002 00"  # finalized: transaction.version 2
    "03 01 00"  # ZkMigrationReady
    "e807 03 010203"  # tag 1000, of a Kafka to come
)


@each_of("version", [3, 4])
def test_what_a_broker_says_of_its_features_and_what_nobody_knows_comes_out_byte_for_byte(version: int) -> None:
    header = RequestHeader(18, version, 7)
    answer = ApiVersionsAnswer.read(answer_reader(FEATURES, header), version)
    assert [tag for tag, _ in answer.tags] == [0, 1, 2, 3, 1000]
    assert answer_of(18, version, answer) == FEATURES
