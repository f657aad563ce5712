"""The settings of the job behind ``framegate pipeline run``, and the options of the Data Source ``framegate``, which ``source`` describes. Needs no
Spark.
"""

import dataclasses
import datetime
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from framegate.proxy.pipeline.memory import Budget, budget, heap_bytes, slots
from framegate.proxy.pipeline.place import absolute
from framegate.proxy.pipeline.planner import MAX_PARTITION_BYTES
from framegate.proxy.pipeline.wanted import EVERYTHING, Wanted, nanoseconds
from framegate.proxy.tap.record import DIRECTIONS
from framegate.proxy.tap.store import is_url, url_fault

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSettings:
    """The settings of the job."""

    source: Path | str  # the tap's directory, which must exist, or the URL of a fleet or a node in an object store
    output: Path | str  # the folder of the tables on this host, created when missing; or a URL in an object store
    available_now: bool = False  # read what is there, then end; otherwise go on until stopped
    trigger_ms: int = 800  # a batch begins this long after the one before began, at the earliest; 0: at once
    max_bytes_per_trigger: int | None = None  # bytes of log in a batch; None: as the heap allows
    payload: str = "full"  # ``full``, as far as the heap allows; ``none``; or so many bytes of each frame's body (``64``, ``4k``)
    compact_ms: int = 60_000  # small files of the tables are looked for this often; 0: never
    expire_after_s: float | None = None  # hours of the tables that ended longer ago than this are deleted; None: never
    checkpoint: Path | str | None = None  # Spark's own log; ``<output>/_checkpoint`` when None, which a URL cannot have. Both belong together.
    consumer: str = "pipeline"  # the name under which retention knows the job, and no other job of this tap; "": retention does not know the job
    start_from: str = "earliest"  # where a new checkpoint begins: ``earliest``, ``latest``, or a time (RFC 3339)
    fail_on_data_loss: bool = True  # fail when something is gone before it was read; otherwise go on, with a gap in its place
    memory: str = "1g"  # heap of the JVM, as Java writes it: ``512m``, ``1g``
    cores: int | None = None  # task slots; as many as processors, as far as the heap goes, when None
    spark: dict[str, str] = dataclasses.field(default_factory=dict)  # Spark settings over the job's own
    # a collector for spans and metrics of the batches over OTLP, ``http://host:port`` or ``https://host:port``; "": the one that the OTEL_* variables
    # name, if any
    telemetry: str = ""

    def budget(self) -> Budget:
        """How the heap is divided. Raises ValueError: it has no room for what was asked, or a size is not valid."""
        heap = heap_bytes(self.memory)
        cores = self.cores or slots(heap, len(os.sched_getaffinity(0)))
        return budget(heap, cores, batch=self.max_bytes_per_trigger, keep=parse_payload(self.payload, "--payload"))

    @property
    def in_store(self) -> bool:
        """Whether the source is in an object store."""
        return is_url(str(self.source))

    @property
    def place_of_source(self) -> str:
        """The source for any process of this host."""
        return str(self.source) if self.in_store else str(Path(self.source).resolve())

    @property
    def place_of_checkpoint(self) -> str:
        """The place of Spark's log. It identifies the job, because a checkpoint has one query."""
        place = self.checkpoint or f"{self.output}/_checkpoint"
        return absolute(place)

    @property
    def place_of_output(self) -> str:
        """The output for any process: an absolute path, or a URL."""
        return absolute(self.output)


