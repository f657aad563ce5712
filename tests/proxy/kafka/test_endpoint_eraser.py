"""framegate.proxy.kafka.endpoint_eraser: as many bytes without an address, however the answer is cut."""

import dataclasses
import random
import struct
from typing import Any

import pytest

from framegate.proxy.errors import KafkaFormatError
from framegate.proxy.kafka.addresses import TAIL, carries_addresses
from framegate.proxy.kafka.endpoint_eraser import FIRST_UNKNOWN_TAG, EndpointEraser
from framegate.proxy.kafka.schema import Field, apis
from framegate.proxy.kafka.values import varint
from tests.fakes.cases import each_of
from tests.fakes.kio_messages import HOST, MUTATIONS, answer_body, fields, mutated, sample, schema

VERSIONS = [(api.key, version) for api in apis() for version in range(api.least, api.most + 1) if carries_addresses(api.key, version) == TAIL]


def erased(key: int, version: int, body: bytes, edges: list[int]) -> bytes:
    """The answer in pieces that end at these positions; each has as many bytes as before. Of every second one, what need not be fed is not."""
    eraser = EndpointEraser(key, version, len(body))
    out, start = b"", 0
    for number, end in enumerate([*edges, len(body)]):
        passed = min(int(eraser.ahead), end - start) if number % 2 else 0
        eraser.pass_by(passed)
        out += body[start : start + passed]
        start += passed
        piece = b"#" + body[start:end] + b"##"
        keep = eraser.feed(piece, 1, 1 + end - start)
        out += piece[1:keep] + eraser.replacement
        assert len(out) == end
        start = end
    return out


def filler(size: int, tags: int = 1) -> bytes:
    """So many bytes of tagged fields: the first has zeros, the others nothing."""
    others = b"".join(bytes((FIRST_UNKNOWN_TAG + index, 0)) for index in range(1, tags))
    room = size - len(others) - 1
    width = next(width for width in range(1, 6) if room - width < 1 << 7 * width)
    length = bytearray(varint(room - width))
    if len(length) < width:
        length[-1] |= 0x80
        length.append(0)
    return bytes((FIRST_UNKNOWN_TAG,)) + bytes(length) + bytes(room - width) + others


def expected(answer: Any) -> bytes:
    """By hand: what the answer is without endpoints, and a tagged field that fills the rest."""
    body, without = answer_body(answer), answer_body(dataclasses.replace(answer, node_endpoints=()))
    if body == without:
        return body
    head = without[:-1] + b"\x01"  # the number of tagged fields; before it, in some answers, an empty array
    return head + filler(len(body) - len(head))


def endpoints(key: int, version: int, *hosts: str) -> tuple[Any, ...]:
    kind = next(inner for name, _, inner, *_ in fields(schema(key, version, True)) if name == "node_endpoints")
    return tuple(kind(node_id=node, host=host, port=9092, rack=None) for node, host in enumerate(hosts))


@pytest.mark.slow
def test_an_answer_in_pieces_loses_its_endpoints_and_keeps_its_size() -> None:
    rng = random.Random(3)
    for key, version in VERSIONS:
        for _ in range(6):
            answer = sample(schema(key, version, True), rng)
            body = answer_body(answer)
            assert HOST.encode() not in expected(answer)
            for count in (0, 1, 2, 20):
                edges = sorted(rng.randrange(len(body) + 1) for _ in range(count))
                assert erased(key, version, body, edges) == expected(answer), (key, version, edges)


@pytest.mark.extended
@pytest.mark.slow
def test_every_place_to_cut() -> None:
    """In two at any byte, and into pieces of one byte."""
    for key, version in ((0, 10), (0, 13), (1, 18), (78, 2), (79, 1)):
        answer = dataclasses.replace(
            sample(schema(key, version, True), random.Random(version), 1), node_endpoints=endpoints(key, version, HOST, HOST)
        )
        body = answer_body(answer)
        for edge in range(len(body) + 1):
            assert erased(key, version, body, [edge]) == expected(answer), (key, version, edge)
        assert erased(key, version, body, list(range(1, len(body)))) == expected(answer)


def test_every_size_of_the_size_that_fills_the_rest() -> None:
    """Around 127 and 16,383 bytes, where one byte more takes two."""
    for key, version in ((0, 13), (78, 2)):
        for size in (*range(80, 140), *range(16330, 16400)):
            answer = dataclasses.replace(sample(schema(key, version, True), random.Random(1), 0), node_endpoints=endpoints(key, version, "h" * size))
            assert erased(key, version, answer_body(answer), [7]) == expected(answer), size


