"""Answers Prometheus' scrapes. Needs the extra ``prometheus``; import this module late.

``prometheus_client`` speaks HTTP, negotiates the format and escapes; it runs on threads of its own, all in Python, so that the interpreter may
switch to the acceptor in between. A scrape collects at that moment: what it says is at most a millisecond old.
"""

import contextlib
import socket
import socketserver
import threading
import time
import wsgiref.simple_server
from collections.abc import Iterable, Iterator
from typing import Any, Final

from opentelemetry.sdk.metrics.export import Gauge, HistogramDataPoint, MetricReader, MetricsData, NumberDataPoint, Sum
from opentelemetry.sdk.metrics.export import Metric as SdkMetric
from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from control.errors import StartError
from control.plane import ControlPlane
from control.telemetry.fold import Fold
from control.telemetry.histograms import Injector
from control.telemetry.names import label_name, prometheus_name

__all__ = ["PrometheusReader", "families"]

_SILENCE: Final = 10
"""Seconds that a scrape may take to say what it wants."""


class PrometheusReader(MetricReader):
    """A reader that is asked by scrapes, and the HTTP server that answers them.

    Args:
        plane: says since when is counted.
        fold: where the histograms come from.
        address: ``host:port``; port 0 asks the kernel for a free one.
        cardinality: data points of one metric, by kind of instrument.

    Raises:
        StartError: the address cannot be bound.
    """

    def __init__(self, plane: ControlPlane, fold: Fold, address: str, cardinality: dict[type, int]) -> None:
        super().__init__(cardinality_limits=cardinality)
        self._fold = fold
        self._injector = Injector(plane.build.version, plane.started_ns)
        self._collected = threading.local()
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Scrape(self))
        try:
            self._server = _serve(address, registry)
        except OSError as error:
            raise StartError(
                f"the Prometheus listener cannot bind {address}: {error}", reason="PROMETHEUS_ADDRESS_UNUSABLE", address=address
            ) from error
        self._stopping = False
        self._thread = threading.Thread(target=self._accept, name="framegate-prometheus", daemon=True)
        self._thread.start()
        self.address = f"{address.rpartition(':')[0]}:{self._server.server_port}"

    def _accept(self) -> None:
        while not self._stopping:
            self._server.handle_request()

    def scrape(self) -> Iterable[Metric]:
        """Collect now, in this thread."""
        self._collected.data = None
        self.collect()
        data: MetricsData | None = self._collected.data
        return [] if data is None else families(data)

    def _receive_metrics(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> None:
        self._collected.data = self._injector.inject(metrics_data, self._fold.end(), time.time_ns())

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """Answer no more scrapes."""
        self._stopping = True
        with contextlib.suppress(OSError):
            self._server.socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(timeout_millis / 1000)
        self._server.server_close()


class _Server(socketserver.ThreadingMixIn, wsgiref.simple_server.WSGIServer):
    """A thread for each connection; none of them keeps the process alive."""

    daemon_threads = True


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Handler(wsgiref.simple_server.WSGIRequestHandler):
    """Writes no lines to stderr, and gives up on a client that says nothing."""

    timeout = _SILENCE

    def log_message(self, format: str, *args: Any) -> None:
        """Scrapes are no news."""


def _serve(address: str, registry: CollectorRegistry) -> wsgiref.simple_server.WSGIServer:
    host, _, port = address.rpartition(":")
    kind = _Server6 if host.startswith("[") else _Server
    return wsgiref.simple_server.make_server(host.strip("[]"), int(port), make_wsgi_app(registry), kind, _Handler)


class _Scrape(Collector):
    """What the registry asks; a reader cannot be one itself, for both have a method ``collect``."""

    def __init__(self, reader: PrometheusReader) -> None:
        self._reader = reader

    def collect(self) -> Iterable[Metric]:
        return self._reader.scrape()


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
