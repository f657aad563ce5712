"""One MeterProvider for the whole framegate, in the control process: processors import neither OpenTelemetry nor gRPC."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final

from opentelemetry.sdk.metrics import MeterProvider, ObservableCounter, ObservableUpDownCounter
from opentelemetry.sdk.metrics.export import MetricReader
from opentelemetry.sdk.resources import OTELResourceDetector, Resource

from framegate.control.errors import StartError
from framegate.control.status import Attributes
from framegate.control.steering.state import State
from framegate.control.telemetry.container import Container
from framegate.control.telemetry.environment import Settings, judge
from framegate.control.telemetry.exporters import Account
from framegate.control.telemetry.fold import Fold, Source
from framegate.control.telemetry.instruments import ProcessMetrics, observe_fold, observe_processes
from framegate.control.telemetry.readers import OtlpReader, PrometheusReader
from framegate.proxy.cells.metrics import CERTIFICATE
from framegate.proxy.cells.standard_metrics import CALLS, RPC_STATUS
from framegate.proxy.config.model import ProxyConfig

__all__ = ["Telemetry", "start"]

_SERVICE: Final = "framegate"
_CARDINALITY: Final[dict[type, int]] = {ObservableCounter: 50_000, ObservableUpDownCounter: 50_000}
"""Data points of one metric. All attributes come from closed lists and the configured names, so this bounds nothing that could grow."""


class Telemetry:
    """Running metrics.

    Attributes:
        settings: from the file and the environment.
        resource: identifies framegate.
        account: counts exports.
        prometheus_address: ``host:port`` with the port bound, or None.
    """

    def __init__(
        self, provider: MeterProvider, readers: Sequence[MetricReader], version: str, settings: Settings, resource: Resource, account: Account
    ) -> None:
        self.settings = settings
        self.resource = resource
        self.account = account
        self.prometheus_address: str | None = next((reader.address for reader in readers if isinstance(reader, PrometheusReader)), None)
        self._readers = readers
        meter = provider.get_meter(_SERVICE, version)
        self._calls = meter.create_histogram(CALLS.name, CALLS.unit, CALLS.description, explicit_bucket_boundaries_advisory=CALLS.bounds)

    def record_call(self, method: str, code: str, seconds: float) -> None:
        """Count one call of the control plane: ``package.Service/Method``, the code's name, its duration."""
        attributes = {"rpc.system.name": "grpc", "rpc.method": method, RPC_STATUS: code}
        if code != "OK":
            attributes["error.type"] = code
        self._calls.record(seconds, attributes)

    async def stop(self, timeout_ms: int = 2_000) -> None:
        """Export once more and end; call it while the cells can still be read. A collector that does not answer gets ``timeout_ms``."""
        await asyncio.to_thread(_shut_down, self._readers, timeout_ms)


def _shut_down(readers: Sequence[MetricReader], timeout_ms: int) -> None:
    for reader in readers:
        reader.shutdown(timeout_ms)


def start(plane: State, config: ProxyConfig, certificate_ends: Mapping[str, float]) -> Telemetry | None:
    """Start to export metrics.

    Args:
        plane: the source of the values.
        config: where they go.
        certificate_ends: when each served certificate expires, by its use (``framegate.control.rotation.tls_stores``); it changes.

    Returns:
        None when nothing is to be exported, or OTEL_SDK_DISABLED is true.

    Raises:
        StartError: variables of the environment cannot be used, an extra is not installed, certificates for a collector cannot be used, or the
            Prometheus address cannot be bound.
    """
    settings = judge(config.telemetry)
    if not settings.wanted:
        return None
    logging.getLogger("opentelemetry").setLevel(settings.log_level)
    account = Account()
    processes = ProcessMetrics(plane)
    container = Container(lambda: sum(value for _, value in processes.read("process.memory.usage")))
    sources: list[Source] = [account.measurements, lambda: _certificates(certificate_ends), container.measurements]
    fold = Fold(plane, sources)
    readers: list[MetricReader] = []
    try:
        if settings.metrics is not None:
            readers.append(OtlpReader(plane, fold, settings.metrics, settings.interval_ms, account, _CARDINALITY))
        if settings.prometheus is not None:
            scraped = PrometheusReader(plane, fold, settings.prometheus, _CARDINALITY)
            readers.append(scraped)
            sources.append(scraped.measurements)
    except (ImportError, StartError) as error:
        _shut_down(readers, 0)
        if isinstance(error, StartError):
            raise
        extra = "otlp" if settings.metrics is not None and not readers else "prometheus"
        text = f"telemetry.{extra} needs {error.name}, which is not installed: pip install 'framegate[{extra}]'"
        raise StartError(text, reason="EXTRA_MISSING", extra=extra) from error
    ours = {"service.name": _SERVICE, "service.version": plane.build.version, "service.instance.id": plane.config.node}
    resource = Resource.create(ours).merge(OTELResourceDetector().detect())  # the environment's attributes win
    provider = MeterProvider(readers, resource, shutdown_on_exit=False)
    meter = provider.get_meter(_SERVICE, plane.build.version)
    observe_fold(meter, fold)
    observe_processes(meter, processes)
    return Telemetry(provider, readers, plane.build.version, settings, resource, account)


def _certificates(ends: Mapping[str, float]) -> Mapping[tuple[str, Attributes], float]:
    return {("framegate.tls.certificate.not_after", ((CERTIFICATE, use),)): end for use, end in list(ends.items())}
