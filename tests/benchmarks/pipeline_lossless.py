"""Part `lossless`: the highest steady rate at which a tap that may drop (the default) drops nothing, on one core."""

import statistics
from dataclasses import asdict

from candidates import Candidate
from figures import Figure, add
from measure import Round
from processes import VoidRoundError
from shapes import SHAPES, Load
from stage import Stage
from tapcost import FILL_BYTES

NAMES = ("64k", "1m")
STEPS = 6
LOWEST = 1 / 16


def run(stage: Stage) -> dict[str, object]:
    """Both shapes; the raw rounds."""
    results: dict[str, object] = {}
    judged: list[Figure] = []
    rows = []
    for load in (Load(shape) for shape in SHAPES if shape.name in NAMES):
        with stage.framegate(load, "framegate-tap") as candidate:
            closed = stage.generator.run(candidate, load, -1)
            while candidate.metric("framegate_tap_io_bytes") < FILL_BYTES:
                closed = stage.generator.run(candidate, load, -1)
            found, rounds = _search(stage, candidate, load, closed.frames_per_second)
        megabytes = [2 * row.frames_per_second * (load.shape.size + 4) / 1e6 for row in found]
        best, rate = statistics.median(megabytes), statistics.median(row.frames_per_second for row in found)
        busy, lost = statistics.median(row.busy for row in found), closed.extra["tap_dropped"] / 2
        extremes = f"{min(megabytes):,.0f} – {max(megabytes):,.0f}"
        rows.append((load.title, f"{rate:,.0f}", f"{best:,.0f}", extremes, f"{busy:.0%}", f"{closed.frames_per_second:,.0f}", f"{lost:.0%}"))
        note = f"as fast as it goes: {closed.frames_per_second:,.0f} echoes/s, {lost:.0%} of the frames lost, each said in a gap"
        judged.append(Figure(f"recorded without loss, {load.title}", "said", best, "MB/s", {}, True, note))
        results[load.title] = {"found": [asdict(row) for row in found], "tried": rounds, "closed": asdict(closed)}
    titles = ("load", "echoes/s", "MB/s recorded", "low – high", "core busy", "closed loop echoes/s", "lost there")
    stage.table("lossless: the highest rate without a loss, proxy and tap on one core (both directions are recorded)", titles, rows)
    return add(results, judged)


def _search(stage: Stage, candidate: Candidate, load: Load, fastest: float) -> tuple[list[Round], list[tuple[float, float]]]:
    """Halve the range between a rate that loses and one that does not, as often as there are rounds; every rate tried and what it lost."""
    found, tried = [], []
    for number in range(stage.rounds):
        low, high = fastest * LOWEST, fastest
        best = None
        for _ in range(STEPS):
            rate = (low + high) / 2
            row = _try(stage, candidate, load, number, rate)
            tried.append((rate, -1.0 if row is None else row.extra["tap_dropped"]))
            if row is not None and row.extra["tap_dropped"] == 0:
                low, best = rate, row
            else:
                high = rate
        if best is None:
            raise RuntimeError(f"{load.title}: frames are lost even at {high:,.0f} echoes/s")
        found.append(best)
    return found, tried


def _try(stage: Stage, candidate: Candidate, load: Load, number: int, rate: float) -> Round | None:
    """A round at a rate; None when so little came back in time that it is none."""
    try:
        return stage.generator.run(candidate, load, number, rate)
    except VoidRoundError as why:
        stage.say(f"[dim]{load.title} at {rate:,.0f} echoes/s: {why}[/dim]")
        return None