def wants_telemetry(settings: PipelineSettings, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether batches are reported over OTLP: a collector is named, here or in the environment, and OTEL_SDK_DISABLED is not true."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    return bool(settings.telemetry or any(environ.get(name) for name in _ENDPOINTS))


CONSUMER_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
_NAMES: Final = (
    *("path", "startingOffsets", "failOnDataLoss", "rows", "payload", "parallelism"),
    *("maxBytesPerTrigger", "maxPartitionBytes", "consumer", "owner", "output", "node", "listener", "direction", "since", "until"),
)
_UNITS: Final = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


class OptionError(ValueError):
    """An option of the source that is missing or has a wrong value; the message names it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options, parsed; ``source`` describes them."""

    path: str
    frames: bool = False  # rows are frames, not chunks
    from_latest: bool = False
    since_ns: int = 0
    max_bytes_per_trigger: int | None = None
    fail_on_data_loss: bool = True
    keep: int | None = None
    consumer: str = ""
    owner: str = ""
    output: str = ""
    parallelism: int = 2
    max_partition_bytes: int = MAX_PARTITION_BYTES
    wanted: Wanted = EVERYTHING

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "SourceOptions":
        """Parse Spark's options; case does not matter in their names. Raises OptionError for the first wrong one."""
        known = {name.lower() for name in _NAMES}
        unknown = sorted(name for name in options if name.lower() not in known)
        if unknown:
            raise OptionError(f"{', '.join(unknown)}: no such option; there are {', '.join(_NAMES)}")
        options = {name.lower(): value for name, value in options.items()}
        path = options.get("path")
        if not path:
            raise OptionError("path: name the tap's directory, or its URL")
        fault = url_fault(path) if is_url(path) else ""
        if fault:
            raise OptionError(f"path: {path} {fault}")
        rows = options.get("rows", "chunks").lower()
        if rows not in ("chunks", "frames"):
            raise OptionError(f"rows: chunks or frames, not {rows}")
        starting = options.get("startingoffsets", "earliest")
        fail = options.get("failondataloss", "true").lower()
        if fail not in ("true", "false"):
            raise OptionError(f"failOnDataLoss: true or false, not {fail}")
        consumer = options.get("consumer", "")
        if consumer and is_url(path):
            raise OptionError("consumer: retention does not know the readers of an object store")
        if consumer and not re.fullmatch(CONSUMER_NAME, consumer):
            raise OptionError(f"consumer: letters, digits, dot, dash and underscore, not {consumer}")
        parallelism = options.get("parallelism", str(os.cpu_count() or 1))
        if not parallelism.isdecimal() or int(parallelism) < 1:
            raise OptionError(f"parallelism: a whole number from 1, not {parallelism}")
        limit = options.get("maxbytespertrigger")
        room = options.get("maxpartitionbytes")
        return cls(
            path=path.rstrip("/") if is_url(path) else path,
            frames=rows == "frames",
            from_latest=starting == "latest",
            since_ns=0 if starting in ("earliest", "latest") else parse_time(starting),
            max_bytes_per_trigger=None if limit is None else _size("maxBytesPerTrigger", limit),
            fail_on_data_loss=fail == "true",
            keep=parse_payload(options.get("payload", "full")),
            consumer=consumer,
            owner=options.get("owner", ""),
            output=options.get("output", ""),
            parallelism=int(parallelism),
            max_partition_bytes=MAX_PARTITION_BYTES if room is None else _size("maxPartitionBytes", room),
            wanted=_wanted(options),
        )


def _wanted(options: Mapping[str, str]) -> Wanted:
    """What the options of rows name. Raises OptionError."""
    words = {name: frozenset(word.strip() for word in options[name].split(",")) for name in ("node", "listener", "direction") if name in options}
    for direction in sorted(words.get("direction", frozenset()) - set(DIRECTIONS)):
        raise OptionError(f"direction: {' or '.join(DIRECTIONS)}, not {direction}")
    times = {name: parse_time(options[name], name, "") if name in options else 0 for name in ("since", "until")}
    return Wanted(**words, since_ns=times["since"], until_ns=times["until"])


def parse_time(text: str, name: str = "startingOffsets", others: str = "earliest, latest or ") -> int:
    """Nanoseconds of the wall clock at an RFC 3339 time. Raises OptionError: it is none, or has no offset from UTC."""
    try:
        at = datetime.datetime.fromisoformat(text)
        if at.tzinfo is None:
            raise ValueError("no offset")
    except ValueError:
        raise OptionError(f"{name}: {others}a time like 2026-05-01T08:00:00Z, not {text}") from None
    return nanoseconds(at)


def parse_payload(text: str, name: str = "payload") -> int | None:
    """How many bytes of each body to keep; None: all. Raises OptionError for another text."""
    if text in ("full", "none"):
        return None if text == "full" else 0
    return _size(name, text, "none, full or bytes like 64 or 4k")


def _size(name: str, text: str, wanted: str = "bytes above 0, like 67108864 or 64m") -> int:
    """Bytes as Spark writes them: 1048576, 64m, 1g."""
    found = re.fullmatch(r"(\d+)\s*([kmg]?)(?:i?b)?", text.strip().lower())
    if found is None or int(found[1]) == 0:
        raise OptionError(f"{name}: {wanted}, not {text}")
    return int(found[1]) * _UNITS[found[2]]
