"""Metrics, spans and log records sent to real collectors that take them, throw some away, or answer nonsense; what is counted then."""

import http.server
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from opentelemetry._logs import LogRecord
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsPartialSuccess, ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsPartialSuccess,
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTracePartialSuccess, ExportTraceServiceResponse
from opentelemetry.sdk._logs import ReadWriteLogRecord
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricsData
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider

from control.telemetry.account import Account
from control.telemetry.environment import judge
from control.telemetry.exporters import _split, log_exporter, metric_exporter, span_exporter
from proxy.config.model import OtlpConfig, TelemetryConfig
from tests.fakes.receivers import GrpcReceiver, HttpReceiver

EXPORTS, DROPPED = "framegate.telemetry.exports", "framegate.telemetry.dropped"


def points(count: int) -> MetricsData:
    reader = InMemoryMetricReader()
    counter = MeterProvider([reader], shutdown_on_exit=False).get_meter("x").create_counter("things")
    for number in range(count):
        counter.add(1, {"number": number})
    data = reader.get_metrics_data()
    assert data is not None
    return data


def spans(count: int) -> list[ReadableSpan]:
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("x")
    made = [tracer.start_span(str(number)) for number in range(count)]
    for span in made:
        span.end()
    return made  # type: ignore[return-value]


def records(count: int) -> list[Any]:
    return [ReadWriteLogRecord(LogRecord(body=str(number))) for number in range(count)]


def export(signal: str, endpoint: str, items: Any, account: Account, protocol: Any = "grpc") -> bool:
    settings = judge(TelemetryConfig(otlp=OtlpConfig(endpoint=endpoint, protocol=protocol, signals=("metrics", "traces", "logs"))), {})
    assert settings.metrics is not None
    assert settings.traces is not None
    assert settings.logs is not None
    exporter: Any
    if signal == "metrics":
        exporter = metric_exporter(settings.metrics, account)
    elif signal == "traces":
        exporter = span_exporter(settings.traces, account)
    else:
        exporter = log_exporter(settings.logs, account)
    try:
        good: bool = exporter.export(items).name == "SUCCESS"
        return good
    finally:
        exporter.shutdown()


def counted(account: Account, signal: str) -> tuple[dict[str, float], float]:
    """Exports by their end, and what was dropped."""
    ends = {dict(at).get("error.type", ""): value for (name, at), value in account.measurements().items() if name == EXPORTS and value}
    return ends, account.measurements()[DROPPED, (("framegate.signal", signal),)]


PARTIAL = {
    "metrics": ExportMetricsServiceResponse(partial_success=ExportMetricsPartialSuccess(rejected_data_points=2, error_message="too old")),
    "traces": ExportTraceServiceResponse(partial_success=ExportTracePartialSuccess(rejected_spans=2, error_message="too old")),
    "logs": ExportLogsServiceResponse(partial_success=ExportLogsPartialSuccess(rejected_log_records=2, error_message="too old")),
}
MAKE: dict[str, Callable[[int], Any]] = {"metrics": points, "traces": spans, "logs": records}


@pytest.mark.parametrize("signal", list(MAKE))
def test_what_is_taken_is_counted_as_that(signal: str) -> None:
    account = Account()
    with GrpcReceiver() as receiver:
        assert export(signal, receiver.endpoint, MAKE[signal](3), account)
        assert receiver.wait().signal == signal.replace("traces", "trace")
    assert counted(account, signal) == ({"": 1}, 0)


@pytest.mark.parametrize("signal", list(MAKE))
@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_what_a_collector_throws_away_is_counted(signal: str, protocol: str, caplog: pytest.LogCaptureFixture) -> None:
    data = PARTIAL[signal].SerializeToString()

    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    account = Account()
    with GrpcReceiver(lambda context: data) if protocol == "grpc" else HttpReceiver(answer) as receiver:
        assert not export(signal, receiver.endpoint, MAKE[signal](5), account, protocol)
    assert counted(account, signal) == ({"rejected": 1}, 2)
    assert "2 of 5 items: too old" in caplog.text


def test_a_collector_that_claims_to_have_thrown_away_more_than_it_got_is_not_believed() -> None:
    lie = ExportTraceServiceResponse(partial_success=ExportTracePartialSuccess(rejected_spans=2**62))
    account = Account()
    with GrpcReceiver(lambda context: lie.SerializeToString()) as receiver:
        export("traces", receiver.endpoint, spans(3), account)
    assert counted(account, "traces") == ({"rejected": 1}, 3)
    lie = ExportTraceServiceResponse(partial_success=ExportTracePartialSuccess(rejected_spans=-5))
    account = Account()
    with GrpcReceiver(lambda context: lie.SerializeToString()) as receiver:
        assert export("traces", receiver.endpoint, spans(3), account)
    assert counted(account, "traces") == ({"": 1}, 0)


def test_a_warning_that_costs_nothing_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    warning = ExportTraceServiceResponse(partial_success=ExportTracePartialSuccess(error_message="use the new one"))
    account = Account()
    with GrpcReceiver(lambda context: warning.SerializeToString()) as receiver:
        assert export("traces", receiver.endpoint, spans(1), account)
    assert counted(account, "traces") == ({"": 1}, 0)
    assert "use the new one" in caplog.text


