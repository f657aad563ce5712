"""A fleet's logs on an S3 server, read by the source, by the job, and by a cluster whose machines share no folder."""

import collections
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from framegate.control.cli.tap_fleet import verify_fleet
from framegate.proxy.pipeline.loss import DataLossError
from framegate.proxy.pipeline.run import start_query
from framegate.proxy.pipeline.schema import CHUNK_SCHEMA
from framegate.proxy.pipeline.settings import OptionError, PipelineSettings
from framegate.proxy.pipeline.source import FramegateDataSource
from framegate.proxy.pipeline.sql import open_tables
from framegate.proxy.pipeline.tables import TableWriter
from framegate.proxy.pipeline.views import register_views
from framegate.proxy.tap.store import StoreError, store_at
from tests.fakes.jobs import WAIT_S, environment, running, table
from tests.fakes.jobs import until as until_job
from tests.fakes.kept_tap import START
from tests.fakes.s3 import S3
from tests.fakes.shipped import MINUTE_NS, ShippedTap
from tests.fakes.spark_cluster import busy, cluster_job, standalone
from tests.fakes.tap_log import FakeProcessor, demo_body
from tests.proxy.pipeline.test_kafka_tables import PRODUCE, produce, produced

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow
NODES = ("a", "b", "c")
Sent = collections.Counter[tuple[str, bytes]]


class Fleet:
    """Three nodes with a processor each, that ship to an S3 server.

    Attributes:
        sent: node and body of each frame.
    """

    def __init__(self, folder: Path, s3: S3, **tap: int) -> None:
        self.taps = {name: ShippedTap(folder / name, name, s3.url) for name in NODES}
        self.processors: dict[str, FakeProcessor] = {}
        self.sent: Sent = collections.Counter()
        for name, made in self.taps.items():
            self.processors[name] = made.tap.begin(node=name, **({"segment_size": 4000} | tap))

    def send(self, minute: float, rounds: int = 1, size: int = 200) -> None:
        """Frames in a minute, in as many blocks of each node; then the nodes ship."""
        for name, processor in self.processors.items():
            for _ in range(rounds):
                first = processor.sent.get((1, "request"), 0)
                bodies = [demo_body(1, first + number, os.urandom(size)) for number in range(3)]
                processor.block(bodies, at_ns=START + int(minute * MINUTE_NS))
                self.sent.update((name, body) for body in bodies)
            self.taps[name].later(1)
            self.taps[name].look({processor.stream: (0, 0)})

    def ask(self, minute: float) -> None:
        """Two Kafka requests to each node, of the same connection and numbers, and an answer to the first. They are not shipped yet."""
        at_ns = START + int(minute * MINUTE_NS)
        for name, processor in self.processors.items():
            asked, told = [produce(1, name, 1), produce(2, name, 1)], [produced(1, name, 7)]
            processor.send(asked, protocol="kafka", connection=2, at_ns=at_ns)
            facts: dict[str, Any] = {"keys": [PRODUCE], "latencies": [9], "correlations": [1]}
            processor.send(told, protocol="kafka", connection=2, direction="response", at_ns=at_ns, **facts)
            processor.flush()
            self.sent.update((name, body) for body in (*asked, *told))

    def end(self) -> None:
        """``a`` ends in order; ``b`` dies, and may have lost three frames; ``c`` goes on, and was heard of its first two minutes."""
        for made in self.taps.values():
            made.later(1)
        self.taps["a"].tap.end(self.processors["a"])
        self.taps["b"].die(self.processors["b"], 3, "b")
        for name in "ab":
            self.taps[name].leave()
            self.taps[name].look()
        self.processors["c"].writer.thread.seal(False)
        self.taps["c"].look({self.processors["c"].stream: (START + 2 * MINUTE_NS, 0)})

    def close(self) -> None:
        self.taps["c"].leave()


@pytest.fixture
def fleet(tmp_path: Path, s3: S3) -> Iterator[Fleet]:
    made = Fleet(tmp_path, s3)
    yield made
    made.close()


def batch(url: str, **options: str) -> list[dict[str, Any]]:
    """The rows of the batch source, as its tasks give them."""
    reader = FramegateDataSource({"path": url, **options}).reader(CHUNK_SCHEMA)
    return [row for partition in reader.partitions() for found in reader.read(partition) for row in found.to_pylist()]


def bodies(rows: list[dict[str, Any]]) -> Sent:
    found: Sent = collections.Counter()
    for row in rows:
        edges = [*row["starts"], len(row["data"])]
        found.update((row["node"], row["data"][begin + 4 : end]) for begin, end in itertools.pairwise(edges))
    return found


