"""framegate.proxy.kafka.error_answers: refusals of the right form. ``test_kafka_clients`` compares them with Kafka's own."""

import contextlib
import random
import struct
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from framegate.proxy.errors import KafkaFormatError
from framegate.proxy.kafka.error_answers import MESSAGE, error_answer, error_elements
from framegate.proxy.kafka.schema import apis, known_api
from framegate.proxy.kafka.subjects import TOPIC, Allowed, Patterns, result_list, subjects_of
from tests.fakes.kio_messages import MUTATIONS, decoded, fields, mutated, request_body, sample, schema

DENIED = ErrorCode.cluster_authorization_failed


def codes(entity: Any) -> set[Any]:
    """All error codes in an entity but those that are not about the request."""
    found: set[Any] = set()
    for name, primitive, _, array, *_ in fields(type(entity)):
        value = getattr(entity, name)
        if primitive is None:
            found.update(*(codes(item) for item in ((value or ()) if array else (value,)) if item is not None))
        elif primitive == "error_code":
            found.add(value)
    return found


@pytest.mark.slow
def test_every_request_of_every_version_has_an_answer_that_says_why() -> None:
    rng = random.Random(3)
    for api in apis():
        for version in range(api.least, api.most + 1):
            body = request_body(sample(schema(api.key, version, False), rng, 2, 1), -5)
            answer = error_answer(api.key, version, -5, body, DENIED.value)
            assert answer is not None
            assert answer[:4] == struct.pack(">i", -5)
            if api.name == "CreateDelegationToken":
                continue  # kio reads no time before 1970, and Kafka's is -1
            entity = decoded(answer, api.key, version)
            # DescribeLogDirs had no place for it before version 3, and a Produce request that asks for no answer gets none
            assert codes(entity) == ({DENIED} if (api.name, version) not in {("DescribeLogDirs", 1), ("DescribeLogDirs", 2)} else set()), (
                api.name,
                version,
            )


def test_a_produce_request_without_acks_has_no_answer() -> None:
    body = struct.pack(">hhihhhii", 0, 3, 7, -1, -1, 0, 1000, 1) + struct.pack(">h1siii", 1, b"t", 1, 4, -1)
    assert error_answer(0, 3, 7, body, 29) is None
    acked = body[:12] + b"\xff\xff" + body[14:]
    assert error_answer(0, 3, 7, acked, 29) == struct.pack(">iih1siihqqi", 7, 1, 1, b"t", 1, 4, 29, -1, -1, 0)


def test_the_text_is_where_the_answer_has_one() -> None:
    body, text = request_body(schema(60, 0, False)(include_cluster_authorized_operations=False)), MESSAGE.encode()
    answer = error_answer(60, 0, 7, body, 31)
    assert answer is not None
    assert answer[: 12 + len(text)] == struct.pack(">ibihB", 7, 0, 0, 31, len(text) + 1) + text


def test_a_request_that_does_not_follow_its_schema_is_refused_by_itself() -> None:
    body = request_body(sample(schema(2, 6, False), random.Random(2), 2, 1))
    assert error_answer(2, 6, 7, body, 29)
    with pytest.raises(KafkaFormatError):
        error_answer(2, 6, 7, body[:-1], 29)
    with pytest.raises(KafkaFormatError, match="version 12 of API 2"):
        error_answer(2, 12, 7, body, 29)
    with pytest.raises(KafkaFormatError, match="version 0 of API 7"):
        error_answer(7, 0, 7, body, 29)


@pytest.mark.slow
@pytest.mark.timeout(36000)
def test_mutated_requests_are_refused_by_themselves_or_have_an_answer() -> None:
    """FRAMEGATE_TEST_MUTATIONS: how many. Whatever looks into requests raises nothing else."""
    rng, answered = random.Random(13), 0
    every = [(api.key, version) for api in apis() for version in range(api.least, api.most + 1)]
    allowed = Allowed({TOPIC: Patterns(("", "?", "orders*"))})
    bodies = [(key, version, request_body(sample(schema(key, version, False), rng, 2))) for key, version in every]
    for _ in range(MUTATIONS):
        key, version, body = rng.choice(bodies)
        body = mutated(body, rng)
        with contextlib.suppress(KafkaFormatError):
            error_answer(key, version, 7, body, 29)
            shape = subjects_of(known_api(key, version), version)
            found = shape.examine(body, allowed)
            lists = result_list(known_api(key, version), version)
            if lists is not None and found.denied:
                found.rest(body, compact=shape.compact)
                error_elements(key, version, body, (lists[0].name, lists[1]), found.denied, 29)
            answered += 1
    assert 0.1 < answered / MUTATIONS < 0.9
