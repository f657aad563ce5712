import pickle
import random
import shutil
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes

from framegate.proxy.pipeline.pyspark_framegate import register
from framegate.proxy.pipeline.schema import CHUNK_SCHEMA
from framegate.proxy.pipeline.settings import OptionError
from framegate.proxy.pipeline.source import FramegateDataSource, StreamReader
from framegate.proxy.tap.consumer import read_consumers
from tests.fakes.cases import each_of
from tests.fakes.runs import pieces_of
from tests.fakes.tap_files import stored
from tests.fakes.tap_log import MINUTE_NS, START_NS, FakeProcessor

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ISO = "2023-11-14T22:13:20Z"  # START_NS


def reader(directory: Path, **options: str) -> StreamReader:
    """A planner's reader, as Spark makes it."""
    made = FramegateDataSource({"path": str(directory), **options}).streamReader(CHUNK_SCHEMA)
    assert isinstance(made, StreamReader)
    return made


def fill(directory: Path, boot_id: str = "b0", blocks: int = 3, segment_size: int = 1 << 20) -> FakeProcessor:
    """Blocks of one chunk of two frames."""
    processor = FakeProcessor(directory, boot_id=boot_id, segment_size=segment_size)
    for number in range(blocks):
        processor.block([b"%d" % number, bytes(500)])
    return processor


def test_the_initial_offset_may_be_asked_twice(tmp_path: Path) -> None:
    processor = fill(tmp_path)
    one = reader(tmp_path)
    first = one.initialOffset()
    assert first == {"streams": {"edge.0.b0": 0}, "version": 1}
    processor.block([b"more"])
    assert one.initialOffset() == first
    latest = reader(tmp_path, startingoffsets="latest")
    assert latest.initialOffset() == one.reportLatestOffset()


def test_a_missing_directory_and_a_checkpoint_of_a_later_version_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="no directory"):
        reader(tmp_path / "nowhere").initialOffset()
    with pytest.raises(OptionError, match="version 4"):
        reader(tmp_path).partitions({"streams": {}, "version": 4}, {"streams": {}, "version": 4})


def test_the_limit_is_the_option_unless_spark_overrides_it(tmp_path: Path) -> None:
    fill(tmp_path)
    limited = reader(tmp_path, maxbytespertrigger="1")
    assert limited.getDefaultReadLimit() == ReadMaxBytes(1)
    assert reader(tmp_path).getDefaultReadLimit() == ReadAllAvailable()
    start = limited.initialOffset()
    assert limited.latestOffset(start, ReadMaxBytes(1)) != limited.latestOffset(start, ReadAllAvailable())


def test_available_now_stops_at_what_was_there(tmp_path: Path) -> None:
    processor = fill(tmp_path)
    one = reader(tmp_path)
    one.prepareForTriggerAvailableNow()
    before = one.reportLatestOffset()
    processor.block([b"later"])
    fill(tmp_path, "newer")
    assert one.latestOffset(one.initialOffset() | {"streams": {"edge.0.b0": 0}}, ReadAllAvailable()) == before
    assert one.latestOffset(before, ReadAllAvailable()) == before


def test_a_pickled_reader_reads_what_the_planner_planned(tmp_path: Path) -> None:
    fill(tmp_path)
    planner = reader(tmp_path)
    planned = planner.partitions(planner.initialOffset(), planner.reportLatestOffset())
    other, parts = pickle.loads(pickle.dumps((planner, planned)))
    assert sum(batch.num_rows for part in parts for batch in other.read(part)) == 3


def test_retention_learns_where_the_query_stands(tmp_path: Path) -> None:
    fill(tmp_path)
    one = reader(tmp_path, consumer="job")
    first = one.initialOffset()
    assert read_consumers(str(tmp_path)).offsets == {"job": {"edge.0.b0": 0}}
    end = one.latestOffset(first, ReadAllAvailable())
    one.commit(end)
    assert read_consumers(str(tmp_path)).offsets == {"job": end["streams"]}
    reader(tmp_path).commit(end)
    assert list(read_consumers(str(tmp_path)).offsets) == ["job"]


def test_where_retention_cannot_be_told_that_is_said_once_and_the_query_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(tmp_path)
    (tmp_path / "_consumers").write_text("no folder")
    one = reader(tmp_path, consumer="job")
    first = one.initialOffset()
    one.commit(one.latestOffset(first, ReadAllAvailable()))
    said = capsys.readouterr().err
    assert said.startswith("framegate: retention is not told how far job has read: ")
    assert said.count("\n") == 1


def test_what_a_query_goes_on_without_is_rows_of_its_batch(tmp_path: Path) -> None:
    fill(tmp_path, segment_size=1)
    loose = reader(tmp_path, failondataloss="false")
    first, end = loose.initialOffset(), loose.reportLatestOffset()
    sorted((tmp_path / "edge.0.b0").iterdir())[1].unlink()
    planned = loose.partitions(first, end)
    rows = [row for part in planned for batch in loose.read(part) for row in batch.to_pylist()]
    assert [(row["kind"], row["reason"], row["certainty"]) for row in rows] == [
        ("frames", "none", None),
        ("gap", "vanished", "unknown"),
        ("gap", "vanished", "unknown"),
        ("frames", "none", None),
    ]
    again = reader(tmp_path, failondataloss="false")
    assert [row for part in again.partitions(first, end) for batch in again.read(part) for row in batch.to_pylist()] == rows


