"""Starts, changes and stops what is exported. What that needs of OpenTelemetry is loaded only if something is exported.

Where telemetry goes can change while framegate runs: ``stage`` makes exporters and binds addresses beside those in force, and ``follow`` exchanges
them. Queues stay, so that what waits for the former collector goes to the new one; metrics go on counting from the same start.

Rows and segments of the tap come before the exporters are ready; the last ones are kept until then. So the row of a start that failed is on stdout
only.
"""

import asyncio
import dataclasses
import functools
import importlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from framegate.control.errors import StartError
from framegate.control.events import Bus
from framegate.control.logs import RowCopy, RowLog
from framegate.control.status import Attributes
from framegate.control.steering.state import State
from framegate.control.task_monitor import TaskMonitor
from framegate.control.telemetry.environment import Settings, Target, drop_empty, judge
from framegate.proxy.config.model import ProxyConfig
from framegate.proxy.server.rows import RequestSpanRow

if TYPE_CHECKING:
    from framegate.control.telemetry.event_spans import EventSpans
    from framegate.control.telemetry.log_records import LogRecords
    from framegate.control.telemetry.provider import StagedMetrics, Telemetry
    from framegate.control.telemetry.traces import CallSpans, Traces
    from framegate.proxy.tap.headers import Seal
    from framegate.proxy.tap.log_reader import Segment

_KEPT: Final = 2_048
_Item = TypeVar("_Item")
_MODULES: Final = {"metrics": ("otlp_reader",), "traces": ("traces", "event_spans"), "logs": ("log_records",)}


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


@dataclasses.dataclass(slots=True)
class StagedExport:
    """What other settings need, beside what is in force."""

    settings: Settings  # from the file and the environment
    # telemetry, metrics: None: nothing is exported, and nothing was
    telemetry: "Telemetry | None" = None
    metrics: "StagedMetrics | None" = None
    exporters: dict[str, Any] = dataclasses.field(default_factory=dict)  # of the collectors that are others than before, by signal
    # traces, events, records: made for these exporters, if there were none
    traces: "Traces | None" = None
    events: "EventSpans | None" = None
    records: "LogRecords | None" = None


