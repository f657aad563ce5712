"""Part `latency`: from a block in the log to its rows in the tables by the default job, and to a `foreachBatch` with the quickest settings."""

import json
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from candidates import Framegate
from figures import Figure, add
from pipeline_rates import on_all_cores, scratch, wait_until
from stage import Stage

from framegate.proxy.pipeline.manifest import read_manifest
from framegate.proxy.pipeline.schema import CHUNK_SCHEMA
from framegate.proxy.pipeline.session import local_session
from framegate.proxy.pipeline.tables import Progress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RATE = 400.0
WARM_UP_S = 15.0
SECONDS = 30.0
QUICK_SECONDS = 8.0
START_S = 300.0
GOALS_S = (0.8, 1.5)
GOAL_BATCH_S = 0.1
QUICKEST = {
    "spark.sql.streaming.pollingDelay": "1ms",
    "spark.sql.adaptive.enabled": "false",
}


def run(stage: Stage) -> dict[str, object]:
    """Both; every block's delay in seconds."""
    seconds = QUICK_SECONDS if stage.quick else SECONDS
    with on_all_cores(stage), scratch(stage) as folder:
        tables = _to_tables(folder / "tables", seconds)
        batches = _to_batches(folder / "batches", seconds)
    rows = [_line("tables, the job as it comes", tables), _line("foreachBatch, quickest settings", batches)]
    stage.table(f"latency: {RATE:.0f} frames/s, from the block in the log to its rows", ("to", "p50 s", "p95 s", "longest s", "blocks"), rows)
    p50, p95 = _quantile(tables, 0.5), _quantile(tables, 0.95)
    quick = _quantile(batches, 0.5)
    judged = [
        Figure("append to tables, p50", f"≤ {GOALS_S[0]} s", p50, "s", {}, p50 <= GOALS_S[0]),
        Figure("append to tables, p95", f"≤ {GOALS_S[1]} s", p95, "s", {}, p95 <= GOALS_S[1]),
        Figure("append to foreachBatch, p50", f"≤ {GOAL_BATCH_S} s", quick, "s", {}, quick <= GOAL_BATCH_S),
    ]
    return add({"tables_s": tables, "foreach_batch_s": batches}, judged)


def _quantile(values: Sequence[float], part: float) -> float:
    return sorted(values)[min(int(part * len(values)), len(values) - 1)]


def _line(name: str, delays: Sequence[float]) -> tuple[str, ...]:
    return (name, f"{statistics.median(delays):.3f}", f"{_quantile(delays, 0.95):.3f}", f"{max(delays):.3f}", f"{len(delays):,}")


class Watch:
    """The numbers of frames that were visible, with times."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []

    @property
    def frames(self) -> int:
        """The number that is visible now."""
        return self.seen[-1][1] if self.seen else 0

    def note(self, frames: int) -> None:
        """So many are visible now."""
        if frames > self.frames:
            self.seen.append((time.time_ns(), frames))

    def delays(self, appended: Sequence[tuple[int, int]]) -> list[float]:
        """Seconds for each block appended: (when, frames in the log with it)."""
        found = []
        seen = iter(self.seen)
        when, frames = next(seen)
        for at, count in appended:
            while frames < count:
                when, frames = next(seen)
            found.append((when - at) / 1e9)
        return found


@contextmanager
def _fed(log: Path, output: Path, seconds: float) -> Iterator[Callable[[], list[tuple[int, int]]]]:
    """Feed frames for so many seconds; gives what was appended so far."""
    command = [sys.executable, str(Path(__file__).with_name("pipeline_log.py")), str(log), str(RATE), str(seconds)]
    with output.open("w") as file:
        process = subprocess.Popen(command, stdout=file)

    def appended() -> list[tuple[int, int]]:
        lines = output.read_text().splitlines(keepends=True)
        return [(int(at), int(count)) for at, count in (line.split() for line in lines if line.endswith("\n"))]

    try:
        yield appended
    finally:
        process.terminate()
        process.wait()


def _watch(folder: Path, seconds: float, frames: Callable[[], int]) -> list[float]:
    """The delays of the blocks that are appended in so many seconds, after the first frames were visible and a warm-up."""
    watch = Watch()

    def look() -> int:
        watch.note(frames())
        return watch.frames

    with _fed(folder / "log", folder / "appended", 2 * START_S + WARM_UP_S + seconds) as appended:
        wait_until(lambda: look() > 0, START_S, "no frame is to be seen")
        begin = time.time_ns() + round(WARM_UP_S * 1e9)
        end = begin + round(seconds * 1e9)
        wait_until(lambda: bool(look()) and time.time_ns() > end, START_S, "the time is not over")
        blocks = [(at, count) for at, count in appended() if begin <= at < end]
        wait_until(lambda: look() >= blocks[-1][1], START_S, "the frames that were appended are not to be seen")
    return watch.delays(blocks)


def _to_tables(folder: Path, seconds: float) -> list[float]:
    """The command with its defaults; a block is visible when the manifest counts its frames."""
    output = folder / "output"
    (folder / "log").mkdir(parents=True)
    command = [Framegate.program(), "pipeline", "run", "--source", str(folder / "log"), "--output", str(output)]
    with (folder / "events").open("w") as events:
        job = subprocess.Popen(command, stdout=events, start_new_session=True)
    try:
        wait_until(lambda: '"started"' in (folder / "events").read_text() or job.poll() is not None, START_S, "the job does not start")
        if job.poll() is not None:
            raise RuntimeError(f"the job ended with {job.returncode}")
        return _watch(folder, seconds, lambda: Progress.of(read_manifest(output)).total["frames"])
    finally:
        job.send_signal(signal.SIGTERM)
        job.wait(START_S)


def _to_batches(folder: Path, seconds: float) -> list[float]:
    """One task slot, one partition, a narrow schema, batches without a pause. A row is visible when an action has returned it."""
    (folder / "log").mkdir(parents=True)
    narrow = CHUNK_SCHEMA.__class__([field for field in CHUNK_SCHEMA if field.name in ("offset", "frame_count")])
    seen = 0

    def take(chunks: "DataFrame", _batch: int) -> None:
        nonlocal seen
        seen += sum(row.frame_count for row in chunks.collect())

    with local_session("framegate bench", cores=1, settings=QUICKEST) as spark:
        stream = spark.readStream.schema(narrow).format("framegate").option("parallelism", "1").load(str(folder / "log"))
        query = (
            stream.writeStream.foreachBatch(take).option("checkpointLocation", str(folder / "checkpoint")).trigger(processingTime="0 seconds").start()
        )
        try:
            return _watch(folder, seconds, lambda: seen)
        finally:
            query.stop()
            if (failure := query.exception()) is not None:
                raise RuntimeError(json.dumps(str(failure)))
