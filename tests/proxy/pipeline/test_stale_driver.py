"""Two jobs write to one output with one checkpoint: one was thought dead, and goes on at some time. No row is lost or doubled."""

import contextlib
import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from framegate.proxy.pipeline.delta import DeltaTables, TableError
from framegate.proxy.pipeline.schema import RESULT_SCHEMA
from framegate.proxy.pipeline.source import FramegateDataSource
from framegate.proxy.pipeline.tables import TableWriter
from framegate.proxy.tap.ledger import LEDGER_NAME
from framegate.proxy.tap.ledger_writer import LedgerWriter
from framegate.proxy.tap.log_reader import end_offset
from tests.fakes import record_batches
from tests.fakes.jobs import table as rows_in
from tests.fakes.outputs import Output
from tests.fakes.tap_log import START_NS, FakeProcessor


class Batch:
    """A micro-batch, as Spark hands it over: its tasks run when it is asked for."""

    def __init__(self, log: Path, output: Output) -> None:
        self.sparkSession = SimpleNamespace(sparkContext=SimpleNamespace(getLocalProperty=lambda name: "query"))
        self._options = {"path": str(log), "parallelism": "1", "output": str(output)}

    def toArrow(self) -> pa.Table:  # noqa: N802 - Spark's name
        reader = FramegateDataSource(self._options).reader(RESULT_SCHEMA)
        return pa.Table.from_batches([found for partition in reader.partitions() for found in reader.read(partition)])


class Stopping:
    """Calls a function before a call of a place or of a table's commit, by its number. It counts those calls; threads make them in turn."""

    def __init__(self, at: int, meanwhile: Callable[[], object]) -> None:
        self.calls = itertools.count()
        self.names: list[str] = []
        self._lock = threading.RLock()
        self._at = at
        self._meanwhile = meanwhile

    def wrap(self, target: Any, *names: str) -> None:
        for name in names:
            setattr(target, name, self._stopping(name, getattr(target, name)))

    def _stopping(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def made(*args: Any, **options: Any) -> Any:
            with self._lock:
                self.names.append(name)
                if next(self.calls) == self._at:
                    self._meanwhile()
                return call(*args, **options)

        return made


@pytest.fixture
def logs(tmp_path: Path) -> list[Path]:
    """Of each batch; in the first one is a request without an answer, and its stream has no end yet."""
    for number in range(4):
        folder = tmp_path / f"log{number}"
        folder.mkdir()
        with contextlib.closing(LedgerWriter(str(folder))) as ledger:
            processor = FakeProcessor(folder, boot_id=f"b{number}")
            ledger.born(processor.stream, [("main", "request")], START_NS)
            produce = record_batches.produce(("orders", [record_batches.batch(record_batches.record())]), acks=1)[4:]
            processor.send([produce], protocol="kafka", at_ns=START_NS)
            processor.close()
    return sorted(tmp_path.glob("log?"))


def end(log: Path) -> None:
    with contextlib.closing(LedgerWriter(str(log))) as ledger:
        for stream in ledger.ledger.streams:
            ledger.ended(stream, end_offset(str(log), stream), START_NS, settled=True)


def disturbed(logs: list[Path], output: Output, at: int, more: int) -> tuple[list[str], str]:
    """A job is stopped before a call of its first batch. Another one takes its place, writes ``more`` batches, and dies in the next one. The former
    one goes on, and a third job ends the work. Returns the calls of the former one, and how it ended.
    """
    known, ledger = str(logs[0]), logs[0] / LEDGER_NAME
    content = ledger.read_bytes()
    former = TableWriter(output, compact_ms=0, source=known)
    dies: list[BaseException] = []

    def meanwhile() -> None:
        end(logs[0])
        with contextlib.closing(TableWriter(output, compact_ms=0, source=known)) as live:
            for number in range(more):
                live(Batch(logs[number], output), number)  # type: ignore[arg-type]
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(DeltaTables, "commit", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
                try:
                    live(Batch(logs[more], output), more)  # type: ignore[arg-type]
                except KeyboardInterrupt as error:
                    dies.append(error)

    stopping = Stopping(at, meanwhile)
    stopping.wrap(former._tables, "commit", "batches", "read_state", "write_state")
    stopping.wrap(former._tables.place, "names", "read", "create", "remove", "new_file")
    said = ""
    try:
        former(Batch(logs[0], output), 0)  # type: ignore[arg-type]
    except (TableError, OSError) as error:
        said = str(error)
    if at >= 0:
        assert dies, "the other one has begun another batch"
        with contextlib.closing(TableWriter(output, compact_ms=0, source=known)) as last:
            for number in range(more, len(logs)):
                last(Batch(logs[number], output), number)  # type: ignore[arg-type]
    ledger.write_bytes(content)
    return stopping.names, said


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize(("output", "more"), [("folder", 1), ("folder", 3), ("s3", 1)], indirect=["output"])
def test_wherever_a_stale_job_goes_on_each_row_is_there_once(logs: list[Path], output: Output, more: int) -> None:
    """Before any of its calls, in a folder; elsewhere before those that write what the next batch needs."""
    logs = logs[: more + 1]
    names, _ = disturbed(logs, f"{output}-alone" if isinstance(output, str) else output / "alone", -1, more)
    faults = []
    wanted = [f"edge.0.b{number}" for number in range(len(logs))]
    everywhere = isinstance(output, Path) and more == 1
    for at in (at for at, name in enumerate(names) if everywhere or name in ("write_state", "create")):
        place: Output = f"{output}{at}" if isinstance(output, str) else output / str(at)
        _, said = disturbed(logs, place, at, more)
        found = {table: sorted(row["stream"] for row in rows_in(place, table)) for table in ("frames", "requests")}
        if found != {"frames": wanted, "requests": wanted[:1]}:  # the requests of the other batches wait
            faults.append((at, names[at], found, said))
    assert faults == []
