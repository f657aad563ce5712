"""Part `handlers`: frames per second of an echo handler, beside echo servers that people write with asyncio, on all cores."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict

from figures import Figure, add
from measure import Round
from shapes import SHAPES, Load
from stage import Stage, in_turn, short, spread

__all__ = ["run"]

MINE = "framegate-handler"
RIVALS = ("asyncio", "uvloop")
"""What is judged: a server as asyncio's documentation writes one."""
OTHERS = ("asyncio-protocol", "uvloop-protocol")
"""What is shown beside it: the most that such a server can do, which answers a whole read at once."""
SHAPES_OF_HANDLERS = ("100x1", "100x64")


def run(stage: Stage) -> dict[str, object]:
    """Both shapes; the raw rounds, and what is judged."""
    wide = stage.on_all_cores()
    rounds: list[Round] = []
    figures = []
    for load in (Load(shape) for shape in SHAPES if shape.name in SHAPES_OF_HANDLERS):
        with wide.all_started(load, (*RIVALS, *OTHERS, MINE)) as candidates:
            rows = in_turn(candidates, stage.rounds, lambda candidate, number, load=load: wide.generator.run(candidate, load, number))  # type: ignore[misc]
        _show(wide, load, rows)
        figures += _judged(load, rows)
        rounds += rows
    return add({"rounds": [asdict(row) for row in rounds]}, figures)


def _rate(rows: Sequence[Round], name: str) -> float:
    return statistics.median(row.frames_per_second for row in rows if row.candidate == name)


def _show(stage: Stage, load: Load, rows: Sequence[Round]) -> None:
    names = [name for name in (*RIVALS, *OTHERS, MINE) if any(row.candidate == name for row in rows)]
    lines = []
    for name in names:
        mine = [row for row in rows if row.candidate == name]
        middle, extremes = spread([row.frames_per_second for row in mine])
        busy = statistics.median(row.busy for row in mine)
        cost = statistics.median(row.cpu_us_per_frame for row in mine)
        ratio = _rate(rows, MINE) / _rate(rows, name) if MINE in names else 0.0
        times = (statistics.median(row.p50_us for row in mine), statistics.median(row.p99_us for row in mine))
        lines.append((name, middle, extremes, f"{ratio:.2f}", f"{busy:.2f}", short(cost), *(f"{time:,.0f}" for time in times)))
    shared = "" if stage.generator.core not in stage.place.cores else ", which the generator shares"
    title = f"{load.title}: an echo as the user's code, on {len(stage.place.cores)} cores{shared}"
    stage.table(title, ("server", "frames/s", "low – high", "handler ÷ it", "cores used", "CPU µs/frame", "p50 µs", "p99 µs"), lines)


def _judged(load: Load, rows: Sequence[Round]) -> list[Figure]:
    """A rate, turned over, so that lower is better as everywhere in the table of figures."""
    mine = _rate(rows, MINE)
    rivals = {name: _rate(rows, name) for name in RIVALS if any(row.candidate == name for row in rows)}
    best = max(rivals.values(), default=0.0)
    note = f"{mine:,.0f} frames/s; " + ", ".join(f"{name} {rate:,.0f}" for name, rate in rivals.items())
    us = {name: 1e6 / rate for name, rate in rivals.items()}
    return [Figure(f"echo handler, {load.title}", "≥ the frames/s of asyncio and uvloop", 1e6 / mine, "µs", us, mine >= best, note)]
