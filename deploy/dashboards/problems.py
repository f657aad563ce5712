"""What may be wrong with a framegate, said in words, found by one query: a line of the first dashboard, and an alert.

A dashboard shows a problem as soon as it is there; an alert waits for ``hold``, or, where a share of a budget is used up, for what the
multi-window rules of Google's SRE workbook ask for (chapter 5, "multiwindow, multi-burn-rate alerts").
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from dashboards.promql import WHO, for_dashboard, for_rule

__all__ = ["FINE", "Budget", "Problem", "Rule", "problem_table", "problem_words", "rules_of"]

Severity = Literal["critical", "warning", "info"]

FINE: Final = "Everything is fine"
LEVELS: Final[dict[Severity, int]] = {"info": 1, "warning": 2, "critical": 3}
"""The value of a problem in the first panel; 0 is what is fine."""

BURNS: Final[dict[Severity, tuple[tuple[float, str, str], ...]]] = {
    "critical": ((14.4, "1h", "5m"), (6.0, "6h", "30m")),
    "warning": ((3.0, "1d", "2h"), (1.0, "3d", "6h")),
}
"""How many times faster than allowed a month's budget may be used up, in a long window and still in a short one."""
LEAST: Final = 10
"""Bad events in the long window below which no budget speaks: one of two is no rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What share may go wrong. Attributes: ``bad`` and ``all``, both per second and with the same labels; ``share``, 0 to 1, of a month."""

    bad: str
    all: str
    share: float

    def burning(self, factor: float, window: str) -> str:
        """Whether the budget is used up ``factor`` times faster than it lasts."""
        ratio = f"{self.bad} / {self.all}"
        return f"{for_rule(ratio, window)} > {factor * self.share:.12g}"

    def enough(self, window: str) -> str:
        """Whether there were enough bad events to speak of a rate."""
        return f"{for_rule(self.bad, window)} * {SECONDS[window]} >= {LEAST}"


SECONDS: Final = {"1h": 3_600, "6h": 21_600, "1d": 86_400, "3d": 259_200}


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that may be wrong.

    Attributes:
        alert: its name, and the runbook's section.
        words: what is wrong, as the first panel says it.
        measure: what the number beside it is.
        condition: true where it is so, with the number as its value; see ``promql``.
        where: the labels beside ``WHO`` that say where it is.
        severity: what the first panel shows, and of the alert.
        hold: how long it must be so before an alert fires.
        window: over which an alert measures rates.
        value: the alert's template of the number.
        budget: the alerts speak when a budget burns instead.
    """

    alert: str
    words: str
    measure: str
    condition: str
    severity: Severity
    where: tuple[str, ...] = ()
    hold: str = "5m"
    window: str = "5m"
    value: str = "{{ $value | humanize }}"
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
    """One element, with the words as a label, for each place where it is so; its value is the level. A power of 0 is 1, also of infinity."""
    return f'label_replace(({for_dashboard(problem.condition)}) ^ 0 * {LEVELS[problem.severity]}, "problem", "{problem.words}", "", "")'


def problem_words(problems: Sequence[Problem]) -> str:
    """The query of the first panel: what is wrong, in words, with its level as the value, or that nothing is."""
    found = "\nor\n".join(_marked(problem) for problem in problems)
    return f'max by (problem) (\n{found}\n)\nor on () label_replace(vector(0), "problem", "{FINE}", "", "")'


def _placed(problem: Problem) -> str:
    words = f"{problem.words}: {problem.measure}"
    labels = ", ".join(f'"{label}"' for label in problem.where)
    there = f"({for_dashboard(problem.condition)})"
    joined = f'label_join({there}, "where", " ", {labels})' if labels else there
    return f'label_replace(label_replace({joined}, "problem", "{words}", "", ""), "alert", "{problem.alert}", "", "")'


def problem_table(problems: Sequence[Problem]) -> str:
    """The query of the table beside it: where it is, with the number, and the alert's name."""
    found = "\nor\n".join(_placed(problem) for problem in problems)
    fine = f'label_replace(vector(0), "problem", "{FINE}", "", "")'
    return f"sum by (alert, problem, where, instance, pod) (\n{found}\n)\nor on () {fine}"


def rules_of(problem: Problem) -> list[Rule]:
    """The alerting rules: one, or of a budget two, ``critical`` for what burns fast and ``warning`` for what burns slowly."""
    place = "".join(f"{label.removeprefix('framegate_').replace('_', ' ')} {{{{ $labels.{label} }}}}, " for label in problem.where)
    at = f"({place}node {{{{ $labels.instance }}}}{{{{ with $labels.pod }}}}, pod {{{{ . }}}}{{{{ end }}}})"
    if problem.budget is None:
        text = f"{problem.words} {at}: {problem.value} {problem.measure}."
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
    text = f"{problem.words} {at}: {of}, where {budget.share * 100:.12g} % are allowed; so a month's budget is gone within {days}."
    return Rule(alert=problem.alert, expr="\nor\n".join(parts), hold="0s", severity=severity, summary=problem.words, description=text)
