"""Chunks to rows of the tables ``frames`` and ``gaps``, beside what the log's own reader says."""

import random
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from framegate.proxy.config.model import TapRule
from framegate.proxy.network.connection_id import make_connection_id
from framegate.proxy.pipeline import chunk_rows, decode
from framegate.proxy.pipeline.columns import FRAME_COLUMNS, TABLE_SCHEMAS
from framegate.proxy.pipeline.pyspark_framegate import register
from framegate.proxy.pipeline.schema import JOB_SCHEMA
from framegate.proxy.pipeline.settings import OptionError, SourceOptions
from framegate.proxy.pipeline.source import FramegateDataSource, read_chunks
from framegate.proxy.tap import record
from tests.fakes.runs import pieces_of
from tests.fakes.tap_files import flip, segment_files
from tests.fakes.tap_log import MINUTE_NS, START_NS, FakeProcessor, demo_body
from tests.fakes.tap_read import Frame, read_frames

if TYPE_CHECKING:
    from pyspark.sql import DataFrameReader, SparkSession

FETCH_V13 = 1 << 16 | 13
CONNECTION = int(make_connection_id(5, 3, 17))


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


def chunk_batches(log: Path, **options: str) -> list[pa.RecordBatch]:
    """The chunks of a log as a task of the job has them."""
    source = FramegateDataSource({"path": str(log), **options})
    parts = source.reader(JOB_SCHEMA).partitions()
    asked = SourceOptions.parse(source.options)
    return [batch for part in parts for batch in read_chunks(part, chunk_rows.in_place(JOB_SCHEMA), asked)]


def frames_of(log: Path, **options: str) -> pa.Table:
    return pa.concat_tables([chunk_rows.frames(batch) for batch in chunk_batches(log, **options)])


def test_frames_are_those_of_the_log(mixed: Path) -> None:
    columns = ("connection_id", "direction", "sequence", "size", "payload", "api_key", "api_version", "latency_us")
    rows = [tuple(row[name] for name in columns) for row in frames_of(mixed).to_pylist()]
    expected = [of_log(frame) for frame in read_frames(str(mixed))]
    assert len(rows) == 111
    assert sorted(rows, key=repr) == sorted(expected, key=repr)


def test_a_frame_says_where_it_belongs(mixed: Path) -> None:
    columns = ("connection", "listener", "rule", "protocol", "direction", "capture", "reason")
    rows = frames_of(mixed).to_pylist()
    assert {tuple(row[name] for name in columns) for row in rows if row["connection_id"] == CONNECTION} == {
        ("5-3-17", "main", "all", "framed", "request", "full", "none"),
        ("5-3-17", "main", "all", "kafka", "response", "full", "none"),
    }
    assert {row["reason"] for row in rows if row["connection_id"] == 2} == {"withheld"}


def test_columns_that_were_not_read_are_null(mixed: Path) -> None:
    thin = pa.concat_tables([chunk_rows.frames(batch.drop_columns(["request_key", "node", "first_sequence"])) for batch in chunk_batches(mixed)])
    assert [thin[name].null_count for name in ("api_key", "node", "sequence")] == [111] * 3
    assert thin["payload"].equals(frames_of(mixed)["payload"])


def test_each_column_can_be_made_alone(mixed: Path) -> None:
    whole = frames_of(mixed)
    for name in FRAME_COLUMNS:
        fields = [field for field in JOB_SCHEMA if field.name in chunk_rows.needed([name])]
        parts = FramegateDataSource({"path": str(mixed)}).reader(JOB_SCHEMA).partitions()
        batches = [batch for part in parts for batch in read_chunks(part, chunk_rows.in_place(fields), SourceOptions.parse({"path": str(mixed)}))]
        assert pa.concat_tables([chunk_rows.frames(batch, [name]) for batch in batches])[name].equals(whole[name]), name


def test_bodies_of_blocks_that_lie_in_one_segment_are_copied_once(tmp_path: Path) -> None:
    processor = FakeProcessor(tmp_path)
    for number in range(3):
        processor.block([bytes([number]) * 100, b"", bytes([number])])
    processor.close()
    (batch,) = chunk_batches(tmp_path)
    (segment,) = [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size >= record.SEGMENT_HEADER_BYTES + 300]
    memory = batch["data"].values.to_numpy()
    assert np.array_equal(memory, np.fromfile(segment, "u1")[-len(memory) :]), "data is not a view of the segment"
    assert chunk_rows.frames(batch)["payload"].to_pylist() == [value for n in range(3) for value in (bytes([n]) * 100, b"", bytes([n]))]


