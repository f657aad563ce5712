"""Part `cpu`: processor time per echoed frame, throughput, and latency at half load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import plots
import report
from measure import Round
from shapes import Load
from stage import Stage, in_turn

__all__ = ["Rounds", "plot", "run"]

LARGE = 1 << 20
ROUNDS_OF_LARGE = 7
LATENCY_ROUNDS = 3


@dataclass(slots=True)
class Rounds:
    """Every round so far."""

    rows: list[Round] = field(default_factory=list)

    def summaries(self) -> dict[tuple[str, str, str], report.Summary]:
        """Of the closed loop."""
        return report.summarize([row for row in self.rows if row.rate == 0])


def run(stage: Stage, loads: Sequence[Load], rounds: Rounds, *, latency: bool) -> None:
    """Every load in turn; a round that is done is kept, whatever happens to the next."""
    for load in loads:
        count = max(stage.rounds, ROUNDS_OF_LARGE) if load.shape.size >= LARGE and stage.rounds > LATENCY_ROUNDS else stage.rounds
        with stage.all_started(load) as candidates:
            rows = in_turn(candidates, count, lambda candidate, number, load=load: stage.generator.run(candidate, load, number))  # type: ignore[misc]
            rounds.rows += rows
            summaries = report.summarize(rows)
            report.show_throughput(stage.console, load, summaries)
            if latency and candidates and load.protocol != "tls-both":
                rate = 0.5 * min(row.frames_per_second for row in summaries.values())
                rows = in_turn(
                    candidates,
                    min(stage.rounds, LATENCY_ROUNDS),
                    lambda candidate, number, load=load, rate=rate: stage.generator.run(candidate, load, number, rate),  # type: ignore[misc]
                )
                rounds.rows += rows
                report.show_latency(stage.console, load, rows)


def plot(path: Path, loads: Sequence[Load], rounds: Rounds, facts: dict[str, object]) -> None:
    """The picture of it."""
    subtitle = f"{str(facts['date'])[:10]} · {facts['cpu']} · {facts['cores']} cores · Linux {facts['kernel']}; whiskers: cheapest and dearest round"
    plots.save(path, loads, rounds.summaries(), subtitle)
