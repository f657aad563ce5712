"""The readers of metrics: one pushes to an OTLP collector, one answers scrapes of Prometheus. Both add the folded histograms.

The SDK has no observable histogram, but ``MetricReader._receive_metrics`` is documented as the hook for subclasses: there both readers add the
histograms of the fold, as a scope of their own, and the gauges of clients: those that are there now, and no others.

The socket for Prometheus listens from the start; what answers (``exposition``) is 3 MiB of modules and is loaded by the first scrape. A scrape
collects at that moment: its values are at most a millisecond old.
"""

import contextlib
import importlib.util
import logging
import math
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from opentelemetry.sdk.metrics import Histogram as HistogramInstrument
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExporter,
    MetricReader,
    MetricsData,
    NumberDataPoint,
    PeriodicExportingMetricReader,
    ResourceMetrics,
    ScopeMetrics,
)
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from framegate.control.accept.listening import shared
from framegate.control.errors import StartError
from framegate.control.status import Attributes
from framegate.control.steering.state import State
from framegate.control.telemetry.exporters import Counted, behind
from framegate.control.telemetry.fold import REPLACED, Fold, Folded
from framegate.control.web import BACKLOG, bind
from framegate.proxy.cells import METRICS, HistogramValue

if TYPE_CHECKING:
    from framegate.control.telemetry.exposition import Scrapes

__all__ = ["SCOPE", "Injector", "OtlpReader", "PrometheusReader", "ScrapeListener"]

SCOPE: Final = "framegate.dataplane"
_HISTOGRAMS: Final = tuple(metric for metric in METRICS if metric.kind == "histogram")
_GAUGES: Final = tuple(metric for metric in METRICS if metric.name.startswith(REPLACED))
_ABSENT: Final = cast("float", None)
"""Smallest and largest values are not measured; they are optional in OTLP."""
_END_S: Final = 0.5
"""How long the end waits for an export that was broken off."""
_PAUSE_S: Final = 1.0
"""Before the endpoint for scrapes is tried again after a failure."""
_log = logging.getLogger(__name__)


class Injector:
    """Turns folded histograms into the SDK's data points, for one reader.

    Args:
        version: of framegate, for the scope.
        started_ns: when the cells began to count, CLOCK_REALTIME.
        temporality: what the collector prefers; DELTA subtracts the values of the last collection.
    """

    def __init__(self, version: str, started_ns: int, temporality: AggregationTemporality = AggregationTemporality.CUMULATIVE) -> None:
        self._scope = InstrumentationScope(SCOPE, version)
        self._started_ns = started_ns
        self._temporality = temporality
        self._last: dict[tuple[str, Attributes], HistogramValue] = {}
        self._last_ns = started_ns

    def inject(self, data: MetricsData, folded: Folded, now_ns: int) -> MetricsData:
        """Add the histograms of the same moment, each from its first observation on, and the gauges of clients to what was collected; nothing if
        nothing was collected.
        """
        if not data.resource_metrics:
            return data
        delta = self._temporality is AggregationTemporality.DELTA
        start_ns = self._last_ns if delta else self._started_ns
        metrics = []
        for metric in _HISTOGRAMS:
            points = self._points(metric.name, metric.bounds, folded.histograms.get(metric.name, {}), start_ns, now_ns)
            if points:
                metrics.append(Metric(metric.name, metric.description, metric.unit, Histogram(points, self._temporality)))
        for metric in _GAUGES:
            values = folded.points.get(metric.name, {})
            if values:
                numbers = [NumberDataPoint(dict(attributes), start_ns, now_ns, value) for attributes, value in values.items()]
                metrics.append(Metric(metric.name, metric.description, metric.unit, Gauge(numbers)))
        self._last_ns = now_ns
        first = data.resource_metrics[0]
        extra = ScopeMetrics(scope=self._scope, metrics=metrics, schema_url="")
        return MetricsData([ResourceMetrics(first.resource, [*first.scope_metrics, extra], first.schema_url), *data.resource_metrics[1:]])

    def _points(
        self, name: str, bounds: tuple[float, ...], values: Mapping[Attributes, HistogramValue], start_ns: int, now_ns: int
    ) -> list[HistogramDataPoint]:
        points = []
        for attributes, total in values.items():
            value = total
            if self._temporality is AggregationTemporality.DELTA:
                value = _difference(total, self._last.get((name, attributes)))
                self._last[name, attributes] = total
            if value.count == 0:
                continue
            points.append(
                HistogramDataPoint(
                    attributes=dict(attributes),
                    start_time_unix_nano=start_ns,
                    time_unix_nano=now_ns,
                    count=value.count,
                    sum=value.sum,
                    bucket_counts=list(value.buckets),
                    explicit_bounds=list(bounds),
                    min=_ABSENT,
                    max=_ABSENT,
                )
            )
        return points


