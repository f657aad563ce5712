"""Metrics pushed to a collector, with the folded histograms."""

import itertools
import json
import random
import socket
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    ExponentialHistogram,
    ExponentialHistogramDataPoint,
    HistogramDataPoint,
    MetricsData,
    ResourceMetrics,
    ScopeMetrics,
)
from opentelemetry.sdk.metrics.export import Histogram as SdkHistogram
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from framegate.control.telemetry.environment import Target, judge
from framegate.control.telemetry.exporters import Account, Counted, metric_exporter
from framegate.control.telemetry.fold import Fold, Folded
from framegate.control.telemetry.instruments import observe_fold
from framegate.control.telemetry.otlp_reader import SCOPE, Injector, OtlpReader
from framegate.proxy.cells import FIRST_POWERS, FORWARD_BOUNDS, METRICS, HistogramValue
from framegate.proxy.config.model import OtlpConfig, TelemetryConfig
from framegate.proxy.network.stats import Histogram
from tests.fakes.cases import each_of
from tests.fakes.cells import fill
from tests.fakes.monitoring import program
from tests.fakes.otlp_receiver import GrpcReceiver
from tests.fakes.plane import FakePlane
from tests.fakes.waiting import until

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
    return {metric.name: list(metric.data.data_points) for metric in scope.metrics if isinstance(metric.data, SdkHistogram)}


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


def test_what_has_not_happened_yet_is_exported_only_in_sums_since_the_start() -> None:
    for temporality, shown in ((AggregationTemporality.CUMULATIVE, True), (AggregationTemporality.DELTA, False)):
        injector = Injector("1", 5, temporality)
        assert ("framegate.connection.duration" in points(injector.inject(COLLECTED, folded(1, "idle"), 10))) is shown
        assert "framegate.connection.duration" in points(injector.inject(COLLECTED, folded(1, "idle", 1), 10))


def test_a_histogram_without_buckets_has_a_count_only() -> None:
    values = Folded()
    values.put(DURATION.name, (("error.type", "reset"),), HistogramValue((0,), 0.0))
    (point,) = points(Injector("1", 5).inject(COLLECTED, values, 10))[DURATION.name]
    assert (point.count, list(point.bucket_counts), list(point.explicit_bounds)) == (0, [0], [])


@each_of("temporality", [AggregationTemporality.CUMULATIVE, AggregationTemporality.DELTA])
def test_fine_buckets_as_exponential_ones_lose_no_count_and_no_quantile_is_wrong_by_more_than_a_fifth(temporality: AggregationTemporality) -> None:
    chance = random.Random(7)
    took_ns = [int(chance.lognormvariate(15, 2)) for _ in range(10_000)]
    for metric in (metric for metric in METRICS if metric.bounds in FIRST_POWERS):
        injector, histogram = Injector("1", 5, temporality, exponential=True), Histogram(metric.bounds)
        found: list[ExponentialHistogramDataPoint] = []
        for half in (took_ns[:5_000], took_ns[5_000:]):
            for each in half:
                histogram.observe(each)
            values = Folded()
            values.put(metric.name, (), HistogramValue(tuple(histogram.buckets), histogram.sum / 1e9))
            (scope,) = [scope for scope in injector.inject(COLLECTED, values, 10).resource_metrics[0].scope_metrics if scope.scope.name == SCOPE]
            (sent,) = scope.metrics
            assert isinstance(sent.data, ExponentialHistogram)
            found += sent.data.data_points
        counts = Counter[int]()
        for point in found[-1:] if temporality is AggregationTemporality.CUMULATIVE else found:
            assert (point.scale, point.zero_count, sum(point.positive.bucket_counts)) == (2, 0, point.count)
            counts.update({point.positive.offset + index: count for index, count in enumerate(point.positive.bucket_counts)})
        assert counts.total() == len(took_ns)
        for rank in (0.5, 0.9, 0.99):
            true_s = sorted(took_ns)[int(rank * len(took_ns)) - 1] / 1e9
            below = itertools.accumulate(counts[index] for index in sorted(counts))
            bucket = next(index for index, total in zip(sorted(counts), below, strict=True) if total >= rank * len(took_ns))
            assert 2 ** (bucket / 4) <= true_s * 1.000001
            assert true_s <= 2 ** ((bucket + 1) / 4) * 1.000001


