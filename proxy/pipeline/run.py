"""The job behind ``framegate pipeline run``: one streaming query from a tap's directory to the tables of an output folder.

The job reports its progress on standard output, one JSON object on each line, with the member ``event``: ``started`` (with the pid), ``batch`` (a
batch is in the tables and committed: its rows, all rows so far, the bytes of log that it took, the bytes that still wait, its duration), ``lag`` (the
bytes that wait, when their number changed between batches), ``failed`` (with the reason), ``stopped``.

On SIGTERM or SIGINT the job finishes the current batch and stops. While Spark still starts, and on the second signal, it stops at once. A job that
is killed loses nothing: see ``tables.py``.
"""

import contextlib
import dataclasses
import errno
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from framegate.proxy.pipeline.claims import UsageError, claim_name, claim_output
from framegate.proxy.pipeline.memory import Budget
from framegate.proxy.pipeline.place import local_path
from framegate.proxy.pipeline.report import Reporter
from framegate.proxy.pipeline.session import SparkLog, SparkMissingError, local_session, require_packages, restricted, spark_errors
from framegate.proxy.pipeline.settings import CONSUMER_NAME, PipelineSettings, parse_time, wants_telemetry

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from framegate.proxy.pipeline.tables import TableWriter
    from framegate.proxy.pipeline.telemetry import Telemetry

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
POLL_S: Final = 0.2
STOP_GRACE_S: Final = 30.0
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_DISK_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class StoppedError(BaseException):
    """A signal ends the job at once. It is no Exception, so that no ``except Exception`` catches it."""


class Stopping:
    """The handler of SIGTERM and SIGINT. ``asked``: a signal has asked the job to end in order. ``in_order``: it can, because the query runs."""

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
        """Ask for an end in order, or end the job. Raises StoppedError: the job cannot end in order, or this is the second signal. Further signals
        are ignored: the cleaning up takes seconds.
        """
        self._number = number
        if self.in_order and not self.asked.is_set():
            self.asked.set()
            return
        for other in _SIGNALS:
            signal.signal(other, signal.SIG_IGN)
        raise StoppedError

    def listen(self) -> None:
        """Install the handler, if this is the main thread. Again when Spark has started, which installs its own for SIGINT."""
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                signal.signal(number, self.on_signal)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """``listen``, and put the handlers of before back behind the block."""
        before = {number: signal.getsignal(number) for number in _SIGNALS}
        self.listen()
        try:
            yield
        finally:
            if threading.current_thread() is threading.main_thread():
                for number, handler in before.items():
                    signal.signal(number, handler)


def print_event(event: dict[str, Any]) -> None:
    """Write an event as a line of standard output, at once."""
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def run_pipeline(settings: PipelineSettings, *, make_writer: "Callable[[str], TableWriter] | None" = None) -> int:
    """Run the job to its end, or until SIGTERM or SIGINT.

    ``make_writer``: makes the object that writes batches; a ``TableWriter`` unless a test wraps it.

    Returns:
        An exit code: 0; 1 when the query failed, or the disk was full before it began; 2 when it could not begin: no Java or PySpark, no source, an
        output that cannot be written to, has files of something else, is in use or whose checkpoint is missing, a consumer's name that another job
        has, a heap that is too small; 128 and the number of the signal that ended the job early: while Spark started, for the second time, or before
        an available-now job had read everything. The reason is one line on standard error.
    """
    with SparkLog() as log:
        return _Job(settings, make_writer, log).run()


