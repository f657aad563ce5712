"""A Kafka client in a pod, which says in one line of JSON at its end what became of its records.

``client.py produce``: idempotent, ``acks=all``; record n of a run goes to partition n mod 3 and holds the run, n and padding. It ends after --count records,
or at SIGTERM, and then delivers what it has. ``client.py consume``: reads a topic from its beginning until --count records came, or to its end.
"""

import argparse
import collections
import json
import signal
import sys
import time

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

PARTITIONS = 3


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=["produce", "consume"])
    parser.add_argument("--servers", required=True)
    parser.add_argument("--ca", help="TLS, with this authority")
    parser.add_argument("--topic", default="records")
    parser.add_argument("--run", default="run")
    parser.add_argument("--count", type=int, default=0, help="0: until SIGTERM, or the topic's end")
    parser.add_argument("--rate", type=float, default=0.0, help="records a second; 0: as fast as can be")
    parser.add_argument("--size", type=int, default=100, help="bytes of a record")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds")
    return parser.parse_args()


def settings(asked: argparse.Namespace) -> dict[str, object]:
    base: dict[str, object] = {"bootstrap.servers": asked.servers, "log.connection.close": False, "error_cb": lambda error: note(str(error.name()))}
    if asked.ca:
        base |= {"security.protocol": "ssl", "ssl.ca.location": asked.ca}
    return base


NOTED: collections.Counter[str] = collections.Counter()


def note(name: str) -> None:
    """Errors that the library reports and hides by trying again."""
    NOTED[name] += 1


def produce(asked: argparse.Namespace) -> dict[str, object]:
    ended = False
    failed: collections.Counter[str] = collections.Counter()
    acknowledged = 0

    def end(*_: object) -> None:
        nonlocal ended
        ended = True

    def delivered(error: KafkaError | None, _message: object) -> None:
        nonlocal acknowledged
        if error is None:
            acknowledged += 1
        else:
            failed[error.name()] += 1

    signal.signal(signal.SIGTERM, end)
    admin = AdminClient(settings(asked))
    for future in admin.create_topics([NewTopic(asked.topic, PARTITIONS, 1)], operation_timeout=30.0).values():
        try:
            future.result()
        except Exception as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
    producer = Producer(
        {**settings(asked), "acks": "all", "enable.idempotence": True, "linger.ms": 5, "delivery.timeout.ms": int(asked.timeout * 1000)}
    )
    padding = "." * asked.size
    sent, started = 0, time.monotonic()
    print("producing", file=sys.stderr, flush=True)
    while not ended and (not asked.count or sent < asked.count):
        try:
            value = f"{asked.run} {sent} {padding}"[: asked.size]
            producer.produce(asked.topic, value, partition=sent % PARTITIONS, on_delivery=delivered)
            sent += 1
        except BufferError:
            producer.poll(0.05)
        producer.poll(0.0)
        if asked.rate:
            ahead = started + sent / asked.rate - time.monotonic()
            if ahead > 0:
                producer.poll(ahead)
    left = producer.flush(asked.timeout)
    return {"run": asked.run, "sent": sent, "acknowledged": acknowledged, "failed": dict(failed), "left": left, "noted": dict(NOTED)}


def consume(asked: argparse.Namespace) -> dict[str, object]:
    consumer = Consumer({**settings(asked), "group.id": f"reader-{asked.run}", "enable.auto.commit": False, "auto.offset.reset": "earliest"})
    parts = [TopicPartition(asked.topic, number) for number in range(PARTITIONS)]
    ends = {part.partition: consumer.get_watermark_offsets(part, timeout=asked.timeout)[1] for part in parts}
    for part in parts:
        part.offset = 0
    consumer.assign(parts)
    last: dict[tuple[str, int], int] = {}
    counts: collections.Counter[str] = collections.Counter()
    doubled, disordered, holes, seen = 0, 0, 0, 0
    left = {number: end for number, end in ends.items() if end}
    deadline = time.monotonic() + asked.timeout
    while (seen < asked.count if asked.count else left) and time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is None or message.error():
            continue
        run, number = message.value().decode().split()[:2]
        partition, seen = message.partition(), seen + 1
        before = last.get((run, partition), partition - PARTITIONS)
        doubled += int(number) == before
        disordered += int(number) < before
        holes += int(number) > before + PARTITIONS
        last[run, partition] = int(number)
        counts[run] += 1
        if message.offset() + 1 >= left.get(partition, 0):
            left.pop(partition, None)
    consumer.close()
    return {"seen": seen, "runs": dict(counts), "doubled": doubled, "disordered": disordered, "holes": holes, "noted": dict(NOTED)}


def main() -> int:
    asked = options()
    said = produce(asked) if asked.verb == "produce" else consume(asked)
    print(json.dumps(said), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
