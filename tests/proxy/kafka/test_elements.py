"""framegate.proxy.kafka.elements: what is refused leaves the request, and comes back in the answer."""

import dataclasses
import random
from typing import Any

import pytest

from framegate.proxy.errors import KafkaFormatError
from framegate.proxy.kafka.elements import appended, without_elements
from framegate.proxy.kafka.error_answers import error_elements
from framegate.proxy.kafka.schema import apis
from tests.fakes.cases import each_of
from tests.fakes.kio_messages import MAKE, answer_body, decoded, fields, request_body, sample, schema

KINDS = {"topicName": "TopicName", "groupId": "GroupId"}


def refuse(name: str) -> bool:
    return len(name) % 2 == 1


def without(entity: Any, kind: str, removed: list[str]) -> Any:
    """By kio: the entity without the elements of arrays that have such a name, or are one; fields at the top stay."""

    def is_refused(item: Any) -> bool:
        if not dataclasses.is_dataclass(item):
            named = [item]
        else:
            named = [getattr(item, name) for name, _, inner, array, *_ in fields(type(item)) if getattr(inner, "__name__", "") == kind and not array]  # type: ignore[arg-type]
        found = [name for name in named if name is not None and refuse(name)]
        removed.extend(found)
        return bool(found)

    values = {}
    for name, primitive, inner, array, *_ in fields(type(entity)):
        value = getattr(entity, name)
        if array and value is not None and primitive is None:
            value = tuple(without(item, kind, removed) for item in value if not is_refused(item))
        elif array and value is not None and getattr(inner, "__name__", "") == kind:
            value = tuple(item for item in value if not is_refused(item))
        values[name] = value
    return type(entity)(**values)


@pytest.mark.slow
@each_of("wanted", KINDS)
def test_refused_elements_leave_every_request(wanted: str) -> None:
    rng, changed = random.Random(8), 0
    for api in apis():
        for version in range(api.least, api.most + 1):
            request = sample(schema(api.key, version, False), rng)
            body, expected = request_body(request), []
            kept = request_body(without(request, KINDS[wanted], expected))
            found = without_elements(api.key, version, b"##" + body + b"#", 2, 2 + len(body), wanted, refuse)
            if wanted == "groupId" and found is not None and sorted(found.removed) != sorted(expected):
                continue  # a name in a removed element
            assert (body if found is None else b"".join(found.pieces)) == kept, (api.name, version)
            assert sorted([] if found is None else found.removed) == sorted(expected)
            changed += found is not None
    assert changed > (40 if wanted == "topicName" else 3)


def test_null_means_all_and_stays() -> None:
    body = request_body(
        schema(3, 9, False)(
            topics=None, allow_auto_topic_creation=True, include_cluster_authorized_operations=False, include_topic_authorized_operations=False
        )
    )
    assert without_elements(3, 9, body, 0, len(body), "topicName", lambda name: True) is None


@each_of(
    ("key", "version"),
    [(0, 3), (0, 9), (0, 12), (2, 1), (2, 6), (3, 0), (3, 12), (8, 2), (8, 9), (19, 2), (19, 7), (20, 1), (20, 5), (21, 0), (37, 3)],
)
def test_errors_for_what_was_removed_come_back_in_the_answer(key: int, version: int) -> None:
    rng = random.Random(9)
    names = iter(["allowed", "refused-1", "refused-2", "kept", *map(str, range(99))])
    string, MAKE["string"] = MAKE["string"], lambda rng, name: next(names)
    try:
        request = sample(schema(key, version, False), rng, 4, 4)
    finally:
        MAKE["string"] = string
    body = request_body(request)
    array, elements = error_elements(key, version, body, lambda name: name.startswith("refused"), 29, "no")
    answer = sample(schema(key, version, True), rng, 2)
    pieces = appended(key, version, answer_body(answer), 0, len(answer_body(answer)), array, elements)
    new = decoded(b"".join(pieces), key, version)
    name = next(name for name, primitive, _, is_array, *_ in fields(type(answer)) if is_array and name in ("responses", "topics", "results"))
    old, found = getattr(answer, name), getattr(new, name)
    assert found[: len(old)] == old
    assert dataclasses.replace(new, **{name: old}) == answer
    if key != 0:
        assert {getattr(item, "name", None) for item in found[len(old) :]} <= {"refused-1", "refused-2"}
    assert len(found) - len(old) == len(elements)


def test_an_answer_without_such_an_array_has_no_elements() -> None:
    body = request_body(sample(schema(12, 0, False), random.Random(1)))
    assert error_elements(12, 0, body, lambda name: True, 30) == ("", [])


def test_a_message_that_does_not_follow_its_schema_is_refused() -> None:
    body = request_body(sample(schema(2, 6, False), random.Random(2), 2, 1))
    with pytest.raises(KafkaFormatError):
        without_elements(2, 6, body, 0, len(body) - 1, "topicName", refuse)
    with pytest.raises(KafkaFormatError):
        appended(2, 6, bytes(5), 0, 5, "Topics", [])
    with pytest.raises(KafkaFormatError, match="version 12 of API 2"):
        without_elements(2, 12, body, 0, len(body), "topicName", refuse)
