"""The same series by two ways, over OTLP and a collector, and by a scrape: which are there by one way only."""

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

__all__ = ["ONLY_OTLP", "ONLY_SCRAPE", "OTHER_BY_NATURE", "Comparison", "compare"]

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
