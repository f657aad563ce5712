"""Delta Lake tables; written for real where Spark 4.2 and Delta Lake's jars are: FRAMEGATE_DELTA_JARS names the folder of the jars."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pyspark
import pytest

from framegate.proxy.pipeline import delta
from framegate.proxy.pipeline.delta import PACKAGES, DeltaMissingError, DeltaWriter, delta_settings
from framegate.proxy.pipeline.tables import TABLE_SCHEMAS
from framegate.proxy.pipeline.views import read_table, register_views
from framegate.proxy.tap import record
from tests.fakes.tap_log import MINUTE_NS, START_NS, FakeProcessor

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JARS = os.environ.get("FRAMEGATE_DELTA_JARS", "")
RELEASE = ".".join(pyspark.__version__.split(".")[:2])
WHY_NOT = "Delta Lake needs Spark 4.2 and its jars" if RELEASE not in PACKAGES or not JARS else ""


def test_a_spark_that_delta_does_not_work_with_is_one_line() -> None:
    for version in ("4.3.0", "4.3.1", "4.1.0"):
        with pytest.raises(DeltaMissingError) as said:
            delta_settings(version)
        assert str(said.value) == (
            f"--format delta does not work with Spark {version}: "
            "it needs Spark 4.2 (pip install 'pyspark==4.2.*') with io.delta:delta-spark_4.2_2.13:4.4.0"
        )


def test_a_spark_that_it_works_with_is_told_how() -> None:
    assert delta_settings("4.2.0")["spark.jars.packages"] == "io.delta:delta-spark_4.2_2.13:4.4.0"
    if RELEASE not in PACKAGES:
        with pytest.raises(DeltaMissingError, match=f"does not work with Spark {pyspark.__version__}"):
            delta_settings()


def test_the_writer_of_a_url_touches_nothing() -> None:
    writer = DeltaWriter("s3a://bucket/tables/")
    assert writer.path("frames") == "s3a://bucket/tables/frames"
    assert writer.progress.batch == -1
    writer.close()


def test_hours_are_dates_to_delta() -> None:
    assert delta._date(49) == "date_from_unix_date(2)"


def test_a_session_without_delta_is_said() -> None:
    session = SimpleNamespace(conf=SimpleNamespace(get=lambda key, default: default))
    with pytest.raises(DeltaMissingError, match="the session has no Delta Lake"):
        DeltaWriter("file:/nowhere")(SimpleNamespace(sparkSession=session), 0)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def lake() -> "Iterator[SparkSession]":
    """A session with Delta Lake; it must be the first of its process."""
    from pyspark.sql import SparkSession

    from framegate.proxy.pipeline.session import local_session

    if SparkSession.getActiveSession() is not None:
        pytest.skip("Delta Lake needs a run of its own: pytest tests/proxy/pipeline/test_delta.py")
    settings = {key: value for key, value in delta_settings().items() if key != "spark.jars.packages"}
    settings["spark.jars"] = ",".join(str(jar) for jar in sorted(Path(JARS).glob("*.jar")))
    with local_session("framegate delta tests", cores=2, settings=settings) as session:
        yield session


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
class TestForReal:
    @pytest.fixture
    def log(self, tmp_path: Path) -> Path:
        processor = FakeProcessor(tmp_path / "log")
        processor.block([b"one", b"two"])
        processor.block([b"later"], at_ns=START_NS + 60 * MINUTE_NS)
        processor.send([b"yes"], direction="response", protocol="kafka", keys=[3 << 16], latencies=[9], at_ns=START_NS + 60 * MINUTE_NS)
        processor.point(1, "request").lose(record.REASON_QUEUE_FULL, 4, 40, 2, START_NS)
        processor.close()
        return tmp_path / "log"

    def write(self, spark: "SparkSession", log: Path, output: str, *batches: int) -> DeltaWriter:
        with contextlib.closing(DeltaWriter(output, compact_ms=0, expire_after_s=None, grace_s=0)) as writer:
            for batch in batches:
                writer(spark.read.format("framegate").load(str(log)), batch)
        return writer

    def test_a_batch_written_twice_is_there_once(self, lake: "SparkSession", log: Path, tmp_path: Path) -> None:
        output = f"file:{tmp_path}/out"
        first = self.write(lake, log, output, 0, 1)
        again = self.write(lake, log, output, 1)
        assert first.rows_of[1] | {"completeness": 0} == {"frames": 4, "requests": 1, "gaps": 1, "traffic_by_minute": 4, "completeness": 0}
        assert again.rows_of == {1: dict.fromkeys(TABLE_SCHEMAS, 0)}
        assert again.progress.total == first.progress.total
        register_views(lake, tmp_path / "out")
        assert [tuple(row) for row in lake.sql("select hour, count(*) from frames group by 1 order by 1").collect()] == [(22, 4), (23, 4)]
        assert lake.sql("select sum(requests) from requests_by_api").collect()[0][0] == 2
        assert lake.sql("select sum(frames), sum(lost_frames) from traffic_by_minute").collect()[0] == (8, 8)
        assert lake.sql("select sum(stored) from completeness").collect()[0][0] == 8

    def test_a_batch_that_is_in_some_tables_comes_to_the_others(
        self, lake: "SparkSession", log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        output = str(tmp_path / "out")
        append = DeltaWriter._append

        def crash(self: DeltaWriter, table: str, *facts: object) -> int:
            if table != "frames":
                raise KeyboardInterrupt
            return append(self, table, *facts)  # type: ignore[arg-type]

        with monkeypatch.context() as patch:
            patch.setattr(DeltaWriter, "_append", crash)
            with pytest.raises(KeyboardInterrupt):
                self.write(lake, log, output, 0)
        assert read_table(lake, output, "frames").count() == 4
        assert read_table(lake, output, "requests").count() == 0
        self.write(lake, log, output, 0)
        assert read_table(lake, output, "frames").count() == 4
        assert read_table(lake, output, "requests").count() == 1

    def test_compaction_and_expiry(self, lake: "SparkSession", log: Path, tmp_path: Path) -> None:
        output = str(tmp_path / "out")
        self.write(lake, log, output, *range(3))
        before = read_table(lake, output, "frames").selectExpr("count(*)", "sum(crc32(payload))").collect()
        writer = DeltaWriter(output, compact_ms=0, expire_after_s=None, grace_s=0)
        writer.compact(lake)
        assert read_table(lake, output, "frames").selectExpr("count(*)", "sum(crc32(payload))").collect() == before
        assert len(read_table(lake, output, "frames").inputFiles()) == 2, "one for each hour"
        two_hours_later = START_NS / 1e9 + 2 * 3600
        DeltaWriter(output, compact_ms=0, expire_after_s=3600, grace_s=0, clock=lambda: two_hours_later).compact(lake)
        assert {row.hour for row in read_table(lake, output, "frames").collect()} == {23}

    def test_small_files_go_when_no_reader_needs_them(self, lake: "SparkSession", log: Path, tmp_path: Path) -> None:
        output = tmp_path / "out"
        self.write(lake, log, str(output), *range(3))
        many = len(list((output / "frames").rglob("*.parquet")))
        lake.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
        DeltaWriter(str(output), compact_ms=0, expire_after_s=None, grace_s=0.001).compact(lake)
        assert len(list((output / "frames").rglob("*.parquet"))) < many
        assert read_table(lake, output, "frames").count() == 12
