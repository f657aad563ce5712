"""The tables of Kafka's requests say of a real broker's topics what the broker says: records by topic and partition, offsets, errors, groups."""

import collections
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

from confluent_kafka import Consumer, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable

from framegate.control.demo.processes import find_java
from framegate.control.demo.stage import Stage, Workspace
from framegate.proxy.kafka.contents import CODECS
from framegate.proxy.pipeline.run import start_query
from framegate.proxy.pipeline.settings import PipelineSettings
from framegate.proxy.pipeline.tables import TableWriter
from tests.demo import broker, kafka
from tests.fakes.real_kafka import REAL_KAFKA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    *REAL_KAFKA,
    pytest.mark.extended,
    pytest.mark.spark,
    pytest.mark.skipif(find_java() is None and not os.environ.get("CI"), reason="Spark needs Java"),
]
TOPICS = {"codecs": 3, "acks": 2, "idempotent": 2, "transactions": 2, "small": 1}
COUNT = 400
TOO_LARGE = 10
Counts = dict[tuple[str, int], int]


def produce(settings: dict[str, Any], topic: str, count: int = COUNT, size: int = 100, **more: Any) -> None:
    producer = Producer({**settings, "linger.ms": 5, **more})
    for number in range(count):
        producer.produce(topic, value=os.urandom(size // 2) + b"." * (size // 2), key=str(number))
    assert producer.flush(30) == 0


def exchange(settings: dict[str, Any]) -> int:
    """Produce in every way, and consume all of it in a group; the number of records that came."""
    for codec in CODECS:
        produce(settings, "codecs", **{"client.id": codec, "compression.type": codec})
    for acks in ("0", "1", "all"):
        produce(settings, "acks", acks=acks)
    produce(settings, "idempotent", **{"enable.idempotence": True})
    transactional = Producer({**settings, "transactional.id": "one"})
    transactional.init_transactions(30)
    for _ in range(2):
        transactional.begin_transaction()
        for number in range(COUNT):
            transactional.produce("transactions", value=b"v", key=str(number))
        transactional.commit_transaction(30)
    produce(settings, "small", 3, 4000)  # larger than the topic takes
    produce(settings, "small", 5, 10)
    consumer = Consumer({**settings, "group.id": "readers", "auto.offset.reset": "earliest", "client.id": "reader", "enable.auto.commit": False})
    consumer.subscribe(list(TOPICS))
    expected = COUNT * (len(CODECS) + 3 + 1 + 2) + 5
    received, deadline = 0, time.monotonic() + 60
    while received < expected and time.monotonic() < deadline:
        received += sum(message.error() is None for message in consumer.consume(1000, 0.2))
    consumer.commit(asynchronous=False)
    consumer.close()
    assert received == expected
    return received


def topic_ids(address: str) -> dict[str, str]:
    """The names of the topics by their ids: a Metadata answer of another processor may be in a later batch than the Fetch that needs it."""
    admin = AdminClient({"bootstrap.servers": address})
    found = {name: str(future.result(10).topic_id) for name, future in admin.describe_topics(TopicCollection(list(TOPICS))).items()}
    return {topic_id.replace("+", "-").replace("/", "_"): name for name, topic_id in found.items()}  # as Kafka's own tools write them


def end_offsets(address: str) -> Counts:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "ends"})
    try:
        places = [(topic, partition) for topic, count in TOPICS.items() for partition in range(count)]
        return {place: consumer.get_watermark_offsets(TopicPartition(*place), 10)[1] for place in places}
    finally:
        consumer.close()


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory, spark: "SparkSession") -> tuple[Path, Counts, dict[str, str]]:
    """The tables of all that passed, the broker's end offsets, and its topics' ids."""
    root = tmp_path_factory.mktemp("kafka")
    with broker.Broker(root / "broker", {}) as real, Stage(Workspace(root / "plain")) as stage:
        serving = stage.start_proxy(f"127.0.0.1:{real.ports['PLAIN']}", protocol="kafka")
        real.start({"PLAIN": serving.port})
        kafka.prepare_topics(real.internal_address, {name: count for name, count in TOPICS.items() if name != "small"})
        kafka.create_topics(
            AdminClient({"bootstrap.servers": real.internal_address}), [NewTopic("small", 1, 1, config={"max.message.bytes": "1000"})]
        )
        tls = {"security.protocol": "ssl", "ssl.ca.location": str(stage.certificates.ca)}
        exchange({"bootstrap.servers": f"127.0.0.1:{serving.port}", **tls})
        ends, ids = end_offsets(real.internal_address), topic_ids(real.internal_address)
        assert stage.stop_proxy() == 0
        settings = PipelineSettings(
            source=stage.workspace.tap, output=root / "tables", available_now=True, payload="none", max_bytes_per_trigger=1 << 19
        )
        assert start_query(spark, settings, TableWriter(root / "tables", source=str(settings.source))).awaitTermination(120)
        return root / "tables", ends, ids


