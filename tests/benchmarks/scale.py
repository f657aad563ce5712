"""Part `scale`: more connections, larger frames, another processor."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict

from measure import Round
from shapes import Load, Shape
from stage import MOST_CONNECTIONS, Stage, in_turn, short, spread

__all__ = ["run"]

CANDIDATES = ("c-relay", "framegate")
CONNECTIONS = (10, 50, 200, 1_000, 4_000, MOST_CONNECTIONS)
GROWTH_FROM = 50
GROWTH_BOUND = 1.2
SIZES = (
    Shape("16", 16, 64, 50),
    Shape("100", 100, 64, 50),
    Shape("1k", 1_000, 64, 50),
    Shape("10k", 10_000, 16, 20),
    Shape("100k", 100_000, 4, 10),
    Shape("1m", 1 << 20, 2, 4),
    Shape("8m", 8 << 20, 1, 4),
    Shape("64m", 64 << 20, 1, 2),
)
PROCESSORS = ("framegate", "framegate-two")


def run(stage: Stage) -> dict[str, object]:
    """All three; the raw rounds."""
    connections = [Shape(f"100x1x{count}", 100, 1, count) for count in CONNECTIONS]
    rounds = {
        "connections": _sweep(stage, connections),
        "sizes": _sweep(stage, SIZES),
        "processors": _processors(stage),
    }
    _show_connections(stage, connections, rounds["connections"])
    _show_sizes(stage, rounds["sizes"])
    return {name: [asdict(row) for row in rows] for name, rows in rounds.items()}


def _names(stage: Stage) -> list[str]:
    return [name for name in CANDIDATES if name in stage.names]


def _sweep(stage: Stage, shapes: Sequence[Shape]) -> list[Round]:
    """The same processes from the first shape to the last; the shapes take turns, too."""
    rows: list[Round] = []
    with stage.all_started(Load(shapes[0]), _names(stage)) as candidates:
        for number in range(min(stage.rounds, 3)):
            for shape in shapes:
                rows += in_turn(candidates, 1, lambda candidate, _, shape=shape, number=number: stage.generator.run(candidate, Load(shape), number))  # type: ignore[misc]
    return rows


def _costs(rows: Sequence[Round], candidate: str, shape: str) -> list[float]:
    return [row.cpu_us_per_frame for row in rows if (row.candidate, row.shape) == (candidate, shape)]


def _show_connections(stage: Stage, shapes: Sequence[Shape], rows: Sequence[Round]) -> None:
    names = list(dict.fromkeys(row.candidate for row in rows))
    base = {name: statistics.median(_costs(rows, name, f"100x1x{GROWTH_FROM}")) for name in names}
    lines = []
    for shape in shapes:
        line = [f"{shape.connections:,}"]
        for name in names:
            costs = _costs(rows, name, shape.name)
            line += [*spread(costs), f"{statistics.median(costs) / base[name]:.2f}"]
        lines.append(line)
    columns = ["connections", *(f"{name} {word}" for name in names for word in ("CPU µs/frame", "low – high", f"÷ at {GROWTH_FROM}"))]
    stage.table("100 B, 1 in flight: more and more connections", columns, lines)
    if "framegate" in base:
        growth = statistics.median(_costs(rows, "framegate", shapes[-1].name)) / base["framegate"]
        judged = "within" if growth <= GROWTH_BOUND else "ABOVE"
        stage.say(f"from {GROWTH_FROM} to {shapes[-1].connections:,} connections: framegate {growth:.2f} ×, bound {GROWTH_BOUND}: {judged}")


def _show_sizes(stage: Stage, rows: Sequence[Round]) -> None:
    names = list(dict.fromkeys(row.candidate for row in rows))
    lines = []
    for shape in SIZES:
        line = [shape.title]
        for name in names:
            mine = [row for row in rows if (row.candidate, row.shape) == (name, shape.name)]
            median = statistics.median(row.cpu_us_per_frame for row in mine)
            speed = statistics.median(row.frames_per_second for row in mine) * (shape.size + 4) / 1e6
            line += [short(median), short(median * 1000 / (shape.size + 4)), f"{speed:,.0f}"]
        lines.append(line)
    stage.table("frame sizes", ["frames", *(f"{name} {word}" for name in names for word in ("µs/frame", "ns/byte", "MB/s"))], lines)


def _processors(stage: Stage) -> list[Round]:
    """One processor and two, on the same cores."""
    wide = stage.on_all_cores()
    load = Load(Shape("100x1", 100, 1, 50))
    with wide.all_started(load, PROCESSORS) as candidates:
        rows = in_turn(candidates, stage.rounds, lambda candidate, number: wide.generator.run(candidate, load, number))
    cores = len(wide.place.cores)
    shared = "" if wide.generator.core not in wide.place.cores else ", which generator and echo share: two processors get what these leave"
    lines = []
    for name in PROCESSORS:
        mine = [row for row in rows if row.candidate == name]
        speed = statistics.median(row.frames_per_second for row in mine)
        busy = statistics.median(row.busy for row in mine)
        lines.append((name, *spread([row.cpu_us_per_frame for row in mine]), f"{speed:,.0f}", f"{busy:.2f}", f"{speed / busy:,.0f}"))
    columns = ("candidate", "CPU µs/frame", "low – high", "frames/s", "cores used", "frames/s per core")
    stage.table(f"{load.title}: processors, on {cores} cores{shared}", columns, lines)
    return rows
