"""Which instrument a metric becomes."""

from collections.abc import Iterator

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import Gauge, InMemoryMetricReader, Metric, Sum

from control.telemetry.fold import Fold
from control.telemetry.instruments import PLAIN_GAUGES, observe_fold, observe_processes
from control.telemetry.process import ProcessMetrics
from proxy.cells import METRICS
from proxy.cells.standard_metrics import PROCESS_METRICS
from tests.fakes.plane import FakePlane, fake_config


@pytest.fixture
def metrics() -> Iterator[dict[str, Metric]]:
    plane = FakePlane(fake_config("unix:unused", None))
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


def test_what_must_not_be_summed_is_a_plain_gauge(metrics: dict[str, Metric]) -> None:
    for name in ("framegate.frame.size.limit", "framegate.draining", "process.uptime"):
        assert isinstance(metrics[name].data, Gauge)


def test_histograms_are_no_instruments(metrics: dict[str, Metric]) -> None:
    assert not {metric.name for metric in METRICS if metric.kind == "histogram"} & set(metrics)


def test_the_processes_are_there(metrics: dict[str, Metric]) -> None:
    assert {metric.name for metric in PROCESS_METRICS} <= set(metrics)


def test_a_plain_gauge_is_one_that_there_is() -> None:
    assert {metric.name for metric in (*METRICS, *PROCESS_METRICS) if metric.kind == "gauge"} >= PLAIN_GAUGES
