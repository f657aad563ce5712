"""The readers of metrics: one pushes to an OTLP collector, one answers scrapes of Prometheus.

The SDK has no observable histogram, but ``MetricReader._receive_metrics`` is documented as the hook for subclasses: there the first one adds the
histograms of the fold, as a scope of their own, and the gauges of clients: those that are there now, and no others. The second one does without the
SDK, which would take several times as long.

The socket for Prometheus listens from the start; what answers (``exposition``) is loaded by the first scrape. A scrape collects at that moment: its
values are at most a millisecond old.
"""

import bisect
import contextlib
import logging
import math
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from opentelemetry.sdk.metrics import Histogram as HistogramInstrument
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Buckets,
    ExponentialHistogram,
    ExponentialHistogramDataPoint,
    Gauge,
    Histogram,
    HistogramDataPoint,
    MetricExporter,
    MetricsData,
    NumberDataPoint,
    PeriodicExportingMetricReader,
    ResourceMetrics,
    ScopeMetrics,
)
from opentelemetry.sdk.metrics.export import Metric as SdkMetric
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from framegate.control.accept.listening import shared
from framegate.control.errors import StartError
from framegate.control.status import Attributes
from framegate.control.steering.state import State
from framegate.control.telemetry.exporters import Counted, behind
from framegate.control.telemetry.fold import REPLACED, Fold, Folded
from framegate.control.telemetry.instruments import ProcessMetrics
from framegate.control.web import BACKLOG, bind
from framegate.proxy.cells import FIRST_POWERS, METRICS, HistogramValue, Metric
from framegate.proxy.cells.standard_metrics import CALLS, PROCESS_METRICS

if TYPE_CHECKING:
    from framegate.control.telemetry.exposition import Measured, Scrapes

SCOPE: Final = "framegate.dataplane"
_HISTOGRAMS: Final = tuple(metric for metric in METRICS if metric.kind == "histogram")
_GAUGES: Final = tuple(metric for metric in METRICS if metric.name.startswith(REPLACED))
_ABSENT: Final = cast("float", None)  # Smallest and largest values are not measured; they are optional in OTLP
_SCALE: Final = 2  # of exponential histograms: each bucket is 2^(1/4) times as wide as the one before it
_END_S: Final = 0.5  # how long the end waits for an export that was broken off
_PAUSE_S: Final = 1.0  # before the endpoint for scrapes is tried again after a failure
_log = logging.getLogger(__name__)


class Injector:
    """Turns folded histograms into the SDK's data points, for one reader. ``temporality``: what the collector prefers; DELTA subtracts the values of
    the last collection.
    """

    def __init__(
        self, version: str, started_ns: int, temporality: AggregationTemporality = AggregationTemporality.CUMULATIVE, *, exponential: bool = False
    ) -> None:
        self._scope = InstrumentationScope(SCOPE, version)
        self._started_ns = started_ns
        self._temporality = temporality
        self._exponential = exponential
        self._last: dict[tuple[str, Attributes], HistogramValue] = {}
        self._last_ns = started_ns

    def inject(self, data: MetricsData, folded: Folded, now_ns: int) -> MetricsData:
        """Add the histograms of the same moment and the gauges of clients to what was collected, or nothing if nothing was collected."""
        if not data.resource_metrics:
            return data
        delta = self._temporality is AggregationTemporality.DELTA
        time_ns = self._last_ns if delta else self._started_ns, now_ns
        metrics = []
        for metric in _HISTOGRAMS:
            values = [
                (attributes, self._since(metric.name, attributes, value)) for attributes, value in folded.histograms.get(metric.name, {}).items()
            ]
            make = _exponential_point if self._exponential and metric.bounds in FIRST_POWERS else _point
            points: list[Any] = [make(metric, attributes, value, time_ns) for attributes, value in values if value.count or not delta]
            if points:
                kind = ExponentialHistogram if make is _exponential_point else Histogram
                metrics.append(SdkMetric(metric.name, metric.description, metric.unit, kind(points, self._temporality)))
        for metric in _GAUGES:
            numbers = [NumberDataPoint(dict(attributes), *time_ns, value) for attributes, value in folded.points.get(metric.name, {}).items()]
            if numbers:
                metrics.append(SdkMetric(metric.name, metric.description, metric.unit, Gauge(numbers)))
        self._last_ns = now_ns
        first = data.resource_metrics[0]
        extra = ScopeMetrics(scope=self._scope, metrics=metrics, schema_url="")
        return MetricsData([ResourceMetrics(first.resource, [*first.scope_metrics, extra], first.schema_url), *data.resource_metrics[1:]])

    def _since(self, name: str, attributes: Attributes, total: HistogramValue) -> HistogramValue:
        """The value since the last collection, if the collector prefers that."""
        if self._temporality is AggregationTemporality.CUMULATIVE or not total.count:
            return total
        before, self._last[name, attributes] = self._last.get((name, attributes)), total
        return total if before is None else _difference(total, before)


