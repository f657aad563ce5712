"""The problems that framegate has now, in words: for ``framegate status``. Conditions and words are those of ``alerts``."""

import asyncio
import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from framegate.control.steering.alerts import ALERTS, Problem, Severity
from framegate.control.steering.condition import STEP_S, History, values_of
from framegate.proxy.cells.metrics import SERVER_ADDRESS, SERVER_PORT

__all__ = ["FINE", "LIMIT_S", "STEP_S", "Found", "Watch"]

FINE: Final = "Everything is fine"
LIMIT_S: Final = 20.0  # a sample that takes longer is a fault of the control process
MOST_PLACES: Final = 8  # a problem at more places is told once
_SECONDS: Final = {"s": 1, "min": 60, "hours": 3_600, "days": 86_400}
FRESH_S: Final = 2.0  # a sample that is younger is not taken anew for the one who asks


@dataclass(frozen=True, slots=True)
class Found:
    """A problem at one place: the alert's severity, the problem, the labels of the place, and how much; ``others``: so many places more have it."""

    severity: Severity
    problem: Problem
    labels: Mapping[str, str]
    value: float
    others: int = 0

    def __str__(self) -> str:
        command, at = self.problem.command, dict(self.labels)
        for label, text in self.labels.items():
            command = command.replace(f"{{{label}}}", text)
        if port := at.pop(SERVER_PORT, ""):
            at[SERVER_ADDRESS] = f"[{host}]:{port}" if ":" in (host := at[SERVER_ADDRESS]) else f"{host}:{port}"
        place = " ".join(filter(None, at.values())) + (f", and {self.others} others" if self.others else "")
        return f"{self.severity}: {self.problem.words}{f' ({place})' if place else ''}: {_amount(self.problem, self.value)}; `{command}`"


def _amount(problem: Problem, value: float) -> str:
    """A value with its unit: ``60 % of all``, ``31 s the oldest``, ``2.4 hours left``, ``1 file``."""
    unit, _, rest = problem.measure.partition(" ")
    if problem.is_share:
        value = min(value, 1.0) * 100
    elif unit in _SECONDS:
        seconds = value * _SECONDS[unit]
        if rest == "left" and seconds < 60:
            return "less than a minute left"
        unit = next(longer for longer in ("days", "hours", "min", "s") if seconds >= 2 * _SECONDS[longer] or longer == "s")
        value = seconds / _SECONDS[unit]
    elif value == 1:
        unit = unit.removesuffix("es" if unit.endswith("sses") else "s")
    return " ".join(filter(None, (f"{value:.3g}", unit, rest)))


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
        if self._read is not None:
            read, self._looked_s = self._read, time.monotonic()
            sample = await asyncio.to_thread(lambda: self._history.sample(values_of(read())))  # up to 0.1 s, with many listeners and processors
            self._history.add(self._looked_s, sample)

    async def found(self) -> list[Found]:
        """The problems now, the worst first; one that two alerts have is there once, and one that many places have is one."""
        if time.monotonic() - self._looked_s >= FRESH_S:
            await self.look()
        found: dict[tuple[str, tuple[str, ...]], Found] = {}
        for alert in ALERTS:
            for problem in alert.problems:
                for values, value in sorted(problem.condition.judge(self._history).items()):
                    if not math.isnan(value):
                        one = Found(alert.severity, problem, dict(zip(problem.condition.by, values, strict=True)), value)
                        found.setdefault((problem.words, values), one)
        places: dict[tuple[Severity, str], list[Found]] = {}
        for one in found.values():
            places.setdefault((one.severity, one.problem.words), []).append(one)
        return [one for alike in places.values() for one in (alike if len(alike) <= MOST_PLACES else [_together(alike)])]


def _together(alike: list[Found]) -> Found:
    """One for all places that have a problem: the worst."""
    sign = -1 if alike[0].problem.measure.endswith(("left", "free")) else 1
    return dataclasses.replace(max(alike, key=lambda one: sign * one.value), others=len(alike) - 1)
