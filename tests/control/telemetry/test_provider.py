"""The same names and values come out of a scrape and of an export."""

import asyncio
import itertools
import socket
import sys
import threading
import time
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.proto.metrics.v1 import metrics_pb2
from opentelemetry.sdk.trace import TracerProvider
from prometheus_client.parser import text_string_to_metric_families

from framegate.control.errors import StartError
from framegate.control.telemetry.catalogue import EXPORTED, prometheus_name
from framegate.control.telemetry.provider import Telemetry
from framegate.proxy.cells import METRICS
from framegate.proxy.config.model import OtlpConfig, PrometheusConfig, TelemetryConfig
from tests.fakes.cells import fill
from tests.fakes.otlp_receiver import GrpcReceiver
from tests.fakes.plane import FakePlane
from tests.fakes.tracing import metered, scraped
from tests.fakes.waiting import until

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture(autouse=True)
def counted(plane: FakePlane) -> None:
    plane.measured["framegate.config.revision", ()] = 3
    fill(
        plane,
        0,
        {
            ("framegate.frame.count", "downstream", "receive", "kafka"): 5,
            ("framegate.io", "upstream", "transmit", "kafka"): 500,
            ("framegate.connection.closed", "plain", "frame_too_large", "downstream"): 2,
            ("framegate.memory_pool.depleted.time", "frames"): 1_500_000_000,
            ("framegate.frame.size", "downstream", "kafka"): [2, 3, *[0] * 10, 700],
        },
    )


def begin(plane: FakePlane, collector: GrpcReceiver | None = None, interval_ms: int = 3_600_000) -> Telemetry:
    otlp = None if collector is None else OtlpConfig(endpoint=collector.endpoint, interval_ms=interval_ms)
    wanted = TelemetryConfig(otlp=otlp, prometheus=PrometheusConfig(address="127.0.0.1:0"))
    return metered(plane, wanted)


def scrape(telemetry: Telemetry) -> tuple[Samples, str]:
    text = scraped(telemetry.prometheus_address)
    samples = {
        (sample.name, frozenset(sample.labels.items())): sample.value for family in text_string_to_metric_families(text) for sample in family.samples
    }
    return samples, text


def labels(**values: str) -> frozenset[tuple[str, str]]:
    return frozenset(values.items())


def test_a_scrape_gives_the_cells_under_their_prometheus_names(plane: FakePlane) -> None:
    telemetry = begin(plane)
    try:
        samples, text = scrape(telemetry)
        where = {"framegate_side": "downstream", "network_io_direction": "receive", "framegate_listener": "kafka"}
        assert samples["framegate_frame_count_total", labels(**where)] == 5
        assert (
            samples[
                "framegate_connection_closed_total",
                labels(framegate_listener="plain", framegate_cause="frame_too_large", framegate_side="downstream"),
            ]
            == 2
        )
        assert samples["framegate_memory_pool_depleted_time_seconds_total", labels(framegate_pool="frames")] == 1.5
        assert samples["framegate_config_revision", labels()] == 3
        size = {"framegate_side": "downstream", "framegate_listener": "kafka"}
        assert samples["framegate_frame_size_bytes_bucket", labels(**size, le="256.0")] == 2
        assert samples["framegate_frame_size_bytes_bucket", labels(**size, le="1024.0")] == 5
        assert samples["framegate_frame_size_bytes_bucket", labels(**size, le="+Inf")] == 5
        assert samples["framegate_frame_size_bytes_count", labels(**size)] == 5
        assert samples["framegate_frame_size_bytes_sum", labels(**size)] == 700
        assert samples["process_memory_usage_bytes", labels(framegate_process="control")] > 0
        assert "# HELP framegate_frame_count_total Whole frames" in text
    finally:
        asyncio.run(telemetry.stop())


def exported(metrics: dict[str, metrics_pb2.Metric]) -> Samples:
    """An export as a scrape would show it."""
    samples: Samples = {}
    for name, metric in metrics.items():
        kind = metric.WhichOneof("data")
        full = prometheus_name(name, metric.unit, monotonic=kind == "sum" and metric.sum.is_monotonic)
        for point in getattr(metric, str(kind)).data_points:
            key = {item.key.replace(".", "_"): item.value.string_value for item in point.attributes}
            if kind != "histogram":
                samples[full, labels(**key)] = point.as_int if point.WhichOneof("value") == "as_int" else point.as_double
                continue
            samples[f"{full}_count", labels(**key)], samples[f"{full}_sum", labels(**key)] = point.count, point.sum
            bounds = [repr(bound) for bound in point.explicit_bounds] + ["+Inf"]
            for bound, count in zip(bounds, itertools.accumulate(point.bucket_counts), strict=True):
                samples[f"{full}_bucket", labels(**key, le=bound)] = count
    return samples


def test_an_export_has_the_series_and_values_of_a_scrape(plane: FakePlane) -> None:
    plane.writers[0].publish(plane.layout.count * (1).to_bytes(8, "little"))
    for metric in METRICS:
        if metric.source == "control":
            attributes = tuple((key, values[-1] if values else "some") for key, values in metric.attributes)
            plane.measured[metric.name, attributes] = 3
    with GrpcReceiver() as collector:
        telemetry = begin(plane, collector)
        telemetry.record_call("a.B/C", "OK", 0.02)
        scraped, _ = scrape(telemetry)
        asyncio.run(telemetry.stop())
        sent = exported(collector.nth().metrics)
    del scraped[next(key for key in scraped if key[0] == "target_info")]
    assert set(sent) == set(scraped)
    moving = ("process_", "cpython_", "framegate_process_", "framegate_memory_usage_", "framegate_container_")
    assert {key: value for key, value in sent.items() if not key[0].startswith(moving)} == {
        key: value for key, value in scraped.items() if not key[0].startswith(moving)
    }
    names = {name.removesuffix("_bucket") for name, _ in scraped}
    assert {prometheus_name(metric.name, metric.unit, monotonic=metric.kind == "counter") for metric in EXPORTED} - names == set()


