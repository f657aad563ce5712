"""Pushes to an OTLP/gRPC collector. Needs the extra ``otlp``; import this module late."""

import logging
import time
from typing import Any, Final

from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import Histogram
from opentelemetry.sdk.metrics.export import AggregationTemporality, MetricsData, PeriodicExportingMetricReader

from control.plane import ControlPlane
from control.telemetry.fold import Fold
from control.telemetry.histograms import Injector
from proxy.config.model import OtlpConfig

__all__ = ["OtlpReader"]

_MAX_POINTS: Final = 4_000
"""Data points in one request: about 1 MB, below the 4 MB that gRPC servers take."""

_log = logging.getLogger(__name__)


class OtlpReader(PeriodicExportingMetricReader):
    """A periodic reader whose collections hold the folded histograms, too."""

    def __init__(self, plane: ControlPlane, fold: Fold, config: OtlpConfig, cardinality: dict[type, int]) -> None:
        exporter = OTLPMetricExporter(endpoint=config.endpoint, max_export_batch_size=_MAX_POINTS)
        preferred = exporter._preferred_temporality or {}
        self._fold = fold
        self._injector = Injector(plane.build.version, plane.started_ns, preferred.get(Histogram, AggregationTemporality.CUMULATIVE))
        super().__init__(exporter, export_interval_millis=config.interval_ms, cardinality_limits=cardinality)

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """Export once more and end. When the collector is dead, what goes on after ``timeout_millis`` has ended on return, too."""
        super().shutdown(timeout_millis, **kwargs)
        if self._daemon_thread is not None:
            self._daemon_thread.join(timeout_millis / 1000)

    def _receive_metrics(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> None:
        try:
            data = self._injector.inject(metrics_data, self._fold.end(), time.time_ns())
        except Exception:  # it costs this export; raised on, it would end the thread that exports
            _log.exception("the histograms could not be added; nothing is exported this time")
            return
        super()._receive_metrics(data, timeout_millis, **kwargs)
