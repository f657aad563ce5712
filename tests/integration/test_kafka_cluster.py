"""Three real Kafka brokers that know nothing of framegate before them: one joins, one is killed and leaves, one moves, and leaders change.

Clients produce and consume meanwhile. They lose and double nothing, and nobody connects past framegate.
"""

import collections
import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

from confluent_kafka import Consumer, ElectionType, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.demo.brokers import Cluster, Watch
from tests.demo.kafka import create_topics
from tests.fakes.framegate import Framegate, Row
from tests.fakes.ports import free_ports
from tests.fakes.real_kafka import REAL_KAFKA
from tests.fakes.waiting import until

pytestmark = [*REAL_KAFKA, pytest.mark.extended]
NODES = (1, 2, 3)
RATE = 500
WAIT_S = 60.0


class Behind:
    """The cluster, framegate before its plaintext listeners, and a watch for connections past it."""

    def __init__(self, folder: Path, undo: contextlib.ExitStack) -> None:
        self.cluster = undo.enter_context(Cluster(folder / "kafka", nodes=NODES))
        self.cluster.start()
        # of the cluster, past framegate
        self.admin = AdminClient({"bootstrap.servers": ",".join(self.cluster.bootstrap("INTERNAL")), "log_level": 0})
        self.ports = free_ports(10)
        self.address = f"127.0.0.1:{self.ports[0]}"
        brokers = {"ports": f"{self.ports[1]}-{self.ports[-1]}"}
        listener = {
            "name": "kafka",
            "address": self.address,
            "upstream": "brokers",
            "protocol": "kafka",
            "brokers": brokers,
            "max_receive_size": "2MiB",
        }
        upstream = {"name": "brokers", "kafka": {"bootstrap": self.cluster.bootstrap("PLAIN")}}
        config = {"memory_pool": {"size": "32MiB"}, "listeners": [listener], "upstreams": [upstream], "processors": 2}
        self.proxy = undo.enter_context(Framegate(folder / "gate", config))
        self.watch = undo.enter_context(Watch(self.cluster, self.proxy.process.pid))

    def told(self, node: int) -> str:
        """The address of a broker that clients may read."""
        return f"127.0.0.1:{self.ports[1 + node]}"

    def topic(self, name: str, *replicas: list[int]) -> str:
        """Create a topic; ``replicas``: the nodes of each partition, its leader first."""
        create_topics(self.admin, [NewTopic(name, len(replicas), replica_assignment=list(replicas))])
        return name

    def wait_row(self, event: str, node: int) -> Row:
        return self.proxy.wait_row(lambda row: row["event"] == event and row.get("broker") == node, WAIT_S)


@pytest.fixture
def behind(tmp_path: Path) -> Iterator[Behind]:
    """A cluster for each test: they change it."""
    with contextlib.ExitStack() as undo:
        yield Behind(tmp_path, undo)


@pytest.fixture(autouse=True)
def nobody_walks_past_framegate(behind: Behind) -> Iterator[None]:
    yield
    assert behind.watch.leaks == [], behind.watch.leaks


def brokers(client: AdminClient) -> dict[int, str]:
    """The brokers that a client is told, by node id."""
    with contextlib.suppress(KafkaException):
        return {node.id: f"{node.host}:{node.port}" for node in client.list_topics(timeout=5).brokers.values()}
    return {}


