"""Part `cpu`: processor time per echoed frame, throughput, and latency at half load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import plots
import report
from candidates import Candidate
from driver import VoidRoundError
from measure import Round
from shapes import Load
from stage import Stage, in_turn

__all__ = ["Rounds", "plot", "run"]

LARGE = 1 << 20
ROUNDS_OF_LARGE = 7
LATENCY_ROUNDS = 3
CALIBRATIONS = 6
HALF_LOAD = 0.5


@dataclass(slots=True)
class Rounds:
    """Every round so far."""

    rows: list[Round] = field(default_factory=list)

    def summaries(self) -> dict[tuple[str, str, str], report.Summary]:
        """Of the closed loop."""
        return report.summarize([row for row in self.rows if row.rate == 0])


def run(stage: Stage, loads: Sequence[Load], rounds: Rounds, *, latency: bool) -> None:
    """Every load in turn.

    Raises:
        VoidRoundError: a round of some load was void; the other loads were measured all the same.
    """
    failures = []
    for load in loads:
        try:
            _measure(stage, load, rounds, latency=latency)
        except VoidRoundError as error:
            stage.say(f"{load.title}: VOID: {error}")
            failures.append(f"{load.title}: {error}")
    if failures:
        raise VoidRoundError("; ".join(failures))


def _measure(stage: Stage, load: Load, rounds: Rounds, *, latency: bool) -> None:
    count = max(stage.rounds, ROUNDS_OF_LARGE) if load.shape.size >= LARGE and stage.rounds > LATENCY_ROUNDS else stage.rounds
    with stage.all_started(load) as candidates:
        rows = in_turn(candidates, count, lambda candidate, number: stage.generator.run(candidate, load, number))
        rounds.rows += rows
        summaries = report.summarize(rows)
        report.show_throughput(stage.console, load, summaries)
        if latency and candidates and load.protocol != "tls-both":
            rate = _half_load(stage, load, candidates, summaries)
            rows = in_turn(
                candidates, min(stage.rounds, LATENCY_ROUNDS), lambda candidate, number: stage.generator.run(candidate, load, number, rate)
            )
            rounds.rows += rows
            report.show_latency(stage.console, load, rows)


def _half_load(stage: Stage, load: Load, candidates: Sequence[Candidate], summaries: dict[tuple[str, str, str], report.Summary]) -> float:
    """Frames per second that keep the slowest candidate's core half busy.

    Half of what it did in the closed loop would be too much where that loop keeps several frames in flight: they travel together there, and one by
    one when they fall due one by one, each with its own system calls.
    """
    slowest = min(candidates, key=lambda candidate: summaries[load.protocol, load.shape.name, candidate.name].frames_per_second)
    rate = 0.5 * summaries[load.protocol, load.shape.name, slowest.name].frames_per_second
    for _ in range(CALIBRATIONS):
        try:
            busy = stage.generator.run(slowest, load, 0, rate).busy
        except VoidRoundError:  # so far behind that nothing came back in time
            busy = 1.0
        if busy <= HALF_LOAD + 0.1:
            break
        rate *= HALF_LOAD / busy
    return rate


def plot(path: Path, loads: Sequence[Load], rounds: Rounds, facts: dict[str, object]) -> None:
    """The picture of it."""
    subtitle = f"{str(facts['date'])[:10]} · {facts['cpu']} · {facts['cores']} cores · Linux {facts['kernel']}; whiskers: cheapest and dearest round"
    plots.save(path, loads, rounds.summaries(), subtitle)
