"""Which series are exported while they are 0: few, and all of which an alert needs the first event.

``rate()`` and ``increase()`` do not see the first value of a series. So a counter begins with 0 at the start if the rate of its events is in a
problem (``steering.problems``), and therefore in an alert and in the first panel. The same is true of a histogram whose observations are counted
there. Other histograms, and counters with an attribute that names one of many possible events, begin with their first event.
"""

import itertools
from collections import defaultdict
from typing import Final

from framegate.control.status import Attributes
from framegate.control.steering.condition import Series
from framegate.control.steering.problems import ALERTS
from framegate.proxy.cells import LISTENER, METRICS, Metric
from framegate.proxy.cells.metrics import MECHANISM
from framegate.proxy.config.model import ProxyConfig

__all__ = ["EVENTS", "is_shown_at_zero", "names_event", "zeros_of_listeners"]

EVENTS: Final = frozenset(
    {
        "framegate.cause",
        "framegate.reason",
        "error.type",
        "framegate.kafka.api",
        "framegate.mute.cause",
        "framegate.sasl.mechanism",
        "framegate.task",
        "framegate.place",
        "framegate.handler.action",
        "framegate.file.kind",
        "tls.protocol.version",
        "tls.resumed",
    }
)
"""Attributes that name one of many possible events, most of which never happen."""


def _rates() -> dict[str, list[Series]]:
    """What rates of events read, by metric. A share of slow observations (``above``) needs no 0: all of them begin together with the slow ones."""
    parts = [part for alert in ALERTS for problem in alert.problems for part in problem.condition.parts if part.function == "rate"]
    shares = {part.series.metric for part in parts if part.series.above}
    found: defaultdict[str, list[Series]] = defaultdict(list)
    for part in parts:
        if part.series.metric not in shares:
            found[part.series.metric].append(part.series)
    return found


_RATES: Final = _rates()


def names_event(attributes: Attributes) -> bool:
    """Whether a series counts one of many possible events."""
    return any(key in EVENTS for key, _ in attributes)


def is_shown_at_zero(metric: Metric, attributes: Attributes, config: ProxyConfig) -> bool:
    """Whether a series is exported while it is 0."""
    if _is_missing(metric, attributes, config):
        return False
    if metric.kind == "gauge" or (metric.kind == "counter" and not names_event(attributes)):
        return True
    return any(series.matches(attributes) for series in _RATES.get(metric.name, ()))


def _is_missing(metric: Metric, attributes: Attributes, config: ProxyConfig) -> bool:
    """Whether a series is of a part that the configuration does not have: the tap, handlers, a SASL mechanism of a listener."""
    if metric.name.startswith(("framegate.tap.", "framegate.queue.")):
        return config.tap is None
    if metric.name.startswith("framegate.handler."):
        return all(listener.handler is None for listener in config.listeners)
    if MECHANISM not in metric.keys or LISTENER not in metric.keys:
        return False
    at = dict(attributes)
    enabled = [listener.sasl.mechanisms for listener in config.listeners if listener.sasl is not None and listener.name == at.get(LISTENER)]
    return not enabled or at.get(MECHANISM, "") not in ("", *enabled[0])


def zeros_of_listeners(config: ProxyConfig) -> list[tuple[str, Attributes]]:
    """The series of listeners that control counts (``control.meters`` has them from their first event on) and that are exported at the start."""
    found = []
    for metric in METRICS:
        if metric.source == "control" and metric.kind == "counter" and LISTENER in metric.keys:
            lists = [[item.name for item in config.listeners] if key == LISTENER else values for key, values in metric.attributes]
            each = (tuple((key, value) for key, value in zip(metric.keys, values, strict=True) if value) for values in itertools.product(*lists))
            found += [(metric.name, attributes) for attributes in each if is_shown_at_zero(metric, attributes, config)]
    return found