class Export:
    """Exports metrics, spans and log records, as the configuration and the environment say. ``log``: its rows are copied, and get the ids of the
    spans in which they are written. ``task_monitor``: reports unexpected exceptions; each costs one span. Raises StartError: variables of the
    environment cannot be used.
    """

    def __init__(self, config: ProxyConfig, log: RowLog, task_monitor: TaskMonitor) -> None:
        drop_empty()
        self._log = log
        settings = self._judged(config)
        self.calls: CallSpans | None = None  # makes spans of calls; None: spans are not exported
        self._first = settings
        self._in_force = Settings()
        self._begun = False
        self._plane: State | None = None
        self._validity: Mapping[str, tuple[float, float]] = {}
        self._bus: Bus | None = None
        self._tls = _tls(config)
        self._task_monitor = task_monitor
        self._rows: Early[RowCopy] = Early()
        self._segments: Early[tuple[Segment, int, Seal | None]] = Early()
        self._telemetry: Telemetry | None = None
        self._traces: Traces | None = None
        self._events: EventSpans | None = None
        self._records: LogRecords | None = None
        if settings.logs is not None:
            log.copy_to = self._rows.put

    def _judged(self, config: ProxyConfig) -> Settings:
        settings = judge(config.telemetry)
        if settings.disabled:
            self._log.write("telemetry_disabled", level="warning", variable="OTEL_SDK_DISABLED", sections=list(settings.disabled))
        return settings

    @property
    def traces(self) -> bool:
        """Whether spans are exported, now or as soon as it begins."""
        return (self._in_force if self._begun else self._first).traces is not None

    @property
    def prometheus_address(self) -> str | None:
        """``host:port`` with the port bound, or None."""
        return None if self._telemetry is None else self._telemetry.prometheus_address

    def on_segment(self, segment: "Segment", created_ns: int, seal: "Seal | None") -> None:
        """Take a segment of the tap (``framegate.control.tap.segment_watch``)."""
        self._segments.put((segment, created_ns, seal))

    def on_requests(self, rows: Sequence[RequestSpanRow], skipped: int) -> None:
        """See ``EventSpans.take_requests``; nothing while spans are not exported."""
        if self._events is not None:
            self._events.take_requests(rows, skipped)

    def record_call(self, method: str, code: str, seconds: float) -> None:
        if self._telemetry is not None:
            self._telemetry.record_call(method, code, seconds)

    def measurements(self) -> Mapping[tuple[str, Attributes], float]:
        """As ``Account.measurements``; nothing while nothing is exported."""
        return {} if self._telemetry is None else self._telemetry.account.measurements()

    def load(self, config: ProxyConfig) -> None:
        """Import what the settings of a configuration need. Blocks for as long as that takes; any thread. Raises StartError."""
        settings = judge(config.telemetry)
        try:
            for target in settings.targets:
                for name in _MODULES[target.signal]:
                    self._module("exporters").exporter_class(target)
                    self._module(name)
        except ImportError as error:
            text = f"telemetry.otlp needs {error.name}, which is not installed: pip install 'framegate[otlp]'"
            raise StartError(text, reason="EXTRA_MISSING", extra="otlp") from error
        if settings.wanted:
            self._module("provider")

    def _module(self, name: str) -> Any:
        return importlib.import_module(f"framegate.control.telemetry.{name}")

    def begin(self, plane: State, validity: Mapping[str, tuple[float, float]], events: Bus) -> None:
        """Export metrics, the kept rows, segments and events, and all later ones. Raises StartError: an extra is not installed, certificates for a
        collector cannot be used, or the Prometheus address cannot be bound.
        """
        self._plane, self._validity, self._bus = plane, validity, events
        staged = self._stage(self._first)
        self.follow(staged)
        if staged.traces is None:
            self._segments.hand_over(lambda segment: None)
        self._begun = True

    def stage(self, config: ProxyConfig) -> StagedExport:
        """Make what the settings of another configuration need; nothing is sent yet. Call ``load`` before, in a thread. Raises StartError: as of
        ``begin`` and ``Export``.
        """
        return self._stage(self._judged(config))

    def _stage(self, settings: Settings) -> StagedExport:
        staged = StagedExport(settings, self._telemetry)
        if staged.telemetry is None:
            if not settings.wanted:
                return staged
            assert self._plane is not None, "it has begun"
            staged.telemetry = self._module("provider").Telemetry(self._plane, self._validity)
            staged.telemetry.account.write = self._log.write
        assert staged.telemetry is not None
        logging.getLogger("opentelemetry").setLevel(settings.log_level)
        staged.metrics = staged.telemetry.stage(settings)
        try:
            for target in settings.targets:
                if target.signal != "metrics" and target not in self._in_force.targets:
                    self._stage_signal(target, staged, staged.telemetry)
        except BaseException:
            self.release(staged)
            raise
        return staged

    def _stage_signal(self, target: Target, staged: StagedExport, telemetry: "Telemetry") -> None:
        assert self._plane is not None, "it has begun"
        exporter = staged.exporters[target.signal] = self._module("exporters").otlp_exporter(target)
        made = (exporter, telemetry.resource, self._plane.build.version, telemetry.account)
        if target.signal == "traces" and self._traces is None:
            staged.traces = traces = self._module("traces").Traces(*made)
            failed = functools.partial(self._task_monitor.failed, "spans")
            staged.events = self._module("event_spans").EventSpans(traces, self._tls, telemetry.account, failed)
        elif target.signal == "logs" and self._records is None:
            staged.records = self._module("log_records").LogRecords(*made)

    def release(self, staged: StagedExport) -> None:
        """End what was staged and is not wanted."""
        if staged.metrics is not None and staged.telemetry is not None:
            staged.telemetry.release(staged.metrics)
        if staged.events is not None:
            staged.events.stop()
        for signal, exporter in staged.exporters.items():
            pipeline = staged.traces if signal == "traces" else staged.records
            if pipeline is not None:
                pipeline.stop(0.0)
            else:
                exporter.shutdown()

    def follow(self, staged: StagedExport) -> None:
        """Put staged settings in force; what they replace ends behind it."""
        self._in_force, self._telemetry = staged.settings, staged.telemetry
        if staged.telemetry is None or staged.metrics is None:
            return
        staged.telemetry.follow(staged.metrics)
        if self._traces is not None and staged.settings.traces is None:
            self._end_spans(self._traces)
        if self._records is not None and staged.settings.logs is None:
            self._log.copy_to = None
            records, self._records = self._records, None
            self._behind(records.stop)
        for pipeline, signal in ((self._traces, "traces"), (self._records, "logs")):
            if pipeline is not None and signal in staged.exporters:
                pipeline.exchange(staged.exporters[signal])
        if staged.traces is not None and staged.events is not None:
            self._begin_spans(staged.traces, staged.events)
        if staged.records is not None:
            self._records = staged.records
            self._rows.hand_over(self._records.take)
            self._log.copy_to = self._rows.put

    def _behind(self, work: Callable[[], None]) -> None:
        self._module("exporters").behind(work, "framegate-export-end")

    def follow_listeners(self, config: ProxyConfig) -> None:
        """Know which listeners use TLS."""
        self._tls = _tls(config)
        if self._events is not None:
            self._events.tls = self._tls

    def _begin_spans(self, traces: "Traces", events: "EventSpans") -> None:
        from framegate.control.telemetry.traces import CallSpans, record_segment, trace_fields

        assert self._bus is not None, "it has begun"
        self._traces, self._events = traces, events
        events.tls = self._tls
        self._bus.attach(events, kept=not self._begun)
        self._segments.hand_over(lambda segment: record_segment(traces, *segment))
        self.calls = CallSpans(traces)
        self._log.span_fields, self._log.connection_fields = trace_fields, events.connections.fields

    def _end_spans(self, traces: "Traces") -> None:
        events, self._traces, self._events, self.calls = self._events, None, None, None
        assert self._bus is not None, "it has begun"
        assert events is not None, "there are spans of events where there are spans"
        self._log.span_fields, self._log.connection_fields = dict, None
        self._segments.hand_over(lambda segment: None)
        self._bus.detach(events)

        def end() -> None:
            events.stop()
            traces.stop()

        self._behind(end)

    async def stop_metrics(self) -> None:
        """Export metrics once more, and end; while the cells can still be read."""
        if self._telemetry is not None:
            await self._telemetry.stop()

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


def _tls(config: ProxyConfig) -> frozenset[str]:
    return frozenset(listener.name for listener in config.listeners if listener.tls is not None)
