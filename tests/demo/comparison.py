"""What is compared: each panel in a scenario with the same panel in calm, and the series that came over OTLP with those of a scrape."""

import dataclasses
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.demo.panels import Dashboard, Seen

__all__ = ["ONLY_OTLP", "ONLY_SCRAPE", "OTHER_BY_NATURE", "Comparison", "compare", "state", "write"]

_ENOUGH: Final = 1.5
"""A panel has changed when its largest value is so many times that of the calm, or there are other series."""


def state(calm: Seen, now: Seen) -> str:
    """How a panel differs from what it showed in calm: ``changed``, ``same``, ``empty`` or ``failed``."""
    if now.fault is not None:
        return "failed"
    if now.empty:
        return "empty"
    before, after = _peaks(calm), _peaks(now)
    if after.keys() - before.keys():
        return "changed"
    return "changed" if any(value > _ENOUGH * before[key] + 1e-9 for key, value in after.items()) else "same"


def _peaks(seen: Seen) -> dict[tuple[tuple[str, str], ...], float]:
    """The largest value of each series."""
    found = {}
    for answer in seen.answers:
        for series in answer["data"]["result"]:
            points = series.get("values") or [series["value"]]
            values = [float(value) for _, value in points if not math.isnan(float(value))]
            if values:
                found[tuple(sorted(series["metric"].items()))] = max(values)
    return found


def write(folder: Path, dashboards: Sequence[Dashboard], phases: Mapping[str, Mapping[str, Mapping[int, Seen]]], heads: Mapping[str, Any]) -> None:
    """Write ``panels.json`` and ``panels.md``.

    Args:
        folder: made when it is not there.
        dashboards: in order.
        phases: by name, ``calm`` first: what was seen, by dashboard and panel.
        heads: more that the JSON has, beside the rows.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {
            "dashboard": board.slug,
            "panel": panel.title,
            "calm": "failed" if calm.fault else ("empty" if calm.empty else "data"),
            **{name: state(calm, seen[board.slug][panel.id]) for name, seen in phases.items() if name != "calm"},
        }
        for board in dashboards
        for panel in board.panels
        for calm in [phases["calm"][board.slug][panel.id]]
    ]
    (folder / "panels.json").write_text(json.dumps({**heads, "panels": rows}, indent=1) + "\n")
    names = list(phases)
    lines = ["| dashboard | panel | " + " | ".join(names) + " |", "|---" * (2 + len(names)) + "|"]
    lines += ["| " + " | ".join([str(row["dashboard"]), str(row["panel"]), *(str(row[name]) for name in names)]) + " |" for row in rows]
    (folder / "panels.md").write_text("\n".join(lines) + "\n")


OTHER_BY_NATURE: Final = frozenset(
    {
        "job",  # the resource's service.name, or what Prometheus' configuration says
        "instance",  # the resource's service.instance.id, or the address that was scraped
        "otel_scope_name",  # the collector says which instrumentation it was
        "otel_scope_version",
        "otel_scope_schema_url",
        "host_name",  # of the resource: the collector makes labels of it, a scrape has it in target_info
        "os_type",
        "process_pid",
        "process_runtime_name",
        "process_runtime_version",
        "service_name",
        "service_version",
        "service_instance_id",
        "telemetry_sdk_language",
        "telemetry_sdk_name",
        "telemetry_sdk_version",
    }
)
"""Labels that differ by nature, and are left out of the comparison. A bound (``le``) is compared as the number that it is: 1 and 1.0 are the same."""
ONLY_SCRAPE: Final = ("scrape_", "up", "python_")
"""Names, or how they begin, that Prometheus adds to a scrape, or that tell of a scrape itself."""
ONLY_OTLP: Final = ("otelcol_", "target_info", "framegate_pipeline_")
"""The same of the collector, and of the Spark job, which nobody scrapes."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How many series there are by both ways, and which by one only, as ``name{labels}``; ``missing``: names of metrics by one way only."""

    both: int
    only_otlp: tuple[str, ...]
    only_scrape: tuple[str, ...]

    @property
    def equal(self) -> bool:
        """Whether both ways have the same series."""
        return not self.only_otlp and not self.only_scrape


def compare(otlp: Iterable[Mapping[str, str]], scraped: Iterable[Mapping[str, str]], nodes: Mapping[str, str]) -> Comparison:
    """Compare label sets, with names and nodes and without the labels that differ by nature.

    Args:
        otlp: the series that came by the collector.
        scraped: those of scrapes.
        nodes: the node by the address that was scraped.
    """
    left = _texts(otlp, ONLY_OTLP + ONLY_SCRAPE, nodes)
    right = _texts(scraped, ONLY_OTLP + ONLY_SCRAPE, nodes)
    return Comparison(
        both=len(left.keys() & right.keys()),
        only_otlp=tuple(sorted(left.keys() - right.keys())),
        only_scrape=tuple(sorted(right.keys() - left.keys())),
    )


def _texts(series: Iterable[Mapping[str, str]], besides: tuple[str, ...], nodes: Mapping[str, str]) -> dict[str, int]:
    found: dict[str, int] = defaultdict(int)
    for labels in series:
        name = labels["__name__"]
        if not name.startswith(besides):
            node = nodes.get(labels.get("instance", ""), labels.get("instance", ""))
            kept = {key: value for key, value in sorted(labels.items()) if key != "__name__" and key not in OTHER_BY_NATURE}
            if "le" in kept:
                kept["le"] = f"{float(kept['le']):g}"
            rest = ", ".join(f'{key}="{value}"' for key, value in kept.items())
            found[f"{node}: {name}{{{rest}}}"] += 1
    return found
