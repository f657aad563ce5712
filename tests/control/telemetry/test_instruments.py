"""Which instrument a metric becomes, and values out of /proc."""

import gc
import os
import resource
import subprocess
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, Metric, Sum

from framegate.control.telemetry.fold import Fold
from framegate.control.telemetry.instruments import ProcessMetrics, observe_fold, observe_processes
from framegate.proxy.cells import CAUSES, METRICS
from framegate.proxy.cells.standard_metrics import PROCESS_METRICS
from tests.fakes.cells import fill
from tests.fakes.plane import FakePlane, handler_process


@pytest.fixture
def metrics(plane: FakePlane) -> Iterator[dict[str, Metric]]:
    plane.writers[0].publish(plane.layout.count * (1).to_bytes(8, "little"))
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    meter = provider.get_meter("test")
    observe_fold(meter, Fold(plane))
    observe_processes(meter, ProcessMetrics(plane))
    data = reader.get_metrics_data()
    assert data is not None
    yield {metric.name: metric for resource in data.resource_metrics for scope in resource.scope_metrics for metric in scope.metrics}
    provider.shutdown()


def test_counters_are_monotonic_sums_and_gauges_are_not(metrics: dict[str, Metric]) -> None:
    for metric in METRICS:
        if metric.source == "processor" and metric.kind != "histogram":
            data = metrics[metric.name].data
            assert (isinstance(data, Sum) and data.is_monotonic) == (metric.kind == "counter"), metric.name
            assert (metrics[metric.name].unit, metrics[metric.name].description) == (metric.unit, metric.description)


def test_a_counter_of_one_thing_among_many_begins_with_its_first_event(plane: FakePlane) -> None:
    reader = InMemoryMetricReader()
    fold = Fold(plane)
    observe_fold(MeterProvider([reader], shutdown_on_exit=False).get_meter("test"), fold)

    def points(name: str) -> list[dict[str, str]]:
        data = reader.get_metrics_data()
        fold.end()
        assert data is not None
        found = [metric for scope in data.resource_metrics[0].scope_metrics for metric in scope.metrics if metric.name == name]
        return [dict(point.attributes) for metric in found for point in metric.data.data_points]  # type: ignore[arg-type]

    assert points("framegate.channel.mute.time") == []
    first = len(points("framegate.connection.closed"))
    assert 0 < first < len(CAUSES) * len(plane.config.listeners)
    assert len(points("framegate.connection.accepted")) == len(plane.config.listeners)
    assert len(points("framegate.channel.muted")) == 7, "a gauge says 0"
    assert "framegate.reason" in {key for point in points("framegate.frame.rejected") for key in point}, "its alert speaks at the first"
    assert points("framegate.tap.dropped") == points("framegate.handler.requests") == [], "there are none"
    fill(plane, 0, {("framegate.connection.closed", "plain", "peer_closed", "downstream"): 1})
    assert {"framegate.listener": "plain", "framegate.cause": "peer_closed", "framegate.side": "downstream"} in points("framegate.connection.closed")
    assert len(points("framegate.connection.closed")) == first + 1


def test_each_process_has_each_value(plane: FakePlane) -> None:
    metrics = ProcessMetrics(plane)
    for name in (metric.name for metric in PROCESS_METRICS):
        values = metrics.read(name)
        of_control = name.startswith("cpython.")
        assert {attributes["framegate.process"] for attributes, _ in values} == ({"control"} if of_control else {"control", "processor-0"})
        may_be_zero = of_control or name.endswith("run_delay")
        assert all(value > 0 for attributes, value in values if attributes.get("cpu.mode") != "system" and not may_be_zero)


def test_garbage_collections_are_counted_by_generation(plane: FakePlane) -> None:
    metrics = ProcessMetrics(plane)
    before = {attributes["cpython.gc.generation"]: value for attributes, value in metrics.read("cpython.gc.collections")}
    gc.collect()
    after = {attributes["cpython.gc.generation"]: value for attributes, value in metrics.read("cpython.gc.collections")}
    assert list(before) == ["0", "1", "2"]
    assert after["2"] == before["2"] + 1


def test_a_process_is_as_old_as_it_is(plane: FakePlane) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        plane.handlers = [handler_process(0, pid=process.pid)]
        ages = {attributes["framegate.process"]: value for attributes, value in ProcessMetrics(plane).read("process.uptime")}
        process.kill()
    assert 0 <= ages["handler-0"] < 10
    assert ages["control"] > ages["handler-0"]


def test_processes_are_shown_as_long_as_they_run(plane: FakePlane) -> None:
    def shown() -> set[str]:
        return {attributes["framegate.process"] for attributes, _ in ProcessMetrics(plane).read("process.memory.usage")}

    plane.handlers = [handler_process(0), handler_process(1, pid=0, state="restarting")]
    assert shown() == {"control", "processor-0", "handler-0"}
    plane.writers[0].start(2**22 + 1, 2, 1)
    assert shown() == {"control", "handler-0"}, "no process has that number"


def test_memory_is_that_of_the_process(plane: FakePlane) -> None:
    with open("/proc/self/statm", encoding="ascii") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    value = next(value for attributes, value in ProcessMetrics(plane).read("process.memory.usage") if attributes["framegate.process"] == "control")
    assert abs(value - resident) < 32 * 1024 * 1024


def test_processor_time_goes_on_when_another_process_takes_the_slot(plane: FakePlane) -> None:
    metrics = ProcessMetrics(plane)

    def spent() -> float:
        return sum(value for attributes, value in metrics.read("process.cpu.time") if attributes["framegate.process"] == "processor-0")

    before = spent()
    plane.writers[0].start(1, 2, 1)
    with open("/proc/1/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    others = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    assert spent() == pytest.approx(before + others, abs=1)


def test_the_limit_of_descriptors_is_that_in_force_and_delays_go_on_with_the_next_process(plane: FakePlane) -> None:
    metrics = ProcessMetrics(plane)
    limits = {attributes["framegate.process"]: value for attributes, value in metrics.read("framegate.process.file_descriptor.limit")}
    assert limits["control"] == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    first = {at["framegate.process"]: value for at, value in metrics.read("framegate.process.run_delay")}
    with subprocess.Popen(["sleep", "60"]) as process:
        plane.writers[0].start(process.pid, 2, 1)
        second = {at["framegate.process"]: value for at, value in metrics.read("framegate.process.run_delay")}
        process.kill()
    assert second["processor-0"] >= first["processor-0"]
