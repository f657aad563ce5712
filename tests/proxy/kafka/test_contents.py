"""framegate.proxy.kafka.contents: what messages say, for every version, as kio has it."""

import base64
import dataclasses
import itertools
import random
import struct
import uuid
from types import SimpleNamespace
from typing import Any

import pytest

from framegate.proxy.errors import KafkaFormatError
from framegate.proxy.kafka.contents import CUT, FETCH, GROUP_APIS, METADATA, NOT_KNOWN, PRODUCE, Contents
from framegate.proxy.kafka.schema import api, apis
from tests.fakes.kio_messages import MUTATIONS, answer_body, mutated, request_body, sample, schema
from tests.fakes.record_batches import batch, record

BATCH = batch(record(), record(), record())
EACH = [(known.key, version) for known in apis() for version in range(known.least, known.most + 1)]
VERSIONS = {key: [version for other, version in EACH if other == key] for key in (PRODUCE, FETCH, METADATA, *GROUP_APIS)}

STRINGS = ("client_id", "group_id", "member_id", "fault", "topic", "topic_id")
NUMBERS = (
    *("acks", "generation", "error_code", "counts", "partition", "records", "record_bytes", "codec", "newest_ms", "base_offset", "high_watermark"),
    "partition_error",
)


def columns(contents: Contents) -> SimpleNamespace:
    """The columns as lists, with the strings that they name."""
    lists = {name: [*contents.column(name)] for name in NUMBERS}
    lists |= {name: [None if index < 0 else contents.texts[index] for index in contents.column(name)] for name in STRINGS}
    return SimpleNamespace(**lists)


def read(body: bytes, key: int, version: int, *, answer: bool = False, stored: int | None = None) -> SimpleNamespace:
    """The contents of one message between others' bytes."""
    contents = Contents()
    end = 3 + len(body) if stored is None else 3 + stored
    data = b"\xff\xff\xff" + (body if stored is None else body[:stored]) + b"\xff" * 70
    contents.add(data, struct.pack("<5i", 3, end, len(body), key << 16 | version, answer))
    return columns(contents)


def topic_text(entity: Any) -> tuple[str | None, str | None]:
    if hasattr(entity, "topic_id"):
        return None, text_of(entity.topic_id)
    return entity.topic if hasattr(entity, "topic") else entity.name, None


def text_of(topic_id: uuid.UUID | None) -> str | None:
    return None if topic_id is None else base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


@pytest.mark.parametrize("version", VERSIONS[PRODUCE])
def test_a_produce_request_names_client_acks_partitions_and_records(version: int) -> None:
    rng = random.Random(version)
    entity = sample(schema(PRODUCE, version, False), rng, least=1)
    topics = tuple(
        dataclasses.replace(topic, partition_data=tuple(dataclasses.replace(each, records=BATCH) for each in topic.partition_data))
        for topic in entity.topic_data
    )
    entity = dataclasses.replace(entity, topic_data=topics)
    found = read(request_body(entity, client_id="orders-service"), PRODUCE, version)
    assert (found.client_id, found.acks, found.fault, found.error_code) == (["orders-service"], [entity.acks], [None], [NOT_KNOWN])
    expected = [(*topic_text(topic), each.index, 3, len(BATCH), 0) for topic in topics for each in topic.partition_data]
    assert list(zip(found.topic, found.topic_id, found.partition, found.records, found.record_bytes, found.codec, strict=True)) == expected
    assert found.counts == [len(expected)]


@pytest.mark.parametrize("version", VERSIONS[PRODUCE])
def test_a_produce_answer_has_offsets_and_errors(version: int) -> None:
    entity = sample(schema(PRODUCE, version, True), random.Random(version), least=1)
    found = read(answer_body(entity), PRODUCE, version, answer=True)
    parts = [(topic, each) for topic in entity.responses for each in topic.partition_responses]
    offsets = [each.base_offset if each.base_offset >= 0 else NOT_KNOWN for _, each in parts]
    codes = [each.error_code for _, each in parts]
    assert (found.base_offset, found.partition_error) == (offsets, codes)
    assert list(zip(found.topic, found.topic_id, found.partition, strict=True)) == [(*topic_text(topic), each.index) for topic, each in parts]
    assert found.error_code == [next((code for code in codes if code), 0)]


