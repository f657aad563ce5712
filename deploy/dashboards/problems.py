"""The problems as queries of the first dashboard, and as alerts. Problems, words and conditions are those of ``framegate status``."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from dashboards.promql import for_dashboard, for_rule, query_of
from framegate.control.steering.alerts import ALERTS, Alert, Severity
from framegate.control.steering.problems import FINE
from framegate.control.telemetry.catalogue import label_name
from framegate.proxy.cells.metrics import SERVER_PORT

__all__ = ["FINE", "NAMES", "Rule", "problem_table", "problem_words", "rules"]

LEVELS: Final[dict[Severity, int]] = {"info": 1, "warning": 2, "critical": 3}
"""The value of a problem in the first panel; 0: no problem."""


@dataclass(frozen=True, slots=True)
class Rule:
    """An alerting rule of Prometheus."""

    alert: str
    expr: str
    hold: str
    severity: Severity
    summary: str
    description: str


@dataclass(frozen=True, slots=True)
class _Outside:
    """A problem that only Prometheus sees, as framegate itself does not answer; ``hold`` of its alert."""

    alert: str
    words: str
    measure: str
    query: str
    hold: str
    description: str


_OUTSIDE: Final = (
    _Outside(
        "FramegateAbsent",
        "Nothing is heard from framegate",
        "no series at all",
        "absent(framegate_config_revision{@}) unless on () (up{@} == 0 and on (job, instance) max_over_time(framegate_config_revision{@}[1h]))",
        "10m",
        "There are no series of it at all, of any node.",
    ),
    _Outside(
        "FramegateDown",
        "A framegate does not answer its scrape",
        "is its target",
        "up{@} == 0 and on (job, instance) max_over_time(framegate_config_revision{@}[1h])",
        "2m",
        "Node {{ $labels.instance }}{{ with $labels.pod }}, pod {{ . }}{{ end }}: `up` is {{ $value }}, and it was there within the hour.",
    ),
)
NAMES: Final = (*(outside.alert for outside in _OUTSIDE), *dict.fromkeys(alert.name for alert in ALERTS))
"""Of all alerts, in the order of the runbook."""


def _named(query: str, alert: str, words: str, measure: str, by: tuple[str, ...] = ()) -> str:
    """The query with words, place, measure and, for the table, the alert as labels. Where labels are absent there is one blank."""
    if measure.startswith("%"):
        query = f"clamp_max(100 * {query}, 100)"
    if by:
        quoted = ", ".join(f'"{label_name(label)}"' for label in by)
        query = f'label_join({query}, "where", " ", {quoted})'
        if len(by) > 2:
            port = [(r"(\\S+) (\\S+) (\\d+)( .*|)", "$1 $2:$3$4")] if SERVER_PORT in by else []
            for blanks, text in (*port, (r"(.*?)  +(.*)", "$1 $2"), (r"(.*) ", "$1")):
                query = f'label_replace({query}, "where", "{text}", "where", "{blanks}")'
    for label, text in (("problem", words), ("measure", measure), ("alert", alert)):
        query = f'label_replace({query}, "{label}", "{text}", "", "")' if text else query
    return query


def _all() -> Iterator[tuple[Severity, str]]:
    """Severity and query of each problem, for a dashboard."""
    for one in _OUTSIDE:
        yield "critical", _named(for_dashboard(one.query), one.alert, one.words, one.measure)
    for alert in ALERTS:
        for problem in alert.problems:
            query = for_dashboard(query_of(problem.condition))
            yield alert.severity, _named(query, alert.name, problem.words, problem.measure, problem.condition.by)


def problem_words() -> str:
    """The query of the first panel: the problems in words, with their levels as values, or ``FINE``. (Any value to the power of 0 is 1.)"""
    found = "\nor\n".join(f"{query} ^ 0 * {LEVELS[severity]}" for severity, query in _all())
    return f'max by (problem) (\n{found}\n)\nor on () label_replace(vector(0), "problem", "{FINE}", "", "")'


def problem_table() -> str:
    """The query of the table below it: places, numbers, and names of alerts."""
    found = "\nor\n".join(query for _, query in _all())
    fine = f'label_replace(vector(0), "problem", "{FINE}", "", "")'
    return f"sum by (alert, problem, measure, where, instance, pod) (\n{found}\n)\nor on () {fine}"


def rules() -> list[Rule]:
    """All alerting rules: one for each alert, severity and hold. The label ``problem`` says which of its problems it is, ``where`` the place."""
    outside = [Rule(one.alert, for_rule(one.query, "5m"), one.hold, "critical", one.words, f"{one.words}. {one.description}") for one in _OUTSIDE]
    return outside + [_rule(alert) for alert in ALERTS]


def _rule(alert: Alert) -> Rule:
    parts = []
    for problem in alert.problems:
        query = query_of(problem.condition)
        found = " and ".join(for_rule(query, window) for window in alert.windows)
        parts.append(_named(found if len(alert.windows) == 1 else f"({found})", "", problem.words, problem.measure, problem.condition.by))
    at = "{{ with $labels.where }}{{ . }}, {{ end }}node {{ $labels.instance }}{{ with $labels.pod }}, pod {{ . }}{{ end }}"
    text = f'{{{{ $labels.problem }}}} ({at}): {{{{ printf "%.3g" $value }}}} {{{{ $labels.measure }}}}.'
    return Rule(alert.name, "\nor\n".join(parts), alert.hold, alert.severity, "{{ $labels.problem }}", text)
