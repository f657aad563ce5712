"""What a scrape gets, and the HTTP server that says it. Needs the extra ``prometheus``; the first scrape loads this module.

``prometheus_client`` negotiates the format and escapes; the server runs on threads of its own, all in Python, so that the interpreter may switch to
the acceptor in between.
"""

import socket
import socketserver
import wsgiref.simple_server
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from opentelemetry.sdk.metrics.export import Gauge, HistogramDataPoint, MetricsData, NumberDataPoint, Sum
from opentelemetry.sdk.metrics.export import Metric as SdkMetric
from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from control.telemetry.names import label_name, prometheus_name

__all__ = ["Server", "families"]

_SILENCE: Final = 10
"""Seconds that a scrape may take to say what it wants."""


class Server(socketserver.ThreadingMixIn, wsgiref.simple_server.WSGIServer):
    """Answers what comes to a socket that listens already: a thread for each connection, none of which keeps the process alive.

    Args:
        sock: closed by ``server_close``.
        collect: gives what there is at the moment of a scrape; called in its thread.
    """

    daemon_threads = True

    def __init__(self, sock: socket.socket, collect: Callable[[], MetricsData | None]) -> None:
        super().__init__(sock.getsockname(), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = sock
        self.server_name, self.server_port = sock.getsockname()[:2]
        self.setup_environ()
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Scrape(collect))
        self.set_app(make_wsgi_app(registry))


class _Handler(wsgiref.simple_server.WSGIRequestHandler):
    """Writes no lines to stderr, and gives up on a client that says nothing."""

    timeout = _SILENCE

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
