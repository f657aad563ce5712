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
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple

from proxy.pipeline.manifest import ManifestError, has_batches
from proxy.pipeline.memory import Budget
from proxy.pipeline.options import CONSUMER_NAME, parse_time
from proxy.pipeline.report import Reporter
from proxy.pipeline.session import SparkLog, SparkMissingError, local_session, open_private, require_packages, spark_errors
from proxy.pipeline.settings import PipelineSettings, local_path
from proxy.tap.consumer import ConsumerInUseError, claim_consumer
from proxy.tap.record import FOLDER_MODE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from proxy.pipeline.tables import TableWriter, Writer

__all__ = ["EXIT_FAILED", "EXIT_OK", "EXIT_USAGE", "run_pipeline", "start_query"]

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
POLL_S: Final = 0.2
STOP_GRACE_S: Final = 30.0
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_LOCK: Final = "_lock"


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
        make_writer: makes the function that writes batches; ``tables.make_writer`` unless a test wraps it.

    Returns:
        An exit code: 0; 1 when the query failed; 2 when it could not begin: no Java or PySpark, no source, an output that cannot be written to,
        holds something else, is in use or whose checkpoint is missing, a consumer's name that another job has, a heap that is too small; 128 and
        the number of the signal that ended it before it had done what it should: while Spark started, for the second time, or before an
        available-now job was through. What went wrong is one line on standard error.
    """
    stopping = _Stopping()
    with SparkLog() as log:
        try:
            with contextlib.redirect_stderr(log.stream):  # PySpark's threads print what they meet when the JVM goes
                ending = _job(settings, emit, make_writer, stopping, log)
        except (UsageError, SparkMissingError, ManifestError) as error:
            return _report(str(error), EXIT_USAGE)
        except StoppedError:
            return _report(stopping.word, stopping.exit_code)
        except spark_errors() as error:
            if not stopping.asked.is_set():
                return _fail(log, log.reason() or _reason(str(error)))
            ending = _stopped(settings, stopping, through=False)  # who stops us stopped Spark's processes, too
        if ending.code == EXIT_FAILED:
            return _fail(log, ending.text)
        return _report(ending.text, ending.code) if ending.text else ending.code


class _Ending(NamedTuple):
    """An exit code, and what a person is told with it; "" for nothing."""

    code: int
    text: str = ""


def _stopped(settings: PipelineSettings, stopping: "_Stopping", *, through: bool) -> _Ending:
    """How a job ends that did not fail."""
    if settings.available_now and not through:
        return _Ending(stopping.exit_code, f"{stopping.word} before everything was read")
    return _Ending(EXIT_OK)


def _job(
    settings: PipelineSettings,
    emit: Callable[[dict[str, Any]], None],
    make_writer: "Callable[[Path], TableWriter] | None",
    stopping: "_Stopping",
    log: SparkLog,
) -> _Ending:
    """``run_pipeline`` without what it says at its end."""
    with contextlib.ExitStack() as held:
        held.enter_context(_stop_signals(stopping))
        plan = _judge(settings)
        held.enter_context(_exclusive(settings))
        registered = held.enter_context(_claimed(settings, emit))
        told = {**plan.settings, **_format_settings(settings.format), **settings.spark}
        spark = held.enter_context(local_session("framegate pipeline", cores=plan.cores, memory=settings.memory, settings=told, log=log))
        settings = dataclasses.replace(settings, consumer=settings.consumer if registered else "")
        return _run(spark, settings, emit, make_writer, stopping, log)


def _judge(settings: PipelineSettings) -> Budget:
    """Look at what can be judged without touching anything.

    Raises:
        UsageError: it cannot be.
    """
    try:
        if settings.start_from not in ("earliest", "latest"):
            parse_time(settings.start_from)
        if settings.consumer and not re.fullmatch(CONSUMER_NAME, settings.consumer):
            raise UsageError(f"--consumer: letters, digits, dot, dash and underscore, not {settings.consumer}")
        return settings.budget()
    except ValueError as error:
        raise UsageError(str(error)) from error


def _format_settings(name: str) -> dict[str, str]:
    """What Spark must be told for the tables' format.

    Raises:
        UsageError: the Spark that is here cannot write it.
    """
    if name == "parquet":
        return {}
    require_packages()
    from proxy.pipeline.tables import spark_settings

    try:
        return spark_settings(name)
    except ValueError as error:
        raise UsageError(f"--format: {error}") from error


@contextlib.contextmanager
def _claimed(settings: PipelineSettings, emit: Callable[[dict[str, Any]], None]) -> Iterator[bool]:
    """Hold the consumer's name; gives whether retention can be told. A tap that is mounted read-only is read all the same.

    Raises:
        UsageError: another job has the name.
    """
    if not settings.consumer:
        yield False
        return
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(claim_consumer(str(settings.source), settings.consumer, settings.place_of_checkpoint))
            registered = True
        except ConsumerInUseError as error:
            raise UsageError(
                f"--consumer: {error}. Name another, or, when that job is no more: framegate tap consumers remove {settings.consumer}"
            ) from error
        except OSError as error:
            registered = False
            reason = f"{error.filename or settings.source}: {error.strerror}"
            emit({"event": "unregistered", "consumer": settings.consumer, "reason": reason})
        yield registered


def _fail(log: SparkLog, reason: str) -> int:
    """Say why, show what Spark said, and say why again, where a person looks."""
    _report(reason, EXIT_FAILED)
    shown = log.tail()
    if shown:
        sys.stderr.write(shown)
        _report(reason, EXIT_FAILED)
    return EXIT_FAILED


def _report(text: str, code: int) -> int:
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
    output = local_path(settings.output)
    if output is None:
        if settings.format == "parquet":
            raise UsageError(f"--output: {settings.output} is no folder of this host; only --format delta writes elsewhere")
        yield
        return
    with _open_lock(output) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"--output: another job writes to {settings.output}") from None
        checkpoint = local_path(settings.place_of_checkpoint)
        if has_batches(output) and checkpoint is not None and not (checkpoint / "metadata").exists():
            raise UsageError(
                f"--output: {settings.output} has batches, but there is no checkpoint at {settings.place_of_checkpoint}: a new query would count "
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
    log: SparkLog,
) -> _Ending:
    from proxy.pipeline import tables

    try:
        output = local_path(settings.output)
        if make_writer is not None and output is not None:
            writer: tables.Writer = make_writer(output)
        else:
            more = {"compact_ms": settings.compact_ms, "expire_after_s": settings.expire_after_s}
            writer = tables.make_writer(output or settings.output, format=settings.format, **more)  # type: ignore[arg-type]
    except ValueError as error:
        raise UsageError(f"--output: {error}") from error
    with contextlib.closing(writer):
        return _follow(spark, settings, emit, writer, stopping, log)


def _follow(
    spark: "SparkSession",
    settings: PipelineSettings,
    emit: Callable[[dict[str, Any]], None],
    writer: "Writer",
    stopping: _Stopping,
    log: SparkLog,
) -> _Ending:
    """The query from its start to its end."""
    stopping.in_order = True
    stopping.listen()
    query = start_query(spark, settings, writer)
    reporter = Reporter(settings, writer, query, emit)
    emit({"event": "started", "pid": os.getpid(), "source": str(settings.source), "output": str(settings.output), "total": writer.progress.total})
    while query.isActive and not stopping.asked.wait(POLL_S):
        reporter.report()
        log.trim()
    _finish_batch(query)
    through = not query.isActive
    failure = query.exception() if through else None
    if failure is not None and not stopping.asked.is_set():  # who stops us may stop Spark's processes, too
        reason = log.reason() or _reason(str(failure))
        emit({"event": "failed", "reason": reason})
        return _Ending(EXIT_FAILED, reason)
    query.stop()
    reporter.report()
    reporter.register()
    emit({"event": "stopped", "total": writer.progress.total, "lag_bytes": reporter.lag_bytes()})
    return _stopped(settings, stopping, through=through and failure is None)


def start_query(spark: "SparkSession", settings: PipelineSettings, writer: Callable[["DataFrame", int], None]) -> "StreamingQuery":
    """The job's query in a session of the caller's, for whom this is one of several; ``run_pipeline`` is the job alone.

    Args:
        spark: a session that knows the source (``pyspark_framegate.register``).
        settings: memory, cores and spark are the session's affair; what there is room for is derived from them.
        writer: takes each micro-batch: a ``Writer`` of the settings' output.
    """
    plan = settings.budget()
    options = {
        "startingOffsets": settings.start_from,
        "maxBytesPerTrigger": str(plan.batch),
        "maxPartitionBytes": str(plan.partition),
        "payload": str(plan.frame) if plan.frame else "none",
        "failOnDataLoss": str(settings.fail_on_data_loss).lower(),
        "parallelism": str(plan.cores),
        **({"consumer": settings.consumer, "owner": settings.place_of_checkpoint} if settings.consumer else {}),
    }
    chunks = spark.readStream.format("framegate").options(**options).load(str(settings.source.resolve()))
    query = chunks.writeStream.foreachBatch(writer).option("checkpointLocation", settings.place_of_checkpoint)
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