def test_an_answer_without_endpoints_stays_as_it_is() -> None:
    for key, version in VERSIONS:
        body = answer_body(dataclasses.replace(sample(schema(key, version, True), random.Random(1)), node_endpoints=()))
        eraser = EndpointEraser(key, version, len(body))
        assert eraser.feed(body, 0, len(body)) == len(body)
        assert not eraser.erased


def produce(tags: bytes) -> bytes:
    """An answer to Produce version 10 without topics, throttled for 0 ms, with these tagged fields behind it."""
    return struct.pack(">ibb", 7, 0, 1) + bytes(4) + tags


ENDPOINT = b"\x00\x0e\x02" + struct.pack(">ib2sib", 1, 3, b"hh", 9, 0) + b"\x00"


@each_of(
    ("tags", "new"),
    [
        (b"\x01\x01\x02ab", b"\x01\x01\x02ab"),  # other fields stay
        (b"\x02\x01\x02ab\x05\x00", b"\x02\x01\x02ab\x05\x00"),
        (b"\x01" + ENDPOINT, b"\x01" + filler(16)),
        (b"\x02" + ENDPOINT + b"\x01\x02ab", b"\x02" + filler(20, 2)),  # behind the endpoints their number stays, and nothing else
        (b"\x03" + ENDPOINT + b"\x01\x00\x02\x00", b"\x03" + filler(20, 3)),
        (b"\x20" + ENDPOINT + bytes(range(1, 32)) * 2, b"\x20" + filler(78, 32)),
        (b"\x01\x00\x00", b"\x01" + filler(2)),
        (b"\x01\x00", None),  # no room for a size
        (b"\x21" + ENDPOINT + bytes(range(1, 33)) * 2, None),  # more tagged fields than there are numbers of one byte
        (b"\x02\x01\x00\x00\x00", None),  # the endpoints behind another field
        (b"\x01\x80\x00\x00", None),  # a zero of two bytes
        (b"\x01\x01\x00\x00", None),
    ],
)
def test_tagged_fields_behind_and_before_the_endpoints(tags: bytes, new: bytes | None) -> None:
    body = produce(tags)
    for edges in ([], [len(body) - len(tags) + 1], list(range(len(body)))):
        if new is None:
            with pytest.raises(KafkaFormatError):
                erased(0, 10, body, edges)
        else:
            assert erased(0, 10, body, edges) == produce(new)


def test_the_number_of_the_tagged_field_is_free_in_every_schema() -> None:
    def tags(found: list[Field], version: int) -> list[int]:
        return [field.tag(version) for field in found] + [tag for field in found for tag in tags(field.fields, version)]

    every = [
        tag for api in apis() for version in range(api.least, api.most + 1) for answer in (False, True) for tag in tags(api.fields(answer), version)
    ]
    assert max(every) < 10 < FIRST_UNKNOWN_TAG
    assert FIRST_UNKNOWN_TAG + 32 == 128, "numbers of one byte"


def test_nothing_follows_the_endpoints_in_any_schema() -> None:
    for key, version in VERSIONS:
        known = next(api for api in apis() if api.key == key)
        found = [field for field in known.fields(True) if field.is_in(version)]
        assert found[-1].name == "NodeEndpoints"
        assert [field.tag(version) for field in found if field.tag(version) >= 0] == ([0] if key in (0, 1) else [])


@each_of(("key", "version"), [(0, 9), (1, 15), (3, 9), (0, 14), (78, 0), (4, 0)])
def test_an_answer_that_has_no_endpoints_is_refused(key: int, version: int) -> None:
    with pytest.raises(KafkaFormatError, match=f"version {version} of API {key}"):
        EndpointEraser(key, version, 100)


@pytest.mark.slow
@pytest.mark.timeout(36000)
def test_mutated_answers_are_refused_or_keep_their_size_and_have_no_endpoints() -> None:
    """FRAMEGATE_TEST_MUTATIONS: how many."""
    rng = random.Random(12)
    bodies = [(key, version, answer_body(sample(schema(key, version, True), rng, 2))) for key, version in VERSIONS for _ in range(5)]
    refused = 0
    for _ in range(MUTATIONS):
        key, version, body = rng.choice(bodies)
        body = mutated(body, rng)
        edges = sorted(rng.randrange(len(body) + 1) for _ in range(rng.randint(0, 3)))
        try:
            new = erased(key, version, body, edges)
        except KafkaFormatError:
            refused += 1
            continue
        again = EndpointEraser(key, version, len(new))
        again.feed(new, 0, len(new))
        assert not again.erased, (key, version, body.hex(), edges)
    assert 0.1 < refused / MUTATIONS < 0.9
