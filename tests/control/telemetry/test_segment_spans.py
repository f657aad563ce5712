"""Spans of the tap's segments, and the links of the Spark job that lead to them."""

from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from framegate.control.tap.segment_watch import SegmentWatch
from framegate.control.telemetry.segment_spans import SegmentSpans
from framegate.proxy.pipeline.report import BatchFacts, segments_between
from framegate.proxy.pipeline.telemetry import Telemetry
from framegate.proxy.tap.headers import Seal
from framegate.proxy.tap.log_reader import Segment, segments, streams
from framegate.proxy.tap.record import SEAL_CUT
from framegate.proxy.tap.trace_ids import segment_trace
from tests.fakes.otlp_receiver import OtlpReceiver, attributes_of
from tests.fakes.tap_log import FakeProcessor
from tests.fakes.tracing import tracing

MADE_NS = 1_790_000_000_000_000_000
SEGMENT = Segment("n.0.b", "/x/n.0.b/512.seg", 512, True, 9_000, MADE_NS)
SEAL = Seal(end=4_608, blocks=2, request_frames=5, response_frames=4, lost_frames=1, sealed_ns=MADE_NS + 9, flags=SEAL_CUT)


def ids(span: Span) -> tuple[int, int]:
    return int.from_bytes(span.trace_id, "big"), int.from_bytes(span.span_id, "big")


def test_a_sealed_segment_is_a_span_with_what_it_holds_and_the_ids_that_anybody_can_make() -> None:
    with tracing() as made:
        SegmentSpans(made.traces).told(SEGMENT, MADE_NS, SEAL)
        (span,) = made.spans()
    assert (span.name, ids(span), span.parent_span_id) == ("framegate.tap.segment", segment_trace("n.0.b", 512), b"")
    assert (span.start_time_unix_nano, span.end_time_unix_nano) == (MADE_NS, MADE_NS + 9)
    assert attributes_of(span) == {
        "framegate.tap.stream": "n.0.b",
        "framegate.tap.base_offset": 512,
        "framegate.tap.end_offset": 4_608,
        "framegate.tap.bytes": 4_096,
        "framegate.tap.blocks": 2,
        "framegate.tap.frames": 9,
        "framegate.tap.frames.lost": 1,
        "framegate.tap.cut": True,
    }


def test_one_that_began_has_a_span_beneath_the_one_to_come() -> None:
    with tracing() as made:
        SegmentSpans(made.traces).told(SEGMENT, MADE_NS, None)
        (span,) = made.spans()
    trace_id, span_id = segment_trace("n.0.b", 512)
    assert (span.name, ids(span)[0], int.from_bytes(span.parent_span_id, "big")) == ("framegate.tap.segment.open", trace_id, span_id)
    assert attributes_of(span) == {"framegate.tap.stream": "n.0.b", "framegate.tap.base_offset": 512}
    assert span.start_time_unix_nano == span.end_time_unix_nano == MADE_NS


@pytest.mark.parametrize("sampler", ["traceidratio", "parentbased_traceidratio"])
def test_control_and_the_job_decide_alike_and_every_link_leads_to_a_span(sampler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
    processor = FakeProcessor(tmp_path, segment_size=1)
    root = str(tmp_path)
    with tracing(sampler=sampler, ratio=0.5) as made, OtlpReceiver() as jobs:
        watch = SegmentWatch(SegmentSpans(made.traces).told, lambda error: pytest.fail(error))
        watch.look({})
        for number in range(40):  # each a segment
            processor.block([b"%d" % number])
        processor.close()
        watch.look({stream: segments(root, stream) for stream in streams(root)})
        read = segments_between(root, {}, {processor.stream: 1 << 60})
        telemetry = Telemetry(jobs.endpoint, lambda error: pytest.fail(error))
        for batch in range(40):  # that none of them is sampled has a chance of 2 to the -40
            facts: dict[str, Any] = {"consumer": "c", "started_ns": MADE_NS, "duration_ns": 1, "steps_s": {}, "frames": 1, "bytes": 1, "minutes": {}}
            telemetry.batch(BatchFacts(batch=batch, segments=read, **facts))
        telemetry.close()
        sealed = {ids(span) for span in made.spans() if span.name == "framegate.tap.segment"}
        opened = {int.from_bytes(span.parent_span_id, "big") for span in made.receiver.named("framegate.tap.segment.open")}
        batches = jobs.named("framegate.pipeline.batch")
    linked = {(int.from_bytes(link.trace_id, "big"), int.from_bytes(link.span_id, "big")) for link in batches[0].links}
    assert linked == sealed
    assert opened == {span_id for _, span_id in sealed}
    assert 0 < len(sealed) < len(read) == 41
