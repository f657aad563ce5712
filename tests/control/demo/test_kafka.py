"""The comparison of Spark's tables with the broker's metrics. The whole of it runs in tests/integration/test_kafka.py."""

from concurrent.futures import Future
from typing import Any

import pytest

pytest.importorskip("confluent_kafka")

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.cimpl import NewTopic

from control.demo.kafka import compare, create_topics, unclaimed

TABLES: dict[str, list[dict[str, Any]]] = {
    "sent": [
        {"api_key": 0, "api_version": 10, "requests": 262},
        {"api_key": 1, "api_version": 16, "requests": 168},
    ],
    "answered": [
        {"api_key": 0, "api": "Produce", "api_version": 10, "requests": 262, "latency_us_p50": 900, "latency_us_p99": 4000},
        {"api_key": 1, "api": "Fetch", "api_version": 16, "requests": 167, "latency_us_p50": 5000, "latency_us_p99": 9000},
    ],
    "frames": [],
}
BEFORE = {("Produce", 10): 1, ("BrokerHeartbeat", 2): 6}
AFTER = {("Produce", 10): 263, ("Fetch", 16): 168, ("BrokerHeartbeat", 2): 9, ("AllocateProducerIds", 0): 1}


def test_what_grew_at_the_broker_is_what_passed_the_proxy() -> None:
    counts = compare(TABLES, BEFORE, AFTER)
    assert [(count.api, count.version, count.sent, count.broker, count.answered, count.good) for count in counts] == [
        ("Produce", 10, 262, 262, 262, True),
        ("Fetch", 16, 168, 168, 167, True),
    ]
    assert counts[0].latency_us_p99 == 4000


def test_a_request_that_only_one_of_them_counted_is_found() -> None:
    assert [count.good for count in compare(TABLES, BEFORE, {**AFTER, ("Produce", 10): 264})] == [False, True]
    unseen = compare(TABLES, BEFORE, {**AFTER, ("Metadata", 13): 1})
    assert [(count.api, count.sent, count.broker) for count in unseen if not count.good] == [("Metadata", 0, 1)]


@pytest.mark.parametrize(("frames", "found"), [(0, 0), (1, 1), (2, 0)])
def test_an_answer_that_is_lost_is_one_that_a_request_has_not_had(frames: int, found: int) -> None:
    tables = {**TABLES, "unclaimed": [{"frames": frames}]}
    assert unclaimed(tables, compare(tables, BEFORE, AFTER)) == found


class FakeAdmin:
    """Answers each topic with the error that it is told, or with success."""

    def __init__(self, **errors: int) -> None:
        self.asked: dict[str, int] = {}
        self._errors = errors

    def create_topics(self, topics: list[Any]) -> "dict[str, Future[None]]":
        answers: dict[str, Future[None]] = {}
        for topic in topics:
            self.asked[topic.topic] = topic.num_partitions
            future: Future[None] = Future()
            if topic.topic in self._errors:
                future.set_exception(KafkaException(KafkaError(self._errors[topic.topic])))
            else:
                future.set_result(None)
            answers[topic.topic] = future
        return answers


def test_a_topic_that_the_first_of_two_requests_made_is_good() -> None:
    admin: Any = FakeAdmin(one=KafkaError.TOPIC_ALREADY_EXISTS)
    create_topics(admin, [NewTopic("one", 1, 1), NewTopic("two", 4, 1)])
    assert admin.asked == {"one": 1, "two": 4}


def test_a_topic_that_cannot_be_made_is_an_error() -> None:
    admin: Any = FakeAdmin(two=KafkaError.INVALID_PARTITIONS)
    with pytest.raises(KafkaException):
        create_topics(admin, [NewTopic("one", 1, 1), NewTopic("two", 4, 1)])
