"""Three real Kafka brokers behind listeners with rules and SASL: terminated here, swapped for framegate's own login, and passed through."""

import contextlib
import itertools
import json
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from framegate.control.identity.passwords import new_credentials
from framegate.control.identity.users_file import changing
from tests.demo import broker
from tests.demo.brokers import Cluster, Watch
from tests.demo.kafka import create_topics
from tests.fakes.framegate import Framegate, Row, run_cli
from tests.fakes.ports import free_ports
from tests.fakes.real_kafka import REAL_KAFKA
from tests.fakes.waiting import until

pytestmark = [*REAL_KAFKA, pytest.mark.extended]
NODES = (1, 2, 3)
GATE, SECRET, PASSWORD = "gate", "canary-of-gate-7f3", "canary-of-clients-3c1"
SESSION_MS = 5000
LEFT = ("peer_closed", "peer_reset", "no_data")  # by itself
RULES: Row = {"rules": [{"principals": ["alice"]}, {"topics": ["mine*"], "groups": ["mine*"], "deny": ["DeleteTopics"]}]}
OPEN: Row = {"rules": [{"client_ids": ["operator*"]}, {"topics": ["mine*"], "groups": ["mine*"]}]}


class Behind:
    """The cluster, and framegate with a listener for each way of logging in, by name."""

    def __init__(self, folder: Path, undo: contextlib.ExitStack) -> None:
        settings = f"listener.name.sasl.plain.connections.max.reauth.ms={SESSION_MS}\n"
        users = {GATE: SECRET, "alice": PASSWORD, "bob": PASSWORD}
        self.cluster = undo.enter_context(Cluster(folder / "kafka", users, nodes=NODES, settings=settings))
        self.cluster.start()
        gate = folder / "gate"
        gate.mkdir()
        with changing(gate / "users") as known:
            for name in ("alice", "bob"):
                known.add(name, new_credentials(PASSWORD, iterations=4096))
        (gate / "secret").write_text(SECRET + "\n")
        (gate / "secret").chmod(0o600)
        sasl = {"mechanisms": ["PLAIN"], "users": "users", "max_session": "2s"}
        plain, login = self.cluster.bootstrap("PLAIN"), self.cluster.bootstrap("SASL")
        listeners = [
            self._listener("open", "plain", kafka={"report_only": True, **OPEN}),
            self._listener("known", "plain", sasl=sasl, kafka=RULES),
            self._listener("swapped", "swapped", sasl=sasl, kafka=RULES),
            self._listener("through", "through", kafka=OPEN),
        ]
        upstreams = [
            {"name": "plain", "kafka": {"bootstrap": plain}},
            {"name": "swapped", "kafka": {"bootstrap": login}, "sasl": {"mechanism": "PLAIN", "user": GATE, "password_file": "secret"}},
            {"name": "through", "kafka": {"bootstrap": login}},
        ]
        config = {"memory_pool": {"size": "64MiB"}, "listeners": listeners, "upstreams": upstreams, "processors": 2}
        self.proxy = undo.enter_context(Framegate(gate, config))
        self.watch = undo.enter_context(Watch(self.cluster, self.proxy.process.pid))
        admin = AdminClient({"bootstrap.servers": ",".join(self.cluster.bootstrap("INTERNAL")), "log_level": 0})
        names = ("mine", "other", "mine-known", "mine-swapped", "mine-through", "mine-java")
        create_topics(admin, [NewTopic(name, 3, replica_assignment=[[1, 2, 3], [2, 3, 1], [3, 1, 2]]) for name in names])

    def _listener(self, name: str, upstream: str, **more: Any) -> Row:
        ports = free_ports(6)
        common = {"upstream": upstream, "protocol": "kafka", "max_receive_size": "2MiB"}
        return {"name": name, "address": f"127.0.0.1:{ports[0]}", "brokers": {"ports": f"{ports[1]}-{ports[-1]}"}, **common, **more}

    def settings(self, listener: str, user: str = "", **more: Any) -> dict[str, Any]:
        host, port = self.proxy.address(listener)
        found: dict[str, Any] = {"bootstrap.servers": f"{host}:{port}", "log_level": 0, "client.id": "app", **more}
        if user:
            found |= {"security.protocol": "sasl_plaintext", "sasl.mechanism": "PLAIN", "sasl.username": user, "sasl.password": PASSWORD}
        return found

    def set_rules(self, listener: str, rules: Row, folder: Path) -> None:
        (folder / "rules.json").write_text(json.dumps(rules))
        done = run_cli("kafka-rules", "set", "--address", str(self.proxy.serving["admin"]), "--listener", listener, str(folder / "rules.json"))
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Behind]:
    with contextlib.ExitStack() as undo:
        yield Behind(tmp_path_factory.mktemp("rules"), undo)


@pytest.fixture(autouse=True)
def nobody_walks_past_framegate(behind: Behind) -> Iterator[None]:
    before = len(behind.proxy.rows)
    yield
    assert behind.watch.leaks == [], behind.watch.leaks
    assert [row for row in behind.proxy.rows[before:] if row["level"] == "error"] == []


