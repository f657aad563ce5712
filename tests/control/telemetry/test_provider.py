"""The same names and values come out of a scrape and of an export."""

import asyncio
import dataclasses
import time
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from control.errors import StartError
from control.telemetry.names import prometheus_name
from control.telemetry.provider import Telemetry, start
from proxy.cells import METRICS
from proxy.config.model import OtlpConfig, PrometheusConfig, TelemetryConfig
from tests.fakes.cells import fill
from tests.fakes.collector import FakeCollector
from tests.fakes.plane import FakePlane, fake_config

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture
def plane() -> Iterator[FakePlane]:
    plane = FakePlane(fake_config("unix:unused", None))
    plane.measured["framegate.config.revision", ()] = 3
    fill(
        plane,
        0,
        {
            ("framegate.frame.count", "downstream", "receive", "kafka"): 5,
            ("framegate.io", "upstream", "transmit", "kafka"): 500,
            ("framegate.connection.closed", "plain", "frame_too_large"): 2,
            ("framegate.memory_pool.depleted.time", "frames"): 1_500_000_000,
            ("framegate.frame.size", "downstream", "kafka"): [2, 3, *[0] * 10, 700],
        },
    )
    yield plane
    plane.close()


def begin(plane: FakePlane, collector: FakeCollector | None = None, interval_ms: int = 3_600_000) -> Telemetry:
    otlp = None if collector is None else OtlpConfig(endpoint=collector.endpoint, interval_ms=interval_ms)
    wanted = TelemetryConfig(otlp=otlp, prometheus=PrometheusConfig(address="127.0.0.1:0"))
    telemetry = start(plane, dataclasses.replace(plane.config, telemetry=wanted), {})
    assert telemetry is not None
    return telemetry


def scrape(telemetry: Telemetry) -> tuple[Samples, str]:
    with urllib.request.urlopen(f"http://{telemetry.prometheus_address}/metrics", timeout=10) as answer:
        text = answer.read().decode()
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
        assert samples["framegate_connection_closed_total", labels(framegate_listener="plain", framegate_cause="frame_too_large")] == 2
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


def test_every_metric_of_the_processors_is_scraped(plane: FakePlane) -> None:
    telemetry = begin(plane)
    try:
        names = {name for name, _ in scrape(telemetry)[0]}
        for metric in METRICS:
            if metric.source == "processor":
                name = prometheus_name(metric.name, metric.unit, monotonic=metric.kind == "counter")
                assert (f"{name}_count" if metric.kind == "histogram" else name) in names
    finally:
        asyncio.run(telemetry.stop())


def test_a_scrape_sees_what_the_last_one_did_not(plane: FakePlane) -> None:
    telemetry = begin(plane)
    try:
        scrape(telemetry)
        fill(plane, 1, {("framegate.tap.io",): 77})
        assert scrape(telemetry)[0]["framegate_tap_io_bytes_total", labels()] == 77
    finally:
        asyncio.run(telemetry.stop())


def test_an_export_has_the_same_names_and_values_as_a_scrape(plane: FakePlane) -> None:
    with FakeCollector() as collector:
        telemetry = begin(plane, collector)
        scraped, _ = scrape(telemetry)
        asyncio.run(telemetry.stop())
        exported: Samples = {}
        for name, metric in collector.wait().items():
            kind = metric.WhichOneof("data")
            monotonic = kind == "sum" and metric.sum.is_monotonic
            full = prometheus_name(name, metric.unit, monotonic=monotonic)
            for point in getattr(metric, str(kind)).data_points:
                key = frozenset((item.key.replace(".", "_"), item.value.string_value) for item in point.attributes)
                if kind == "histogram":
                    exported[f"{full}_count", key] = point.count
                    exported[f"{full}_sum", key] = point.sum
                else:
                    exported[full, key] = point.as_int if point.WhichOneof("value") == "as_int" else point.as_double
    ours = {key: value for key, value in scraped.items() if key[0].startswith("framegate_") and not key[0].endswith("_bucket")}
    assert ours
    assert {key: value for key, value in exported.items() if key[0].startswith("framegate_")} == ours


def test_the_environment_names_the_service_and_wins(plane: FakePlane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "orders-framegate")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "k8s.pod.name=orders-1")
    with FakeCollector() as collector:
        telemetry = begin(plane, collector)
        asyncio.run(telemetry.stop())
        resource = collector.resource()
    assert {key: resource[key] for key in ("service.name", "service.version", "service.instance.id", "k8s.pod.name")} == {
        "service.name": "orders-framegate",
        "service.version": "1.2.3",
        "service.instance.id": "edge-1",
        "k8s.pod.name": "orders-1",
    }


def test_a_receiver_of_differences_gets_differences(plane: FakePlane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "DELTA")
    with FakeCollector() as collector:
        telemetry = begin(plane, collector, interval_ms=50)
        collector.wait(1)
        seen = [sum(point.count for point in collector.wait(number)["framegate.frame.size"].histogram.data_points) for number in (1, 2)]
        asyncio.run(telemetry.stop())
    assert seen == [5, 0]


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


def test_a_dead_collector_does_not_hold_up_the_end(plane: FakePlane) -> None:
    with FakeCollector() as collector:
        pass
    telemetry = begin(plane, collector)
    started = time.monotonic()
    asyncio.run(telemetry.stop(300))
    assert time.monotonic() - started < 3


@pytest.mark.parametrize("disabled", ["true", "TRUE "])
def test_nothing_is_started_when_nothing_is_wanted_or_the_sdk_is_disabled(plane: FakePlane, monkeypatch: pytest.MonkeyPatch, disabled: str) -> None:
    assert start(plane, plane.config, {}) is None
    monkeypatch.setenv("OTEL_SDK_DISABLED", disabled)
    wanted = TelemetryConfig(prometheus=PrometheusConfig(address="127.0.0.1:0"))
    assert start(plane, dataclasses.replace(plane.config, telemetry=wanted), {}) is None


def test_an_address_that_is_taken_says_so(plane: FakePlane) -> None:
    telemetry = begin(plane)
    try:
        wanted = TelemetryConfig(prometheus=PrometheusConfig(address=str(telemetry.prometheus_address)))
        with pytest.raises(StartError) as caught:
            start(plane, dataclasses.replace(plane.config, telemetry=wanted), {})
        assert caught.value.reason == "PROMETHEUS_ADDRESS_UNUSABLE"
    finally:
        asyncio.run(telemetry.stop())


@pytest.mark.parametrize(
    ("extra", "module"), [("prometheus", "prometheus_client"), ("otlp", "opentelemetry.proto.collector.metrics.v1.metrics_service_pb2")]
)
def test_an_extra_that_is_missing_is_named(plane: FakePlane, monkeypatch: pytest.MonkeyPatch, extra: str, module: str) -> None:
    monkeypatch.setitem(__import__("sys").modules, module, None)
    for name in (extra, "exporters"):
        monkeypatch.delitem(__import__("sys").modules, f"control.telemetry.{name}", raising=False)
    wanted = TelemetryConfig(
        prometheus=PrometheusConfig(address="127.0.0.1:0") if extra == "prometheus" else None,
        otlp=OtlpConfig(endpoint="http://127.0.0.1:1") if extra == "otlp" else None,
    )
    with pytest.raises(StartError, match=rf"framegate\[{extra}\]") as caught:
        start(plane, dataclasses.replace(plane.config, telemetry=wanted), {})
    assert caught.value.reason == "EXTRA_MISSING"
