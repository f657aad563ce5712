"""Problems of a framegate, each found by one query: a line of the first dashboard, and an alert.

A dashboard shows a problem at once. An alert waits for ``hold``, or, if the problem has a budget, follows the multi-window rules of Google's SRE
workbook (chapter 5, "multiwindow, multi-burn-rate alerts").
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from dashboards.promql import WHO, for_dashboard, for_rule

__all__ = ["FINE", "Budget", "Problem", "Rule", "problem_table", "problem_words", "rules_of"]

Severity = Literal["critical", "warning", "info"]

FINE: Final = "Everything is fine"
LEVELS: Final[dict[Severity, int]] = {"info": 1, "warning": 2, "critical": 3}
"""The value of a problem in the first panel; 0: no problem."""

BURNS: Final[dict[Severity, tuple[tuple[float, str, str], ...]]] = {
    "critical": ((14.4, "1h", "5m"), (6.0, "6h", "30m")),
    "warning": ((3.0, "1d", "2h"), (1.0, "3d", "6h")),
}
"""How many times faster than allowed a month's budget is used up when an alert fires, in a long window and in a short one."""
LEAST: Final = 10
"""The least number of bad events in the long window for an alert of a budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The allowed share of bad events. Attributes: ``bad`` and ``all``, both per second and with the same labels; ``share``: 0 to 1, of a month."""

    bad: str
    all: str
    share: float

    def burning(self, factor: float, window: str) -> str:
        """A condition: the budget is used up ``factor`` times faster than allowed."""
        ratio = f"{self.bad} / {self.all}"
        return f"{for_rule(ratio, window)} > {factor * self.share:.12g}"

    def enough(self, window: str) -> str:
        """A condition: there were enough bad events."""
        return f"{for_rule(self.bad, window)} * {SECONDS[window]} >= {LEAST}"


SECONDS: Final = {"1h": 3_600, "6h": 21_600, "1d": 86_400, "3d": 259_200}


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem.

    Attributes:
        alert: its name, and the runbook's section.
        words: the problem, in the first panel.
        measure: the meaning of the number beside it, short.
        condition: the query that finds it, with the number as its value; see ``promql``.
        where: further labels than ``WHO`` that say where it is.
        severity: in the first panel, and of the alert.
        hold: how long the condition must be true before an alert fires.
        window: the range of rates in the alert.
        told: the template of the number in an alert; empty: the number and ``measure``.
        budget: the alerts fire if this budget is used up too fast, instead of ``condition``.
    """

    alert: str
    words: str
    measure: str
    condition: str
    severity: Severity
    where: tuple[str, ...] = ()
    hold: str = "5m"
    window: str = "5m"
    told: str = ""
    budget: Budget | None = None

    @property
    def by(self) -> str:
        """The labels of the condition."""
        return ", ".join((WHO, *self.where))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """An alerting rule of Prometheus."""

    alert: str
    expr: str
    hold: str
    severity: Severity
    summary: str
    description: str


def _marked(problem: Problem) -> str:
    """One element, with the words as a label, for each place of the problem; its value is the level. (Any value to the power of 0 is 1.)"""
    return f'label_replace(({for_dashboard(problem.condition)}) ^ 0 * {LEVELS[problem.severity]}, "problem", "{problem.words}", "", "")'


def problem_words(problems: Sequence[Problem]) -> str:
    """The query of the first panel: the problems in words, with their levels as values, or ``FINE``."""
    found = "\nor\n".join(_marked(problem) for problem in problems)
    return f'max by (problem) (\n{found}\n)\nor on () label_replace(vector(0), "problem", "{FINE}", "", "")'


def _placed(problem: Problem) -> str:
    labels = ", ".join(f'"{label}"' for label in problem.where)
    there = f"({for_dashboard(problem.condition)})"
    joined = f'label_join({there}, "where", " ", {labels})' if labels else there
    for label, text in (("problem", problem.words), ("measure", problem.measure), ("alert", problem.alert)):
        joined = f'label_replace({joined}, "{label}", "{text}", "", "")'
    return joined


def problem_table(problems: Sequence[Problem]) -> str:
    """The query of the table beside it: places, numbers, and names of alerts."""
    found = "\nor\n".join(_placed(problem) for problem in problems)
    fine = f'label_replace(vector(0), "problem", "{FINE}", "", "")'
    return f"sum by (alert, problem, measure, where, instance, pod) (\n{found}\n)\nor on () {fine}"


def rules_of(problem: Problem) -> list[Rule]:
    """The alerting rules of a problem: one, or two for a budget, ``critical`` if it is used up fast and ``warning`` if slowly."""
    place = "".join(f"{label.removeprefix('framegate_').replace('_', ' ')} {{{{ $labels.{label} }}}}, " for label in problem.where)
    at = f" ({place}node {{{{ $labels.instance }}}}{{{{ with $labels.pod }}}}, pod {{{{ . }}}}{{{{ end }}}})"
    if problem.condition.startswith("absent"):
        at = ""  # what is not there has no labels
    if problem.budget is None:
        told = problem.told or f"{{{{ $value | humanize }}}} {problem.measure}"
        text = f"{problem.words}{at}: {told}."
        expr = for_rule(problem.condition, problem.window)
        made = Rule(alert=problem.alert, expr=expr, hold=problem.hold, severity=problem.severity, summary=problem.words, description=text)
        return [made]
    return [_burn(problem, problem.budget, severity, at) for severity in BURNS]


def _burn(problem: Problem, budget: Budget, severity: Severity, at: str) -> Rule:
    parts = [
        f"(\n  {budget.burning(factor, long)}\n  and\n  {budget.burning(factor, short)}\n  and\n  {budget.enough(long)}\n)"
        for factor, long, short in BURNS[severity]
    ]
    of = "{{ $value | humanizePercentage }}"
    days = "five days" if severity == "critical" else "a month"
    text = f"{problem.words}{at}: {of}, where {budget.share * 100:.12g} % are allowed; so a month's budget is gone within {days}."
    return Rule(alert=problem.alert, expr="\nor\n".join(parts), hold="0s", severity=severity, summary=problem.words, description=text)
