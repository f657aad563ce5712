"""What becomes of frames, gaps and totals in the other tables. The log's own reader is what the numbers are compared with."""

import datetime
from pathlib import Path

import pyarrow as pa
import pytest

from framegate.proxy.pipeline import chunk_rows, derived
from tests.proxy.pipeline.test_chunk_rows import chunk_batches, write_mixed


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    return write_mixed(tmp_path)


def test_traffic_adds_frames_wire_bytes_and_losses_by_minute(mixed: Path) -> None:
    batches = chunk_batches(mixed)
    parts = [derived.merge_traffic(pa.concat_tables([derived.traffic(chunk_rows.frames(batch)) for batch in batches]))]
    parts += [derived.traffic_lost(chunk_rows.gaps_and_totals(batch)) for batch in batches]
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


def test_a_gap_names_what_is_missing_and_why(mixed: Path) -> None:
    (row,) = (row for batch in chunk_batches(mixed) for row in derived.gaps(chunk_rows.gaps_and_totals(batch)).to_pylist())
    names = ("connection", "direction", "first_sequence", "lost_frames", "lost_bytes", "reason", "certainty")
    assert tuple(row[name] for name in names) == ("0-0-2", "request", 2, 7, 70, "queue_full", "exact")
