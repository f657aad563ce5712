"""The fold's histograms, put into what a reader collects.

The SDK knows no observable histogram, but ``MetricReader._receive_metrics`` is documented as the hook for subclasses: both readers put the
folded histograms in there, as a scope of their own.
"""

from collections.abc import Mapping
from typing import Final, cast

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    ResourceMetrics,
    ScopeMetrics,
)
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from framegate.control.status import Attributes
from framegate.control.telemetry.fold import Folded, names_event
from framegate.proxy.cells import METRICS, HistogramValue

__all__ = ["SCOPE", "Injector"]

SCOPE: Final = "framegate.dataplane"
_HISTOGRAMS: Final = tuple(metric for metric in METRICS if metric.kind == "histogram")
_ABSENT: Final = cast("float", None)
"""Smallest and largest values are not kept; OTLP has both as optional."""


class Injector:
    """Turns folded histograms into the SDK's data points, for one reader.

    Args:
        version: of framegate, for the scope.
        started_ns: since when the cells count, CLOCK_REALTIME.
        temporality: what the reader's receiver prefers; DELTA subtracts what this reader was given before.
    """

    def __init__(self, version: str, started_ns: int, temporality: AggregationTemporality = AggregationTemporality.CUMULATIVE) -> None:
        self._scope = InstrumentationScope(SCOPE, version)
        self._started_ns = started_ns
        self._temporality = temporality
        self._last: dict[tuple[str, Attributes], HistogramValue] = {}
        self._last_ns = started_ns

    def inject(self, data: MetricsData, folded: Folded, now_ns: int) -> MetricsData:
        """What was collected, with the histograms of the same moment; unchanged when nothing was collected."""
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
                value = _less(total, self._last.get((name, attributes)))
                self._last[name, attributes] = total
            if value.count == 0 and names_event(attributes):
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


def _less(total: HistogramValue, before: HistogramValue | None) -> HistogramValue:
    if before is None:
        return total
    return HistogramValue(tuple(one - other for one, other in zip(total.buckets, before.buckets, strict=True)), total.sum - before.sum)
