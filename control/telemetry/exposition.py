"""What a scrape gets. Needs the extra ``prometheus``; the first scrape loads this module.

``prometheus_client`` negotiates the format and escapes; ``wsgiref`` reads the request and writes the answer, between two buffers; ``control.web``
moves the bytes, on the loop of the one thread that serves.
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

from framegate.control.telemetry.names import label_name, prometheus_name
from framegate.control.web import Server

__all__ = ["Scrapes", "families"]

_log = logging.getLogger(__name__)
_REFUSED: Final = re.compile(r";\s*q\s*=\s*0(\.0*)?\s*$", re.IGNORECASE)
"""Behind an encoding: the client does not want it."""


class Scrapes:
    """Answers scrapes on a socket that listens already, in a thread of their own.

    Args:
        sock: closed when ``serve`` ends.
        collect: gives what there is at the moment of a scrape; called in the thread that serves.
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
    """What ``wsgiref`` asks its server for. An application that fails is our bug: the scrape gets a 500, the log the reason."""

    def __init__(self, sock: socket.socket, app: Callable[..., Iterable[bytes]]) -> None:
        host, port = sock.getsockname()[:2]
        self.base_environ = {"SERVER_NAME": host, "SERVER_PORT": str(port), "GATEWAY_INTERFACE": "CGI/1.1", "SCRIPT_NAME": ""}
        self._app = app

    def get_app(self) -> Callable[..., Iterable[bytes]]:
        return self._guarded

    def _guarded(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        encodings = environ.get("HTTP_ACCEPT_ENCODING", "").split(",")
        environ["HTTP_ACCEPT_ENCODING"] = ",".join(item for item in encodings if not _REFUSED.search(item))  # the library does not look at weights
        try:
            if environ["REQUEST_METHOD"] == "HEAD":
                return _head_only(self._app, environ, start_response)
            return self._app(environ, start_response)
        except Exception:
            _log.exception("a scrape failed")
            start_response("500 Internal Server Error", [("Content-Type", "text/plain")])
            return [b"framegate's log says why\n"]


def _head_only(app: Callable[..., Iterable[bytes]], environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
    """What GET answers without its body, and with its length."""
    told: list[Any] = []
    size = sum(map(len, app({**environ, "REQUEST_METHOD": "GET"}, lambda status, headers: told.extend((status, headers)))))
    status, headers = told
    start_response(status, [*headers, ("Content-Length", str(size))])
    return []


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
