"""Answers Prometheus' scrapes. Needs the extra ``prometheus``; import this module late.

The socket listens from the start; what answers (``exposition``) is 3 MiB of modules and is loaded by the first scrape. A scrape collects at that
moment: what it says is at most a millisecond old.
"""

import contextlib
import importlib.util
import logging
import select
import socket
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.sdk.metrics.export import MetricReader, MetricsData

from framegate.control.errors import StartError
from framegate.control.status import Attributes
from framegate.control.steering.state import State
from framegate.control.telemetry.fold import Fold
from framegate.control.telemetry.histograms import Injector
from framegate.control.web import bind

if TYPE_CHECKING:
    from framegate.control.telemetry.exposition import Scrapes

__all__ = ["PrometheusReader"]

_PAUSE_S: Final = 1.0

_log = logging.getLogger(__name__)

if importlib.util.find_spec("prometheus_client") is None:  # now, and not at the first scrape
    raise ModuleNotFoundError("prometheus_client is not installed", name="prometheus_client")


class PrometheusReader(MetricReader):
    """A reader that is asked by scrapes.

    Args:
        plane: says since when is counted.
        fold: where the histograms come from.
        address: ``host:port``; port 0 asks the kernel for a free one.
        cardinality: data points of one metric, by kind of instrument.

    Raises:
        StartError: the address cannot be bound.
    """

    def __init__(self, plane: State, fold: Fold, address: str, cardinality: dict[type, int]) -> None:
        super().__init__(cardinality_limits=cardinality)
        self._fold = fold
        self._injector = Injector(plane.build.version, plane.started_ns)
        self._collected = threading.local()
        try:
            self._socket = bind(address)
        except OSError as error:
            raise StartError(
                f"the Prometheus listener cannot bind {address}: {error}", reason="PROMETHEUS_ADDRESS_UNUSABLE", address=address
            ) from error
        self._server: Scrapes | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._answer, name="framegate-prometheus", daemon=True)
        self._thread.start()
        self.address = f"{address.rpartition(':')[0]}:{self._socket.getsockname()[1]}"

    def _answer(self) -> None:
        first = select.poll()
        first.register(self._socket, select.POLLIN)
        first.poll()
        while not self._stopping.is_set():
            try:
                self._serve()
            except Exception:  # no descriptors for its loop, say: the scrape after next may find some
                _log.exception("the Prometheus endpoint failed")
                self._stopping.wait(_PAUSE_S)

    def _serve(self) -> None:
        from framegate.control.telemetry.exposition import Scrapes

        self._server = server = Scrapes(self._socket, self.scrape)
        if self._stopping.is_set():  # ``shutdown`` may have looked before there was one to stop
            server.stop()
        server.serve()

    @property
    def refused(self) -> int:
        """Connections that did not get what they asked for, or asked for nothing. Any thread."""
        return 0 if self._server is None else self._server.refused

    def measurements(self) -> Mapping[tuple[str, Attributes], float]:
        """As ``State.measurements``."""
        return {("framegate.scrape.refused", ()): self.refused}

    def scrape(self) -> MetricsData | None:
        """Collect now, in this thread."""
        self._collected.data = None
        self.collect()
        data: MetricsData | None = self._collected.data
        return data

    def _receive_metrics(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> None:
        self._collected.data = self._injector.inject(metrics_data, self._fold.end(), time.time_ns())

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """Answer no more scrapes."""
        self._stopping.set()
        if self._server is not None:
            self._server.stop()
        else:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for the first
        self._thread.join(timeout_millis / 1000)
        self._socket.close()