class _Job:
    def __init__(self, settings: PipelineSettings, make_writer: "Callable[[str], TableWriter] | None", log: SparkLog) -> None:
        self._settings = settings
        self._make_writer = make_writer
        self._log = log
        self._stopping = Stopping()
        self._telemetry: Telemetry | None = None

    def run(self) -> int:
        """Run the job, and say on standard error why it ended early. Returns the exit code."""
        try:
            with contextlib.redirect_stderr(self._log.stream):  # PySpark's threads print errors when the JVM goes
                code, text = self._run()
        except (UsageError, SparkMissingError) as error:
            full = _disk_is_full(str(error))
            code, text = (EXIT_FAILED, self._why(str(error))) if full else (EXIT_USAGE, str(error))
        except StoppedError:
            code, text = self._stopping.exit_code, self._stopping.word
        except spark_errors() as error:
            if self._stopping.asked.is_set():  # the signal has ended Spark's processes, too
                code, text = self._stopped(through=False)
            else:
                code, text = EXIT_FAILED, self._why(str(error))
        if text:
            line = f"framegate pipeline: {text}\n"
            said = self._log.tail() if code == EXIT_FAILED else ""
            sys.stderr.write(f"{line}{said}{line}" if said else line)  # the reason also last, where a person looks
        return code

    def _run(self) -> tuple[int, str]:
        """Everything up to the exit code and the reason; "" for none."""
        settings = self._settings
        with contextlib.ExitStack() as held:
            held.enter_context(self._stopping.listening())
            held.enter_context(restricted())  # of what delta-rs and Arrow write, too
            plan = _check(settings)
            require_packages()
            self._telemetry = _telemetry(settings)
            if self._telemetry is not None:
                held.callback(self._telemetry.close)
            with _usage_errors("--output: "):
                held.enter_context(claim_output(settings))
            if not held.enter_context(claim_name(settings, print_event)):
                self._settings = dataclasses.replace(settings, consumer="")
            spark = held.enter_context(
                local_session("framegate pipeline", cores=plan.cores, memory=settings.memory, settings=settings.spark, log=self._log)
            )
            with _usage_errors("--output: "):
                writer = held.enter_context(contextlib.closing(self._writer()))
            return self._follow(spark, writer)

    def _writer(self) -> "TableWriter":
        from framegate.proxy.pipeline.tables import TableWriter

        settings = self._settings
        output = settings.place_of_output
        if self._make_writer is not None:
            return self._make_writer(output)
        return TableWriter(output, compact_ms=settings.compact_ms, expire_after_s=settings.expire_after_s, source=str(settings.source))

    def _follow(self, spark: "SparkSession", writer: "TableWriter") -> tuple[int, str]:
        """The query from its start to its end."""
        settings, stopping = self._settings, self._stopping
        stopping.in_order = True
        stopping.listen()
        query = start_query(spark, settings, writer)
        reporter = Reporter(settings, writer, query, print_event, self._telemetry)
        place = {"source": str(settings.source), "output": str(settings.output)}
        print_event({"event": "started", "pid": os.getpid(), **place, "total": writer.total})
        while query.isActive and not stopping.asked.wait(POLL_S):
            reporter.report()
            self._log.trim()
        _finish_batch(query)
        through = not query.isActive
        failure = query.exception() if through else None
        if failure is not None and not stopping.asked.is_set():  # a signal may have ended Spark's processes, too
            reason = self._why(str(failure))
            print_event({"event": "failed", "reason": reason})
            reporter.failed(reason)
            return EXIT_FAILED, reason
        query.stop()
        reporter.report()
        reporter.register()
        print_event({"event": "stopped", "total": writer.total, "lag_bytes": reporter.lag_bytes()})
        code, text = self._stopped(through=through and failure is None)
        if settings.available_now and code == EXIT_OK and not any(writer.total.values()):
            text = f"nothing was read, and the tables are empty: is {settings.source} a tap's log?"
        return code, text

    def _stopped(self, *, through: bool) -> tuple[int, str]:
        """The end of a job that did not fail; ``through``: the query has ended by itself."""
        if self._settings.available_now and not through:
            return self._stopping.exit_code, f"{self._stopping.word} before everything was read"
        return EXIT_OK, ""

    def _why(self, message: str) -> str:
        """Why a query failed, in one line: what the JVM said when it died, a disk that is full, or what Spark's message says."""
        if _disk_is_full(message):
            places = (local_path(self._settings.output), local_path(self._settings.place_of_checkpoint), Path(tempfile.gettempdir()))
            free, full = min((shutil.disk_usage(place).free, str(place)) for place in places if place is not None and place.exists())
            return f"{full}: no space left on device ({free >> 10} KiB free): free some and start the job again: it goes on where it was"
        return self._log.reason() or _reason(message)


def _disk_is_full(message: str) -> bool:
    return any(os.strerror(number) in message for number in _DISK_FULL)


@contextlib.contextmanager
def _usage_errors(prefix: str = "") -> Iterator[None]:
    """A ValueError within the block becomes a UsageError."""
    try:
        yield
    except UsageError:
        raise
    except ValueError as error:
        raise UsageError(f"{prefix}{error}") from error


def _check(settings: PipelineSettings) -> Budget:
    """Check what can be checked without touching anything. Raises UsageError."""
    with _usage_errors():
        if settings.start_from not in ("earliest", "latest"):
            parse_time(settings.start_from, "--from")
        if settings.consumer and not re.fullmatch(CONSUMER_NAME, settings.consumer):
            raise UsageError(f"--consumer: letters, digits, dot, dash and underscore, not {settings.consumer}")
        return settings.budget()


def _telemetry(settings: PipelineSettings) -> "Telemetry | None":
    """The exporter of spans and metrics; None where no collector is named: then nothing of OpenTelemetry is loaded. Raises UsageError."""
    if not wants_telemetry(settings):
        return None
    try:
        from framegate.proxy.pipeline.telemetry import Telemetry

        with _usage_errors("telemetry: "):
            return Telemetry(settings.telemetry, lambda error: print_event({"event": "telemetry_failed", "error": error}))
    except ImportError as error:
        package = "opentelemetry-exporter-otlp-proto-http" if ".http" in str(error.name) else "'framegate[spark,otlp]'"
        raise UsageError(f"--telemetry, or OTEL_EXPORTER_OTLP_*: {error.name} is not installed: pip install {package}") from error


def start_query(spark: "SparkSession", settings: PipelineSettings, writer: Callable[["DataFrame", int], None]) -> "StreamingQuery":
    """Start the job's query in a session of the caller, which may have several; ``run_pipeline`` is the job alone.

    Args:
        spark: a session that knows the source (``pyspark_framegate.register``).
        settings: memory, cores and spark describe the session; the sizes of batches and partitions are derived from them.
        writer: takes each micro-batch: a ``TableWriter`` of the settings' output.
    """
    plan = settings.budget()
    options = {
        "startingOffsets": settings.start_from,
        "maxBytesPerTrigger": str(plan.batch),
        "maxPartitionBytes": str(plan.partition),
        "payload": str(plan.frame) if plan.frame else "none",
        "failOnDataLoss": str(settings.fail_on_data_loss).lower(),
        "parallelism": str(plan.cores),
        "output": settings.place_of_output,
        **({"consumer": settings.consumer, "owner": settings.place_of_checkpoint} if settings.consumer and not settings.in_store else {}),
    }
    results = spark.readStream.format("framegate").options(**options).load(settings.place_of_source)
    query = results.writeStream.foreachBatch(writer).option("checkpointLocation", settings.place_of_checkpoint)
    if settings.available_now:
        return query.trigger(availableNow=True).start()
    return query.trigger(processingTime=f"{settings.trigger_ms} milliseconds").start()


def _finish_batch(query: "StreamingQuery") -> None:
    """Wait until the current batch is committed, so that stopping interrupts no batch that is nearly done; one that is interrupted is replayed."""
    before = query.lastProgress
    deadline = time.monotonic() + STOP_GRACE_S
    while query.isActive and query.status["isTriggerActive"] and query.lastProgress == before and time.monotonic() < deadline:
        time.sleep(POLL_S / 4)


def _reason(message: str) -> str:
    """The line of Spark's long message that says what happened: the last one that names a Python error, or its cause if that error is the JVM's; else
    the first that is not py4j's.
    """
    stripped = (line.strip().removeprefix(": ") for line in message.splitlines())
    lines = [line for line in stripped if line and not line.startswith("An error occurred while calling")]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    errors = [line for line in lines if line.split(":")[0].endswith("Error") and not line.startswith(("at ", "Py4J"))]
    if errors and causes and errors[-1].startswith("py4j.protocol.Py4JJavaError:"):
        return causes[-1]
    return (errors or lines or ["unknown"])[-1 if errors else 0]
