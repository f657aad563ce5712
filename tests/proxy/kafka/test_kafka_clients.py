"""Kafka's own client library reads what framegate has written as what was meant. All modules of ``framegate.proxy.kafka``."""

import dataclasses
import random

from framegate.proxy.kafka.addresses import NONE, TAIL, AddressRewriter, AdvertisedBrokers, carries_addresses
from framegate.proxy.kafka.api_versions import narrowed, unsupported_version_answer
from framegate.proxy.kafka.endpoint_eraser import EndpointEraser
from framegate.proxy.kafka.schema import apis
from tests.fakes.kafka_clients import reencoded
from tests.fakes.kio_messages import answer_body, sample, schema, told
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
