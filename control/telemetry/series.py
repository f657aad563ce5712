"""Which series are exported while they are 0: few, and all of which an alert needs the first event.

``rate()`` and ``increase()`` do not see the first value of a series. So a counter begins with 0 at the start if the rate of its events is in a
problem (``steering.alerts``), and therefore in an alert and in the first panel. The same is true of a histogram whose observations are counted
there. Other histograms, and counters with an attribute that names one of many possible events, begin with their first event.

Events that are not expected of a listener or an endpoint, such as failed TLS handshakes where there is no TLS, have no series before the first one.
"""

import itertools
from collections import defaultdict
from typing import Final

from framegate.control.status import Attributes
from framegate.control.steering.alerts import ALERTS
from framegate.control.steering.condition import Series
from framegate.proxy.cells import LISTENER, METRICS, UPSTREAM, Metric
from framegate.proxy.cells.metrics import CAUSE, ERROR_TYPE, MECHANISM, SIDE
from framegate.proxy.config.model import ListenerConfig, ProxyConfig, UpstreamConfig

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
)  # Attributes that name one of many possible events, most of which never happen
LATE: Final = frozenset({"framegate.kafka.response.errors", "framegate.kafka.request.refused", "framegate.upstream.connection.closed"})
"""Counters with many possible events, of which a problem needs many: it is the same without the first one."""


def _rates() -> dict[str, list[Series]]:
    """What rates of events read, by metric. A share of slow observations (``above``) needs no 0: all of them begin together with the slow ones."""
    parts = [part for alert in ALERTS for problem in alert.problems for part in problem.condition.parts if part.function == "rate"]
    shares = LATE | {part.series.metric for part in parts if part.series.above}
    found: defaultdict[str, list[Series]] = defaultdict(list)
    for part in parts:
        if part.series.metric not in shares:
            found[part.series.metric].append(part.series)
    return found


_RATES: Final = _rates()


def is_shown_at_zero(metric: Metric, attributes: Attributes, config: ProxyConfig) -> bool:
    """Whether a series is exported while it is 0."""
    names_event = any(key in EVENTS for key, _ in attributes)
    shown = (metric.kind == "gauge" and metric.name != "framegate.kafka.request.waiting") or (metric.kind == "counter" and not names_event)
    return (shown or any(series.matches(attributes) for series in _RATES.get(metric.name, ()))) and not _is_missing(metric, attributes, config)


def _is_missing(metric: Metric, attributes: Attributes, config: ProxyConfig) -> bool:
    """Whether a series is of a part that the configuration does not have: the tap, handlers, a SASL mechanism of a listener, the cause of an end."""
    if metric.name.startswith(("framegate.tap.", "framegate.queue.")):
        return config.tap is None
    if metric.name.startswith("framegate.handler."):
        return all(listener.handler is None for listener in config.listeners)
    at = dict(attributes)
    listener = next((item for item in config.listeners if item.name == at.get(LISTENER)), None)
    if metric.name == "framegate.connection.closed":
        return listener is None or (at[CAUSE], at[SIDE]) not in _ends(listener)
    if metric.name == "framegate.upstream.connect.duration":
        upstream = next((item for item in config.upstreams if item.name == at.get(UPSTREAM)), None)
        return upstream is None or at.get(ERROR_TYPE, "") not in _connects(upstream)
    if MECHANISM not in metric.keys or LISTENER not in metric.keys:
        return False
    return listener is None or listener.sasl is None or at.get(MECHANISM, "") not in ("", *listener.sasl.mechanisms)


def _ends(listener: ListenerConfig) -> set[tuple[str, str]]:
    """The causes for which connections of a listener are expected to end, with the side that fails."""
    causes = {("wrong_protocol", "downstream"), ("no_data", "downstream"), ("limit", "internal")}
    if listener.upstream is not None:
        causes |= {(f"upstream_{cause}", "upstream") for cause in ("refused", "timeout", "closed")}
        causes |= {("peer_reset", "upstream"), ("wrong_protocol", "upstream")}
    if listener.tls is not None:
        causes |= {("tls_failed", "downstream")}
    if listener.tls is not None or listener.sasl is not None:
        causes |= {("auth_failed", "downstream"), ("handshake_timeout", "downstream")}
    return causes | ({("handler_failed", "internal")} if listener.handler is not None else set())


def _connects(upstream: UpstreamConfig) -> set[str]:
    """How attempts to connect to an endpoint are expected to end."""
    errors = {"", "refused", "timeout", "closed", "resolution"}
    return errors | ({"tls"} if upstream.tls is not None else set()) | ({"authentication"} if upstream.sasl is not None else set())


def zeros_of_listeners(config: ProxyConfig) -> list[tuple[str, Attributes]]:
    """The series of listeners that control counts (``control.meters`` has them from their first event on) and that are exported at the start."""
    found = []
    for metric in METRICS:
        if metric.source == "control" and metric.kind == "counter" and LISTENER in metric.keys:
            lists = [[item.name for item in config.listeners] if key == LISTENER else values for key, values in metric.attributes]
            each = (tuple((key, value) for key, value in zip(metric.keys, values, strict=True) if value) for values in itertools.product(*lists))
            found += [(metric.name, attributes) for attributes in each if is_shown_at_zero(metric, attributes, config)]
    return found