def test_coarse_buckets_stay_explicit() -> None:
    assert set(points(Injector("1", 5, exponential=True).inject(COLLECTED, folded(1, "", 1), 10))) == {SIZE.name, DURATION.name}


def test_the_variable_of_the_sdk_asks_for_exponential_histograms(plane: FakePlane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION", "base2_exponential_bucket_histogram")
    fill(plane, 0, {("framegate.frame.forward.duration", "kafka", "request"): [0, 2, *[0] * (len(FORWARD_BOUNDS) - 1), 50_000]})
    with GrpcReceiver() as collector:
        exporting(plane, collector.endpoint, 3_600_000).shutdown(2_000)
        (point,) = collector.nth(1).metrics["framegate.frame.forward.duration"].exponential_histogram.data_points
    assert (point.count, point.scale, point.positive.offset, list(point.positive.bucket_counts)[:3]) == (2, 2, -64, [0, 2, 0])


@pytest.mark.slow
@pytest.mark.skipif(program("otelcol") is None, reason="no collector is installed")
def test_a_collector_takes_exponential_histograms_and_their_quantiles_are_right(
    plane: FakePlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION", "base2_exponential_bucket_histogram")
    chance, histogram, output = random.Random(7), Histogram(FORWARD_BOUNDS), tmp_path / "output.json"
    took_ns = sorted(int(chance.lognormvariate(15, 2)) for _ in range(10_000))
    for each in took_ns:
        histogram.observe(each)
    fill(plane, 0, {("framegate.frame.forward.duration", "kafka", "request"): [*histogram.buckets, histogram.sum]})
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = "{}:{}".format(*free.getsockname())
    pipelines = {"metrics": {"receivers": ["otlp"], "exporters": ["file"]}}
    config = {
        "receivers": {"otlp": {"protocols": {"grpc": {"endpoint": address}}}},
        "exporters": {"file": {"path": str(output)}},
        "service": {"telemetry": {"metrics": {"level": "none"}}, "pipelines": pipelines},
    }
    (tmp_path / "collector.yaml").write_text(json.dumps(config))
    with subprocess.Popen([str(program("otelcol")), f"--config={tmp_path}/collector.yaml"], stderr=subprocess.DEVNULL) as collector:
        try:
            until(lambda: listens(address), "it does not listen", 20)
            exporting(plane, f"http://{address}", 3_600_000).shutdown(5_000)
        finally:
            collector.terminate()
            assert collector.wait(20) == 0
    (scopes,) = [found["scopeMetrics"] for line in output.read_text().splitlines() for found in json.loads(line)["resourceMetrics"]]
    (metric,) = [metric for scope in scopes for metric in scope["metrics"] if metric["name"] == "framegate.frame.forward.duration"]
    (point,) = metric["exponentialHistogram"]["dataPoints"]
    below = list(itertools.accumulate(map(int, point["positive"]["bucketCounts"])))
    assert (int(point["count"]), below[-1]) == (10_000, 10_000)
    for rank in (0.5, 0.9, 0.99):
        bucket = next(index for index, total in enumerate(below) if total >= rank * below[-1])
        quantile_s = 2 ** ((point["positive"]["offset"] + bucket + 1) / 2 ** point["scale"])
        assert 1 <= quantile_s / (took_ns[int(rank * 10_000) - 1] / 1e9) <= 1.2, rank


def test_gauges_of_clients_are_those_of_the_moment_and_nothing_remembers_others() -> None:
    injector = Injector("1", 5)
    for number in range(3_000):  # more than the SDK keeps
        values = Folded()
        values.put("framegate.client.io", (("framegate.principal", f"user-{number}"),), 7.0)
        (scope,) = [scope for scope in injector.inject(COLLECTED, values, 10).resource_metrics[0].scope_metrics if scope.scope.name == SCOPE]
        (metric,) = scope.metrics
        assert [(point.attributes, point.value) for point in metric.data.data_points] == [({"framegate.principal": f"user-{number}"}, 7.0)]
    assert injector._last == {}


def test_an_empty_collection_stays_empty() -> None:
    assert Injector("1", 5).inject(MetricsData([]), folded(1), 10).resource_metrics == []


def wanted(endpoint: str) -> Target:
    metrics = judge(TelemetryConfig(otlp=OtlpConfig(endpoint=endpoint)), {}).metrics
    assert metrics is not None
    return metrics


def exporting(plane: FakePlane, endpoint: str, interval_ms: int) -> OtlpReader:
    """A reader that exports what the plane's cells say."""
    fold = Fold(plane)
    reader = OtlpReader(plane, fold, Counted(metric_exporter(wanted(endpoint)), "metrics", Account()), interval_ms)
    observe_fold(MeterProvider([reader], shutdown_on_exit=False).get_meter("x"), fold)
    reader.start()
    return reader


def listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as sock:
        return sock.connect_ex((host, int(port))) == 0


def test_each_interval_exports_what_the_cells_say_then(plane: FakePlane) -> None:
    with GrpcReceiver() as collector:
        reader = exporting(plane, collector.endpoint, 50)
        collector.nth(1)
        fill(plane, 0, {("framegate.event_loop.lag",): [0, 4, *[0] * 13, 8_000_000]})
        count = len(collector.received) + 2
        points = collector.nth(count).metrics["framegate.event_loop.lag"].histogram.data_points
        (point,) = (point for point in points if point.count)
        reader.shutdown(1_000)
    assert (point.count, point.sum, list(point.bucket_counts)) == (4, 0.008, [0, 4, *[0] * 13])
    assert (point.HasField("min"), point.HasField("max")) == (False, False)
    assert point.start_time_unix_nano == plane.started_ns


def test_what_was_counted_last_is_exported_at_the_end(plane: FakePlane) -> None:
    with GrpcReceiver() as collector:
        reader = exporting(plane, collector.endpoint, 3_600_000)
        fill(plane, 0, {("framegate.tap.io",): 9})
        reader.shutdown(2_000)
        (point,) = collector.nth(1).metrics["framegate.tap.io"].sum.data_points
    assert point.as_int == 9


def test_the_gauges_of_clients_are_those_of_the_fold(plane: FakePlane) -> None:
    where = (("framegate.listener", "l"), ("framegate.principal", "bob"))
    with GrpcReceiver() as collector:
        reader = exporting(plane, collector.endpoint, 3_600_000)
        reader._fold = Fold(plane, [lambda: {("framegate.client.io", where): 2.5}])
        reader.shutdown(2_000)
        (point,) = collector.nth(1).metrics["framegate.client.io"].gauge.data_points
    assert ([attribute.value.string_value for attribute in point.attributes], point.as_double) == (["l", "bob"], 2.5)


def test_after_the_end_nothing_asks_for_values_any_more(plane: FakePlane) -> None:
    with GrpcReceiver() as early:
        pass
    asked: list[int] = []
    reader = OtlpReader(plane, Fold(plane), Counted(metric_exporter(wanted(early.endpoint)), "metrics", Account()), 20)
    meter = MeterProvider([reader], shutdown_on_exit=False).get_meter("x")
    meter.create_observable_counter("things", [lambda options: asked.append(1) or []])
    reader.start()
    until(lambda: asked)
    reader.shutdown(200)
    count = len(asked)
    assert not reader._thread.is_alive()
    assert len(asked) == count >= 1


def test_a_failure_of_the_histograms_loses_one_export_and_not_the_thread(
    plane: FakePlane, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sound = Injector.inject

    def broken(*arguments: Any) -> MetricsData:
        monkeypatch.setattr(Injector, "inject", sound)
        raise ValueError("our bug")

    monkeypatch.setattr(Injector, "inject", broken)
    with GrpcReceiver() as collector:
        reader = exporting(plane, collector.endpoint, 50)
        collector.nth(1)
        reader.shutdown(1_000)
    assert "our bug" in caplog.text
