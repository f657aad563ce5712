"""The Kafka clients of the demo. Each runs as a process of its own and checks every record that it consumes.

``python tests/demo records JSON`` (``exchange``) produces and consumes numbered records. ``python tests/demo fetches JSON`` (``fetch_large``)
produces batches of 50 MiB and lets several consumers fetch them at once. JSON holds the fields of ``Options``. Both write JSON lines: ``progress``
while they work, ``final`` at the end. A record's key is its number in 8 bytes.
"""

import dataclasses
import random
import struct
import time
import zlib
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.cimpl import OFFSET_BEGINNING

KEY: Final = struct.Struct(">q")
LARGE_BYTES: Final = 64 * 1024  # bytes of the value of a record of ``fetch_large``
BATCH_RECORDS: Final = 800
BATCH_BYTES: Final = BATCH_RECORDS * LARGE_BYTES
"""Bytes of the values of one batch: 50 MiB, what Kafka's consumers take in one answer by default (``fetch.max.bytes``). The batch itself is somewhat
larger; a broker sends a first batch that is larger whole, and nothing with it.
"""
_LARGEST_BATCH: Final = BATCH_BYTES + 1024 * 1024
TOPIC_SETTINGS: Final = {"max.message.bytes": str(_LARGEST_BATCH), "compression.type": "uncompressed"}
"""The topic of ``fetch_large`` needs these settings: the broker keeps a batch as it was sent, so one batch is one answer."""
_VALUE: Final = struct.Struct(">qI")
_FILLER: Final = 100
_STRIDE: Final = 257  # neighbouring large records share most of their bytes, so a batch compresses well
_TABLE: Final = random.Random(50).randbytes(256 * 1024 + LARGE_BYTES)
_GIVE_UP_S: Final = 120.0
_PROGRESS_S: Final = 0.5
_PRODUCED_AT_ONCE: Final = 2000
Progress = Callable[[dict[str, Any]], None]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Where the clients connect and what they exchange."""

    bootstrap: str  # address of a broker, or of the proxy in front of it
    topic: str  # it must exist
    count: int  # number of records; for ``fetch_large`` a multiple of ``BATCH_RECORDS``
    ca: str | None = None  # PEM file of the authority; None for plaintext
    client: dict[str, Any] = dataclasses.field(default_factory=dict)  # more settings of producers and consumers
    consumers: int = 3  # how many consumers fetch all records at once; only for ``fetch_large``

    def settings(self) -> dict[str, Any]:
        """The settings for a client of librdkafka."""
        tls = {} if self.ca is None else {"security.protocol": "ssl", "ssl.ca.location": self.ca}
        return {"bootstrap.servers": self.bootstrap, **tls, **self.client}


def value_of(number: int) -> bytes:
    """The value of a record of ``exchange``: its number, the CRC32 of a filler, and the filler."""
    filler = (b"%010d." % number) * (_FILLER // 11)
    return _VALUE.pack(number, zlib.crc32(filler)) + filler


def large_value_of(number: int) -> bytes:
    """The value of a record of ``fetch_large``: its number, then bytes of a random table from a place that differs for each number. So bytes that
    are lost, doubled or misplaced are found.
    """
    start = number * _STRIDE % (len(_TABLE) - LARGE_BYTES)
    return KEY.pack(number) + _TABLE[start : start + LARGE_BYTES - KEY.size]


class Acknowledged:
    """Counts the records that the broker acknowledged. A refusal raises ``KafkaException`` from the producer's call."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            raise KafkaException(error)
        self.count += 1


class Received:
    """Counts the records that were consumed, and those that are not as sent. ``count``: the numbers 0 to count - 1 are expected, each once.
    ``expected``: gives the value of a record by its number.
    """

    def __init__(self, count: int, expected: Callable[[int], bytes] = value_of) -> None:
        self._expected = expected
        self._seen = bytearray(count)
        self._last: dict[int, int] = {}
        self.count = self.wrong = self.doubled = self.out_of_order = 0

    @property
    def missing(self) -> int:
        return self._seen.count(0)

    def consume(self, consumer: Consumer, timeout_s: float) -> None:
        """Check the records that a consumer has."""
        for message in consumer.consume(_PRODUCED_AT_ONCE, timeout_s):
            key, value, partition = message.key(), message.value(), message.partition()
            if message.error() is None and key is not None and value is not None and partition is not None:
                self.take(key, value, partition)

    def take(self, key: bytes, value: bytes, partition: int) -> None:
        """Check one record."""
        number = KEY.unpack(key)[0]
        self.count += 1
        self.wrong += value != self._expected(number)
        self.doubled += self._seen[number]
        self._seen[number] = 1
        self.out_of_order += self._last.get(partition, -1) >= number
        self._last[partition] = number

    def counts(self) -> dict[str, int]:
        return {"consumed": self.count, "wrong": self.wrong, "doubled": self.doubled, "out_of_order": self.out_of_order, "missing": self.missing}


