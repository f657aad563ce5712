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
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from framegate.proxy.pipeline.claims import UsageError, claim_name, claim_output
from framegate.proxy.pipeline.manifest import ManifestError
from framegate.proxy.pipeline.memory import Budget
from framegate.proxy.pipeline.options import CONSUMER_NAME, parse_time
from framegate.proxy.pipeline.report import Reporter
from framegate.proxy.pipeline.session import SparkLog, SparkMissingError, local_session, require_packages, spark_errors
from framegate.proxy.pipeline.settings import PipelineSettings, local_path, wants_telemetry
from framegate.proxy.pipeline.stopping import StoppedError, Stopping, stop_signals

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from framegate.proxy.pipeline.tables import TableWriter, Writer
    from framegate.proxy.pipeline.telemetry import Telemetry

__all__ = ["EXIT_FAILED", "EXIT_OK", "EXIT_USAGE", "run_pipeline", "start_query"]

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
POLL_S: Final = 0.2
STOP_GRACE_S: Final = 30.0
_DISK_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


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
        make_writer: makes the function that writes batches; ``writers.make_writer`` unless a test wraps it.

    Returns:
        An exit code: 0; 1 when the query failed; 2 when it could not begin: no Java or PySpark, no source, an output that cannot be written to,
        holds something else, is in use or whose checkpoint is missing, a consumer's name that another job has, a heap that is too small; 128 and
        the number of the signal that ended it before it had done what it should: while Spark started, for the second time, or before an
        available-now job was through. What went wrong is one line on standard error.
    """
    stopping = Stopping()
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
                return _fail(log, _why(str(error), log, settings))
            ending = _stopped(settings, stopping, through=False)  # who stops us stopped Spark's processes, too
        except OSError as error:
            return _fail(log, _why(f"{type(error).__name__}: {error}", log, settings))
        if ending.code == EXIT_FAILED:
            return _fail(log, ending.text)
        return _report(ending.text, ending.code) if ending.text else ending.code


class _Ending(NamedTuple):
    """An exit code, and what a person is told with it; "" for nothing."""

    code: int
    text: str = ""


def _stopped(settings: PipelineSettings, stopping: Stopping, *, through: bool) -> _Ending:
    """How a job ends that did not fail."""
    if settings.available_now and not through:
        return _Ending(stopping.exit_code, f"{stopping.word} before everything was read")
    return _Ending(EXIT_OK)


def _job(
    settings: PipelineSettings,
    emit: Callable[[dict[str, Any]], None],
    make_writer: "Callable[[Path], TableWriter] | None",
    stopping: Stopping,
    log: SparkLog,
) -> _Ending:
    """``run_pipeline`` without what it says at its end."""
    with contextlib.ExitStack() as held:
        held.enter_context(stop_signals(stopping))
        plan = _check(settings)
        telemetry = _telemetry(settings, emit)
        if telemetry is not None:
            held.callback(telemetry.close)
        held.enter_context(claim_output(settings))
        registered = held.enter_context(claim_name(settings, emit))
        told = {**plan.settings, **_format_settings(settings.format), **settings.spark}
        spark = held.enter_context(local_session("framegate pipeline", cores=plan.cores, memory=settings.memory, settings=told, log=log))
        settings = dataclasses.replace(settings, consumer=settings.consumer if registered else "")
        return _run(spark, settings, emit, make_writer, stopping, log, telemetry)


def _check(settings: PipelineSettings) -> Budget:
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
    from framegate.proxy.pipeline.writers import spark_settings

    try:
        return spark_settings(name)
    except ValueError as error:
        raise UsageError(f"--format: {error}") from error


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


def _run(
    spark: "SparkSession",
    settings: PipelineSettings,
    emit: Callable[[dict[str, Any]], None],
    make_writer: "Callable[[Path], TableWriter] | None",
    stopping: Stopping,
    log: SparkLog,
    telemetry: "Telemetry | None",
) -> _Ending:
    from framegate.proxy.pipeline import tables, writers

    try:
        output = local_path(settings.output)
        if make_writer is not None and output is not None:
            writer: tables.Writer = make_writer(output)
        else:
            more = {"compact_ms": settings.compact_ms, "expire_after_s": settings.expire_after_s}
            writer = writers.make_writer(output or settings.output, format=settings.format, **more)  # type: ignore[arg-type]
    except ValueError as error:
        raise UsageError(f"--output: {error}") from error
    with contextlib.closing(writer):
        return _follow(spark, settings, emit, writer, stopping, log, telemetry)


def _follow(
    spark: "SparkSession",
    settings: PipelineSettings,
    emit: Callable[[dict[str, Any]], None],
    writer: "Writer",
    stopping: Stopping,
    log: SparkLog,
    telemetry: "Telemetry | None",
) -> _Ending:
    """The query from its start to its end."""
    stopping.in_order = True
    stopping.listen()
    query = start_query(spark, settings, writer)
    reporter = Reporter(settings, writer, query, emit, telemetry)
    emit({"event": "started", "pid": os.getpid(), "source": str(settings.source), "output": str(settings.output), "total": writer.progress.total})
    while query.isActive and not stopping.asked.wait(POLL_S):
        reporter.report()
        log.trim()
    _finish_batch(query)
    through = not query.isActive
    failure = query.exception() if through else None
    if failure is not None and not stopping.asked.is_set():  # who stops us may stop Spark's processes, too
        reason = _why(str(failure), log, settings)
        emit({"event": "failed", "reason": reason})
        reporter.failed(reason)
        return _Ending(EXIT_FAILED, reason)
    query.stop()
    reporter.report()
    reporter.register()
    emit({"event": "stopped", "total": writer.progress.total, "lag_bytes": reporter.lag_bytes()})
    return _stopped(settings, stopping, through=through and failure is None)


def _telemetry(settings: PipelineSettings, emit: Callable[[dict[str, Any]], None]) -> "Telemetry | None":
    """What tells of batches over OTLP; None: nobody wants to know, and nothing of OpenTelemetry is loaded.

    Raises:
        UsageError: it cannot be had.
    """
    if not wants_telemetry(settings):
        return None
    try:
        from framegate.proxy.pipeline.telemetry import Telemetry

        return Telemetry(settings.telemetry, lambda error: emit({"event": "telemetry_failed", "error": error}))
    except ImportError as error:
        package = "opentelemetry-exporter-otlp-proto-http" if ".http" in str(error.name) else "'framegate[spark,otlp]'"
        raise UsageError(f"--telemetry, or OTEL_EXPORTER_OTLP_*: {error.name} is not installed: pip install {package}") from error
    except ValueError as error:
        raise UsageError(f"telemetry: {error}") from error


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


def _why(message: str, log: SparkLog, settings: PipelineSettings) -> str:
    """Why a query failed, in one line: what the JVM said when it died, a disk that is full, or what Spark's message says."""
    if any(os.strerror(number) in message for number in _DISK_FULL):
        places = (local_path(settings.output), local_path(settings.place_of_checkpoint), Path(tempfile.gettempdir()))
        free, full = min((shutil.disk_usage(place).free, str(place)) for place in places if place is not None and place.exists())
        return f"{full}: no space left on device ({free >> 10} KiB free): free some and start the job again: it goes on where it was"
    return log.reason() or _reason(message)


def _reason(message: str) -> str:
    """The line of Spark's long message that says what happened: the last one that names a Python error, or what caused it if that is the JVM's; else
    the first that is not py4j's.
    """
    stripped = (line.strip().removeprefix(": ") for line in message.splitlines())
    lines = [line for line in stripped if line and not line.startswith("An error occurred while calling")]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    errors = [line for line in lines if line.split(":")[0].endswith("Error") and not line.startswith(("at ", "Py4J"))]
    if errors and causes and errors[-1].startswith("py4j.protocol.Py4JJavaError:"):
        return causes[-1]
    return (errors or lines or ["unknown"])[-1 if errors else 0]
