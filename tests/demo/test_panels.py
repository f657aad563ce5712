"""Panels of the dashboards: read, asked, compared, drawn."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.demo.environment import seconds_of, shortened_rules
from tests.demo.panels import SLUGS, Comparison, Panel, Prometheus, QueryError, Window, compare, read, substituted
from tests.demo.troubles import TROUBLES

DASHBOARDS = Path(__file__).resolve().parents[2] / "deploy" / "dashboards"
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


def panel(*targets: dict[str, Any]) -> Panel:
    return Panel(id=7, title="Why?", targets=targets, nothing=None, folded=False)


def value(number: float, **labels: str) -> dict[str, Any]:
    return {"metric": labels, "value": [1060, str(number)]}


def test_the_six_dashboards_are_read_with_what_is_folded_and_have_the_words_that_troubles_expect(tmp_path: Path) -> None:
    boards = read(DASHBOARDS)
    assert [board.slug for board in boards] == list(SLUGS)
    assert all(any(not panel.folded for panel in board.panels) for board in boards)
    assert any(panel.folded for board in boards for panel in board.panels)
    assert all(len({panel.id for panel in board.panels}) == len(board.panels) for board in boards)
    said = json.dumps(boards[0].document)
    assert [one.words for one in TROUBLES if f'\\"{one.words}\\"' not in said] == []
    with pytest.raises(FileNotFoundError, match=r"healthy\.json"):
        read(tmp_path)


def test_every_form_of_a_variable_is_replaced_and_one_without_a_value_is_named() -> None:
    assert substituted("a{b=~'$node'}[$__rate_interval] ${node} ${node:regex}", WINDOW.variables) == "a{b=~'.*'}[5s] .* .*"
    assert substituted('label_replace(x, "a", "$1", "b", "(.*)")', {}) == 'label_replace(x, "a", "$1", "b", "(.*)")'
    with pytest.raises(QueryError, match=r"\$pod has no value in x\{pod='\$pod'\}"):
        substituted("x{pod='$pod'}", WINDOW.variables)


def test_a_panel_asks_as_its_targets_say_and_a_query_that_fails_is_a_fault() -> None:
    answers = Answers({"up": [value(1)], "rate(x[5s])": []})
    seen = panel({"expr": "up", "instant": True, "refId": "A"}, {"expr": "rate(x[$__rate_interval])", "refId": "B"}).ask(answers, WINDOW)
    assert answers.asked == [("query", "up"), ("query_range", "rate(x[5s])")]
    assert ([answer["refId"] for answer in seen.answers], seen.empty, seen.fault) == (["A", "B"], False, None)
    seen = panel({"expr": "sum(", "refId": "A"}, {"expr": "rate(x[5s])", "refId": "B"}).ask(answers, WINDOW)
    assert (seen.fault, len(seen.answers), seen.empty) == ("A: parse error", 1, True)


def test_series_by_both_ways_are_compared_without_the_labels_that_differ_by_nature() -> None:
    name = {"__name__": "framegate_io_bytes_total"}
    otlp = {**name, "job": "framegate", "instance": "demo", "otel_scope_name": "framegate", "framegate_side": "upstream"}
    scraped = {**name, "job": "scrape", "instance": "demo", "framegate_side": "upstream"}
    assert compare([otlp], [scraped]) == Comparison(both=1, only_otlp=(), only_scrape=())
    other = compare([otlp], [{**scraped, "framegate_side": "downstream"}])
    assert other.only_otlp == ('demo: framegate_io_bytes_total{framegate_side="upstream"}',)
    assert other.only_scrape == ('demo: framegate_io_bytes_total{framegate_side="downstream"}',)
    assert compare([{**otlp, "instance": "other"}], [scraped]).only_otlp, "of another node"
    assert compare([{**name, "le": "1"}], [{**name, "le": "1.0"}]).both == 1, "a bound is a number"
    assert compare([{"__name__": "target_info"}], [{"__name__": "up"}]).both == 0


def test_rules_are_shortened_in_every_duration_and_nothing_else() -> None:
    text = "groups: [{rules: [{alert: A, expr: 'rate(a_5m{x=\"5m\"}[5m]) > 300 and b[1h] offset 1h', for: 10m}, {alert: B, expr: c, for: 0s}]}]"
    (one, other) = shortened_rules(text)["groups"][0]["rules"]
    assert one == {"alert": "A", "expr": 'rate(a_5m{x="5m"}[15s]) > 300 and b[180s] offset 180s', "for": "30s"}
    assert (other["for"], seconds_of("1d")) == ("0s", 4_320)
