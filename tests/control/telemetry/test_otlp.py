"""Pushing to a collector."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricsData

from framegate.control.telemetry.account import Account
from framegate.control.telemetry.environment import Target, judge
from framegate.control.telemetry.fold import Fold
from framegate.control.telemetry.histograms import Injector
from framegate.control.telemetry.instruments import observe_fold
from framegate.control.telemetry.otlp import OtlpReader
from framegate.proxy.config.model import OtlpConfig, TelemetryConfig
from tests.fakes.cells import fill
from tests.fakes.collector import FakeCollector
from tests.fakes.plane import FakePlane, fake_config


def wanted(endpoint: str) -> Target:
    metrics = judge(TelemetryConfig(otlp=OtlpConfig(endpoint=endpoint)), {}).metrics
    assert metrics is not None
    return metrics


@pytest.fixture
def plane() -> Iterator[FakePlane]:
    plane = FakePlane(fake_config("unix:unused", None))
    yield plane
    plane.close()


def test_each_interval_exports_what_the_cells_say_then(plane: FakePlane) -> None:
    with FakeCollector() as collector:
        fold = Fold(plane)
        reader = OtlpReader(plane, fold, wanted(collector.endpoint), 50, Account(), {})
        observe_fold(MeterProvider([reader], shutdown_on_exit=False).get_meter("x"), fold)
        collector.wait(1)
        fill(plane, 0, {("framegate.event_loop.lag",): [0, 4, *[0] * 9, 8_000_000]})
        count = len(collector.requests) + 2
        (point, _) = collector.wait(count)["framegate.event_loop.lag"].histogram.data_points
        reader.shutdown(1_000)
    assert (point.count, point.sum, list(point.bucket_counts)) == (4, 0.008, [0, 4, *[0] * 9])
    assert (point.HasField("min"), point.HasField("max")) == (False, False)
    assert point.start_time_unix_nano == plane.started_ns


def test_what_was_counted_last_is_exported_at_the_end(plane: FakePlane) -> None:
    with FakeCollector() as collector:
        fold = Fold(plane)
        reader = OtlpReader(plane, fold, wanted(collector.endpoint), 3_600_000, Account(), {})
        observe_fold(MeterProvider([reader], shutdown_on_exit=False).get_meter("x"), fold)
        fill(plane, 0, {("framegate.tap.io",): 9})
        reader.shutdown(2_000)
        (point,) = collector.wait(1)["framegate.tap.io"].sum.data_points
    assert point.as_int == 9


def test_after_the_end_nothing_asks_for_values_any_more(plane: FakePlane) -> None:
    with FakeCollector() as early:
        pass
    asked: list[int] = []
    reader = OtlpReader(plane, Fold(plane), wanted(early.endpoint), 20, Account(), {})
    meter = MeterProvider([reader], shutdown_on_exit=False).get_meter("x")
    meter.create_observable_counter("things", [lambda options: asked.append(1) or []])
    deadline = time.monotonic() + 5
    while not asked and time.monotonic() < deadline:
        time.sleep(0.01)
    reader.shutdown(200)
    count = len(asked)
    assert not any(thread.name.startswith("OtelPeriodic") and thread is reader._daemon_thread for thread in threading.enumerate())
    assert len(asked) == count >= 1


def test_an_export_that_cannot_be_made_costs_itself_and_not_the_thread(
    plane: FakePlane, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sound = Injector.inject

    def broken(*arguments: Any) -> MetricsData:
        monkeypatch.setattr(Injector, "inject", sound)
        raise ValueError("our bug")

    monkeypatch.setattr(Injector, "inject", broken)
    with FakeCollector() as collector:
        fold = Fold(plane)
        reader = OtlpReader(plane, fold, wanted(collector.endpoint), 50, Account(), {})
        observe_fold(MeterProvider([reader], shutdown_on_exit=False).get_meter("x"), fold)
        collector.wait(1)
        reader.shutdown(1_000)
    assert "our bug" in caplog.text
