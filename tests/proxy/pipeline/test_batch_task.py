"""What the tasks of a batch write and give, without Spark."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

from framegate.proxy.pipeline.batch_task import ResultError, read_results, run_task
from framegate.proxy.pipeline.delta import DeltaTables
from framegate.proxy.pipeline.place import absolute
from framegate.proxy.pipeline.schema import RESULT_SCHEMA
from framegate.proxy.pipeline.source import FramegateDataSource
from tests.fakes.jobs import table
from tests.fakes.outputs import Output, files_in
from tests.fakes.tap_log import MINUTE_NS, START_NS, FakeProcessor
from tests.proxy.pipeline.test_chunk_rows import chunk_batches


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Frames of three hours."""
    processor = FakeProcessor(tmp_path / "log")
    for hour in range(3):
        for number in range(4):
            processor.send([bytes([hour, number, index]) * index for index in range(5)], connection=number, at_ns=START_NS + hour * 60 * MINUTE_NS)
        processor.flush()
    processor.close()
    return tmp_path / "log"


def results(log: Path, output: str) -> pa.Table:
    """Of one task, as the source gives them."""
    source = FramegateDataSource({"path": str(log), "output": output})
    assert source.schema() == RESULT_SCHEMA
    reader = source.reader(RESULT_SCHEMA)
    return pa.Table.from_batches(batch for partition in reader.partitions() for batch in reader.read(partition))


def test_a_task_that_runs_twice_is_in_the_table_once(log: Path, output: Output) -> None:
    tables, place = DeltaTables(output), absolute(output)
    files, _, made = read_results(results(log, place), place)
    read_results(results(log, place), place)  # its results are lost
    assert (len(files), len(files_in(output))) == (3, 6)
    assert tables.commit("frames", 0, "query", files) == 60
    bodies = sorted(row["payload"] for row in table(output, "frames", "payload"))
    assert bodies == sorted(bytes([hour, number, index]) * index for hour in range(3) for number in range(4) for index in range(5))
    assert sum(made["traffic_by_minute"]["frames"].to_pylist()) == 60
    assert sum(made["completeness"]["stored"].to_pylist()) == 60


def test_a_task_that_fails_leaves_no_file_in_a_store(log: Path, s3: object) -> None:
    def broken() -> object:
        yield from chunk_batches(log)
        raise OSError("torn")

    with pytest.raises(OSError, match="torn"):
        list(run_task("s3://taps/tables", broken()))  # type: ignore[arg-type]
    assert files_in("s3://taps/tables") == set()


def test_files_of_another_output_are_refused(log: Path, tmp_path: Path) -> None:
    found = results(log, str(tmp_path / "one"))
    (value,) = [row["value"] for row in found.to_pylist() if row["kind"] == "files"]
    assert json.loads(value)[0] == str(tmp_path / "one")
    with pytest.raises(ResultError, match=r"the tasks wrote to .*/one, not to .*/two"):
        read_results(found, str(tmp_path / "two"))
