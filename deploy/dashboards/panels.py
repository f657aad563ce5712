"""Descriptions of panels and dashboards, and their conversion with Grafana's Foundation SDK."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from grafana_foundation_sdk.builders import bargauge, common, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders import prometheus as prometheus
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import prometheus as prometheus_models

from dashboards.promql import for_dashboard

__all__ = ["DATASOURCE", "Dashboard", "Panel", "Query", "Row", "Step", "build_panel"]

DATASOURCE: Final = common_models.DataSourceRef(type_val="prometheus", uid="${datasource}")
_VARIABLES: Final = ("datasource", "job", "instance", "pod", "listener", "upstream")
VARIABLES_IN_LINKS: Final = "&".join((*(f"${{{name}:queryparam}}" for name in _VARIABLES), "${__url_time_range}"))
SMALL: Final = {"percentunit": 0.1, "s": 0.01, "bytes": 1024, "binBps": 1024}
"""The least upper end of an axis, by unit, so that a line at 0 has a useful scale."""
Kind = Literal["stat", "series", "bars", "table", "words", "states"]
Step = tuple[float | None, str]
"""A value, and the colour from this value on; the first value is None."""

PLAIN: Final[tuple[Step, ...]] = ((None, "blue"),)
NONE_IS_GOOD: Final[tuple[Step, ...]] = ((None, "green"), (1e-9, "red"))
LEVELS: Final[tuple[Step, ...]] = ((None, "green"), (1, "blue"), (2, "orange"), (3, "red"))


@dataclass(frozen=True, slots=True)
class Query:
    """One query of a panel. Attributes: ``text``, see ``promql``; ``legend``, with labels in double braces."""

    text: str
    legend: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One question, and how its answer is drawn.

    Attributes:
        title: the question.
        good: a good answer.
        otherwise: what to do if the answer is not good, with a command.
        queries: in PromQL, see ``promql``.
        unit: one of Grafana's units.
        kind: ``words`` is a stat that shows names, ``states`` are colours over time, ``bars`` are horizontal bars of the latest values.
        steps: colours by value.
        width, height: in a grid with 24 columns; a height of 9 is 334 pixels.
        next: the ``slug`` of the dashboard with explanations.
        stacked: whether series are stacked.
        logarithmic: whether the axis is logarithmic, to base 2.
        maximum: of the axis, if there is a natural one.
        nothing: the text if there is no data.
        columns: of a table: label, title and width in pixels.
    """

    title: str
    good: str
    otherwise: str
    queries: tuple[Query, ...]
    unit: str
    kind: Kind = "series"
    steps: tuple[Step, ...] = PLAIN
    width: int = 8
    height: int = 9
    next: str = ""
    stacked: bool = False
    logarithmic: bool = False
    maximum: float | None = None
    decimals: int | None = None
    nothing: str = ""
    calculation: str = "lastNotNull"
    columns: tuple[tuple[str, str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Panels in a row that is collapsed at first."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """A dashboard; ``slug`` is in the names of its file and of links."""

    slug: str
    title: str
    description: str
    panels: tuple[Panel, ...]
    rows: tuple[Row, ...] = field(default=())


def _thresholds(steps: Sequence[Step]) -> builders.ThresholdsConfig:
    made = [models.Threshold(value=value, color=colour) for value, colour in steps]
    return builders.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(made)


def _target(query: Query, letter: str, *, instant: bool, as_table: bool) -> prometheus.Dataquery:
    made = prometheus.Dataquery().expr(for_dashboard(query.text)).ref_id(letter).datasource(DATASOURCE).interval("$interval")
    made = made.editor_mode(prometheus_models.QueryEditorMode.CODE).legend_format(query.legend or "__auto")
    made = made.instant() if instant else made.range()
    return made.format(prometheus_models.PromQueryFormat.TABLE if as_table else prometheus_models.PromQueryFormat.TIME_SERIES)


def _link(title: str, slug: str) -> builders.DashboardLink:
    return builders.DashboardLink(title).type(models.DashboardLinkType.LINK).url(f"/d/framegate-{slug}?{VARIABLES_IN_LINKS}").target_blank(False)


def build_panel(panel: Panel, number: int, titles: dict[str, str]) -> Any:
    """The SDK's builder of a panel. ``titles``: of all dashboards by slug, for the link to ``next``."""
    maker = {"stat": _stat, "words": _words, "series": _series, "bars": _bars, "table": _table, "states": _states}[panel.kind]
    made = maker(panel).id(number).title(panel.title).description(f"{panel.good}\n\n{panel.otherwise}").datasource(DATASOURCE)
    made = made.unit(panel.unit).thresholds(_thresholds(panel.steps)).span(panel.width).height(panel.height)
    if panel.decimals is not None:
        made = made.decimals(panel.decimals)
    if panel.nothing:
        made = made.no_value(panel.nothing)
    if panel.next:
        made = made.links([_link(f"{titles[panel.next]}", panel.next)])
    latest = panel.kind in ("words", "table", "bars")
    for letter, query in zip("ABCDEFGH", panel.queries, strict=False):
        made = made.with_target(_target(query, letter, instant=latest, as_table=panel.kind == "table"))
    return made


def _reduced(calculation: str) -> common.ReduceDataOptions:
    return common.ReduceDataOptions().calcs([calculation]).fields("").values(False)


def _stat(panel: Panel) -> Any:
    made = stat.Panel().reduce_options(_reduced(panel.calculation)).min(0)
    made = made.color_mode(common_models.BigValueColorMode.VALUE).graph_mode(common_models.BigValueGraphMode.AREA)
    made = made.text_mode(common_models.BigValueTextMode.VALUE if len(panel.queries) == 1 else common_models.BigValueTextMode.VALUE_AND_NAME)
    return made if panel.maximum is None else made.max(panel.maximum)


def _words(panel: Panel) -> Any:
    made = stat.Panel().reduce_options(_reduced("lastNotNull")).min(0).orientation(common_models.VizOrientation.HORIZONTAL)
    made = made.color_mode(common_models.BigValueColorMode.BACKGROUND_SOLID).graph_mode(common_models.BigValueGraphMode.NONE)
    return made.text_mode(common_models.BigValueTextMode.NAME)


def _states(panel: Panel) -> Any:
    made = statetimeline.Panel().show_value(common_models.VisibilityMode.NEVER).merge_values(True).row_height(0.8).min(0)
    return made.legend(common.VizLegendOptions().show_legend(False).display_mode(common_models.LegendDisplayMode.LIST))


def _bars(panel: Panel) -> Any:
    made = bargauge.Panel().reduce_options(_reduced("lastNotNull")).min(0).orientation(common_models.VizOrientation.HORIZONTAL)
    made = made.display_mode(common_models.BarGaugeDisplayMode.BASIC)
    return made if panel.maximum is None else made.max(panel.maximum)


def _series(panel: Panel) -> Any:
    legend = common.VizLegendOptions().display_mode(common_models.LegendDisplayMode.TABLE).placement(common_models.LegendPlacement.BOTTOM)
    legend = legend.show_legend(True).calcs(["lastNotNull", "max"]).sort_by("Max").sort_desc(True)  # not all lines of it are visible
    tooltip = common.VizTooltipOptions().mode(common_models.TooltipDisplayMode.MULTI).sort(common_models.SortOrder.DESCENDING)
    made = timeseries.Panel().legend(legend).tooltip(tooltip).min(0).line_width(1).fill_opacity(20 if panel.stacked else 5)
    made = made.show_points(common_models.VisibilityMode.AUTO).axis_soft_max(SMALL.get(panel.unit, 1))
    if panel.logarithmic:
        made = made.scale_distribution(common.ScaleDistributionConfig().type(common_models.ScaleDistribution.LOG).log(2)).min(1)
    if panel.stacked:
        made = made.stacking(common.StackingConfig().mode(common_models.StackingMode.NORMAL).group("A"))
    if len(panel.steps) > 1:
        made = made.thresholds_style(common.GraphThresholdsStyleConfig().mode(common_models.GraphThresholdsStyleMode.DASHED))
    return made if panel.maximum is None else made.max(panel.maximum)


def _table(panel: Panel) -> Any:
    options = {
        "excludeByName": {"Time": True},
        "indexByName": {name: position for position, (name, _, _) in enumerate(panel.columns)},
        "renameByName": {},
    }
    made = table.Panel().with_transformation(models.DataTransformerConfig(id_val="organize", options=options))
    for name, title, width in panel.columns:
        properties = [models.DynamicConfigValue(id_val="displayName", value=title), models.DynamicConfigValue(id_val="custom.width", value=width)]
        made = made.override_by_name(name, properties)
    return made.show_header(True).cell_height(common_models.TableCellHeight.SM).min(0)
