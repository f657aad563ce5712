"""The job behind ``framegate pipeline run``: one streaming query from a tap's directory to the tables of an output folder.

It says on standard output how it goes, a JSON object on each line, member ``event``: ``started`` (with the pid), ``batch`` (a batch is in
the tables and committed: its rows, all rows so far, the bytes of log it took, what still waits, its duration), ``lag`` (what waits, when
that changed between batches), ``failed`` (why), ``stopped``.

SIGTERM or SIGINT lets the batch in hand finish, then stops; while Spark still starts, and the second time, it stops at once. A job that is
killed loses nothing: see ``tables.py``.
"""

import contextlib
import dataclasses
import errno
import fcntl
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING, Any, Final

from proxy.pipeline.manifest import ManifestError, has_batches
from proxy.pipeline.planner import Planner
from proxy.pipeline.session import SparkMissingError, local_session, open_private, spark_errors
from proxy.tap.record import FOLDER_MODE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from proxy.pipeline.tables import TableWriter

__all__ = ["EXIT_FAILED", "EXIT_OK", "EXIT_USAGE", "PipelineSettings", "run_pipeline", "start_query"]

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
POLL_S: Final = 0.2
LAG_S: Final = 1.0
STOP_GRACE_S: Final = 30.0
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_LOCK: Final = "_lock"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSettings:
    """What the job is told.

    Attributes:
        source: the tap's directory; must exist.
        output: the folder of the tables, on a file system of this host; created when missing.
        available_now: read what is there, then end; otherwise go on until stopped.
        trigger_ms: a batch begins this long after the one before began, at the earliest; 0: at once.
        max_bytes_per_trigger: bytes of log in a batch; it bounds the memory of the job.
        checkpoint: Spark's own log; ``<output>/_checkpoint`` when None. Belongs to the output: neither is of use without the other.
        consumer: the name under which retention knows the job; "" keeps it unknown.
        from_latest: begin with what is written from now on; only for a new checkpoint.
        fail_on_data_loss: fail when frames are gone before they were read.
        memory: heap of the JVM, as Java writes it: ``512m``, ``1g``.
        cores: task slots; all when None.
        spark: Spark settings over the job's own.
    """

    source: Path
    output: Path
    available_now: bool = False
    trigger_ms: int = 1000
    max_bytes_per_trigger: int = 128 << 20
    checkpoint: Path | None = None
    consumer: str = "pipeline"
    from_latest: bool = False
    fail_on_data_loss: bool = True
    memory: str = "1g"
    cores: int | None = None
    spark: dict[str, str] = dataclasses.field(default_factory=dict)


class UsageError(ValueError):
    """The job cannot begin as it was told to. The message is one line."""


class StoppedError(BaseException):
    """A signal ends the job at once; no ``except Exception`` on the way may keep it."""


def print_event(event: dict[str, Any]) -> None:
    """A line on standard output, at once."""
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def run_pipeline(
    settings: PipelineSettings,
    *,
    emit: Callable[[dict[str, Any]], None] = print_event,
    make_writer: "Callable[[Path], TableWriter] | None" = None,
) -> int:
    """Run the job to its end, or until SIGTERM or SIGINT.

    Args:
        settings: what to read and where to write.
        emit: takes the events.
        make_writer: makes the function that writes batches; ``TableWriter`` unless a test wraps it.

    Returns:
        An exit code: 0; 1 when the query failed; 2 when it could not begin: no Java or PySpark, no source, an output that cannot be written to,
        holds something else, is in use or whose checkpoint is missing; 128 and the number of the signal that ended it before it had done what
        it should: while Spark started, for the second time, or before an available-now job was through. What went wrong is one line on standard
        error.
    """
    stopping = _Stopping()
    try:
        with (
            _stop_signals(stopping),
            _exclusive(settings),
            local_session("framegate pipeline", cores=settings.cores, memory=settings.memory, settings=settings.spark) as spark,
        ):
            return _run(spark, settings, emit, make_writer, stopping)
    except (UsageError, ManifestError, SparkMissingError) as error:
        return _say(str(error), EXIT_USAGE)
    except StoppedError:
        return _say(stopping.word, stopping.exit_code)
    except spark_errors() as error:
        return _say(_reason(str(error)), EXIT_FAILED)


def _say(text: str, code: int) -> int:
    """One line for a person; the exit code that goes with it."""
    sys.stderr.write(f"framegate pipeline: {text}\n")
    return code


