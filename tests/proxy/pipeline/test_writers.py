from pathlib import Path

import pyarrow.parquet as pq
import pytest

from framegate.proxy.pipeline.manifest import ManifestError
from framegate.proxy.pipeline.tables import TABLE_SCHEMAS
from framegate.proxy.pipeline.writers import make_writer


def test_tables_of_an_earlier_layout_are_refused(tmp_path: Path) -> None:
    (tmp_path / "frames" / "batch_id=3").mkdir(parents=True)
    with pytest.raises(ManifestError, match=r"layout before this one \(frames/batch_id=3\); name a new folder"):
        make_writer(tmp_path)


def test_each_table_can_be_read_by_its_folder_before_it_has_rows(tmp_path: Path) -> None:
    for _ in range(2):  # again, by a job that begins anew
        make_writer(tmp_path, compact_ms=0).close()
        for table, columns in TABLE_SCHEMAS.items():
            files = sorted(tmp_path.glob(f"{table}/date=*/hour=*/*.parquet"))
            rows = pq.read_table(files)
            assert (rows.num_rows, rows.column_names) == (0, [column.split()[0] for column in columns.split(", ")] + ["date", "hour"])
