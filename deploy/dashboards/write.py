"""The written files: dashboards as JSON, and the alerts as a rule file of Prometheus and as a PrometheusRule of its operator."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models

from dashboards.control import CONTROL
from dashboards.healthy import HEALTHY
from dashboards.hurts import HURTS
from dashboards.identity import IDENTITY
from dashboards.panels import DATASOURCE, VARIABLES_IN_LINKS, Dashboard, Panel, build_panel
from dashboards.problems import Rule, rules
from dashboards.tap import TAP
from dashboards.traffic import TRAFFIC

__all__ = ["DASHBOARDS", "files", "main"]

RUNBOOK: Final = "deploy/alerts/RUNBOOK.md"
WRITTEN: Final = "# Written by `python deploy/dashboards`, from control/steering/alerts.py.\n"
DEPLOY: Final = Path(__file__).resolve().parents[1]
DASHBOARDS: Final = (HEALTHY, TRAFFIC, HURTS, IDENTITY, TAP, CONTROL)
TITLES: Final = {item.slug: item.title for item in DASHBOARDS}
ALL: Final = models.VariableOption(selected=True, text="All", value="$__all")
THERE: Final = "framegate_config_revision"
"""A metric that every framegate has once, from which the variables get their values."""


def _variable(name: str, label: str, text: str, query: str) -> builders.QueryVariable:
    made = builders.QueryVariable(name).label(label).description(text).datasource(DATASOURCE).query({"query": query, "refId": name})
    made = made.multi(True).include_all(True).all_value(".*").current(ALL).sort(models.VariableSort.ALPHABETICAL_ASC)
    return made.refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)


def _variables() -> list[Any]:
    at = 'job=~"$job", instance=~"$instance", pod=~"$pod"'
    intervals = models.VariableOption(selected=True, text="15s", value="15s")
    return [
        builders.DatasourceVariable("datasource").label("Data source").description("A Prometheus.").type("prometheus"),
        _variable("job", "Job", "Of the scrape; by way of a collector, the service's name.", f"label_values({THERE}, job)"),
        _variable(
            "instance",
            "Instance",
            "A framegate: the scrape's address, or its node by way of a collector.",
            f'label_values({THERE}{{job=~"$job"}}, instance)',
        ),
        _variable("pod", "Pod", "Where the scrape gives it.", f'label_values({THERE}{{job=~"$job", instance=~"$instance"}}, pod)'),
        _variable(
            "listener", "Listener", "Of those that were chosen.", f"label_values(framegate_frame_size_limit_bytes{{{at}}}, framegate_listener)"
        ),
        _variable(
            "upstream", "Upstream", "Of those that were chosen.", f"label_values(framegate_upstream_endpoint_count{{{at}}}, framegate_upstream)"
        ),
        builders.IntervalVariable("interval")
        .label("Interval")
        .description("How often framegate is scraped, or exports.")
        .values("1s,5s,10s,15s,30s,1m")
        .current(intervals),
    ]


def _links(own: Dashboard) -> list[Builder[models.DashboardLink]]:
    others = [item for item in DASHBOARDS if item is not own]
    return [
        builders.DashboardLink(item.title)
        .type(models.DashboardLinkType.LINK)
        .tooltip(item.description)
        .url(f"/d/framegate-{item.slug}?{VARIABLES_IN_LINKS}")
        .icon("dashboard")
        for item in others
    ]


def _document(own: Dashboard) -> dict[str, Any]:
    made = builders.Dashboard(own.title).uid(f"framegate-{own.slug}").description(own.description).tags(["framegate"])
    made = made.readonly().tooltip(models.DashboardCursorSync.CROSSHAIR).refresh("30s").time("now-1h", "now").timezone("browser")
    for variable in _variables():
        made = made.with_variable(variable)
    made = made.links(_links(own))
    number = 0

    def build(panel: Panel) -> Any:
        nonlocal number
        number += 1
        return build_panel(panel, number, TITLES)

    for panel in own.panels:
        made = made.with_panel(build(panel))
    for row in own.rows:
        number += 1
        folded = builders.Row(row.title).id(number).collapsed(True)
        for panel in row.panels:
            folded = folded.with_panel(build(panel))
        made = made.with_row(folded)
    document: dict[str, Any] = json.loads(JSONEncoder(sort_keys=True).encode(made.build()))
    return {**_without(document, "placement"), "annotations": {"list": []}}


def _without(value: Any, key: str) -> Any:
    """Remove a key everywhere: the SDK writes ``placement`` for each link, which hides links in a menu."""
    if isinstance(value, dict):
        return {name: _without(item, key) for name, item in value.items() if name != key}
    return [_without(item, key) for item in value] if isinstance(value, list) else value


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def _entry(rule: Rule, runbook: str) -> dict[str, Any]:
    return {
        "alert": rule.alert,
        "expr": rule.expr,
        "for": rule.hold,
        "labels": {"severity": rule.severity},
        "annotations": {
            "summary": rule.summary,
            "description": rule.description,
            "runbook_url": f"{runbook}#{rule.alert.lower()}",
        },
    }


def groups(runbook: str = RUNBOOK) -> list[dict[str, Any]]:
    """The groups of rules. ``runbook``: the runbook's address."""
    return [{"name": "framegate", "rules": [_entry(rule, runbook) for rule in rules()]}]


def _yaml(document: dict[str, Any]) -> str:
    return WRITTEN + yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=10_000, allow_unicode=True)


def rule_file(runbook: str = RUNBOOK) -> str:
    """The rule file of Prometheus, for ``rule_files`` of prometheus.yml."""
    return _yaml({"groups": groups(runbook)})


def prometheus_rule(runbook: str = RUNBOOK) -> str:
    """The same rules as a PrometheusRule, for Prometheus' operator."""
    metadata = {"name": "framegate", "labels": {"app.kubernetes.io/name": "framegate"}}
    return _yaml({"apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule", "metadata": metadata, "spec": {"groups": groups(runbook)}})


def files(runbook: str = RUNBOOK) -> dict[str, str]:
    """The contents of the files, by path below ``deploy/``. ``runbook``: the runbook's address in the alerts."""
    boards = {f"dashboards/{item.slug}.json": json.dumps(_document(item), indent=1, sort_keys=True, ensure_ascii=False) + "\n" for item in DASHBOARDS}
    return {**boards, "alerts/framegate.yaml": rule_file(runbook), "alerts/prometheus-rule.yaml": prometheus_rule(runbook)}


def main(arguments: Sequence[str]) -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(prog="python deploy/dashboards", description="Writes the dashboards and alerts of deploy/ anew.")
    parser.add_argument("--runbook", default=RUNBOOK, metavar="URL", help="the address of the runbook; alerts link to its sections (%(default)s)")
    parser.add_argument("--folder", type=Path, default=DEPLOY, help="where dashboards/ and alerts/ are (deploy/)")
    given = parser.parse_args(arguments)
    for name, text in files(given.runbook).items():
        path = given.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
