"""Kafka's own client library reads what framegate has written as what was meant. All modules of ``framegate.proxy.kafka``."""

import dataclasses
import itertools
import random
from typing import Any

import pytest

from framegate.proxy.kafka.addresses import NONE, TAIL, AddressRewriter, AdvertisedBrokers, carries_addresses
from framegate.proxy.kafka.api_versions import narrowed, unsupported_version_answer
from framegate.proxy.kafka.endpoint_eraser import EndpointEraser
from framegate.proxy.kafka.error_answers import MESSAGE, error_answer
from framegate.proxy.kafka.message import decode
from framegate.proxy.kafka.schema import apis
from tests.fakes.kafka_clients import reencoded, refusals
from tests.fakes.kio_messages import MAKE, answer_body, request_body, sample, schema, told
from tests.fakes.real_kafka import REAL_KAFKA

pytestmark = REAL_KAFKA
TABLE = {node: (f"broker-{node}.example.org", 9100 + node) for node in range(8)}


def cases() -> list[tuple[bytes, int, int, bytes]]:
    """What was written, for which API and version, and what is to be read."""
    rng, found = random.Random(7), []
    rewriter = AddressRewriter(AdvertisedBrokers("kafka.example.org", 9092, TABLE))
    for key, version in [(api.key, version) for api in apis() for version in range(api.least, api.most + 1)] * 6:
        answer = sample(schema(key, version, True), rng)
        body = answer_body(answer)
        where = carries_addresses(key, version)
        if where != NONE:
            pieces = rewriter.rewrite(key, version, body, 0, len(body))
            found.append(
                (b"".join(pieces or [body]), key, version, answer_body(told(answer, lambda node: TABLE.get(node, ("kafka.example.org", 9092)))))
            )
        if where == TAIL:
            eraser = EndpointEraser(key, version, len(body))
            keep = eraser.feed(body, 0, len(body))
            found.append((body[:keep] + eraser.replacement, key, version, answer_body(dataclasses.replace(answer, node_endpoints=()))))
        if key == 18:
            new = b"".join(narrowed(version, body, 0, len(body)) or [body])
            found.append((new, key, version, new))
    refusal = unsupported_version_answer(3)
    return [*found, (refusal, 18, 0, refusal)]


def test_answers_are_read_as_they_were_meant() -> None:
    asked = cases()
    read = reencoded([(body, key, version) for body, key, version, _ in asked])
    assert len(asked) > 300
    assert [(key, version, body.hex(), line) for line, (body, key, version, meant) in zip(read, asked, strict=True) if line != meant.hex()] == []


def comparable(value: Any) -> Any:
    """Without texts of errors, which Kafka has in some answers only, and without the order of elements, which a hash table decides."""
    if isinstance(value, dict):
        return {name: comparable(item) for name, item in value.items() if name != "ErrorMessage"}
    return sorted(map(comparable, value), key=repr) if isinstance(value, list) else value


def test_every_request_is_refused_as_kafka_refuses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """``AbstractRequest.getErrorResponse``, with TOPIC_AUTHORIZATION_FAILED."""
    rng, names = random.Random(5), itertools.count()
    monkeypatch.setitem(MAKE, "string", lambda rng, name: f"n{next(names)}")  # Kafka joins elements with the same name
    monkeypatch.setitem(MAKE, "records", lambda rng, name: b"")
    asked = []
    for key, version in [(api.key, version) for api in apis() for version in range(api.least, api.most + 1)] * 3:
        monkeypatch.setitem(MAKE, "int8", lambda rng, name, known=key in (29, 30, 31): 3 if known else rng.randint(-128, 127))  # kinds of ACLs
        asked.append((key, version, request_body(sample(schema(key, version, False), rng, 2, 1))))
    wrong, exact = [], 0
    for (key, version, body), line in zip(asked, refusals([(body, 29, MESSAGE) for _, _, body in asked]), strict=True):
        ours = error_answer(key, version, 7, body, 29)
        if ours is None or line == "none" or line.startswith("failed"):
            ok = ours is None and line == "none"
        else:
            both = [decode(key, version, data, 0, len(data), answer=True) for data in (ours, bytes.fromhex(line))]
            ok = comparable(both[0]) == comparable(both[1])
            exact += ours.hex() == line
        if not ok:
            wrong.append((key, version, body.hex(), line, ours and ours.hex()))
    assert wrong == []
    assert exact > len(asked) / 2, "byte for byte"