@pytest.mark.parametrize("version", VERSIONS[FETCH])
def test_a_fetch_answer_has_records_and_offsets(version: int) -> None:
    entity = sample(schema(FETCH, version, True), random.Random(version), least=1)
    two = struct.pack(">q", 40) + BATCH[8:] + struct.pack(">q", 43) + BATCH[8:]
    blobs = [two, two + BATCH[:-1], two + BATCH[:60], b"", None]
    number = iter(range(1000))
    responses = tuple(
        dataclasses.replace(topic, partitions=tuple(dataclasses.replace(each, records=blobs[next(number) % 5]) for each in topic.partitions))
        for topic in entity.responses
    )
    entity = dataclasses.replace(entity, responses=responses)
    found = read(answer_body(entity), FETCH, version, answer=True)
    parts = [each for topic in responses for each in topic.partitions]
    assert found.records == [6 if each.records else 0 for each in parts]
    assert found.base_offset == [40 if each.records else NOT_KNOWN for each in parts]
    assert found.record_bytes == [len(each.records or b"") for each in parts]
    assert found.high_watermark == [each.high_watermark if each.high_watermark >= 0 else NOT_KNOWN for each in parts]
    assert found.partition_error == [each.error_code for each in parts]
    assert list(zip(found.topic, found.topic_id, strict=True)) == [topic_text(topic) for topic in responses for _ in topic.partitions]


def test_a_metadata_answer_tells_each_id_once() -> None:
    for version in VERSIONS[METADATA]:
        entity = sample(schema(METADATA, version, True), random.Random(version), least=1)
        both = Contents()
        body = answer_body(entity)
        for at in (0, len(body)):
            both.add(body * 2, struct.pack("<5i", at, at + len(body), len(body), METADATA << 16 | version, 1))
        contents = columns(both)
        known = {text_of(topic.topic_id): topic.name for topic in entity.topics} if version >= 10 else {}
        assert dict(zip(contents.topic_id, contents.topic, strict=True)) == known
        assert (len(contents.topic), contents.counts[1]) == (len(known), 0)


@pytest.mark.parametrize("key", GROUP_APIS)
def test_a_member_of_a_group_names_group_member_and_generation(key: int) -> None:
    for version in VERSIONS[key]:
        rng = random.Random(version)
        entity = sample(schema(key, version, False), rng, least=1)
        found = read(request_body(entity), key, version)
        members = [getattr(each, "member_id", None) for each in getattr(entity, "members", (entity,))]
        member = next(filter(None, members), members[-1])
        names = ("generation_id", "generation_id_or_member_epoch", "member_epoch")
        generation = next((getattr(entity, name) for name in names if hasattr(entity, name)), NOT_KNOWN)
        assert (found.group_id, found.member_id, found.generation) == ([entity.group_id], [member], [generation])
        told = sample(schema(key, version, True), rng, least=1)
        found = read(answer_body(told), key, version, answer=True)
        assert found.generation == [next((getattr(told, name) for name in names if hasattr(told, name)), NOT_KNOWN)]


def codes_of(entity: Any) -> list[int]:
    """The error codes in an answer, in order."""
    found: list[int] = []
    for field in dataclasses.fields(entity):
        value = getattr(entity, field.name)
        if field.name in ("error_code", "partition_error_code"):
            found.append(int(value))
        for inner in value if isinstance(value, tuple) else (value,):
            if dataclasses.is_dataclass(inner):
                found += codes_of(inner)
    return found


def test_the_error_of_an_answer_is_the_first_one_of_any_api_and_version() -> None:
    for key, version in EACH:
        entity = sample(schema(key, version, True), random.Random(version), least=1)
        known = api(key)
        assert known is not None
        found = read(answer_body(entity), key, version, answer=True)
        codes = codes_of(entity)
        if found.error_code != [NOT_KNOWN]:
            assert found.error_code[0] in codes or found.error_code == [0], (key, version)
            assert bool(found.error_code[0]) == any(codes), (key, version)
        assert found.fault == [None]


