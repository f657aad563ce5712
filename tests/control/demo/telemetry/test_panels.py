"""Panels of the dashboards: read, asked, and what they say of themselves."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from control.demo.telemetry.panels import FINE, SLUGS, Panel, Seen, Window, problems, read, substituted
from control.demo.telemetry.prometheus import Prometheus, QueryError

DASHBOARDS = Path(__file__).resolve().parents[4] / "deploy" / "dashboards"
WINDOW = Window(start=1000.0, end=1060.0, variables={"node": ".*", "__rate_interval": "5s"})


class Answers(Prometheus):
    """Answers from a table; what is not in it is refused."""

    def __init__(self, table: Mapping[str, list[dict[str, Any]]]) -> None:
        super().__init__("nowhere:1")
        self.table = table
        self.asked: list[tuple[str, str]] = []

    def _ask(self, what: str, fields: Mapping[str, str]) -> dict[str, Any]:
        self.asked.append((what, fields["query"]))
        if fields["query"] not in self.table:
            raise QueryError("parse error")
        return {"resultType": "vector", "result": self.table[fields["query"]]}


def panel(*targets: dict[str, Any], nothing: str | None = None) -> Panel:
    return Panel(id=1, title="Why?", targets=targets, nothing=nothing, folded=False)


def value(number: float, **labels: str) -> dict[str, Any]:
    return {"metric": labels, "value": [1060, str(number)]}


def test_the_six_dashboards_are_read_with_what_is_folded() -> None:
    boards = read(DASHBOARDS)
    assert [board.slug for board in boards] == list(SLUGS)
    assert all(any(panel.folded for panel in board.panels) and any(not panel.folded for panel in board.panels) for board in boards)
    assert all(len({panel.id for panel in board.panels}) == len(board.panels) for board in boards)


def test_a_folder_without_dashboards_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"healthy\.json"):
        read(tmp_path)


def test_every_form_of_a_variable_is_replaced_and_one_without_a_value_is_named() -> None:
    assert substituted("a{b=~'$node'}[$__rate_interval] ${node} ${node:regex}", WINDOW.variables) == "a{b=~'.*'}[5s] .* .*"
    assert substituted('label_replace(x, "a", "$1", "b", "(.*)")', {}) == 'label_replace(x, "a", "$1", "b", "(.*)")'
    with pytest.raises(QueryError, match=r"\$pod has no value in x\{pod='\$pod'\}"):
        substituted("x{pod='$pod'}", WINDOW.variables)


def test_a_panel_asks_instant_and_range_as_its_targets_say() -> None:
    answers = Answers({"up": [value(1)], "rate(x[5s])": []})
    seen = panel({"expr": "up", "instant": True, "refId": "A"}, {"expr": "rate(x[$__rate_interval])", "refId": "B"}).ask(answers, WINDOW)
    assert answers.asked == [("query", "up"), ("query_range", "rate(x[5s])")]
    assert ([answer["refId"] for answer in seen.answers], seen.empty, seen.fault) == (["A", "B"], False, None)


def test_a_query_that_fails_is_a_fault_and_the_others_are_asked() -> None:
    seen = panel({"expr": "sum(", "refId": "A"}, {"expr": "up", "refId": "B"}).ask(Answers({"up": [value(1)]}), WINDOW)
    assert (seen.fault, len(seen.answers)) == ("A: parse error", 1)


def test_no_series_is_empty() -> None:
    assert Seen().empty
    assert panel({"expr": "up", "refId": "A"}).ask(Answers({"up": []}), WINDOW).empty


@pytest.mark.parametrize(("seconds", "step"), [(0, 1), (60, 1), (179, 1), (181, 2), (1200, 10)])
def test_a_course_has_about_120_points_and_none_within_a_second(seconds: float, step: float) -> None:
    assert Window(start=0, end=seconds, variables={}).step_s == step


def test_what_the_first_panel_says_is_sorted_the_worst_first() -> None:
    first = read(DASHBOARDS)[0]
    variables = dict.fromkeys(("job", "node", "pod", "listener"), ".*") | {"__rate_interval": "5s", "__range": "60s"}
    window = Window(start=0, end=60, variables=variables)
    query = substituted(first.panels[0].targets[0]["expr"], variables)
    rows = [value(1, problem="b"), value(3, problem="z"), value(1, problem="a")]
    assert problems(first, Answers({query: rows}), window) == ["z", "a", "b"]
    assert problems(first, Answers({query: [value(0, problem=FINE)]}), window) == [FINE]


def test_every_trouble_expects_words_that_the_first_panel_has() -> None:
    from control.cli.local import _TROUBLES
    from control.demo.telemetry.troubles import TROUBLES

    said = json.dumps(read(DASHBOARDS)[0].document)
    assert [one.words for one in TROUBLES if f'\\"{one.words}\\"' not in said] == []
    assert tuple(one.name for one in TROUBLES) == _TROUBLES
    assert {one.explained for one in TROUBLES} <= set(SLUGS)
