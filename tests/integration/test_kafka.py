"""A real Kafka broker behind the proxy: real clients over TLS, counts as the broker's own, and no password in anything the proxy leaves behind."""

import collections
import dataclasses
import json
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

from framegate.control.demo.processes import find_java
from framegate.control.demo.stage import Serving, Stage, Workspace
from framegate.control.demo.steering import Metrics, Steering
from framegate.control.v1 import channel_service_pb2 as pb2
from framegate.control.v1.channel_service_pb2_grpc import ChannelServiceStub
from framegate.proxy.pipeline.run import start_query
from framegate.proxy.pipeline.settings import PipelineSettings
from framegate.proxy.pipeline.tables import TableWriter
from framegate.proxy.pipeline.views import ask
from tests.demo import broker, kafka, records, small_pool
from tests.fakes.framegate import run_cli
from tests.fakes.real_kafka import REAL_KAFKA
from tests.fakes.tap_read import Frame, read_frames
from tests.fakes.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CANARY = "canary-7f3a9c-do-not-log-me"
USER = "alice"
COUNT = 3000
SASL_KEYS = (17, 36)

pytestmark = REAL_KAFKA


@dataclasses.dataclass(frozen=True, slots=True)
class Behind:
    """A broker, and a proxy in front of each of its two client listeners."""

    broker: broker.Broker
    plain: Stage
    plain_serving: Serving
    sasl: Stage
    sasl_serving: Serving


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Behind]:
    root = tmp_path_factory.mktemp("kafka")
    with broker.Broker(root / "broker", {USER: CANARY}) as real, Stage(Workspace(root / "plain")) as plain, Stage(Workspace(root / "sasl")) as sasl:
        serving = {
            name: stage.start_proxy(f"127.0.0.1:{real.ports[name]}", protocol="kafka", max_receive_size="16MiB")
            for name, stage in (("PLAIN", plain), ("SASL", sasl))
        }
        real.start({name: at.port for name, at in serving.items()})
        kafka.prepare_topics(real.internal_address, {"demo": 2, "canary": 1})
        yield Behind(real, plain, serving["PLAIN"], sasl, serving["SASL"])


def settled(real: broker.Broker) -> dict[tuple[str, int], int]:
    """The broker's counts once two looks are equal, its talk to itself left out."""
    last: dict[tuple[str, int], int] = {}
    while True:
        counts = {key: value for key, value in real.request_counts().items() if key[0] not in kafka.INTERNAL}
        if counts == last:
            return counts
        last = counts
        time.sleep(0.7)


def tapped(stage: Stage, at_least: int) -> list[Frame]:
    """The frames in the tap's log, once there are so many."""
    found: list[Frame] = until(lambda: len(frames := list(read_frames(str(stage.workspace.tap)))) >= at_least and frames, "too few frames")
    return found


def request_key(frame: Frame) -> tuple[int, int]:
    key, version = struct.unpack(">hh", frame.body[:4])
    return int(key), int(version)


def test_clients_get_what_they_sent_and_the_tap_counts_what_the_broker_counts(behind: Behind) -> None:
    before = settled(behind.broker)
    options = records.Options(bootstrap=f"127.0.0.1:{behind.plain_serving.port}", topic="demo", count=COUNT, ca=str(behind.plain.certificates.ca))
    facts = records.exchange(options, lambda row: None)
    after = settled(behind.broker)
    assert {name: facts[name] for name in ("produced", "consumed", "wrong", "missing", "doubled", "out_of_order")} == {
        "produced": COUNT,
        "consumed": COUNT,
        "wrong": 0,
        "missing": 0,
        "doubled": 0,
        "out_of_order": 0,
    }
    grown = {key: value - before.get(key, 0) for key, value in after.items() if value != before.get(key, 0)}
    frames = tapped(behind.plain, sum(grown.values()))
    requests = collections.Counter(request_key(frame) for frame in frames if frame.direction == "request")
    # API names of the broker's metrics, versions as sent: the counts must be the same multiset by version, and the well-known APIs by name
    assert sorted(requests.values()) == sorted(grown.values())
    assert (requests[0, 10], requests[1, 16]) == (grown["Produce", 10], grown["Fetch", 16])
    answers = [frame for frame in frames if frame.direction == "response"]
    paired = collections.Counter((frame.request_key >> 16, frame.request_key & 0xFFFF) for frame in answers if frame.request_key is not None)
    assert sum(paired.values()) == len(answers)
    assert not paired - requests
    assert sum((requests - paired).values()) <= 2, "only what was in flight when a client left has no answer"
    assert all(frame.latency_us is not None and frame.latency_us >= 0 for frame in answers)
    assert Metrics.scrape(behind.plain_serving.prometheus).sum("framegate_kafka_pairing_lost_total") == 0


