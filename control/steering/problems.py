"""The problems that framegate has now, in words: for ``framegate status``. Conditions and words are those of ``alerts``."""

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from framegate.control.steering.alerts import ALERTS, Problem, Severity
from framegate.control.steering.condition import STEP_S, History, values_of

__all__ = ["FINE", "LIMIT_S", "STEP_S", "Found", "Watch"]

FINE: Final = "Everything is fine"
LIMIT_S: Final = 20.0
"""A sample that takes longer is a fault of the control process."""
FRESH_S: Final = 2.0
"""A sample that is younger is not taken anew for the one who asks."""


@dataclass(frozen=True, slots=True)
class Found:
    """A problem at one place: the alert's severity, the problem, the labels of the place, and how much."""

    severity: Severity
    problem: Problem
    labels: Mapping[str, str]
    value: float

    def __str__(self) -> str:
        command, place = self.problem.command, " ".join(filter(None, self.labels.values()))
        for label, text in self.labels.items():
            command = command.replace(f"{{{label}}}", text)
        value = min(self.value, 1.0) * 100 if self.problem.is_share else self.value
        return f"{self.severity}: {self.problem.words}{f' ({place})' if place else ''}: {value:.3g} {self.problem.measure}; `{command}`"


class Watch:
    """Looks for problems in this framegate, every ``STEP_S`` seconds and when it is asked, also if no metrics are exported."""

    def __init__(self) -> None:
        self._history = History(part for alert in ALERTS for problem in alert.problems for part in problem.condition.parts)
        self._read: Callable[[], Any] | None = None
        self._looked_s = -math.inf

    def begin(self, read: Callable[[], Any]) -> None:
        """``read`` returns a ``telemetry.fold.Folded``. Any thread."""
        self._read = read

    async def look(self) -> None:
        """Take a sample."""
        if self._read is not None:
            read, self._looked_s = self._read, time.monotonic()
            sample = await asyncio.to_thread(lambda: self._history.sample(values_of(read())))  # up to 0.1 s, with many listeners and processors
            self._history.add(self._looked_s, sample)

    async def found(self) -> list[Found]:
        """The problems now, the worst first; one that two alerts have is there once."""
        if time.monotonic() - self._looked_s >= FRESH_S:
            await self.look()
        found: dict[tuple[str, tuple[str, ...]], Found] = {}
        for alert in ALERTS:
            for problem in alert.problems:
                for values, value in sorted(problem.condition.judge(self._history).items()):
                    if not math.isnan(value):
                        one = Found(alert.severity, problem, dict(zip(problem.condition.by, values, strict=True)), value)
                        found.setdefault((problem.words, values), one)
        return list(found.values())
