"""The answer to a scrape. Needs the extra ``prometheus``; the first scrape loads this module.

``prometheus_client`` negotiates the format and escapes; ``wsgiref`` parses the request and writes the answer, between two buffers; ``control.web``
moves the bytes, on the event loop of one thread.
"""

import asyncio
import contextlib
import io
import logging
import re
import socket
import wsgiref.simple_server
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from opentelemetry.sdk.metrics.export import Gauge, HistogramDataPoint, MetricsData, NumberDataPoint, Sum
from opentelemetry.sdk.metrics.export import Metric as SdkMetric
from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from framegate.control.telemetry.catalogue import label_name, prometheus_name
from framegate.control.web import Server

__all__ = ["Scrapes", "families"]

_log = logging.getLogger(__name__)
_REFUSED: Final = re.compile(r";\s*q\s*=\s*0(\.0*)?\s*$", re.IGNORECASE)
"""The end of an encoding that the client does not accept."""


class Scrapes:
    """Answers scrapes on a listening socket, in the thread that calls ``serve``.

    Args:
        sock: closed when ``serve`` ends.
        collect: returns the values at the moment of a scrape; called in the thread that serves.
    """

    def __init__(self, sock: socket.socket, collect: Callable[[], MetricsData | None]) -> None:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Scrape(collect))
        site = _Site(sock, make_wsgi_app(registry))
        self._server = Server(sock, lambda head: _Request(head, site).answer)
        self._loop = asyncio.new_event_loop()
        self._end = asyncio.Event()

    @property
    def refused(self) -> int:
        """See ``Server``. Any thread."""
        return self._server.refused

    def serve(self) -> None:
        """Serve in this thread until ``stop``."""
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    def stop(self) -> None:
        """End ``serve``, now or as soon as it begins. Any thread."""
        with contextlib.suppress(RuntimeError):  # it has ended already
            self._loop.call_soon_threadsafe(self._end.set)

    async def _serve(self) -> None:
        await self._server.start()
        await self._end.wait()
        self._server.stop()


class _Site:
    """The server object that ``wsgiref`` needs. If the application raises, which is our bug, the scrape gets a 500 and the log the reason."""

    def __init__(self, sock: socket.socket, app: Callable[..., Iterable[bytes]]) -> None:
        host, port = sock.getsockname()[:2]
        self.base_environ = {"SERVER_NAME": host, "SERVER_PORT": str(port), "GATEWAY_INTERFACE": "CGI/1.1", "SCRIPT_NAME": ""}
        self._app = app

    def get_app(self) -> Callable[..., Iterable[bytes]]:
        return self._guarded

    def _guarded(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        encodings = environ.get("HTTP_ACCEPT_ENCODING", "").split(",")
        environ["HTTP_ACCEPT_ENCODING"] = ",".join(item for item in encodings if not _REFUSED.search(item))  # the library ignores weights
        try:
            if environ["REQUEST_METHOD"] == "HEAD":
                return _head_only(self._app, environ, start_response)
            return self._app(environ, start_response)
        except Exception:
            _log.exception("a scrape failed")
            start_response("500 Internal Server Error", [("Content-Type", "text/plain")])
            return [b"framegate's log says why\n"]


def _head_only(app: Callable[..., Iterable[bytes]], environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
    """The answer to GET without its body, and with its length."""
    started: list[Any] = []
    size = sum(map(len, app({**environ, "REQUEST_METHOD": "GET"}, lambda status, headers: started.extend((status, headers)))))
    status, headers = started
    start_response(status, [*headers, ("Content-Length", str(size))])
    return []


class _Request(wsgiref.simple_server.WSGIRequestHandler):
    """One request whose head has arrived; ``answer`` is the response."""

    default_request_version = "HTTP/1.0"  # not 0.9, whose answers have no status

    def __init__(self, head: bytes, site: _Site) -> None:
        self.answer = b""
        super().__init__(head, ("", 0), site)  # type: ignore[arg-type]

    def setup(self) -> None:
        """Use two buffers in place of a socket."""
        self.rfile = io.BufferedReader(io.BytesIO(self.request))
        self.wfile = io.BytesIO()

    def finish(self) -> None:
        assert isinstance(self.wfile, io.BytesIO), "setup made it"
        self.answer = self.wfile.getvalue()

    def log_message(self, format: str, *args: Any) -> None:
        """Scrapes are not logged."""


class _Scrape(Collector):
    """The only collector of the registry."""

    def __init__(self, collect: Callable[[], MetricsData | None]) -> None:
        self._collect = collect

    def collect(self) -> Iterable[Metric]:
        data = self._collect()
        return [] if data is None else families(data)


def families(data: MetricsData) -> Iterator[Metric]:
    """Collected metrics as families of Prometheus; the resource becomes ``target_info``."""
    for resource in data.resource_metrics:
        info = Metric("target", "What is scraped here.", "info")
        info.add_sample("target_info", _labels(resource.resource.attributes), 1)
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
