"""Chunks to frames without the JVM, beside what Spark makes of them."""

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from framegate.proxy.pipeline import chunk_rows, transforms
from framegate.proxy.pipeline.schema import JOB_SCHEMA
from framegate.proxy.pipeline.source import FramegateDataSource
from tests.proxy.pipeline.test_transforms import chunks, write_mixed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    return write_mixed(tmp_path)


def chunk_batches(log: Path) -> list[pa.RecordBatch]:
    """The chunks of a log as a task of the job has them."""
    reader = FramegateDataSource({"path": str(log)}).reader(JOB_SCHEMA)
    return [batch for partition in reader.partitions() for batch in reader.read(partition)]


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.slow
def test_the_job_makes_the_same_frames_without_the_jvm(spark: "SparkSession", mixed: Path) -> None:
    order = [("offset", "ascending"), ("chunk_index", "ascending"), ("frame_index", "ascending")]
    made = pa.concat_tables([chunk_rows.frames(batch) for batch in chunk_batches(mixed)]).sort_by(order)
    expected = transforms.frames(chunks(spark, mixed)).toArrow().sort_by(order)
    assert made.column_names == expected.column_names
    assert made.cast(expected.schema).to_pylist() == expected.to_pylist()
    thin = pa.concat_tables([chunk_rows.frames(batch.drop_columns(["sizes", "request_key", "node"])) for batch in chunk_batches(mixed)])
    assert (thin["api_key"].null_count, thin["node"].null_count, thin.num_rows) == (made.num_rows, made.num_rows, made.num_rows)


def test_facts_are_the_gaps_and_totals(mixed: Path) -> None:
    rows = [row for batch in chunk_batches(mixed) for row in chunk_rows.gaps_and_totals(batch).to_pylist()]
    assert {row["kind"] for row in rows} == {"gap", "totals"}
    assert {row["connection"] for row in rows if row["kind"] == "gap"} == {"0-0-2"}
