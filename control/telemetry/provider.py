"""One MeterProvider for the whole framegate, in the control process: processors import neither OpenTelemetry nor gRPC."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from opentelemetry.sdk.metrics import MeterProvider, ObservableCounter, ObservableUpDownCounter
from opentelemetry.sdk.metrics.export import MetricReader
from opentelemetry.sdk.resources import OTELResourceDetector, Resource

from framegate.control.errors import StartError
from framegate.control.status import Attributes
from framegate.control.steering.state import State
from framegate.control.telemetry.account import Account
from framegate.control.telemetry.environment import Settings, judge
from framegate.control.telemetry.fold import Fold, Source
from framegate.control.telemetry.instruments import observe_fold, observe_processes
from framegate.control.telemetry.process import ProcessMetrics
from framegate.proxy.cells.metrics import CERTIFICATE
from framegate.proxy.cells.standard_metrics import CALLS, RPC_STATUS
from framegate.proxy.config.model import ProxyConfig

if TYPE_CHECKING:
    from framegate.control.telemetry.prometheus import PrometheusReader

__all__ = ["SERVICE", "Telemetry", "start"]

SERVICE: Final = "framegate"
_CARDINALITY: Final[dict[type, int]] = {ObservableCounter: 50_000, ObservableUpDownCounter: 50_000}
"""Data points of one metric. All attributes come from closed lists and the configured names, so this bounds nothing that could grow."""


class Telemetry:
    """What was started.

    Attributes:
        settings: what the file and the environment want.
        resource: who exports.
        account: what became of exports.
        prometheus_address: ``host:port`` with the port bound, or None.
    """

    def __init__(
        self, provider: MeterProvider, readers: Sequence[MetricReader], version: str, settings: Settings, resource: Resource, account: Account
    ) -> None:
        self.settings = settings
        self.resource = resource
        self.account = account
        self.prometheus_address: str | None = None
        self._readers = readers
        meter = provider.get_meter(SERVICE, version)
        self._calls = meter.create_histogram(CALLS.name, CALLS.unit, CALLS.description, explicit_bucket_boundaries_advisory=CALLS.bounds)

    def record_call(self, method: str, code: str, seconds: float) -> None:
        """Count one call of the control plane: ``package.Service/Method``, the code's name, its time."""
        attributes = {"rpc.system.name": "grpc", "rpc.method": method, RPC_STATUS: code}
        if code != "OK":
            attributes["error.type"] = code
        self._calls.record(seconds, attributes)

    async def stop(self, timeout_ms: int = 2_000) -> None:
        """Export once more and end; call it while the cells can still be read. A collector that is dead gets ``timeout_ms``."""
        await asyncio.to_thread(self._shutdown, timeout_ms)

    def _shutdown(self, timeout_ms: int) -> None:
        for reader in self._readers:
            reader.shutdown(timeout_ms)


def start(plane: State, config: ProxyConfig, certificate_ends: Mapping[str, float]) -> Telemetry | None:
    """Export what ``config.telemetry`` says.

    Args:
        plane: where the values come from.
        config: says where they go.
        certificate_ends: when each certificate that is served ends, by what it is for (``framegate.control.rotation.tls_stores``); it changes.

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
    sources: list[Source] = [account.measurements, lambda: _certificates(certificate_ends)]
    fold = Fold(plane, sources)
    readers: list[MetricReader] = []
    prometheus = None
    if settings.metrics is not None:
        try:
            from framegate.control.telemetry.otlp import OtlpReader

            readers.append(OtlpReader(plane, fold, settings.metrics, settings.interval_ms, account, _CARDINALITY))
        except ImportError as error:
            raise _missing("otlp", error) from error
    if settings.prometheus is not None:
        try:
            prometheus = _prometheus(plane, fold, settings.prometheus)
        except StartError:
            for reader in readers:
                reader.shutdown(0)
            raise
        readers.append(prometheus)
        sources.append(prometheus.measurements)
    resource = _resource(plane)
    provider = MeterProvider(readers, resource, shutdown_on_exit=False)
    meter = provider.get_meter(SERVICE, plane.build.version)
    observe_fold(meter, fold)
    observe_processes(meter, ProcessMetrics(plane))
    telemetry = Telemetry(provider, readers, plane.build.version, settings, resource, account)
    telemetry.prometheus_address = None if prometheus is None else prometheus.address
    return telemetry


def _certificates(ends: Mapping[str, float]) -> Mapping[tuple[str, Attributes], float]:
    return {("framegate.tls.certificate.not_after", ((CERTIFICATE, use),)): end for use, end in list(ends.items())}


def _prometheus(plane: State, fold: Fold, address: str) -> "PrometheusReader":
    try:
        from framegate.control.telemetry.prometheus import PrometheusReader
    except ImportError as error:
        raise _missing("prometheus", error) from error
    return PrometheusReader(plane, fold, address, _CARDINALITY)


def _missing(extra: str, error: ImportError) -> StartError:
    text = f"telemetry.{extra} needs {error.name}, which is not installed: pip install 'framegate[{extra}]'"
    return StartError(text, reason="EXTRA_MISSING", extra=extra)


def _resource(plane: State) -> Resource:
    """Who exports: the environment's words win over ours."""
    ours = {"service.name": SERVICE, "service.version": plane.build.version, "service.instance.id": plane.config.node}
    return Resource.create(ours).merge(OTELResourceDetector().detect())
