"""Observable instruments over the fold: a callback for each counter and gauge of ``framegate.proxy.cells.METRICS``."""

from collections.abc import Callable, Iterable
from typing import Final

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from framegate.control.telemetry.fold import LARGEST, Fold, names_event
from framegate.control.telemetry.process import ProcessMetrics
from framegate.proxy.cells import METRICS, Metric
from framegate.proxy.cells.standard_metrics import PROCESS_METRICS

__all__ = ["ALWAYS", "PLAIN_GAUGES", "Callback", "observe_fold", "observe_processes"]

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
ALWAYS: Final = frozenset({"framegate.connection.rejected", "framegate.frame.rejected", "framegate.handler.requests", "framegate.tap.dropped"})
"""Counters that are exported while they are 0, too: an alert on their rate must see the first event, and a rate needs a value before it."""


def observe_fold(meter: Meter, fold: Fold) -> None:
    """Create the instruments of every metric of ``framegate.proxy.cells.METRICS`` that is not a histogram."""
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
    sparse = metric.kind == "counter" and metric.name not in ALWAYS

    def read(options: CallbackOptions) -> Iterable[Observation]:
        points = fold.now().points.get(metric.name, {})
        return [Observation(value, dict(at)) for at, value in points.items() if value or not (sparse and names_event(at))]

    return read


def observe_processes(meter: Meter, processes: ProcessMetrics) -> None:
    """Create the instruments of our processes."""
    for metric in PROCESS_METRICS:
        _create(meter, metric, _process_callback(processes, metric.name))


def _process_callback(processes: ProcessMetrics, name: str) -> Callback:
    def read(options: CallbackOptions) -> Iterable[Observation]:
        return [Observation(value, attributes) for attributes, value in processes.read(name)]

    return read
