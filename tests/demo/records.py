"""Kafka's clients of the demo: a process that produces numbered records and consumes them, over TLS, and checks each.

``python tests/demo records '{"bootstrap": "localhost:…", "ca": …, "topic": …, "count": …}'`` writes JSON lines: ``progress`` while it
works and ``final`` at the end. A record's key is its number in 8 bytes, its value the number, a CRC32 of the filler, and the filler.
"""

import dataclasses
import struct
import time
import zlib
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer

__all__ = ["KEY", "Acknowledged", "Options", "Received", "exchange", "value_of"]

KEY: Final = struct.Struct(">q")
_VALUE: Final = struct.Struct(">qI")
_FILLER: Final = 100
_GIVE_UP_S: Final = 120.0
_PROGRESS_S: Final = 0.5
_BATCH: Final = 2000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """``client``: settings that producer and consumer share, beside the address and the authority."""

    bootstrap: str
    topic: str
    count: int
    ca: str | None = None
    client: dict[str, Any] = dataclasses.field(default_factory=dict)

    def settings(self) -> dict[str, Any]:
        """For a client of librdkafka."""
        tls = {} if self.ca is None else {"security.protocol": "ssl", "ssl.ca.location": self.ca}
        return {"bootstrap.servers": self.bootstrap, **tls, **self.client}


def value_of(number: int) -> bytes:
    """The value of a record."""
    filler = (b"%010d." % number) * (_FILLER // 11)
    return _VALUE.pack(number, zlib.crc32(filler)) + filler


class Acknowledged:
    """Counts the records that the broker took; a refusal is raised as ``KafkaException`` from the producer's call."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            raise KafkaException(error)
        self.count += 1


class Received:
    """What was consumed: which numbers, and what was not as sent.

    Args:
        count: numbers 0 to count - 1 are expected, each once.
        expected: the value of a record, by its number.
    """

    def __init__(self, count: int, expected: Callable[[int], bytes] = value_of) -> None:
        self._expected = expected
        self._seen = bytearray(count)
        self._last: dict[int, int] = {}
        self.count = 0
        self.wrong = 0
        self.doubled = 0
        self.out_of_order = 0

    @property
    def missing(self) -> int:
        return self._seen.count(0)

    def consume(self, consumer: Consumer, timeout_s: float) -> None:
        """Check what a consumer has."""
        for message in consumer.consume(_BATCH, timeout_s):
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


def exchange(options: Options, progress: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Produce all records while consuming them.

    Returns:
        Facts: ``produced`` (acknowledged by the broker), ``consumed``, ``wrong``, ``doubled``, ``out_of_order``, ``missing``, ``elapsed_ms``.
    """
    acknowledged = Acknowledged()
    producer = Producer({**options.settings(), "enable.idempotence": True, "linger.ms": 5, "queue.buffering.max.messages": 2 * options.count})
    consumer = Consumer({**options.settings(), "group.id": "framegate-demo", "auto.offset.reset": "earliest"})
    consumer.subscribe([options.topic])
    received = Received(options.count)
    started = time.monotonic()
    deadline, reported, produced = started + _GIVE_UP_S, started, 0
    while received.missing and time.monotonic() < deadline:
        for number in range(produced, min(produced + _BATCH, options.count)):
            producer.produce(options.topic, key=KEY.pack(number), value=value_of(number), on_delivery=acknowledged)
        produced = min(produced + _BATCH, options.count)
        producer.poll(0)
        received.consume(consumer, 0.01 if produced < options.count else 0.2)
        if time.monotonic() - reported > _PROGRESS_S:
            reported = time.monotonic()
            progress({"event": "progress", "produced": acknowledged.count, "consumed": received.count})
    producer.flush(10.0)
    consumer.close()
    return {"produced": acknowledged.count, **received.counts(), "elapsed_ms": int((time.monotonic() - started) * 1000)}