@contextlib.contextmanager
def _exclusive(settings: PipelineSettings) -> Iterator[None]:
    """Judge source and output, and hold the output for this process alone.

    Raises:
        UsageError: the source is no directory that can be read; the output cannot be written to or holds something else, another job holds it,
            or it has batches and no checkpoint that they came from.
    """
    if not os.path.isdir(settings.source):
        raise UsageError(f"--source: no directory {settings.source}")
    if not os.access(settings.source, os.R_OK | os.X_OK):
        raise UsageError(f"--source: {settings.source} cannot be read: {os.strerror(errno.EACCES)}")
    with _open_lock(settings.output) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"--output: another job writes to {settings.output}") from None
        if has_batches(settings.output) and not (_checkpoint(settings) / "metadata").exists():
            raise UsageError(
                f"--output: {settings.output} has batches, but there is no checkpoint at {_checkpoint(settings)}: a new query would count "
                "its batches from 0. Name the checkpoint they came from, or another output"
            )
        yield


def _open_lock(output: Path) -> IO[str]:
    """The file in the output that a job holds while it writes there; makes the folder.

    Raises:
        UsageError: it cannot be, or the folder holds something else than a job's.
    """
    try:
        output.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
        ours = (output / _LOCK).exists() or has_batches(output)
        strange = () if ours else sorted({path.name for path in output.iterdir()} - {"lost+found"})
        if strange:
            raise UsageError(f"--output: {output} holds something else ({strange[0]}); name a new folder")
        return open_private(output / _LOCK)
    except OSError as error:
        raise UsageError(f"--output: {output} cannot be written to: {error.strerror}") from error


def _checkpoint(settings: PipelineSettings) -> Path:
    return settings.checkpoint or settings.output / "_checkpoint"


class _Stopping:
    """What SIGTERM and SIGINT ask for: an end in order while the query runs, else at once, and at once when they come again.

    Attributes:
        asked: an end in order is wanted.
        in_order: it can be had.
    """

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.in_order = False
        self._number = 0

    @property
    def word(self) -> str:
        return "interrupted" if self._number == signal.SIGINT else "terminated"

    @property
    def exit_code(self) -> int:
        return 128 + self._number

    def on_signal(self, number: int, _frame: FrameType | None) -> None:
        """The handler.

        Raises:
            StoppedError: unless an end in order can be had, and this is the first to ask. What ends at once takes seconds; nobody need ask again.
        """
        self._number = number
        if self.in_order and not self.asked.is_set():
            self.asked.set()
            return
        for other in _SIGNALS:
            signal.signal(other, signal.SIG_IGN)
        raise StoppedError

    def listen(self) -> None:
        """Become the handler; once more when Spark has started, which has a handler of its own for SIGINT."""
        if _may_handle_signals():
            for number in _SIGNALS:
                signal.signal(number, self.on_signal)