@pytest.fixture(scope="module")
def fetched(behind: Behind) -> small_pool.Fetched:
    """Consumers have fetched batches of 50 MiB through a pool of 16 MiB, and the tap has written what it matched."""
    serving = behind.plain_serving
    found = small_pool.perform(behind.plain, serving.admin, f"127.0.0.1:{serving.port}", lambda row: None)

    def is_written() -> bool:
        metrics = Metrics.scrape(serving.prometheus)
        return metrics.sum("framegate_tap_matched_total") == metrics.sum("framegate_tap_flushed_total")

    until(is_written, "the tap writes what it matched", 30)
    return found


@pytest.mark.extended
def test_batches_of_50_mib_pass_a_pool_of_16_mib_and_memory_keeps_its_bound(behind: Behind, fetched: small_pool.Fetched) -> None:
    assert [text for text, good in small_pool.checks(fetched) if not good] == []
    assert fetched.peak.samples > 0
    with Steering(behind.plain_serving.admin, "demo") as steering:
        assert (steering.limit(), steering.pool().size_bytes) == (16 << 20, 64 << 20)


def test_an_answer_larger_than_the_pool_is_one_frame_in_the_counters_and_whole_in_the_tap(behind: Behind, fetched: small_pool.Fetched) -> None:
    sizes = []
    for frame in read_frames(str(behind.plain.workspace.tap)):
        if frame.size > small_pool.POOL_BYTES:
            assert (frame.direction, frame.request_key) == ("response", 1 << 16 | 16), "an answer to a Fetch of version 16"
            assert len(frame.body) == frame.size
            assert_holds_a_batch(frame.body)
            sizes.append(frame.size)
    rows = {"frames": len(sizes), "good": sum(size > records.BATCH_BYTES for size in sizes), "largest": max(sizes, default=0)}
    text, good = small_pool.answer_check(Metrics.scrape(behind.plain_serving.prometheus), {"large": [rows]})
    assert good, text


def assert_holds_a_batch(body: bytes) -> None:
    """The values of one batch stand in an answer, each behind the one before."""
    first = 0 if records.large_value_of(0) in body else records.BATCH_RECORDS
    position = 0
    for number in range(first, first + records.BATCH_RECORDS):
        position = body.find(records.large_value_of(number), position)
        assert position > 0, f"record {number} is not where it belongs"
        position += records.LARGE_BYTES


@pytest.fixture(scope="module")
def authenticated(behind: Behind) -> Behind:
    """Clients have produced and consumed with a password through the SASL listener."""
    sasl = {"security.protocol": "sasl_ssl", "sasl.mechanism": "PLAIN", "sasl.username": USER, "sasl.password": CANARY}
    ca = str(behind.sasl.certificates.ca)
    options = records.Options(bootstrap=f"127.0.0.1:{behind.sasl_serving.port}", topic="canary", count=200, ca=ca, client=sasl)
    facts = records.exchange(options, lambda row: None)
    assert (facts["consumed"], facts["missing"]) == (200, 0)
    return behind


def files_with(root: Path, needle: bytes) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file() and needle in path.read_bytes()]