def exchange(options: Options, progress: Progress) -> dict[str, Any]:
    """Produce all records and consume them meanwhile. Returns: ``produced`` (acknowledged by the broker), ``consumed``, ``wrong``, ``doubled``,
    ``out_of_order``, ``missing``, ``elapsed_ms``.
    """
    acknowledged, received = Acknowledged(), Received(options.count)
    producer = Producer({**options.settings(), "enable.idempotence": True, "linger.ms": 5, "queue.buffering.max.messages": 2 * options.count})
    consumer = Consumer({**options.settings(), "group.id": "framegate-demo", "auto.offset.reset": "earliest"})
    consumer.subscribe([options.topic])
    started = reported = time.monotonic()
    produced = 0
    while received.missing and time.monotonic() < started + _GIVE_UP_S:
        for number in range(produced, min(produced + _PRODUCED_AT_ONCE, options.count)):
            producer.produce(options.topic, key=KEY.pack(number), value=value_of(number), on_delivery=acknowledged)
        produced = min(produced + _PRODUCED_AT_ONCE, options.count)
        producer.poll(0)
        received.consume(consumer, 0.01 if produced < options.count else 0.2)
        if time.monotonic() - reported > _PROGRESS_S:
            reported = time.monotonic()
            progress({"event": "progress", "produced": acknowledged.count, "consumed": received.count})
    producer.flush(10.0)
    consumer.close()
    return {"produced": acknowledged.count, **received.counts(), "elapsed_ms": int((time.monotonic() - started) * 1000)}


def fetch_large(options: Options, progress: Progress) -> dict[str, Any]:
    """Produce all batches, then fetch them with all consumers. Returns: ``produced`` (acknowledged by the broker); summed over the consumers
    ``consumed``, ``wrong``, ``doubled``, ``out_of_order``, ``missing``; and ``fetch_ms``. Raises KafkaException: the broker refused a record.
    """
    produced = _produce_large(options)
    progress({"event": "progress", "produced": produced, "consumed": 0})
    consumers = [Consumer(_large_settings(options, number)) for number in range(options.consumers)]
    everyone = [Received(options.count, large_value_of) for _ in consumers]
    for consumer in consumers:
        consumer.assign([TopicPartition(options.topic, 0, OFFSET_BEGINNING)])
    started = reported = time.monotonic()
    while any(received.missing for received in everyone) and time.monotonic() < started + _GIVE_UP_S:
        for consumer, received in zip(consumers, everyone, strict=True):
            received.consume(consumer, 0.02)
        if time.monotonic() - reported > _PROGRESS_S:
            reported = time.monotonic()
            progress({"event": "progress", "produced": produced, "consumed": sum(received.count for received in everyone)})
    for consumer in consumers:
        consumer.close()
    counts = [received.counts() for received in everyone]
    totals = {name: sum(row[name] for row in counts) for name in counts[0]}
    return {"produced": produced, **totals, "fetch_ms": int((time.monotonic() - started) * 1000)}


def _produce_large(options: Options) -> int:
    acknowledged = Acknowledged()
    batches = {"batch.num.messages": BATCH_RECORDS, "batch.size": _LARGEST_BATCH, "message.max.bytes": _LARGEST_BATCH}
    linger = {"linger.ms": 10_000}  # a batch is sent when it is full
    producer = Producer({**options.settings(), **batches, **linger, "enable.idempotence": True, "compression.type": "zstd"})
    for number in range(options.count):
        producer.produce(options.topic, key=KEY.pack(number), value=large_value_of(number), partition=0, on_delivery=acknowledged)
        producer.poll(0)
    producer.flush(60.0)
    return acknowledged.count


def _large_settings(options: Options, number: int) -> dict[str, Any]:
    """Settings with which each answer holds one batch, and the next one is asked for when it has been consumed."""
    return {
        **options.settings(),
        "group.id": f"framegate-demo-{number}",
        "enable.auto.commit": False,
        "fetch.max.bytes": BATCH_BYTES,
        "max.partition.fetch.bytes": BATCH_BYTES,
        "receive.message.max.bytes": 2 * BATCH_BYTES,
        "queued.max.messages.kbytes": 1024,
        "fetch.queue.backoff.ms": 10,
    }