@contextlib.contextmanager
def _stop_signals(stopping: _Stopping) -> Iterator[None]:
    """Hand SIGTERM and SIGINT to ``stopping``, where this thread may say so."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    stopping.listen()
    try:
        yield
    finally:
        if _may_handle_signals():
            for number, handler in before.items():
                signal.signal(number, handler)


def _may_handle_signals() -> bool:
    return threading.current_thread() is threading.main_thread()


def _run(
    spark: "SparkSession",
    settings: PipelineSettings,
    emit: Callable[[dict[str, Any]], None],
    make_writer: "Callable[[Path], TableWriter] | None",
    stopping: _Stopping,
) -> int:
    from proxy.pipeline.tables import TableWriter

    with contextlib.closing((make_writer or TableWriter)(settings.output)) as writer:
        return _follow(spark, settings, emit, writer, stopping)


def _follow(
    spark: "SparkSession", settings: PipelineSettings, emit: Callable[[dict[str, Any]], None], writer: "TableWriter", stopping: _Stopping
) -> int:
    """The query from its start to its end."""
    stopping.in_order = True
    stopping.listen()
    query = start_query(spark, settings, writer)
    reporter = _Reporter(settings, writer, query, emit)
    emit({"event": "started", "pid": os.getpid(), "source": str(settings.source), "output": str(settings.output), "total": writer.progress.total})
    while query.isActive and not stopping.asked.wait(POLL_S):
        reporter.report()
    _finish_batch(query)
    through = not query.isActive
    failure = query.exception() if through else None
    query.stop()
    if failure is not None:
        reason = _reason(str(failure))
        emit({"event": "failed", "reason": reason})
        return _say(reason, EXIT_FAILED)
    reporter.report()
    emit({"event": "stopped", "total": writer.progress.total, "lag_bytes": reporter.lag_bytes()})
    if settings.available_now and not through:
        return _say(f"{stopping.word} before everything was read", stopping.exit_code)
    return EXIT_OK


def start_query(spark: "SparkSession", settings: PipelineSettings, writer: Callable[["DataFrame", int], None]) -> "StreamingQuery":
    """The job's query in a session of the caller's, for whom this is one of several; ``run_pipeline`` is the job alone.

    Args:
        spark: a session that knows the source (``pyspark_framegate.register``).
        settings: memory, cores and spark are the session's affair.
        writer: takes each micro-batch: a ``TableWriter`` of the settings' output.
    """
    options = {
        "startingOffsets": "latest" if settings.from_latest else "earliest",
        "maxBytesPerTrigger": str(settings.max_bytes_per_trigger),
        "failOnDataLoss": str(settings.fail_on_data_loss).lower(),
        **({"consumer": settings.consumer} if settings.consumer else {}),
        **({"parallelism": str(settings.cores)} if settings.cores else {}),
    }
    chunks = spark.readStream.format("framegate").options(**options).load(str(settings.source.resolve()))
    query = chunks.writeStream.foreachBatch(writer).option("checkpointLocation", str(_checkpoint(settings).resolve()))
    if settings.available_now:
        return query.trigger(availableNow=True).start()
    return query.trigger(processingTime=f"{settings.trigger_ms} milliseconds").start()


def _finish_batch(query: "StreamingQuery") -> None:
    """Wait until the batch in hand is committed, so that stopping interrupts nothing that is nearly done; what it interrupts is replayed."""
    before = query.lastProgress
    deadline = time.monotonic() + STOP_GRACE_S
    while query.isActive and query.status["isTriggerActive"] and query.lastProgress == before and time.monotonic() < deadline:
        time.sleep(POLL_S / 4)


def _reason(message: str) -> str:
    """The line of Spark's long message that says what happened: the last one that names a Python error, else the first that is not py4j's."""
    stripped = (line.strip().removeprefix(": ") for line in message.splitlines())
    lines = [line for line in stripped if line and not line.startswith("An error occurred while calling")]
    errors = [line for line in lines if line.split(":")[0].endswith("Error") and not line.startswith(("at ", "Py4J"))]
    return (errors or lines or ["unknown"])[-1 if errors else 0]


class _Reporter:
    """Turns Spark's progress and the log's growth into events. Reports a batch once, after Spark committed it."""

    def __init__(self, settings: PipelineSettings, writer: "TableWriter", query: "StreamingQuery", emit: Callable[[dict[str, Any]], None]) -> None:
        self._writer = writer
        self._query = query
        self._emit = emit
        self._planner = Planner(settings.source, parallelism=1, fail_on_data_loss=False)
        self._read: dict[str, int] = {}
        self._last_batch = -1
        self._last_lag = -1
        self._lag_due = 0.0

    def report(self) -> None:
        """Emit what is new."""
        for progress in self._fresh():
            source = progress["sources"][0]
            before, self._read = _streams(source["startOffset"]), _streams(source["endOffset"])
            self._last_lag = self.lag_bytes()
            self._emit(
                {
                    "event": "batch",
                    "batch": progress["batchId"],
                    "rows": self._writer.rows_of.get(progress["batchId"], {}),
                    "total": self._writer.progress.total,
                    "bytes": _distance(before, self._read),
                    "lag_bytes": self._last_lag,
                    "duration_ms": progress["batchDuration"],
                    "at": progress["timestamp"],
                }
            )
        now = time.monotonic()
        if now >= self._lag_due:
            self._lag_due = now + LAG_S
            lag = self.lag_bytes()
            if lag != self._last_lag:
                self._last_lag = lag
                self._emit({"event": "lag", "lag_bytes": lag})

    def lag_bytes(self) -> int:
        """Bytes of log that no committed batch has."""
        return _distance(self._read, self._planner.ends())

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


def _streams(offset: Any) -> dict[str, int]:
    """The offsets in Spark's progress: an object, or its text."""
    found = json.loads(offset) if isinstance(offset, str) else offset
    streams: dict[str, int] = found["streams"] if found else {}
    return streams


def _distance(start: dict[str, int], end: dict[str, int]) -> int:
    """Bytes between two offsets; a stream that ``start`` does not name begins at 0."""
    return sum(max(0, offset - start.get(stream, 0)) for stream, offset in end.items())
