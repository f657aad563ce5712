"""Observable instruments over the fold: a callback for each counter and gauge of ``proxy.cells.METRICS``."""

from collections.abc import Callable, Iterable
from typing import Final

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from control.telemetry.fold import LARGEST, Fold
from control.telemetry.process import ProcessMetrics
from proxy.cells import METRICS, Metric
from proxy.cells.standard_metrics import PROCESS_METRICS

__all__ = ["PLAIN_GAUGES", "Callback", "observe_fold", "observe_processes"]

Callback = Callable[[CallbackOptions], Iterable[Observation]]

PLAIN_GAUGES: Final = LARGEST | {
    "framegate.config.revision",
    "framegate.drain.time",
    "framegate.ready",
    "framegate.tap.lag.time",
    "framegate.tls.certificate.not_after",
    "process.uptime",
}
"""Gauges whose sum over attributes means nothing; the others are up-down counters."""


def observe_fold(meter: Meter, fold: Fold) -> None:
    """Create the instruments of every metric of ``proxy.cells.METRICS`` that is not a histogram."""
    for metric in METRICS:
        _create(meter, metric, _callback(fold, metric))


def _create(meter: Meter, metric: Metric, callback: Callback) -> None:
    if metric.kind == "counter":
        meter.create_observable_counter(metric.name, [callback], metric.unit, metric.description)
    elif metric.kind == "gauge" and metric.name in PLAIN_GAUGES:
        meter.create_observable_gauge(metric.name, [callback], metric.unit, metric.description)
    elif metric.kind == "gauge":
        meter.create_observable_up_down_counter(metric.name, [callback], metric.unit, metric.description)


def _callback(fold: Fold, metric: Metric) -> Callback:
    def read(options: CallbackOptions) -> Iterable[Observation]:
        return [Observation(value, dict(attributes)) for attributes, value in fold.now().points.get(metric.name, {}).items()]

    return read


def observe_processes(meter: Meter, processes: ProcessMetrics) -> None:
    """Create the instruments of our processes."""
    for metric in PROCESS_METRICS:
        _create(meter, metric, _process_callback(processes, metric.name))


def _process_callback(processes: ProcessMetrics, name: str) -> Callback:
    def read(options: CallbackOptions) -> Iterable[Observation]:
        return [Observation(value, attributes) for attributes, value in processes.read(name)]

    return read
