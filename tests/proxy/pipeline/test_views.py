import contextlib
import datetime
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from framegate.control.demo.load import FRAME_HEADER
from framegate.control.demo.report import CONTENT_QUERIES
from framegate.proxy.pipeline.columns import TABLE_SCHEMAS, TIME_COLUMNS, arrow_schema
from framegate.proxy.pipeline.delta import DeltaTables, compact
from framegate.proxy.pipeline.place import place_of
from framegate.proxy.pipeline.tables import TableWriter
from framegate.proxy.pipeline.views import ask, read_table, register_views
from tests.fakes.tap_log import FakeProcessor

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DAY = datetime.datetime(2026, 11, 22, tzinfo=datetime.UTC)
OVER, IN_HAND = 4, 20  # files of a table in an hour that is over, and in the last one
GOAL_S = 2.0


def write_day(output: Path, *, rows: int, over: int = OVER, in_hand: int = IN_HAND) -> None:
    """A day as compaction leaves it: so many files an hour of each table, each with so many rows of its share of the hour."""
    tables = DeltaTables(output)
    for table in TABLE_SCHEMAS:
        added = []
        schema = pa.schema([field for field in arrow_schema(table) if field.name not in ("date", "hour")])
        for hour in range(24):
            share = datetime.timedelta(hours=1) / (files := in_hand if hour == 23 else over)
            for number in range(files):
                first = DAY + datetime.timedelta(hours=hour) + number * share
                data = {name: pa.nulls(rows, schema.field(name).type) for name in schema.names}
                data[TIME_COLUMNS[table]] = pa.array([first + row * share / rows for row in range(rows)], pa.timestamp("us", "UTC"))
                if table == "frames":
                    data |= {"payload": pa.array([b"p" * 100] * rows), "size": pa.array([100] * rows, pa.int32())}
                added += tables.write(table, pa.table(data))
        tables.commit(table, 86_399, "query", added)


def files_of(rows: "DataFrame") -> int:
    return len(rows.inputFiles())


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 hours of five tables, 560 files: at a batch a second, 86,400 batches."""
    output = tmp_path_factory.mktemp("day")
    write_day(output, rows=1000)
    return output


def body(number: int, sequence: int, payload: bytes, checksum: int | None = None) -> bytes:
    return FRAME_HEADER.pack(0, number, sequence, zlib.crc32(payload) if checksum is None else checksum)[4:] + payload


def asked(spark: "SparkSession", folder: Path, bodies: list[bytes]) -> dict[str, list[dict[str, object]]]:
    """What the demo's questions say of one connection's requests."""
    processor = FakeProcessor(folder / "log")
    for start in range(0, len(bodies), 3):
        processor.block(bodies[start : start + 3])
    processor.close()
    with contextlib.closing(TableWriter(folder / "out", compact_ms=0)) as writer:
        writer(spark.read.format("framegate").option("output", str(folder / "out")).load(str(folder / "log")), 0)
    return ask(spark, folder / "out", CONTENT_QUERIES)


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.slow
class TestWithSpark:
    def test_only_files_of_the_time_that_is_asked_for_are_opened(self, spark: "SparkSession", day: Path) -> None:
        since, until = DAY + datetime.timedelta(hours=7, minutes=3), DAY + datetime.timedelta(hours=7, minutes=8)
        assert files_of(read_table(spark, day, "frames")) == 23 * OVER + IN_HAND
        rows = read_table(spark, day, "frames", since=since, until=until)
        assert files_of(rows) == 1
        found = [micros for (micros,) in rows.selectExpr("unix_micros(capture_time) as at").orderBy("at").collect()]
        hour = read_table(spark, day, "frames").where("date = '2026-11-22' and hour = 7").selectExpr("unix_micros(capture_time) as at")
        first, last = since.timestamp() * 1e6, until.timestamp() * 1e6
        assert found == sorted(micros for (micros,) in hour.collect() if first <= micros < last)
        assert len(found) > 300
        assert read_table(spark, day, "frames", until=DAY).collect() == []
        east = datetime.timezone(datetime.timedelta(hours=5, minutes=30))
        moment = since + datetime.timedelta(microseconds=1)
        same = read_table(spark, day, "frames", since=moment.astimezone(east), until=until.astimezone(east))
        assert same.count() == sum(micros >= first + 1 for micros in found)
        with pytest.raises(ValueError, match="2026-11-22T00:00:00 has no time zone"):
            read_table(spark, day, "frames", since=DAY.replace(tzinfo=None))

    def test_a_day_opens_and_answers_in_time(self, spark: "SparkSession", day: Path) -> None:
        """Warm, as in a notebook; the goal is for a quiet machine, the test allows a busy one five times as much."""
        register_views(spark, day)
        began = time.monotonic()
        register_views(spark, day)
        opened = time.monotonic()
        five = "capture_time >= '2026-11-22 07:03:00' AND capture_time < '2026-11-22 07:08:00'"
        by_time = spark.sql(f"SELECT count(*), sum(length(payload)) FROM frames WHERE {five}").collect()[0]
        asked = time.monotonic()
        by_hour = spark.sql(f"SELECT count(*), sum(length(payload)) FROM frames WHERE date = '2026-11-22' AND hour = 7 AND {five}").collect()[0]
        done = time.monotonic()
        print(f"opened in {opened - began:.2f} s, five minutes in {asked - opened:.2f} s, with the hour in {done - asked:.2f} s")
        assert by_time == by_hour
        assert by_time[0] > 300
        assert opened - began < 5 * GOAL_S
        assert asked - opened < 5 * GOAL_S

    def test_a_view_outlives_compaction(self, spark: "SparkSession", tmp_path: Path) -> None:
        write_day(tmp_path, over=2, in_hand=2, rows=2)
        register_views(spark, tmp_path)
        compact(DeltaTable(tmp_path / "frames"), place_of(tmp_path), "frames")
        assert spark.sql("select count(*) from frames").collect()[0][0] == 96
        assert len(spark.table("frames").inputFiles()) == 48
        register_views(spark, tmp_path)
        assert spark.sql("select count(*) from frames").collect()[0][0] == 96
        assert len(spark.table("frames").inputFiles()) == 24

    def test_views_of_a_time_have_rows_of_it(self, spark: "SparkSession", day: Path) -> None:
        register_views(spark, day, since=DAY + datetime.timedelta(hours=23))
        assert spark.sql("select count(*) from frames").collect()[0][0] == IN_HAND * 1000
        assert spark.sql("select count(*) from gaps").collect()[0][0] == IN_HAND * 1000

    def test_the_questions_of_the_demo_count_each_fault(self, spark: "SparkSession", tmp_path: Path) -> None:
        bodies = [
            body(1, 0, b"good"),
            body(1, 1, b"changed", checksum=7),
            body(1, 4, b"two are missing before it"),
            body(1, 4, b"and here it is again"),
            body(1, 2, b"late"),
        ]
        answers = asked(spark, tmp_path, bodies)
        assert answers["content"] == [{"direction": "request", "wrong_checksums": 1, "misplaced": 3}]
        assert answers["sequences"] == [{"direction": "request", "missing": 1, "doubled": 1}]
