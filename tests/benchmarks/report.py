"""The figures of a run: medians and spread, ratios to the best peer, the JSON, and how numbers are written in tables."""

import datetime
import json
import os
import platform
import ssl
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from measure import Round

PEERS = ("haproxy", "nginx", "envoy")


@dataclass(frozen=True, slots=True)
class Summary:
    """One candidate under one load: medians over the rounds; `low` and `high` are the extremes of the cost."""

    candidate: str
    protocol: str
    shape: str
    rounds: int
    cpu_us: float
    low: float
    high: float
    frames_per_second: float
    busy: float
    p50_us: float
    p99_us: float
    p999_us: float


Summaries = Mapping[tuple[str, str, str], Summary]  # by protocol, shape and candidate


def summarize(rounds: Sequence[Round]) -> dict[tuple[str, str, str], Summary]:
    """The summary of each candidate under each load."""
    groups: dict[tuple[str, str, str], list[Round]] = {}
    for row in rounds:
        groups.setdefault((row.protocol, row.shape, row.candidate), []).append(row)
    found = {}
    for (protocol, shape, candidate), rows in groups.items():
        costs = [row.cpu_us_per_frame for row in rows]
        names = ("frames_per_second", "busy", "p50_us", "p99_us", "p999_us")
        medians = {name: statistics.median(float(getattr(row, name)) for row in rows) for name in names}
        cost = statistics.median(costs)
        found[protocol, shape, candidate] = Summary(candidate, protocol, shape, len(rows), cost, min(costs), max(costs), **medians)
    return found


def short(value: float) -> str:
    """Three significant digits."""
    return f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def spread(values: Sequence[float]) -> tuple[str, str]:
    """The median, and the extremes."""
    return short(statistics.median(values)), f"{short(min(values))} – {short(max(values))}"


def medians(rows: Iterable[Any], key: str) -> dict[str, float]:
    """The median of a figure of each candidate's rounds, by the candidate's name."""
    found: dict[str, list[float]] = {}
    for row in rows:
        found.setdefault(row.candidate, []).append(getattr(row, key))
    return {name: statistics.median(values) for name, values in found.items()}


def ratio_to_best(value: float, others: Iterable[float]) -> str:
    """The ratio to the lowest of the others; "" when there is none."""
    best = min(others, default=0.0)
    return f"{value / best:.2f}" if best else ""


def machine(versions: dict[str, str]) -> dict[str, object]:
    """The machine, the software and the settings of a run."""
    model = next((line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), "")
    settings = {name: value for name, value in os.environ.items() if name.startswith(("MALLOC_", "PYTHONMALLOC", "GLIBC_TUNABLES"))}
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cpu": model,
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "openssl": ssl.OPENSSL_VERSION,
        "allocator": settings or "glibc's defaults in this shell; framegate's own are in its configuration of the processors",
        "versions": versions,
    }


def save(path: Path, facts: dict[str, object], rounds: Sequence[Round]) -> None:
    """Write everything, raw rounds included."""
    path.parent.mkdir(parents=True, exist_ok=True)
    summary = [asdict(row) for row in summarize([row for row in rounds if row.rate == 0]).values()]
    path.write_text(json.dumps({**facts, "summary": summary, "rounds": [asdict(row) for row in rounds]}, indent=1) + "\n")