def _point(metric: Metric, attributes: Attributes, value: HistogramValue, time_ns: tuple[int, int]) -> HistogramDataPoint:
    return HistogramDataPoint(
        attributes=dict(attributes),
        start_time_unix_nano=time_ns[0],
        time_unix_nano=time_ns[1],
        count=value.count,
        sum=value.sum,
        bucket_counts=list(value.buckets),
        explicit_bounds=list(metric.bounds[: len(value.buckets) - 1]),
        min=_ABSENT,
        max=_ABSENT,
    )


def _exponential_point(metric: Metric, attributes: Attributes, value: HistogramValue, time_ns: tuple[int, int]) -> ExponentialHistogramDataPoint:
    """Fine buckets are those of scale 2. What is below the first bound, or above the last one, counts as if it were next to it."""
    return ExponentialHistogramDataPoint(
        attributes=dict(attributes),
        start_time_unix_nano=time_ns[0],
        time_unix_nano=time_ns[1],
        count=value.count,
        sum=value.sum,
        scale=_SCALE,
        zero_count=0,
        positive=Buckets(FIRST_POWERS[metric.bounds] - 1, list(value.buckets)),
        negative=Buckets(0, []),
        flags=0,
        min=_ABSENT,
        max=_ABSENT,
    )


def _difference(total: HistogramValue, before: HistogramValue) -> HistogramValue:
    return HistogramValue(tuple(one - other for one, other in zip(total.buckets, before.buckets, strict=True)), total.sum - before.sum)


class OtlpReader(PeriodicExportingMetricReader):
    """Pushes to a collector, from ``start`` on. It has a thread of its own instead of the SDK's, whose interval cannot change."""

    def __init__(self, plane: State, fold: Fold, exporter: Counted, interval_ms: int, cardinality: dict[type, int]) -> None:
        self.exporter = exporter  # sends
        self._fold = fold
        self._interval_s = interval_ms / 1000
        self._wake = threading.Event()
        self._ending = False
        preferred: dict[type, AggregationTemporality] = exporter._preferred_temporality or {}
        temporality = preferred.get(HistogramInstrument, AggregationTemporality.CUMULATIVE)
        aggregations: dict[type, object] = exporter._preferred_aggregation or {}
        exponential = isinstance(aggregations.get(HistogramInstrument), ExponentialBucketHistogramAggregation)
        self._injector = Injector(plane.build.version, plane.started_ns, temporality, exponential=exponential)
        super().__init__(cast(MetricExporter, exporter), math.inf, cardinality_limits=cardinality)
        self._started = False
        self._thread = threading.Thread(target=self._run, name="framegate-metrics", daemon=True)
        self._thread.start()

    def start(self) -> None:
        """Begin to export, once a provider has the reader."""
        self._started = True
        self._wake.set()

    def configure(self, interval_ms: int) -> None:
        """Set the interval, also for the export that is waited for."""
        self._interval_s = interval_ms / 1000
        self._wake.set()

    def _run(self) -> None:
        while True:
            began_s = time.monotonic()
            while not self._ending and (not self._started or began_s + self._interval_s > time.monotonic()):
                self._wake.wait(max(began_s + self._interval_s - time.monotonic(), 0.0) if self._started else None)
                self._wake.clear()
            ending = self._ending
            if not self._started:
                return
            try:
                self.collect(self._export_timeout_millis)
            except Exception:  # only this export is lost; raised, the exception would end the thread
                _log.exception("metrics could not be collected; nothing is exported this time")
            if ending:
                return

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """Export once more and end. If the collector hangs, an export over gRPC is broken off after ``timeout_millis``; over HTTP its daemon thread
        continues until the export's timeout.
        """
        if self._ending:
            return
        self._ending = True
        self._wake.set()
        self._thread.join(timeout_millis / 1000)
        super().shutdown(timeout_millis, **kwargs)
        self._thread.join(_END_S)

    def _receive_metrics(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> None:
        data = self._injector.inject(metrics_data, self._fold.end(), time.time_ns())
        super()._receive_metrics(data, timeout_millis, **kwargs)


class Calls:
    """Calls of the admin API, as ``CALLS``. One thread adds, any may read."""

    def __init__(self) -> None:
        self._counts: dict[Attributes, tuple[list[int], float]] = {}

    def add(self, attributes: Mapping[str, str], seconds: float) -> None:
        key = tuple(attributes.items())
        buckets, total = self._counts.get(key) or ([0] * (len(CALLS.bounds) + 1), 0.0)
        buckets[bisect.bisect_left(CALLS.bounds, seconds)] += 1
        self._counts[key] = buckets, total + seconds

    def values(self) -> dict[Attributes, HistogramValue]:
        return {key: HistogramValue(tuple(buckets), total) for key, (buckets, total) in tuple(self._counts.items())}


class ScrapeListener:
    """Listens for scrapes, which are answered from ``start`` on. ``address``: ``host:port``; with port 0 the kernel chooses one. ``former``: its
    address may overlap with this one: then clients connect to it until ``start``. Close it afterwards. Raises StartError: the address cannot be
    bound.
    """

    address: str  # with the port bound
    _socket: socket.socket

    def __init__(self, address: str, former: "ScrapeListener | None" = None) -> None:
        near = former is not None and address.rpartition(":")[2] == former.address.rpartition(":")[2]
        self._beside = (former._socket,) if former is not None and near else ()
        try:
            with shared(*self._beside):
                self._socket = bind(address, beside=bool(self._beside))
        except OSError as error:
            text = f"the Prometheus listener cannot bind {address}: {error}"
            raise StartError(text, reason="PROMETHEUS_ADDRESS_UNUSABLE", address=address) from error
        self.address = f"{address.rpartition(':')[0]}:{self._socket.getsockname()[1]}"
        self._server: Scrapes | None = None
        self._scrape: Callable[[], Measured] = tuple
        self._resource: Mapping[str, object] = {}
        self._stopping = threading.Event()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._answer, name="framegate-prometheus", daemon=True)
        self._thread.start()

    def start(self, scrape: Callable[[], "Measured"], resource: Mapping[str, object]) -> None:
        """Answer with what ``scrape`` returns, in the thread of the listener; ``resource``: attributes of framegate."""
        if self._beside:
            with shared(self._socket, *self._beside):
                self._socket.listen(BACKLOG)
            self._beside = ()
        self._scrape, self._resource = scrape, resource
        self._started.set()

    def _answer(self) -> None:
        self._started.wait()
        first = select.poll()
        first.register(self._socket, select.POLLIN)
        first.poll()
        while not self._stopping.is_set():
            try:
                self._serve()
            except Exception:  # for example, no descriptors for its loop: a later scrape may find some
                _log.exception("the Prometheus endpoint failed")
                self._stopping.wait(_PAUSE_S)

    def _serve(self) -> None:
        from framegate.control.telemetry.exposition import Scrapes

        self._server = server = Scrapes(self._socket, self._scrape, self._resource)
        if self._stopping.is_set():  # ``shutdown`` may have looked before there was a server to stop
            server.stop()
        server.serve()

    @property
    def refused(self) -> int:
        """Connections that were refused, or that sent no request. Any thread."""
        return 0 if self._server is None else self._server.refused

    def close(self, timeout_s: float = 2.0) -> None:
        """Answer no more scrapes, and release the address."""
        self._stopping.set()
        self._started.set()
        if self._server is not None:
            self._server.stop()
        else:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for the first scrape
        self._thread.join(timeout_s)
        self._socket.close()


