"""Pushes to an OTLP collector. Needs the extra ``otlp``; import this module late."""

import logging
import time
from typing import Any, Final, cast

from opentelemetry.sdk.metrics import Histogram
from opentelemetry.sdk.metrics.export import AggregationTemporality, MetricExporter, MetricsData, PeriodicExportingMetricReader

from framegate.control.steering.state import State
from framegate.control.telemetry.account import Account
from framegate.control.telemetry.environment import Target
from framegate.control.telemetry.exporters import metric_exporter
from framegate.control.telemetry.fold import Fold
from framegate.control.telemetry.histograms import Injector

__all__ = ["OtlpReader"]

_LET_GO_S: Final = 0.5
"""For an export that was broken off."""
_log = logging.getLogger(__name__)


class OtlpReader(PeriodicExportingMetricReader):
    """A periodic reader whose collections hold the folded histograms, too."""

    def __init__(self, plane: State, fold: Fold, target: Target, interval_ms: int, account: Account, cardinality: dict[type, int]) -> None:
        exporter = metric_exporter(target, account)
        self._fold = fold
        preferred: dict[type, AggregationTemporality] = exporter._preferred_temporality or {}
        self._injector = Injector(plane.build.version, plane.started_ns, preferred.get(Histogram, AggregationTemporality.CUMULATIVE))
        super().__init__(cast(MetricExporter, exporter), interval_ms, cardinality_limits=cardinality)

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """Export once more and end. When the collector hangs, what goes on after ``timeout_millis`` is broken off over gRPC; over HTTP it is left
        to its thread, which does not keep the process.
        """
        super().shutdown(timeout_millis, **kwargs)
        if self._daemon_thread is not None:
            self._daemon_thread.join(_LET_GO_S)

    def _receive_metrics(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> None:
        try:
            data = self._injector.inject(metrics_data, self._fold.end(), time.time_ns())
        except Exception:  # it costs this export; raised on, it would end the thread that exports
            _log.exception("the histograms could not be added; nothing is exported this time")
            return
        super()._receive_metrics(data, timeout_millis, **kwargs)
