"""Answers Prometheus' scrapes. Needs the extra ``prometheus``; import this module late.

The socket listens from the start; what answers (``exposition``) is 3 MiB of modules and is loaded by the first scrape. A scrape collects at that
moment: what it says is at most a millisecond old.
"""

import contextlib
import importlib.util
import select
import socket
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.sdk.metrics.export import MetricReader, MetricsData

from control.errors import StartError
from control.plane import ControlPlane
from control.telemetry.fold import Fold
from control.telemetry.histograms import Injector

if TYPE_CHECKING:
    from control.telemetry.exposition import Server

__all__ = ["PrometheusReader"]

_BACKLOG: Final = 16

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

    def __init__(self, plane: ControlPlane, fold: Fold, address: str, cardinality: dict[type, int]) -> None:
        super().__init__(cardinality_limits=cardinality)
        self._fold = fold
        self._injector = Injector(plane.build.version, plane.started_ns)
        self._collected = threading.local()
        try:
            self._socket = _listen(address)
        except OSError as error:
            raise StartError(
                f"the Prometheus listener cannot bind {address}: {error}", reason="PROMETHEUS_ADDRESS_UNUSABLE", address=address
            ) from error
        self._server: Server | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._answer, name="framegate-prometheus", daemon=True)
        self._thread.start()
        self.address = f"{address.rpartition(':')[0]}:{self._socket.getsockname()[1]}"

    def _answer(self) -> None:
        first = select.poll()
        first.register(self._socket, select.POLLIN)
        first.poll()
        if self._stopping:
            return
        from control.telemetry.exposition import Server

        self._server = Server(self._socket, self.scrape)
        while not self._stopping:
            self._server.handle_request()

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
        self._stopping = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(timeout_millis / 1000)
        if self._server is not None:
            self._server.server_close()
        self._socket.close()


def _listen(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    sock = socket.socket(socket.AF_INET6 if host.startswith("[") else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host.strip("[]"), int(port)))
        sock.listen(_BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock
