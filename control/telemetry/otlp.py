"""Pushes to an OTLP collector. Needs the extra ``otlp``; import this module late."""

import logging
import time
from typing import Any

from opentelemetry.sdk.metrics import Histogram
from opentelemetry.sdk.metrics.export import AggregationTemporality, MetricsData, PeriodicExportingMetricReader

from control.plane import ControlPlane
from control.telemetry.account import Account
from control.telemetry.environment import Metrics
from control.telemetry.exporters import metric_exporter
from control.telemetry.fold import Fold
from control.telemetry.histograms import Injector

__all__ = ["OtlpReader"]

_log = logging.getLogger(__name__)


class OtlpReader(PeriodicExportingMetricReader):
    """A periodic reader whose collections hold the folded histograms, too."""

    def __init__(self, plane: ControlPlane, fold: Fold, metrics: Metrics, account: Account, cardinality: dict[type, int]) -> None:
        exporter = metric_exporter(metrics, account)
        self._fold = fold
        self._injector = Injector(plane.build.version, plane.started_ns, exporter.temporality.get(Histogram, AggregationTemporality.CUMULATIVE))
        # The time-out of a collection, which is none of the export's: see ``transport``.
        super().__init__(exporter, metrics.interval_ms, export_timeout_millis=30_000, cardinality_limits=cardinality)

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
