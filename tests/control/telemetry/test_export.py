"""Spans and log records, from the first row to the last; and what is loaded where there are none."""

import asyncio
import dataclasses
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from framegate.control.errors import StartError
from framegate.control.events import Bus
from framegate.control.logs import RowLog
from framegate.control.meters import Meters
from framegate.control.task_monitor import TaskMonitor
from framegate.control.telemetry.export import Early, Export
from framegate.proxy.config.model import OtlpConfig, PrometheusConfig, ProxyConfig, TelemetryConfig
from tests.control.telemetry.test_traces import MADE_NS, SEAL, SEGMENT
from tests.fakes.jobs import environment
from tests.fakes.otlp_receiver import OtlpReceiver, attributes_of
from tests.fakes.plane import FakePlane, fake_config


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    monkeypatch.setenv("OTEL_BLRP_SCHEDULE_DELAY", "20")


@pytest.fixture
def log(tmp_path: Any) -> Iterator[RowLog]:
    with (tmp_path / "rows").open("wb", buffering=0) as file:
        made = RowLog(file.fileno())
        yield made
        made.close()


def configured(endpoint: str, *signals: Any) -> ProxyConfig:
    return dataclasses.replace(fake_config("unix:unused"), telemetry=TelemetryConfig(otlp=OtlpConfig(endpoint=endpoint, signals=signals)))


class Bench:
    """An export, as ``framegate.control.runtime`` has it."""

    def __init__(self, config: ProxyConfig, log: RowLog) -> None:
        self.log = log
        self.plane = FakePlane(config)
        self.failures: list[Exception] = []
        self.events = Bus((log,), on_failure=self.failures.append)
        self.export = Export(config, log, TaskMonitor(log, Meters()))

    def begin(self) -> None:
        self.export.load(self.plane.config)
        self.export.begin(self.plane, {}, self.events)

    def change(self, config: ProxyConfig) -> None:
        self.export.load(config)
        self.export.follow(self.export.stage(config))

    async def _stop(self) -> None:
        await self.export.stop_metrics()
        await self.export.stop()

    def stop(self) -> None:
        asyncio.run(self._stop())
        self.plane.close()


def test_rows_and_segments_before_the_exporters_are_ready_are_exported(receiver: OtlpReceiver, log: RowLog) -> None:
    bench = Bench(configured(receiver.endpoint, "traces", "logs"), log)
    log.write("early", a=1)
    bench.events.publish({"event": "files_replaced", "owner": "o", "kind": "tls", "files": []})
    bench.export.on_segment(SEGMENT, MADE_NS, SEAL)
    bench.begin()
    log.write("late", a=2)
    bench.export.on_segment(dataclasses.replace(SEGMENT, base=9_000), MADE_NS, SEAL)
    bench.stop()
    assert [record.event_name for record in receiver.logs] == ["framegate.early", "framegate.files_replaced", "framegate.late"]
    assert [attributes_of(span)["framegate.tap.base_offset"] for span in receiver.named("framegate.tap.segment")] == [512, 9_000]
    assert len(receiver.named("framegate.reload")) == 1
    assert bench.failures == []


@pytest.mark.parametrize(("signals", "spans", "rows"), [(("metrics",), 0, 0), (("traces",), 1, 0), (("logs",), 0, 1), (("traces", "logs"), 1, 1)])
def test_only_what_is_wanted_is_made(receiver: OtlpReceiver, log: RowLog, signals: tuple[str, ...], spans: int, rows: int) -> None:
    bench = Bench(configured(receiver.endpoint, *signals), log)
    assert (bench.export.traces, log.copy_to is not None) == (bool(spans), bool(rows))
    bench.begin()
    assert (bench.export.calls is not None) is bool(spans)
    bench.events.publish({"event": "change_settled", "change": "pool", "result": "made", "reason": "x"})
    bench.stop()
    assert (len(receiver.spans), len(receiver.logs)) == (spans, rows)


def test_an_exporter_that_is_not_installed_is_said(receiver: OtlpReceiver, log: RowLog, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(configured(receiver.endpoint, "traces"), log)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc.trace_exporter", None)
    with pytest.raises(StartError, match=r"pip install 'framegate\[otlp\]'"):
        bench.begin()


def test_variables_that_cannot_be_are_a_fault_at_once(log: RowLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "sometimes")
    with pytest.raises(StartError, match="OTEL_TRACES_SAMPLER"):
        Export(configured("http://127.0.0.1:1", "traces"), log, TaskMonitor(log, Meters()))


@pytest.mark.parametrize(
    ("telemetry", "sections"),
    [
        (TelemetryConfig(), None),
        (TelemetryConfig(prometheus=PrometheusConfig(address="127.0.0.1:0")), ["prometheus"]),
        (TelemetryConfig(otlp=OtlpConfig(), prometheus=PrometheusConfig(address="127.0.0.1:0")), ["otlp", "prometheus"]),
    ],
)
def test_sections_that_the_environment_disables_are_a_warning(
    log: RowLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, telemetry: TelemetryConfig, sections: list[str] | None
) -> None:
    config = dataclasses.replace(fake_config("unix:unused"), telemetry=telemetry)
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    bench = Bench(config, log)
    bench.begin()
    bench.stop()
    assert bench.export._telemetry is None
    monkeypatch.delenv("OTEL_SDK_DISABLED")
    bench = Bench(config, log)
    bench.begin()
    bench.stop()
    assert (bench.export._telemetry is None, bench.export.prometheus_address is None) == (sections is None, sections is None)
    log.close()
    rows = [json.loads(line) for line in (tmp_path / "rows").read_text().splitlines()]
    told = [(row["level"], row["event"], row["variable"], row["sections"]) for row in rows]
    assert told == ([] if sections is None else [("warning", "telemetry_disabled", "OTEL_SDK_DISABLED", sections)])


def test_judging_loads_nothing_of_opentelemetry() -> None:
    program = """
import sys
from framegate.control.task_monitor import TaskMonitor
from framegate.control.logs import RowLog
from framegate.control.meters import Meters
from framegate.control.telemetry.export import Export
from framegate.proxy.config.model import ListenerConfig, OtlpConfig, ProxyConfig, TelemetryConfig
otlp = OtlpConfig(endpoint="http://127.0.0.1:1", signals=("metrics", "traces", "logs"))
config = ProxyConfig(node="n", listeners=(ListenerConfig(name="a", address="x", handler="m:h"),), telemetry=TelemetryConfig(otlp=otlp))
log = RowLog(2)
Export(config, log, TaskMonitor(log, Meters()))
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""
    done = subprocess.run([sys.executable, "-c", program], env=environment(), capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr


@pytest.mark.parametrize("count", [2, 3, 4])
def test_the_last_early_items_are_kept_and_passed_on_in_order(count: int) -> None:
    early: Early[int] = Early(3)
    for number in range(count):
        early.put(number)
    taken: list[int] = []
    early.hand_over(taken.append)
    early.put(9)
    assert taken == [*list(range(count))[-3:], 9]


def test_nothing_is_lost_between_keeping_and_giving_on() -> None:
    early: Early[int] = Early(100_000)
    taken: list[int] = []
    began = threading.Event()

    def put() -> None:
        for number in range(20_000):
            early.put(number)
            began.set()

    thread = threading.Thread(target=put)
    thread.start()
    began.wait()
    early.hand_over(taken.append)
    thread.join()
    assert sorted(taken) == list(range(20_000))