def test_rows_come_by_ranges_and_faults_of_the_store_are_errors_or_gaps_and_never_less_rows(fleet: Fleet, s3: S3) -> None:
    fleet.send(0, rounds=6)
    fleet.send(1, rounds=6)
    fleet.end()
    with pytest.raises(OptionError, match=r"production/nobody has no nodes"):
        batch(f"{s3.url}/nobody")
    with pytest.raises(OptionError, match=r"production has no such node"):
        batch(s3.url, node="nobody")
    assert {name for name, _ in bodies(batch(f"{s3.url}/b"))} == {"b"}
    s3.requests.clear()
    assert bodies(batch(s3.url)) == fleet.sent
    gets = [path for method, path in s3.requests if method == "GET" and path.endswith(".seg")]
    assert len(gets) == len(set(gets)), "one request for a segment"
    assert {name for name, _ in bodies(batch(s3.url, node="b"))} == {"b"}
    assert {row["direction"] for row in batch(s3.url, direction="request") if row["kind"] == "frames"} == {"request"}
    late = batch(s3.url, since="2023-11-14T22:14:00Z", until="2023-11-14T22:14:30Z")
    assert bodies(late) == bodies([row for row in batch(s3.url) if row["kind"] == "frames" and row["capture_time"].minute == 14])

    slow = {"asked": 0}

    def wait(method: str, path: str) -> None:
        slow["asked"] += 1
        time.sleep(0.02)

    s3.fault = wait
    assert bodies(batch(s3.url)) == fleet.sent
    for kind in (".seg", "_ledger.jsonl", "/taps"):
        s3.fault = lambda method, path, kind=kind: 503 if method == "GET" and path.endswith(kind) else None
        for strict in ("true", "false"):
            with pytest.raises(StoreError, match="503"):
                batch(s3.url, failOnDataLoss=strict)
    s3.fault = lambda method, path: None
    victim = sorted(gets)[1]
    whole, other = (store_at(s3.url).read(path.partition("/production/")[2])[0] for path in sorted(gets)[1:3])
    for content in (None, whole[:-64], other):
        s3.put(victim, content)
        with pytest.raises(DataLossError):
            batch(s3.url)
        rows = batch(s3.url, failOnDataLoss="false")
        found = bodies(rows)
        assert found < fleet.sent
        assert {row["node"] for row in rows if row["certainty"] == "unknown" and row["reason"] in ("vanished", "damaged")} == {"a"}
        s3.put(victim, whole)
    assert bodies(batch(s3.url)) == fleet.sent


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.timeout(400)
def test_a_job_over_three_nodes_that_is_killed_twice_has_each_frame_once_and_judges_minutes_as_verify_does(
    spark: "SparkSession", fleet: Fleet, s3: S3, tmp_path: Path
) -> None:
    output, marker = tmp_path / "out", tmp_path / "marker"
    fleet.send(0, rounds=9)
    for minute, place in ((1, "committed requests"), (2, "before frames")):
        pause = {"pause_from": minute, "pause_at": place if minute == 2 else "written frames", "marker": str(marker)}
        with running(source=s3.url, output=str(output), max_bytes_per_trigger=6000, **pause) as job:
            until_job(marker.exists, place, job)
            os.killpg(job.pid, signal.SIGKILL)
            job.wait(WAIT_S)
        marker.unlink()
        fleet.send(minute, rounds=4)
    fleet.ask(2)
    fleet.end()
    with running(source=s3.url, output=str(output), available_now=True) as job:
        _, errors = job.communicate(timeout=WAIT_S)
        assert job.returncode == 0, errors[-3000:]
    assert collections.Counter((row["node"], row["payload"]) for row in table(output, "frames", "node", "payload")) == fleet.sent
    requests = table(output, "requests", "node", "correlation_id", "outcome")
    assert sorted((row["node"], row["correlation_id"], row["outcome"]) for row in requests) == [
        *(("a", 1, "answered"), ("a", 2, "unanswered")),
        *(("b", 1, "answered"), ("b", 2, "unanswered")),
        ("c", 1, "answered"),
    ], "the ledgers say that the streams of a and b have ended"
    assert sorted((row["node"], row["topic"]) for row in table(output, "kafka_partitions", "node", "topic")) == [(n, n) for n in "aabbc"]
    register_views(spark, output)
    minutes = "SELECT minute, state, seen, lost, at_most, waiting FROM minutes ORDER BY minute"
    nodes = "SELECT node, complete_until IS NULL AS ended FROM nodes ORDER BY node"
    expected = [(one.window_ns // MINUTE_NS % 60, one.state, one.seen, one.lost, one.at_most) for one in verify_fleet(s3.url).minutes]
    for ask in (lambda query: spark.sql(query).toArrow(), open_tables(output)):
        judged = [(row.pop("minute").minute, *row.values()) for row in ask(minutes).to_pylist()]
        assert [row[:-1] for row in judged] == expected
        assert {state: waiting for _, state, *_, waiting in judged if state != "lost"} == {"complete": [], "open": ["c"]}
        assert "lost" in {state for _, state, *_ in judged}
        assert [tuple(row.values()) for row in ask(nodes).to_pylist()] == [("a", True), ("b", True), ("c", False)]
    with pytest.raises(Exception, match="of a log in an object store, not of a directory"), contextlib.closing(TableWriter(output)) as writer:
        start_query(spark, PipelineSettings(source=fleet.taps["a"].folder, output=output, available_now=True), writer).awaitTermination(WAIT_S)


FRAMES = """
import json, sys
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from framegate.proxy.pipeline.pyspark_framegate import register
settings = {"spark.ui.enabled": "false", "spark.sql.python.filterPushdown.enabled": "true"}
spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
register(spark)
for line in sys.stdin:
    options, where = json.loads(line)
    try:
        rows = spark.read.format("framegate").options(rows="frames", **options).load().where(where)
        print(json.dumps([[row.node, row.payload.hex()] for row in rows.select("node", "payload").collect()]), flush=True)
    except PySparkException as error:
        print(json.dumps(str(error)), flush=True)
"""


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.timeout(200)
def test_spark_gets_the_frames_of_a_fleet_reads_no_segment_that_a_filter_leaves_out_and_names_what_is_gone(fleet: Fleet, s3: S3) -> None:
    fleet.send(0, rounds=6)
    fleet.send(1, rounds=6)
    fleet.end()
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", FRAMES], env=environment(), stdin=pipe, stdout=pipe, text=True) as spark:
        to, answers = spark.stdin, spark.stdout
        assert to is not None
        assert answers is not None

        def ask(where: str = "true", **options: str) -> Any:
            s3.requests.clear()
            print(json.dumps([{"path": s3.url, **options}, where]), file=to, flush=True)
            return json.loads(answers.readline())

        def frames(where: str = "true", **options: str) -> Sent:
            return collections.Counter((node, bytes.fromhex(body)) for node, body in ask(where, **options))

        def read() -> set[str]:
            return {path for method, path in s3.requests if method == "GET" and path.endswith(".seg")}

        def of(*nodes: str) -> Sent:
            return collections.Counter({key: count for key, count in fleet.sent.items() if key[0] in nodes})

        assert frames() == fleet.sent
        of_b = {path for path in read() if "/b/" in path}
        assert (frames("node = 'b'"), read()) == (of("b"), of_b)
        late = frames("capture_time >= timestamp '2023-11-14 22:14:00+00' and node = 'b'")
        assert late < of("b")
        assert late.total() == of("b").total() / 2
        assert (ask("capture_time >= timestamp '2100-01-01 00:00:00+00'"), read()) == ([], set()), "all segments are older"
        s3.put(min(of_b), None)
        assert "b.0.b0" in ask(), "an error names the stream"
        left = frames(failOnDataLoss="false")
        assert left < fleet.sent
        assert {node for node, _ in fleet.sent - left} == {"b"}
        assert frames("node in ('a', 'c')") == of("a", "c"), "what is left out is not missed"
        to.close()
        assert spark.wait(WAIT_S) == 0


# --- a cluster -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_cluster_without_a_common_folder_writes_tables_of_a_fleet_though_an_executor_is_killed(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, s3: S3
) -> None:
    import zlib

    fleet = Fleet(tmp_path, s3, segment_size=1 << 20)
    fleet.send(0, rounds=30, size=90_000)
    output = s3.url.replace("production", "tables")
    fleet.end()
    folder = tmp_path_factory.mktemp("cluster")
    with standalone(folder, tmp_path) as (master, workers):
        begun: list[str] = []

        def slow(method: str, path: str) -> None:
            if method == "GET" and path.endswith(".seg"):
                begun.append(path)
                time.sleep(0.3)

        s3.fault = slow
        with cluster_job(master, s3.url, output, tmp_path / "state", counted=True, availableNow=True) as job:
            until_job(lambda: len(begun) >= 6 and busy(workers), "task", job)
            os.kill(busy(workers)[0], signal.SIGKILL)
            said, errors = job.communicate(timeout=200)
        assert job.returncode == 0, errors[-3000:]
    fleet.close()
    rows = {(node, crc): count for node, crc, count in json.loads(said.splitlines()[-1])}
    assert rows == {(node, zlib.crc32(body)): count for (node, body), count in fleet.sent.items()}
    assert len(begun) > len(set(begun)), "a segment was read twice, and its rows counted once"
    assert sum(row["size"] for row in table(output, "frames", "size")) == sum(len(body) * count for (_, body), count in fleet.sent.items())
