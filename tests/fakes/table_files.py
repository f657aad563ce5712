"""Parquet tables without Spark: batches of numbered rows staged as the pipeline stages them, and what readers see of them."""

import functools
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from framegate.proxy.pipeline.compaction import Rules
from framegate.proxy.pipeline.layout import FILES, ParquetStore
from framegate.proxy.pipeline.manifest import read_manifest
from framegate.proxy.pipeline.partial_sums import add_up

TIME_COLUMNS = {"rows": "capture_time", "sums": "minute"}
RULES = {
    "rows": Rules("capture_time", plain=("payload",)),
    "sums": Rules("minute", functools.partial(add_up, how={"frames": "sum", "first": "min", "last": "max"})),
}
HOUR_US = 3_600_000_000
START_US = 1_700_002_800_000_000  # 2023-11-14 23:00
_TIME = pa.timestamp("us", tz="UTC")


def stage(store: ParquetStore, batch: int, *, at_us: int | None = None, rows: int = 3, files: int = 1, payload: bytes = b"x") -> None:
    """Stage one batch: in ``rows`` its rows, numbered, in ``sums`` how many they are."""
    at = START_US + batch * 1_000_000 if at_us is None else at_us
    for part in range(files):
        numbers = range(part, rows, files)
        times = pa.array([at + number for number in numbers], type=_TIME)
        _write(store, "rows", at, part, {"capture_time": times, "batch": _longs([batch] * len(numbers)), "payload": [payload] * len(numbers)})
    minute = at // 60_000_000 * 60_000_000
    sums = {"minute": pa.array([minute], type=_TIME), "listener": pa.array([None], type=pa.string())}
    _write(store, "sums", at, 0, {**sums, "frames": _longs([rows]), "first": _longs([batch]), "last": _longs([batch])})


def publish(store: ParquetStore, batch: int, *, at_us: int | None = None, rows: int = 3, files: int = 1, payload: bytes = b"x") -> None:
    store.clear_staging()
    stage(store, batch, at_us=at_us, rows=rows, files=files, payload=payload)
    store.publish(batch, "query", TIME_COLUMNS)


def store_of(output: Path) -> ParquetStore:
    """The store of an output folder with these two tables."""
    return ParquetStore(output, TIME_COLUMNS)


def by_manifest(output: Path) -> tuple[list[int], int]:
    """What who reads by the manifest sees: the batch of each row, and the sum of ``sums``."""
    manifest = read_manifest(output)
    rows = [pq.ParquetFile(output / FILES / file.path).read() for file in manifest.of("rows")]
    sums = [pq.ParquetFile(output / FILES / file.path).read() for file in manifest.of("sums")]
    return _seen(rows, sums)


def by_folders(output: Path) -> tuple[list[int], int]:
    """The same for who reads folders."""
    found = {table: [pq.ParquetFile(path).read() for path in sorted((output / table).glob("date=*/hour=*/*.parquet"))] for table in TIME_COLUMNS}
    return _seen(found["rows"], found["sums"])


def _seen(rows: list[pa.Table], sums: list[pa.Table]) -> tuple[list[int], int]:
    return sorted(number for table in rows for number in table["batch"].to_pylist()), sum(sum(table["frames"].to_pylist()) for table in sums)


def _longs(values: list[int]) -> pa.Array:
    return pa.array(values, type=pa.int64())


def _write(store: ParquetStore, table: str, at_us: int, part: int, columns: dict[str, object]) -> None:
    hours = at_us // HOUR_US
    date = pa.scalar(hours // 24, type=pa.int32()).cast(pa.date32()).as_py()
    folder = store.staging / table / f"date={date}" / f"hour={hours % 24:02d}"
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), folder / f"part-{part}.parquet")
