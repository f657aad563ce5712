"""Local collectors: a real gRPC server and a real HTTP server that take OTLP, remember what came, and answer what a test says, or do not."""

import gzip
import http.server
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Self

import grpc
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span

_SIGNALS: Final[dict[str, tuple[type[Any], str, str, str]]] = {
    "metrics": (ExportMetricsServiceRequest, "resource_metrics", "scope_metrics", "metrics"),
    "trace": (ExportTraceServiceRequest, "resource_spans", "scope_spans", "spans"),
    "logs": (ExportLogsServiceRequest, "resource_logs", "scope_logs", "log_records"),
}  # the request of each signal, and the names of its resources, of their scopes and of what these hold


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


@dataclass(frozen=True)
class Received:
    """One request. Attributes: ``signal`` (``metrics``, ``trace``, ``logs``), ``request`` (parsed), ``headers`` (lower-case keys), ``path``."""

    signal: str
    request: Any
    headers: dict[str, str]
    path: str

    @property
    def resources(self) -> list[dict[str, Any]]:
        return [attributes_of(group.resource) for group in getattr(self.request, _SIGNALS[self.signal][1])]

    def items(self, signal: str) -> list[Any]:
        """The spans, records or metrics; none when the request is of another signal."""
        _, resources, scopes, items = _SIGNALS[signal]
        groups = getattr(self.request, resources) if signal == self.signal else ()
        return [item for group in groups for scope in getattr(group, scopes) for item in getattr(scope, items)]

    @property
    def metrics(self) -> dict[str, Metric]:
        return {metric.name: metric for metric in self.items("metrics")}


class _Receiver:
    """Attributes: ``endpoint``, where to export to; ``received``, everything that came, in order."""

    endpoint: str

    def __init__(self) -> None:
        self.received: list[Received] = []
        self._came = threading.Condition()
        for name in [name for name in logging.root.manager.loggerDict if name.startswith("opentelemetry.")]:
            for item in logging.getLogger(name).filters:
                vars(item).pop("last_log", None)  # the SDK drops a message that it logged less than 20 s ago, in an earlier test, too

    def take(self, received: Received) -> None:
        with self._came:
            self.received.append(received)
            self._came.notify_all()

    def wait(self, found: Callable[[], Any], timeout_s: float = 15) -> Any:
        """What ``found`` gives, as soon as it is true."""
        with self._came:
            assert self._came.wait_for(found, timeout_s), f"it did not come: {[item.signal for item in self.received]}"
            return found()

    def nth(self, count: int = 1) -> Received:
        """The ``count``-th request, waited for."""
        self.wait(lambda: len(self.received) >= count)
        return self.received[count - 1]


class GrpcReceiver(_Receiver):
    """A context manager.

    Args:
        answer: gives the bytes of the answer, or ends the call by its context; none: all was taken.
        address: where it listens.
        credentials: of TLS.
    """

    def __init__(
        self,
        answer: Callable[[grpc.ServicerContext], bytes] = lambda context: b"",
        address: str = "127.0.0.1:0",
        credentials: grpc.ServerCredentials | None = None,
    ) -> None:
        super().__init__()
        self._answer = answer
        self._server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
        for signal, service in (("metrics", "metrics.v1.MetricsService"), ("trace", "trace.v1.TraceService"), ("logs", "logs.v1.LogsService")):
            name = f"opentelemetry.proto.collector.{service}"
            handler = grpc.unary_unary_rpc_method_handler(self._handler(signal, f"/{name}/Export"))
            self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, {"Export": handler}),))
        port = self._server.add_secure_port(address, credentials) if credentials else self._server.add_insecure_port(address)
        self.address = f"127.0.0.1:{port}"
        self.endpoint = f"{'https' if credentials else 'http'}://{self.address}"

    def _handler(self, signal: str, path: str) -> Callable[[bytes, grpc.ServicerContext], bytes]:
        def export(data: bytes, context: grpc.ServicerContext) -> bytes:
            headers = {key: value if isinstance(value, str) else value.decode() for key, value in context.invocation_metadata() or ()}
            return self.exported(Received(signal, _SIGNALS[signal][0].FromString(data), headers, path), context)

        return export

    def exported(self, received: Received, context: grpc.ServicerContext) -> bytes:
        self.take(received)
        return self._answer(context)

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._server.stop(0).wait()


class OtlpReceiver(GrpcReceiver):
    """Takes an export when it has answered it. ``hold`` keeps exports waiting while it is not set, ``refuse`` ends them with that code."""

    def __init__(self) -> None:
        super().__init__()
        self.hold = threading.Event()
        self.hold.set()
        self.refuse: grpc.StatusCode | None = None

    def exported(self, received: Received, context: grpc.ServicerContext) -> bytes:
        self.hold.wait(20)
        if self.refuse is not None:
            context.abort(self.refuse, "as the test wants it")
        self.take(received)
        return b""

    @property
    def spans(self) -> list[Span]:
        return [span for received in self.received for span in received.items("trace")]

    @property
    def logs(self) -> list[LogRecord]:
        return [record for received in self.received for record in received.items("logs")]

    @property
    def metrics(self) -> dict[str, Metric]:
        """By name, as they came last."""
        return {name: metric for received in self.received for name, metric in received.metrics.items()}

    @property
    def resources(self) -> list[dict[str, Any]]:
        return [resource for received in self.received for resource in received.resources]

    def named(self, name: str) -> list[Span]:
        """The spans of a name that came so far."""
        return [span for span in self.spans if span.name == name]

    def span(self, name: str) -> Span:
        """The first span of a name, waited for."""
        found: Span = self.wait(lambda: self.named(name))[0]
        return found

    def __exit__(self, *failure: object) -> None:
        self.hold.set()
        super().__exit__(*failure)


class HttpReceiver(_Receiver):
    """A context manager. ``answer`` writes the answer to a request."""

    def __init__(self, answer: Callable[[http.server.BaseHTTPRequestHandler], None] | None = None) -> None:
        super().__init__()
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    data = gzip.decompress(data)
                signal = self.path.rpartition("/")[2].replace("traces", "trace")
                headers = {key.lower(): value for key, value in self.headers.items()}
                receiver.take(Received(signal, _SIGNALS[signal][0].FromString(data), headers, self.path))
                if answer is not None:
                    answer(self)
                    return
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None: ...

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
