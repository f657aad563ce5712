"""Which files are written, and what is in them."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models

from dashboards.control import CONTROL
from dashboards.healthy import HEALTHY
from dashboards.hurts import HURTS
from dashboards.identity import IDENTITY
from dashboards.panels import DATASOURCE, VARIABLES_IN_LINKS, Dashboard, Panel, build_panel
from dashboards.rules import RUNBOOK, prometheus_rule, rule_file
from dashboards.tap import TAP
from dashboards.traffic import TRAFFIC

__all__ = ["DASHBOARDS", "files", "main"]

DEPLOY: Final = Path(__file__).resolve().parents[1]
DASHBOARDS: Final = (HEALTHY, TRAFFIC, HURTS, IDENTITY, TAP, CONTROL)
TITLES: Final = {item.slug: item.title for item in DASHBOARDS}
ALL: Final = models.VariableOption(selected=True, text="All", value="$__all")
THERE: Final = "framegate_config_revision"
"""The metric that every framegate has once; what the variables are looked up in."""


def _variable(name: str, label: str, text: str, query: str) -> builders.QueryVariable:
    made = builders.QueryVariable(name).label(label).description(text).datasource(DATASOURCE).query({"query": query, "refId": name})
    made = made.multi(True).include_all(True).all_value(".*").current(ALL).sort(models.VariableSort.ALPHABETICAL_ASC)
    return made.refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)


def _variables() -> list[Any]:
    at = 'job=~"$job", instance=~"$node", pod=~"$pod"'
    intervals = models.VariableOption(selected=True, text="15s", value="15s")
    return [
        builders.DatasourceVariable("datasource").label("Data source").description("A Prometheus.").type("prometheus"),
        _variable("job", "Job", "Of the scrape; by way of a collector, the service's name.", f"label_values({THERE}, job)"),
        _variable(
            "node", "Node", "A framegate: the scrape's address, or its node by way of a collector.", f'label_values({THERE}{{job=~"$job"}}, instance)'
        ),
        _variable("pod", "Pod", "Where the scrape gives it.", f'label_values({THERE}{{job=~"$job", instance=~"$node"}}, pod)'),
        _variable(
            "listener", "Listener", "Of those that were chosen.", f"label_values(framegate_frame_size_limit_bytes{{{at}}}, framegate_listener)"
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
    """Without a key, wherever it is: the SDK writes ``placement`` behind each link, which hides links in a menu."""
    if isinstance(value, dict):
        return {name: _without(item, key) for name, item in value.items() if name != key}
    return [_without(item, key) for item in value] if isinstance(value, list) else value


def files(runbook: str = RUNBOOK) -> dict[str, str]:
    """What is in each file, by its path below ``deploy/``. ``runbook``: the address that alerts give for the runbook."""
    boards = {f"dashboards/{item.slug}.json": json.dumps(_document(item), indent=1, sort_keys=True, ensure_ascii=False) + "\n" for item in DASHBOARDS}
    return {**boards, "alerts/framegate.yaml": rule_file(runbook), "alerts/prometheus-rule.yaml": prometheus_rule(runbook)}


def main(arguments: Sequence[str]) -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(prog="python deploy/dashboards", description="Writes the dashboards and alerts of deploy/ anew.")
    parser.add_argument(
        "--runbook", default=RUNBOOK, metavar="URL", help="where the runbook is to be read; alerts link to its sections (%(default)s)"
    )
    parser.add_argument("--folder", type=Path, default=DEPLOY, help="where dashboards/ and alerts/ are (deploy/)")
    given = parser.parse_args(arguments)
    for name, text in files(given.runbook).items():
        path = given.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
