"""What the demo before a real broker compares: requests with the broker's counts, records with what was sent, memory with its bound.

A real broker and proxy are in tests/integration/test_kafka.py.
"""

from typing import Any

import pytest

pytest.importorskip("confluent_kafka")

from confluent_kafka import KafkaError, KafkaException

from tests.demo.kafka import compare, unclaimed
from tests.demo.records import KEY, Acknowledged, Received, value_of
from tests.demo.small_pool import CONSUMERS, RECORDS, Fetched, Peak, checks

MIB = 1024 * 1024
TABLES: dict[str, list[dict[str, Any]]] = {
    "sent": [{"api_key": 0, "api_version": 10, "requests": 262}, {"api_key": 1, "api_version": 16, "requests": 168}],
    "answered": [
        {"api_key": 0, "api": "Produce", "api_version": 10, "requests": 262, "latency_us_p50": 900, "latency_us_p99": 4000},
        {"api_key": 1, "api": "Fetch", "api_version": 16, "requests": 167, "latency_us_p50": 5000, "latency_us_p99": 9000},
    ],
    "frames": [],
}
BEFORE = {("Produce", 10): 1, ("BrokerHeartbeat", 2): 6}
AFTER = {("Produce", 10): 263, ("Fetch", 16): 168, ("BrokerHeartbeat", 2): 9, ("AllocateProducerIds", 0): 1}
CLIENTS: dict[str, Any] = {
    "produced": RECORDS,
    "consumed": RECORDS * CONSUMERS,
    "wrong": 0,
    "missing": 0,
    "doubled": 0,
    "out_of_order": 0,
    "fetch_ms": 1500,
}
PEAK = Peak(booked=3 * MIB, before=50 * MIB, resident=58 * MIB, samples=300)
FETCHED = Fetched(clients=CLIENTS, peak=PEAK, processors=2)
BOUND = 16 * MIB + 4 * MIB + 256 * 1024


def test_what_grew_at_the_broker_is_what_passed_the_proxy() -> None:
    counts = compare(TABLES, BEFORE, AFTER)
    assert [(count.api, count.version, count.sent, count.broker, count.answered, count.good) for count in counts] == [
        ("Produce", 10, 262, 262, 262, True),
        ("Fetch", 16, 168, 168, 167, True),
    ]
    assert [count.good for count in compare(TABLES, BEFORE, {**AFTER, ("Produce", 10): 264})] == [False, True]
    unseen = compare(TABLES, BEFORE, {**AFTER, ("ListOffsets", 7): 1, ("Metadata", 13): 1})
    assert [(count.api, count.sent, count.broker) for count in unseen if not count.good] == [("ListOffsets", 0, 1)], "Metadata: the proxy looks too"
    for frames, found in ((0, 0), (1, 1), (2, 0)):
        assert unclaimed({**TABLES, "unclaimed": [{"frames": frames}]}, counts) == found, "one request has no answer"


def test_every_fault_of_received_records_has_its_count() -> None:
    def received(*records: tuple[int, bytes, int]) -> dict[str, int]:
        made = Received(4)
        for number, value, partition in records:
            made.take(KEY.pack(number), value, partition)
        return made.counts()

    good = [(number, value_of(number), number % 2) for number in range(4)]
    assert received(*good) == {"consumed": 4, "wrong": 0, "doubled": 0, "out_of_order": 0, "missing": 0}
    faulty = received((2, value_of(2), 0), (1, value_of(1), 0), (1, value_of(1), 1), (0, value_of(3), 2))
    assert faulty == {"consumed": 4, "wrong": 1, "doubled": 1, "out_of_order": 1, "missing": 1}
    acknowledged = Acknowledged()
    acknowledged(None, None)  # type: ignore[arg-type]
    with pytest.raises(KafkaException, match="MSG_SIZE_TOO_LARGE"):
        acknowledged(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), None)  # type: ignore[arg-type]
    assert acknowledged.count == 1


def test_each_fault_of_content_and_memory_is_found() -> None:
    def good(clients: dict[str, int] | None = None, **peak: int) -> list[bool]:
        return [fine for _, fine in checks(FETCHED._replace(clients={**CLIENTS, **(clients or {})}, peak=PEAK._replace(**peak)))]

    assert good() == [True, True, True]
    for fault in ("wrong", "missing", "doubled", "out_of_order"):
        assert good({fault: 1}) == [False, True, True], fault
    for count in ("produced", "consumed"):
        assert good({count: CLIENTS[count] - 1}) == [False, True, True], count
    assert good(booked=BOUND) == [True, True, True]
    assert good(booked=BOUND + 1) == good(samples=0) == [True, False, True]
    most = 50 * MIB + BOUND * 5 // 4 + 16 * MIB
    assert (good(resident=most), good(resident=most + 1)) == ([True, True, True], [True, True, False])