def test_a_call_within_a_span_is_an_exemplar_of_it(plane: FakePlane, monkeypatch: pytest.MonkeyPatch) -> None:
    span = TracerProvider(shutdown_on_exit=False).get_tracer("x").start_span("call")
    for choice, expected in (("trace_based", [span.get_span_context().trace_id]), ("always_off", [])):
        monkeypatch.setenv("OTEL_METRICS_EXEMPLAR_FILTER", choice)
        with GrpcReceiver() as collector:
            telemetry = begin(plane, collector)
            with trace.use_span(span):
                telemetry.record_call("a.B/C", "OK", 0.02)
            telemetry.record_call("a.B/D", "OK", 0.02)
            asyncio.run(telemetry.stop())
            points = collector.nth().metrics["rpc.server.call.duration"].histogram.data_points
        assert [int.from_bytes(exemplar.trace_id) for point in points for exemplar in point.exemplars] == expected


def test_counts_are_right_when_a_collector_is_back(plane: FakePlane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "100")  # one attempt each
    where = (("framegate.signal", "metrics"),)
    gone = (*where, ("error.type", "failed"))
    with GrpcReceiver() as early:
        port = int(early.endpoint.rpartition(":")[2])
    wanted = TelemetryConfig(otlp=OtlpConfig(endpoint=f"http://127.0.0.1:{port}", interval_ms=100, signals=("metrics",)))
    telemetry = metered(plane, wanted)
    exports = "framegate.telemetry.exports"
    threads = threading.active_count()
    until(lambda: telemetry.account.measurements().get((exports, gone), 0) >= 3, "a collector that is not there is not noticed", 20)
    assert threading.active_count() <= threads
    fill(plane, 0, {("framegate.frame.count", "downstream", "receive", "kafka"): 12})
    with GrpcReceiver(address=f"127.0.0.1:{port}") as back:
        until(lambda: back.received, "a collector that is back is not noticed", 20)
        asyncio.run(telemetry.stop())
        request = back.received[-1].request
    sent = {metric.name: metric for resource in request.resource_metrics for scope in resource.scope_metrics for metric in scope.metrics}
    samples = exported(sent)
    frames = {"framegate_side": "downstream", "network_io_direction": "receive", "framegate_listener": "kafka"}
    assert samples["framegate_frame_count_total", labels(**frames)] == 12
    counted = telemetry.account.measurements()
    assert samples["framegate_telemetry_exports_total", labels(framegate_signal="metrics", error_type="failed")] == counted[exports, gone]
    assert samples["framegate_telemetry_dropped_total", labels(framegate_signal="metrics")] > 3 * 100  # points of three exports


def test_the_environment_names_the_service_and_wins(plane: FakePlane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "orders-framegate")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "k8s.pod.name=orders-1")
    with GrpcReceiver() as collector:
        telemetry = begin(plane, collector)
        asyncio.run(telemetry.stop())
        resource = collector.received[-1].resources[0]
    assert {key: resource[key] for key in ("service.name", "service.version", "service.instance.id", "k8s.pod.name")} == {
        "service.name": "orders-framegate",
        "service.version": "1.2.3",
        "service.instance.id": "edge-1",
        "k8s.pod.name": "orders-1",
    }


def test_calls_of_the_control_plane_are_measured(plane: FakePlane) -> None:
    telemetry = begin(plane)
    try:
        telemetry.record_call("a.B/C", "OK", 0.02)
        telemetry.record_call("a.B/C", "ABORTED", 0.5)
        samples, _ = scrape(telemetry)
        common = {"rpc_system_name": "grpc", "rpc_method": "a.B/C"}
        assert samples["rpc_server_call_duration_seconds_count", labels(**common, rpc_response_status_code="OK")] == 1
        failed = labels(**common, rpc_response_status_code="ABORTED", error_type="ABORTED")
        assert samples["rpc_server_call_duration_seconds_sum", failed] == 0.5
    finally:
        asyncio.run(telemetry.stop())


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_a_collector_that_hangs_does_not_hold_up_the_end(plane: FakePlane, protocol: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        otlp = OtlpConfig(endpoint=f"http://127.0.0.1:{silent.getsockname()[1]}", protocol=protocol, interval_ms=100, signals=("metrics",))
        telemetry = metered(plane, TelemetryConfig(otlp=otlp))
        time.sleep(0.3)  # an export is under way
        started = time.monotonic()
        asyncio.run(telemetry.stop(500))
        assert time.monotonic() - started < 2
    if protocol == "grpc":  # over HTTP the thread ends with the time-out of the export; it does not keep the process
        assert not [thread for thread in threading.enumerate() if thread.name == "framegate-metrics"]


def test_an_extra_that_is_missing_is_named(plane: FakePlane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc.metric_exporter", None)
    monkeypatch.delitem(sys.modules, "framegate.control.telemetry.exporters", raising=False)
    with pytest.raises(StartError, match=r"framegate\[otlp\]") as caught:
        metered(plane, TelemetryConfig(otlp=OtlpConfig(endpoint="http://127.0.0.1:1")))
    assert caught.value.reason == "EXTRA_MISSING"
