import contextlib
import datetime
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from framegate.proxy.pipeline import completeness
from framegate.proxy.pipeline.manifest import ManifestError, ManifestLog, read_manifest
from framegate.proxy.pipeline.tables import RULES, TABLE_SCHEMAS, TIME_COLUMNS, BatchError, Progress, TableWriter
from framegate.proxy.pipeline.views import register_views
from framegate.proxy.tap import record
from tests.fakes.tap_log import START_NS, FakeProcessor

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

spark_test = [pytest.mark.extended, pytest.mark.spark, pytest.mark.slow]
NONE = dict.fromkeys(TABLE_SCHEMAS, 0)


def counts(**some: int) -> dict[str, int]:
    return {**NONE, **some}


def test_tables_of_an_earlier_layout_are_refused(tmp_path: Path) -> None:
    (tmp_path / "frames" / "batch_id=3").mkdir(parents=True)
    with pytest.raises(ManifestError, match=r"layout before this one \(frames/batch_id=3\); name a new folder"):
        TableWriter(tmp_path)


def test_each_table_can_be_read_by_its_folder_before_it_has_rows(tmp_path: Path) -> None:
    for _ in range(2):  # again, by a job that begins anew
        TableWriter(tmp_path, compact_ms=0).close()
        for table, columns in TABLE_SCHEMAS.items():
            files = sorted(tmp_path.glob(f"{table}/date=*/hour=*/*.parquet"))
            rows = pq.read_table(files)
            assert (rows.num_rows, rows.column_names) == (0, [column.split()[0] for column in columns.split(", ")] + ["date", "hour"])


def test_progress_is_what_the_manifest_says(tmp_path: Path) -> None:
    assert Progress.of(read_manifest(tmp_path)) == Progress(-1, NONE, NONE)
    log = ManifestLog(tmp_path)
    log.commit(batch=4, query="q", rows={"frames": 1}, total={"frames": 9, "gaps": 2}, add=[])
    assert Progress.of(read_manifest(tmp_path)) == Progress(4, counts(frames=1), counts(frames=9, gaps=2))
    Progress.of(read_manifest(tmp_path)).write(tmp_path)
    assert json.loads((tmp_path / "_progress.json").read_text()) == {"batch": 4, "rows": counts(frames=1), "total": counts(frames=9, gaps=2)}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["_manifest", "_progress.json"]


def test_every_table_has_its_time_and_its_columns_for_sums() -> None:
    assert TIME_COLUMNS.keys() == TABLE_SCHEMAS.keys()
    for table, column in TIME_COLUMNS.items():
        assert f"{column} timestamp" in TABLE_SCHEMAS[table]
    assert {table for table, rules in RULES.items() if rules.merge is not None} == {"traffic_by_minute", "completeness"}


def test_what_a_row_of_completeness_says_by_itself_is_in_the_file() -> None:
    nothing = dict.fromkeys(completeness.SUMS, 0)

    def row(minute: int, **sums: int) -> dict[str, int]:
        return {"minute": minute, **nothing, **sums}

    parts = [row(1, seen=5), row(1, stored=3, sampled=1, withheld=1), row(2, seen=2), row(2, stored=1), row(3, stored=1), row(4, lost=1, seen=1)]
    whole = completeness.merge(pa.Table.from_pylist(parts))
    assert dict(zip(whole["minute"].to_pylist(), whole["state"].to_pylist(), strict=True)) == {1: "complete", 2: "partial", 3: "partial", 4: "lost"}
    again = completeness.merge(pa.concat_tables([whole, completeness.merge(pa.Table.from_pylist([row(2, stored=1), row(3, seen=2)]))]))
    assert dict(zip(again["minute"].to_pylist(), again["state"].to_pylist(), strict=True)) == {1: "complete", 2: "complete", 3: "partial", 4: "lost"}


