"""OpenTelemetry's exporters with real collectors that accept exports, refuse them or answer nonsense; how many items wait, and what is counted."""

import threading
import time
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry._logs import LogRecord
from opentelemetry.sdk._logs import ReadWriteLogRecord
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricsData
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider

from framegate.control.errors import StartError
from framegate.control.telemetry import exporters
from framegate.control.telemetry.environment import Target, judge
from framegate.control.telemetry.exporters import Account, Counted, Room, metric_exporter, otlp_exporter, probe
from framegate.proxy.cells.metrics import EXPORT_ERRORS, METRICS
from framegate.proxy.config.model import OtlpConfig, TelemetryConfig
from tests.fakes.certificates import Authority
from tests.fakes.otlp_receiver import GrpcReceiver, HttpReceiver

EXPORTS, DROPPED, SKIPPED = "framegate.telemetry.exports", "framegate.telemetry.dropped", "framegate.telemetry.skipped"
RECEIVERS: dict[Any, Any] = {"grpc": GrpcReceiver, "http/protobuf": HttpReceiver}


def points(count: int) -> MetricsData:
    reader = InMemoryMetricReader()
    counter = MeterProvider([reader], shutdown_on_exit=False).get_meter("x").create_counter("things")
    for number in range(count):
        counter.add(1, {"number": number})
    data = reader.get_metrics_data()
    assert data is not None
    return data


def spans(count: int) -> list[ReadableSpan]:
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("x")
    made = [tracer.start_span(str(number)) for number in range(count)]
    for span in made:
        span.end()
    return made  # type: ignore[return-value]


def records(count: int) -> list[Any]:
    return [ReadWriteLogRecord(LogRecord(body=str(number))) for number in range(count)]


MAKE: dict[str, Any] = {"metrics": points, "traces": spans, "logs": records}


def targets(endpoint: str, protocol: Any = "grpc", **environ: str) -> tuple[Target, ...]:
    config = TelemetryConfig(otlp=OtlpConfig(endpoint=endpoint, protocol=protocol, signals=("metrics", "traces", "logs")))
    return judge(config, {f"OTEL_EXPORTER_OTLP_{name}": value for name, value in environ.items()}).targets


def counted(account: Account, signal: str) -> tuple[dict[str, float], float]:
    """Exports by their end, and what was dropped."""
    ends = {dict(at).get("error.type", ""): value for (name, at), value in account.measurements().items() if name == EXPORTS and value}
    return ends, account.measurements().get((DROPPED, (("framegate.signal", signal),)), 0)


def refuse(context: grpc.ServicerContext) -> bytes:
    context.abort(grpc.StatusCode.UNAUTHENTICATED, "who are you?")


@pytest.mark.parametrize("protocol", list(RECEIVERS))
def test_accepted_exports_are_counted_and_have_headers_and_compression(protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20x")
    with RECEIVERS[protocol]() as receiver:
        for number, target in enumerate(targets(receiver.endpoint, protocol, COMPRESSION="gzip"), 1):
            account, over = Account(), list[int]()
            exporter = Counted(otlp_exporter(target), target.signal, account, over.append)
            exporter.export(MAKE[target.signal](3))
            exporter.shutdown()
            received = receiver.nth(number)
            assert (received.signal, received.headers["authorization"]) == (target.signal.replace("traces", "trace"), "Bearer x")
            assert (counted(account, target.signal), over) == (({"": 1}, 0), [3])


def test_refused_exports_are_counted_as_lost_and_have_one_row_at_the_begin_and_one_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    refuses = True
    with GrpcReceiver(lambda context: refuse(context) if refuses else b"") as receiver:
        for target in targets(receiver.endpoint):
            refuses, rows = True, list[tuple[Any, ...]]()
            account = Account()
            account.write = lambda event, *, rows=rows, **fields: rows.append((event, fields))
            exporter = Counted(otlp_exporter(target), target.signal, account)
            for _ in range(3):
                exporter.export(MAKE[target.signal](4))
            assert counted(account, target.signal) == ({"failed": 3}, 12)
            refuses = False
            for _ in range(2):
                exporter.export(MAKE[target.signal](4))
            exporter.shutdown()
            (began, failed), (ended, recovered) = rows
            assert failed.pop("target") == recovered.pop("target")
            facts = {"signal": target.signal}
            assert "who are you?" in failed.pop("error")
            assert recovered.pop("seconds") >= 0
            assert (began, failed) == ("telemetry_export_failed", {"level": "warning", **facts, "lost": 4})
            assert (ended, recovered) == ("telemetry_export_recovered", {"level": "info", **facts, "lost": 12})
    assert caplog.text == ""


def test_an_export_that_raises_is_one_that_failed() -> None:
    class Broken:
        def export(self, batch: Any) -> None:
            raise ValueError("no place for it")

        def shutdown(self) -> None:
            pass

    account, over, rows = Account(), list[int](), list[str]()
    account.write = lambda event, **fields: rows.append(fields["error"])
    exporter = Counted(Broken(), "traces", account, over.append)
    exporter.export([1, 2])
    assert (counted(account, "traces"), over, rows) == (({"failed": 1}, 2), [2], ["ValueError: no place for it"])
    exporter.shutdown()
    exporter.export([3])
    assert (counted(account, "traces"), rows) == (({"failed": 2}, 3), ["ValueError: no place for it"])


def test_an_export_of_many_points_goes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporters, "_MAX_POINTS", 4)
    with GrpcReceiver() as receiver:
        exporter = metric_exporter(targets(receiver.endpoint)[0])
        exporter.export(points(10))
        exporter.shutdown()
        sent = [received.request.resource_metrics[0].scope_metrics[0].metrics[0].sum.data_points for received in receiver.received]
    assert [len(part) for part in sent] == [4, 4, 2]
    assert sorted(point.attributes[0].value.int_value for part in sent for point in part) == list(range(10))


