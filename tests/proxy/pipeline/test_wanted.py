"""What a filter leaves out has nothing of it, and what it may be about stays."""

import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, IsNotNull, LessThan, LessThanOrEqual

from framegate.proxy.pipeline.pyspark_framegate import register
from framegate.proxy.pipeline.wanted import EVERYTHING, Wanted
from framegate.proxy.tap.ledger import StreamRecord
from framegate.proxy.tap.log_reader import Segment
from framegate.proxy.tap.log_segments import CLOCKS_NS
from tests.fakes.cases import each_of
from tests.fakes.tap_log import MINUTE_NS, START_NS, FakeProcessor

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AT = datetime.datetime(2026, 5, 1, 8, tzinfo=datetime.UTC)
AT_NS = 1_777_622_400_000_000_000
DAY_NS = 24 * 3600 * 10**9


@each_of(
    ("filters", "wanted"),
    [
        ([], EVERYTHING),
        ([EqualTo(("node",), "a")], Wanted(node=frozenset({"a"}))),
        ([In(("node",), ("a", "b", None)), EqualTo(("node",), "b")], Wanted(node=frozenset({"b"}))),
        ([EqualTo(("listener",), "a"), EqualTo(("listener",), "b")], Wanted(listener=frozenset())),
        ([EqualTo(("direction",), "request"), IsNotNull(("direction",))], Wanted(direction=frozenset({"request"}))),
        ([GreaterThanOrEqual(("capture_time",), AT), LessThan(("capture_time",), AT)], Wanted(since_ns=AT_NS, until_ns=AT_NS + 1000)),
        ([GreaterThan(("capture_time",), AT), GreaterThan(("capture_time",), AT - datetime.timedelta(1))], Wanted(since_ns=AT_NS)),
        ([LessThanOrEqual(("capture_time",), AT)], Wanted(until_ns=AT_NS + 1000)),
        ([EqualTo(("capture_time",), AT)], Wanted(since_ns=AT_NS, until_ns=AT_NS + 1000)),
        ([EqualTo(("stream",), "x"), GreaterThan(("offset",), 7), EqualTo(("node", "x"), "a"), EqualTo(("capture_time",), None)], EVERYTHING),
    ],
)
def test_filters_of_spark_narrow_and_unknown_ones_do_not(filters: list[Filter], wanted: Wanted) -> None:
    assert EVERYTHING.narrowed(filters) == wanted


@each_of(
    ("wanted", "times"),
    [
        (Wanted(since_ns=AT_NS), [0, 1, 2, 9]),
        (Wanted(since_ns=AT_NS + 1000), [1, 2, 9]),
        (Wanted(since_ns=AT_NS + 1), [1, 2, 9]),
        (Wanted(until_ns=AT_NS + 2000), [-1, 0, 1]),
        (Wanted(since_ns=AT_NS + 1000, until_ns=AT_NS + 2000), [1]),
        (Wanted(listener=frozenset({"a"}), direction=frozenset({"request"})), [-1, 2, 9]),
    ],
)
def test_rows_are_cut_at_the_microsecond_and_a_row_of_any_listener_stays(wanted: Wanted, times: list[int]) -> None:
    offsets = [-1, 0, 1, 2, 9]
    batch = pa.RecordBatch.from_pydict(
        {
            "capture_time": pa.array([AT_NS // 1000 + offset for offset in offsets]).cast(pa.timestamp("us", "UTC")),
            "listener": ["a", "a", "b", None, "a"],
            "direction": ["request", "response", "request", "request", "request"],
        }
    )
    assert [value - AT_NS // 1000 for value in wanted.rows(batch)["capture_time"].cast(pa.int64()).to_pylist()] == times


def test_streams_segments_and_blocks_are_left_out_only_if_clocks_cannot_explain_it() -> None:
    record = StreamRecord(1, AT_NS, [("main", "request")])
    since, until = Wanted(since_ns=AT_NS), Wanted(until_ns=AT_NS)
    for past_ns, taken in ((-1, False), (0, True), (1, True)):
        written_ns = AT_NS - CLOCKS_NS + past_ns
        assert since.takes_segment(Segment("s", "p", 0, True, 1, written_ns)) == taken
        assert since.takes_times(0, written_ns) == taken
        assert until.takes_times(AT_NS + CLOCKS_NS - past_ns - 1, 1 << 62) == taken
        assert until.takes_stream(StreamRecord(1, AT_NS + CLOCKS_NS - past_ns - 1, [])) == taken
    assert until.takes_stream(StreamRecord(1, AT_NS + DAY_NS, [], recovery=True)), "its rows are about earlier times"
    for listener, taken in (("main", True), ("other", False)):
        assert Wanted(listener=frozenset({listener})).takes_stream(record) == taken
    assert Wanted(listener=frozenset({"other"})).takes_stream(None)
    assert [Wanted(node=frozenset({"a"})).takes_node(node) for node in "ab"] == [True, False]


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.slow
def test_where_reads_less_if_pushdown_is_on_and_gives_the_same(spark: "SparkSession", tmp_path: Path) -> None:
    register(spark)
    for node, hours in (("a", 0), ("b", 30)):
        processor = FakeProcessor(tmp_path, node=node, segment_size=1)
        for number in range(4):
            processor.block([b"%d" % number], at_ns=START_NS + (60 * hours + number) * MINUTE_NS)
        processor.close()
    question = "kind = 'frames' and node = 'b' and capture_time >= '2023-11-15T00:00:00Z' and direction in ('request')"
    found = []
    for enabled in ("false", "true"):
        spark.conf.set("spark.sql.python.filterPushdown.enabled", enabled)
        try:
            rows = spark.read.format("framegate").option("maxPartitionBytes", "1").load(str(tmp_path)).where(question)
            found.append((sorted((row.node, row.offset, bytes(row.data)) for row in rows.collect()), rows.rdd.getNumPartitions()))
        finally:
            spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    (plain, all_parts), (pushed, parts) = found
    assert plain == pushed
    assert len(plain) == 4
    assert parts < all_parts
