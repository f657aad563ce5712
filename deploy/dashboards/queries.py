"""The panels of a written dashboard, and their queries as Prometheus accepts them. Needs the standard library only."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

__all__ = ["VALUES", "all_panels", "panels", "substitute"]

VALUES: Final[Mapping[str, str]] = {
    "__rate_interval": "1m",
    "__interval": "15s",
    "__range": "1h",
    "job": ".*",
    "instance": ".*",
    "pod": ".*",
    "listener": ".*",
    "upstream": ".*",
    "interval": "15s",
}
"""Default values of variables: everything, and intervals for a scrape every 15 s."""

_VARIABLE: Final = re.compile(r"\$\{(\w+)(?::\w+)?\}|\$([a-zA-Z_]\w*)")


def substitute(query: str, values: Mapping[str, str] = VALUES) -> str:
    """A query with values in place of variables.

    Raises:
        KeyError: a variable has no value.
    """
    return _VARIABLE.sub(lambda found: values[found[1] or found[2]], query)


def all_panels(dashboard: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Every panel of a dashboard in its file (Classic JSON), also those in collapsed rows, without the rows themselves."""
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            yield from panel.get("panels", [])
        else:
            yield panel


def panels(dashboard: Mapping[str, Any], values: Mapping[str, str] = {}) -> list[tuple[str, list[str]]]:
    """Each panel's title, and its queries with values in place of variables.

    Args:
        dashboard: the document of one of the JSON files.
        values: of variables, in addition to ``VALUES`` or instead of them; ``{"__rate_interval": "5s"}`` where a scrape comes every second.
    """
    known = {**VALUES, **values}
    return [(panel["title"], [substitute(target["expr"], known) for target in panel.get("targets", [])]) for panel in all_panels(dashboard)]
