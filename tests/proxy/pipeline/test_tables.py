import contextlib
import datetime
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from framegate.proxy.pipeline import pyspark_framegate
from framegate.proxy.pipeline.columns import TABLE_SCHEMAS
from framegate.proxy.pipeline.delta import DeltaTables, compact
from framegate.proxy.pipeline.place import place_of
from framegate.proxy.pipeline.tables import BatchError, TableWriter
from framegate.proxy.pipeline.views import read_table, register_views
from framegate.proxy.server.rows import LostRow
from framegate.proxy.tap import record
from framegate.proxy.tap.gap import NO_CONNECTION, Gap
from tests.fakes import record_batches
from tests.fakes.outputs import Output, opened
from tests.fakes.tap_log import MINUTE_NS, START_NS, FakeProcessor

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NONE = dict.fromkeys(TABLE_SCHEMAS, 0)
OTHERS = tuple(table for table in TABLE_SCHEMAS if table not in ("frames", "nodes"))  # a folder has no nodes


def counts(**some: int) -> dict[str, int]:
    return {**NONE, **some}


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.slow
class TestWithSpark:
    def write(self, spark: "SparkSession", log: Path, output: Output, *batches: int) -> TableWriter:
        """A job that writes these batches and ends."""
        with contextlib.closing(TableWriter(output, compact_ms=0)) as writer:
            for batch in batches:
                writer(spark.read.format("framegate").option("output", str(output)).load(str(log)), batch)
        return writer

    def rows(self, spark: "SparkSession", output: Output, sql: str) -> list[tuple[object, ...]]:
        register_views(spark, output)
        return [tuple(row) for row in spark.sql(sql).collect()]

    @pytest.fixture(autouse=True)
    def told(self, request: pytest.FixtureRequest, spark: "SparkSession") -> Iterator[None]:
        """The session's Python processes, which may be older than the server, have its credentials."""
        if "s3" not in request.node.name:
            yield
            return
        told = request.getfixturevalue("s3").environment()
        spark.sparkContext.environment.update(told)
        pyspark_framegate.register(spark)
        yield
        for name in told:
            del spark.sparkContext.environment[name]
        pyspark_framegate.register(spark)

    @pytest.fixture
    def log(self, tmp_path: Path) -> Path:
        """Two frames, a Produce without an answer, an answer to a Heartbeat, a gap, the ends of two connections and of four that are missing."""
        processor = FakeProcessor(tmp_path / "log")
        processor.block([b"one", b"two"])
        processor.send(
            [record_batches.produce(("orders", [record_batches.batch(record_batches.record())]), acks=0)[4:]], connection=2, protocol="kafka"
        )
        processor.send([struct.pack(">ih", 7, 0)], direction="response", protocol="kafka", keys=[12 << 16], latencies=[9])
        processor.point(1, "request").lose(record.REASON_QUEUE_FULL, 4, 40, 2, START_NS)
        processor.end(1, at_ns=START_NS + 1_500_002_000)
        tls = {"version": "TLSv1.3", "cipher": "x", "certificate": "y"}
        told = {
            "mechanism": "PLAIN",
            "tls": tls,
            "broker": -1,
            "client_id": 'a"ü',
            "software": "",
            "lost": LostRow(bytes=9, request=9, response=0),
            "detail": "within a frame",
        }
        processor.end(2, at_ns=START_NS + 3_000_000_000, cause="peer_reset", side="upstream", handshake_ns=3_000, **told)
        missing = Gap(connection=NO_CONNECTION, direction=0, reason=record.REASON_DISK_FULL, listener="main", from_ns=START_NS)
        missing.add(4, 0, START_NS + 1_000_000_000)
        processor.flush()
        processor.writer.builder.add_end(missing)
        processor.close()
        return tmp_path / "log"

    def test_a_batch_written_twice_is_there_once(self, spark: "SparkSession", log: Path, output: Output) -> None:
        first = self.write(spark, log, output, 0, 1)
        again = self.write(spark, log, output, 1)
        assert first.rows_of[1] == counts(
            frames=4, requests=2, kafka_partitions=1, groups=1, gaps=2, connections=2, traffic_by_minute=2,
            completeness=first.rows_of[0]["completeness"],
        )  # fmt: skip
        assert first.total == {table: 2 * count for table, count in first.rows_of[1].items()}
        assert (again.rows_of, again.total) == ({1: NONE}, first.total)
        assert self.rows(spark, output, "select count(*), count(distinct date, hour), min(date), min(hour) from frames") == [
            (8, 1, datetime.date(2023, 11, 14), 22)
        ]
        assert self.rows(spark, output, "select direction, sum(frames), sum(lost_frames) from traffic_by_minute group by 1 order by 1") == [
            ("request", 6, 8),
            ("response", 2, 0),
        ]
        assert self.rows(spark, output, "select api, requests, answers, latency_us_p50, answer_bytes from requests_by_api order by 1") == [
            ("Heartbeat", 2, 2, 9, 12),
            ("Produce", 2, 0, None, None),
        ]

    @pytest.mark.parametrize("payload", ["full", "none"])
    def test_a_connection_is_a_row_with_what_the_log_of_framegate_says_of_it(
        self, spark: "SparkSession", tmp_path: Path, log: Path, payload: str
    ) -> None:
        output = tmp_path / "out"
        with contextlib.closing(TableWriter(output, compact_ms=0)) as writer:
            writer(spark.read.format("framegate").option("payload", payload).option("output", str(output)).load(str(log)), 0)
        rows = DeltaTable(tmp_path / "out" / "connections").to_pyarrow_table().sort_by("connection").to_pylist()
        at = datetime.datetime(2023, 11, 14, 22, 13, 20, tzinfo=datetime.UTC)
        first, second = ({name: value for name, value in row.items() if value is not None and name not in ("offset", "chunk_index")} for row in rows)
        common = {
            "node": "edge", "stream": "edge.0.b0", "listener": "main", "principal": "CN=a", "rule": "all", "protocol": "framed", "upstream": "u",
            "endpoint": "10.0.0.9:7", "duration_ms": 1500, "request_frames": 3, "request_bytes": 300, "response_frames": 2, "response_bytes": 200,
            "end_state": "open", "connect_us": 300, "attempts": 1, "date": datetime.date(2023, 11, 14), "hour": 22,
        }  # fmt: skip
        begun, ended = at + datetime.timedelta(microseconds=2), at + datetime.timedelta(seconds=1.500002)
        assert first == common | {
            "connection": "0-0-1", "connection_id": 1, "peer": "10.0.0.1:1", "opened_time": begun, "closed_time": ended, "capture_time": ended,
            "cause": "peer_closed", "side": "downstream", "level": "info", "unforwarded_bytes": 5,
        }  # fmt: skip
        begun, ended = at + datetime.timedelta(seconds=1.5), at + datetime.timedelta(seconds=3)
        assert second == common | {
            "connection": "0-0-2", "connection_id": 2, "peer": "10.0.0.1:2", "opened_time": begun, "closed_time": ended, "capture_time": ended,
            "cause": "peer_reset", "side": "upstream", "level": "warning", "unforwarded_bytes": 9, "detail": "within a frame", "broker": -1,
            "mechanism": "PLAIN", "tls_version": "TLSv1.3", "client_id": 'a"ü', "handshake_us": 3,
        }  # fmt: skip
        columns = "reason, listener, certainty, lost_frames, lost_ends, connection, date_diff(SECOND, lost_from, lost_until)"
        assert self.rows(spark, tmp_path / "out", f"select {columns} from gaps order by lost_ends") == [
            ("queue_full", "main", "exact", 4, 0, "0-0-1", 0),
            ("disk_full", "main", "exact", 0, 4, None, 1),
        ]
        assert self.rows(spark, tmp_path / "out", "select distinct state from completeness order by 1") == [("complete",), ("lost",)]

    @pytest.mark.parametrize(
        ("output", "committed"),
        [*(("folder", some) for some in ((), OTHERS[::2], OTHERS[1::2], OTHERS)), ("s3", OTHERS[::2])],
        indirect=["output"],
    )
    def test_a_batch_that_some_tables_have_is_in_no_view_and_comes_to_the_others(
        self, spark: "SparkSession", log: Path, output: Output, monkeypatch: pytest.MonkeyPatch, committed: Sequence[str]
    ) -> None:
        self.write(spark, log, output, 0)
        commit = DeltaTables.commit

        def crash(self: DeltaTables, table: str, *facts: Any) -> int:
            if table not in committed:
                raise KeyboardInterrupt
            return commit(self, table, *facts)

        names = ("frames", "requests", "kafka_partitions", "groups", "gaps", "connections", "traffic_by_minute_parts", "completeness_parts")

        def seen() -> list[int]:
            register_views(spark, output)
            return [spark.table(name).count() for name in names]

        before = seen()
        with monkeypatch.context() as patch:
            patch.setattr(DeltaTables, "commit", crash)
            with pytest.raises(KeyboardInterrupt):
                self.write(spark, log, output, 1)
        assert sum(read_table(spark, output, table).count() for table in TABLE_SCHEMAS) >= sum(before) + len(committed)
        assert seen() == before
        self.write(spark, log, output, 1)
        assert seen() == [2 * count for count in before]

    def test_a_batch_of_another_query_is_refused(self, spark: "SparkSession", log: Path, output: Output) -> None:
        try:
            spark.sparkContext.setLocalProperty("sql.streaming.queryId", "one")
            self.write(spark, log, output, 0, 1)
            with pytest.raises(BatchError, match="has batches up to 1, and batch 0 comes again"):
                self.write(spark, log, output, 0)
            spark.sparkContext.setLocalProperty("sql.streaming.queryId", "two")
            with pytest.raises(BatchError, match="the batches of another query"):
                self.write(spark, log, output, 2)
        finally:
            spark.sparkContext.setLocalProperty("sql.streaming.queryId", None)  # type: ignore[arg-type]

    def test_a_stream_says_which_query_it_is(self, spark: "SparkSession", tmp_path: Path, log: Path) -> None:
        with contextlib.closing(TableWriter(tmp_path / "out", compact_ms=0)) as writer:
            chunks = spark.readStream.format("framegate").option("output", str(tmp_path / "out")).load(str(log))
            query = chunks.writeStream.foreachBatch(writer).option("checkpointLocation", str(tmp_path / "state")).trigger(availableNow=True).start()
            assert query.awaitTermination(60)
        assert DeltaTable(tmp_path / "out" / "frames").transaction_version(query.id) == 0
        assert self.rows(spark, tmp_path / "out", "select count(*) from frames") == [(4,)]

    def test_compacted_tables_say_the_same(self, spark: "SparkSession", log: Path, output: Output) -> None:
        self.write(spark, log, output, *range(7))
        questions = [
            "select count(*), sum(crc32(payload)), sum(size), count(distinct connection), min(hour) from frames",
            "select count(*), sum(latency_us) from requests",
            "select count(*), sum(records), min(topic) from kafka_partitions",
            "select count(*), sum(lost_frames), min(lost_from), sum(lost_ends) from gaps",
            "select count(*), sum(request_bytes), min(opened_time), max(cause) from connections",
            "select * from traffic_by_minute order by all",
            "select * from completeness order by all",
        ]
        before = [self.rows(spark, output, question) for question in questions]
        for table in TABLE_SCHEMAS:
            compact(opened(output, table), place_of(output), table)
            assert len(opened(output, table).file_uris()) == (table != "nodes"), table
        assert [self.rows(spark, output, question) for question in questions] == before

    def test_frames_of_several_hours_are_in_their_hours(self, spark: "SparkSession", tmp_path: Path) -> None:
        processor = FakeProcessor(tmp_path / "log")
        for hour in range(26):
            processor.block([b"%d" % hour], at_ns=START_NS + hour * 60 * MINUTE_NS)
        processor.close()
        self.write(spark, tmp_path / "log", tmp_path / "out", 0)
        wrong = "date <> to_date(capture_time) or hour <> hour(capture_time)"
        assert self.rows(spark, tmp_path / "out", f"select count(*), count(distinct date, hour), count_if({wrong}) from frames") == [(26, 26, 0)]

    def test_views_of_an_output_without_batches_are_empty(self, spark: "SparkSession", tmp_path: Path) -> None:
        for _ in range(2):
            for view in (
                "frames",
                "requests",
                "kafka_partitions",
                "groups",
                "gaps",
                "connections",
                "traffic_by_minute",
                "requests_by_api",
                "completeness",
            ):
                assert self.rows(spark, tmp_path, f"select * from {view}") == []
            TableWriter(tmp_path, compact_ms=0).close()

    def test_files_have_the_columns_of_their_table(self, spark: "SparkSession", tmp_path: Path, log: Path) -> None:
        output = tmp_path / "out"
        self.write(spark, log, output, 0)
        for table, columns in TABLE_SCHEMAS.items() - {("nodes", TABLE_SCHEMAS["nodes"])}:  # of a fleet
            written = spark.read.parquet(str(output / table)).drop("date", "hour").schema
            promised = spark.createDataFrame([], columns).schema
            assert [(field.name, field.dataType) for field in written] == [(field.name, field.dataType) for field in promised], table
