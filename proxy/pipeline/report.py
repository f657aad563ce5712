"""Reports the batches of the job: Spark's progress and the log's growth as events."""

import contextlib
import dataclasses
import datetime
import json
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from framegate.proxy.pipeline.memory import large_frames
from framegate.proxy.pipeline.planner import Planner
from framegate.proxy.pipeline.settings import PipelineSettings, parse_payload
from framegate.proxy.tap.consumer import write_consumer
from framegate.proxy.tap.log_reader import segments

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from framegate.proxy.pipeline.tables import TableWriter
    from framegate.proxy.pipeline.telemetry import Telemetry

LAG_S: Final = 1.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BatchFacts:
    """A batch that is committed."""

    batch: int
    consumer: str  # the job's name as a consumer of the tap
    started_ns: int  # wall clock
    duration_ns: int  # from its trigger to its commit, by a monotonic clock
    steps_s: Mapping[str, float]  # the times of Spark's steps, by name
    # frames, bytes: that it wrote to the tables, and that it took of the log
    frames: int
    bytes: int
    minutes: Mapping[str, int]  # rows of the table ``completeness`` that it wrote, by state (``completeness.states``)
    segments: list[tuple[str, int]]  # that it read, by stream and base, in order; none of a store


class Reporter:
    """Turns Spark's progress and the log's growth into events. It reports a batch once, after Spark has committed it."""

    def __init__(
        self,
        settings: PipelineSettings,
        writer: "TableWriter",
        query: "StreamingQuery",
        emit: Callable[[dict[str, Any]], None],
        telemetry: "Telemetry | None" = None,
    ) -> None:
        self._settings = settings
        self._writer = writer
        self._query = query
        self._emit = emit
        self._telemetry = telemetry
        self._planner = None if settings.in_store else Planner(settings.source, parallelism=1, fail_on_data_loss=False)
        self._ends: dict[str, int] = {}
        plan = settings.budget()
        self._limit = plan.frame if parse_payload(settings.payload) is None else None
        self._read: dict[str, int] = {}
        self._last_batch = -1
        self._last_lag = -1
        self._lag_due = 0.0

    def report(self) -> None:
        for progress in self._fresh():
            source = progress["sources"][0]
            before, self._read = streams_of(source["startOffset"]), streams_of(source["endOffset"])
            batch, size = progress["batchId"], distance(before, self._read)
            self._ends = streams_of(source["latestOffset"])
            if self._limit is not None and self._planner is not None:
                cut = large_frames(self._planner, before, self._read, self._limit)
                if cut:
                    self._emit({"event": "cut", "batch": batch, "frames": len(cut), "largest": max(cut), "kept": self._limit})
            rows = self._writer.rows_of.get(batch, {})
            self._last_lag = self.lag_bytes()
            facts = {"rows": rows, "total": self._writer.total, "bytes": size, "lag_bytes": self._last_lag}
            self._emit({"event": "batch", "batch": batch, **facts, "duration_ms": progress["batchDuration"], "at": progress["timestamp"]})
            if self._telemetry is not None:
                self._telemetry.batch(
                    BatchFacts(
                        batch=batch,
                        consumer=self._settings.consumer,
                        started_ns=int(datetime.datetime.fromisoformat(progress["timestamp"]).timestamp() * 1000) * 1_000_000,
                        duration_ns=progress["batchDuration"] * 1_000_000,
                        steps_s={name: ms / 1000 for name, ms in progress["durationMs"].items()},
                        frames=rows.get("frames", 0),
                        bytes=size,
                        minutes=self._writer.states_of.get(batch, {}),
                        segments=[] if self._planner is None else segments_between(str(self._settings.source), before, self._read),
                    )
                )
        now = time.monotonic()
        if now >= self._lag_due:
            self._lag_due = now + LAG_S
            lag = self.lag_bytes()
            if lag != self._last_lag:
                self._last_lag = lag
                self._emit({"event": "lag", "lag_bytes": lag})

    def failed(self, reason: str) -> None:
        """Report the failure of the batch behind the last one to telemetry."""
        if self._telemetry is not None:
            self._telemetry.failed(self._last_batch + 1, reason, time.time_ns())

    def register(self) -> None:
        """Tell retention the position behind the last batch, when the query has ended: Spark tells its source only with the next batch."""
        if self._settings.consumer and self._read:
            with contextlib.suppress(OSError):  # a tap mounted read-only; the start of the query has reported it
                owner = self._settings.place_of_checkpoint
                write_consumer(str(self._settings.source), self._settings.consumer, self._read, time.time_ns(), owner)

    def lag_bytes(self) -> int:
        """Bytes of log that are in no committed batch; in a store, when the last one began."""
        return distance(self._read, self._ends if self._planner is None else self._planner.ends())

    def _fresh(self) -> list[dict[str, Any]]:
        """Progress of the batches since the last call, oldest first. Spark keeps the last 100, and repeats the last one while idle."""
        last = self._query.lastProgress
        if last is None or int(last["batchId"]) <= self._last_batch:
            return []
        fresh = [json.loads(progress.json) for progress in self._query.recentProgress]
        done = [progress for progress in fresh if progress["batchId"] > self._last_batch and "addBatch" in progress["durationMs"]]
        if done:
            self._last_batch = done[-1]["batchId"]
        return done


def streams_of(offset: Any) -> dict[str, int]:
    """The offsets in Spark's progress, which is an object or its text; of a store by node and stream."""
    found = json.loads(offset) if isinstance(offset, str) else offset
    nodes: dict[str, Any] = found.get("nodes", {}) if found else {}
    streams: dict[str, int] = found.get("streams", {}) if found else {}
    return streams | {f"{node}/{stream}": at for node, members in nodes.items() for stream, at in members.get("streams", {}).items()}


def segments_between(root: str, start: Mapping[str, int], end: Mapping[str, int]) -> list[tuple[str, int]]:
    """The segments that have data between two positions and still exist, by stream and base."""
    found: list[tuple[str, int]] = []
    for stream, offset in sorted(end.items()):
        begun = start.get(stream, 0)
        if begun < offset:
            found += [(stream, segment.base) for segment in segments(root, stream) if segment.base < offset and segment.limit > begun]
    return found


def distance(start: dict[str, int], end: dict[str, int]) -> int:
    """Bytes between two offsets; a stream that ``start`` does not name begins at 0."""
    return sum(max(0, offset - start.get(stream, 0)) for stream, offset in end.items())
