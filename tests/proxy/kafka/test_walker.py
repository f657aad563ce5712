"""framegate.proxy.kafka.walker: every message to its end, no byte beyond it, and the same positions however it is cut."""

import contextlib
import itertools
import random
import re
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framegate.proxy.errors import KafkaFormatError
from framegate.proxy.kafka.program import compile_program
from framegate.proxy.kafka.schema import Api, apis
from framegate.proxy.kafka.walker import Walker
from tests.fakes.cases import each_of
from tests.fakes.kio_messages import answer_body, request_body, sample, schema

TEXT = "Count:int16 List:[]{Name:string?1-2~topicName Ids:[]int32} Data:bytes?0-2 Extra:{At:int8 To:string}/1-2?1-2 Hint:{At:int16}/2-2#1@2-2"
SOME = Api((0, "Some", 0, 2, 2, 2, TEXT, TEXT))
MARKS = {"List<": 1, "List[]<": 2, "List.Name<": 3, "List.Name>": 4, "List[]>": 5, "List>": 6, "Extra.To<": 7, "Hint.At<": 8, "Hint>": 9}


def walk(version: int, body: bytes, *, answer: bool = True) -> list[tuple[int, int]]:
    walker = Walker()
    marks = list(walker.walk(compile_program(SOME, version, answer=answer, marks=MARKS), b"##" + body + b"##", 2, 2 + len(body)))
    return [(number, position - 2) for number, position in zip(marks[::2], marks[1::2], strict=True)]


@pytest.mark.slow
def test_every_message_of_every_version_is_walked_to_its_end_and_no_shorter_one() -> None:
    rng = random.Random(1)
    walker = Walker()
    for api in apis():
        for version in range(api.least, api.most + 1):
            for answer in (False, True):
                program = compile_program(api, version, answer=answer, marks={})
                body = (answer_body if answer else request_body)(sample(schema(api.key, version, answer), rng, 2))
                walker.walk(program, body, 0, len(body))
                assert walker.position == len(body)
                for end in {rng.randrange(len(body)) for _ in range(5)}:
                    with pytest.raises(KafkaFormatError):
                        walker.walk(program, body, 0, end)
                with pytest.raises(KafkaFormatError, match="bytes behind the last field"):
                    walker.walk(program, body + b"\0", 0, len(body) + 1)


def classic() -> bytes:
    """Version 1: two elements, one with a null name."""
    elements = struct.pack(">h2si2i", 2, b"ab", 2, 1, 2) + struct.pack(">hi", -1, 0)
    return struct.pack(">ihi", 7, 5, 2) + elements + struct.pack(">i3s", 3, b"xyz") + struct.pack(">bbh", 1, 9, 0)


def compact(tags: bytes = b"\x01\x01\x03\x00\x07\x00") -> bytes:
    """Version 2: one element, no data, a null struct."""
    return struct.pack(">i", 7) + b"\x00" + struct.pack(">h", 5) + b"\x02" + b"\x03ab\x02" + bytes(4) + b"\x00" + b"\x00" + b"\xff" + tags


def test_marks_are_where_the_fields_are() -> None:
    assert walk(1, classic()) == [(1, 6), (2, 10), (3, 10), (4, 14), (5, 26), (2, 26), (3, 26), (4, 28), (5, 32), (6, 32), (7, 41)]
    # 0 stands before the marks of a tagged field: where its size is
    assert walk(2, compact()) == [(1, 7), (2, 8), (3, 8), (4, 11), (5, 17), (6, 17), (0, 21), (8, 22), (9, 25)]
    assert walk(2, compact(b"\x00")) == [(1, 7), (2, 8), (3, 8), (4, 11), (5, 17), (6, 17)]


def test_a_request_begins_with_its_header() -> None:
    assert walk(1, struct.pack(">hhih2s", 0, 1, 7, 2, b"me") + classic()[4:], answer=False)[0] == (1, 14)
    assert walk(2, struct.pack(">hhihb", 0, 2, 7, -1, 0) + compact()[5:], answer=False)[0] == (1, 13)