class TestWithSpark:
    pytestmark = spark_test

    def write(self, spark: "SparkSession", log: Path, output: Path, *batches: int) -> TableWriter:
        """A job that writes these batches and ends."""
        with contextlib.closing(TableWriter(output, compact_ms=0)) as writer:
            for batch in batches:
                writer(spark.read.format("framegate").load(str(log)), batch)
        return writer

    def rows(self, spark: "SparkSession", output: Path, sql: str) -> list[tuple[object, ...]]:
        register_views(spark, output)
        return [tuple(row) for row in spark.sql(sql).collect()]

    @pytest.fixture
    def log(self, tmp_path: Path) -> Path:
        """Two requests, an answer, a gap."""
        processor = FakeProcessor(tmp_path / "log")
        processor.block([b"one", b"two"])
        processor.send([b"yes"], direction="response", protocol="kafka", keys=[3 << 16], latencies=[9])
        processor.point(1, "request").lose(record.REASON_QUEUE_FULL, 4, 40, 2, START_NS)
        processor.close()
        return tmp_path / "log"

    def test_a_batch_written_twice_is_there_once(self, spark: "SparkSession", tmp_path: Path, log: Path) -> None:
        output = tmp_path / "out"
        for batch in (0, 1, 1):
            writer = self.write(spark, log, output, batch)
        assert writer.progress == Progress.of(read_manifest(output))
        assert writer.rows_of == {1: counts(frames=3, requests=1, gaps=1, traffic_by_minute=2, completeness=writer.progress.rows["completeness"])}
        assert self.rows(spark, output, "select count(*), count(distinct date, hour), min(date), min(hour) from frames") == [
            (6, 1, datetime.date(2023, 11, 14), 22)
        ]
        assert self.rows(spark, output, "select direction, sum(frames), sum(lost_frames) from traffic_by_minute group by 1 order by 1") == [
            ("request", 4, 8),
            ("response", 2, 0),
        ]
        assert self.rows(spark, output, "select api, requests, latency_us_p50, answer_bytes from requests_by_api") == [("Metadata", 2, 9, 6)]

    def test_a_batch_of_another_query_is_refused(self, spark: "SparkSession", tmp_path: Path, log: Path) -> None:
        output = tmp_path / "out"
        self.write(spark, log, output, 0, 1)
        with pytest.raises(BatchError, match="has batches up to 1, and batch 0 comes again"):
            self.write(spark, log, output, 0)
        spark.sparkContext.setLocalProperty("sql.streaming.queryId", "one")
        try:
            self.write(spark, log, output, 2)
            spark.sparkContext.setLocalProperty("sql.streaming.queryId", "two")
            with pytest.raises(BatchError, match=r"the batches of another query \(one\)"):
                self.write(spark, log, output, 3)
        finally:
            spark.sparkContext.setLocalProperty("sql.streaming.queryId", None)  # type: ignore[arg-type]

    def test_a_stream_says_which_query_it_is(self, spark: "SparkSession", tmp_path: Path, log: Path) -> None:
        with contextlib.closing(TableWriter(tmp_path / "out", compact_ms=0)) as writer:
            chunks = spark.readStream.format("framegate").load(str(log))
            query = chunks.writeStream.foreachBatch(writer).option("checkpointLocation", str(tmp_path / "state")).trigger(availableNow=True).start()
            assert query.awaitTermination(60)
        assert read_manifest(tmp_path / "out").query == query.id
        assert self.rows(spark, tmp_path / "out", "select count(*) from frames") == [(3,)]

    def test_compacted_tables_say_the_same(self, spark: "SparkSession", tmp_path: Path, log: Path) -> None:
        output = tmp_path / "out"
        self.write(spark, log, output, *range(7))
        questions = [
            "select count(*), sum(crc32(payload)), sum(size), count(distinct connection) from frames",
            "select count(*), sum(latency_us) from requests",
            "select count(*), sum(lost_frames), min(lost_from) from gaps",
            "select * from traffic_by_minute order by all",
            "select * from completeness order by all",
        ]
        before = [self.rows(spark, output, question) for question in questions]
        many = len(read_manifest(output).files)
        with contextlib.closing(TableWriter(output, compact_ms=3_600_000)) as writer:
            deadline = time.monotonic() + 60
            while writer._compactor.passes == 0 and time.monotonic() < deadline:
                time.sleep(0.02)
        assert len(read_manifest(output).files) < many / 4
        assert [self.rows(spark, output, question) for question in questions] == before

    def test_other_programs_read_the_folders(self, spark: "SparkSession", tmp_path: Path, log: Path) -> None:
        output = tmp_path / "out"
        self.write(spark, log, output, 0, 1)
        table = pyarrow.dataset.dataset(output / "frames", partitioning="hive").to_table()
        assert sorted(table.column("payload").to_pylist()) == sorted([b"one", b"two", b"yes"] * 2)
        assert table.schema.field("capture_time").type == pa.timestamp("us", tz="UTC")
        assert set(table.column("hour").to_pylist()) == {22}
        assert pd.read_parquet(output / "requests", engine="pyarrow")["answer_size"].tolist() == [3, 3]

    def test_views_of_an_output_without_batches_are_empty(self, spark: "SparkSession", tmp_path: Path) -> None:
        for view in ("frames", "requests", "gaps", "traffic_by_minute", "requests_by_api", "completeness"):
            assert self.rows(spark, tmp_path, f"select * from {view}") == []

    def test_tables_have_the_columns_that_views_promise(self, spark: "SparkSession", tmp_path: Path, log: Path) -> None:
        output = tmp_path / "out"
        self.write(spark, log, output, 0)
        for table, columns in TABLE_SCHEMAS.items():
            written = spark.read.parquet(str(output / table)).drop("date", "hour").schema
            promised = spark.createDataFrame([], columns).schema
            assert [(field.name, field.dataType) for field in written] == [(field.name, field.dataType) for field in promised], table