@each_of(
    ("starting", "found"),
    [("earliest", 3), (ISO, 3), (ISO.replace("20Z", "20.000001Z"), 2), ("2023-11-14T22:14:20Z", 1), ("2030-01-01T00:00:00Z", 0)],
)
def test_a_batch_begins_where_it_is_told(tmp_path_factory: pytest.TempPathFactory, starting: str, found: int) -> None:
    folder = tmp_path_factory.mktemp("log")
    processor = FakeProcessor(folder)
    for at_ns in (START_NS, START_NS + 1000, START_NS + MINUTE_NS):
        processor.block([b"x"], at_ns=at_ns)
    batch = FramegateDataSource({"path": str(folder), "startingOffsets": starting}).reader(CHUNK_SCHEMA)
    kinds = [kind for part in batch.partitions() for rows in batch.read(part) for kind in rows["kind"].to_pylist()]
    assert kinds.count("frames") == found


def test_a_batch_that_begins_at_latest_is_refused(tmp_path: Path) -> None:
    fill(tmp_path)
    with pytest.raises(OptionError, match="startingOffsets: a batch from latest on has nothing"):
        FramegateDataSource({"path": str(tmp_path), "startingOffsets": "latest"}).reader(CHUNK_SCHEMA).partitions()


# With Spark

spark_test = [pytest.mark.extended, pytest.mark.spark, pytest.mark.slow]


def stream(spark: "SparkSession", directory: Path, name: str, **options: str) -> "StreamingQuery":
    """A query into memory."""
    source = spark.readStream.format("framegate").options(**options).load(str(directory))
    return source.writeStream.format("memory").queryName(name).start()


class TestWithSpark:
    pytestmark = spark_test

    def test_a_batch_read_finds_every_frame_of_the_log(self, spark: "SparkSession", tmp_path: Path) -> None:
        fill(tmp_path, "one", 5).close()
        fill(tmp_path, "two", 4)
        register(spark)
        rows = spark.read.format("framegate").load(str(tmp_path)).selectExpr("sum(frame_count)", "sum(size(starts))", "count(data)").collect()
        assert tuple(rows[0]) == (18, 18, 9 + 1), "nine chunks, and the totals that closing states"
        assert stored(tmp_path) == {"request": 18, "response": 0}

    def test_a_user_schema_leaves_the_payload_out(self, spark: "SparkSession", tmp_path: Path) -> None:
        fill(tmp_path)
        narrow = spark.read.format("framegate").schema("frame_count int, capture_time timestamp").load(str(tmp_path))
        assert narrow.columns == ["frame_count", "capture_time"]
        assert narrow.groupBy("frame_count").count().collect() == [(2, 3)]

    def test_a_frame_cut_through_over_many_batches_comes_once_and_whole(self, spark: "SparkSession", tmp_path: Path) -> None:
        processor = FakeProcessor(tmp_path, segment_size=2 << 20)
        body = random.Random(1).randbytes(5 << 20)
        query = stream(spark, tmp_path, "cut", rows="frames")
        try:
            for index, run in enumerate(pieces_of(body, [256 << 10] * 19)):
                processor.part(run, len(body), at_ns=START_NS + index * 1_000_000)
                processor.send([b"between"], connection=2)
                if index % 7 == 0:
                    processor.flush()
                    query.processAllAvailable()
            processor.close()
            query.processAllAvailable()
            columns = "connection_id, sequence, size, crc32(payload), transfer_us, count(*)"
            rows = spark.sql(f"select {columns} from cut group by all order by connection_id, sequence").collect()
            assert tuple(rows[0]) == (1, 0, len(body), zlib.crc32(body), 19_000, 1)
            assert [(row[0], row[1], row[5]) for row in rows[1:]] == [(2, number, 1) for number in range(20)]
            assert len([progress for progress in query.recentProgress if progress["numInputRows"]]) >= 3
        finally:
            query.stop()

    def test_streams_come_roll_and_go_while_a_query_runs(self, spark: "SparkSession", tmp_path: Path) -> None:
        first = fill(tmp_path, "one", 2, segment_size=1500)
        query = stream(spark, tmp_path, "rolling")
        try:
            query.processAllAvailable()
            for number in range(3):
                first.block([b"%d" % number, bytes(500)])
            first.close()
            fill(tmp_path, "two", 2)
            query.processAllAvailable()
            shutil.rmtree(tmp_path / "edge.0.one")
            fill(tmp_path, "three", 1)
            query.processAllAvailable()
            rows = spark.sql("select stream, count(distinct offset), sum(frame_count) from rolling group by stream order by stream").collect()
            assert [tuple(row) for row in rows] == [("edge.0.one", 5 + 1, 10), ("edge.0.three", 1, 2), ("edge.0.two", 2, 4)]
        finally:
            query.stop()
