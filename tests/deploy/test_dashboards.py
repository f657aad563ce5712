"""The dashboards: what their description gives, after the rules of Grafana's dashboard-linter, over metrics and with commands that exist."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fakes import command_lines, deploying, metric_names

queries = deploying.module("dashboards.queries")
write = deploying.module("dashboards.write")
promql = deploying.module("dashboards.promql")
FOLDER = deploying.FOLDER / "dashboards"
SLUGS = [item.slug for item in write.DASHBOARDS]
UNITS = {"short", "none", "s", "d", "bytes", "binBps", "percentunit"}  # Ids of Grafana's units
COMMAND = re.compile(r"`(framegate [^`]*)`")
NOTHING_TO_DO = "othing needs to be done"


def board(slug: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((FOLDER / f"{slug}.json").read_text())
    return loaded


PANELS = [(slug, panel) for slug in SLUGS for panel in queries.all_panels(board(slug))]
TARGETS = [(panel["title"], target["expr"]) for _, panel in PANELS for target in panel["targets"]]


def test_what_is_committed_is_what_the_description_gives() -> None:
    for name, text in write.files().items():
        assert (deploying.FOLDER / name).read_text() == text, f"{name} is not up to date: python deploy/dashboards"


@pytest.mark.slow
def test_the_program_writes_the_same_files_and_another_runbook_into_the_alerts(tmp_path: Path) -> None:
    command = [sys.executable, str(FOLDER), "--folder", str(tmp_path), "--runbook", "https://wiki.example.org/framegate"]
    subprocess.run(command, check=True, timeout=60, cwd=tmp_path)
    assert sorted(path.name for path in (tmp_path / "dashboards").iterdir()) == sorted(f"{slug}.json" for slug in SLUGS)
    assert all((tmp_path / "dashboards" / f"{slug}.json").read_text() == (FOLDER / f"{slug}.json").read_text() for slug in SLUGS)
    assert "runbook_url: https://wiki.example.org/framegate#framegatedown" in (tmp_path / "alerts" / "framegate.yaml").read_text()


# --- the rules of the dashboard-linter -----------------------------------------------------------------------------------------------


def variables(slug: str) -> dict[str, dict[str, Any]]:
    return {variable["name"]: variable for variable in board(slug)["templating"]["list"]}


def test_data_source_job_instance_pod_listener_and_upstream_are_variables_over_existing_metrics() -> None:
    for slug in SLUGS:
        found = variables(slug)
        chosen = found["datasource"]
        assert (chosen["type"], chosen["query"], chosen["label"]) == ("datasource", "prometheus", "Data source"), slug
        for name, label in (
            ("job", "job"),
            ("instance", "instance"),
            ("pod", "pod"),
            ("listener", "framegate_listener"),
            ("upstream", "framegate_upstream"),
        ):
            chosen = found[name]
            assert (chosen["type"], chosen["multi"], chosen["includeAll"], chosen["allValue"]) == ("query", True, True, ".*"), (slug, name)
            assert chosen["query"]["query"].endswith(f", {label})"), (slug, name)
            assert chosen["refresh"] == 2, "whenever the time changes"
            assert chosen["datasource"]["uid"] == "${datasource}", (slug, name)
            assert re.findall(r"label_values\((\w+)", chosen["query"]["query"])[0] in metric_names.declared(), (slug, name)


def sources(panel: dict[str, Any]) -> set[str]:
    return {source["uid"] for source in (panel["datasource"], *(target["datasource"] for target in panel["targets"]))}


def has_unit_and_least_value(panel: dict[str, Any]) -> bool:
    defaults = panel["fieldConfig"]["defaults"]
    least = 1 if defaults.get("custom", {}).get("scaleDistribution", {}).get("type") == "log" else 0  # a logarithm of 0 is none
    return (defaults["unit"] in UNITS or defaults["unit"].startswith("suffix: ")) and defaults["min"] == least


def thresholds_rise(panel: dict[str, Any]) -> bool:
    values = [step["value"] for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"]]
    return values[0] is None and all(one < other for one, other in pairwise(values[1:]))


def legends_name_labels_that_the_query_keeps(panel: dict[str, Any]) -> bool:
    found = [(label, target["expr"]) for target in panel["targets"] for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])]
    return all(label in query or label in metric_names.TARGET for label, query in found)


RULES: dict[str, Callable[[dict[str, Any]], object]] = {
    "uses the chosen data source": lambda panel: sources(panel) == {"${datasource}"},
    "asks a question": lambda panel: panel["title"].endswith("?"),
    "says what is good and what to do": lambda panel: re.fullmatch(r"[^\n]*\.\n\n[^\n]*\.", panel["description"]),
    "names a command, or says that nothing is to be done": lambda panel: COMMAND.search(text := panel["description"]) or NOTHING_TO_DO in text,
    "has a unit and a least value": has_unit_and_least_value,
    "has thresholds that rise": thresholds_rise,
    "has queries": lambda panel: panel["targets"],
    "has queries with a letter each": lambda panel: [target["refId"] for target in panel["targets"]] == list("ABCDEFGH"[: len(panel["targets"])]),
    "has legends of labels that the query keeps": legends_name_labels_that_the_query_keeps,
}


def test_every_panel_keeps_every_rule() -> None:
    assert [f"{slug}: {panel['title']}: {words}" for slug, panel in PANELS for words, rule in RULES.items() if not rule(panel)] == []


def test_every_selector_has_job_instance_and_pod() -> None:
    for title, query in TARGETS:
        selectors = re.findall(r"(?<![$\w])\w*\{([^}]*)\}", query)
        assert selectors != []
        for inside in selectors:
            assert inside.startswith('job=~"$job", instance=~"$instance", pod=~"$pod"'), (title, inside)


def test_rates_are_over_the_interval_that_grafana_finds_right() -> None:
    for title, query in TARGETS:
        ranges = set(re.findall(r"\[([^]]*)\]", query)) | set(re.findall(r"offset (\w+|\$\w+)", query))
        assert ranges <= {"$__rate_interval", "10m", "1h", "24h"}, title
        assert all(found == "$__rate_interval" for found in re.findall(r"\brate\([^[]*\[([^]]*)\]", query)), title


# --- names ------------------------------------------------------------------------------------------------------------------------------


def test_every_metric_and_every_label_exists() -> None:
    known = metric_names.declared()
    for title, query in TARGETS:
        selected, grouped = metric_names.asked(query)
        assert selected.keys() - known.keys() == set(), title
        for name, labels in selected.items():
            assert labels - known[name] - metric_names.TARGET == set(), (title, name)
        anywhere: set[str] = set().union(*(known[name] for name in selected)) | metric_names.TARGET | metric_names.DERIVED
        assert grouped - anywhere == set(), title


# --- how it looks ------------------------------------------------------------------------------------------------------------------------


def test_the_six_dashboards_link_to_each_other_and_pass_on_the_variables() -> None:
    for slug in SLUGS:
        document = board(slug)
        linked = [link["url"] for link in document["links"]]
        assert {url.split("?")[0] for url in linked} == {f"/d/framegate-{other}" for other in SLUGS if other != slug}
        for panel in queries.all_panels(document):
            linked += [link["url"] for link in panel.get("links", [])]
        for url in linked:
            assert url.split("?")[0].removeprefix("/d/framegate-") in set(SLUGS) - {slug}
            assert all("${" + name + ":queryparam}" in url for name in ("datasource", "job", "instance", "pod", "listener", "upstream"))
            assert url.endswith("${__url_time_range}")


# --- what to type ------------------------------------------------------------------------------------------------------------------------


def test_commands_that_are_to_be_typed_exist(tmp_path: Path) -> None:
    for _, panel in PANELS:
        for command in COMMAND.findall(panel["description"]):
            command_lines.parse(command, tmp_path)


# --- the parts ---------------------------------------------------------------------------------------------------------------------------


def test_a_query_is_filled_in_for_a_dashboard_and_for_a_rule() -> None:
    text = 'rate(a{@}[@]) + b{@, x="1"} offset @ + c{@l}'
    at = 'job=~"$job", instance=~"$instance", pod=~"$pod"'
    shown = f'rate(a{{{at}}}[$__rate_interval]) + b{{{at}, x="1"}} offset $__rate_interval + c{{{at}, framegate_listener=~"$listener"}}'
    assert promql.for_dashboard(text) == shown
    assert promql.for_rule(text, "5m") == 'rate(a[5m]) + b{x="1"} offset 5m + c'


def test_grafana_is_told_where_dashboards_and_prometheus_are() -> None:
    provider = yaml.safe_load((FOLDER / "provisioning" / "dashboards.yaml").read_text())["providers"][0]
    source = yaml.safe_load((FOLDER / "provisioning" / "datasources.yaml").read_text())["datasources"][0]
    assert (provider["type"], provider["folder"]) == ("file", "framegate")
    assert (source["type"], source["url"], source["jsonData"]["timeInterval"]) == ("prometheus", "${PROMETHEUS_URL}", "15s")