def outcomes(settings: dict[str, Any], topics: list[str], seconds: float) -> dict[str, set[Any]]:
    """What became of records, by topic, sent to all partitions for so long by one producer: None, or the error's name."""
    found: dict[str, set[Any]] = {topic: set() for topic in topics}
    producer = Producer({**settings, "linger.ms": 0, "message.timeout.ms": 8000, "enable.idempotence": False})
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for topic, partition in itertools.product(topics, range(3)):
            try:
                producer.produce(topic, b"x", partition=partition, on_delivery=lambda error, _, topic=topic: found[topic].add(error and error.name()))
            except KafkaException as refused:  # librdkafka knows already
                found[topic].add(refused.args[0].name())
        producer.poll(0)
        time.sleep(0.1)  # more than brokers answer in a tenth of a session would be more than a login can be renewed after
    producer.flush(10)
    return found


def read(settings: dict[str, Any], group: str, topic: str, count: int) -> set[Any]:
    """What a new member of a group gets: errors' names, or None when it has so many records."""
    consumer = Consumer({**settings, "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: set[Any] = set()
    end = time.monotonic() + 20
    while not found and time.monotonic() < end:
        message = consumer.poll(0.5)
        if message is not None and message.error():
            found.add(message.error().name())
        elif message is not None:
            count -= 1
            found |= {None} if count <= 0 else set()
    consumer.close()
    return found


@pytest.mark.parametrize("listener", ["known", "swapped"])
def test_rules_know_the_principal_before_and_after_it_authenticates_again(behind: Behind, listener: str) -> None:
    topic, denied = f"mine-{listener}", "TOPIC_AUTHORIZATION_FAILED"
    results: dict[str, dict[str, set[Any]]] = {}

    def work(user: str) -> None:
        results[user] = outcomes(behind.settings(listener, user), [topic, "other"], 8)

    threads = [threading.Thread(target=work, args=(user,)) for user in ("alice", "bob")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {"alice": {topic: {None}, "other": {None}}, "bob": {topic: {None}, "other": {denied}}}
    assert read(behind.settings(listener, "bob"), "mine-b", topic, 20) == {None}
    assert read(behind.settings(listener, "bob"), "theirs", topic, 1) == {"GROUP_AUTHORIZATION_FAILED"}
    assert read(behind.settings(listener, "alice"), "theirs", "other", 20) == {None}
    topics = AdminClient(behind.settings(listener, "bob")).list_topics(timeout=10).topics
    assert all(name.startswith("mine") for name in topics), topics
    labels = {"framegate_listener": listener, "framegate_sasl_mechanism": "PLAIN"}
    assert behind.proxy.metric("framegate_authentication_count_total", **labels) >= 12, "two clients, three brokers, again and again"
    ended = [row for row in behind.proxy.events("closed") if row["listener"] == listener and row["cause"] not in LEFT]
    assert not ended, "\n".join(map(str, ended))


def test_sasl_that_passes_through_is_the_brokers_and_their_lists_come_from_answers(behind: Behind) -> None:
    assert outcomes(behind.settings("through", "alice"), ["mine-through", "other"], 6) == {
        "mine-through": {None},
        "other": {"TOPIC_AUTHORIZATION_FAILED"},
    }
    assert read(behind.settings("through", "bob"), "mine-t", "mine-through", 20) == {None}
    rows = [row for row in behind.proxy.json("brokers", "list") if row["upstream"] == "through"]
    assert [(row["node_id"], row["state"]) for row in rows] == [(node, "STATE_UP") for node in NODES]


def test_java_clients_go_on_when_rules_begin_to_restrict_topics(behind: Behind, tmp_path: Path) -> None:
    host, port = behind.proxy.address("open")
    at = ("--bootstrap-server", f"{host}:{port}", "--topic", "mine-java")
    java = broker.java_command(broker.prepare())
    with contextlib.ExitStack() as undo:
        tool = "org.apache.kafka.tools.consumer.ConsoleConsumer"
        words = [*java, tool, *at, "--group", "mine-java", "--from-beginning", "--max-messages", "60", "--timeout-ms", "40000"]
        consumer = undo.enter_context(subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        undo.callback(consumer.kill)
        words = [*java, "org.apache.kafka.tools.ConsoleProducer", *at, "--command-property", "linger.ms=0"]
        producer = undo.enter_context(subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        undo.callback(producer.kill)
        assert producer.stdin is not None

        def send(first: int) -> None:
            assert producer.stdin is not None
            for number in range(first, first + 20):
                producer.stdin.write(f"{number}\n")
                producer.stdin.flush()
                time.sleep(0.05)

        send(0)
        until(
            lambda: behind.proxy.metric("framegate_kafka_request_io_bytes_total", framegate_listener="open", framegate_kafka_api="Fetch"), timeout=20
        )
        behind.set_rules("open", {"report_only": False, **OPEN}, tmp_path)
        send(20)
        behind.set_rules("open", {"rules": []}, tmp_path)
        send(40)
        said = producer.communicate(timeout=40)[0]
        assert "AuthorizationException" not in said, said
        got = consumer.communicate(timeout=60)[0]
        assert [line for line in got.splitlines() if line.isdigit()] == [str(number) for number in range(60)], got