def _difference(total: HistogramValue, before: HistogramValue | None) -> HistogramValue:
    if before is None:
        return total
    return HistogramValue(tuple(one - other for one, other in zip(total.buckets, before.buckets, strict=True)), total.sum - before.sum)


class OtlpReader(PeriodicExportingMetricReader):
    """Pushes to a collector, from ``start`` on. It has a thread of its own instead of the SDK's, whose interval cannot change.

    Attributes:
        exporter: sends.
    """

    def __init__(self, plane: State, fold: Fold, exporter: Counted, interval_ms: int, cardinality: dict[type, int]) -> None:
        self.exporter = exporter
        self._fold = fold
        self._interval_s = interval_ms / 1000
        self._wake = threading.Event()
        self._ending = False
        preferred: dict[type, AggregationTemporality] = exporter._preferred_temporality or {}
        temporality = preferred.get(HistogramInstrument, AggregationTemporality.CUMULATIVE)
        self._injector = Injector(plane.build.version, plane.started_ns, temporality)
        super().__init__(cast(MetricExporter, exporter), math.inf, cardinality_limits=cardinality)
        self._started = False
        self._thread = threading.Thread(target=self._run, name="framegate-metrics", daemon=True)
        self._thread.start()

    def start(self) -> None:
        """Begin to export, once a provider has the reader."""
        self._started = True
        self._wake.set()

    def configure(self, interval_ms: int) -> None:
        """Set the interval, also for the export that is waited for."""
        self._interval_s = interval_ms / 1000
        self._wake.set()

    def _run(self) -> None:
        while True:
            began_s = time.monotonic()
            while not self._ending and (not self._started or began_s + self._interval_s > time.monotonic()):
                self._wake.wait(max(began_s + self._interval_s - time.monotonic(), 0.0) if self._started else None)
                self._wake.clear()
            ending = self._ending
            if not self._started:
                return
            try:
                self.collect(self._export_timeout_millis)
            except Exception:  # only this export is lost; raised, the exception would end the thread
                _log.exception("metrics could not be collected; nothing is exported this time")
            if ending:
                return

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """Export once more and end. If the collector hangs, an export over gRPC is broken off after ``timeout_millis``; over HTTP its daemon thread
        continues until the export's timeout.
        """
        if self._ending:
            return
        self._ending = True
        self._wake.set()
        self._thread.join(timeout_millis / 1000)
        super().shutdown(timeout_millis, **kwargs)
        self._thread.join(_END_S)

    def _receive_metrics(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> None:
        data = self._injector.inject(metrics_data, self._fold.end(), time.time_ns())
        super()._receive_metrics(data, timeout_millis, **kwargs)


class ScrapeListener:
    """Listens for scrapes, which are answered from ``start`` on.

    Args:
        address: ``host:port``; with port 0 the kernel chooses one.
        former: its address may overlap with this one: then clients connect to it until ``start``. Close it afterwards.

    Attributes:
        address: with the port bound.

    Raises:
        ImportError: the extra ``prometheus`` is not installed.
        StartError: the address cannot be bound.
    """

    address: str
    _socket: socket.socket

    def __init__(self, address: str, former: "ScrapeListener | None" = None) -> None:
        if importlib.util.find_spec("prometheus_client") is None:  # reported now, not by the first scrape
            raise ModuleNotFoundError("prometheus_client is not installed", name="prometheus_client")
        near = former is not None and address.rpartition(":")[2] == former.address.rpartition(":")[2]
        self._beside = (former._socket,) if former is not None and near else ()
        try:
            with shared(*self._beside):
                self._socket = bind(address, beside=bool(self._beside))
        except OSError as error:
            text = f"the Prometheus listener cannot bind {address}: {error}"
            raise StartError(text, reason="PROMETHEUS_ADDRESS_UNUSABLE", address=address) from error
        self.address = f"{address.rpartition(':')[0]}:{self._socket.getsockname()[1]}"
        self._server: Scrapes | None = None
        self._scrape: Callable[[], MetricsData | None] = lambda: None
        self._stopping = threading.Event()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._answer, name="framegate-prometheus", daemon=True)
        self._thread.start()

    def start(self, scrape: Callable[[], MetricsData | None]) -> None:
        """Answer with what ``scrape`` returns, in the thread of the listener."""
        if self._beside:
            with shared(self._socket, *self._beside):
                self._socket.listen(BACKLOG)
            self._beside = ()
        self._scrape = scrape
        self._started.set()

    def _answer(self) -> None:
        self._started.wait()
        first = select.poll()
        first.register(self._socket, select.POLLIN)
        first.poll()
        while not self._stopping.is_set():
            try:
                self._serve()
            except Exception:  # for example, no descriptors for its loop: a later scrape may find some
                _log.exception("the Prometheus endpoint failed")
                self._stopping.wait(_PAUSE_S)

    def _serve(self) -> None:
        from framegate.control.telemetry.exposition import Scrapes

        self._server = server = Scrapes(self._socket, self._scrape)
        if self._stopping.is_set():  # ``shutdown`` may have looked before there was a server to stop
            server.stop()
        server.serve()

    @property
    def refused(self) -> int:
        """Connections that were refused, or that sent no request. Any thread."""
        return 0 if self._server is None else self._server.refused

    def close(self, timeout_s: float = 2.0) -> None:
        """Answer no more scrapes, and release the address."""
        self._stopping.set()
        self._started.set()
        if self._server is not None:
            self._server.stop()
        else:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for the first scrape
        self._thread.join(timeout_s)
        self._socket.close()


