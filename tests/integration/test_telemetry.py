"""A whole framegate whose telemetry the OTEL_* variables ask for: a collector that answers, one that hangs, and variables that cannot be used."""

import time
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.framegate import Framegate
from tests.fakes.otlp_receiver import GrpcReceiver, HttpReceiver

pytestmark = pytest.mark.slow  # whole framegates


def test_variables_that_cannot_be_used_are_named_before_anything_starts(tmp_path: Path, plain: dict[str, Any]) -> None:
    environment = {"OTEL_EXPORTER_OTLP_HEADERS": "authorization=hunter2,hunter2", "OTEL_TRACES_SAMPLER": "xray"}
    with Framegate(tmp_path, plain, environment=environment, wait=False) as proxy:
        assert proxy.wait() == 1
    (row,) = [row for row in proxy.rows if row["level"] == "error"]
    assert (row["event"], row["reason"]) == ("start_failed", "TELEMETRY_ENVIRONMENT_INVALID")
    assert "OTEL_EXPORTER_OTLP_HEADERS" in row["error"]
    assert "OTEL_TRACES_SAMPLER='xray'" in row["error"]
    assert "hunter2" not in proxy.errors + repr(proxy.rows)
    assert not [row for row in proxy.rows if row["event"].startswith("processor_")]


@pytest.mark.parametrize(("receiver", "protocol"), [(GrpcReceiver, "grpc"), (HttpReceiver, "http/protobuf")])
def test_the_environment_alone_is_enough(tmp_path: Path, plain: dict[str, Any], receiver: Any, protocol: str) -> None:
    with receiver() as collector:
        environment = {
            "OTEL_METRICS_EXPORTER": "otlp",
            "OTEL_TRACES_EXPORTER": "none",
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint,
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
            "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20x",
            "OTEL_METRIC_EXPORT_INTERVAL": "100",
            "OTEL_SERVICE_NAME": "orders",
        }
        with Framegate(tmp_path, {**plain, "telemetry": {}}, environment=environment) as proxy:
            received = collector.nth(2)
        assert proxy.process.returncode == 0
    assert received.headers["authorization"] == "Bearer x"
    resource = {item.key: item.value.string_value for item in received.request.resource_metrics[0].resource.attributes}
    assert (resource["service.name"], resource["service.instance.id"]) == ("orders", "test")
    names = {metric.name for scope in received.request.resource_metrics[0].scope_metrics for metric in scope.metrics}
    assert {"framegate.connection.active", "framegate.ready", "framegate.telemetry.exports", "cpython.gc.collections"} <= names


@pytest.mark.extended
def test_a_collector_that_hangs_costs_the_end_no_more_than_two_seconds(tmp_path: Path, plain: dict[str, Any]) -> None:
    def hang(context: Any) -> bytes:
        time.sleep(5)
        return b""

    with GrpcReceiver(hang) as collector:
        telemetry = {"otlp": {"endpoint": collector.endpoint, "interval": "100ms", "signals": ["metrics"]}}
        with Framegate(tmp_path, {**plain, "telemetry": telemetry}) as proxy:
            collector.nth()
            started = time.monotonic()
        took_s = time.monotonic() - started
    assert proxy.process.returncode == 0
    assert took_s < 5  # 2 s for the collector, twice at the most, beside what every end takes
