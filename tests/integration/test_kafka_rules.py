"""Rules about Kafka before a real broker: what real clients of several kinds are told, and what goes through beside it."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.demo import broker, kafka
from tests.fakes.framegate import Framegate, run_cli
from tests.fakes.real_kafka import REAL_KAFKA
from tests.fakes.waiting import until

pytestmark = REAL_KAFKA
RULES = {
    "rules": [{"client_ids": ["operator*"]}, {"deny": ["DeleteTopics"], "topics": ["mine*"], "groups": ["mine*"], "transactional_ids": ["mine*"]}]
}


class Behind:
    """A broker that advertises framegate's port, and framegate with rules."""

    def __init__(self, proxy: Framegate, port: int) -> None:
        self.proxy = proxy
        self.address = f"127.0.0.1:{port}"

    def settings(self, **more: Any) -> dict[str, Any]:
        return {"bootstrap.servers": self.address, "client.id": "app", "log_level": 0, **more}

    def refused(self, **labels: str) -> float:
        return self.proxy.metric("framegate_kafka_request_refused_total", **labels)


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Behind]:
    root = tmp_path_factory.mktemp("rules")
    with broker.Broker(root / "broker") as real:
        config = {
            "memory_pool": {"size": "64MiB"},
            "listeners": [
                {"name": "kafka", "address": "127.0.0.1:0", "upstream": "broker", "protocol": "kafka", "max_receive_size": "8MiB", "kafka": RULES}
            ],
            "upstreams": [{"name": "broker", "endpoints": [f"127.0.0.1:{real.ports['PLAIN']}"]}],
        }
        with Framegate(root / "proxy", config) as proxy:
            port = int(proxy.serving["listeners"]["kafka"].rpartition(":")[2])
            real.start({"PLAIN": port})
            kafka.prepare_topics(real.internal_address, {"mine-1": 1, "mine-2": 1, "mine-java": 1, "other": 1})
            yield Behind(proxy, port)


def sent(behind: Behind, topics: list[str], **more: Any) -> dict[str, Any]:
    """The outcome of one record for each topic: None, or the error's name."""
    producer = Producer(behind.settings(**{"linger.ms": 50, "message.timeout.ms": 8000, **more}))
    outcomes: dict[str, Any] = {}
    for topic in topics:
        producer.produce(topic, b"x", on_delivery=lambda error, message, topic=topic: outcomes.update({topic: error and error.name()}))
    producer.flush(15)
    return outcomes


def test_a_producer_is_refused_topics_and_the_others_go_through(behind: Behind) -> None:
    assert sent(behind, ["mine-1", "other", "mine-2"]) == {"mine-1": None, "other": "TOPIC_AUTHORIZATION_FAILED", "mine-2": None}


def test_a_consumer_group_reads_what_is_allowed(behind: Behind) -> None:
    assert sent(behind, ["mine-1"]) == {"mine-1": None}
    consumer = Consumer(behind.settings(**{"group.id": "mine", "auto.offset.reset": "earliest"}))
    consumer.subscribe(["mine-1"])
    message = until(lambda: consumer.poll(0.5), timeout=20)
    assert message.error() is None
    consumer.commit(message, asynchronous=False)
    consumer.close()
    refused = Consumer(behind.settings(**{"group.id": "theirs", "auto.offset.reset": "earliest"}))
    refused.subscribe(["mine-1"])
    message = until(lambda: refused.poll(0.5), timeout=20)
    assert message.error().name() == "GROUP_AUTHORIZATION_FAILED"
    refused.close()
    lost = Consumer(behind.settings(**{"group.id": "mine-too", "auto.offset.reset": "earliest"}))
    lost.subscribe(["other", "mine-1"])
    found: set[str] = set()
    while len(found) < 2:
        message = until(lambda: lost.poll(0.5), found, 15)
        found.add(message.error().name() if message.error() else message.topic())
    assert found == {"TOPIC_AUTHORIZATION_FAILED", "mine-1"}
    lost.close()


def test_metadata_has_only_topics_that_are_allowed(behind: Behind) -> None:
    client = AdminClient(behind.settings())
    assert set(client.list_topics(timeout=10).topics) == {"mine-1", "mine-2", "mine-java"}
    everything = AdminClient(behind.settings(**{"client.id": "operator-1"})).list_topics(timeout=10).topics
    assert {"mine-1", "other"} <= set(everything)


def test_an_admin_is_refused_and_told_so(behind: Behind) -> None:
    client = AdminClient(behind.settings())
    for name, future in client.delete_topics(["mine-2", "other"], operation_timeout=5).items():
        with pytest.raises(KafkaException) as caught:
            future.result(10)
        assert caught.value.args[0].name() == "TOPIC_AUTHORIZATION_FAILED", name
    made = client.create_topics([NewTopic("mine-3", 1, 1), NewTopic("theirs", 1, 1)])
    made["mine-3"].result(10)
    with pytest.raises(KafkaException) as caught:
        made["theirs"].result(10)
    assert caught.value.args[0].name() == "TOPIC_AUTHORIZATION_FAILED"


