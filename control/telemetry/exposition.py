"""The answer to a scrape. Needs the extra ``prometheus``; the first scrape loads this module.

``prometheus_client`` negotiates the format and escapes; ``control.web`` serves, on the event loop of one thread.
"""

import asyncio
import contextlib
import email
import re
import socket
from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from typing import Any, Final

from opentelemetry.sdk.metrics.export import Gauge, HistogramDataPoint, MetricsData, NumberDataPoint, Sum
from opentelemetry.sdk.metrics.export import Metric as SdkMetric
from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from framegate.control.telemetry.catalogue import label_name, prometheus_name
from framegate.control.web import Server, response

__all__ = ["Scrapes", "families"]

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
        self._app = make_wsgi_app(registry)
        self._socket = sock
        self._server = Server(sock, self._answer)
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
        self._loop.remove_reader(self._socket)
        for _ in range(3):  # asyncio does not close a connection that was accepted just now, unless it has its transport, protocol and task
            await asyncio.sleep(0)
        self._server.stop()

    def _answer(self, head: bytes) -> bytes:
        """The response to a request, on any path; HEAD is GET without the body."""
        line, _, lines = head.partition(b"\r\n")
        words = line.decode("latin-1").split()
        if len(words) != 3 or not words[2].startswith("HTTP/"):
            return response(HTTPStatus.BAD_REQUEST)
        if not words[2].startswith("HTTP/1."):
            return response(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)
        path, _, query = words[1].partition("?")
        fields = email.message_from_bytes(lines)
        encodings = fields.get("Accept-Encoding", "").split(",")
        head_only = words[0] == "HEAD"
        environ = {
            "REQUEST_METHOD": "GET" if head_only else words[0],
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "HTTP_ACCEPT": fields.get("Accept"),
            "HTTP_ACCEPT_ENCODING": ",".join(item for item in encodings if not _REFUSED.search(item)),  # the library ignores weights
        }
        started: list[Any] = []
        body = b"".join(self._app(environ, lambda status, headers: started.extend((status, headers))))
        status, headers = started
        return response(HTTPStatus(int(status.split()[0])), body, tuple(headers), head_only=head_only)


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
