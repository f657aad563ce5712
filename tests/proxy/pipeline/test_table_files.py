"""Files by hour, and what is told of them."""

import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from framegate.proxy.pipeline import table_files
from framegate.proxy.pipeline.columns import arrow_schema
from framegate.proxy.pipeline.place import Folder
from framegate.proxy.pipeline.table_files import TableFiles

START = datetime.datetime(2026, 11, 22, 7, 59, 59, 999_999, tzinfo=datetime.UTC)


def rows(*times: datetime.datetime) -> pa.Table:
    schema = pa.schema([field for field in arrow_schema("nodes") if field.name not in ("date", "hour")])
    return pa.Table.from_pylist([{"heard_time": at, "node": "n"} for at in times], schema=schema)


@pytest.mark.parametrize(("room", "groups"), [(1, 3), (1 << 20, 1)])
def test_each_hour_has_a_file_and_row_groups_of_what_waited(tmp_path: Path, room: int, groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_files, "ROW_GROUP_BYTES", room)
    later = START + datetime.timedelta(microseconds=1)
    with TableFiles(Folder(tmp_path), "nodes") as written:
        for _ in range(3):
            written.add(rows(START, later, START))
        written.add(rows())
    first, second = sorted(written.files)
    assert (first.date, first.hour, first.rows, second.hour, second.rows) == ("2026-11-22", "7", 6, "8", 3)
    assert (first.first_us, first.last_us, second.first_us) == (*[int(START.timestamp()) * 1_000_000 + 999_999] * 2, first.first_us + 1)
    for file in (first, second):
        path = tmp_path / "nodes" / file.path
        assert (path.stat().st_size, pq.read_metadata(path).num_row_groups) == (file.size, groups)
        assert pq.read_table(path)["node"].to_pylist() == ["n"] * file.rows


def test_an_error_leaves_nothing_that_is_told(tmp_path: Path) -> None:
    with TableFiles(Folder(tmp_path), "nodes") as whole:
        whole.add(rows(START))
    written = TableFiles(Folder(tmp_path), "nodes")
    written.add(rows(START))
    with pytest.raises(KeyError), written:
        written.add(pa.table({"other": [1]}))
    assert len(whole.files) == 1
    assert written.files == []