def test_a_warning_is_told_once_until_it_is_another(caplog: pytest.LogCaptureFixture) -> None:
    said = ["old", "old", "older", "", "older"]
    answers = iter(ExportTraceServiceResponse(partial_success=ExportTracePartialSuccess(error_message=text)).SerializeToString() for text in said)
    with GrpcReceiver(lambda context: next(answers)) as receiver:
        traces = judge(TelemetryConfig(otlp=OtlpConfig(endpoint=receiver.endpoint)), {}).traces
        assert traces is not None
        exporter = span_exporter(traces, Account())
        for _ in said:
            exporter.export(spans(1))
        exporter.shutdown()
    assert [record.getMessage().rpartition(": ")[2] for record in caplog.records] == ["old", "older", "older"]


@pytest.mark.parametrize("signal", list(MAKE))
def test_an_answer_that_is_none_is_counted(signal: str) -> None:
    account = Account()
    with GrpcReceiver(lambda context: b"\xff" * 100) as receiver:
        assert not export(signal, receiver.endpoint, MAKE[signal](4), account)
    assert counted(account, signal) == ({"other": 1}, 4)


def refuse(context: grpc.ServicerContext) -> bytes:
    context.abort(grpc.StatusCode.UNAUTHENTICATED, "who are you?")


@pytest.mark.parametrize("signal", list(MAKE))
def test_a_refusal_is_counted_and_told_once(signal: str, caplog: pytest.LogCaptureFixture) -> None:
    account = Account()
    with GrpcReceiver(refuse) as receiver:
        assert not export(signal, receiver.endpoint, MAKE[signal](4), account)
    assert counted(account, signal) == ({"refused": 1}, 4)
    assert caplog.text.count("who are you?") == 1


@pytest.mark.parametrize("well", [4, 5, 6])
def test_rows_say_when_exports_begin_to_fail_and_when_they_no_longer_do(well: int, caplog: pytest.LogCaptureFixture) -> None:
    good = False

    def answer(context: grpc.ServicerContext) -> bytes:
        return b"" if good else refuse(context)

    account = Account()
    with GrpcReceiver(answer) as receiver:
        metrics = judge(TelemetryConfig(otlp=OtlpConfig(endpoint=receiver.endpoint)), {}).metrics
        assert metrics is not None
        exporter = metric_exporter(metrics, account)
        for good in (False, False, *[True] * well, False):  # noqa: B007
            exporter.export(points(1))
        exporter.shutdown()
    said = [record.message.partition(": ")[0].replace(receiver.address, "it") for record in caplog.records]
    fails, mended = "exports of metrics to it fail (refused)", "exports of metrics to it no longer fail"
    assert said == ([fails] if well < 5 else [fails, mended, fails])
    assert counted(account, "metrics") == ({"": well, "refused": 3}, 3)


def test_a_collector_that_is_broken_in_turn_is_told_once_for_each_way(caplog: pytest.LogCaptureFixture) -> None:
    """One of two behind an address, say."""
    ends = iter([b"", b"\xff", None, b""] * 10)

    def answer(context: grpc.ServicerContext) -> bytes:
        end = next(ends)
        return refuse(context) if end is None else end

    with GrpcReceiver(answer) as receiver:
        traces = judge(TelemetryConfig(otlp=OtlpConfig(endpoint=receiver.endpoint)), {}).traces
        assert traces is not None
        exporter = span_exporter(traces, Account())
        for _ in range(40):
            exporter.export(spans(1))
        exporter.shutdown()
    assert ["(other)" in record.getMessage() for record in caplog.records] == [True, False]


def test_what_fails_because_telemetry_ends_is_counted_and_no_news(caplog: pytest.LogCaptureFixture) -> None:
    metrics = judge(TelemetryConfig(otlp=OtlpConfig()), {}).metrics
    assert metrics is not None
    account = Account()
    exporter = metric_exporter(metrics, account)
    exporter.shutdown()
    exporter.export(points(2))
    assert counted(account, "metrics") == ({"other": 1}, 2)
    assert caplog.records == []


@pytest.mark.parametrize(("count", "sizes"), [(4, [4]), (5, [5]), (6, [5, 1]), (11, [5, 5, 1])])
def test_an_export_of_many_points_goes_in_parts(count: int, sizes: list[int]) -> None:
    from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics

    whole = encode_metrics(points(count))
    parts = list(_split(whole, 5))
    assert [size for _, size in parts] == sizes
    numbers = [
        point.attributes[0].value.int_value
        for part, _ in parts
        for resource in part.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.sum.data_points
    ]
    assert sorted(numbers) == list(range(count))
    assert {metric.name for part, _ in parts for metric in part.resource_metrics[0].scope_metrics[0].metrics} == {"things"}


def test_nothing_collected_is_no_export() -> None:
    assert list(_split(ExportMetricsServiceRequest())) == []
