"""The tables of metrics and variables in the docs, and the names in them."""

import ast
import importlib
import inspect
import pkgutil
import re
from pathlib import Path
from types import ModuleType
from unittest.mock import Mock

import pytest
from opentelemetry import semconv

from framegate.control.telemetry.catalogue import EXPORTED, label_name, prometheus_name
from framegate.control.telemetry.environment import CHOICES, LISTS
from framegate.proxy.cells.metric import Metric
from framegate.proxy.cells.metrics import PIPELINE_METRICS

ROOT = Path(__file__).resolve().parents[3]
CONTROL = ROOT / "control"
DOCUMENT = ROOT / "deploy" / "metrics.md"
UNITS = {"s", "By", "By/s"}  # not "1": the collector makes ``_ratio`` of it
IDS = [metric.name for metric in EXPORTED]
KINDS = {"counter": {"counter"}, "gauge": {"up_down_counter", "gauge"}, "histogram": {"histogram"}}
"""The instruments of the conventions that a kind of ours may be."""


def conventions(kind: str) -> list[ModuleType]:
    """The modules of the published conventions, the stable ones last: of attributes, or of metrics."""
    folders = [f"{semconv.__path__[0]}/{group}/{kind}" for group in ("_incubating", ".")]
    return [
        importlib.import_module(f"opentelemetry.semconv.{'_incubating.' if '_incubating' in folder else ''}{kind}.{found.name}")
        for folder in folders
        for found in pkgutil.iter_modules([folder])
    ]


def standard_attributes() -> set[str]:
    """Those that are not deprecated, which the docstring after a name says."""
    texts = [Path(str(module.__file__)).read_text() for module in conventions("attributes")]
    constant = re.compile(r'^[A-Z_0-9]+: Final = \(?\s*"([a-z0-9_.]+)"\s*\)?\s*("""\s*Deprecated)?', re.MULTILINE)
    named = [match for text in texts for match in constant.findall(text)]
    return {name for name, deprecated in named if not deprecated}


def standard_metrics() -> dict[str, tuple[str, str]]:
    """Kind and unit, by name: the published functions make the instruments."""
    found: dict[str, tuple[str, str]] = {}
    for module in conventions("metrics"):
        for name, make in vars(module).items():
            if name.startswith("create_") and name != "create_":
                meter = Mock()
                make(*(meter, ())[: len(inspect.signature(make).parameters)])  # observable ones have callbacks, too
                ((called, _, given),) = meter.method_calls
                found[given["name"]] = called.removeprefix("create_").removeprefix("observable_"), given["unit"]
    return found


STANDARD = standard_metrics()


def test_every_metric_and_every_variable_that_is_judged_has_its_row() -> None:
    rows = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("| `")]
    for name in (*(metric.name for metric in EXPORTED), *CHOICES, *LISTS):
        assert sum(line.startswith(f"| `{name}` |") for line in rows) == 1
    assert all(line.count(" | ") in (1, 2, 6) for line in rows)


@pytest.mark.parametrize("metric", EXPORTED, ids=IDS)
def test_names_and_units_are_as_the_conventions_have_them(metric: Metric) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*(\.[a-z][a-z0-9]*(_[a-z0-9]+)*)+", metric.name)
    if not metric.name.startswith("framegate."):
        kind, unit = STANDARD[metric.name]
        assert (kind in KINDS[metric.kind], unit) == (True, metric.unit)
    words = set(re.split(r"[._]", metric.name))
    assert not words & {"total", "seconds", "bytes", "milliseconds", "percent", "ratio"}
    assert metric.unit in UNITS or re.fullmatch(r"\{[a-z_]+\}(/s)?", metric.unit)
    assert re.fullmatch(r'[^"\\\n]*\.', metric.description), "it needs no escapes in a scrape"
    assert bool(metric.bounds) == (metric.kind == "histogram")
    assert list(metric.bounds) == sorted(set(metric.bounds))
    for key, values in metric.attributes:
        assert re.fullmatch(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+", key)
        assert len(values) == len(set(values))


def test_attributes_are_those_of_the_conventions_or_ours() -> None:
    known = standard_attributes()
    assert {"error.type", "server.address"} < known
    used = {key for metric in (*EXPORTED, *PIPELINE_METRICS) for key, _ in metric.attributes}
    spaces = {name.partition(".")[0] for name in known}
    for path in (CONTROL / "telemetry").glob("*.py"):  # attributes of spans, log records and the resource
        texts = [node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        used.update(text for text in texts if re.fullmatch(r"[a-z_]+(\.[a-z0-9_]+)+", text) and text.partition(".")[0] in spaces)
    ours = {metric.name.removeprefix("framegate.") for metric in EXPORTED}  # as they are written in the code
    assert {key for key in used - ours if not key.startswith("framegate.")} - known - STANDARD.keys() == {
        "telemetry.otlp.endpoint",  # a setting
        "network.peer",  # the beginning of names
    }


def test_no_two_metrics_are_one_in_prometheus() -> None:
    names = [prometheus_name(metric.name, metric.unit, monotonic=metric.kind == "counter") for metric in EXPORTED]
    names += [f"{name}{suffix}" for name, metric in zip(names, EXPORTED, strict=True) if metric.kind == "histogram" for suffix in ("_count", "_sum")]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("name", "unit", "monotonic", "expected"),
    [
        ("framegate.frame.count", "{frame}", True, "framegate_frame_count_total"),
        ("framegate.io", "By", True, "framegate_io_bytes_total"),
        ("framegate.memory_pool.depleted.time", "s", True, "framegate_memory_pool_depleted_time_seconds_total"),
        ("framegate.connection.active", "{connection}", False, "framegate_connection_active"),
        ("framegate.draining", "{drain}", False, "framegate_draining"),
        ("framegate.rate.io.limit", "By/s", False, "framegate_rate_io_limit_bytes_per_second"),
        ("framegate.rate.frame.limit", "{frame}/s", False, "framegate_rate_frame_limit_per_second"),
        ("framegate.tls.certificate.not_after", "s", False, "framegate_tls_certificate_not_after_seconds"),
        ("rpc.server.call.duration", "s", False, "rpc_server_call_duration_seconds"),
    ],
)
def test_a_name_gets_its_unit_and_total(name: str, unit: str, monotonic: bool, expected: str) -> None:
    assert prometheus_name(name, unit, monotonic=monotonic) == expected


def test_labels_have_no_dots() -> None:
    assert label_name("network.io.direction") == "network_io_direction"
