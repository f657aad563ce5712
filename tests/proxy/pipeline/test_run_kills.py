"""The driver of a job is killed wherever it may stand, and the tables equal what was sent."""

import collections
import contextlib
import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from framegate.proxy.pipeline.columns import TABLE_SCHEMAS
from framegate.proxy.tap import record
from tests.fakes import record_batches
from tests.fakes.jobs import WAIT_S, running, table, tell, until
from tests.fakes.outputs import Output
from tests.fakes.tap_files import stored
from tests.fakes.tap_log import START_NS, FakeProcessor, demo_body
from tests.proxy.pipeline.test_kafka_tables import PRODUCE, produced

pytestmark = [pytest.mark.extended, pytest.mark.spark, pytest.mark.slow]
# Where the driver stands when it is killed, and in which batch: the next new one, or the one that the kill before left to be replayed.
KILLS = (
    ("begun", "new"),
    ("written frames", "replayed"),
    ("written state", "replayed"),  # of requests without an answer; nothing is committed
    ("before requests", "replayed"),  # its files are there, and in no table
    ("committed requests", "replayed"),  # this table has the batch, and others lack it
    ("before frames", "new"),
    ("published", "replayed"),
)


class Traffic(threading.Thread):
    """Two processors that append while the driver comes and goes; remembers what it sent."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.sent: list[tuple[Any, ...]] = []
        self.lost = 0
        self._stopping = threading.Event()
        self._processors = [FakeProcessor(directory, slot=slot, segment_size=20_000) for slot in range(2)]

    def run(self) -> None:
        number = 0
        while not self._stopping.wait(0.05):
            self._round(number)
            number += 1
        for processor in self._processors:
            processor.close()

    def _round(self, number: int) -> None:
        for slot, processor in enumerate(self._processors):
            connection = slot * 10 + number % 3
            first = processor.sent.get((connection, "request"), 0)
            bodies = [demo_body(connection, first + index, os.urandom(200)) for index in range(3)]
            processor.send(bodies, connection=connection, at_ns=START_NS + number * 10**9)
            self.sent += [(connection, "request", first + index, body, None, None) for index, body in enumerate(bodies)]
            answer = processor.sent.get((connection, "response"), 0)
            processor.send(
                [b"%d" % number], connection=connection, direction="response", protocol="kafka", keys=[number % 4 << 16 | 1], latencies=[number]
            )
            self.sent.append((connection, "response", answer, b"%d" % number, number % 4, number))
            self._produce(processor, slot * 10 + 9, number)
            if number % 10 == 9:
                processor.point(connection, "request").lose(record.REASON_QUEUE_FULL, 2, 20, first + 3, START_NS)
                self.lost += 2
            processor.flush()

    def _produce(self, processor: FakeProcessor, connection: int, number: int) -> None:
        """A Produce, and the answer to that of the round before, which another batch may have."""
        ask = record_batches.produce(("orders", [record_batches.batch(record_batches.record())]), correlation=number, partition=0)[4:]
        at_ns = START_NS + number * 10**9
        processor.send([ask], connection=connection, protocol="kafka", at_ns=at_ns)
        self.sent.append((connection, "request", number, ask, 0, None))
        if number:
            answer = produced(number - 1, "orders", number)
            facts: dict[str, Any] = {"keys": [PRODUCE], "latencies": [number], "correlations": [number - 1], "at_ns": at_ns}
            processor.send([answer], connection=connection, direction="response", protocol="kafka", **facts)
            self.sent.append((connection, "response", number - 1, answer, 0, number))

    def stop(self) -> None:
        self._stopping.set()
        self.join()


def highest(checkpoint: Path, kind: str) -> int:
    """The last batch that Spark logged as planned (offsets) or done (commits)."""
    numbers = [int(file.name) for file in (checkpoint / kind).glob("*") if file.name.isdigit()]
    return max(numbers, default=-1)


@pytest.mark.timeout(600)
def test_tables_equal_the_model_after_kills_between_offsets_and_commit(tmp_path: Path, output: Output) -> None:
    log, marker = tmp_path / "log", tmp_path / "marker"
    checkpoint = output / "_checkpoint" if isinstance(output, Path) else tmp_path / "checkpoint"
    told = {"source": str(log), "output": str(output), "checkpoint": str(checkpoint)}
    log.mkdir()
    traffic = Traffic(log)
    traffic.start()
    try:
        with contextlib.ExitStack() as jobs:
            job = jobs.enter_context(running())
            for number, (place, kind) in enumerate(KILLS, 1):
                begin = max(1, highest(checkpoint, "offsets") + (kind == "new"))
                pause = {"pause_from": begin, "pause_at": place, "marker": str(marker)}
                tell(job, **told, max_bytes_per_trigger=100_000, **pause)
                following = jobs.enter_context(running()) if number < len(KILLS) else None
                batch = int(until(lambda: marker.exists() and marker.read_text(), place, job))
                assert highest(checkpoint, "offsets") == batch > highest(checkpoint, "commits") == batch - 1 >= 0
                os.killpg(job.pid, signal.SIGKILL)
                assert job.wait(WAIT_S) == -signal.SIGKILL
                marker.unlink()
                job = following or job
    finally:
        traffic.stop()
    with running(**told, available_now=True) as job:
        events, errors = job.communicate(timeout=WAIT_S)
        assert job.returncode == 0, errors[-3000:]
    assert json.loads(events.splitlines()[-1])["total"] == {name: len(table(output, name)) for name in TABLE_SCHEMAS}
    check_against_model(output, traffic, log)


def check_against_model(output: Output, traffic: Traffic, log: Path) -> None:
    frames = table(output, "frames")
    names = ("connection_id", "direction", "sequence", "payload", "api_key", "latency_us")
    assert collections.Counter(tuple(row[name] for name in names) for row in frames) == collections.Counter(traffic.sent)
    keys = {(row["stream"], row["offset"], row["chunk_index"], row["frame_index"]) for row in frames}
    assert len(keys) == len(frames) == sum(stored(log).values())
    answers = [sent for sent in traffic.sent if sent[1] == "response"]
    assert sorted((row["connection_id"], row["sequence"], row["latency_us"]) for row in table(output, "requests")) == sorted(
        (sent[0], sent[2], sent[5]) for sent in answers
    )
    partitions = table(output, "kafka_partitions")
    told = [(row["connection_id"], row["correlation_id"], row["base_offset"], row["client_id"], row["records"]) for row in partitions if row["topic"]]
    produces = [sent for sent in traffic.sent if sent[1] == "request" and sent[4] == 0]
    last = max(sent[2] for sent in produces)
    assert sorted(told) == sorted((sent[0], sent[2], sent[2] + 1, "c", 1) for sent in produces if sent[2] < last), "each once, whatever batch has it"
    parts = table(output, "traffic_by_minute")
    assert sum(row["frames"] for row in parts) == len(traffic.sent)
    assert sum(row["bytes"] for row in parts) == sum(len(sent[3]) + 4 for sent in traffic.sent)
    assert sum(row["lost_frames"] for row in parts) == sum(row["lost_frames"] for row in table(output, "gaps")) == traffic.lost
