"""A local OTLP collector: a real gRPC server that remembers what it was sent."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as service_pb2
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as service_grpc
from opentelemetry.proto.metrics.v1 import metrics_pb2


class FakeCollector(service_grpc.MetricsServiceServicer):
    """A context manager. ``endpoint`` is where to export to, ``wait()`` gives the metrics of the next export by name."""

    def __init__(self) -> None:
        self._server = grpc.server(ThreadPoolExecutor(2))
        service_grpc.add_MetricsServiceServicer_to_server(self, self._server)
        self.endpoint = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self.requests: list[service_pb2.ExportMetricsServiceRequest] = []
        self._came = threading.Condition()

    def Export(self, request: service_pb2.ExportMetricsServiceRequest, context: Any) -> service_pb2.ExportMetricsServiceResponse:  # noqa: N802
        with self._came:
            self.requests.append(request)
            self._came.notify_all()
        return service_pb2.ExportMetricsServiceResponse()

    def wait(self, count: int = 1) -> dict[str, metrics_pb2.Metric]:
        """The metrics of the ``count``-th export, by name."""
        with self._came:
            assert self._came.wait_for(lambda: len(self.requests) >= count, 10), "nothing was exported"
            request = self.requests[count - 1]
        return {metric.name: metric for resource in request.resource_metrics for scope in resource.scope_metrics for metric in scope.metrics}

    def resource(self) -> dict[str, str]:
        """The attributes of the resource that exports."""
        return {item.key: item.value.string_value for item in self.requests[-1].resource_metrics[0].resource.attributes}

    def __enter__(self) -> "FakeCollector":
        self._server.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.stop(0).wait()
