"""kafka-python as a program: as ``confluent_client.py``."""

import itertools
import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, NewTopic
from kafka.net.sasl.oauth import AbstractTokenProvider

GIVE_UP_S = 20.0
MORE_S = 0.2
COMES_BACK_S = 60.0  # it waits up to 30 s before it connects again to a coordinator that was gone
PART = 100
BOOTSTRAP_MS = 3000  # it asks again and again, whatever it was told


class Token(AbstractTokenProvider):
    """The same one always."""

    def __init__(self, token: str) -> None:
        self._token = token

    def token(self) -> str:
        return self._token


def settings(entry: dict[str, Any]) -> dict[str, Any]:
    kind = ("SASL_" if entry["mechanism"] else "") + ("SSL" if entry["tls"] else "PLAINTEXT")
    found: dict[str, Any] = {"bootstrap_servers": f"{entry['host']}:{entry['port']}", "security_protocol": kind, "bootstrap_timeout_ms": BOOTSTRAP_MS}
    if entry["tls"]:
        found["ssl_cafile"] = entry["ca"]
    if entry["certificate"]:
        found |= {"ssl_certfile": entry["certificate"], "ssl_keyfile": entry["key"]}
    if entry["mechanism"] == "OAUTHBEARER":
        return {**found, "sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": Token(entry["token"])}
    if entry["mechanism"]:
        found |= {"sasl_mechanism": entry["mechanism"], "sasl_plain_username": entry["user"], "sasl_plain_password": entry["password"]}
    return found


def produce(entry: dict[str, Any], topic: str) -> None:
    producer = KafkaProducer(**settings(entry), max_block_ms=int(GIVE_UP_S * 1000))
    waiting = [producer.send(topic, line.rstrip("\n").encode(), partition=0) for line in sys.stdin]
    for future in waiting:
        future.get(timeout=GIVE_UP_S)
    producer.close()


def consume(entry: dict[str, Any], topic: str, count: int) -> None:
    consumer = KafkaConsumer(**settings(entry), group_id=None, consumer_timeout_ms=int(GIVE_UP_S * 1000))
    partition = TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    for number, record in enumerate(consumer, 1):
        print(record.value.decode(), flush=True)
        if number == count:
            consumer.close()
            return
    raise SystemExit(f"nothing came for {GIVE_UP_S:g} s")


def everything(entry: dict[str, Any], topic: str, count: int) -> None:
    admin = KafkaAdminClient(**settings(entry))
    admin.create_topics([NewTopic(topic, 3, 3)])
    for node in admin.describe_cluster()["brokers"]:
        print("broker", f"{node['host']}:{node['port']}")
    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "3600000"})], raise_on_unknown=False)
    producer = KafkaProducer(**settings(entry), enable_idempotence=True, max_block_ms=int(GIVE_UP_S * 1000))
    waiting = []
    for number in range(count):
        waiting.append(producer.send(topic, str(number).encode()))
        if number % PART == 0:
            time.sleep(entry["pause_s"])
    for future in waiting:
        future.get(timeout=GIVE_UP_S)
    producer.close()
    within = KafkaProducer(**settings(entry), transactional_id=topic, max_block_ms=int(GIVE_UP_S * 1000))
    within.init_transactions()
    for end, values in ((within.commit_transaction, range(count, 2 * count)), (within.abort_transaction, ["aborted"])):
        within.begin_transaction()
        for future in [within.send(topic, str(value).encode()) for value in values]:
            future.get(timeout=GIVE_UP_S)
        end()
    within.close()
    consumer = KafkaConsumer(topic, **settings(entry), group_id=topic, auto_offset_reset="earliest", isolation_level="read_committed")
    got, last = 0, time.monotonic()
    while time.monotonic() - last < (wait_s := COMES_BACK_S if got < 2 * count else MORE_S):
        # poll returns at once with records. While there are none yet it must not end: kafka-python 3.0 may be joining the group again because of
        # metadata, and forgets that join for ever if poll ends before its answer comes, at brokers themselves too. The member is dead then.
        for record in itertools.chain(*consumer.poll(int(wait_s * 1000)).values()):
            print("value", record.value.decode())
            got, last = got + 1, time.monotonic()
    consumer.commit()
    consumer.close()
    described = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    print("retention", described["topic"][topic]["retention.ms"]["value"])
    admin.delete_topics([topic])
    print("deleted", topic)


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR, format="%(levelname)s %(name)s %(message)s")
    entry = json.loads(Path(sys.argv[2]).read_text())
    if sys.argv[1] == "produce":
        produce(entry, sys.argv[3])
    else:
        {"consume": consume, "everything": everything}[sys.argv[1]](entry, sys.argv[3], int(sys.argv[4]))