def test_what_is_stored_of_a_message_is_read_and_the_rest_is_not_known() -> None:
    entity = sample(schema(PRODUCE, 12, False), random.Random(1), least=2)
    topics = tuple(
        dataclasses.replace(topic, partition_data=tuple(dataclasses.replace(each, records=BATCH) for each in topic.partition_data))
        for topic in entity.topic_data
    )
    body = request_body(dataclasses.replace(entity, topic_data=topics))
    whole = read(body, PRODUCE, 12)
    for stored in range(8, len(body)):
        found = read(body, PRODUCE, 12, stored=stored)
        rows = len(found.partition) - 1
        assert (found.fault, found.partition[rows], found.records[rows]) == ([CUT], NOT_KNOWN, NOT_KNOWN), stored
        assert found.partition[:rows] == whole.partition[:rows]
        assert all(records in (3, NOT_KNOWN) for records in found.records)
        assert found.acks[0] in (entity.acks, NOT_KNOWN)
    first = body.index(BATCH) + 61
    assert read(body, PRODUCE, 12, stored=first).records == [3, NOT_KNOWN], "a batch's header tells its records"
    assert read(body, PRODUCE, 12, stored=first - 1).records == [NOT_KNOWN] * 2


@pytest.mark.parametrize(
    ("records", "count"),
    [
        (BATCH, 3),
        (batch(record(), codec=1), 1),
        (batch(count=0), 0),
        (batch(record(), count=-1), NOT_KNOWN),
        (batch(record(), magic=1), NOT_KNOWN),
        (BATCH[:8] + struct.pack(">i", 48) + BATCH[12:], NOT_KNOWN),
        (batch(record(), codec=32), 0),
    ],
    ids=["plain", "gzip", "none", "below 0", "magic 1", "too short", "control"],
)
def test_batches_are_counted_by_their_headers(records: bytes, count: int) -> None:
    entity = sample(schema(PRODUCE, 9, False), random.Random(1), most=1, least=1)
    (topic,) = entity.topic_data
    changed = dataclasses.replace(topic, partition_data=(dataclasses.replace(topic.partition_data[0], records=records),))
    assert read(request_body(dataclasses.replace(entity, topic_data=(changed,))), PRODUCE, 9).records == [count]


def test_texts_that_differ_in_one_byte_are_told_apart() -> None:
    names = [*(f"{'x' * at}y{'x' * (17 - at)}" for at in range(18)), "x", ""] * 2
    bodies = [struct.pack(">hhih", 12, 0, 7, len(name)) + name.encode() for name in names]
    ends = [*itertools.accumulate(map(len, bodies))]
    begins, sizes, many = [0, *ends[:-1]], [*map(len, bodies)], len(names)
    contents = Contents()
    contents.add(b"".join(bodies), struct.pack(f"<{5 * many}i", *begins, *ends, *sizes, *[12 << 16] * many, *[0] * many))
    assert columns(contents).client_id == names
    assert len(contents.texts) == len({*contents.texts})


def test_versions_that_are_not_understood_have_a_fault() -> None:
    body = struct.pack(">hhih", PRODUCE, 99, 7, -1)
    found = read(body, PRODUCE, 99)
    assert (found.fault, found.partition) == (["version 99 of API 0 is not understood"], [NOT_KNOWN])
    assert read(body, 999, 0).counts == [0]


def test_damaged_messages_have_a_fault_and_nothing_worse() -> None:
    rng = random.Random(4)
    faults = 0
    for turn in range(MUTATIONS):
        key, version = rng.choice([each for each in EACH if each[0] in VERSIONS])
        answer = rng.random() < 0.5
        entity = sample(schema(key, version, answer), rng)
        body = mutated((answer_body if answer else request_body)(entity), rng)
        try:
            found = read(body, key, version, answer=answer, stored=rng.randrange(len(body) + 1) if turn % 2 else None)
        except KafkaFormatError as error:
            pytest.fail(f"{key} {version} {answer}: {error}")
        faults += found.fault != [None]
        assert len(found.partition) == sum(found.counts)
    assert faults > MUTATIONS / 4
