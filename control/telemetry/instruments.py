"""Observable instruments over the fold: a callback for each counter and gauge of ``proxy.cells.METRICS``."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from control.telemetry.fold import LARGEST, Fold
from control.telemetry.process import PROCESS_METRICS, ProcessMetrics
from proxy.cells import METRICS, Metric

__all__ = ["Callback", "observe_certificates", "observe_fold", "observe_processes", "observe_refused"]

Callback = Callable[[CallbackOptions], Iterable[Observation]]

PLAIN_GAUGES: Final = LARGEST | {"framegate.config.revision", "framegate.tap.lag.time", "framegate.drain.time", "framegate.ready"}
"""Gauges whose sum over attributes means nothing; the others are up-down counters."""


def observe_fold(meter: Meter, fold: Fold) -> None:
    """Create the instruments of every metric that is not a histogram."""
    for metric in METRICS:
        if metric.kind == "counter":
            meter.create_observable_counter(metric.name, [_callback(fold, metric)], metric.unit, metric.description)
        elif metric.kind == "gauge" and metric.name in PLAIN_GAUGES:
            meter.create_observable_gauge(metric.name, [_callback(fold, metric)], metric.unit, metric.description)
        elif metric.kind == "gauge":
            meter.create_observable_up_down_counter(metric.name, [_callback(fold, metric)], metric.unit, metric.description)


def _callback(fold: Fold, metric: Metric) -> Callback:
    def read(options: CallbackOptions) -> Iterable[Observation]:
        return [Observation(value, dict(attributes)) for attributes, value in fold.now().points.get(metric.name, {}).items()]

    return read


def observe_processes(meter: Meter, processes: ProcessMetrics) -> None:
    """Create the instruments of our processes."""
    for name, (kind, unit, description) in PROCESS_METRICS.items():
        create = {
            "counter": meter.create_observable_counter,
            "gauge": meter.create_observable_up_down_counter,
            "age": meter.create_observable_gauge,
        }[kind]
        create(name, [_process_callback(processes, name)], unit, description)


def _process_callback(processes: ProcessMetrics, name: str) -> Callback:
    def read(options: CallbackOptions) -> Iterable[Observation]:
        return [Observation(value, attributes) for attributes, value in processes.read(name)]

    return read


def observe_certificates(meter: Meter, served: Mapping[str, float]) -> None:
    """Create the gauge of when each certificate that is served ends, in seconds since 1970, by what the certificate is for, as it is at each look."""

    def ends(options: CallbackOptions) -> Iterable[Observation]:
        return [Observation(end, {"framegate.certificate": use}) for use, end in list(served.items())]

    meter.create_observable_gauge(
        "framegate.tls.certificate.not_after", [ends], "s", "When a certificate that is served, or the first revocation list, ends, as Unix time."
    )


def observe_refused(meter: Meter, read: Callable[[], int]) -> None:
    """Create the counter of connections to the Prometheus endpoint that got no metrics."""

    def refused(options: CallbackOptions) -> Iterable[Observation]:
        return [Observation(read())]

    text = "Connections to the Prometheus endpoint that asked for nothing in time, or were too many."
    meter.create_observable_counter("framegate.scrape.refused", [refused], "{connection}", text)
