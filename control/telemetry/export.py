"""Starts and stops spans and log records. What they need of OpenTelemetry is loaded only if they are exported.

Rows and segments of the tap come before the exporters are ready; the last ones are kept until then. So the row of a start that failed is on stdout
only.
"""

import asyncio
import importlib
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from framegate.control.errors import StartError
from framegate.control.events import Bus
from framegate.control.logs import RowCopy, RowLog
from framegate.control.task_monitor import TaskMonitor
from framegate.control.telemetry.environment import drop_empty, judge
from framegate.proxy.config.model import ProxyConfig
from framegate.proxy.tap.headers import Seal
from framegate.proxy.tap.log_reader import Segment

if TYPE_CHECKING:
    from framegate.control.telemetry.event_spans import EventSpans
    from framegate.control.telemetry.log_records import LogRecords
    from framegate.control.telemetry.provider import Telemetry
    from framegate.control.telemetry.traces import CallSpans, Traces

__all__ = ["Early", "Export"]

_KEPT: Final = 2_048
_Item = TypeVar("_Item")
_MODULES: Final = {"metrics": (), "traces": ("traces", "event_spans"), "logs": ("log_records",)}


class Early(Generic[_Item]):
    """Keeps the last ``most`` items until there is a receiver for them. Any thread."""

    def __init__(self, most: int = _KEPT) -> None:
        self._kept: deque[_Item] = deque(maxlen=most)
        self._to: Callable[[_Item], None] | None = None
        self._lock = threading.Lock()

    def put(self, item: _Item) -> None:
        """Pass an item on, or keep it."""
        with self._lock:
            if self._to is None:
                self._kept.append(item)
                return
        self._to(item)

    def hand_over(self, to: Callable[[_Item], None]) -> None:
        """Set the receiver, and give it the kept items."""
        with self._lock:
            self._to = to
            kept = tuple(self._kept)
            self._kept.clear()
        for item in kept:
            to(item)


class Export:
    """Exports spans and log records, as the configuration and the environment say.

    Args:
        config: the configuration.
        log: its rows are copied, and get the ids of the spans in which they are written.
        task_monitor: reports unexpected exceptions; each costs one span.

    Attributes:
        calls: makes spans of calls; None: spans are not exported.

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
        """To be called for the tap's segments (``framegate.control.tap.segment_watch``); None: spans are not exported."""
        return (lambda segment, created_ns, seal: self._segments.put((segment, created_ns, seal))) if self.traces else None

    def load(self) -> None:
        """Import what ``begin`` needs. Blocks for as long as that takes; any thread."""
        try:
            for target in self._settings.targets:
                for name in _MODULES[target.signal]:
                    self._module("exporters").exporter_class(target)
                    self._module(name)
        except ImportError as error:
            text = f"telemetry.otlp needs {error.name}, which is not installed: pip install 'framegate[otlp]'"
            raise StartError(text, reason="EXTRA_MISSING", extra="otlp") from error

    def _module(self, name: str) -> Any:
        return importlib.import_module(f"framegate.control.telemetry.{name}")

    def begin(self, telemetry: "Telemetry", version: str, events: Bus) -> None:
        """Export the kept rows, segments and events, and all later ones.

        Args:
            telemetry: the running metrics, for their resource and their account of exports.
            version: of framegate.
            events: the bus.

        Raises:
            StartError: an extra is not installed, or certificates for a collector cannot be used.
        """
        self.load()
        telemetry.account.write = self._log.write
        if self._settings.traces is not None:
            from framegate.control.telemetry.event_spans import EventSpans
            from framegate.control.telemetry.traces import CallSpans, Traces, record_segment, trace_fields

            self._traces = traces = Traces(self._settings.traces, telemetry.resource, version, telemetry.account)
            self._events = EventSpans(traces, self._listeners, telemetry.account, lambda error: self._task_monitor.failed("spans", error))
            events.attach(self._events)
            self._segments.hand_over(lambda segment: record_segment(traces, *segment))
            self.calls = CallSpans(traces)
            self._log.span_fields = trace_fields
        if self._settings.logs is not None:
            from framegate.control.telemetry.log_records import LogRecords

            self._records = LogRecords(self._settings.logs, telemetry.resource, version, telemetry.account)
            self._rows.hand_over(self._records.take)

    async def stop(self, timeout_s: float = 1.0) -> None:
        """Export what waits, and end; both together take ``timeout_s`` and a moment. Call it after the last row."""
        self._log.copy_to = None
        await asyncio.gather(asyncio.to_thread(self._stop_spans, timeout_s), asyncio.to_thread(self._stop_records, timeout_s))

    def _stop_spans(self, timeout_s: float) -> None:
        if self._events is not None and self._traces is not None:
            self._events.stop()
            self._traces.stop(timeout_s)

    def _stop_records(self, timeout_s: float) -> None:
        if self._records is not None:
            self._records.stop(timeout_s)
