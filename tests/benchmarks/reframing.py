"""Part `reframing`: what it costs that clients and the upstream speak different framings, beside framegate between peers that speak the same."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict

import report
from figures import Figure, add
from measure import Round
from shapes import SHAPES, Load
from stage import Stage, in_turn

__all__ = ["run"]

SAME = "framegate"
OTHER = "framegate-varint"
BOUNDS = {"100x1": None, "100x64": 1.6, "1k": None, "64k": 1.1}
"""By shape; None is shown and not judged."""


def run(stage: Stage) -> dict[str, object]:
    """The shapes in turn; the raw rounds, and what is judged.

    The echo server sends bytes back and knows no framing: each frame is re-framed twice, int32 → varint and varint → int32.
    """
    rounds: list[Round] = []
    figures = []
    for load in (Load(shape) for shape in SHAPES if shape.name in BOUNDS):
        with stage.all_started(load, (SAME, OTHER)) as candidates:
            rows = in_turn(candidates, stage.rounds, lambda candidate, number, load=load: stage.generator.run(candidate, load, number))  # type: ignore[misc]
        report.show_throughput(stage.console, load, report.summarize(rows))
        figures += _judged(load, rows, BOUNDS[load.shape.name])
        rounds += rows
    return add({"rounds": [asdict(row) for row in rounds]}, figures)


def _judged(load: Load, rows: Sequence[Round], bound: float | None) -> list[Figure]:
    """The cost beside that of the same framing; nothing without a bound."""
    if bound is None:
        return []
    cost = {name: statistics.median(row.cpu_us_per_frame for row in rows if row.candidate == name) for name in (SAME, OTHER)}
    ratio = cost[OTHER] / cost[SAME]
    note = f"{cost[OTHER]:.3f} µs/frame re-framed twice, {cost[SAME]:.3f} without"
    return [Figure(f"re-framing, {load.title}", f"≤ {bound} × the same framing", ratio, "×", {}, ratio <= bound, note)]
