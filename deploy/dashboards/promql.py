"""Queries as they are written here: PromQL with two signs, so that dashboards and rules are made from the same text.

``{@}`` and ``{@, framegate_side="downstream"}`` are selectors: a dashboard puts its variables there, a rule nothing. ``{@l}`` is the same for a
metric that has the listener as a label. ``[@]`` is the range of a rate: what Grafana says it is, or the rule's.
"""

import re
from typing import Final

__all__ = ["WHO", "either", "for_dashboard", "for_rule", "grown", "per_second", "quantile", "share_slower", "total"]

WHO: Final = "job, instance, pod"
"""The labels that say which framegate it is: ``instance`` is a scrape's address, or by way of a collector the node; ``pod`` is Kubernetes'."""

_NODE: Final = 'job=~"$job", instance=~"$node", pod=~"$pod"'
_LISTENER: Final = 'framegate_listener=~"$listener"'
_SELECTOR: Final = re.compile(r"\{@(l?)(?:, )?([^}]*)\}")


def for_dashboard(query: str) -> str:
    """With the dashboard's variables, over the interval that Grafana finds right."""

    def selector(found: re.Match[str]) -> str:
        return "{" + ", ".join(part for part in (_NODE, _LISTENER if found[1] else "", found[2]) if part) + "}"

    return _SELECTOR.sub(selector, query).replace("[@]", "[$__rate_interval]").replace("offset @", "offset $__rate_interval")


def for_rule(query: str, window: str) -> str:
    """Of everything that is monitored, over ``window``, a duration as Prometheus writes it."""

    def selector(found: re.Match[str]) -> str:
        return "{" + found[2] + "}" if found[2] else ""

    return _SELECTOR.sub(selector, query).replace("[@]", f"[{window}]").replace("offset @", f"offset {window}")


def per_second(metric: str, by: str = "") -> str:
    """The rate of a counter, summed over everything but ``by``."""
    return f"sum by ({by}) (rate({metric}[@]))" if by else f"sum(rate({metric}[@]))"


def total(metric: str, by: str = "") -> str:
    """The sum of a gauge over everything but ``by``."""
    return f"sum by ({by}) ({metric})" if by else f"sum({metric})"


def quantile(rank: float, histogram: str, labels: str = "{@}", by: str = "") -> str:
    """The value below which the share ``rank`` of what the histogram has seen lies."""
    return f"histogram_quantile({rank}, sum by ({', '.join(('le', by)) if by else 'le'}) (rate({histogram}_bucket{labels}[@])))"


def share_slower(bound: str, histogram: str, labels: str, by: str) -> tuple[str, str]:
    """How many took longer than ``bound`` seconds, one of the histogram's bounds, and how many there were; both per second.

    A scrape may write the bound 1.0 and a collector 1.
    """
    le = bound.replace(".", r"\\.") if "." in bound else rf"{bound}(\\.0)?"
    every = per_second(f"{histogram}_count{labels}", by)
    quick = per_second(histogram + "_bucket" + labels.removesuffix("}") + f', le=~"{le}"' + "}", by)
    return f"({every} - {quick})", every


def either(name: str, unit: str, labels: str = "{@}") -> str:
    """A gauge whose unit some collectors put behind its name, and others, and framegate's own scrape, do not."""
    return labels.removesuffix("}") + f', __name__=~"{name}(_{unit})?"' + "}"


def grown(counter: str, by: str) -> str:
    """By how much a counter grew, where it did.

    A series that begins with its first event has grown by what it shows: ``increase`` sees nothing before the second.
    """
    grew = f"sum by ({by}) (increase({counter}[@])) > 0"
    return f"({grew} or sum by ({by}) ({counter} unless {counter} offset @) > 0)"
