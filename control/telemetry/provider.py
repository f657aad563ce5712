"""The metrics of the whole framegate, in the control process: processors import neither OpenTelemetry nor gRPC.

OpenTelemetry's SDK takes 3 MiB. It is loaded for a collector, and what names framegate (``Telemetry.resource``) for the first scrape.
"""

import asyncio
import dataclasses
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from framegate.control.errors import StartError
from framegate.control.status import Attributes
from framegate.control.steering.state import State
from framegate.control.telemetry.environment import Settings
from framegate.control.telemetry.exporters import Account, Counted, behind, metric_exporter
from framegate.control.telemetry.fold import Fold
from framegate.control.telemetry.instruments import ProcessMetrics, observe_fold, observe_processes
from framegate.control.telemetry.scraping import Calls, PrometheusReader, ScrapeListener
from framegate.control.telemetry.watched import sources_of
from framegate.proxy.cells.standard_metrics import CALLS, RPC_STATUS

if TYPE_CHECKING:
    from opentelemetry.metrics import Histogram
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.resources import Resource

    from framegate.control.telemetry.otlp_reader import OtlpReader

_SERVICE: Final = "framegate"
_END_MS: Final = 2_000


@dataclasses.dataclass(slots=True)
class StagedMetrics:
    """What other settings need, beside what is in force."""

    settings: Settings  # from the file and the environment
    exporter: Any = None  # of the collector, if it is another one than before
    reader: "OtlpReader | None" = None  # for the collector, if there was none
    listener: ScrapeListener | None = None  # for scrapes, if they come to another address than before
    scraped: PrometheusReader | None = None  # answers them, if there were none


class Telemetry:
    """Running metrics. Readers come and go; what was counted stays, and so does the provider, which is made for the first collector. ``plane``: the
    source of the values. ``validity``: from when to when each served certificate is valid, by its use (``framegate.control.rotation.tls_stores``); it
    changes.
    """

    def __init__(self, plane: State, validity: Mapping[str, tuple[float, float]]) -> None:
        self.settings = Settings()  # in force
        self.account = Account()  # counts exports
        self._plane = plane
        self._otlp: OtlpReader | None = None
        self._prometheus: PrometheusReader | None = None
        self._processes = processes = ProcessMetrics(plane)
        self._calls = Calls()
        self._fold = Fold(plane, (self.account.measurements, *sources_of(processes, validity), self._scrapes))
        self._provider: MeterProvider | None = None
        self._call_durations: Histogram | None = None

    @functools.cached_property
    def resource(self) -> "Resource":
        """Identifies framegate. The environment's attributes win."""
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource

        build, node = self._plane.build, self._plane.config.node
        ours = {"service.name": _SERVICE, "service.version": build.version, "service.instance.id": node}
        return Resource.create(ours).merge(OTELResourceDetector().detect())

    @property
    def prometheus_address(self) -> str | None:
        """``host:port`` with the port bound, or None."""
        return None if self._prometheus is None else self._prometheus.address

    def record_call(self, method: str, code: str, seconds: float) -> None:
        """Count one call of the control plane: ``package.Service/Method``, the code's name, its duration."""
        attributes = {"rpc.system.name": "grpc", "rpc.method": method, RPC_STATUS: code}
        if code != "OK":
            attributes["error.type"] = code
        if self._call_durations is not None:
            self._call_durations.record(seconds, attributes)
        self._calls.add(attributes, seconds)

    def stage(self, settings: Settings) -> StagedMetrics:
        """Make what other settings need; nothing is sent yet. Raises StartError: an extra is not installed, certificates for a collector cannot be
        used, or the Prometheus address cannot be bound.
        """
        staged = StagedMetrics(settings)
        try:
            if settings.metrics is not None and settings.metrics != self.settings.metrics:
                staged.exporter = metric_exporter(settings.metrics)
                if self._otlp is None:
                    staged.reader = self._new_reader(staged.exporter, settings.interval_ms)
            if settings.prometheus is not None and settings.prometheus != self.settings.prometheus:
                staged.listener = ScrapeListener(settings.prometheus, None if self._prometheus is None else self._prometheus.listener)
                if self._prometheus is None:
                    staged.scraped = PrometheusReader(self._fold, self._processes, self._calls, lambda: self.resource.attributes)
        except (ImportError, StartError) as error:
            self.release(staged)
            if isinstance(error, StartError):
                raise
            text = f"telemetry.otlp needs {error.name}, which is not installed: pip install 'framegate[otlp]'"
            raise StartError(text, reason="EXTRA_MISSING", extra="otlp") from error
        return staged

    def _new_reader(self, exporter: Any, interval_ms: int) -> "OtlpReader":
        from framegate.control.telemetry.otlp_reader import OtlpReader

        if self._provider is None:
            self._provider = self._new_provider()
        return OtlpReader(self._plane, self._fold, Counted(exporter, "metrics", self.account), interval_ms)

    def _new_provider(self) -> "MeterProvider":
        from opentelemetry.sdk.metrics import MeterProvider

        provider = MeterProvider((), self.resource, shutdown_on_exit=False)
        meter = provider.get_meter(_SERVICE, self._plane.build.version)
        observe_fold(meter, self._fold)
        observe_processes(meter, self._processes)
        self._call_durations = meter.create_histogram(CALLS.name, CALLS.unit, CALLS.description, explicit_bucket_boundaries_advisory=CALLS.bounds)
        return provider

    def release(self, staged: StagedMetrics) -> None:
        """End what was staged and is not wanted."""
        if staged.reader is not None:
            staged.reader.shutdown()
        elif staged.exporter is not None:
            staged.exporter.shutdown()
        if staged.listener is not None:
            staged.listener.close()

    def follow(self, staged: StagedMetrics) -> None:
        """Put staged settings in force; what they replace ends behind it."""
        settings = self.settings = staged.settings
        otlp, prometheus = self._otlp, self._prometheus
        if otlp is not None and settings.metrics is not None:
            otlp.configure(settings.interval_ms)
            if staged.exporter is not None:
                otlp.exporter.exchange(staged.exporter)
        elif otlp is not None or staged.reader is not None:
            self._otlp = staged.reader
            if staged.reader is not None:
                assert self._provider is not None, "it was made with the first reader"
                self._provider.add_metric_reader(staged.reader)
            self._end(otlp)
        if settings.prometheus is None or staged.scraped is not None:
            self._prometheus = staged.scraped
            self._end(prometheus)
        if self._prometheus is not None and staged.listener is not None:
            self._prometheus.listen(staged.listener)
        if staged.reader is not None:
            staged.reader.start()

    def _end(self, former: "OtlpReader | PrometheusReader | None") -> None:
        if former is not None:

            def end() -> None:
                former.shutdown(_END_MS)
                if self._provider is not None and not isinstance(former, PrometheusReader):
                    self._provider.remove_metric_reader(former)

            behind(end, "framegate-reader-end")

    def _scrapes(self) -> Mapping[tuple[str, Attributes], float]:
        """As ``State.measurements``."""
        return {} if self._prometheus is None else {("framegate.scrape.refused", ()): self._prometheus.refused}

    async def stop(self, timeout_ms: int = _END_MS) -> None:
        """Export once more and end; call it while the cells can still be read. A collector that does not answer gets ``timeout_ms``."""
        await asyncio.to_thread(self._shut_down, timeout_ms)

    def _shut_down(self, timeout_ms: int) -> None:
        for reader in (self._otlp, self._prometheus):
            if reader is not None:
                reader.shutdown(timeout_ms)