@given(st.lists(st.integers(0, 60), max_size=6), st.sampled_from((1, 2)))
def test_a_message_in_pieces_has_the_same_marks(cuts: list[int], version: int) -> None:
    body = classic() if version == 1 else compact(b"\x02\x01\x03\x00\x07\x00\x90\x01\x00")
    walker = Walker()
    walker.begin(compile_program(SOME, version, answer=True, marks=MARKS), 0, len(body))
    edges = sorted({0, len(body), *(cut for cut in cuts if cut < len(body))})
    ended = [walker.feed(b"#" + body[start:end] + b"#", 1, 1 + end - start) for start, end in itertools.pairwise(edges)]
    assert ended == [False] * (len(edges) - 2) + [True]
    assert list(zip(walker.marks[::2], walker.marks[1::2], strict=True)) == walk(version, body)


def test_the_side_that_sent_a_message_is_at_fault() -> None:
    for answer, side in ((True, "upstream"), (False, "downstream")):
        with pytest.raises(KafkaFormatError) as caught:
            walk(1, b"", answer=answer)
        assert caught.value.side == side


def fault(version: int, body: bytes) -> str:
    with pytest.raises(KafkaFormatError) as caught:
        walk(version, body)
    assert 0 <= caught.value.position <= len(body)
    return str(caught.value)


def changed(body: bytes, position: int, new: bytes) -> bytes:
    return body[:position] + new + body[position + len(new) :]


@each_of(
    ("version", "body", "message"),
    [
        (1, changed(classic(), 6, b"\xff\xff\xff\xff"), "a length of -1"),  # an array that may not be null
        (1, changed(classic(), 6, b"\xff\xff\xff\xfe"), "a length of -2"),
        (1, changed(classic(), 6, b"\x7f\xff\xff\xff"), "a length of 2147483647 where 33 bytes are left"),
        (1, changed(classic(), 6, b"\0\0\0\x22"), "a length of 34 where 33 bytes are left"),
        (1, changed(classic(), 6, b"\0\0\0\x21"), "."),  # as many elements as bytes: refused further on
        (1, changed(classic(), 10, b"\xff\xfe"), "a length of -2"),
        (1, changed(classic(), 10, b"\x7f\xff"), "a length of 32767 where 31 bytes are left"),
        (1, changed(classic(), 14, b"\x7f\xff\xff\xff"), "a length of 8589934588 where"),  # elements of four bytes
        (1, classic()[:3], "the end of the message within fields"),
        (1, classic()[:8], "the end of the message within a number"),
        (1, b"", "the end of the message within fields"),
        (2, changed(compact(), 7, b"\x00"), "a length of -1"),
        (2, changed(compact(), 7, b"\xff\xff\xff\xff\x0f")[:20], "a length of 4294967294 where"),
        (2, changed(compact(), 7, b"\xff\xff\xff\xff\x10")[:20], "a varint of more than 32 bits"),
        (2, changed(compact(), 7, b"\xff\xff\xff\xff\xff\x01")[:20], "a varint of more than 32 bits"),
        (2, compact()[:7] + b"\xff\xff", "the end of the message within a number"),
        (2, compact(b"\x02\x01\x02\0\7"), "tagged fields where|the end of the message"),
        (2, compact(b"\x05\x01\x02\0\7\0\0"), "the end of the message|5 tagged fields where"),
        (2, compact(b"\x02\x01\x03\0\7\0\x01\x00"), "tag 1 behind tag 1"),
        (2, compact(b"\x02\x02\x00\x01\x03\0\7\0"), "tag 1 behind tag 2"),
        (2, compact(b"\x01\x01\x02\0\7"), "the end of the message within a number|another size"),
        (2, compact(b"\x01\x01\x04\0\7\0\0"), "a tagged field with another size"),
        (2, compact(b"\x01\x01\x05\0\7\0\0"), "a tagged field of 5 bytes where 4 are left"),
        (2, compact(b"\x01\x81\x00\x03\0\7\0"), "a tag with leading zeros"),
        (2, compact(b"\x01\x01\x02\0\7"), "within a number|another size"),
    ],
)
def test_what_does_not_follow_the_schema_is_refused(version: int, body: bytes, message: str) -> None:
    assert re.search(message, fault(version, body))


@given(st.binary(max_size=200), st.sampled_from((0, 1, 2)))
def test_random_bytes_are_refused_or_walked(body: bytes, version: int) -> None:
    with contextlib.suppress(KafkaFormatError):
        assert all(0 <= position <= len(body) for _, position in walk(version, body))
