"""framegate.proxy.kafka.fields: topics, groups and others where they are."""

import random
from typing import Any

import pytest

from framegate.proxy.errors import KafkaFormatError
from framegate.proxy.kafka.fields import FieldFinder, client_id, paths
from framegate.proxy.kafka.schema import apis, known_api
from tests.fakes.cases import each_of
from tests.fakes.kio_messages import fields, request_body, sample, schema

ENTITIES = {"topicName": "TopicName", "groupId": "GroupId", "transactionalId": "TransactionalId"}


def named(entity: Any, kind: str) -> list[str | None]:
    """The fields of this type, as kio has them."""
    found: list[str | None] = []
    for name, primitive, inner, array, *_ in fields(type(entity)):
        value = getattr(entity, name)
        for item in (value or ()) if array else (value,):
            if primitive is None:
                found += [] if item is None else named(item, kind)
            elif getattr(inner, "__name__", "") == kind:
                found.append(item)
    return found


@pytest.mark.slow
@each_of("entity", ENTITIES)
def test_every_request_has_the_topics_groups_and_transactions_that_kio_finds(entity: str) -> None:
    rng = random.Random(6)
    finder, count = FieldFinder(entity), 0
    for api in apis():
        for version in range(api.least, api.most + 1):
            request = sample(schema(api.key, version, False), rng)
            body = request_body(request)
            found = finder.texts(api.key, version, b"##" + body + b"#", 2, 2 + len(body))
            assert found == named(request, ENTITIES[entity]), (api.name, version)
            assert finder.is_whole
            count += len(found)
    assert count > 30


@each_of(
    ("key", "version", "wanted", "found"),
    [
        (0, 12, "topicName", ["TopicData.Name"]),
        (0, 13, "topicName", []),
        (0, 13, "TopicId", ["TopicData.TopicId"]),
        (20, 5, "topicName", ["TopicNames[]"]),
        (9, 9, "topicName", ["Groups.Topics.Name"]),
        (42, 0, "groupId", ["GroupsNames[]"]),
        (28, 0, "groupId", ["GroupId"]),
        (10, 4, "CoordinatorKeys", ["CoordinatorKeys[]"]),
    ],
)
def test_paths(key: int, version: int, wanted: str, found: list[str]) -> None:
    assert paths(known_api(key, version).fields(False), version, wanted) == found


def test_fields_of_an_answer_by_name() -> None:
    topics = FieldFinder("Topics", answer=True)
    body = b"\0\0\0\7" + b"\0\0\0\1" + b"\0\1t" + b"\0\0\0\0"
    assert list(topics.spans(8, 2, body, 0, len(body))) == [4, 15]


def test_what_is_there_of_a_request_is_enough() -> None:
    """The first part of a request that passes in pieces."""
    kind = schema(3, 4, False)
    topic = next(inner for name, _, inner, *_ in fields(kind) if name == "topics")
    body = request_body(kind(topics=(topic(name="first"), topic(name="second")), allow_auto_topic_creation=True))
    ends = [body.index(b"first") + 5, body.index(b"second") + 6]
    finder = FieldFinder("topicName")
    for end in range(len(body) + 1):
        assert finder.texts(3, 4, body, 0, end, len(body)) == [name for name, last in zip(("first", "second"), ends, strict=True) if last <= end], end
        assert finder.is_whole == (end >= ends[1])


def test_a_request_that_does_not_follow_its_schema_is_refused() -> None:
    body = request_body(sample(schema(2, 5, False), random.Random(2), 2, 1))
    with pytest.raises(KafkaFormatError):
        FieldFinder("topicName").texts(2, 5, body, 0, len(body) - 1)
    with pytest.raises(KafkaFormatError, match="version 12 of API 2"):
        FieldFinder("topicName").texts(2, 12, body, 0, len(body))


@each_of(
    ("head", "found"),
    [(b"\0\4name", "name"), (b"\xff\xff", None), (b"\0\0", ""), (b"\0\5name", ValueError), (b"\xff\xfe", ValueError), (b"\0", ValueError)],
)
def test_the_client_id(head: bytes, found: Any) -> None:
    data = b"#" + bytes(8) + head
    if found is ValueError:
        with pytest.raises(KafkaFormatError, match="a client id beyond the end"):
            client_id(data, 1, len(data))
    else:
        assert client_id(data + b"#", 1, len(data)) == found