@pytest.mark.parametrize("protocol", list(RECEIVERS))
def test_a_probe_returns_the_collectors_error(protocol: str) -> None:
    with RECEIVERS[protocol]() as receiver:
        assert [probe(target) for target in targets(receiver.endpoint, protocol)] == ["", "", ""]
        assert [receiver.nth(count).request.ByteSize() for count in (1, 2, 3)] == [0, 0, 0]
    (_, _, target) = targets(receiver.endpoint, protocol, TIMEOUT="1500")  # over HTTP only the second attempt is said why of
    assert "Connection refused" in probe(target)


def test_a_collector_is_trusted_and_shown_a_certificate_as_the_files_say(tmp_path: Path) -> None:
    """A client's certificate without an authority's file, which the exporter would not take from the environment, too."""
    authority = Authority(tmp_path)
    certificate, key = authority.leaf("localhost")
    chain = (Path(key).read_bytes(), Path(certificate).read_bytes())
    credentials = grpc.ssl_server_credentials([chain], authority.path.read_bytes(), require_client_auth=True)
    files = {"CERTIFICATE": str(authority.path), "CLIENT_CERTIFICATE": certificate, "CLIENT_KEY": key, "TIMEOUT": "500"}
    with GrpcReceiver(credentials=credentials) as receiver:
        endpoint = receiver.endpoint.replace("127.0.0.1", "localhost")
        assert probe(targets(endpoint, **files)[0]) == ""
        assert probe(targets(endpoint, CERTIFICATE=files["CERTIFICATE"], TIMEOUT="500")[0]) != ""
        assert "CERTIFICATE_VERIFY_FAILED" in probe(targets(endpoint, TIMEOUT="500")[0])
    (gone,) = [target for target in targets(endpoint, **files) if target.signal == "logs"]
    authority.path.unlink()
    with pytest.raises(StartError) as caught:
        otlp_exporter(gone)
    assert caught.value.reason == "TELEMETRY_CERTIFICATE_UNUSABLE"


def test_a_collector_that_hangs_is_left_after_the_time_out() -> None:
    with GrpcReceiver(lambda context: time.sleep(1) or b"") as receiver:
        began = time.monotonic()
        assert "DEADLINE_EXCEEDED" in probe(targets(receiver.endpoint, TIMEOUT="200")[1])
    assert time.monotonic() - began < 3


def test_a_signal_has_its_series_before_anything_happens_and_nothing_lost_makes_none() -> None:
    account = Account()
    account.drop("logs", 0)
    assert account.measurements() == {}
    account.expect("logs")
    signal = ("framegate.signal", "logs")
    assert account.measurements() == {(EXPORTS, (signal,)): 0, (EXPORTS, (signal, ("error.type", "failed"))): 0, (DROPPED, (signal,)): 0}


def test_the_table_of_metrics_knows_every_end() -> None:
    (metric,) = (metric for metric in METRICS if metric.name == EXPORTS)
    assert dict(metric.attributes)["error.type"] == EXPORT_ERRORS


@pytest.mark.parametrize(("asked", "taken"), [(2, 2), (3, 3), (4, 3)])
def test_what_finds_no_room_is_counted_and_what_was_given_back_can_be_taken_again(asked: int, taken: int) -> None:
    dropped: list[int] = []
    room = Room(3, dropped.append)
    assert (room.take(asked), room.used, sum(dropped)) == (taken, taken, asked - taken)
    room.free(taken)
    assert ([room.take(2), room.take(), room.take()], sum(dropped)) == ([2, 1, 0], asked - taken + 1)


def test_threads_count_together() -> None:
    lost: list[int] = []
    room = Room(1_000, lost.append)
    threads = [threading.Thread(target=lambda: [room.take() for _ in range(400)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (room.used, sum(lost)) == (1_000, 600)
