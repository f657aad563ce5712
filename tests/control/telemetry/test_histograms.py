"""Folded histograms become data points, cumulative or as differences."""

from opentelemetry.sdk.metrics.export import AggregationTemporality, Histogram, HistogramDataPoint, MetricsData, ResourceMetrics, ScopeMetrics
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from framegate.control.telemetry.fold import Folded
from framegate.control.telemetry.histograms import SCOPE, Injector
from framegate.proxy.cells import METRICS, HistogramValue

SIZE = next(metric for metric in METRICS if metric.name == "framegate.frame.size")
DURATION = next(metric for metric in METRICS if metric.name == "framegate.connection.duration")
COLLECTED = MetricsData([ResourceMetrics(Resource({}), [ScopeMetrics(InstrumentationScope("x"), [], "")], "")])


def folded(count: int, error: str = "", ended: int = 0) -> Folded:
    result = Folded()
    result.put(SIZE.name, (("framegate.side", "upstream"),), HistogramValue((count, *[0] * len(SIZE.bounds)), 100.0 * count))
    duration = HistogramValue((ended, *[0] * len(DURATION.bounds)), 0.0)
    result.put(DURATION.name, (("framegate.side", "upstream"), ("error.type", error)), duration)
    return result


def points(data: MetricsData) -> dict[str, list[HistogramDataPoint]]:
    (scope,) = [scope for scope in data.resource_metrics[0].scope_metrics if scope.scope.name == SCOPE]
    return {metric.name: list(metric.data.data_points) for metric in scope.metrics if isinstance(metric.data, Histogram)}


def test_count_and_buckets_agree_and_the_start_stays() -> None:
    injector = Injector("1", 5)
    injector.inject(COLLECTED, folded(1), 10)
    (point,) = points(injector.inject(COLLECTED, folded(3), 20))["framegate.frame.size"]
    assert (point.count, sum(point.bucket_counts), point.sum) == (3, 3, 300)
    assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
    assert (point.start_time_unix_nano, point.time_unix_nano) == (5, 20)


def test_differences_when_the_receiver_prefers_them() -> None:
    injector = Injector("1", 5, AggregationTemporality.DELTA)
    injector.inject(COLLECTED, folded(1), 10)
    (point,) = points(injector.inject(COLLECTED, folded(3), 20))["framegate.frame.size"]
    assert (point.count, point.sum, point.start_time_unix_nano) == (2, 200, 10)


def test_an_error_that_never_happened_is_left_out() -> None:
    assert "framegate.connection.duration" not in points(Injector("1", 5).inject(COLLECTED, folded(1, "idle"), 10))
    assert "framegate.connection.duration" in points(Injector("1", 5).inject(COLLECTED, folded(1, "idle", 1), 10))


def test_an_empty_collection_stays_empty() -> None:
    assert Injector("1", 5).inject(MetricsData([]), folded(1), 10).resource_metrics == []
