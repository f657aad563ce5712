"""aiokafka as a program: as ``confluent_client.py``."""

import asyncio
import itertools
import json
import logging
import ssl
import sys
import time
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.abc import AbstractTokenProvider
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

GIVE_UP_S = 20.0
MORE_S = 0.2
PART = 100


class Token(AbstractTokenProvider):
    """The same one always."""

    def __init__(self, token: str) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token


def settings(entry: dict[str, Any]) -> dict[str, Any]:
    kind = ("SASL_" if entry["mechanism"] else "") + ("SSL" if entry["tls"] else "PLAINTEXT")
    found: dict[str, Any] = {"bootstrap_servers": f"{entry['host']}:{entry['port']}", "security_protocol": kind}
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


async def everything(entry: dict[str, Any], topic: str, count: int) -> None:
    admin = AIOKafkaAdminClient(**settings(entry))
    await admin.start()
    await admin.create_topics([NewTopic(topic, 3, 3)])
    for node in (await admin.describe_cluster())["brokers"]:
        print("broker", f"{node['host']}:{node['port']}")
    await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "3600000"})])
    producer = AIOKafkaProducer(**settings(entry), enable_idempotence=True)
    async with producer:
        waiting = []
        for number in range(count):
            waiting.append(await producer.send(topic, str(number).encode()))
            if number % PART == 0:
                await asyncio.sleep(entry["pause_s"])
        for future in waiting:
            await asyncio.wait_for(future, GIVE_UP_S)
    within = AIOKafkaProducer(**settings(entry), transactional_id=topic)
    async with within:
        for end, values in ((within.commit_transaction, range(count, 2 * count)), (within.abort_transaction, ["aborted"])):
            await within.begin_transaction()
            for future in [await within.send(topic, str(value).encode()) for value in values]:
                await asyncio.wait_for(future, GIVE_UP_S)
            await end()
    consumer = AIOKafkaConsumer(topic, **settings(entry), group_id=topic, auto_offset_reset="earliest", isolation_level="read_committed")
    async with consumer:
        got, last = 0, time.monotonic()
        while time.monotonic() - last < (GIVE_UP_S if got < 2 * count else MORE_S):
            for record in itertools.chain(*(await consumer.getmany(timeout_ms=int(MORE_S * 1000))).values()):
                print("value", record.value.decode())
                got, last = got + 1, time.monotonic()
        await consumer.commit()
    described = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    print("retention", *(entry[1] for entry in described[0].resources[0][-1] if entry[0] == "retention.ms"))
    await admin.delete_topics([topic])
    await admin.close()
    print("deleted", topic)


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR, format="%(levelname)s %(name)s %(message)s")
    entry = json.loads(Path(sys.argv[2]).read_text())
    if sys.argv[1] == "produce":
        asyncio.run(produce(entry, sys.argv[3]))
    else:
        asyncio.run({"consume": consume, "everything": everything}[sys.argv[1]](entry, sys.argv[3], int(sys.argv[4])))
