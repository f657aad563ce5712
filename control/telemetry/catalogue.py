"""The tables of ``deploy/metrics.md``: every metric that framegate exports, and what it does with each OTEL_* variable."""

from collections.abc import Iterable, Iterator
from typing import Final

from control.telemetry.fold import PER_WORKER, WORKER
from control.telemetry.names import label_name, prometheus_name
from control.telemetry.variables import PER_SIGNAL, VARIABLES
from proxy.cells.metrics import METRICS, PIPELINE_METRICS, Metric
from proxy.cells.standard_metrics import CALLS, PROCESS_METRICS

__all__ = ["EXPORTED", "document"]

EXPORTED: Final = (*METRICS, CALLS, *PROCESS_METRICS)
"""Every metric of framegate itself, in the order of the table."""
_ALL: Final = (*EXPORTED, *PIPELINE_METRICS)
_WHO: Final = {"processor": "processors", "control": "control", "pipeline": "the Spark job, over OTLP"}
_FEW: Final = 6
_OPEN: Final = {
    "framegate.listener": "names of listeners",
    "framegate.upstream": "names of upstreams",
    "framegate.consumer": "names of the tap's consumers, at most 50, and `others`",
    "framegate.certificate": "what certificates are for",
    "framegate.process": "`control`, `processor-0` …, `handler-0` …",
    "rpc.method": "methods of the API, and `_OTHER` for all that there are not",
    "rpc.response.status_code": "names of gRPC's codes",
    "error.type": "names of gRPC's codes but `OK`",
    WORKER: "slots of processors, and `retired`",
}
_HEAD: Final = """\
# Metrics and variables

Made by `python -m control.telemetry` out of the code; a test compares.

## Metrics

The names are those over OTLP and, as collectors translate them, those of a scrape, where a histogram has `_bucket`, `_count` and `_sum`
behind its name. A label is the attribute's name with `_` for each dot. An attribute without a value is absent: `error.type` of what went well.

| Metric | In Prometheus | Kind | Unit | Attributes | What it says | Who counts |
| --- | --- | --- | --- | --- | --- | --- |
"""
_VALUES: Final = """
## Values of attributes

| Attribute | Of | Values |
| --- | --- | --- |
"""
_VARIABLES: Final = """
## Variables of the environment

What `telemetry` in framegate.yaml says wins (not over `OTEL_SDK_DISABLED`); where it is silent, these hold. A value that cannot be used keeps
framegate from starting, with the variable's name, its value (never that of a secret), and what is possible. An empty value is as good as none.
Of those with a star there is one for each signal, too, which wins: `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`. Other OTEL_* variables have no effect.

| Variable | Values | Without it | What it does |
| --- | --- | --- | --- |
"""


def document() -> str:
    """The whole file."""
    rows = "".join(_row(_metric_cells(metric)) for metric in _ALL)
    values = "".join(_row(cells) for cells in _value_rows())
    variables = "".join(_row((f"`{item.name}`{' *' if item.variants else ''}", item.takes.words, item.default, item.meaning)) for item in VARIABLES)
    assert all(variable.name.startswith(PER_SIGNAL) for variable in VARIABLES if variable.variants), "the text above the table says so"
    return f"{_HEAD}{rows}{_VALUES}{values}{_VARIABLES}{variables}"


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def _attributes(metric: Metric) -> list[tuple[str, tuple[str, ...]]]:
    worker = [(WORKER, ())] if metric.name in PER_WORKER else []
    return [*metric.attributes, *worker]


def _metric_cells(metric: Metric) -> Iterator[str]:
    yield f"`{metric.name}`"
    yield f"`{prometheus_name(metric.name, metric.unit, monotonic=metric.kind == 'counter')}`"
    yield metric.kind
    yield f"`{metric.unit}`"
    yield ", ".join(f"`{key}`{_inline(key, values)}" for key, values in _attributes(metric))
    yield metric.description
    yield _WHO[metric.source]


def _inline(key: str, values: tuple[str, ...]) -> str:
    named = [value for value in values if value]
    return f" ({', '.join(named)})" if named and len(named) <= _FEW else ""


def _value_rows() -> Iterator[tuple[str, str, str]]:
    """The values that have no room in the first table, of each attribute by its metrics."""
    found: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for metric in _ALL:
        for key, values in _attributes(metric):
            if not _inline(key, values):
                found.setdefault((key, values), []).append(metric.name)
    for (key, values), names in sorted(found.items()):
        listed = ", ".join(f"`{value}`" for value in values if value) or _OPEN[key]
        yield f"`{key}` (`{label_name(key)}`)", ", ".join(f"`{name}`" for name in names) if len(names) <= _FEW else f"{len(names)} metrics", listed
