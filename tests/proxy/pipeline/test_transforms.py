from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from framegate.proxy.config.model import TapRule
from framegate.proxy.network.connection_id import make_connection_id
from framegate.proxy.pipeline import transforms
from framegate.proxy.tap import record
from tests.fakes.tap_log import MINUTE_NS, START_NS, FakeProcessor, demo_body
from tests.fakes.tap_read import Frame, read_frames

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.extended, pytest.mark.spark, pytest.mark.slow]

FETCH_V13 = 1 << 16 | 13
CONNECTION = int(make_connection_id(5, 3, 17))


def chunks(spark: "SparkSession", directory: Path) -> "DataFrame":
    return spark.read.format("framegate").load(str(directory))


def of_log(frame: Frame) -> tuple[object, ...]:
    key = frame.request_key if frame.request_key not in (None, -1) else None
    latency = frame.latency_us if frame.latency_us not in (None, -1) else None
    version = None if key is None else key & 0xFFFF
    return frame.connection, frame.direction, frame.number, frame.size, frame.body, None if key is None else key >> 16, version, latency


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    return write_mixed(tmp_path)


def write_mixed(tmp_path: Path) -> Path:
    """Every kind of chunk: whole, cut, withheld, lengths, hash, answers, empty bodies, a gap."""
    processor = FakeProcessor(tmp_path, boot_id="whole")
    for number in range(20):
        processor.send([demo_body(1, number * 3 + index, bytes([number]) * (number * 7)) for index in range(3)], connection=CONNECTION)
        processor.send([b"", b"answer"], connection=CONNECTION, direction="response", protocol="kafka", keys=[FETCH_V13, -1], latencies=[number, -1])
        if number % 5 == 0:
            processor.flush()
    processor.send([b"token", b"open"], connection=2, sensitive=[0])
    processor.point(2, "request").lose(record.REASON_QUEUE_FULL, 7, 70, 2, START_NS)
    processor.close()
    for rule in (TapRule(name="cut", max_frame_bytes=4), TapRule(name="none", capture="lengths"), TapRule(name="sum", capture="hash")):
        other = FakeProcessor(tmp_path, boot_id=rule.name, rule=rule)
        other.block([b"123456", b"12", b""], at_ns=START_NS + MINUTE_NS)
        other.close()
    return tmp_path


def test_frames_are_those_of_the_log(spark: "SparkSession", mixed: Path) -> None:
    columns = ("connection_id", "direction", "sequence", "size", "payload", "api_key", "api_version", "latency_us")
    table = transforms.frames(chunks(spark, mixed)).orderBy("stream", "offset", "chunk_index", "frame_index")
    rows = [tuple(bytes(value) if isinstance(value, bytearray) else value for value in row) for row in table.select(*columns).collect()]
    expected = [of_log(frame) for frame in read_frames(str(mixed))]
    assert len(rows) == 111
    assert sorted(rows, key=repr) == sorted(expected, key=repr)


def test_a_frame_says_where_it_belongs(spark: "SparkSession", mixed: Path) -> None:
    columns = ("connection", "connection_id", "listener", "rule", "protocol", "direction", "capture", "reason")
    table = transforms.frames(chunks(spark, mixed))
    rows = {tuple(row) for row in table.where(f"connection_id = {CONNECTION}").select(*columns).collect()}
    assert rows == {
        ("5-3-17", CONNECTION, "main", "all", "framed", "request", "full", "none"),
        ("5-3-17", CONNECTION, "main", "all", "kafka", "response", "full", "none"),
    }
    assert {row.reason for row in table.where("connection_id = 2").select("reason").collect()} == {"withheld"}


def test_exploding_without_payload_gives_the_same_sizes(spark: "SparkSession", mixed: Path) -> None:
    narrow = "stream string, starts array<int>, sizes array<int>, original_bytes bigint, first_sequence bigint"
    thin = transforms.explode_frames(spark.read.format("framegate").schema(narrow).load(str(mixed)), "stream")
    assert thin.columns == ["stream", "frame_index", "sequence", "size"]
    full = transforms.frames(chunks(spark, mixed)).select(*thin.columns)
    assert sorted(thin.collect()) == sorted(full.collect())


def test_checksums_in_payloads_can_be_recomputed_by_spark(spark: "SparkSession", mixed: Path) -> None:
    demo = transforms.frames(chunks(spark, mixed)).where(f"connection_id = {CONNECTION} and direction = 'request'")
    wrong = "crc32(substring(payload, 17)) <> conv(hex(substring(payload, 13, 4)), 16, 10)"
    misplaced = "conv(hex(substring(payload, 5, 8)), 16, 10) <> sequence"
    row = demo.selectExpr("count(*)", f"count_if({wrong})", f"count_if({misplaced})").collect()[0]
    assert tuple(row) == (60, 0, 0)


def test_apis_and_connections_are_shown_as_people_know_them(spark: "SparkSession") -> None:
    row = spark.sql(f"select {transforms.api_name('1')}, {transforms.api_name('999')}, {transforms.connection_text(f'{CONNECTION}L')}").collect()[0]
    assert tuple(row) == ("Fetch", "api-999", "5-3-17")
    assert spark.sql(f"select {transforms.connection_text('cast(null as bigint)')}").collect()[0][0] is None
