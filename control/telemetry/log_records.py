"""Rows of the log as log records of OpenTelemetry. Loaded where logs are exported, and nowhere else.

Each row is a record: its time, its level as severity, its name as the event's, its fields as attributes beneath ``framegate.`` and, as JSON, as the
body; the ids of the span that it belongs to where it has some. Who writes a row only queues it: a thread of its own makes the records, an SDK's batch
processor sends them. What finds no room is dropped here and counted; on stdout it stays.
"""

import json
import queue
import threading
import time
import warnings
from typing import Any, Final, cast

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.context import Context
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk._logs import LoggerProvider, LogRecordDroppedAttributesWarning
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, LogRecordExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from framegate.control.logs import RowCopy
from framegate.control.telemetry.account import Account
from framegate.control.telemetry.environment import Target
from framegate.control.telemetry.exporters import Counted, otlp_exporter
from framegate.control.telemetry.room import Room, queue_size

__all__ = ["LogRecords"]

_SEVERITIES: Final = {
    "debug": SeverityNumber.DEBUG,
    "info": SeverityNumber.INFO,
    "warning": SeverityNumber.WARN,
    "error": SeverityNumber.ERROR,
}
_NO_METERS: Final = NoOpMeterProvider()
"""As in ``traces``, which is not loaded for the sake of logs."""
_OWN_LOGGERS: Final = ("opentelemetry", "framegate.control.telemetry", "grpc")
"""What they say of exports that fail is no part of exports."""


class LogRecords:
    """Takes rows from ``__init__`` to ``stop``. Any thread may give some.

    Args:
        target: the collector.
        resource: who exports.
        version: ours.
        account: gets what was dropped.

    Limits and queue are those of the environment, which the SDK reads.
    """

    def __init__(self, target: Target, resource: Resource, version: str, account: Account) -> None:
        # Records say themselves how many attributes a limit cost; the SDK's warning would be plain text beside the rows.
        warnings.simplefilter("ignore", LogRecordDroppedAttributesWarning)
        self._account = account
        self._room = Room(queue_size("BLRP"), lambda count: account.drop("logs", count))
        self._exporter = Counted(otlp_exporter(target), target, account, self._room.free)
        self._provider = LoggerProvider(resource, shutdown_on_exit=False, meter_provider=_NO_METERS)
        waiting = BatchLogRecordProcessor(cast(LogRecordExporter, self._exporter), meter_provider=_NO_METERS)
        self._provider.add_log_record_processor(waiting)
        self._logger = self._provider.get_logger("framegate", version)
        self._rows: queue.SimpleQueue[RowCopy | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="framegate-log-records", daemon=True)
        self._thread.start()

    def take(self, row: RowCopy) -> None:
        """Queue a copy of a row, or of rows that happened together, as far as there is room. It does not block."""
        content = row.content
        if isinstance(content, dict):
            own = row.event == "library_log" and str(content.get("logger", "")).startswith(_OWN_LOGGERS)
            if not own and self._room.take():
                self._rows.put(row)
            return
        taken = self._room.take(len(content))
        if taken:
            self._rows.put(row._replace(content=content[:taken]))

    def stop(self, timeout_s: float = 2.0) -> None:
        """Export what waits, and end. Blocks for ``timeout_s`` and a moment; what a collector did not take by then is lost."""
        until_s = time.monotonic() + timeout_s
        self._rows.put(None)
        self._thread.join(timeout_s)
        ending = threading.Thread(target=self._provider.shutdown, name="framegate-log-records-end", daemon=True)
        ending.start()
        ending.join(max(0.0, until_s - time.monotonic()))
        if ending.is_alive():
            self._exporter.shutdown()

    def _run(self) -> None:
        while (row := self._rows.get()) is not None:
            for content in [row.content] if isinstance(row.content, dict) else row.content:
                try:
                    self._emit(row, content)
                except Exception:  # a row that OpenTelemetry cannot say: it is on stdout, and counted here
                    self._room.free(1)
                    self._account.drop("logs", 1)

    def _emit(self, row: RowCopy, content: dict[str, Any] | str) -> None:
        said = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, default=str, skipkeys=True)
        text = said.encode("utf-8", "replace").decode()  # what UTF-8 cannot say would cost the whole export
        fields: dict[str, Any] = json.loads(text)
        time_ns = int(row.time * 1e9)
        self._logger.emit(
            LogRecord(
                timestamp=time_ns,
                observed_timestamp=time_ns,
                context=_context(fields),
                severity_text=row.level,
                severity_number=_SEVERITIES[row.level],
                body=text,
                attributes={f"framegate.{key}": value for key, value in fields.items() if value is not None and key not in ("trace_id", "span_id")},
                event_name=f"framegate.{row.event}",
            )
        )


def _context(fields: dict[str, Any]) -> Context:
    """The span that a row belongs to."""
    trace_id, span_id = fields.get("trace_id"), fields.get("span_id")
    if not isinstance(trace_id, str) or not isinstance(span_id, str):
        return Context()
    span = SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
    return set_span_in_context(NonRecordingSpan(span), Context())
