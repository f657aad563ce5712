"""The readers of metrics: one pushes to an OTLP collector, one answers scrapes of Prometheus. Both add the folded histograms.

The SDK has no observable histogram, but ``MetricReader._receive_metrics`` is documented as the hook for subclasses: there both readers add the
histograms of the fold, as a scope of their own.

The socket for Prometheus listens from the start; what answers (``exposition``) is 3 MiB of modules and is loaded by the first scrape. A scrape
collects at that moment: its values are at most a millisecond old.
"""

import contextlib
import importlib.util
import logging
import select
import socket
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from opentelemetry.sdk.metrics import Histogram as HistogramInstrument
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExporter,
    MetricReader,
    MetricsData,
    PeriodicExportingMetricReader,
    ResourceMetrics,
    ScopeMetrics,
)
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from framegate.control.errors import StartError
from framegate.control.status import Attributes
from framegate.control.steering.state import State
from framegate.control.telemetry.environment import Target
from framegate.control.telemetry.exporters import Account, metric_exporter
from framegate.control.telemetry.fold import Fold, Folded
from framegate.control.web import bind
from framegate.proxy.cells import METRICS, HistogramValue

if TYPE_CHECKING:
    from framegate.control.telemetry.exposition import Scrapes

__all__ = ["SCOPE", "Injector", "OtlpReader", "PrometheusReader"]

SCOPE: Final = "framegate.dataplane"
_HISTOGRAMS: Final = tuple(metric for metric in METRICS if metric.kind == "histogram")
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
        """Add the histograms of the same moment to what was collected, each from its first observation on; nothing if nothing was collected."""
        if not data.resource_metrics:
            return data
        delta = self._temporality is AggregationTemporality.DELTA
        start_ns = self._last_ns if delta else self._started_ns
        metrics = []
        for metric in _HISTOGRAMS:
            points = self._points(metric.name, metric.bounds, folded.histograms.get(metric.name, {}), start_ns, now_ns)
            if points:
                metrics.append(Metric(metric.name, metric.description, metric.unit, Histogram(points, self._temporality)))
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
    """Pushes to a collector. Raises ImportError: the extra ``otlp`` is not installed."""

    def __init__(self, plane: State, fold: Fold, target: Target, interval_ms: int, account: Account, cardinality: dict[type, int]) -> None:
        exporter = metric_exporter(target, account)
        self._fold = fold
        preferred: dict[type, AggregationTemporality] = exporter._preferred_temporality or {}
        temporality = preferred.get(HistogramInstrument, AggregationTemporality.CUMULATIVE)
        self._injector = Injector(plane.build.version, plane.started_ns, temporality)
        super().__init__(cast(MetricExporter, exporter), interval_ms, cardinality_limits=cardinality)

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """Export once more and end. If the collector hangs, an export over gRPC is broken off after ``timeout_millis``; over HTTP its daemon thread
        continues until the export's timeout.
        """
        super().shutdown(timeout_millis, **kwargs)
        if self._daemon_thread is not None:
            self._daemon_thread.join(_END_S)

    def _receive_metrics(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> None:
        try:
            data = self._injector.inject(metrics_data, self._fold.end(), time.time_ns())
        except Exception:  # only this export is lost; raised, the exception would end the thread that exports
            _log.exception("the histograms could not be added; nothing is exported this time")
            return
        super()._receive_metrics(data, timeout_millis, **kwargs)


class PrometheusReader(MetricReader):
    """Collects for each scrape.

    Args:
        plane: has the time since which the cells count.
        fold: the source of the histograms.
        address: ``host:port``; with port 0 the kernel chooses one.
        cardinality: data points of one metric, by kind of instrument.

    Raises:
        ImportError: the extra ``prometheus`` is not installed.
        StartError: the address cannot be bound.
    """

    def __init__(self, plane: State, fold: Fold, address: str, cardinality: dict[type, int]) -> None:
        if importlib.util.find_spec("prometheus_client") is None:  # reported now, not by the first scrape
            raise ModuleNotFoundError("prometheus_client is not installed", name="prometheus_client")
        super().__init__(cardinality_limits=cardinality)
        self._fold = fold
        self._injector = Injector(plane.build.version, plane.started_ns)
        self._collected = threading.local()
        try:
            self._socket = bind(address)
        except OSError as error:
            text = f"the Prometheus listener cannot bind {address}: {error}"
            raise StartError(text, reason="PROMETHEUS_ADDRESS_UNUSABLE", address=address) from error
        self._server: Scrapes | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._answer, name="framegate-prometheus", daemon=True)
        self._thread.start()
        self.address = f"{address.rpartition(':')[0]}:{self._socket.getsockname()[1]}"

    def _answer(self) -> None:
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

        self._server = server = Scrapes(self._socket, self.scrape)
        if self._stopping.is_set():  # ``shutdown`` may have looked before there was a server to stop
            server.stop()
        server.serve()

    @property
    def refused(self) -> int:
        """Connections that were refused, or that sent no request. Any thread."""
        return 0 if self._server is None else self._server.refused

    def measurements(self) -> Mapping[tuple[str, Attributes], float]:
        """As ``State.measurements``."""
        return {("framegate.scrape.refused", ()): self.refused}

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
        self._stopping.set()
        if self._server is not None:
            self._server.stop()
        else:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for the first scrape
        self._thread.join(timeout_millis / 1000)
        self._socket.close()
