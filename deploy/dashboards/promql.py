"""Queries for dashboards and rules, written in PromQL with placeholders.

``{@}`` and ``{@, framegate_side="downstream"}`` are selectors: for a dashboard they get its variables, for a rule nothing. ``{@l}`` and ``{@u}`` are
the same for a metric with the listener or the upstream as a label. ``[@]`` is the range of a rate: Grafana's, or the rule's.
"""

import re
from typing import Final

from framegate.control.steering.condition import WINDOW_S, Condition, Over, Pair, Series, Summed
from framegate.control.telemetry.catalogue import label_name, prometheus_name

__all__ = ["WHO", "for_dashboard", "for_rule", "method", "per_second", "quantile", "query_of", "seen", "total"]

WHO: Final = "job, instance, pod"
"""The labels that identify a framegate: ``instance`` is a scrape's address, or the node if a collector exports it; ``pod`` is Kubernetes'."""

_NODE: Final = 'job=~"$job", instance=~"$instance", pod=~"$pod"'
_CHOSEN: Final = {"": "", "l": 'framegate_listener=~"$listener"', "u": 'framegate_upstream=~"$upstream"'}
_SELECTOR: Final = re.compile(r"\{@([lu]?)(?:, )?([^}]*)\}")


def for_dashboard(query: str) -> str:
    """The query with the dashboard's variables, over Grafana's interval."""

    def selector(found: re.Match[str]) -> str:
        return "{" + ", ".join(part for part in (_NODE, _CHOSEN[found[1]], found[2]) if part) + "}"

    return _SELECTOR.sub(selector, query).replace("[@]", "[$__rate_interval]").replace("offset @", "offset $__rate_interval")


def for_rule(query: str, window: str) -> str:
    """The query over everything that is monitored, and over ``window``, a duration of Prometheus."""

    def selector(found: re.Match[str]) -> str:
        return "{" + found[2] + "}" if found[2] else ""

    return _SELECTOR.sub(selector, query).replace("[@]", f"[{window}]").replace("offset @", f"offset {window}")


def per_second(metric: str, by: str = "") -> str:
    """The rate of a counter, summed over all labels except ``by``."""
    return f"sum by ({by}) (rate({metric}[@]))" if by else f"sum(rate({metric}[@]))"


def total(metric: str, by: str = "") -> str:
    """The sum of a gauge over all labels except ``by``."""
    return f"sum by ({by}) ({metric})" if by else f"sum({metric})"


def quantile(rank: float, histogram: str, labels: str = "{@}", by: str = "") -> str:
    """The value below which the share ``rank`` of a histogram's observations is; no value if there are no observations."""
    return f"histogram_quantile({rank}, sum by ({', '.join(('le', by)) if by else 'le'}) (rate({histogram}_bucket{labels}[@]))) >= 0"


def seen(query: str, label: str) -> str:
    """Only the series above 0; if there is none, one series of 0 with the label ``none``."""
    return f'{query} > 0 or on () label_replace(vector(0), "{label}", "none", "", "")'


def method(query: str) -> str:
    """The query with a label ``method``: ``rpc_method`` without its package, which is too long for a legend."""
    return f'label_replace({query}, "method", "$1", "rpc_method", "framegate.control.v1.(.*)")'


def query_of(condition: Condition) -> str:
    """A condition of ``control.steering.condition`` in PromQL. Each part has the labels ``WHO`` beside its own."""
    if isinstance(condition, Over):
        return _over(condition)
    if isinstance(condition, Summed):
        return f"sum by ({_labels(condition.by)}) ({query_of(condition.condition)})"
    assert isinstance(condition, Pair), "there are no others"
    left, right = query_of(condition.left), condition.right
    if not isinstance(right, Condition):
        return f"({left} {condition.operator} {right:.12g})"
    matched = "" if condition.by == right.by else f" on ({_labels(condition.common)})"
    many = " group_left ()" if matched and condition.operator not in ("and", "unless") else ""
    return f"({left} {condition.operator}{matched}{many} {query_of(right)})"


def _labels(by: tuple[str, ...]) -> str:
    return ", ".join((WHO, *map(label_name, by)))


def _over(part: Over) -> str:
    series, by = part.series, _labels(part.series.by)
    metric = series.declared
    name = prometheus_name(metric.name, metric.unit, monotonic=metric.kind == "counter")
    name += "_count" if metric.kind == "histogram" else ""
    at = _selector(series)
    ago = f" offset {part.ago_s // 3600}h" if part.ago_s else ""
    match part.function:
        case "now":
            return f"{series.how} by ({by}) ({name}{at})"
        case "days_left":
            return f"(({series.how} by ({by}) ({name}{at}) - time()) / 86400)"
        case "longest" | "steady":
            return f"{series.how} by ({by}) ({'max' if part.function == 'longest' else 'min'}_over_time({name}{at}[@]))"
        case "slope":
            return f"sum by ({by}) (deriv({name}{at}[@]))"
        case "grown":
            # A series that begins with its first event has grown by its first value, which ``increase`` does not count. One that was there in the
            # hour before has not begun: scrapes or exports failed.
            range_ = "[@]" if part.window_s == WINDOW_S else f"[{part.window_s // 60}m]"
            began = f"{name}{at} unless max_over_time({name}{at}[1h] offset {range_[1:-1]})"
            return f"(sum by ({by}) (increase({name}{at}{range_})) > 0 or sum by ({by}) ({began}) > 0)"
    every = f"sum by ({by}) (rate({name}{at}[@]{ago}))"
    if not series.above:
        return every
    bound = f"{series.above:.12g}"
    le = f'le="{bound}"' if "." in bound else f'le=~"{bound}(.0)?"'  # a scrape has 1.0, collectors have 1
    quick = f"sum by ({by}) (rate({name.removesuffix('_count')}_bucket{at.removesuffix('}')}, {le}}}[@]{ago}))"
    return f"({every} - {quick})"


def _selector(series: Series) -> str:
    keys = series.declared.keys
    chosen = "l" if "framegate.listener" in keys else "u" if "framegate.upstream" in keys else ""
    matchers = [f'{label_name(key.removeprefix("!"))}{_match(key, pattern)}"{pattern}"' for key, pattern in series.where]
    return "{" + ", ".join((f"@{chosen}", *matchers)) + "}"


def _match(key: str, pattern: str) -> str:
    plain = re.fullmatch(r"[\w-]*", pattern) is not None
    return ("!=" if plain else "!~") if key.startswith("!") else "=" if plain else "=~"
