"""The names and labels that framegate's metrics have in Prometheus, and which of them a query asks for."""

import functools
import re
from collections.abc import Mapping

from framegate.control.telemetry.catalogue import EXPORTED, label_name, prometheus_name
from framegate.control.telemetry.fold import PER_WORKER, WORKER
from framegate.proxy.cells import PIPELINE_METRICS

ELSEWHERE = frozenset(prometheus_name(metric.name, metric.unit, monotonic=metric.kind == "counter") for metric in PIPELINE_METRICS)
"""What the Spark job exports."""
MONITOR: Mapping[str, set[str]] = {"up": set(), "scrape_duration_seconds": set()}  # what Prometheus itself says of a scrape
TARGET = {"job", "instance", "pod"}
DERIVED = {"problem", "alert", "measure", "where", "kind", "method"}  # Labels that a query makes itself

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_SELECTOR = re.compile(r"(?<![\w:])([a-zA-Z_:][\w:]*)?\{([^}]*)\}")
_MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*("(?:[^"\\]|\\.)*")')
_GROUPING = re.compile(r"\b(?:by|on|without|ignoring|group_left|group_right) \(([^)]*)\)")


@functools.cache
def declared() -> dict[str, set[str]]:
    """The labels of each name that a scrape may give."""
    found: dict[str, set[str]] = {name: set(labels) for name, labels in MONITOR.items()}
    known = {}
    for metric in (*EXPORTED, *PIPELINE_METRICS):
        labels = {label_name(key) for key in metric.keys} | ({label_name(WORKER)} if metric.name in PER_WORKER else set())
        known[prometheus_name(metric.name, metric.unit, monotonic=metric.kind == "counter")] = labels, metric.kind == "histogram"
    for name, (labels, histogram) in known.items():
        if histogram:
            found |= {f"{name}_bucket": labels | {"le"}, f"{name}_sum": labels, f"{name}_count": labels}
        else:
            found[name] = labels
    return found


def _either(pattern: str) -> str:
    """Of a name with a part that may be there, ``one(_two)?``, the one that is declared."""
    name, _, rest = pattern.partition("(")
    longer = name + rest.removesuffix(")?")
    return longer if longer in declared() else name


def asked(query: str) -> tuple[dict[str, set[str]], set[str]]:
    """The metrics that a query selects, each with the labels of its matchers; and the labels that it groups by."""
    selected: dict[str, set[str]] = {}
    for name, inside in _SELECTOR.findall(query):
        matchers = {label: value.strip('"') for label, value in _MATCHER.findall(inside)}
        pattern = matchers.pop("__name__", "")
        selected.setdefault(name or _either(pattern), set()).update(matchers)
    grouped = {label.strip() for labels in _GROUPING.findall(_STRING.sub('""', query)) for label in labels.split(",") if label.strip()}
    return selected, grouped
