"""What a scrape gets, and the HTTP server that says it. Needs the extra ``prometheus``; the first scrape loads this module.

``prometheus_client`` negotiates the format and escapes; ``wsgiref`` reads the request and writes the answer, between two buffers; asyncio moves the
bytes, on the loop of the one thread that serves. Whoever reaches the port may connect: connections are bounded, and so is the time of each.
"""

import asyncio
import contextlib
import io
import logging
import socket
import wsgiref.simple_server
from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from typing import Any, Final

from opentelemetry.sdk.metrics.export import Gauge, HistogramDataPoint, MetricsData, NumberDataPoint, Sum
from opentelemetry.sdk.metrics.export import Metric as SdkMetric
from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from control.telemetry.names import label_name, prometheus_name

__all__ = ["Server", "families"]

MAX_CONNECTIONS: Final = 512
"""At once. When one more comes, the one that has kept its request back for longest has to go."""
TIME_LIMIT_S: Final = 5.0
"""For a client to say what it wants, and once more to take the answer."""
_HEAD_BYTES: Final = 8192
_BACKLOG: Final = 1024
"""Connections that the kernel keeps. One more is tried again by its client after a second."""
_ACCEPTS: Final = 64
"""At one go: less than a quarter of the connections, so that a scrape among many that say nothing is read before it is the oldest."""
_HEAD_END: Final = b"\r\n\r\n"

_log = logging.getLogger(__name__)


class Server:
    """Answers what comes to a socket that listens already, one scrape after the other.

    Args:
        sock: closed when ``serve`` ends.
        collect: gives what there is at the moment of a scrape; called in the thread that serves.

    Attributes:
        refused: connections that were closed without what they asked for, or that asked for nothing.
    """

    def __init__(self, sock: socket.socket, collect: Callable[[], MetricsData | None]) -> None:
        self.refused = 0
        self._socket = sock
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Scrape(collect))
        self._site = _Site(sock, make_wsgi_app(registry))
        self._open: dict[asyncio.StreamWriter, bool] = {}
        """Oldest first; True while the request has not come."""
        self._loop = asyncio.new_event_loop()
        self._end = asyncio.Event()

    def serve(self) -> None:
        """Serve in this thread until ``stop``."""
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    def stop(self) -> None:
        """End ``serve``, now or as soon as it begins. Any thread."""
        with contextlib.suppress(RuntimeError):  # it has ended already
            self._loop.call_soon_threadsafe(self._end.set)

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connected, sock=self._socket, limit=_HEAD_BYTES, backlog=_ACCEPTS)
        self._socket.listen(_BACKLOG)  # asyncio takes one number for both
        await self._end.wait()
        server.close()
        for writer in tuple(self._open):
            writer.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= MAX_CONNECTIONS:
            self._refuse_oldest()
        self._open[writer] = True
        try:
            await self._exchange(reader, writer)
        except OSError:  # a timeout is one
            self.refused += 1  # it did not take its answer
        finally:
            del self._open[writer]
            writer.transport.abort()

    def _refuse_oldest(self) -> None:
        writer = next((writer for writer, waits in self._open.items() if waits), None)
        if writer is None:
            next(iter(self._open)).transport.abort()
        else:
            self._open[writer] = False
            writer.write(_refusal(HTTPStatus.SERVICE_UNAVAILABLE))
            writer.close()  # its reader sees the end, as when a client hangs up

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answer = await self._answer(reader)
        if writer.transport.is_closing():
            return
        self._open[writer] = False
        async with asyncio.timeout(TIME_LIMIT_S):
            writer.write(answer)
            await writer.drain()
            writer.close()
            await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        try:
            async with asyncio.timeout(TIME_LIMIT_S):
                head = await reader.readuntil(_HEAD_END)
        except TimeoutError:
            status = HTTPStatus.REQUEST_TIMEOUT
        except asyncio.LimitOverrunError:
            status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        except (asyncio.IncompleteReadError, OSError):
            status = HTTPStatus.BAD_REQUEST
        else:
            return _Request(head, self._site).answer
        self.refused += 1
        return _refusal(status)


