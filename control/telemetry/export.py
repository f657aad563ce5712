"""Spans and log records of one framegate, from its first row to its last. What they need of OpenTelemetry is loaded only where they are exported.

Rows, and segments of the tap, come from the start on, before there is anything to export them with; some of them are kept until then. So the row of a
start that failed is on stdout only.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from framegate.control.errors import StartError
from framegate.control.events import Bus
from framegate.control.logs import RowCopy, RowLog
from framegate.control.task_monitor import TaskMonitor
from framegate.control.telemetry.environment import judge
from framegate.control.telemetry.variables import drop_empty
from framegate.proxy.config.model import ProxyConfig
from framegate.proxy.tap.headers import Seal
from framegate.proxy.tap.log_reader import Segment

if TYPE_CHECKING:
    from framegate.control.telemetry.calls import CallSpans
    from framegate.control.telemetry.event_spans import EventSpans
    from framegate.control.telemetry.log_records import LogRecords
    from framegate.control.telemetry.provider import Telemetry
    from framegate.control.telemetry.traces import Traces

__all__ = ["Early", "Export"]

_KEPT: Final = 2_048
_Item = TypeVar("_Item")


class Early(Generic[_Item]):
    """Keeps what comes before there is somebody to take it: the last ``most``. Any thread."""

    def __init__(self, most: int = _KEPT) -> None:
        self._kept: deque[_Item] = deque(maxlen=most)
        self._to: Callable[[_Item], None] | None = None
        self._lock = threading.Lock()

    def put(self, item: _Item) -> None:
        """Give one on, or keep it."""
        with self._lock:
            if self._to is None:
                self._kept.append(item)
                return
        self._to(item)

    def hand_over(self, to: Callable[[_Item], None]) -> None:
        """Here is who takes it."""
        with self._lock:
            self._to = to
            kept = tuple(self._kept)
            self._kept.clear()
        for item in kept:
            to(item)


class Export:
    """Makes what happens spans and log records, as far as the configuration and the environment want it.

    Args:
        config: says what is wanted.
        log: its rows are copied, and get the ids of the spans that they are written in.
        guard: is told of what nobody expected; it costs one span.

    Attributes:
        calls: makes spans of calls; None: there are none.

    Raises:
        StartError: variables of the environment cannot be used.
    """

    def __init__(self, config: ProxyConfig, log: RowLog, task_monitor: TaskMonitor) -> None:
        drop_empty()
        settings = judge(config.telemetry)
        if settings.disabled:
            log.write("telemetry_disabled", level="warning", variable="OTEL_SDK_DISABLED", sections=list(settings.disabled))
        self.calls: CallSpans | None = None
        self._settings = settings
        self._listeners = [listener.name for listener in config.listeners if listener.tls is not None]
        self._log = log
        self._task_monitor = task_monitor
        self._rows: Early[RowCopy] = Early()
        self._segments: Early[tuple[Segment, int, Seal | None]] = Early()
        self._traces: Traces | None = None
        self._events: EventSpans | None = None
        self._records: LogRecords | None = None
        if settings.logs is not None:
            log.copy_to = self._rows.put

    @property
    def wanted(self) -> bool:
        """Whether anything is exported, metrics included."""
        return self._settings.wanted

    @property
    def traces(self) -> bool:
        """Whether spans are exported."""
        return self._settings.traces is not None

    @property
    def on_segment(self) -> Callable[[Segment, int, Seal | None], None] | None:
        """Who is to be told of the tap's segments (``framegate.control.tap.segment_watch``); None: nobody."""
        return self._segment if self.traces else None

    def _segment(self, segment: Segment, created_ns: int, seal: Seal | None) -> None:
        self._segments.put((segment, created_ns, seal))

    def load(self) -> None:
        """Import what ``begin`` needs. Blocks for as long as that takes; any thread."""
        try:
            for target in self._settings.targets:
                if target.signal != "metrics":
                    from framegate.control.telemetry.exporters import exporter_class

                    exporter_class(target)
            if self._settings.traces is not None:
                import framegate.control.telemetry.calls
                import framegate.control.telemetry.event_spans
                import framegate.control.telemetry.segment_spans
            if self._settings.logs is not None:
                import framegate.control.telemetry.log_records  # noqa: F401
        except ImportError as error:
            text = f"telemetry.otlp needs {error.name}, which is not installed: pip install 'framegate[otlp]'"
            raise StartError(text, reason="EXTRA_MISSING", extra="otlp") from error

    def begin(self, telemetry: "Telemetry", version: str, events: Bus) -> None:
        """Export what came by now, and what comes.

        Args:
            telemetry: that of the metrics: who exports, and the account of it.
            version: ours.
            events: the bus.

        Raises:
            StartError: an extra is not installed, or certificates for a collector cannot be used.
        """
        self.load()
        if self._settings.traces is not None:
            from framegate.control.telemetry.calls import CallSpans
            from framegate.control.telemetry.event_spans import EventSpans
            from framegate.control.telemetry.segment_spans import SegmentSpans
            from framegate.control.telemetry.traces import Traces, trace_fields

            self._traces = traces = Traces(self._settings.traces, telemetry.resource, version, telemetry.account)
            self._events = EventSpans(traces, self._listeners, telemetry.account, lambda error: self._task_monitor.failed("spans", error))
            events.attach(self._events)
            segments = SegmentSpans(traces)
            self._segments.hand_over(lambda told: segments.told(*told))
            self.calls = CallSpans(traces)
            self._log.span_fields = trace_fields
        if self._settings.logs is not None:
            from framegate.control.telemetry.log_records import LogRecords

            self._records = LogRecords(self._settings.logs, telemetry.resource, version, telemetry.account)
            self._rows.hand_over(self._records.take)

    async def stop(self, timeout_s: float = 1.0) -> None:
        """Export what waits, and end; all of it together takes ``timeout_s`` and a moment. Call it after the last row."""
        self._log.copy_to = None
        await asyncio.gather(asyncio.to_thread(self._stop_spans, timeout_s), asyncio.to_thread(self._stop_records, timeout_s))

    def _stop_spans(self, timeout_s: float) -> None:
        if self._events is not None and self._traces is not None:
            self._events.stop()
            self._traces.stop(timeout_s)

    def _stop_records(self, timeout_s: float) -> None:
        if self._records is not None:
            self._records.stop(timeout_s)
