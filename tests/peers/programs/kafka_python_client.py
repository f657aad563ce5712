"""kafka-python as a program: as ``confluent_client.py``."""

import json
import logging
import sys
from pathlib import Path
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.net.sasl.oauth import AbstractTokenProvider

GIVE_UP_S = 20.0
BOOTSTRAP_MS = 3000  # it asks again and again, whatever it was told


class Token(AbstractTokenProvider):
    """The same one always."""

    def __init__(self, token: str) -> None:
        self._token = token

    def token(self) -> str:
        return self._token


def settings(entry: dict[str, Any]) -> dict[str, Any]:
    kind = ("SASL_" if entry["mechanism"] else "") + ("SSL" if entry["tls"] else "PLAINTEXT")
    found: dict[str, Any] = {"bootstrap_servers": f"127.0.0.1:{entry['port']}", "security_protocol": kind, "bootstrap_timeout_ms": BOOTSTRAP_MS}
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


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR, format="%(levelname)s %(name)s %(message)s")
    entry = json.loads(Path(sys.argv[2]).read_text())
    if sys.argv[1] == "produce":
        produce(entry, sys.argv[3])
    else:
        consume(entry, sys.argv[3], int(sys.argv[4]))
