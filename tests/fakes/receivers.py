"""Collectors that do as they are told: a real gRPC server and a real HTTP server, which take OTLP and answer with what a test says, or do not."""

import gzip
import http.server
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final

import grpc
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

_REQUESTS: Final[dict[str, type[Any]]] = {
    "metrics": ExportMetricsServiceRequest,
    "trace": ExportTraceServiceRequest,
    "logs": ExportLogsServiceRequest,
}


@dataclass(frozen=True)
class Received:
    """One request. Attributes: ``signal`` (``metrics``, ``trace``, ``logs``), ``request`` (parsed), ``headers`` (lower-case keys), ``path``."""

    signal: str
    request: Any
    headers: dict[str, str]
    path: str


class _Receiver:
    def __init__(self) -> None:
        self.received: list[Received] = []
        self._came = threading.Condition()

    def take(self, received: Received) -> None:
        with self._came:
            self.received.append(received)
            self._came.notify_all()

    def wait(self, count: int = 1) -> Received:
        """The ``count``-th request."""
        with self._came:
            assert self._came.wait_for(lambda: len(self.received) >= count, 10), "nothing was exported"
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
            self.take(Received(signal, _REQUESTS[signal].FromString(data), headers, path))
            return self._answer(context)

        return export

    def __enter__(self) -> "GrpcReceiver":
        self._server.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.stop(0).wait()


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
                receiver.take(Received(signal, _REQUESTS[signal].FromString(data), headers, self.path))
                if answer is not None:
                    answer(self)
                    return
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                """Nobody reads it."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> "HttpReceiver":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
