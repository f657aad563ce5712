"""What becomes of frames, gaps and totals in the other tables. The log's own reader is what the numbers are compared with."""

import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from framegate.proxy.pipeline import derived, transforms
from tests.proxy.pipeline.test_transforms import chunks, write_mixed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.extended, pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    return write_mixed(tmp_path)


def test_traffic_adds_frames_wire_bytes_and_losses_by_minute(spark: "SparkSession", mixed: Path) -> None:
    source = chunks(spark, mixed)
    parts = [derived.traffic(transforms.frames(source).toArrow()), derived.traffic_lost(transforms.gaps_and_totals(source).toArrow())]
    columns = ("frames", "bytes", "cut_bytes", "lost_frames", "lost_bytes")
    table = pa.concat_tables(parts).to_pylist()
    rows = {(row["minute"], row["direction"], row["lost_frames"]): tuple(row[name] for name in columns) for row in table}
    first = datetime.datetime(2023, 11, 14, 22, 13, tzinfo=datetime.UTC)
    requests = sum(16 + number * 7 + 4 for number in range(20) for _ in range(3)) + 9 + 8
    assert rows == {
        (first, "request", 0): (62, requests, 5, 0, 0),
        (first, "response", 0): (40, 20 * (4 + 10), 0, 0, 0),
        (first + datetime.timedelta(minutes=1), "request", 0): (9, 60, 2 + 8 + 8, 0, 0),
        (first, "request", 7): (0, 0, 0, 7, 70),
    }


def test_a_gap_names_what_is_missing_and_why(spark: "SparkSession", mixed: Path) -> None:
    (row,) = derived.gaps(transforms.gaps_and_totals(chunks(spark, mixed)).toArrow()).to_pylist()
    names = ("connection", "direction", "first_sequence", "lost_frames", "lost_bytes", "reason", "certainty")
    assert tuple(row[name] for name in names) == ("0-0-2", "request", 2, 7, 70, "queue_full", "exact")
