"""Metrics for scrapes of Prometheus, without OpenTelemetry's SDK, which would take several times as long, and 3 MiB.

The socket listens from the start; what answers (``exposition``) is loaded by the first scrape. A scrape collects at that moment: its values are at
most a millisecond old.
"""

import bisect
import contextlib
import logging
import select
import socket
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from framegate.control.accept.listening import shared
from framegate.control.errors import StartError
from framegate.control.status import Attributes
from framegate.control.telemetry.exporters import behind
from framegate.control.telemetry.fold import Fold
from framegate.control.telemetry.instruments import ProcessMetrics
from framegate.control.web import BACKLOG, bind
from framegate.proxy.cells import METRICS, HistogramValue
from framegate.proxy.cells.standard_metrics import CALLS, PROCESS_METRICS

if TYPE_CHECKING:
    from framegate.control.telemetry.exposition import Measured, Scrapes

_PAUSE_S: Final = 1.0  # before the endpoint for scrapes is tried again after a failure
_log = logging.getLogger(__name__)


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
        self._resource: Callable[[], Mapping[str, object]] = dict
        self._stopping = threading.Event()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._answer, name="framegate-prometheus", daemon=True)
        self._thread.start()

    def start(self, scrape: Callable[[], "Measured"], resource: Callable[[], Mapping[str, object]]) -> None:
        """Answer with what ``scrape`` returns; ``resource``: gives the attributes of framegate. Both are called in the thread of the listener."""
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

        self._server = server = Scrapes(self._socket, self._scrape, self._resource())
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
        resource: gives the attributes of framegate; called before the first scrape is answered, in its thread.
    """

    def __init__(self, fold: Fold, processes: ProcessMetrics, calls: "Calls", resource: Callable[[], Mapping[str, object]]) -> None:
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
