"""The pipeline's bench, ``make bench-pipeline``: rows a second beside Spark's own Parquet reader, delays, decoding, and an hour of tables in DuckDB.

A program of its own, because it compares nothing with other proxies and needs Java. ``--quick`` takes a fourth of the rows and of the time. The logs
are in memory (``/dev/shm``) where there is room. README.md describes the method.
"""

import argparse
import contextlib
import itertools
import json
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # the fakes of the tests write the logs

import duckdb  # noqa: E402
import pyarrow as pa  # noqa: E402
from deltalake import DeltaTable  # noqa: E402

from framegate.proxy.pipeline.chunk_rows import in_place  # noqa: E402
from framegate.proxy.pipeline.columns import TABLE_SCHEMAS, TIME_COLUMNS, arrow_schema  # noqa: E402
from framegate.proxy.pipeline.delta import DeltaTables, open_table  # noqa: E402
from framegate.proxy.pipeline.frame_contents import read_contents  # noqa: E402
from framegate.proxy.pipeline.schema import CHUNK_SCHEMA, JOB_SCHEMA  # noqa: E402
from framegate.proxy.pipeline.session import local_session  # noqa: E402
from framegate.proxy.pipeline.settings import PipelineSettings, SourceOptions  # noqa: E402
from framegate.proxy.pipeline.source import FramegateDataSource, read_chunks  # noqa: E402
from framegate.proxy.pipeline.tables import TableWriter  # noqa: E402
from tests.fakes import record_batches  # noqa: E402
from tests.fakes.tap_log import FakeProcessor  # noqa: E402

