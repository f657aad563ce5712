"""Writes rows of a table as Parquet files, by the date and hour of their time. No file belongs to a table before the driver has committed it."""

import contextlib
import datetime
import secrets
import sys
import time
from types import TracebackType
from typing import IO, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from framegate.proxy.pipeline.columns import TIME_COLUMNS, arrow_schema
from framegate.proxy.pipeline.place import Place

PARTITION_COLUMNS: Final = ["date", "hour"]
ROW_GROUP_BYTES: Final = 32 << 20  # rows of all hours that wait for the next row groups
_HOUR_US: Final = 3_600_000_000


class TableFile(NamedTuple):
    """A file that is written. ``path``: in the folder of its table; ``first_us``, ``last_us``: least and greatest time of its rows, since 1970."""

    path: str
    date: str
    hour: str
    rows: int
    size: int
    first_us: int
    last_us: int
    modified_ms: int


class TableFiles:
    """The files of one task, or of the driver, for one table. A context manager: the files are there when it has ended without an error."""

    def __init__(self, place: Place, table: str) -> None:
        self.files: list[TableFile] = []  # when it has ended
        self._place = place
        self._table = table
        self._time = TIME_COLUMNS[table]
        schema = arrow_schema(table).remove_metadata()
        self._schema = pa.schema([field.remove_metadata() for field in schema if field.name not in PARTITION_COLUMNS])
        self._waiting: dict[int, list[pa.Table]] = {}
        self._waiting_bytes = 0
        self._open: dict[int, _OpenFile] = {}
        self._held = contextlib.ExitStack()

    def __enter__(self) -> "TableFiles":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            try:
                self._flush()
                self.files = [file.finish() for file in self._open.values()]
            except BaseException:
                if not self._held.__exit__(*sys.exc_info()):
                    raise
        self._held.__exit__(kind, error, trace)

    def add(self, rows: pa.Table) -> None:
        """Add rows. Their columns are those of the table, in any order, without the partitions."""
        rows = rows.select(self._schema.names).cast(self._schema)
        hours = rows[self._time].cast(pa.int64()).to_numpy() // _HOUR_US
        for hour in np.unique(hours).tolist():
            here = hours == hour
            mine = rows if here.all() else rows.filter(pa.array(here))
            self._waiting.setdefault(hour, []).append(mine)
            self._waiting_bytes += mine.nbytes
        if self._waiting_bytes >= ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        """Write what waits: a row group for each hour."""
        for hour, tables in self._waiting.items():
            if hour not in self._open:
                self._open[hour] = self._new(hour)
            self._open[hour].write(pa.concat_tables(tables))
        self._waiting.clear()
        self._waiting_bytes = 0

    def _new(self, hour: int) -> "_OpenFile":
        at = datetime.datetime.fromtimestamp(hour * 3600, datetime.UTC)
        path = f"date={at:%Y-%m-%d}/hour={at.hour}/{secrets.token_hex(16)}.parquet"
        file = self._held.enter_context(self._place.new_file(f"{self._table}/{path}"))
        made = _OpenFile(file, path, self._schema, self._time)
        self._held.callback(made.writer.close)
        return made


class _OpenFile:
    """A file that is being written."""

    def __init__(self, file: IO[bytes], path: str, schema: pa.Schema, time_column: str) -> None:
        self._file = file
        self._path = path
        self._time = time_column
        self._rows = 0
        self._bounds: list[int] = []
        names = [name for name in schema.names if name != "payload"]
        self.writer = pq.ParquetWriter(file, schema, compression="snappy", use_dictionary=names, write_statistics=names, store_schema=False)

    def write(self, rows: pa.Table) -> None:
        times = rows[self._time].cast(pa.int64()).to_numpy()
        self._bounds += [int(times.min()), int(times.max())]
        self._rows += rows.num_rows
        self.writer.write_table(rows, row_group_size=rows.num_rows)

    def finish(self) -> TableFile:
        self.writer.close()
        date, hour = (folder.partition("=")[2] for folder in self._path.split("/")[:2])
        facts = (self._rows, self._file.tell(), min(self._bounds), max(self._bounds), time.time_ns() // 1_000_000)
        return TableFile(self._path, date, hour, *facts)
