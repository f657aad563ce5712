"""confluent-kafka as a program: what comes in on standard input goes to a topic, line by line, or what is in the topic comes out.

``python confluent_client.py produce|consume|everything SETTINGS TOPIC COUNT``; the settings are those of ``tests/peers/clients.py``'s ``Entry``, and
``everything`` is described there.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

FATAL = (KafkaError._AUTHENTICATION, KafkaError._SSL)
GIVE_UP_S = 20.0
MORE_S = 0.2
PART = 100
failed: list[str] = []


def fails(error: KafkaError) -> None:
    """Whatever reaches the application is printed; what cannot get better ends it: nothing that is raised here would."""
    if error.fatal() or sys.argv[1] != "everything":  # what is not fatal gets better by itself
        failed.append(error.str())
    print(f"error_cb: {error.name()}: {error.str()}", file=sys.stderr, flush=True)
    if error.code() in FATAL or "SSL alert" in error.str():
        os._exit(1)


def settings(entry: dict[str, Any]) -> dict[str, Any]:
    kind = ("SASL_" if entry["mechanism"] else "") + ("SSL" if entry["tls"] else "PLAINTEXT")
    found: dict[str, Any] = {"bootstrap.servers": f"{entry['host']}:{entry['port']}", "security.protocol": kind, "error_cb": fails, "log_level": 0}
    if entry["tls"]:
        found["ssl.ca.location"] = entry["ca"]
    if entry["certificate"]:
        found |= {"ssl.certificate.location": entry["certificate"], "ssl.key.location": entry["key"]}
    if entry["mechanism"] == "OAUTHBEARER":
        token = entry["token"]
        return {**found, "sasl.mechanism": "OAUTHBEARER", "oauth_cb": lambda _: (token, time.time() + 3600)}
    if entry["mechanism"]:
        found |= {"sasl.mechanism": entry["mechanism"], "sasl.username": entry["user"], "sasl.password": entry["password"]}
    return found


def delivered(error: KafkaError | None, _: Message) -> None:
    if error is not None:
        failed.append(error.str())
        print(f"delivery: {error}", file=sys.stderr, flush=True)


def produce(entry: dict[str, Any], topic: str) -> None:
    producer = Producer({**settings(entry), "enable.idempotence": True, "linger.ms": 0, "message.timeout.ms": int(GIVE_UP_S * 1000)})
    for line in sys.stdin:
        producer.produce(topic, line.rstrip("\n").encode(), partition=0, on_delivery=delivered)
        producer.poll(0)
    if producer.flush(GIVE_UP_S + 5):
        raise SystemExit("not everything was sent")


def consume(entry: dict[str, Any], topic: str, count: int) -> None:
    consumer = Consumer({**settings(entry), "group.id": topic, "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    got, last = 0, time.monotonic()
    while got < count:
        message = consumer.poll(0.5)
        if message is None:
            if time.monotonic() - last > GIVE_UP_S:
                raise SystemExit(f"nothing came for {GIVE_UP_S:g} s")
            continue
        if message.error() is not None:
            raise SystemExit(f"message: {message.error()}")
        last = time.monotonic()
        value = message.value()
        assert value is not None
        print(value.decode(), flush=True)
        got += 1
    consumer.close()


def insistently(step: Callable[[float], None]) -> None:
    """Take a step of a transaction again as long as the library says that it may be."""
    deadline = time.monotonic() + GIVE_UP_S
    while True:
        try:
            return step(GIVE_UP_S)
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise


def everything(entry: dict[str, Any], topic: str, count: int) -> None:
    admin = AdminClient(settings(entry))
    admin.create_topics([NewTopic(topic, 3, 3)])[topic].result(GIVE_UP_S)
    for node in [*admin.describe_cluster().result(GIVE_UP_S).nodes, *admin.list_topics(timeout=GIVE_UP_S).brokers.values()]:
        print("broker", f"{node.host}:{node.port}")
    change = ConfigEntry("retention.ms", "3600000", incremental_operation=AlterConfigOpType.SET)
    asked = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])
    admin.incremental_alter_configs([asked])[asked].result(GIVE_UP_S)
    producer = Producer({**settings(entry), "enable.idempotence": True})
    for number in range(count):
        producer.produce(topic, str(number).encode(), on_delivery=delivered)
        producer.poll(entry["pause_s"] if number % PART == 0 else 0)
    producer.flush(GIVE_UP_S)
    within = Producer({**settings(entry), "transactional.id": topic})
    insistently(within.init_transactions)
    for end, values in ((within.commit_transaction, range(count, 2 * count)), (within.abort_transaction, ["aborted"])):
        within.begin_transaction()
        for value in values:
            within.produce(topic, str(value).encode(), on_delivery=delivered)
        within.flush(GIVE_UP_S)
        insistently(end)
    consumer = Consumer({**settings(entry), "group.id": topic, "auto.offset.reset": "earliest", "isolation.level": "read_committed"})
    consumer.subscribe([topic])
    got, last = 0, time.monotonic()
    while time.monotonic() - last < (GIVE_UP_S if got < 2 * count else MORE_S):
        for message in consumer.consume(count, MORE_S):
            value = message.value()
            assert message.error() is None, message.error()
            assert value is not None
            print("value", value.decode())
            got, last = got + 1, time.monotonic()
    consumer.commit(asynchronous=False)
    consumer.close()
    print("retention", admin.describe_configs([asked])[asked].result(GIVE_UP_S)["retention.ms"].value)
    admin.delete_topics([topic])[topic].result(GIVE_UP_S)
    print("deleted", topic)


if __name__ == "__main__":
    entry = json.loads(Path(sys.argv[2]).read_text())
    if sys.argv[1] == "produce":
        produce(entry, sys.argv[3])
    else:
        {"consume": consume, "everything": everything}[sys.argv[1]](entry, sys.argv[3], int(sys.argv[4]))
    sys.exit(1 if failed else 0)
