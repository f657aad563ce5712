"""Rows of the log as log records of OpenTelemetry. Loaded only if logs are exported.

Each row becomes a record: its time, its level as severity, its event as event name, its fields as attributes below ``framegate.`` and, as JSON, as
the body, and the ids of its span if it has one. Writing a row only queues it: a thread of its own makes the records, and the SDK's batch processor
sends them. Rows that find no room are dropped here and counted; they are still on stdout.
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
from framegate.control.telemetry.exporters import Account, Counted, Room, queue_size

_SEVERITIES: Final = {"debug": SeverityNumber.DEBUG, "info": SeverityNumber.INFO, "warning": SeverityNumber.WARN, "error": SeverityNumber.ERROR}
_NO_METERS: Final = NoOpMeterProvider()  # as in ``traces``, which is not loaded for logs alone
_OWN_LOGGERS: Final = ("opentelemetry", "framegate.control.telemetry", "grpc")  # Their messages about failed exports are not exported


class LogRecords:
    """Exports rows, until ``stop``. Any thread. ``exporter``: sends them (``exporters.otlp_exporter``). The SDK reads limits and queue from the
    environment.
    """

    def __init__(self, exporter: object, resource: Resource, version: str, account: Account) -> None:
        # A record has the number of attributes that a limit removed; the SDK's warning would be plain text among the rows.
        warnings.simplefilter("ignore", LogRecordDroppedAttributesWarning)
        self._account = account
        self._room = Room(queue_size("BLRP"), lambda count: account.drop("logs", count))
        self._exporter = Counted(exporter, "logs", account, self._room.free)
        self.exchange = self._exporter.exchange
        self._provider = LoggerProvider(resource, shutdown_on_exit=False, meter_provider=_NO_METERS)
        self._provider.add_log_record_processor(BatchLogRecordProcessor(cast(LogRecordExporter, self._exporter), meter_provider=_NO_METERS))
        self._logger = self._provider.get_logger("framegate", version)
        self._rows: queue.SimpleQueue[RowCopy | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="framegate-log-records", daemon=True)
        self._thread.start()

    def take(self, row: RowCopy) -> None:
        """Queue a copy of a row, or of rows that happened together, if there is room. It does not block."""
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
        """Export the waiting rows and end. Blocks for ``timeout_s`` and a moment; rows that the collector did not accept by then are lost."""
        until_s = time.monotonic() + timeout_s
        self._rows.put(None)
        self._thread.join(timeout_s)
        while not self._thread.is_alive() and not self._rows.empty():  # another thread put it behind the end
            left = self._rows.get()
            count = 0 if left is None else 1 if isinstance(left.content, dict) else len(left.content)
            self._room.free(count)
            self._account.drop("logs", count)
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
                except Exception:  # a row that OpenTelemetry cannot encode is on stdout, and counted here
                    self._room.free(1)
                    self._account.drop("logs", 1)

    def _emit(self, row: RowCopy, content: dict[str, Any] | str) -> None:
        text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, default=str, skipkeys=True)
        text = text.encode("utf-8", "replace").decode()  # a character that UTF-8 cannot encode would make the whole export fail
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
    trace_id, span_id = fields.get("trace_id"), fields.get("span_id")
    if not isinstance(trace_id, str) or not isinstance(span_id, str):
        return Context()
    span = SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
    return set_span_in_context(NonRecordingSpan(span), Context())
