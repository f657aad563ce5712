"""Spans and log records, from the first row to the last; and what is loaded where there are none."""

import asyncio
import dataclasses
import json
import socket
import subprocess
import sys
import threading
import time
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
from tests.fakes.cells import fill
from tests.fakes.jobs import environment
from tests.fakes.otlp_receiver import HttpReceiver, OtlpReceiver, attributes_of
from tests.fakes.plane import FakePlane, fake_config
from tests.fakes.tracing import scraped
from tests.fakes.waiting import until


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    monkeypatch.setenv("OTEL_BLRP_SCHEDULE_DELAY", "20")


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


def test_judging_and_waiting_for_scrapes_load_nothing_of_opentelemetry() -> None:
    program = """
import dataclasses, sys
sys.path.append(sys.argv[1])
from framegate.control.task_monitor import TaskMonitor
from framegate.control.logs import RowLog
from framegate.control.meters import Meters
from framegate.control.telemetry.export import Export
from framegate.control.events import Bus
from framegate.proxy.config.model import ListenerConfig, OtlpConfig, PrometheusConfig, ProxyConfig, TelemetryConfig
from tests.fakes.plane import FakePlane
otlp = OtlpConfig(endpoint="http://127.0.0.1:1", signals=("metrics", "traces", "logs"))
config = ProxyConfig(node="n", listeners=(ListenerConfig(name="a", address="x", handler="m:h"),), telemetry=TelemetryConfig(otlp=otlp))
log = RowLog(2)
monitor = TaskMonitor(log, Meters())
Export(config, log, monitor)
config = dataclasses.replace(config, processors=1, telemetry=TelemetryConfig(prometheus=PrometheusConfig(address="127.0.0.1:0")))
export = Export(config, log, monitor)
export.load(config)
export.begin(FakePlane(config), {}, Bus((log,), on_failure=print))
print(export.prometheus_address is not None, [name for name in sys.modules if name.startswith("opentelemetry")])
"""
    command = [sys.executable, "-c", program, str(Path(__file__).parents[3])]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.returncode) == ("True []", 0), done.stderr


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


def telling(endpoint: str = "", prometheus: str = "", protocol: Any = "grpc", interval_ms: int = 100) -> ProxyConfig:
    otlp = OtlpConfig(endpoint=endpoint, protocol=protocol, interval_ms=interval_ms, signals=("metrics", "traces", "logs")) if endpoint else None
    scraped = PrometheusConfig(address=prometheus) if prometheus else None
    return dataclasses.replace(fake_config("unix:unused"), telemetry=TelemetryConfig(otlp=otlp, prometheus=scraped))


def counted(receiver: Any, value: int, calls: int) -> tuple[int, int]:
    """The starts of a counter and of the histogram of calls, once a receiver has these values of them."""

    def found() -> tuple[int, int] | None:
        for received in receiver.received:
            metrics = received.metrics
            if metrics and len(metrics["rpc.server.call.duration"].histogram.data_points):
                (call,), (point,) = metrics["rpc.server.call.duration"].histogram.data_points, metrics["framegate.tap.io"].sum.data_points
                if (point.as_int, call.count) == (value, calls):
                    return point.start_time_unix_nano, call.start_time_unix_nano
        return None

    starts: tuple[int, int] = receiver.wait(found)
    return starts


@pytest.mark.parametrize(("other", "protocol"), [(OtlpReceiver, "grpc"), (HttpReceiver, "http/protobuf")])
def test_another_collector_gets_the_same_series_and_the_former_nothing_more(receiver: OtlpReceiver, log: RowLog, other: Any, protocol: str) -> None:
    bench = Bench(telling(receiver.endpoint), log)
    fill(bench.plane, 0, {("framegate.tap.io",): 5})
    bench.begin()
    bench.export.record_call("a.B/C", "OK", 0.1)
    starts = counted(receiver, 5, 1)
    log.write("early")
    receiver.wait(lambda: receiver.logs)
    with other() as taken:
        bench.change(telling(taken.endpoint, protocol=protocol))
        fill(bench.plane, 0, {("framegate.tap.io",): 12})
        bench.export.record_call("a.B/C", "OK", 0.1)
        assert counted(taken, 12, 2) == starts
        former = len(receiver.received)
        log.write("late")
        bench.events.publish({"event": "change_settled", "change": "pool", "result": "made", "reason": "x"})
        for signal in ("trace", "logs"):
            taken.wait(lambda signal=signal: [item for received in taken.received for item in received.items(signal)])
        bench.stop()
    assert (len(receiver.received), [row.event_name for row in receiver.logs]) == (former, ["framegate.early"])
    account = bench.export._telemetry.account  # type: ignore[union-attr]
    assert [account.dropped[signal] for signal in ("metrics", "traces", "logs")] == [0, 0, 0]


