"""Queries for dashboards and rules, written in PromQL with placeholders.

``{@}`` and ``{@, framegate_side="downstream"}`` are selectors: for a dashboard they get its variables, for a rule nothing. ``{@l}`` is the same for a
metric with the listener as a label. ``[@]`` is the range of a rate: Grafana's, or the rule's.
"""

import re
from typing import Final

__all__ = ["WHO", "either", "for_dashboard", "for_rule", "grown", "method", "per_second", "quantile", "seen", "share_slower", "total"]

WHO: Final = "job, instance, pod"
"""The labels that identify a framegate: ``instance`` is a scrape's address, or the node if a collector exports it; ``pod`` is Kubernetes'."""

_NODE: Final = 'job=~"$job", instance=~"$node", pod=~"$pod"'
_LISTENER: Final = 'framegate_listener=~"$listener"'
_SELECTOR: Final = re.compile(r"\{@(l?)(?:, )?([^}]*)\}")


def for_dashboard(query: str) -> str:
    """The query with the dashboard's variables, over Grafana's interval."""

    def selector(found: re.Match[str]) -> str:
        return "{" + ", ".join(part for part in (_NODE, _LISTENER if found[1] else "", found[2]) if part) + "}"

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


def share_slower(bound: str, histogram: str, labels: str, by: str) -> tuple[str, str]:
    """Queries for the number of observations above ``bound`` seconds, one of the histogram's bounds, and for all; both per second.

    The bound is 1.0 in a scrape, and may be 1 if a collector exports it.
    """
    le = bound.replace(".", r"\\.") if "." in bound else rf"{bound}(\\.0)?"
    every = per_second(f"{histogram}_count{labels}", by)
    quick = per_second(histogram + "_bucket" + labels.removesuffix("}") + f', le=~"{le}"' + "}", by)
    return f"({every} - {quick})", every


def either(name: str, unit: str, labels: str = "{@}") -> str:
    """A gauge, with or without its unit at the end of its name: collectors differ."""
    return labels.removesuffix("}") + f', __name__=~"{name}(_{unit})?"' + "}"


def grown(counter: str, by: str) -> str:
    """By how much a counter grew, if it did.

    A series that begins with its first event has grown by its first value, which ``increase`` does not count.
    """
    grew = f"sum by ({by}) (increase({counter}[@])) > 0"
    return f"({grew} or sum by ({by}) ({counter} unless {counter} offset @) > 0)"
