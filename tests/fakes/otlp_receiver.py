"""A local OTLP receiver of all three signals: a real gRPC server over the protocol's own messages."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any

import grpc
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2, logs_service_pb2_grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span


def attributes_of(item: Any) -> dict[str, Any]:
    """The attributes of a span, link, record, point or resource as plain values."""
    return {pair.key: _plain(pair.value) for pair in item.attributes}


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_plain(item) for item in value.array_value.values]
    if kind == "kvlist_value":
        return {pair.key: _plain(pair.value) for pair in value.kvlist_value.values}
    return None if kind is None else getattr(value, kind)


class OtlpReceiver:
    """A context manager. ``hold`` keeps exports waiting while it is not set, ``refuse`` ends them with that code.

    Attributes:
        endpoint: where to export to.
        spans, logs: everything that came, in order.
        metrics: by name, as they came last.
        resources: the attributes of every resource that exported.
    """

    def __init__(self) -> None:
        self._server = grpc.server(ThreadPoolExecutor(4))
        self.endpoint = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self.spans: list[Span] = []
        self.logs: list[LogRecord] = []
        self.metrics: dict[str, Metric] = {}
        self.resources: list[dict[str, Any]] = []
        self.hold = threading.Event()
        self.hold.set()
        self.refuse: grpc.StatusCode | None = None
        self._came = threading.Condition()
        for signal in (_Traces(self), _Logs(self), _Metrics(self)):
            signal.register(self._server)

    def took(self, context: Any, note: Callable[[], None]) -> None:
        """Take an export."""
        self.hold.wait(20)
        if self.refuse is not None:
            context.abort(self.refuse, "as the test wants it")
        with self._came:
            note()
            self._came.notify_all()

    def wait(self, found: Callable[[], Any], timeout_s: float = 15) -> Any:
        """What ``found`` gives, as soon as it is true."""
        with self._came:
            assert self._came.wait_for(found, timeout_s), f"it did not come: {[span.name for span in self.spans]}, {len(self.logs)} logs"
            return found()

    def named(self, name: str) -> list[Span]:
        """The spans of a name that came so far."""
        return [span for span in self.spans if span.name == name]

    def span(self, name: str) -> Span:
        """The first span of a name, waited for."""
        found: Span = self.wait(lambda: self.named(name))[0]
        return found

    def __enter__(self) -> "OtlpReceiver":
        self._server.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.hold.set()
        self._server.stop(0).wait()


class _Traces(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self, receiver: OtlpReceiver) -> None:
        self._receiver = receiver

    def register(self, server: grpc.Server) -> None:
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, server)

    def Export(self, request: trace_service_pb2.ExportTraceServiceRequest, context: Any) -> Any:  # noqa: N802
        receiver = self._receiver

        def note() -> None:
            for resource in request.resource_spans:
                receiver.resources.append(attributes_of(resource.resource))
                receiver.spans += [span for scope in resource.scope_spans for span in scope.spans]

        receiver.took(context, note)
        return trace_service_pb2.ExportTraceServiceResponse()


class _Logs(logs_service_pb2_grpc.LogsServiceServicer):
    def __init__(self, receiver: OtlpReceiver) -> None:
        self._receiver = receiver

    def register(self, server: grpc.Server) -> None:
        logs_service_pb2_grpc.add_LogsServiceServicer_to_server(self, server)

    def Export(self, request: logs_service_pb2.ExportLogsServiceRequest, context: Any) -> Any:  # noqa: N802
        receiver = self._receiver

        def note() -> None:
            for resource in request.resource_logs:
                receiver.resources.append(attributes_of(resource.resource))
                receiver.logs += [record for scope in resource.scope_logs for record in scope.log_records]

        receiver.took(context, note)
        return logs_service_pb2.ExportLogsServiceResponse()


class _Metrics(metrics_service_pb2_grpc.MetricsServiceServicer):
    def __init__(self, receiver: OtlpReceiver) -> None:
        self._receiver = receiver

    def register(self, server: grpc.Server) -> None:
        metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(self, server)

    def Export(self, request: metrics_service_pb2.ExportMetricsServiceRequest, context: Any) -> Any:  # noqa: N802
        receiver = self._receiver

        def note() -> None:
            for resource in request.resource_metrics:
                receiver.resources.append(attributes_of(resource.resource))
                receiver.metrics |= {metric.name: metric for scope in resource.scope_metrics for metric in scope.metrics}

        receiver.took(context, note)
        return metrics_service_pb2.ExportMetricsServiceResponse()