class PrometheusReader:
    """Collects for each scrape, from the first ``listen`` on.

    Args:
        fold: the source of ``METRICS``.
        processes: the source of ``PROCESS_METRICS``.
        calls: the source of ``CALLS``.
    """

    def __init__(self, fold: Fold, processes: ProcessMetrics, calls: "Calls", resource: Mapping[str, object]) -> None:
        self._fold = fold
        self._processes = processes
        self._calls = calls
        self._resource = resource
        self._listening: tuple[ScrapeListener | None, int] = (None, 0)  # and the connections that former ones refused

    @property
    def listener(self) -> ScrapeListener | None:
        """The present one; None before ``listen``."""
        return self._listening[0]

    @property
    def address(self) -> str | None:
        """Where it listens; None before."""
        return None if self.listener is None else self.listener.address

    def listen(self, listener: ScrapeListener) -> None:
        """Answer the scrapes of a listener, and no more those of the former one. It does not block."""
        former, self._listening = self.listener, (listener, self.refused)
        listener.start(self.scrape, self._resource)
        if former is not None:
            behind(former.close, "framegate-prometheus-end")

    @property
    def refused(self) -> int:
        """Connections that were refused, or that sent no request. Any thread."""
        listener, before = self._listening
        return before + (0 if listener is None else listener.refused)

    def scrape(self) -> "Measured":
        """The values now, without metrics that have none. Any thread."""
        folded = self._fold.end()
        found = [(metric, folded.histograms.get(metric.name) or folded.points.get(metric.name, {})) for metric in METRICS]
        of_processes = [(metric, {tuple(at.items()): value for at, value in self._processes.read(metric.name)}) for metric in PROCESS_METRICS]
        return [(metric, points) for metric, points in (*found, (CALLS, self._calls.values()), *of_processes) if points]

    def shutdown(self, timeout_millis: float = 30_000) -> None:
        """Answer no more scrapes."""
        if self.listener is not None:
            self.listener.close(timeout_millis / 1000)
