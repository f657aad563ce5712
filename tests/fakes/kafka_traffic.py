"""Producers and a consumer of a real Kafka broker, behind a proxy that is killed again and again, and what reaches the broker meanwhile."""

import collections
import contextlib
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from framegate.proxy.kafka.contents import FETCH, PRODUCE
from tests.demo import broker, kafka
from tests.fakes.judge import KAFKA
from tests.fakes.ports import free_port
from tests.fakes.upstream import ScriptedUpstream

TOPIC: Final = "kills"
PARTITIONS: Final = 3
SLACK_S: Final = 3.0  # at most between the proxy's read of a request and that of the broker's side
HEADER: Final = struct.Struct(">hhih")
Row = dict[str, Any]
Request = tuple[int, int, str]  # API key, correlation id, client id
TERMS: Final = {
    "metadata.recovery.strategy": "none",  # else it forgets what it counted when no broker answers
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 500,
    "statistics.interval.ms": 200,
    "enable.ssl.certificate.verification": False,
    "security.protocol": "ssl",
    "log_level": 0,
}


class KafkaTraffic:
    """Runs from its making to ``close``. ``folder``: of the broker."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()  # which the proxy must have, because the broker advertises it
        self.came: list[tuple[float, Request]] = []  # requests that reached the broker's side whole, and when
        self.consumed = 0
        self._sent: dict[str, int] = {}  # requests by client, as it says itself
        self._broker = broker.Broker(folder)
        self._broker.start({"PLAIN": self.port})
        kafka.create_topics(AdminClient({"bootstrap.servers": self._broker.internal_address}), [NewTopic(TOPIC, PARTITIONS, 1)])
        self._relay = ScriptedUpstream(self._pass_requests)
        self.address = self._relay.address  # which stands for the broker's
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    # --- the broker's side -------------------------------------------------------------------------------------------------------

    def _pass_requests(self, sock: socket.socket) -> None:
        with socket.create_connection(self._broker.client_addresses["PLAIN"]) as other:
            answers = threading.Thread(target=_pass, args=(other, sock), daemon=True)
            answers.start()
            waiting = bytearray()
            with contextlib.suppress(OSError):
                while data := sock.recv(1 << 16):
                    waiting += data
                    while len(waiting) >= 4 and len(waiting) >= 4 + (size := int.from_bytes(waiting[:4], "big")):
                        key, _, number, length = HEADER.unpack_from(waiting, 4)
                        start = 4 + HEADER.size
                        self.came.append((time.time(), (key, number, waiting[start : start + length].decode())))
                        del waiting[: 4 + size]
                    other.sendall(data)
            with contextlib.suppress(OSError):
                other.shutdown(socket.SHUT_RDWR)
            answers.join()

    # --- the clients -------------------------------------------------------------------------------------------------------------

    def _settings(self, name: str, **more: Any) -> dict[str, Any]:
        def said(text: str) -> None:
            self._sent[name] = sum(each["tx"] for each in json.loads(text)["brokers"].values())

        return {"bootstrap.servers": f"127.0.0.1:{self.port}", "client.id": name, "stats_cb": said, **TERMS, **more}

    def _work(self) -> None:
        """Each record is a request, so that requests tell how many records there are."""
        alone = {"batch.num.messages": 1, "linger.ms": 0, "sticky.partitioning.linger.ms": 0}
        producers = [Producer(self._settings(f"acks-{acks}", acks=acks, **alone)) for acks in ("0", "1", "all")]
        group = {"group.id": "readers", "auto.offset.reset": "earliest", "auto.commit.interval.ms": 500, "session.timeout.ms": 6000}
        consumer = Consumer(self._settings("reader", **group))
        consumer.subscribe([TOPIC])
        while not self._stop.is_set():
            for producer in producers:
                if len(producer) < 20:
                    producer.produce(TOPIC, os.urandom(50))
                producer.poll(0)
            self.consumed += sum(message.error() is None for message in consumer.consume(100, 0.02))
        end_s = time.monotonic() + 1  # there is no proxy any more, and the clients say what they have sent
        while time.monotonic() < end_s:
            for client in (*producers, consumer):
                client.poll(0.05)
        for producer in producers:
            producer.purge()

    # --- the end -----------------------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """The clients end; the proxy has ended."""
        self._stop.set()
        self._thread.join(60)

    def close(self) -> None:
        self.stop()
        self._relay.close()
        self._broker.stop()

    def judge(self, tables: Callable[..., list[Row]]) -> str:
        """Hold the tables against what the clients sent and the broker has. ``tables``: the rows of a table. Returns what was found, in numbers."""
        rows = {(row["connection_id"], row["correlation_id"]): row for row in tables("requests") if row["listener"] == KAFKA}
        assert len(rows) == sum(row["listener"] == KAFKA for row in tables("requests", "listener")), "a request that is there twice"
        frames = tables("frames", "listener", "direction", "connection_id", "correlation_id")
        asked = [(row["connection_id"], row["correlation_id"]) for row in frames if (row["listener"], row["direction"]) == (KAFKA, "request")]
        assert set(asked) <= rows.keys(), "a request without a row"
        requests = [rows[place] for place in asked]
        gaps = [row for row in tables("gaps") if row["listener"] in (KAFKA, None) and row["direction"] in ("request", None)]
        lost = collections.Counter({"unknown": sum(row["certainty"] == "unknown" for row in gaps)})
        for row in gaps:
            lost[row["certainty"]] += row["lost_frames"] or 0
        missing = self._missing(requests)
        for at_s, request in missing:
            assert any(_covers(row, at_s) for row in gaps), f"{request} passed at {at_s}, and no gap says so"
        assert len(missing) <= lost["exact"] + lost["at_most"] or lost["unknown"], "requests are missing, and gaps say fewer"
        sent = sum(self._sent.values())
        exact = sum(row["lost_frames"] for row in gaps if (row["listener"], row["certainty"]) == (KAFKA, "exact"))
        unsaid = len({connection for connection, _ in asked})  # the last one of a connection that ended may have left, and is not counted as sent
        assert len(requests) + exact <= sent + unsaid, "more than was sent"
        holes = self._holes([row for row in tables("kafka_partitions") if row["listener"] == KAFKA], len(missing))
        outcomes = dict(collections.Counter(row["outcome"] for row in rows.values()))
        faults = dict(collections.Counter(row["fault"] for row in rows.values() if row["fault"] is not None))
        return (
            f"Kafka: {sent} requests sent, {len(self.came)} reached the broker, {len(requests)} have rows, {len(missing)} of the former have none; "
            f"answers whose requests have none: {len(rows) - len(requests)}; gaps: {dict(lost)}; outcomes: {outcomes}; faults: {faults}; "
            f"records: {self._ends()}, {self.consumed} consumed, {holes} without an offset in the tables"
        )

    def _missing(self, requests: list[Row]) -> list[tuple[float, Request]]:
        """What reached the broker and is no row: a row has the name of the request, and a time shortly before."""
        waiting = collections.defaultdict[Request, list[float]](list)
        for row in requests:
            waiting[row["api_key"], row["correlation_id"], row["client_id"]].append((row["request_time"] or row["capture_time"]).timestamp())
        missing = []
        for at_s, request in sorted(self.came):
            near = [each for each in sorted(waiting[request]) if at_s - SLACK_S <= each <= at_s + 0.1]
            if near:
                waiting[request].remove(near[0])
            else:
                missing.append((at_s, request))
        return missing

    def _holes(self, partitions: list[Row], unplaced: int) -> int:
        """How many records of the broker have no offset in the rows; each is that of a request without an answer in the log, or of one of those
        requests that are missing.
        """
        ends = self._ends()
        placed: dict[int, set[int]] = {number: set() for number in ends}
        for row in partitions:
            if row["api_key"] == PRODUCE and row["base_offset"] is None:
                unplaced += 1
            elif row["base_offset"] is not None and row["records"] is not None and not row["error_code"]:
                offsets = range(row["base_offset"], row["base_offset"] + row["records"])
                assert offsets.stop <= ends[row["partition"]], row
                if row["api_key"] == PRODUCE:
                    assert placed[row["partition"]].isdisjoint(offsets), "a record that is there twice"
                    placed[row["partition"]].update(offsets)
        holes = sum(ends.values()) - sum(map(len, placed.values()))
        assert holes <= unplaced, f"{holes} records are in no row, and {unplaced} requests may have them"
        assert any(row["api_key"] == FETCH and row["records"] for row in partitions), "the consumer had records"
        return holes

    def _ends(self) -> dict[int, int]:
        """The end of each partition, as the broker says it."""
        consumer = Consumer({"bootstrap.servers": self._broker.internal_address, "group.id": "ends"})
        try:
            return {number: consumer.get_watermark_offsets(TopicPartition(TOPIC, number), 10)[1] for number in range(PARTITIONS)}
        finally:
            consumer.close()


def _pass(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)


def _covers(gap: Row, at_s: float) -> bool:
    begin, end = (gap[name] or gap["capture_time"] for name in ("lost_from", "lost_until"))
    return bool(begin.timestamp() - SLACK_S <= at_s <= end.timestamp() + SLACK_S)
