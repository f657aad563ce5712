"""framegate.proxy.kafka.message: requests and answers as objects, as kio has them."""

import dataclasses
import datetime
import random
import struct
import uuid
from typing import Any

import pytest

from framegate.proxy.errors import KafkaFormatError
from framegate.proxy.kafka.message import MAX_ELEMENTS, decode, default, encode_answer, encode_element
from framegate.proxy.kafka.schema import Api, apis, known_api
from tests.fakes.kio_messages import answer_body, fields, request_body, sample, schema


def plain(value: Any, primitive: str | None = None) -> Any:
    """A value of kio as this module has it: fields in their order, without names."""
    if isinstance(value, tuple):
        return [plain(item, primitive) for item in value]
    if dataclasses.is_dataclass(value):
        return [plain(getattr(value, name), kind) for name, kind, *_ in fields(type(value))]  # type: ignore[arg-type]
    if primitive == "records":
        return None
    if primitive == "uuid":
        return (value or uuid.UUID(int=0)).bytes
    if isinstance(value, datetime.timedelta):
        return round(value.total_seconds() * 1000)
    if primitive == "datetime_i64":
        return -1 if value is None else round(value.timestamp() * 1000)
    if isinstance(value, float):
        return struct.pack(">d", value)
    return value.encode() if isinstance(value, str) else int(value) if isinstance(value, int) else value


def listed(values: Any, found: list[Any], version: int) -> Any:
    """A message of this module as ``plain`` has it; fields that are not there have their defaults."""
    if values is None:
        return None
    out = []
    for field in (field for field in found if field.is_in(version)):
        value = values.get(field.name, default(field, version))
        if field.fields:
            value = (
                [listed(item, field.fields, version) for item in value] if field.array and value is not None else listed(value, field.fields, version)
            )
        out.append(value)
    return out


@pytest.mark.slow
def test_every_message_is_read_as_kio_has_it() -> None:
    rng = random.Random(4)
    for api in apis():
        for version in range(api.least, api.most + 1):
            for answer in (False, True):
                entity = sample(schema(api.key, version, answer), rng)
                body = (answer_body if answer else request_body)(entity)
                found = decode(api.key, version, b"#" + body + b"#", 1, 1 + len(body), answer=answer)
                assert listed(found, api.fields(answer), version) == plain(entity), (api.name, version, answer)


@pytest.mark.slow
def test_every_answer_is_written_as_it_was_read() -> None:
    rng = random.Random(5)
    for api in apis():
        for version in range(api.least, api.most + 1):
            body = answer_body(sample(schema(api.key, version, True), rng), 9)
            values = decode(api.key, version, body, 0, len(body), answer=True)
            if api.name not in ("Fetch", "ShareFetch"):  # whose records are not read
                assert encode_answer(api, version, 9, values) == body, (api.name, version)


def test_an_unknown_tagged_field_is_left_out() -> None:
    body = answer_body(
        schema(17 + 1, 3, True)(**{name: getattr(sample(schema(18, 3, True), random.Random(1), 0), name) for name, *_ in fields(schema(18, 3, True))})
    )
    assert decode(18, 3, body, 0, len(body), answer=True)["ApiKeys"] == []


def test_an_element_is_written_as_in_its_message() -> None:
    topics = next(field for field in known_api(8, 2).fields(True) if field.name == "Topics")
    partition = {"PartitionIndex": 1, "ErrorCode": 29}
    assert encode_element(topics, 2, {"Name": b"t", "Partitions": [partition]}, False) == struct.pack(">h1siih", 1, b"t", 1, 1, 29)
    assert encode_element(topics, 8, {"Name": b"t", "Partitions": [partition]}, True) == struct.pack(">b1sbihbb", 2, b"t", 2, 1, 29, 0, 0)


def test_defaults() -> None:
    text = "A:int32 B:int64=-2 C:bool=true D:string E:string?0-1=null F:[]int8 G:{H:int8} I:uuid J:int32=0x7f K:string=ab L:string?1-1 M:{H:int8}?0-1"
    api = Api((0, "Some", 0, 1, 1, -1, text, text))
    values = [default(field, 0) for field in api.fields(True)]
    assert values == [0, -2, 1, b"", None, [], {}, bytes(16), 127, b"ab", b"", None]
    assert default(api.fields(True)[-2], 1) is None
    assert encode_answer(api, 0, 1, {})[-3:] == b"\0\0\xff"


def test_a_message_of_too_many_elements_is_refused() -> None:
    """DescribeLogDirs version 1 with partitions of one topic."""

    def request(count: int) -> bytes:
        return struct.pack(">hhihih1si", 35, 1, 7, -1, 1, 1, b"t", count) + bytes(4 * count)

    most = request(MAX_ELEMENTS - 1)  # the topic is one
    assert len(decode(35, 1, most, 0, len(most))["Topics"][0]["Partitions"]) == MAX_ELEMENTS - 1
    more = request(MAX_ELEMENTS)
    with pytest.raises(KafkaFormatError, match="more than 100000 elements"):
        decode(35, 1, more, 0, len(more))


def test_a_message_that_does_not_follow_its_schema_is_refused() -> None:
    body = request_body(sample(schema(3, 12, False), random.Random(1)))
    for end in range(len(body)):
        with pytest.raises(KafkaFormatError):
            decode(3, 12, body, 0, end)
    with pytest.raises(KafkaFormatError, match="version 14 of API 3, which is not understood"):
        decode(3, 14, body, 0, len(body))
