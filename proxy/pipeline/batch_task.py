"""What a task of the job does with the chunks that it reads: it writes the rows of the table ``frames`` as files, and makes what the driver needs for
the other tables. No frame passes the JVM: with Spark's Parquet writer a batch took three times as long.

The source gives the results as its rows, one for each thing, by kind: ``files`` (JSON), ``contents`` (of Kafka's frames, ``frame_contents``), or rows
of a table of ``derived`` (an Arrow stream). So a task needs nothing of the driver's machine if the output is a URL. A task that is run again writes
new files; those of the first run are in no table, and are removed when they are old.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import pyarrow as pa

from framegate.proxy.pipeline import chunk_rows, completeness, derived
from framegate.proxy.pipeline.place import place_of
from framegate.proxy.pipeline.table_files import TableFile, TableFiles

FILES: Final = "files"
CONTENTS: Final = "contents"
_RESULT: Final = pa.schema([("kind", pa.string()), ("value", pa.binary())])
_MERGES: Final = {"traffic_by_minute": derived.merge_traffic, "completeness": completeness.merge}


class ResultError(ValueError):
    """The results are of tasks that wrote to another output. The message is one line."""


def run_task(output: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write chunk rows to an output, an absolute path or a URL. Gives the results, with the columns of ``schema.RESULT_SCHEMA``."""
    found: dict[str, list[pa.Table]] = {}
    with TableFiles(place_of(output), "frames") as written:
        for chunks in batches:
            rows = chunk_rows.frames(chunks)
            written.add(rows)
            _make(found, derived.OF_FRAMES, rows.drop_columns("payload"))
            _make(found, derived.OF_GAPS_AND_TOTALS, chunk_rows.gaps_and_totals(chunks))
            _make(found, derived.OF_ENDS, chunk_rows.ends(chunks))
            yield _result(CONTENTS, chunks["decoded"].drop_null().to_pylist())
    for table, rows in merged(found).items():
        yield _result(table, [_encode(rows)])
    yield _result(FILES, [json.dumps([output, *written.files]).encode()])


def read_results(results: pa.Table, output: str) -> tuple[list[TableFile], list[bytes], dict[str, pa.Table]]:
    """The results of a batch: the files of the table ``frames``, the contents of Kafka's frames, and the rows of other tables. Raises ResultError."""
    files: list[TableFile] = []
    contents: list[bytes] = []
    found: dict[str, list[pa.Table]] = {}
    for kind, value in zip(results["kind"].to_pylist(), results["value"].to_pylist(), strict=True):
        if kind == FILES:
            where, *facts = json.loads(value)
            if where != output:
                raise ResultError(f"the tasks wrote to {where}, not to {output}")
            files += [TableFile(*fact) for fact in facts]
        elif kind == CONTENTS:
            contents.append(value)
        else:
            found.setdefault(kind, []).append(pa.ipc.open_stream(value).read_all())
    return files, contents, merged(found)


def merged(found: Mapping[str, list[pa.Table]]) -> dict[str, pa.Table]:
    """The rows of each table, those of the tables by minute added up."""
    tables = {table: pa.concat_tables(some) for table, some in found.items()}
    return {table: _MERGES[table](rows) if table in _MERGES else rows for table, rows in tables.items()}


def _make(found: dict[str, list[pa.Table]], makers: Mapping[str, derived.Maker], rows: pa.Table) -> None:
    if rows.num_rows:
        for table, make in makers.items():
            found.setdefault(table, []).append(make(rows))


def _result(kind: str, values: list[bytes]) -> pa.RecordBatch:
    return pa.record_batch([pa.repeat(kind, len(values)), pa.array(values, pa.binary())], schema=_RESULT)


def _encode(rows: pa.Table) -> bytes:
    """As an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    data: bytes = sink.getvalue().to_pybytes()
    return data