@pytest.mark.parametrize("hangs", [True, False])
def test_a_collector_in_trouble_delays_no_change_and_what_waits_for_it_goes_to_the_other(receiver: OtlpReceiver, log: RowLog, *, hangs: bool) -> None:
    if hangs:
        receiver.hold.clear()
    else:
        receiver.__exit__(None, None, None)
    bench = Bench(telling(receiver.endpoint), log)
    bench.begin()
    for number in range(1_000):
        log.write("early", number=number)
    time.sleep(0.3)  # exports are in progress
    with OtlpReceiver() as other:
        began = time.monotonic()
        bench.change(telling(other.endpoint))
        assert time.monotonic() - began < 0.5
        rows = other.wait(lambda: len(other.logs) == 1_000 and other.logs)
        assert sorted(attributes_of(row)["framegate.number"] for row in rows) == list(range(1_000))
        bench.stop()
    assert bench.export._telemetry.account.dropped["logs"] == 0  # type: ignore[union-attr]


def test_what_cannot_be_used_changes_nothing_and_leaves_nothing(receiver: OtlpReceiver, log: RowLog, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(telling(receiver.endpoint), log)
    bench.begin()
    receiver.nth()
    threads = ours()
    with socket.create_server(("127.0.0.1", 0)) as used:
        for config, name, value in (
            (telling("http://127.0.0.1:1", f"127.0.0.1:{used.getsockname()[1]}"), "OTEL_X", "1"),
            (telling("https://127.0.0.1:1", "127.0.0.1:0"), "OTEL_EXPORTER_OTLP_CERTIFICATE", "/nowhere"),
            (telling("http://127.0.0.1:1/path"), "OTEL_X", "1"),
        ):
            monkeypatch.setenv(name, value)
            with pytest.raises(StartError):
                bench.change(config)
            monkeypatch.delenv(name)
    count = len(receiver.received) + 2
    receiver.nth(count)
    assert bench.export.prometheus_address is None
    until(lambda: ours() == threads)
    bench.stop()


def ours() -> list[str]:
    """The threads of telemetry and of the SDK."""
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith(("framegate-", "Otel")))


def test_scrapes_move_with_the_address_and_go_on_counting(log: RowLog) -> None:
    bench = Bench(telling(), log)
    bench.begin()
    assert bench.export.prometheus_address is None
    bench.change(telling(prometheus="127.0.0.1:0"))
    first = bench.export.prometheus_address
    assert first is not None
    bench.export.record_call("a.B/C", "OK", 0.1)
    assert "rpc_server_call_duration_seconds_count{" in scraped(first)
    for number in range(3):
        host, _, port = str(bench.export.prometheus_address).rpartition(":")
        socket.create_connection((host, int(port)), 10).close()
        while "framegate_scrape_refused_total 0.0" in scraped(bench.export.prometheus_address):
            time.sleep(0.01)
        bench.change(telling(prometheus=f"127.0.0.{2 + number}:0"))
        text = scraped(bench.export.prometheus_address)
        assert "framegate_scrape_refused_total 0.0" not in text
        assert next(line for line in text.splitlines() if line.startswith("rpc_server_call_duration_seconds_count{")).endswith(" 1")
    last = bench.export.prometheus_address
    bench.change(telling())
    until(lambda: not reached(last) and not reached(first))
    bench.stop()


def reached(address: str | None) -> bool:
    host, _, port = str(address).rpartition(":")
    with socket.socket() as sock:
        return sock.connect_ex((host, int(port))) == 0


def test_signals_come_and_go_and_leave_nothing(receiver: OtlpReceiver, log: RowLog) -> None:
    bench = Bench(telling(), log)
    bench.begin()
    threads = ours()

    def both(number: int) -> None:
        log.write("row", number=number)
        bench.events.publish({"event": "change_settled", "change": str(number), "result": "made", "reason": "x"})

    for number in range(3):
        both(-1)
        bench.change(telling(receiver.endpoint))
        assert bench.export.calls is not None
        both(number)
        receiver.wait(lambda number=number: receiver.metrics and len(receiver.spans) == number + 1)
        bench.change(telling())
        assert (bench.export.calls, log.copy_to, log.span_fields()) == (None, None, {})
        until(lambda: ours() == threads)
    both(-1)
    assert [attributes_of(span)["framegate.change"] for span in receiver.spans] == ["0", "1", "2"]
    assert [attributes_of(row)["framegate.number"] for row in receiver.logs if row.event_name == "framegate.row"] == [0, 1, 2]
    bench.stop()
