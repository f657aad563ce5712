import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from proxy.config.model import TapRule
from proxy.pipeline import transforms
from proxy.tap import record
from proxy.tap.log_block import Frame
from proxy.tap.log_reader import read_frames
from tests.fakes.tap_log import MINUTE_NS, START_NS, FakeProcessor, demo_body

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

FETCH_V13 = 1 << 16 | 13
CONNECTION = 5 << 57 | 3 << 29 | 17


def chunks(spark: "SparkSession", directory: Path) -> "DataFrame":
    return spark.read.format("framegate").load(str(directory))


def of_log(frame: Frame) -> tuple[object, ...]:
    key = frame.request_key if frame.request_key not in (None, -1) else None
    latency = frame.latency_us if frame.latency_us not in (None, -1) else None
    version = None if key is None else key & 0xFFFF
    return frame.connection, frame.direction, frame.number, frame.size, frame.body, None if key is None else key >> 16, version, latency


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
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


def test_requests_are_the_answers_whose_request_is_known(spark: "SparkSession", mixed: Path) -> None:
    table = transforms.requests(transforms.frames(chunks(spark, mixed)))
    rows = table.orderBy("sequence").select("api_key", "api_version", "latency_us", "sequence", "answer_size").collect()
    assert [tuple(row) for row in rows] == [(1, 13, number, 2 * number, 0) for number in range(20)]


def test_a_request_has_its_own_size_time_and_number(spark: "SparkSession") -> None:
    columns = (
        "stream string, offset bigint, chunk_index int, capture_time timestamp, connection_id bigint, listener string, principal string, "
        "peer string, rule string, direction string, protocol string, capture string, first_sequence bigint, original_bytes bigint, reason string, "
        "data binary, starts array<int>, sizes array<int>, request_key array<int>, latency_us array<int>, request_size array<int>, "
        "correlation_id array<int>, transfer_us bigint, framing string"
    )
    at = datetime.datetime(2026, 11, 22, 7, 0, 1)

    def chunk(keys: list[int], transfer: int | None) -> tuple[object, ...]:
        place = ("s", 0, 0, at, CONNECTION, "main", None, "10.0.0.1:1", "all", "response", "kafka", "full", 0, 15, "none")
        count = len(keys)
        answers = (keys, [250_000] * count, [70] * count, [-2, -1, 9][:count])
        return (*place, bytearray(b"\0\0\0\1x" * count), list(range(0, 5 * count, 5)), None, *answers, transfer, "int32")

    rows = spark.createDataFrame([chunk([FETCH_V13, FETCH_V13, -1], None), chunk([FETCH_V13], 500_000)], columns)
    names = ("connection", "request_time", "request_size", "correlation_id", "answer_size", "framing", "api_version")
    table = transforms.requests(transforms.frames(rows)).orderBy("transfer_us", "frame_index").select(*names)
    early, later = at - datetime.timedelta(seconds=0.25), at - datetime.timedelta(seconds=0.75)
    assert [tuple(row) for row in table.collect()] == [
        ("5-3-17", early, 70, -2, 1, "int32", 13),
        ("5-3-17", early, 70, None, 1, "int32", 13),
        ("5-3-17", later, 70, -2, 1, "int32", 13),
    ]


def test_traffic_adds_frames_wire_bytes_and_losses_by_minute(spark: "SparkSession", mixed: Path) -> None:
    source = chunks(spark, mixed)
    gap = transforms.gaps(source)
    table = transforms.traffic(transforms.frames(source), gap)
    columns = ("frames", "bytes", "cut_bytes", "lost_frames", "lost_bytes")
    rows = {(row.minute, row.direction, row.lost_frames): tuple(row[name] for name in columns) for row in table.collect()}
    first = datetime.datetime(2023, 11, 14, 22, 13)
    requests = sum(16 + number * 7 + 4 for number in range(20) for _ in range(3)) + 9 + 8
    assert rows == {
        (first, "request", 0): (62, requests, 5, 0, 0),
        (first, "response", 0): (40, 20 * (4 + 10), 0, 0, 0),
        (first + datetime.timedelta(minutes=1), "request", 0): (9, 60, 2 + 8 + 8, 0, 0),
        (first, "request", 7): (0, 0, 0, 7, 70),
    }


def test_a_gap_names_what_is_missing_and_why(spark: "SparkSession", mixed: Path) -> None:
    (row,) = transforms.gaps(chunks(spark, mixed)).collect()
    assert (row.connection_id, row.direction, row.first_sequence, row.lost_frames, row.lost_bytes, row.reason) == (
        2,
        "request",
        2,
        7,
        70,
        "queue_full",
    )


def test_apis_and_connections_are_shown_as_people_know_them(spark: "SparkSession") -> None:
    row = spark.sql(f"select {transforms.api_name('1')}, {transforms.api_name('999')}, {transforms.connection_text(f'{CONNECTION}L')}").collect()[0]
    assert tuple(row) == ("Fetch", "api-999", "5-3-17")
    assert spark.sql(f"select {transforms.connection_text('cast(null as bigint)')}").collect()[0][0] is None