class Traffic:
    """Numbers that an idempotent producer sends at an even pace, and a consumer of a group, in threads of their own."""

    def __init__(self, address: str, topic: str) -> None:
        self._topic = topic
        settings: dict[str, Any] = {"bootstrap.servers": address, "log_level": 0, "topic.metadata.refresh.interval.ms": 500}
        self._producer = Producer({**settings, "enable.idempotence": True, "linger.ms": 1})
        self._consumer = Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"})
        self.acknowledged: dict[int, list[float]] = collections.defaultdict(list)  # when, by partition; monotonic, in seconds
        self.told: set[str] = set()  # the addresses of brokers that the producer was told
        self._sent = 0
        self._positions: dict[int, set[tuple[int, int]]] = collections.defaultdict(set)
        self._failed: list[str] = []
        self._producing, self._consuming = threading.Event(), threading.Event()
        self._threads = [threading.Thread(target=self._produce), threading.Thread(target=self._consume)]

    def wait_for(self, partition: int, after: float, what: str) -> None:
        """Wait until records of a partition are acknowledged that were sent later than that."""
        until(lambda: self.acknowledged[partition] and self.acknowledged[partition][-1] > after + 0.5, what, WAIT_S)

    def gap_ms(self, partition: int) -> int:
        """The longest time without an acknowledgement."""
        times = self.acknowledged[partition]
        return int(max(later - earlier for earlier, later in itertools.pairwise(times)) * 1000)

    def faults(self) -> dict[str, list[Any]]:
        """End it; the numbers that were lost, and those that are in the topic twice, and what the clients said."""
        self._producing.set()
        self._threads[0].join()
        with contextlib.suppress(AssertionError):  # what is missing is in the answer
            until(lambda: len(self._positions) == self._sent, timeout=WAIT_S)
        doubled = [number for number, positions in self._positions.items() if len(positions) > 1]
        return {"lost": sorted(set(range(self._sent)) - self._positions.keys()), "doubled": doubled, "failed": self._failed}

    def _produce(self) -> None:
        began = time.monotonic()
        while not self._producing.wait(max(began + self._sent / RATE - time.monotonic(), 0)):
            self._producer.produce(self._topic, str(self._sent).encode(), on_delivery=self._delivered)
            self._sent += 1
            self._producer.poll(0)
            if self._sent % RATE == 0:
                self.told |= {f"{node.host}:{node.port}" for node in self._producer.list_topics(timeout=WAIT_S).brokers.values()}
        left = self._producer.flush(WAIT_S)
        self._failed += [f"{left} not sent"] if left else []

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        partition = message.partition()
        if error is not None or partition is None:
            self._failed.append(str(error))
        else:
            self.acknowledged[partition].append(time.monotonic())

    def _consume(self) -> None:
        self._consumer.subscribe([self._topic])
        while not self._consuming.is_set():
            for message in self._consumer.consume(RATE, 0.1):
                value, partition, offset = message.value(), message.partition(), message.offset()
                if message.error() is None and value is not None and partition is not None and offset is not None:
                    self._positions[int(value)].add((partition, offset))
        self._consumer.close()

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._producing.set()
        self._consuming.set()
        for thread in self._threads:
            thread.join()


NOTHING: dict[str, list[Any]] = {"lost": [], "doubled": [], "failed": []}


def leaders_elect(behind: Behind, topic: str) -> list[int]:
    """Ask for the preferred leaders, which are refused until they are in sync; the leaders."""
    partitions = behind.admin.list_topics(topic, timeout=10).topics[topic].partitions
    with contextlib.suppress(KafkaException):
        behind.admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition(topic, number) for number in partitions]).result(10)
    return [item.leader for item in behind.admin.list_topics(topic, timeout=10).topics[topic].partitions.values()]


def test_a_broker_that_joins_is_told_when_its_listener_is_open_and_its_port_closes_when_it_has_left(behind: Behind) -> None:
    client = AdminClient({"bootstrap.servers": behind.address, "log_level": 0})
    until(lambda: brokers(client) == {node: behind.told(node) for node in NODES}, "the brokers are found", WAIT_S)
    behind.cluster.add(4)
    told = until(lambda: (found := brokers(client).get(4, "")) != behind.address and found, "clients are told the new one", WAIT_S)
    host, _, port = told.partition(":")
    socket.create_connection((host, int(port)), timeout=5).close()
    assert told == behind.told(4)
    behind.wait_row("broker_joined", 4)
    topic = behind.topic("joined", [4, 1, 2])
    with Traffic(behind.address, topic) as traffic:
        until(lambda: leaders_elect(behind, topic)[0] == 4, "it leads", WAIT_S)
        traffic.wait_for(0, time.monotonic(), "records to the new broker")
        assert behind.cluster.brokers[4].client_addresses["PLAIN"] in behind.watch.seen
        behind.cluster.kill(4)
        traffic.wait_for(0, time.monotonic() + 1, "records after it is gone")
        assert traffic.gap_ms(0) < 20_000
        behind.wait_row("broker_left", 4)
        assert traffic.faults() == NOTHING
    until(lambda: 4 not in brokers(client), "clients are no longer told it", WAIT_S)

    def is_closed() -> bool:
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection((host, int(port)), timeout=5):
            return False
        return True

    until(is_closed, "its port is closed", WAIT_S)


def test_a_broker_that_comes_back_elsewhere_is_followed(behind: Behind) -> None:
    before = len(behind.proxy.rows)
    topic = behind.topic("moved", [3, 1, 2])
    with Traffic(behind.address, topic) as traffic:
        traffic.wait_for(0, time.monotonic(), "records before")
        behind.cluster.kill(3)
        behind.cluster.restart(3, moved=True)
        until(lambda: leaders_elect(behind, topic)[0] == 3, "it leads again", WAIT_S)
        traffic.wait_for(0, time.monotonic() + 1, "records at its new address")
        assert traffic.faults() == NOTHING
    assert behind.cluster.brokers[3].client_addresses["PLAIN"] in behind.watch.seen
    rows = [row["event"] for row in behind.proxy.rows[before:] if row.get("broker") == 3]
    assert "broker_moved" in rows or {"broker_left", "broker_joined"} <= set(rows), rows
    assert traffic.told <= {behind.address, *(behind.told(node) for node in (*NODES, 4))}
