"""The tables of metrics and variables in the docs, and the names in them."""

import re
from pathlib import Path

import pytest
from opentelemetry.semconv._incubating.metrics import cpython_metrics, process_metrics, rpc_metrics

from framegate.control.telemetry.__main__ import main
from framegate.control.telemetry.catalogue import EXPORTED, document, label_name, prometheus_name
from framegate.control.telemetry.environment import CHOICES, LISTS
from framegate.proxy.cells.metric import Metric

DOCUMENT = Path(__file__).resolve().parents[3] / "deploy" / "metrics.md"
UNITS = {"s", "By", "By/s"}  # not "1": the collector makes ``_ratio`` of it
IDS = [metric.name for metric in EXPORTED]
STANDARD = {
    value
    for module in (cpython_metrics, process_metrics, rpc_metrics)
    for name, value in vars(module).items()
    if name.isupper() and isinstance(value, str)
}


def test_the_file_is_what_the_code_says() -> None:
    assert DOCUMENT.read_text() == document(), "run python -m framegate.control.telemetry"


def test_the_command_writes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "metrics.md"
    monkeypatch.setattr("sys.argv", ["telemetry", "--output", str(path)])
    assert main() == 0
    assert (path.read_text(), capsys.readouterr().out) == (document(), f"{path}\n")


def test_every_metric_and_every_variable_that_is_judged_has_its_row() -> None:
    rows = [line for line in document().splitlines() if line.startswith("| `")]
    for name in (*(metric.name for metric in EXPORTED), *CHOICES, *LISTS):
        assert sum(line.startswith(f"| `{name}` |") for line in rows) == 1
    assert all(line.count(" | ") in (1, 2, 6) for line in rows)


@pytest.mark.parametrize("metric", EXPORTED, ids=IDS)
def test_names_and_units_are_as_the_conventions_have_them(metric: Metric) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*(\.[a-z][a-z0-9]*(_[a-z0-9]+)*)+", metric.name)
    assert metric.name.startswith("framegate.") or metric.name in STANDARD
    words = set(re.split(r"[._]", metric.name))
    assert not words & {"total", "seconds", "bytes", "milliseconds", "percent", "ratio"}
    assert metric.unit in UNITS or re.fullmatch(r"\{[a-z_]+\}(/s)?", metric.unit)
    assert metric.description.endswith(".")
    assert bool(metric.bounds) == (metric.kind == "histogram")
    assert list(metric.bounds) == sorted(set(metric.bounds))
    for key, values in metric.attributes:
        assert re.fullmatch(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+", key)
        assert len(values) == len(set(values))


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
