"""aiokafka as a program: as ``confluent_client.py``."""

import asyncio
import json
import logging
import ssl
import sys
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.abc import AbstractTokenProvider

GIVE_UP_S = 20.0


class Token(AbstractTokenProvider):
    """The same one always."""

    def __init__(self, token: str) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token


def settings(entry: dict[str, Any]) -> dict[str, Any]:
    kind = ("SASL_" if entry["mechanism"] else "") + ("SSL" if entry["tls"] else "PLAINTEXT")
    found: dict[str, Any] = {"bootstrap_servers": f"127.0.0.1:{entry['port']}", "security_protocol": kind}
    if entry["tls"]:
        found["ssl_context"] = context = ssl.create_default_context(cafile=entry["ca"])
        if entry["certificate"]:
            context.load_cert_chain(entry["certificate"], entry["key"])
    if entry["mechanism"] == "OAUTHBEARER":
        return {**found, "sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": Token(entry["token"])}
    if entry["mechanism"]:
        found |= {"sasl_mechanism": entry["mechanism"], "sasl_plain_username": entry["user"], "sasl_plain_password": entry["password"]}
    return found


async def produce(entry: dict[str, Any], topic: str) -> None:
    producer = AIOKafkaProducer(**settings(entry), enable_idempotence=True, request_timeout_ms=int(GIVE_UP_S * 1000))
    await producer.start()
    try:
        waiting = []
        while line := await asyncio.to_thread(sys.stdin.readline):
            waiting.append(await producer.send(topic, line.rstrip("\n").encode(), partition=0))
        for future in waiting:
            await asyncio.wait_for(future, GIVE_UP_S)
    finally:
        await producer.stop()


async def consume(entry: dict[str, Any], topic: str, count: int) -> None:
    consumer = AIOKafkaConsumer(**settings(entry), group_id=None)
    await consumer.start()
    try:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        for _ in range(count):
            record = await asyncio.wait_for(consumer.getone(), GIVE_UP_S)
            print(record.value.decode(), flush=True)
    finally:
        await consumer.stop()


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR, format="%(levelname)s %(name)s %(message)s")
    entry = json.loads(Path(sys.argv[2]).read_text())
    asyncio.run(produce(entry, sys.argv[3]) if sys.argv[1] == "produce" else consume(entry, sys.argv[3], int(sys.argv[4])))
