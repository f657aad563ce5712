"""Part `rates`: rows per second through `explode_frames`, beside Spark's own Parquet stream of the very same rows, and what a first batch costs."""

import contextlib
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from figures import Figure, add
from pipeline_log import SHAPES, Set, Shape, write_set
from report import short
from stage import Stage

from framegate.proxy.pipeline.session import local_session
from framegate.proxy.pipeline.transforms import explode_frames

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SET_SIZE = 512 << 20
QUICK_SIZE = 64 << 20
SMALL_PART = 8
"""The small set, for the marginal rate, is this part of the large one."""
COLUMNS = ("stream", "capture_time", "connection_id", "listener", "direction")
GOAL_RATIO = 1.0
GOAL_FIXED_S = 0.4


@contextlib.contextmanager
def on_all_cores(stage: Stage) -> Iterator[None]:
    """Processes that are started within the block may use every core, not only the load generator's."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, stage.cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def scratch(stage: Stage) -> Iterator[Path]:
    """A temporary folder for logs and tables, in memory when there is room."""
    stage.place.tap_directory.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="pipeline-", dir=stage.place.tap_directory.parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run(stage: Stage) -> dict[str, object]:
    """Every shape; the raw rounds."""
    size = QUICK_SIZE if stage.quick else SET_SIZE
    with on_all_cores(stage), scratch(stage) as folder, local_session("framegate bench") as spark:
        results = {shape.name: _shape(stage, spark, folder, shape, size) for shape in SHAPES}
        fixed = _first_batch(stage, spark, folder)
    found = {name: _ratios(rows) for name, rows in results.items()}
    titles = ("shape × frames", "source rows/s", "MB/s", "Parquet rows/s", "÷ Parquet", "marginal ÷", "source s", "Parquet s")
    stage.table(
        f"rates: {size >> 20} MiB of bodies, one batch to a sink that keeps nothing", titles, [_line(shape, found[shape.name]) for shape in SHAPES]
    )
    stage.say(f"first batch of a log of one block, warm session: {short(statistics.median(fixed))} s ({short(min(fixed))} – {short(max(fixed))})")
    judged = []
    for shape in SHAPES:
        for words, key in (("rows/s", "ratio"), ("marginal rows/s", "marginal")):
            ratio = found[shape.name][key]
            judged.append(Figure(f"{words} ÷ Parquet, {shape.name}", f"≥ {GOAL_RATIO}", ratio, "×", {}, ratio >= GOAL_RATIO))
    once = statistics.median(fixed)
    judged.append(Figure("first batch, fixed", f"≤ {GOAL_FIXED_S} s", once, "s", {}, once <= GOAL_FIXED_S))
    return add({"set_size": size, "rounds": results, "first_batch_s": fixed}, judged)


def _shape(stage: Stage, spark: "SparkSession", folder: Path, shape: Shape, size: int) -> list[dict[str, float]]:
    """Rounds in which source and Parquet, large and small set, take turns."""
    place = folder / shape.name
    spark.conf.set("spark.sql.parquet.columnarReaderBatchSize", str(shape.rows_per_batch))
    sets = {"large": write_set(place / "large" / "log", shape, size), "small": write_set(place / "small" / "log", shape, size // SMALL_PART)}
    kinds: dict[str, Callable[[], DataFrame]] = {}
    for name, log in sets.items():
        parquet = log.directory.parent / "parquet"
        _as_parquet(spark, log, parquet)
        kinds[f"source {name}"] = partial(_source, spark, log.directory)
        kinds[f"parquet {name}"] = partial(_parquet, spark, parquet)
    names = list(kinds)
    rounds = []
    for number in range(-1, stage.rounds):  # the first one is for the compilers
        first = number % len(names)
        row = {name: _batch_s(place / "checkpoint", kinds[name]()) for name in (*names[first:], *names[:first])}
        if number >= 0:
            rounds.append({**row, "frames large": sets["large"].frames, "frames small": sets["small"].frames, "size": shape.size})
    shutil.rmtree(place)
    return rounds


def _source(spark: "SparkSession", log: Path) -> "DataFrame":
    return explode_frames(spark.readStream.format("framegate").load(str(log)), *COLUMNS)


def _parquet(spark: "SparkSession", files: Path) -> "DataFrame":
    return spark.readStream.schema(spark.read.parquet(str(files)).schema).parquet(str(files))


def _as_parquet(spark: "SparkSession", log: Set, parquet: Path) -> None:
    """Write the same rows as Parquet files, and check that every frame is in them."""
    explode_frames(spark.read.format("framegate").load(str(log.directory)), *COLUMNS).write.parquet(str(parquet))
    found = spark.read.parquet(str(parquet)).selectExpr("count(*) as frames", "sum(size) as size", "sum(length(payload)) as kept").first()
    if found is None or (found.frames, found.size, found.kept) != (log.frames, log.size, log.size):
        raise RuntimeError(f"{log.directory}: {log.frames} frames of {log.size} bytes were written, Spark reads {found}")


def _batch_s(checkpoint: Path, rows: "DataFrame") -> float:
    """Seconds of the only batch of a query, by Spark's own progress."""
    shutil.rmtree(checkpoint, ignore_errors=True)
    query = rows.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    batches: list[dict[str, Any]] = [json.loads(progress.json) for progress in query.recentProgress]
    (batch,) = [batch for batch in batches if batch["numInputRows"]]
    return float(batch["durationMs"]["triggerExecution"]) / 1000


def _first_batch(stage: Stage, spark: "SparkSession", folder: Path) -> list[float]:
    """A log with next to nothing in it."""
    log = write_set(folder / "one" / "log", SHAPES[0], 1)
    rows = [_batch_s(folder / "one" / "checkpoint", _source(spark, log.directory)) for _ in range(stage.rounds + 1)]
    return rows[1:]  # the first one is for the compilers


def _ratios(rounds: list[dict[str, float]]) -> dict[str, float]:
    """Of the medians."""
    middle = {name: statistics.median(row[name] for row in rounds) for name in rounds[0]}
    more = middle["frames large"] - middle["frames small"]
    slopes = {kind: (middle[f"{kind} large"] - middle[f"{kind} small"]) / more for kind in ("source", "parquet")}
    return {
        **middle,
        "ratio": middle["parquet large"] / middle["source large"],
        "marginal": slopes["parquet"] / slopes["source"] if min(slopes.values()) > 0 else 0.0,
    }


def _line(shape: Shape, found: dict[str, float]) -> tuple[str, ...]:
    frames, source, parquet = found["frames large"], found["source large"], found["parquet large"]
    speed = (f"{frames / source:,.0f}", f"{frames * shape.size / source / 1e6:,.0f}", f"{frames / parquet:,.0f}")
    return (f"{shape.name} × {frames:,.0f}", *speed, f"{found['ratio']:.2f}", f"{found['marginal']:.2f}", short(source), short(parquet))


def wait_until(done: Callable[[], bool], seconds: float, what: str) -> None:
    """Wait until the condition holds. Raises RuntimeError: not in time."""
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what}: not in {seconds:.0f} s")
        time.sleep(0.005)
