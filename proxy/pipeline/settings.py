"""The settings of the job behind ``framegate pipeline run``. Each field has its flag there."""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from framegate.proxy.pipeline.memory import Budget, budget, heap_bytes, slots
from framegate.proxy.pipeline.options import parse_payload

__all__ = ["PipelineSettings", "local_path", "wants_telemetry"]

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSettings:
    """The settings of the job.

    Attributes:
        source: the tap's directory; must exist.
        output: the folder of the tables, on a file system of this host; created when missing. For format delta also any path of Spark's.
        available_now: read what is there, then end; otherwise go on until stopped.
        trigger_ms: a batch begins this long after the one before began, at the earliest; 0: at once.
        max_bytes_per_trigger: bytes of log in a batch; None: as the heap allows.
        payload: ``full``, as far as the heap allows; ``none``; or so many bytes of each frame's body (``64``, ``4k``).
        format: of the tables: parquet, delta.
        compact_ms: small files of the tables are looked for this often; 0: never.
        expire_after_s: hours of the tables that ended longer ago than this are deleted; None: never.
        checkpoint: Spark's own log; ``<output>/_checkpoint`` when None. Output and checkpoint belong together.
        consumer: the name under which retention knows the job, and no other job of this tap; "": retention does not know the job.
        start_from: where a new checkpoint begins: ``earliest``, ``latest``, or a time (RFC 3339).
        fail_on_data_loss: fail when something is gone before it was read; otherwise go on, with a gap in its place.
        memory: heap of the JVM, as Java writes it: ``512m``, ``1g``.
        cores: task slots; as many as processors, as far as the heap goes, when None.
        spark: Spark settings over the job's own.
        telemetry: a collector for spans and metrics of the batches over OTLP, ``http://host:port`` or ``https://host:port``; "": the one that the
            OTEL_* variables name, if any.
    """

    source: Path
    output: Path | str
    available_now: bool = False
    trigger_ms: int = 800
    max_bytes_per_trigger: int | None = None
    payload: str = "full"
    format: str = "parquet"
    compact_ms: int = 60_000
    expire_after_s: float | None = None
    checkpoint: Path | str | None = None
    consumer: str = "pipeline"
    start_from: str = "earliest"
    fail_on_data_loss: bool = True
    memory: str = "1g"
    cores: int | None = None
    spark: dict[str, str] = dataclasses.field(default_factory=dict)
    telemetry: str = ""

    def budget(self) -> Budget:
        """How the heap is divided. Raises ValueError: it has no room for what was asked, or a size is not valid."""
        heap = heap_bytes(self.memory)
        cores = self.cores or slots(heap, len(os.sched_getaffinity(0)))
        return budget(heap, cores, batch=self.max_bytes_per_trigger, keep=parse_payload(self.payload))

    @property
    def place_of_checkpoint(self) -> str:
        """The place of Spark's log. It identifies the job, because a checkpoint has one query."""
        place = self.checkpoint or f"{self.output}/_checkpoint"
        found = local_path(place)
        return str(place) if found is None else str(found)


def wants_telemetry(settings: PipelineSettings, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether batches are reported over OTLP: a collector is named, here or in the environment, and OTEL_SDK_DISABLED is not true."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    return bool(settings.telemetry or any(environ.get(name) for name in _ENDPOINTS))


def local_path(place: Path | str) -> Path | None:
    """The absolute path, if the place is on this host; None for one with a scheme of Spark's."""
    text = str(place)
    if isinstance(place, str) and "://" in text:
        return None
    return Path(text.removeprefix("file:") if isinstance(place, str) else text).resolve()