def _refusal(status: HTTPStatus) -> bytes:
    return f"HTTP/1.0 {status.value} {status.phrase}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()


class _Site:
    """What ``wsgiref`` asks its server for. An application that fails is our bug: the scrape gets a 500, the log the reason."""

    def __init__(self, sock: socket.socket, app: Callable[..., Iterable[bytes]]) -> None:
        host, port = sock.getsockname()[:2]
        self.base_environ = {"SERVER_NAME": host, "SERVER_PORT": str(port), "GATEWAY_INTERFACE": "CGI/1.1", "SCRIPT_NAME": ""}
        self._app = app

    def get_app(self) -> Callable[..., Iterable[bytes]]:
        return self._guarded

    def _guarded(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        try:
            return self._app(environ, start_response)
        except Exception:
            _log.exception("a scrape failed")
            start_response("500 Internal Server Error", [("Content-Type", "text/plain")])
            return [b"framegate's log says why\n"]


class _Request(wsgiref.simple_server.WSGIRequestHandler):
    """One request whose head is whole; ``answer`` is what to send back."""

    default_request_version = "HTTP/1.0"  # not 0.9, whose answers have no status

    def __init__(self, head: bytes, site: _Site) -> None:
        self.answer = b""
        super().__init__(head, ("", 0), site)  # type: ignore[arg-type]

    def setup(self) -> None:
        """Between two buffers, not on a socket."""
        self.rfile = io.BufferedReader(io.BytesIO(self.request))
        self.wfile = io.BytesIO()

    def finish(self) -> None:
        """Everything has been written."""
        assert isinstance(self.wfile, io.BytesIO), "setup made it"
        self.answer = self.wfile.getvalue()

    def log_message(self, format: str, *args: Any) -> None:
        """Scrapes are no news."""


class _Scrape(Collector):
    """What the registry asks."""

    def __init__(self, collect: Callable[[], MetricsData | None]) -> None:
        self._collect = collect

    def collect(self) -> Iterable[Metric]:
        data = self._collect()
        return [] if data is None else families(data)


def families(data: MetricsData) -> Iterator[Metric]:
    """What was collected, in Prometheus' form; the resource becomes ``target_info``."""
    for resource in data.resource_metrics:
        info = Metric("target", "What is scraped here.", "info")
        info.add_sample("target_info", {label_name(key): str(value) for key, value in resource.resource.attributes.items()}, 1)
        yield info
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                yield _family(metric)


def _family(metric: SdkMetric) -> Metric:
    unit, description = metric.unit or "", metric.description or ""
    name = prometheus_name(metric.name, unit)
    match metric.data:
        case Sum(is_monotonic=True):
            family = Metric(name, description, "counter")
            _add_numbers(family, prometheus_name(metric.name, unit, monotonic=True), metric.data.data_points)
        case Sum() | Gauge():
            family = Metric(name, description, "gauge")
            _add_numbers(family, name, metric.data.data_points)
        case _:
            family = Metric(name, description, "histogram")
            for point in metric.data.data_points:
                assert isinstance(point, HistogramDataPoint), "no instrument here is aggregated exponentially"
                _add_histogram(family, name, point)
    return family


def _labels(attributes: Any) -> dict[str, str]:
    return {label_name(key): str(value) for key, value in (attributes or {}).items()}


def _add_numbers(family: Metric, name: str, points: Iterable[NumberDataPoint]) -> None:
    for point in points:
        family.add_sample(name, _labels(point.attributes), point.value)


def _add_histogram(family: Metric, name: str, point: HistogramDataPoint) -> None:
    labels = _labels(point.attributes)
    total = 0
    for bound, count in zip([*point.explicit_bounds, float("inf")], point.bucket_counts, strict=True):
        total += count
        family.add_sample(f"{name}_bucket", {**labels, "le": "+Inf" if bound == float("inf") else repr(float(bound))}, total)
    family.add_sample(f"{name}_count", labels, total)
    family.add_sample(f"{name}_sum", labels, point.sum)