def test_the_memory_of_a_batch_is_bounded_also_by_blocks_that_have_pieces_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "_JOIN_BELOW", 5000)
    processor = FakeProcessor(tmp_path)
    body = random.Random(3).randbytes(9000)
    processor.block([b"before"])
    *runs, last = pieces_of(body, [1000] * 8)
    for run in runs:
        processor.part(run, len(body))
        processor.flush()
    processor.block([b"behind"], connection=2)
    processor.part(last, len(body))
    processor.close()
    batches = [batch for batch in chunk_batches(tmp_path) if batch.num_rows]
    assert [bytes(row["payload"]) for batch in batches for row in chunk_rows.frames(batch).to_pylist()] == [b"before", b"behind", body]
    assert len(batches[0]) == 1, "what lies behind the pieces is in another batch"


def test_what_is_skipped_has_no_row_of_a_frame(mixed: Path) -> None:
    flip(max(segment_files(mixed), key=lambda path: path.stat().st_size), record.SEGMENT_HEADER_BYTES + 40)
    source = FramegateDataSource({"path": str(mixed), "rows": "frames", "failOnDataLoss": "false"})
    reader = source.reader(StructType().add("size", "integer").add("listener", "string"))
    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    assert 0 < len(rows) < 111
    assert {tuple(row) for row in rows} == {("size", "listener")}


@pytest.mark.parametrize("keep", ["full", "none", "1", "300"])
def test_frames_that_were_cut_through_lie_elsewhere_and_are_the_same(tmp_path: Path, keep: str) -> None:
    """The block with the last piece is made anew in other memory, between blocks that are views of the segment."""
    processor = FakeProcessor(tmp_path)
    body = random.Random(2).randbytes(5000)
    processor.block([b"before" * 100])
    for run in pieces_of(body, [1000] * 4):
        processor.part(run, len(body))
        processor.block([b"between"], connection=2)
    processor.block([b"behind"], connection=3)
    processor.close()
    room = {"full": 5000, "none": 0}.get(keep) if not keep.isdigit() else int(keep)
    found = {(row["connection_id"], row["sequence"]): (row["payload"], row["size"]) for row in frames_of(tmp_path, payload=keep).to_pylist()}
    whole = [(frame.connection, frame.number, bytes(frame.body), frame.size) for frame in read_frames(str(tmp_path))]
    assert found == {(connection, number): (kept[:room], size) for connection, number, kept, size in whole}
    assert len(found) >= 7


def test_facts_are_the_gaps_and_totals(mixed: Path) -> None:
    rows = [row for batch in chunk_batches(mixed) for row in chunk_rows.gaps_and_totals(batch).to_pylist()]
    assert {row["kind"] for row in rows} == {"gap", "totals"}
    assert {row["connection"] for row in rows if row["kind"] == "gap"} == {"0-0-2"}


# Rows of the source


def test_the_source_gives_frames_by_an_option(mixed: Path) -> None:
    source = FramegateDataSource({"path": str(mixed), "rows": "frames"})
    assert source.schema() == TABLE_SCHEMAS["frames"]
    with pytest.raises(OptionError, match="rows: chunks or frames, not records"):
        FramegateDataSource({"path": str(mixed), "rows": "records"}).schema()


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.slow
def test_spark_gets_the_frames_of_the_log(spark: "SparkSession", mixed: Path) -> None:
    register(spark)

    def read() -> "DataFrameReader":
        return spark.read.format("framegate").option("rows", "frames")

    order = ["stream", "offset", "chunk_index", "frame_index"]
    rows = read().load(str(mixed)).orderBy(*order).toArrow()
    expected = frames_of(mixed).sort_by([(name, "ascending") for name in order])
    assert rows.column_names == list(FRAME_COLUMNS)
    assert rows.to_pylist() == expected.cast(rows.schema).to_pylist()
    few = read().schema("payload binary, sequence bigint").load(str(mixed)).where("sequence = 7")
    assert sorted(bytes(row.payload) for row in few.collect()) == sorted(bytes(frame.body) for frame in read_frames(str(mixed)) if frame.number == 7)
    wrong = "crc32(substring(payload, 17)) <> conv(hex(substring(payload, 13, 4)), 16, 10)"
    misplaced = "conv(hex(substring(payload, 5, 8)), 16, 10) <> sequence"
    demo = read().load(str(mixed)).where("connection = '5-3-17' and direction = 'request'")
    assert tuple(demo.selectExpr("count(*)", f"count_if({wrong})", f"count_if({misplaced})").collect()[0]) == (60, 0, 0)
    with pytest.raises(PySparkException, match="connexion: no such column"):
        read().schema("connexion string").load(str(mixed)).collect()
