"""Each collector gets an empty export, and the result is the finding."""

from pathlib import Path
from typing import Any

import grpc
import pytest

from framegate.control.doctor.collector import look
from framegate.control.doctor.finding import Finding
from framegate.proxy.config.model import OtlpConfig, TelemetryConfig
from tests.fakes.otlp_receiver import GrpcReceiver, HttpReceiver
from tests.fakes.surroundings import around, config_of, levels


def looked(tmp_path: Path, otlp: OtlpConfig | None, timeout_s: float = 5.0, **environment: str) -> list[Finding]:
    config = config_of(telemetry=TelemetryConfig(otlp=otlp))
    return list(look(around(tmp_path, config=config, timeout_s=timeout_s, environment=environment)))


@pytest.mark.parametrize(("receiver", "protocol"), [(GrpcReceiver, "grpc"), (HttpReceiver, "http/protobuf")])
def test_a_collector_that_takes_exports_is_good_and_gets_nothing(tmp_path: Path, receiver: Any, protocol: Any) -> None:
    with receiver() as there:
        found = looked(tmp_path, OtlpConfig(endpoint=there.endpoint, protocol=protocol, signals=("metrics", "traces", "logs")))
        requests = [there.nth(count).request.ByteSize() for count in (1, 2, 3)]
    assert [(item.subject, item.level) for item in found] == [(f"collector of {name}", "ok") for name in ("metrics", "traces", "logs")]
    assert requests == [0, 0, 0]


def refuse(context: grpc.ServicerContext) -> bytes:
    context.abort(grpc.StatusCode.UNAUTHENTICATED, "who are you")
    return b""


def test_a_collector_that_refuses_is_a_warning_with_its_message(tmp_path: Path) -> None:
    with GrpcReceiver(refuse) as there:
        (found,) = looked(tmp_path, OtlpConfig(endpoint=there.endpoint, signals=("logs",)))
    assert (found.level, "who are you" in found.found) == ("warning", True)


def test_variables_that_cannot_be_are_a_fault_and_those_that_can_are_used(tmp_path: Path) -> None:
    (found,) = looked(tmp_path, None, OTEL_EXPORTER_OTLP_PROTOCOL="http/json")
    assert (found.level, "OTEL_EXPORTER_OTLP_PROTOCOL" in found.found) == ("fault", True)
    assert levels(looked(tmp_path, None, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1")) == ["warning", "warning"]