SHAPES = (("100 B", 100, 64, 96), ("1 KB", 1000, 16, 384), ("64 KB", 65536, 1, 384))  # name, bytes, frames of a chunk, MiB of bodies
COLUMNS = (
    "stream string, capture_time timestamp, connection_id bigint, listener string, direction string, frame_index int, sequence bigint, size int, "
    "payload binary, api_key int, api_version int, latency_us int, request_size int, correlation_id int"
)
CONNECTIONS = 50
BLOCK_BYTES = 256 << 10
SEGMENT_BYTES = 128 << 20
RATE = 400  # frames a second of the feeder
STEP_S = 0.02
WARM_UP_S = 15.0
START_S = 180.0
QUICKEST = {"spark.sql.streaming.pollingDelay": "1ms", "spark.sql.adaptive.enabled": "false"}
HOUR = datetime(2026, 11, 22, 7, tzinfo=UTC)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench-pipeline ARGS=…", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller and less exact")
    parser.add_argument("--rounds", type=int, default=5, help="of the rates (5)")
    options = parser.parse_args()
    part = 4 if options.quick else 1
    with scratch() as folder:
        rates(folder / "rates", options.rounds, part)
        delays(folder / "delays", 40.0 / part)
        decoding(folder / "decoding", options.rounds, 200_000 // part)
        hour(folder / "hour", options.rounds, 3_600_000 // part)
    return 0


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="framegate-pipeline-", dir=memory if shutil.disk_usage(memory).free > 6 << 30 else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def drain(batches: Iterator[Any]) -> None:
    for _ in batches:
        pass


def seconds(call: Callable[[], Any]) -> float:
    begun = time.monotonic()
    call()
    return time.monotonic() - begun


def in_turn(kinds: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """The median seconds of each, in rounds that begin with another one each time; the first round is for the compilers."""
    taken: dict[str, list[float]] = {name: [] for name in kinds}
    for number in range(rounds + 1):
        first = number % len(kinds)
        for name in [*kinds, *kinds][first : first + len(kinds)]:
            took = seconds(kinds[name])
            if number:
                taken[name].append(took)
    return {name: statistics.median(some) for name, some in taken.items()}


def rates(folder: Path, rounds: int, part: int) -> None:
    """Reading the log as frames, beside reading the same rows from Parquet files; and the job's whole batch, to tables on the disk."""
    plan = PipelineSettings(source=folder, output=folder).budget()
    print(f"rows a second, {plan.cores} tasks, median of {rounds} rounds\n")
    print(f"{'':6} {'frames':>9} {'source':>11} {'Parquet':>11} {'source ÷':>9} {'to tables':>11} {'MB/s':>6} {'tables ÷':>9}")
    with local_session("framegate bench") as spark:
        for name, size, per_chunk, mib in SHAPES:
            log, parquet, output = (folder / name / word for word in ("log", "parquet", "tables"))
            count = write_log(log, size, per_chunk, (mib << 20) // part // size)
            frames = spark.read.format("framegate").option("maxPartitionBytes", str(plan.partition)).option("parallelism", str(plan.cores))
            frames = frames.option("rows", "frames").schema(COLUMNS)
            frames.load(str(log)).write.parquet(str(parquet))
            spark.conf.set("spark.sql.parquet.columnarReaderBatchSize", str(max(64, min(4096, (4 << 20) // size))))

            def to_tables(log: Path = log, output: Path = output, count: int = count) -> None:
                shutil.rmtree(output, ignore_errors=True)
                with contextlib.closing(TableWriter(output, compact_ms=0, source=str(log))) as writer:
                    results = spark.read.format("framegate").options(maxPartitionBytes=str(plan.partition), parallelism=str(plan.cores))
                    writer(results.option("output", str(output)).load(str(log)), 0)
                    assert writer.total["frames"] == count

            def to_nothing(rows: Any) -> None:
                rows.write.format("noop").mode("overwrite").save()

            kinds: dict[str, Callable[[], Any]] = {
                "source": partial(lambda frames, log: to_nothing(frames.load(str(log))), frames, log),
                "parquet": partial(lambda parquet: to_nothing(spark.read.parquet(str(parquet))), parquet),
                "tables": to_tables,
            }
            assert spark.read.parquet(str(parquet)).count() == count
            took = in_turn(kinds, rounds)
            speed = {kind: count / some for kind, some in took.items()}
            megabytes = speed["tables"] * size / 1e6
            print(
                f"{name:6} {count:9,} {speed['source']:11,.0f} {speed['parquet']:11,.0f} {speed['source'] / speed['parquet']:9.2f} "
                f"{speed['tables']:11,.0f} {megabytes:6,.0f} {speed['tables'] / speed['parquet']:9.2f}",
                flush=True,
            )
            shutil.rmtree(folder / name)


def write_log(directory: Path, size: int, per_chunk: int, frames: int) -> int:
    """A complete log of random frames: chunks of fifty connections in turn. Returns their number."""
    processor = FakeProcessor(directory, segment_size=SEGMENT_BYTES)
    chunks = -(-frames // per_chunk)
    per_block = max(1, BLOCK_BYTES // (per_chunk * (size + 4)))
    for number in range(chunks):
        processor.send([os.urandom(size) for _ in range(per_chunk)], connection=number % CONNECTIONS, at_ns=time.time_ns())
        if number % per_block == per_block - 1:
            processor.flush()
    processor.close()
    return chunks * per_chunk


class Feeder(threading.Thread):
    """Appends frames of 100 B at a steady rate; ``appended`` has when they were in the log, and the number of frames with them."""

    def __init__(self, directory: Path) -> None:
        super().__init__(daemon=True)
        self.appended: list[tuple[float, int]] = []
        self.stopping = threading.Event()
        self._processor = FakeProcessor(directory)

    def run(self) -> None:
        count, begun = round(RATE * STEP_S), time.monotonic()
        for number in itertools.count(1):
            if self.stopping.wait(max(0.0, begun + number * STEP_S - time.monotonic())):
                return
            self._processor.block([os.urandom(100) for _ in range(count)], at_ns=time.time_ns())
            self.appended.append((time.monotonic(), number * count))


def watch(log: Path, lasting: float, frames: Callable[[], int]) -> list[float]:
    """How long each block took until its frames were seen, sorted; after the first were seen and a warm-up."""
    feeder = Feeder(log)
    feeder.start()
    seen: list[tuple[float, int]] = []
    begun, end = time.monotonic(), 0.0
    try:
        while not end or time.monotonic() < end or seen[-1][1] < [count for at, count in feeder.appended if at < end][-1]:
            if not end and time.monotonic() > begun + START_S:
                raise RuntimeError("no frame is to be seen")
            found = frames()
            if found > (seen[-1][1] if seen else 0):
                seen.append((time.monotonic(), found))
                end = end or time.monotonic() + WARM_UP_S + lasting
            time.sleep(0.005)
    finally:
        feeder.stopping.set()
        feeder.join()
    later = iter(seen)
    when, reached = next(later)
    taken = []
    for at, count in feeder.appended:
        while reached < count and (following := next(later, None)) is not None:
            when, reached = following
        if end - lasting <= at < end:
            taken.append(when - at)
    return sorted(taken)


def delays(folder: Path, lasting: float) -> None:
    """From a block in the log to its rows: in the tables of the job as it comes, and in a foreachBatch with the quickest settings."""
    tables = to_tables(folder / "tables", lasting)
    batches = to_batches(folder / "batches", lasting)
    print(f"\ndelay from the log to the rows, {RATE} frames/s, s\n\n{'':38} {'p50':>6} {'p95':>6} {'most':>6}")
    for name, taken in (("the job with its defaults, in the table", tables), ("foreachBatch, quickest settings", batches)):
        print(f"{name:38} {taken[len(taken) // 2]:6.3f} {taken[int(len(taken) * 0.95)]:6.3f} {taken[-1]:6.3f}", flush=True)


def to_tables(folder: Path, lasting: float) -> list[float]:
    log, output = folder / "log", folder / "tables"
    log.mkdir(parents=True)
    with (folder / "events").open("w") as events:
        command = [sys.executable, "-m", "framegate.control.cli", "pipeline", "run", "--source", str(log), "--output", str(output)]
        job = subprocess.Popen(command, stdout=events, start_new_session=True)
    table: DeltaTable | None = None

    def frames() -> int:
        nonlocal table
        if job.poll() is not None:
            raise RuntimeError(f"the job ended with {job.returncode}")
        if table is None:
            table = open_table(output, "frames") if output.exists() else None
            return 0
        table.update_incremental()
        return sum(pa.table(table.get_add_actions())["num_records"].to_pylist())

    try:
        return watch(log, lasting, frames)
    finally:
        job.terminate()
        job.wait(60)


def to_batches(folder: Path, lasting: float) -> list[float]:
    log = folder / "log"
    log.mkdir(parents=True)
    narrow = type(CHUNK_SCHEMA)([field for field in CHUNK_SCHEMA if field.name in ("offset", "frame_count")])
    seen = [0]

    def take(chunks: Any, _batch: int) -> None:
        seen[0] += sum(row.frame_count for row in chunks.collect())

    with local_session("framegate bench", cores=1, settings=QUICKEST) as spark:
        stream = spark.readStream.schema(narrow).format("framegate").option("parallelism", "1").load(str(log))
        into = stream.writeStream.foreachBatch(take).option("checkpointLocation", str(folder / "checkpoint"))
        query = into.trigger(processingTime="0 seconds").start()
        try:
            return watch(log, lasting, lambda: seen[0])
        finally:
            query.stop()


def decoding(folder: Path, rounds: int, pairs: int) -> None:
    """Produce requests of one batch with their answers, read as the source's tasks read them: without their contents, and with."""
    processor = FakeProcessor(folder, segment_size=SEGMENT_BYTES)
    ask = record_batches.produce(("orders", [record_batches.batch(record_batches.record())]))[4:]
    told = b"\0\0\0\1\0\2\7orders\2" + struct.pack(">ihqqq", 2, 0, 7, -1, 0) + b"\1\0\0\0" + bytes(5)
    many = 64
    for number in range(pairs // many):
        processor.send([ask] * many, connection=number % CONNECTIONS, protocol="kafka", at_ns=time.time_ns())
        facts: dict[str, Sequence[int]] = {"keys": [9] * many, "latencies": [9] * many, "correlations": [1] * many}
        processor.send([told] * many, connection=number % CONNECTIONS, direction="response", protocol="kafka", at_ns=time.time_ns(), **facts)
        if number % 16 == 15:
            processor.flush()
    processor.close()

    def read(schema: Any) -> Iterator[Any]:
        options = {"path": str(folder)}
        for partition in FramegateDataSource(options).reader(CHUNK_SCHEMA).partitions():
            yield from read_chunks(partition, in_place(schema), SourceOptions.parse(options))

    rows, _ = read_contents(value for batch in read(JOB_SCHEMA) for value in batch["decoded"].drop_null().to_pylist())
    assert rows.num_rows == rows["fault"].null_count == pairs // many * many * 2
    took = in_turn({"without": lambda: drain(read(CHUNK_SCHEMA)), "with": lambda: drain(read(JOB_SCHEMA))}, rounds)
    count = pairs // many * many
    more = took["with"] - took["without"]
    speed = f"{count / more:,.0f} requests/s; with reading {count / took['with']:,.0f}"
    print(f"\ndecoding {count:,} Produce requests and their answers, one process: {speed}")


def hour(folder: Path, rounds: int, rows: int) -> None:
    """The tables of an hour, as compaction leaves them: 20 files each."""
    tables = DeltaTables(folder)
    for table in TABLE_SCHEMAS:
        schema = pa.schema([field for field in arrow_schema(table) if field.name not in ("date", "hour")])
        many = (rows if table in ("frames", "requests") else rows // 100) // 20
        files = []
        for number in range(20):
            data = {name: pa.nulls(many, schema.field(name).type) for name in schema.names}
            first = HOUR + number * timedelta(minutes=3)
            times = pa.array(range(many), pa.int64())
            data[TIME_COLUMNS[table]] = pa.compute.add(
                pa.compute.multiply(times, 180_000_000 // many), int(first.timestamp() * 1e6)
            ).cast(pa.timestamp("us", "UTC"))  # fmt: skip
            if table == "requests":
                data |= {"api": pa.array(["Produce", "Fetch"] * (many // 2) + ["Fetch"] * (many % 2)), "latency_us": times.cast(pa.int32())}
            files += tables.write(table, pa.table(data))
        tables.commit(table, 0, "", files)

    def opened() -> duckdb.DuckDBPyConnection:
        connection = duckdb.connect()
        for table in TABLE_SCHEMAS:
            connection.register(table, DeltaTable(folder / table).to_pyarrow_dataset())
        return connection

    ready = opened()
    query = "SELECT api, count(*), quantile_cont(latency_us, 0.99) FROM requests GROUP BY api"
    took = in_turn({"open": opened, "query": lambda: ready.execute(query).fetchall()}, rounds)
    print(f"\nan hour of tables in DuckDB, {rows:,} frames and as many requests: open all {took['open']:.3f} s, p99 by API {took['query']:.3f} s")
    print(json.dumps({"at": datetime.now(UTC).isoformat(timespec="seconds"), "cores": len(os.sched_getaffinity(0)), "load": os.getloadavg()}))


if __name__ == "__main__":
    sys.exit(main())
