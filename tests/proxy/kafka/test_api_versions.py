"""framegate.proxy.kafka.api_versions: what is unknown is removed, all else stays."""

import contextlib
import dataclasses
import random
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from framegate.proxy.errors import KafkaFormatError
from framegate.proxy.kafka.api_versions import narrowed, probe_request, unsupported_version_answer
from framegate.proxy.kafka.schema import api, apis
from tests.fakes.cases import each_of
from tests.fakes.kio_messages import MUTATIONS, answer_body, decoded, fields, mutated, request_body, sample, schema


def offer(version: int, *ranges: tuple[int, int, int], error: ErrorCode = ErrorCode.none) -> Any:
    """A broker's answer with everything else that the version has."""
    kind = next(inner for name, _, inner, *_ in fields(schema(18, version, True)) if name == "api_keys")
    keys = tuple(kind(api_key=key, min_version=least, max_version=most) for key, least, most in ranges)
    return dataclasses.replace(sample(schema(18, version, True), random.Random(version), 5), api_keys=keys, error_code=error)


def new(version: int, answer: Any) -> bytes | None:
    body = answer_body(answer)
    pieces = narrowed(version, b"##" + body + b"#", 2, 2 + len(body))
    return None if pieces is None else b"".join(pieces)


@each_of("version", range(5))
def test_unknown_apis_are_removed_and_greatest_versions_cut(version: int) -> None:
    asked = [(0, 0, 13), (3, 0, 99), (7, 0, 3), (1, 4, 18), (22, 0, 6), (55, 0, 2), (93, 0, 0), (-1, 0, 0), (0, 14, 20), (18, 0, 4)]
    kept = [(0, 0, 13), (3, 0, 13), (1, 4, 18), (22, 0, 5), (55, 0, 1), (18, 0, 4)]
    assert new(version, offer(version, *asked)) == answer_body(offer(version, *kept))
    assert new(version, offer(version, *kept)) is None
    assert new(version, offer(version)) is None
    assert new(version, offer(version, (4, 0, 0))) == answer_body(offer(version))


@each_of("version", range(5))
def test_every_version_that_is_offered_is_understood_and_none_is_lost(version: int) -> None:
    every = [(key, 0, 32767) for key in range(200)]
    body = new(version, offer(version, *every))
    assert body is not None
    found = [(item.api_key, item.min_version, item.max_version) for item in decoded(body, 18, version).api_keys]
    assert found == [(item.key, 0, item.most) for item in apis()]


def test_an_answer_to_an_unknown_version_has_the_form_of_version_0() -> None:
    refusal = offer(0, (18, 0, 5), error=ErrorCode.unsupported_version)
    for version in range(5):
        assert new(version, refusal) == answer_body(offer(0, (18, 0, 4), error=ErrorCode.unsupported_version))
    assert decoded(unsupported_version_answer(7), 18, 0) == offer(0, (18, 0, 4), error=ErrorCode.unsupported_version)
    assert unsupported_version_answer(-1)[:4] == b"\xff" * 4


@each_of("cut", range(0, 40, 3))
def test_a_cut_answer_is_refused(cut: int) -> None:
    body = answer_body(offer(3, (0, 0, 13), (3, 0, 99), (7, 0, 3)))
    with pytest.raises(KafkaFormatError):
        narrowed(3, body, 0, min(cut, len(body) - 1))


def test_an_answer_of_an_unknown_version_is_refused() -> None:
    with pytest.raises(KafkaFormatError, match="version 5 of API 18"):
        narrowed(5, bytes(20), 0, 20)


def test_the_smallest_request_is_what_kio_reads() -> None:
    assert probe_request(-7) == request_body(schema(18, 0, False)(), -7, None)
    known = api(18)
    assert known is not None
    assert known.least == 0


@pytest.mark.slow
@pytest.mark.timeout(36000)
def test_mutated_answers_are_refused_or_offer_nothing_unknown() -> None:
    """FRAMEGATE_TEST_MUTATIONS: how many."""
    rng, narrow = random.Random(14), 0
    bodies = [(version, answer_body(offer(version, *((key, 0, rng.randint(0, 20)) for key in range(100))))) for version in range(5)]
    for _ in range(MUTATIONS // 10):
        version, body = rng.choice(bodies)
        body = mutated(body, rng)
        with contextlib.suppress(KafkaFormatError):
            pieces = narrowed(version, body, 0, len(body))
            new = body if pieces is None else b"".join(pieces)
            assert narrowed(version, new, 0, len(new)) is None
            narrow += 1
    assert 0.1 < narrow / (MUTATIONS // 10) < 0.9
