"""Exports to carry, and the way to a collector."""

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from control.telemetry.attempt import Outcome
from control.telemetry.environment import Target, judge
from control.telemetry.transport import transport
from proxy.config.model import OtlpConfig, TelemetryConfig

__all__ = ["REQUEST", "once", "target"]

REQUEST = ExportTraceServiceRequest(resource_spans=[{}]).SerializeToString()  # type: ignore[list-item]


def target(endpoint: str, **environ: str) -> Target:
    """The collector for spans at an endpoint; ``+http`` behind it: over HTTP."""
    if endpoint.endswith("http"):
        environ["OTEL_EXPORTER_OTLP_PROTOCOL"] = "http/protobuf"
    traces = judge(TelemetryConfig(otlp=OtlpConfig(endpoint=endpoint.removesuffix("+http"))), environ).traces
    assert traces is not None
    return traces.target


def once(endpoint: str, timeout_s: float = 5.0, **environ: str) -> Outcome:
    """One attempt."""
    way = transport(target(endpoint, **environ))
    try:
        return way.send(REQUEST, timeout_s)
    finally:
        way.close()
