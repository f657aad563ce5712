"""Which instrument a metric becomes."""

from collections.abc import Iterator

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, Metric, Sum

from framegate.control.telemetry.fold import Fold
from framegate.control.telemetry.instruments import observe_fold, observe_processes
from framegate.control.telemetry.process import ProcessMetrics
from framegate.proxy.cells import METRICS
from tests.fakes.cells import fill
from tests.fakes.plane import FakePlane, fake_config


@pytest.fixture
def metrics() -> Iterator[dict[str, Metric]]:
    plane = FakePlane(fake_config("unix:unused", None))
    plane.writers[0].publish(plane.layout.count * (1).to_bytes(8, "little"))
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    meter = provider.get_meter("test")
    observe_fold(meter, Fold(plane))
    observe_processes(meter, ProcessMetrics(plane))
    data = reader.get_metrics_data()
    assert data is not None
    yield {metric.name: metric for resource in data.resource_metrics for scope in resource.scope_metrics for metric in scope.metrics}
    provider.shutdown()
    plane.close()


def test_counters_are_monotonic_sums_and_gauges_are_not(metrics: dict[str, Metric]) -> None:
    for metric in METRICS:
        if metric.source == "processor" and metric.kind != "histogram":
            data = metrics[metric.name].data
            assert (isinstance(data, Sum) and data.is_monotonic) == (metric.kind == "counter"), metric.name
            assert (metrics[metric.name].unit, metrics[metric.name].description) == (metric.unit, metric.description)


def test_a_counter_of_one_thing_among_many_begins_with_its_first_event() -> None:
    plane = FakePlane(fake_config("unix:unused", None))
    reader = InMemoryMetricReader()
    fold = Fold(plane)
    observe_fold(MeterProvider([reader], shutdown_on_exit=False).get_meter("test"), fold)

    def points(name: str) -> list[dict[str, str]]:
        data = reader.get_metrics_data()
        fold.end()
        assert data is not None
        found = [metric for scope in data.resource_metrics[0].scope_metrics for metric in scope.metrics if metric.name == name]
        return [dict(point.attributes) for metric in found for point in metric.data.data_points]  # type: ignore[arg-type]

    assert points("framegate.connection.closed") == points("framegate.channel.mute.time") == []
    assert len(points("framegate.connection.accepted")) == len(plane.config.listeners)
    assert len(points("framegate.channel.muted")) == 7, "a gauge says 0"
    assert {key for point in points("framegate.tap.dropped") for key in point} == {"framegate.reason"}, "its alert speaks at the first"
    fill(plane, 0, {("framegate.connection.closed", "plain", "peer_closed"): 1})
    assert points("framegate.connection.closed") == [{"framegate.listener": "plain", "framegate.cause": "peer_closed"}]
    plane.close()
