"""What the job tells of its batches over OTLP."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from framegate.proxy.cells import PIPELINE_METRICS
from framegate.proxy.cells.metrics import MINUTE_STATES
from framegate.proxy.pipeline.completeness import SUMS, merge, states
from framegate.proxy.pipeline.report import BatchFacts, segments_between
from framegate.proxy.pipeline.run import EXIT_OK, EXIT_USAGE, run_pipeline
from framegate.proxy.pipeline.settings import PipelineSettings, wants_telemetry
from framegate.proxy.pipeline.telemetry import MAX_LINKS, Telemetry
from framegate.proxy.tap.log_reader import segments
from framegate.proxy.tap.trace_ids import segment_trace
from tests.fakes.jobs import WAIT_S, environment, running
from tests.fakes.otlp_receiver import OtlpReceiver, attributes_of
from tests.fakes.tap_log import FakeProcessor

STARTED_NS = 1_790_000_000_000_000_000


def facts(**told: Any) -> BatchFacts:
    given: dict[str, Any] = {"batch": 7, "consumer": "sizes", "started_ns": STARTED_NS, "duration_ns": 1_500_000_000, "frames": 40, "bytes": 4096}
    given |= {"steps_s": {"addBatch": 1.25}, "minutes": {"complete": 3, "lost": 1}, "segments": [("n.0.b", 0), ("n.1.b", 512)]}
    return BatchFacts(**(given | told))


@pytest.fixture(autouse=True)
def quiet_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_SDK_DISABLED", "OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG"):
        monkeypatch.delenv(name, raising=False)


def export(receiver: OtlpReceiver, tell: Callable[[Telemetry], None]) -> None:
    telemetry = Telemetry(receiver.endpoint, lambda error: pytest.fail(error))
    tell(telemetry)
    telemetry.close()


def told(receiver: OtlpReceiver, tell: Callable[[Telemetry], None]) -> Span:
    """The span of a batch, after the export of everything."""
    export(receiver, tell)
    return receiver.span("framegate.pipeline.batch")


def test_a_batch_is_a_span_with_its_times_and_counts_and_links_to_its_segments(receiver: OtlpReceiver) -> None:
    span = told(receiver, lambda telemetry: telemetry.batch(facts()))
    assert (span.start_time_unix_nano, span.end_time_unix_nano) == (STARTED_NS, STARTED_NS + 1_500_000_000)
    assert attributes_of(span) == {
        "framegate.pipeline.batch.id": 7,
        "framegate.pipeline.consumer": "sizes",
        "framegate.pipeline.frames": 40,
        "framegate.pipeline.bytes": 4096,
        "framegate.pipeline.step.addBatch": 1.25,
        "framegate.tap.segments": 2,
    }
    assert span.status.code == Status.STATUS_CODE_UNSET
    assert {resource["service.name"] for resource in receiver.resources} == {"framegate-pipeline"}
    for link, (stream, base) in zip(span.links, facts().segments, strict=True):
        ids = segment_trace(stream, base)
        assert (int.from_bytes(link.trace_id, "big"), int.from_bytes(link.span_id, "big")) == ids
        assert attributes_of(link) == {"framegate.tap.stream": stream, "framegate.tap.base_offset": base}


def test_links_are_bounded_and_their_number_is_told(receiver: OtlpReceiver) -> None:
    many = [("n.0.b", base) for base in range(MAX_LINKS + 1)]
    span = told(receiver, lambda telemetry: telemetry.batch(facts(segments=many)))
    assert [attributes_of(link)["framegate.tap.base_offset"] for link in span.links] == list(range(MAX_LINKS))
    assert attributes_of(span)["framegate.tap.segments"] == MAX_LINKS + 1


def test_the_counts_are_cumulative_metrics(receiver: OtlpReceiver) -> None:
    def tell(telemetry: Telemetry) -> None:
        telemetry.batch(facts())
        telemetry.batch(facts(batch=8, minutes={}))

    told(receiver, tell)
    receiver.wait(lambda: len(receiver.metrics) == 3)
    (duration,) = receiver.metrics["framegate.pipeline.batch.duration"].histogram.data_points
    assert (duration.count, duration.sum) == (2, 3.0)
    assert [point.as_int for point in receiver.metrics["framegate.pipeline.frames"].sum.data_points] == [80]
    minutes = receiver.metrics["framegate.pipeline.minutes"].sum
    assert {attributes_of(point)["framegate.state"]: point.as_int for point in minutes.data_points} == {"complete": 3, "lost": 1}
    assert minutes.is_monotonic
    assert [metric.name for metric in PIPELINE_METRICS] == sorted(receiver.metrics)
    for metric in PIPELINE_METRICS:
        assert (receiver.metrics[metric.name].unit, receiver.metrics[metric.name].description) == (metric.unit, metric.description)
    assert tuple(duration.explicit_bounds) == PIPELINE_METRICS[0].bounds


def test_a_clock_that_was_set_back_gives_no_negative_duration(receiver: OtlpReceiver) -> None:
    span = told(receiver, lambda telemetry: telemetry.batch(facts(duration_ns=-5)))
    assert span.end_time_unix_nano == span.start_time_unix_nano


def test_a_batch_that_failed_is_a_span_with_the_reason(receiver: OtlpReceiver) -> None:
    span = told(receiver, lambda telemetry: telemetry.failed(3, "offset 5 is gone", STARTED_NS))
    assert (span.status.code, span.status.message) == (Status.STATUS_CODE_ERROR, "offset 5 is gone")
    assert attributes_of(span) == {"framegate.pipeline.batch.id": 3, "error.type": "batch_failed"}


def test_links_lead_to_the_segments_that_are_sampled(receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a batch links to is sampled or not by its own trace id; the batch by its own."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
    names = [("n.0.b", base) for base in range(64)]
    sampled = [base for stream, base in names if segment_trace(stream, base).trace_id & ((1 << 64) - 1) < 1 << 63]
    assert 16 < len(sampled) < 48

    def tell(telemetry: Telemetry) -> None:
        for batch in range(40):  # that all are left out has a chance of 2 to the -40
            telemetry.batch(facts(batch=batch, segments=names))

    span = told(receiver, tell)
    assert [attributes_of(link)["framegate.tap.base_offset"] for link in span.links] == sampled


def test_a_sampler_that_takes_none_leaves_the_counts(receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    export(receiver, lambda telemetry: telemetry.batch(facts()))
    receiver.wait(lambda: "framegate.pipeline.frames" in receiver.metrics)
    assert receiver.spans == []


def test_a_collector_that_refuses_is_told_once_and_does_not_hold_up_the_end(receiver: OtlpReceiver) -> None:
    receiver.refuse = grpc.StatusCode.PERMISSION_DENIED
    complaints: list[str] = []
    telemetry = Telemetry(receiver.endpoint, complaints.append)
    telemetry.batch(facts())
    began = time.monotonic()
    telemetry.close(30.0)
    assert time.monotonic() - began < 30  # a refusal ends the wait
    assert 1 <= len(complaints) <= 2  # of traces, of metrics
    assert all("PERMISSION_DENIED" in complaint for complaint in complaints)


@pytest.mark.parametrize(
    ("endpoint", "environ", "wanted"),
    [
        ("", {}, False),
        ("http://c:4317", {}, True),
        ("", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317"}, True),
        ("", {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4317"}, True),
        ("", {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://c:4317"}, True),
        ("", {"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        ("http://c:4317", {"OTEL_SDK_DISABLED": " TRUE "}, False),
        ("http://c:4317", {"OTEL_SDK_DISABLED": "false"}, True),
    ],
)
def test_telemetry_is_wanted_where_a_collector_is_named(tmp_path: Path, endpoint: str, environ: dict[str, str], wanted: bool) -> None:
    assert wants_telemetry(PipelineSettings(source=tmp_path, output=tmp_path, telemetry=endpoint), environ) is wanted


@pytest.mark.parametrize(
    ("protocol", "said"),
    [
        ("grpc", "pip install 'framegate[spark,otlp]'\n"),
        ("http/protobuf", "pip install opentelemetry-exporter-otlp-proto-http\n"),
        ("http/json", "grpc or http/protobuf, not http/json"),
    ],
)
def test_an_exporter_that_is_not_there_or_an_unknown_protocol_is_reported_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], protocol: str, said: str
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    room = f"opentelemetry.exporter.otlp.proto.{protocol.partition('/')[0]}"
    for name in (room, f"{room}.trace_exporter", f"{room}.metric_exporter"):
        monkeypatch.setitem(sys.modules, name, None)
    settings = PipelineSettings(source=tmp_path, output=tmp_path / "out", telemetry="http://127.0.0.1:1")
    assert run_pipeline(settings) == EXIT_USAGE
    assert said in capsys.readouterr().err


def test_nothing_of_opentelemetry_is_loaded_where_it_is_not_wanted() -> None:
    program = "import sys, framegate.proxy.pipeline.run, framegate.proxy.pipeline.report\n"
    program += "print([name for name in sys.modules if name.startswith(('opentelemetry', 'grpc'))])"
    done = subprocess.run([sys.executable, "-c", program], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_segments_of_a_batch_are_those_that_have_something_of_it(tmp_path: Path) -> None:
    processor = FakeProcessor(tmp_path, segment_size=1)  # each block is a segment
    for number in range(3):
        processor.block([b"%d" % number])
    stream = processor.stream
    first, second, third = (segment.base for segment in segments(str(tmp_path), stream))
    root = str(tmp_path)
    assert segments_between(root, {}, {stream: third}) == [(stream, first), (stream, second)]
    assert segments_between(root, {stream: second}, {stream: third}) == [(stream, second)]
    assert segments_between(root, {stream: second - 1}, {stream: third + 1}) == [(stream, base) for base in (first, second, third)]
    assert segments_between(root, {stream: second}, {stream: second}) == []
    assert segments_between(root, {}, {"gone": 5}) == []
    processor.close()


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_jobs_batches_link_to_the_segments_that_it_read(tmp_path: Path, receiver: OtlpReceiver) -> None:
    """A real job; it takes what Spark takes to start."""
    processor = FakeProcessor(tmp_path / "log", segment_size=1)
    for number in range(3):
        processor.block([b"%d" % number])
    processor.close()
    source = str(tmp_path / "log")
    there = [(processor.stream, segment.base) for segment in segments(source, processor.stream)]
    with running(source=source, output=str(tmp_path / "out"), available_now=True, telemetry=receiver.endpoint) as job:
        out, said = job.communicate(timeout=WAIT_S)
    assert (job.returncode, said) == (EXIT_OK, "")
    (batch,) = [event for event in map(json.loads, out.splitlines()) if event["event"] == "batch"]
    span = receiver.span("framegate.pipeline.batch")
    assert [int.from_bytes(link.trace_id, "big") for link in span.links] == [segment_trace(*name).trace_id for name in there]
    found = attributes_of(span)
    assert (found["framegate.pipeline.frames"], found["framegate.pipeline.bytes"]) == (3, batch["bytes"])
    assert span.end_time_unix_nano - span.start_time_unix_nano == batch["duration_ms"] * 1_000_000
    assert found["framegate.pipeline.step.addBatch"] > 0
    receiver.wait(lambda: "framegate.pipeline.minutes" in receiver.metrics)
    (minutes,) = receiver.metrics["framegate.pipeline.minutes"].sum.data_points
    assert (attributes_of(minutes), minutes.as_int) == ({"framegate.state": "complete"}, batch["rows"]["completeness"])


def test_rows_of_completeness_are_told_by_the_worst_that_they_say() -> None:
    nothing = dict.fromkeys(SUMS, 0)
    rows = [{"seen": 1}, {"lost": 1}, {"shared": 1}, {"at_most": 1}, {"unknown": 1}, {"lost": 9, "at_most": 1}, {"at_most": 9, "unknown": 1}]
    table = merge(pa.Table.from_pylist([{"minute": number, **nothing, **row} for number, row in enumerate(rows)]))
    assert states(table) == {"complete": 1, "lost": 2, "at_most": 2, "unknown": 2}
    assert states(table).keys() == set(MINUTE_STATES)
    assert states(table.slice(0, 0)) == {}
