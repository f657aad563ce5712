"""The figures of a run: medians and spread, ratios to the best peer and to the reference, as a table and as JSON."""

from __future__ import annotations

import datetime
import json
import os
import platform
import ssl
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from measure import Round
from rich.console import Console
from rich.table import Table
from shapes import Load

__all__ = ["Summary", "machine", "save", "show_latency", "show_tap", "show_throughput", "summarize"]

PEERS = ("haproxy", "nginx", "envoy")
REFERENCE = "c-relay"
TAP_FACTOR = 1.3
TAP_US_PER_CHUNK = 1.5


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


def summarize(rounds: Sequence[Round]) -> dict[tuple[str, str, str], Summary]:
    """By protocol, shape and candidate."""
    groups: dict[tuple[str, str, str], list[Round]] = {}
    for row in rounds:
        groups.setdefault((row.protocol, row.shape, row.candidate), []).append(row)
    return {key: _summary(rows) for key, rows in groups.items()}


def _summary(rows: list[Round]) -> Summary:
    def median(name: str) -> float:
        return statistics.median(float(getattr(row, name)) for row in rows)

    costs = [row.cpu_us_per_frame for row in rows]
    first = rows[0]
    times = (median("p50_us"), median("p99_us"), median("p999_us"))
    speed = median("frames_per_second")
    return Summary(
        first.candidate, first.protocol, first.shape, len(rows), statistics.median(costs), min(costs), max(costs), speed, median("busy"), *times
    )


def _ratio(value: float, others: Iterable[float]) -> str:
    best = min(others, default=0.0)
    return f"{value / best:.2f}" if best else ""


def show_throughput(console: Console, load: Load, summaries: dict[tuple[str, str, str], Summary]) -> None:
    """The closed loop: what each candidate costs, at the most it can do."""
    rows = [row for (protocol, shape, _), row in summaries.items() if (protocol, shape) == (load.protocol, load.shape.name)]
    table = Table(title=f"{load.title}: processor time per echoed frame", title_justify="left")
    columns = (
        "candidate",
        "CPU µs/frame",
        "low – high",
        "÷ HAProxy",
        "÷ best peer",
        "÷ C relay",
        "frames/s",
        "MB/s",
        "core busy",
        "p50 µs",
        "p99 µs",
    )
    for name in columns:
        table.add_column(name, justify="left" if name == "candidate" else "right", no_wrap=True)
    cost = {row.candidate: row.cpu_us for row in rows}
    for row in rows:
        ratios = [_ratio(row.cpu_us, [cost[name] for name in names if name in cost]) for names in (("haproxy",), PEERS, (REFERENCE,))]
        megabytes = row.frames_per_second * (load.shape.size + 4) / 1e6
        spread = f"{_short(row.low)} – {_short(row.high)}"
        speed = (f"{row.frames_per_second:,.0f}", f"{megabytes:,.0f}", f"{row.busy:.0%}", f"{row.p50_us:,.0f}", f"{row.p99_us:,.0f}")
        table.add_row(row.candidate, _short(row.cpu_us), spread, *ratios, *speed)
    console.print(table)


def show_latency(console: Console, load: Load, rounds: Sequence[Round]) -> None:
    """The open loop at the rate that keeps the slowest candidate half busy: the same for all."""
    summaries = [row for row in summarize(rounds).values() if (row.protocol, row.shape) == (load.protocol, load.shape.name)]
    if not summaries:
        return
    table = Table(title=f"{load.title}: latency at {summaries[0].frames_per_second:,.0f} frames/s (open loop)", title_justify="left")
    for name in ("candidate", "p50 µs", "p99 µs", "÷ best peer", "p99.9 µs", "CPU µs/frame", "core busy"):
        table.add_column(name, justify="left" if name == "candidate" else "right")
    for row in summaries:
        best = _ratio(row.p99_us, [peer.p99_us for peer in summaries if peer.candidate in PEERS])
        times = (f"{row.p50_us:,.0f}", f"{row.p99_us:,.0f}", best, f"{row.p999_us:,.0f}")
        table.add_row(row.candidate, *times, _short(row.cpu_us), f"{row.busy:.0%}")
    console.print(table)


def show_tap(console: Console, load: Load, rounds: Sequence[Round], floor_ns: float, without: str, tapped: str) -> None:
    """What a tap adds, beside its bound: 1.3 × the floor of writing the bytes, and 1.5 µs for each chunk (a chunk is at most one read)."""
    rows = [row for row in rounds if row.candidate == tapped]
    cost = {name: statistics.median(row.cpu_us_per_frame for row in rounds if row.candidate == name) for name in (without, tapped)}
    extra = {key: statistics.median(row.extra[key] for row in rows) for key in rows[0].extra}
    chunks = min(extra["reads"], 2.0)
    floor_us = floor_ns * extra["tap_bytes"] / 1000
    added, allowed = cost[tapped] - cost[without], TAP_FACTOR * floor_us + TAP_US_PER_CHUNK * chunks
    dropped = statistics.mean(row.extra["tap_dropped"] for row in rows)
    if dropped > 0:
        verdict = f"NOT FULL CAPTURE: {dropped:.3f} of 2 frames per echo were dropped"
    else:
        verdict = f"full capture, {'within' if added <= allowed else 'ABOVE'}: adds {added / allowed:.2f} of what it may"
    console.print(
        f"{load.title}: {tapped} {_short(cost[tapped])} µs/frame, {without} {_short(cost[without])}, may add {_short(allowed)}"
        f" (floor {_short(floor_us)} at {floor_ns:.2f} ns a byte, at most {chunks:.3f} chunks, {extra['tap_bytes']:.0f} B): {verdict}",
        highlight=False,
        soft_wrap=True,
    )


def _short(value: float) -> str:
    return f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 100 else f"{value:.0f}"


def machine(versions: dict[str, str]) -> dict[str, object]:
    """Where and with what a run was made."""
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
    """Everything, raw rounds included."""
    path.parent.mkdir(parents=True, exist_ok=True)
    summary = [asdict(row) for row in summarize([row for row in rounds if row.rate == 0]).values()]
    path.write_text(json.dumps({**facts, "summary": summary, "rounds": [asdict(row) for row in rounds]}, indent=1) + "\n")
