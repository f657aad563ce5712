"""The column ``decoded``: what the frames of some blocks say, in the first of their rows."""

import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from framegate.proxy.config.model import TapRule
from framegate.proxy.pipeline.decode import record_batch, record_batches
from framegate.proxy.pipeline.frame_contents import CONTENTS_SCHEMA, read_contents
from framegate.proxy.pipeline.schema import JOB_SCHEMA
from framegate.proxy.tap.log_reader import end_offset
from tests.fakes.slices import blocks
from tests.fakes.tap_log import START_NS, FakeProcessor
from tests.proxy.pipeline.test_kafka_tables import PRODUCE, produce, produced

SCHEMA = to_arrow_schema(JOB_SCHEMA, timezone="UTC")


def contents(directory: Path, *, keep: int | None = None) -> tuple[pa.Table, dict[str, int]]:
    """What is decoded of a log, read as one task does."""
    batches = record_batches("edge.0.b0", blocks(directory), SCHEMA, keep=keep)
    values = [value for batch in batches for value in batch["decoded"].to_pylist() if value is not None]
    table, ends = read_contents(values)
    table.validate(full=True)
    return table, ends


def write(directory: Path, **facts: Any) -> FakeProcessor:
    """A frame that is no request, two requests in a chunk, an answer, in three blocks."""
    processor = FakeProcessor(directory, **facts)
    processor.block([b"no request"], connection=2)
    processor.send([produce(1, "orders", 2, 3), produce(2, "orders", 4)], protocol="kafka", at_ns=START_NS + 2_000)
    processor.flush()
    processor.send(
        [produced(1, "orders", 7, 8)], direction="response", protocol="kafka", keys=[PRODUCE], latencies=[9], correlations=[1], at_ns=START_NS + 3_000
    )
    processor.close()
    return processor


@pytest.mark.parametrize("keep", [None, 0, 20])
def test_each_request_and_answer_is_a_row_with_its_place_whatever_is_kept_of_the_payload(tmp_path: Path, keep: int | None) -> None:
    write(tmp_path)
    table, ends = contents(tmp_path, keep=keep)
    found = blocks(tmp_path)
    last = found[-1].header
    assert ends == {"edge/edge.0.b0": last.offset + last.block_len}
    assert table.schema.equals(CONTENTS_SCHEMA)
    names = (
        "offset",
        "chunk_index",
        "frame_index",
        "sequence",
        "direction",
        "api_version",
        "correlation_id",
        "client_id",
        "latency_us",
        "connection_id",
    )
    second, third = (block.header.offset for block in found[1:3])
    assert [tuple(row[name] for name in names) for row in table.to_pylist()] == [
        (second, 0, 0, 0, "request", 9, 1, "c", None, 1),
        (second, 0, 1, 1, "request", 9, 2, "c", None, 1),
        (third, 0, 0, 0, "response", 9, 1, None, 9, 1),
    ]
    assert [[part["records"] for part in parts] for parts in table["partitions"].to_pylist()] == [[2, 3], [4], [None, None]]
    assert table["capture_time"][0].as_py() == datetime.datetime.fromtimestamp(START_NS / 1e9, datetime.UTC) + datetime.timedelta(microseconds=2)


def test_the_value_is_in_the_first_row_and_says_how_far_the_log_was_read_also_of_another_protocol(tmp_path: Path) -> None:
    """A processor that was killed may have written frames of another protocol last, and nothing behind them."""
    write(tmp_path)
    values = record_batch("s", blocks(tmp_path), SCHEMA)["decoded"].to_pylist()
    assert [value is not None for value in values] == [True, *[False] * (len(values) - 1)]
    other = FakeProcessor(tmp_path / "other")
    other.block([b"one"])
    other.flush()
    table, ends = contents(tmp_path / "other")
    assert (table.num_rows, ends) == (0, {"edge/edge.0.b0": end_offset(str(tmp_path / "other"), "edge.0.b0")})


def test_a_request_in_pieces_is_read_whole(tmp_path: Path) -> None:
    processor = FakeProcessor(tmp_path)
    processor.parts(produce(1, "orders", 2, 3), [40, 50], flush=True, protocol="kafka")
    processor.close()
    assert [part["records"] for part in contents(tmp_path)[0]["partitions"].to_pylist()[0]] == [2, 3]


def test_bytes_that_were_replaced_are_not_read(tmp_path: Path) -> None:
    write(tmp_path, rule=TapRule(name="blank", blank=("20-30",)))
    rows = contents(tmp_path)[0].to_pylist()
    assert {row["direction"] for row in rows} == {"response"}, "a request is known by its own bytes only"
    assert {row["fault"] for row in rows} == {"not captured whole"}
