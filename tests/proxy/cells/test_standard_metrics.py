"""Metrics that OpenTelemetry's conventions name have its names and units."""

import inspect

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.semconv._incubating.metrics import cpython_metrics, process_metrics, rpc_metrics

from framegate.proxy.cells.metric import Metric
from framegate.proxy.cells.metrics import METRICS
from framegate.proxy.cells.standard_metrics import CALLS, PROCESS_METRICS
from tests.fakes.cases import each_of


def conventional_unit(name: str) -> str | None:
    function = f"create_{name.replace('.', '_')}"
    for module in (cpython_metrics, process_metrics, rpc_metrics):
        if hasattr(module, function):
            meter = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False).get_meter("x")
            create = getattr(module, function)
            made = create(meter, []) if len(inspect.signature(create).parameters) > 1 else create(meter)
            unit: str = made.unit if hasattr(made, "unit") else made._unit
            return unit
    return None


@each_of("metric", [*PROCESS_METRICS, CALLS])
def test_names_and_units_are_those_of_the_conventions(metric: Metric) -> None:
    ours = metric.name.startswith("framegate.")  # the conventions have none for it
    assert conventional_unit(metric.name) == (None if ours else metric.unit)
    assert metric.source == "control"


def test_none_of_them_is_in_the_table_of_our_own() -> None:
    assert not {metric.name for metric in (*PROCESS_METRICS, CALLS)} & {metric.name for metric in METRICS}