def java(behind: Behind, *words: str, text: str = "") -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*broker.java_command(broker.prepare()), *words], input=text, capture_output=True, text=True, timeout=60, check=False)


def properties(folder: Path, **lines: str) -> str:
    path = folder / "client.properties"
    path.write_text("".join(f"{key.replace('_', '.')}={value}\n" for key, value in lines.items()))
    return str(path)


@pytest.mark.extended
def test_javas_clients_are_refused_and_told_so(behind: Behind, tmp_path: Path) -> None:
    at = ("--bootstrap-server", behind.address)
    produced = java(behind, "org.apache.kafka.tools.ConsoleProducer", *at, "--topic", "other", text="a\n")
    assert "TopicAuthorizationException" in produced.stderr + produced.stdout
    produced = java(behind, "org.apache.kafka.tools.ConsoleProducer", *at, "--topic", "mine-java", text="".join(f"{n}\n" for n in range(50)))
    assert "Exception" not in produced.stderr + produced.stdout
    words = ("org.apache.kafka.tools.consumer.ConsoleConsumer", *at, "--from-beginning", "--timeout-ms", "15000", "--group")
    read = java(behind, *words, "mine-java", "--topic", "mine-java", "--max-messages", "50")
    assert read.stdout.split()[-50:] == [str(n) for n in range(50)], read.stderr
    for group, topic, error in (("theirs", "mine-java", "GroupAuthorizationException"), ("mine-java", "other", "TopicAuthorizationException")):
        read = java(behind, *words, group, "--topic", topic, "--max-messages", "1")
        assert error in read.stderr + read.stdout
    listed = java(behind, "org.apache.kafka.tools.TopicCommand", *at, "--list")
    assert set(listed.stdout.split()) <= {"mine-1", "mine-2", "mine-3", "mine-java"}, listed.stderr
    deleted = java(behind, "org.apache.kafka.tools.TopicCommand", *at, "--delete", "--topic", "mine-2")
    assert "TopicAuthorizationException" in deleted.stderr + deleted.stdout
    groups = java(behind, "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", *at, "--list")
    assert "mine-java" in groups.stdout, groups.stderr
    assert "theirs" not in groups.stdout
    described = java(behind, "org.apache.kafka.tools.TopicCommand", *at, "--describe")
    assert "mine-1" in described.stdout, described.stderr
    assert "other" not in described.stdout


def test_rules_change_while_records_flow_and_the_log_says_what_is_refused(behind: Behind, tmp_path: Path) -> None:
    producer = Producer(behind.settings(**{"linger.ms": 0, "message.timeout.ms": 8000}))
    outcomes: list[Any] = []
    rules = tmp_path / "rules.json"
    words = ("kafka-rules", "set", "--address", str(behind.proxy.serving["admin"]), "--listener", "kafka", str(rules))

    def produce(count: int) -> list[Any]:
        outcomes.clear()
        for _ in range(count):
            try:
                producer.produce("mine-1", b"x", on_delivery=lambda error, message: outcomes.append(error and error.name()))
            except KafkaException as refused:  # librdkafka knows already
                outcomes.append(refused.args[0].name())
            producer.poll(0.002)
        producer.flush(15)
        return list(outcomes)

    assert set(produce(50)) == {None}
    before = behind.refused(framegate_kafka_api="Produce", framegate_kafka_refusal="report_only")
    try:
        rules.write_text(json.dumps({"report_only": True, "rules": [{"deny": ["Produce"]}]}))
        assert run_cli(*words).returncode == 0
        assert set(produce(20)) == {None}
        until(lambda: behind.refused(framegate_kafka_api="Produce", framegate_kafka_refusal="report_only") > before)

        def named() -> list[Any]:
            produce(5)  # a row names one of the requests since the last one, perhaps another client's
            return [row for row in behind.proxy.events("kafka_refused") if row["report_only"] and row["api"] == "Produce"]

        row = until(named, "a row that names Produce")[0]
        assert (row["listener"], row["client_id"], row["kind"], row["principal"]) == ("kafka", "app", "api", "ANONYMOUS")
        assert run_cli(*words[:-1], "--enforce").returncode == 0
        assert set(produce(5)) == {"TOPIC_AUTHORIZATION_FAILED"}
    finally:
        rules.write_text(json.dumps({"report_only": False, **RULES}))
        assert run_cli(*words).returncode == 0
    assert sent(behind, ["mine-1"]) == {"mine-1": None}  # the first producer asks no more
