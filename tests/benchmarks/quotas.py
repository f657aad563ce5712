"""Part `quotas`: how exactly rates are kept to, and what rates cost that are set and not reached."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import asdict

from candidates import Framegate
from figures import Figure, add
from measure import Round
from shapes import SHAPES, Load, Shape
from stage import Stage, in_turn
from variants import CANDIDATES

__all__ = ["run"]

HEADER = 4
EXACT = 0.05
COST = 1.03
COST_SHAPES = ("100x1", "100x64", "64k")
LIMITED = ("framegate-limited", "framegate-limited-two", "framegate-limited-frames")
LOADS = tuple(Load(shape) for shape in (Shape("1k", 1000, 8, 50), Shape("100x64", 100, 64, 50), Shape("16k", 16 * 1024, 2, 10)))


def run(stage: Stage) -> dict[str, object]:
    """Both; the raw rounds."""
    rows, figures = [], []
    for load in (Load(shape) for shape in SHAPES if shape.name in COST_SHAPES):
        with stage.all_started(load, ("framegate", "framegate-unreached")) as candidates:
            found = in_turn(candidates, stage.rounds, lambda candidate, number, load=load: stage.generator.run(candidate, load, number))  # type: ignore[misc]
        rows += found
        figures.append(_cost(load, found))
    for load in LOADS:
        with stage.on_all_cores().all_started(load, LIMITED) as candidates:
            found = in_turn(candidates, stage.rounds, lambda candidate, number, load=load: stage.generator.run(candidate, load, number))  # type: ignore[misc]
        rows += found
        figures += _exactness(load, found)
    return add({"rounds": [asdict(row) for row in rows]}, figures)


def _cost(load: Load, rows: list[Round]) -> Figure:
    plain, limited = (
        statistics.median(row.cpu_us_per_frame for row in rows if row.candidate == name) for name in ("framegate", "framegate-unreached")
    )
    what = f"{load.title}: rates that are not reached"
    return Figure(what, f"\u2264 {COST} \u00d7 without", limited / plain, "\u00d7", {}, limited <= COST * plain)


def _exactness(load: Load, rows: list[Round]) -> Iterator[Figure]:
    """How far what passed in a round is from the rate, at the worst."""
    for name in LIMITED:
        candidate = CANDIDATES[name]
        assert issubclass(candidate, Framegate), "only framegate has rates"
        ((kind, rate),) = candidate.rates
        unit = 1 if kind == "request_frames_rate" else load.shape.size + HEADER
        off = [abs(row.frames_per_second * unit / rate - 1) for row in rows if row.candidate == name]
        yield Figure(
            f"{load.title}: {name} is off by", f"\u2264 {EXACT:.0%}", max(off), "", {}, max(off) <= EXACT, f"median {statistics.median(off):.2%}"
        )