def test_the_password_is_in_no_file_metric_or_answer_and_its_length_is(authenticated: Behind) -> None:
    stage, serving = authenticated.sasl, authenticated.sasl_serving
    withheld = [frame for frame in tapped(stage, 20) if frame.size and not frame.body]
    requests = [frame for frame in withheld if frame.direction == "request"]
    answers = [frame for frame in withheld if frame.direction == "response"]
    token = len(f"\0{USER}\0{CANARY}")
    assert len(requests) == len(answers) >= 4, "a handshake and an authentication on each connection"
    assert any(token < frame.size <= token + 64 for frame in requests), "the length of the frame with the password is on record"
    assert {frame.request_key >> 16 for frame in answers if frame.request_key is not None} == set(SASL_KEYS)
    assert files_with(stage.workspace.tap, CANARY.encode()) == []
    assert files_with(stage.workspace.logs, CANARY.encode()) == []
    assert files_with(stage.workspace.tap, records.value_of(7)), "the search finds what is there"
    with grpc.insecure_channel(serving.admin) as channel:
        stub = ChannelServiceStub(channel)
        shown = f"{stub.ListChannels(pb2.ListChannelsRequest(), timeout=10)}{stub.ListClosedChannels(pb2.ListClosedChannelsRequest(), timeout=10)}"
    assert "peer_address" in shown
    assert CANARY not in shown
    metrics = Metrics.scrape(serving.prometheus).text
    assert "framegate_frame_count_total" in metrics
    assert CANARY not in metrics


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.skipif(find_java() is None and not os.environ.get("CI"), reason="Spark needs Java")
def test_the_password_is_in_no_table(authenticated: Behind, spark: "SparkSession") -> None:
    stage = authenticated.sasl
    settings = PipelineSettings(source=stage.workspace.tap, output=stage.workspace.tables, available_now=True)
    assert start_query(spark, settings, TableWriter(settings.output)).awaitTermination(120)
    found = ask(
        spark,
        settings.output,
        {
            "canary": f"SELECT count(*) AS frames FROM frames WHERE instr(hex(payload), '{CANARY.encode().hex().upper()}') > 0",
            "record": f"SELECT count(*) AS frames FROM frames WHERE instr(hex(payload), '{records.value_of(7).hex().upper()}') > 0",
            "lengths": f"SELECT count(*) AS frames FROM frames WHERE length(payload) = 0 AND size > {len(CANARY)}",
            "requests": f"SELECT sum(answers) AS answered FROM requests_by_api WHERE api_key IN {SASL_KEYS}",
        },
    )
    assert found["canary"] == [{"frames": 0}]
    assert found["record"][0]["frames"] >= 1, "the search finds what is there"
    assert found["lengths"][0]["frames"] >= 2
    assert found["requests"][0]["answered"] >= 4


@pytest.mark.extended
def test_what_clients_sent_is_replayed_against_the_broker(behind: Behind, tmp_path: Path) -> None:
    """Everything is answered; what differs is what must: offsets, times, and sessions and members that the broker no longer knows."""
    options = records.Options(bootstrap=f"127.0.0.1:{behind.plain_serving.port}", topic="demo", count=100, ca=str(behind.plain.certificates.ca))
    records.exchange(options, lambda row: None)
    log = str(behind.plain.workspace.tap)
    sent = sum(frame.direction == "request" for frame in tapped(behind.plain, 20))
    done = run_cli("tap", "replay", log, "--to", f"127.0.0.1:{behind.broker.ports['PLAIN']}", "--speed", "max", "--output", "json")
    found = json.loads(done.stdout)
    rows = {row["api"]: row for row in found["apis"]}
    assert (found["not_sent"], found["failures"], sum(row["unanswered"] for row in rows.values())) == ({}, {}, 0), done.stderr
    assert found["requests"] >= sent
    assert rows["Produce"]["requests"] == rows["Produce"]["equal"] + rows["Produce"]["content"], "the broker took all records again"
    assert run_cli("tap", "export", log, "--pcapng", str(tmp_path / "kafka.pcapng")).returncode == 0