class PrometheusReader(MetricReader):
    """Collects for each scrape, from the first ``listen`` on.

    Args:
        plane: has the time since which the cells count.
        fold: the source of the histograms.
        cardinality: data points of one metric, by kind of instrument.
    """

    def __init__(self, plane: State, fold: Fold, cardinality: dict[type, int]) -> None:
        super().__init__(cardinality_limits=cardinality)
        self._fold = fold
        self._injector = Injector(plane.build.version, plane.started_ns)
        self._collected = threading.local()
        self._listening: tuple[ScrapeListener | None, int] = (None, 0)  # and the connections that former ones refused

    @property
    def listener(self) -> ScrapeListener | None:
        """The present one; None before ``listen``."""
        return self._listening[0]

    @property
    def address(self) -> str | None:
        """Where it listens; None before."""
        return None if self.listener is None else self.listener.address

    def listen(self, listener: ScrapeListener) -> None:
        """Answer the scrapes of a listener, and no more those of the former one. It does not block."""
        listener.start(self.scrape)
        former, self._listening = self.listener, (listener, self.refused)
        if former is not None:
            behind(former.close, "framegate-prometheus-end")

    @property
    def refused(self) -> int:
        """Connections that were refused, or that sent no request. Any thread."""
        listener, before = self._listening
        return before + (0 if listener is None else listener.refused)

    def scrape(self) -> MetricsData | None:
        """Collect now, in this thread."""
        self._collected.data = None
        self.collect()
        data: MetricsData | None = self._collected.data
        return data

    def _receive_metrics(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> None:
        self._collected.data = self._injector.inject(metrics_data, self._fold.end(), time.time_ns())

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """Answer no more scrapes."""
        if self.listener is not None:
            self.listener.close(timeout_millis / 1000)