def rows(output: Path, table: str, **conditions: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = DeltaTable(output / table).to_pyarrow_table().to_pylist()
    return [row for row in found if all(row[name] == value for name, value in conditions.items())]


def records(partitions: list[dict[str, Any]]) -> Counts:
    sums: Counts = collections.Counter()
    for row in partitions:
        sums[row["topic"], row["partition"]] += row["records"]
    return dict(sums)


def test_records_by_topic_and_partition_are_the_brokers_end_offsets(tables: tuple[Path, Counts, dict[str, str]]) -> None:
    output, ends, ids = tables
    partitions = [{**row, "topic": ids.get(row["topic"], row["topic"])} for row in rows(output, "kafka_partitions")]
    assert [row for row in partitions if row["fault"] is not None or row["records"] is None] == []
    control = {place: 2 if place[0] == "transactions" else 0 for place in ends}  # markers of two transactions
    produced = [row for row in partitions if row["api"] == "Produce"]
    written = records([row for row in produced if row["error_code"] in (0, None)])
    assert {place: written.get(place, 0) + control[place] for place in ends} == ends
    fetched = records([row for row in partitions if row["api"] == "Fetch" and row["client_id"] == "reader"])
    assert {place: fetched.get(place, 0) + control[place] for place in ends} == ends
    assert {row["error_code"] for row in produced if row["topic"] == "small" and row["record_bytes"] > 1000} == {TOO_LARGE}
    assert {(row["client_id"], row["codec"]) for row in produced if row["topic"] == "codecs"} == {(codec, codec) for codec in CODECS}
    for place in ends:  # offsets that the answers told: each batch begins where the one before ends
        told = sorted(
            (row["base_offset"], row["records"]) for row in produced if (row["topic"], row["partition"]) == place and row["base_offset"] is not None
        )
        if place[0] in ("codecs", "idempotent"):
            assert [start for start, _ in told] == [sum(count for _, count in told[:index]) for index in range(len(told))]


def test_every_request_has_one_row_with_what_became_of_it(tables: tuple[Path, Counts, dict[str, str]]) -> None:
    output, _, _ = tables
    requests = rows(output, "requests")
    assert len(requests) == len(rows(output, "frames", direction="request")), "one row a request, also over several batches"
    assert DeltaTable(output / "requests").transaction_version("framegate"), "there were several batches"
    outcomes = collections.Counter((row["api"] if row["outcome"] != "answered" else "", row["outcome"]) for row in requests)
    assert outcomes["Produce", "acks_0"] > 0
    gaps = rows(output, "gaps")
    assert {gap["reason"] for gap in gaps} <= {"undelivered"}, "answers that came when their client had gone"
    answered = [row for row in requests if row["outcome"] == "answered"]
    for row in requests:
        if row["outcome"] in ("unanswered", "unknown"):  # its client left without waiting for it
            later = [other for other in answered if other["request_time"] > row["request_time"] and other["connection"] == row["connection"]]
            assert (later, bool(gaps) or row["outcome"] == "unanswered") == ([], True), row
    assert {row["client_id"] for row in requests} >= {*CODECS, "reader"}
    assert {row["error_code"] for row in requests if row["outcome"] == "answered"} >= {0, TOO_LARGE}
    assert all(row["error_code"] is None for row in requests if row["outcome"] != "answered")


def test_groups_have_the_members_requests(tables: tuple[Path, Counts, dict[str, str]]) -> None:
    output, _, _ = tables
    groups = rows(output, "groups", group_id="readers")
    apis = {row["api"] for row in groups}
    assert apis >= {"JoinGroup", "SyncGroup", "OffsetCommit", "LeaveGroup"}
    members = {row["member_id"] for row in groups if row["api"] != "JoinGroup"}
    assert len(members) == 1
    assert {row["generation"] for row in groups if row["api"] in ("SyncGroup", "OffsetCommit", "Heartbeat")} == {1}
    assert {row["error_code"] for row in groups if row["api"] in ("SyncGroup", "OffsetCommit", "LeaveGroup")} == {0}
