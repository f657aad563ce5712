"""Kafka's clients of the demo's small memory pool: a process that produces batches of 50 MiB, has several consumers fetch them at once, and checks
every byte.

``python tests/demo fetches '{"bootstrap": "localhost:…", "ca": …, "topic": …, "count": …}'`` writes JSON lines: ``progress`` while it
works and ``final`` at the end. A batch goes out compressed, as one small request; the broker, whose topic has ``TOPIC_SETTINGS``, keeps it as it was,
and sends it so: one batch, one answer. A record's value is 64 KiB: its number in 8 bytes, then a stretch of one table of random bytes that
begins elsewhere for each number, so that a piece that is lost, doubled or in another place shows.
"""

import dataclasses
import random
import time
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.cimpl import OFFSET_BEGINNING

from tests.demo import records

__all__ = ["BATCH_BYTES", "BATCH_RECORDS", "TOPIC_SETTINGS", "VALUE_BYTES", "Options", "exchange", "value_of"]

VALUE_BYTES: Final = 64 * 1024
BATCH_RECORDS: Final = 800
BATCH_BYTES: Final = BATCH_RECORDS * VALUE_BYTES
"""Of values, 50 MiB: a batch is somewhat larger. It is what Kafka's consumers take in one answer by default (``fetch.max.bytes``); a broker sends a
first batch that is larger whole, and nothing with it."""

_STRIDE: Final = 257  # so little of a record is new to the compressor
_TABLE: Final = random.Random(50).randbytes(256 * 1024 + VALUE_BYTES)
_STARTS: Final = len(_TABLE) - VALUE_BYTES
_LARGEST_BATCH: Final = BATCH_BYTES + 1024 * 1024
_LINGER_MS: Final = 10_000  # a batch goes when it is full
_FLUSH_S: Final = 60.0
_GIVE_UP_S: Final = 90.0
_PROGRESS_S: Final = 1.0

TOPIC_SETTINGS: Final = {"max.message.bytes": str(_LARGEST_BATCH), "compression.type": "uncompressed"}
"""What the topic needs."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options(records.Options):
    """``count``: a multiple of ``BATCH_RECORDS``; ``consumers``: how many fetch all records, at once."""

    consumers: int = 3


def value_of(number: int) -> bytes:
    """The value of a record."""
    start = number * _STRIDE % _STARTS
    return records.KEY.pack(number) + _TABLE[start : start + VALUE_BYTES - records.KEY.size]


def exchange(options: Options, progress: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Produce all records, then fetch them.

    Returns:
        Facts: ``produced`` (acknowledged by the broker), of all consumers together ``consumed``, ``consumed_bytes`` (of values), ``wrong``,
        ``doubled``, ``out_of_order`` and ``missing``, and ``produce_ms``, ``fetch_ms``.

    Raises:
        KafkaException: the broker refused a record.
    """
    started = time.monotonic()
    produced = _produce(options)
    progress({"event": "progress", "produced": produced, "consumed": 0})
    fetching = time.monotonic()
    everyone = _fetch(options, produced, progress)
    counts = [received.counts() for received in everyone]
    return {
        "produced": produced,
        **{name: sum(row[name] for row in counts) for name in counts[0]},
        "consumed_bytes": sum(received.count for received in everyone) * VALUE_BYTES,
        "produce_ms": int((fetching - started) * 1000),
        "fetch_ms": int((time.monotonic() - fetching) * 1000),
    }


def _produce(options: Options) -> int:
    """Produce all records; how many the broker acknowledged."""
    acknowledged = records.Acknowledged()
    batches = {"batch.num.messages": BATCH_RECORDS, "batch.size": _LARGEST_BATCH, "message.max.bytes": _LARGEST_BATCH, "linger.ms": _LINGER_MS}
    producer = Producer({**options.settings(), **batches, "enable.idempotence": True, "compression.type": "zstd"})
    for number in range(options.count):
        producer.produce(options.topic, key=records.KEY.pack(number), value=value_of(number), partition=0, on_delivery=acknowledged)
        producer.poll(0)
    producer.flush(_FLUSH_S)
    return acknowledged.count


def _fetch(options: Options, produced: int, progress: Callable[[dict[str, Any]], None]) -> list[records.Received]:
    """What each consumer received when all have everything, or the time is over."""
    consumers = [Consumer(_consumer_settings(options, number)) for number in range(options.consumers)]
    everyone = [records.Received(options.count, value_of) for _ in consumers]
    for consumer in consumers:
        consumer.assign([TopicPartition(options.topic, 0, OFFSET_BEGINNING)])
    reported = time.monotonic()
    deadline = reported + _GIVE_UP_S
    while any(received.missing for received in everyone) and time.monotonic() < deadline:
        for consumer, received in zip(consumers, everyone, strict=True):
            received.consume(consumer, 0.02)
        if time.monotonic() - reported > _PROGRESS_S:
            reported = time.monotonic()
            progress({"event": "progress", "produced": produced, "consumed": sum(received.count for received in everyone)})
    for consumer in consumers:
        consumer.close()
    return everyone


def _consumer_settings(options: Options, number: int) -> dict[str, Any]:
    """One batch in an answer, and one answer at a time: the next is asked for when the one before has been taken."""
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
