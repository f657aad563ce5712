"""A Kafka client in a pod, which says in one line of JSON at its end what became of its records.

``client.py produce``: idempotent, ``acks=all``; record n of a run goes to partition n mod 3 and holds the run, n and padding. It ends after so many
records, or at SIGTERM, and then delivers what it has. ``client.py consume``: reads a topic from its beginning to its end, or so many records.
"""

import argparse
import collections
import json
import os
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
    parser.add_argument("--run", default=os.environ.get("POD_NAME", "run"))
    parser.add_argument("--count", type=int, default=0, help="0: until SIGTERM, or the topic's end")
    parser.add_argument("--rate", type=float, default=0.0, help="records a second; 0: as fast as can be")
    parser.add_argument("--size", type=int, default=100, help="bytes of a record")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds")
    parser.add_argument("--report", help="a folder that gets the line, too, in a file named after the run")
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


class Tally:
    """What became of a producer's records."""

    def __init__(self) -> None:
        self.ended = False
        self.acknowledged = 0
        self.failed: collections.Counter[str] = collections.Counter()

    def end(self, *_: object) -> None:
        self.ended = True

    def delivered(self, error: KafkaError | None, _message: object) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.failed[error.name()] += 1


def make_topic(asked: argparse.Namespace) -> None:
    admin = AdminClient(settings(asked))
    for future in admin.create_topics([NewTopic(asked.topic, PARTITIONS, 1)], operation_timeout=30.0).values():
        try:
            future.result()
        except Exception as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise


def produce(asked: argparse.Namespace) -> dict[str, object]:
    tally = Tally()
    signal.signal(signal.SIGTERM, tally.end)
    make_topic(asked)
    delivery = {"acks": "all", "enable.idempotence": True, "linger.ms": 5, "delivery.timeout.ms": int(asked.timeout * 1000)}
    producer = Producer({**settings(asked), **delivery})
    padding = "." * asked.size
    sent, started = 0, time.monotonic()
    print("producing", file=sys.stderr, flush=True)
    while not tally.ended and (not asked.count or sent < asked.count):
        value = f"{asked.run} {sent} {padding}"[: asked.size]
        try:
            producer.produce(asked.topic, value, partition=sent % PARTITIONS, on_delivery=tally.delivered)
            sent += 1
        except BufferError:
            producer.poll(0.05)
        ahead = started + sent / asked.rate - time.monotonic() if asked.rate else 0.0
        producer.poll(max(0.0, ahead))
    left = producer.flush(asked.timeout)
    said = {"sent": sent, "acknowledged": tally.acknowledged, "failed": dict(tally.failed), "left": left, "noted": dict(NOTED)}
    return {"run": asked.run, **said}


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
    if asked.report:
        with open(os.path.join(asked.report, f"{asked.run}.json"), "w") as file:
            json.dump(said, file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
