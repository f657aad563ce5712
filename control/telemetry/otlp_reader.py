"""The reader of metrics that pushes to an OTLP collector.

The SDK has no observable histogram, but ``MetricReader._receive_metrics`` is documented as the hook for subclasses: there the reader adds the
histograms of the fold, as a scope of their own, and the gauges of clients: those that are there now, and no others.
"""

import logging
import math
import threading
import time
from typing import Any, Final, cast

from opentelemetry.sdk.metrics import Histogram as HistogramInstrument
from opentelemetry.sdk.metrics import ObservableCounter, ObservableUpDownCounter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Buckets,
    ExponentialHistogram,
    ExponentialHistogramDataPoint,
    Gauge,
    Histogram,
    HistogramDataPoint,
    MetricExporter,
    MetricsData,
    NumberDataPoint,
    PeriodicExportingMetricReader,
    ResourceMetrics,
    ScopeMetrics,
)
from opentelemetry.sdk.metrics.export import Metric as SdkMetric
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from framegate.control.status import Attributes
from framegate.control.steering.state import State
from framegate.control.telemetry.exporters import Counted
from framegate.control.telemetry.fold import REPLACED, Fold, Folded
from framegate.proxy.cells import FIRST_POWERS, METRICS, HistogramValue, Metric

SCOPE: Final = "framegate.dataplane"
_HISTOGRAMS: Final = tuple(metric for metric in METRICS if metric.kind == "histogram")
_GAUGES: Final = tuple(metric for metric in METRICS if metric.name.startswith(REPLACED))
_ABSENT: Final = cast("float", None)  # Smallest and largest values are not measured; they are optional in OTLP
_SCALE: Final = 2  # of exponential histograms: each bucket is 2^(1/4) times as wide as the one before it
_END_S: Final = 0.5  # how long the end waits for an export that was broken off
_CARDINALITY: Final[dict[type, int]] = {ObservableCounter: 50_000, ObservableUpDownCounter: 50_000}
"""Data points of one metric. All attributes come from closed lists and the configured names, so this bounds nothing that could grow."""
_log = logging.getLogger(__name__)


class Injector:
    """Turns folded histograms into the SDK's data points, for one reader. ``temporality``: what the collector prefers; DELTA subtracts the values of
    the last collection.
    """

    def __init__(
        self, version: str, started_ns: int, temporality: AggregationTemporality = AggregationTemporality.CUMULATIVE, *, exponential: bool = False
    ) -> None:
        self._scope = InstrumentationScope(SCOPE, version)
        self._started_ns = started_ns
        self._temporality = temporality
        self._exponential = exponential
        self._last: dict[tuple[str, Attributes], HistogramValue] = {}
        self._last_ns = started_ns

    def inject(self, data: MetricsData, folded: Folded, now_ns: int) -> MetricsData:
        """Add the histograms of the same moment and the gauges of clients to what was collected, or nothing if nothing was collected."""
        if not data.resource_metrics:
            return data
        delta = self._temporality is AggregationTemporality.DELTA
        time_ns = self._last_ns if delta else self._started_ns, now_ns
        metrics = []
        for metric in _HISTOGRAMS:
            values = [
                (attributes, self._since(metric.name, attributes, value)) for attributes, value in folded.histograms.get(metric.name, {}).items()
            ]
            make = _exponential_point if self._exponential and metric.bounds in FIRST_POWERS else _point
            points: list[Any] = [make(metric, attributes, value, time_ns) for attributes, value in values if value.count or not delta]
            if points:
                kind = ExponentialHistogram if make is _exponential_point else Histogram
                metrics.append(SdkMetric(metric.name, metric.description, metric.unit, kind(points, self._temporality)))
        for metric in _GAUGES:
            numbers = [NumberDataPoint(dict(attributes), *time_ns, value) for attributes, value in folded.points.get(metric.name, {}).items()]
            if numbers:
                metrics.append(SdkMetric(metric.name, metric.description, metric.unit, Gauge(numbers)))
        self._last_ns = now_ns
        first = data.resource_metrics[0]
        extra = ScopeMetrics(scope=self._scope, metrics=metrics, schema_url="")
        return MetricsData([ResourceMetrics(first.resource, [*first.scope_metrics, extra], first.schema_url), *data.resource_metrics[1:]])

    def _since(self, name: str, attributes: Attributes, total: HistogramValue) -> HistogramValue:
        """The value since the last collection, if the collector prefers that."""
        if self._temporality is AggregationTemporality.CUMULATIVE or not total.count:
            return total
        before, self._last[name, attributes] = self._last.get((name, attributes)), total
        return total if before is None else _difference(total, before)


def _point(metric: Metric, attributes: Attributes, value: HistogramValue, time_ns: tuple[int, int]) -> HistogramDataPoint:
    return HistogramDataPoint(
        attributes=dict(attributes),
        start_time_unix_nano=time_ns[0],
        time_unix_nano=time_ns[1],
        count=value.count,
        sum=value.sum,
        bucket_counts=list(value.buckets),
        explicit_bounds=list(metric.bounds[: len(value.buckets) - 1]),
        min=_ABSENT,
        max=_ABSENT,
    )


def _exponential_point(metric: Metric, attributes: Attributes, value: HistogramValue, time_ns: tuple[int, int]) -> ExponentialHistogramDataPoint:
    """Fine buckets are those of scale 2. What is below the first bound, or above the last one, counts as if it were next to it."""
    return ExponentialHistogramDataPoint(
        attributes=dict(attributes),
        start_time_unix_nano=time_ns[0],
        time_unix_nano=time_ns[1],
        count=value.count,
        sum=value.sum,
        scale=_SCALE,
        zero_count=0,
        positive=Buckets(FIRST_POWERS[metric.bounds] - 1, list(value.buckets)),
        negative=Buckets(0, []),
        flags=0,
        min=_ABSENT,
        max=_ABSENT,
    )


def _difference(total: HistogramValue, before: HistogramValue) -> HistogramValue:
    return HistogramValue(tuple(one - other for one, other in zip(total.buckets, before.buckets, strict=True)), total.sum - before.sum)


class OtlpReader(PeriodicExportingMetricReader):
    """Pushes to a collector, from ``start`` on. It has a thread of its own instead of the SDK's, whose interval cannot change."""

    def __init__(self, plane: State, fold: Fold, exporter: Counted, interval_ms: int) -> None:
        self.exporter = exporter  # sends
        self._fold = fold
        self._interval_s = interval_ms / 1000
        self._wake = threading.Event()
        self._ending = False
        preferred: dict[type, AggregationTemporality] = exporter._preferred_temporality or {}
        temporality = preferred.get(HistogramInstrument, AggregationTemporality.CUMULATIVE)
        aggregations: dict[type, object] = exporter._preferred_aggregation or {}
        exponential = isinstance(aggregations.get(HistogramInstrument), ExponentialBucketHistogramAggregation)
        self._injector = Injector(plane.build.version, plane.started_ns, temporality, exponential=exponential)
        super().__init__(cast(MetricExporter, exporter), math.inf, cardinality_limits=_CARDINALITY)
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
