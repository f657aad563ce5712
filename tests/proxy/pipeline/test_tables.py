import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from proxy.pipeline.tables import TABLE_SCHEMAS, Progress, TableWriter, register_views, view_statements
from proxy.tap import record
from tests.fakes.tap_log import START_NS, FakeProcessor

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

spark_test = [pytest.mark.spark, pytest.mark.slow]
NONE = dict.fromkeys(TABLE_SCHEMAS, 0)


def counts(**some: int) -> dict[str, int]:
    return {**NONE, **some}


def test_progress_adds_batches_and_replaces_a_replayed_one() -> None:
    one = Progress(-1, NONE, NONE).then(0, counts(frames=5))
    two = one.then(1, counts(frames=3))
    assert two.total["frames"] == 8
    assert two.then(1, counts(frames=3)) == two
    assert two.then(1, counts(frames=1)).total["frames"] == 6


def test_progress_survives_a_restart(tmp_path: Path) -> None:
    assert Progress.read(tmp_path).batch == -1
    progress = Progress(4, counts(frames=1), counts(frames=9, gaps=2))
    progress.write(tmp_path)
    assert Progress.read(tmp_path) == progress
    assert [path.name for path in tmp_path.iterdir()] == ["_progress.json"]


def test_views_are_plain_sql() -> None:
    statements = view_statements("/data/it's", last_batch=7)
    assert all(statement.strip().startswith("CREATE OR REPLACE TEMPORARY VIEW") for statement in statements)
    assert sum("WHERE batch_id <= 7" in statement for statement in statements) == len(TABLE_SCHEMAS)
    assert "it\\'s" in statements[0]


class TestWithSpark:
    pytestmark = spark_test

    def write(self, spark: "SparkSession", writer: TableWriter, log: Path, batch: int) -> None:
        writer(spark.read.format("framegate").load(str(log)), batch)

    def rows(self, spark: "SparkSession", output: Path, sql: str) -> list[tuple[object, ...]]:
        register_views(spark, output)
        return [tuple(row) for row in spark.sql(sql).collect()]

    def test_a_batch_written_twice_is_there_once(self, spark: "SparkSession", tmp_path: Path) -> None:
        log, output = tmp_path / "log", tmp_path / "out"
        processor = FakeProcessor(log)
        processor.block([b"one", b"two"])
        processor.send([b"yes"], direction="response", protocol="kafka", keys=[3 << 16], latencies=[9])
        processor.point(1, "request").lose(record.REASON_QUEUE_FULL, 4, 40, 2, START_NS)
        processor.close()
        for batch in (0, 1, 1):
            self.write(spark, TableWriter(output), log, batch)
        assert Progress.read(output) == Progress(
            1, counts(frames=3, requests=1, gaps=1, traffic_by_minute=3), counts(frames=6, requests=2, gaps=2, traffic_by_minute=6)
        )
        assert self.rows(spark, output, "select batch_id, count(*) from frames group by 1 order by 1") == [(0, 3), (1, 3)]
        assert self.rows(spark, output, "select direction, sum(frames), sum(lost_frames) from traffic_by_minute group by 1 order by 1") == [
            ("request", 4, 8),
            ("response", 2, 0),
        ]
        assert self.rows(spark, output, "select api, requests, latency_us_p50 from requests_by_api") == [("Metadata", 2, 9)]
        assert self.rows(spark, output, "select count(*) from traffic_by_minute_parts") == [(6,)]

    def test_a_replay_with_fewer_rows_takes_the_others_away(self, spark: "SparkSession", tmp_path: Path) -> None:
        log, less, output = tmp_path / "log", tmp_path / "less", tmp_path / "out"
        processor = FakeProcessor(log)
        processor.send([b"yes"], direction="response", protocol="kafka", keys=[3 << 16], latencies=[9])
        processor.close()
        FakeProcessor(less).block([b"one"])
        self.write(spark, TableWriter(output), log, 0)
        self.write(spark, TableWriter(output), less, 0)
        assert self.rows(spark, output, "select count(*) from requests") == [(0,)]
        assert self.rows(spark, output, "select direction, sum(frames) from traffic_by_minute group by 1") == [("request", 1)]

    def test_what_a_crash_leaves_behind_is_never_read(self, spark: "SparkSession", tmp_path: Path) -> None:
        log, output = tmp_path / "log", tmp_path / "out"
        FakeProcessor(log).block([b"one"])

        class Crash(TableWriter):
            def _publish(self, table: str, batch: int) -> None:
                if table != "frames":
                    raise KeyboardInterrupt
                super()._publish(table, batch)

        self.write(spark, TableWriter(output), log, 0)
        with pytest.raises(KeyboardInterrupt):
            self.write(spark, Crash(output), log, 1)
        register_views(spark, output, published_only=True)
        assert spark.table("frames").count() == spark.table("traffic_by_minute_parts").count() == 1
        assert self.rows(spark, output, "select count(*) from traffic_by_minute_parts") == [(1,)]
        self.write(spark, TableWriter(output), log, 1)
        assert self.rows(spark, output, "select count(*), count(distinct batch_id) from frames") == [(2, 2)]
        assert self.rows(spark, output, "select count(*) from traffic_by_minute_parts") == [(2,)]
        assert json.loads((output / "_progress.json").read_text())["total"]["frames"] == 2

    def test_views_of_an_output_without_batches_are_empty(self, spark: "SparkSession", tmp_path: Path) -> None:
        for table in TABLE_SCHEMAS:
            (tmp_path / table).mkdir()
        assert self.rows(spark, tmp_path, "select count(*) from frames") == [(0,)]
        assert self.rows(spark, tmp_path, "select * from traffic_by_minute") == []
        assert self.rows(spark, tmp_path, "select * from requests_by_api") == []

    def test_tables_have_the_columns_that_views_promise(self, spark: "SparkSession", tmp_path: Path) -> None:
        log, output = tmp_path / "log", tmp_path / "out"
        processor = FakeProcessor(log)
        processor.send([b"yes"], direction="response", protocol="kafka", keys=[3 << 16], latencies=[9])
        processor.point(1, "request").lose(record.REASON_QUEUE_FULL, 4, 40, 2, START_NS)
        processor.close()
        self.write(spark, TableWriter(output), log, 0)
        for table, columns in TABLE_SCHEMAS.items():
            written = spark.read.parquet(str(output / table / "batch_id=0")).schema
            promised = spark.createDataFrame([], columns).schema
            assert {field.name: field.dataType for field in written} == {field.name: field.dataType for field in promised}, table
