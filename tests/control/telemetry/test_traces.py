"""Spans, as a receiver of the protocol gets them: of past events, of calls over real gRPC, of the tap's segments."""

import asyncio
import functools
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.context import Context
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags, use_span

from framegate.control.errors import AbortedError, ControlError, UnavailableError
from framegate.control.tap.segment_watch import SegmentWatch
from framegate.control.telemetry.traces import CallSpans, current_span, record_segment, trace_fields
from framegate.control.v1 import channel_service_pb2 as pb2
from framegate.control.v1.channel_service_pb2_grpc import ChannelServiceStub
from framegate.proxy.pipeline.report import BatchFacts, segments_between
from framegate.proxy.pipeline.telemetry import Telemetry
from framegate.proxy.tap.headers import Seal
from framegate.proxy.tap.log_reader import Segment, segments, streams
from framegate.proxy.tap.record import SEAL_CUT
from framegate.proxy.tap.trace_ids import segment_trace
from tests.fakes.cases import each_of
from tests.fakes.jobs import environment as same_build
from tests.fakes.otlp_receiver import OtlpReceiver, attributes_of
from tests.fakes.plane import channel_row
from tests.fakes.serving import Serving, run
from tests.fakes.tap_log import FakeProcessor
from tests.fakes.tracing import tracing
from tests.fakes.waiting import until

NOW_NS = 1_790_000_000_000_000_000


def test_a_span_of_the_past_has_its_times_its_words_and_its_owner() -> None:
    with tracing() as made:
        made.traces.record(
            "framegate.drain",
            NOW_NS,
            NOW_NS + 7,
            {"framegate.listener": "a", "nothing": None, "empty": "", "zero": 0},
            kind=SpanKind.CLIENT,
            events=[("refuse", NOW_NS + 3, {"by": "signal"})],
        )
        (span,) = made.spans()
    assert (span.name, span.kind, span.start_time_unix_nano, span.end_time_unix_nano) == (
        "framegate.drain",
        Span.SPAN_KIND_CLIENT,
        NOW_NS,
        NOW_NS + 7,
    )
    assert attributes_of(span) == {"framegate.listener": "a", "zero": 0}
    assert [(event.name, event.time_unix_nano, attributes_of(event)) for event in span.events] == [("refuse", NOW_NS + 3, {"by": "signal"})]
    assert (span.parent_span_id, span.status.code) == (b"", Status.STATUS_CODE_UNSET)
    assert made.receiver.resources == [{"service.name": "framegate"}]


def test_an_error_has_its_type_and_its_words() -> None:
    with tracing() as made:
        made.traces.record("x", NOW_NS, NOW_NS, {}, error="upstream_refused", detail="connection refused")
        (span,) = made.spans()
    assert attributes_of(span) == {"error.type": "upstream_refused"}
    assert (span.status.code, span.status.message) == (Status.STATUS_CODE_ERROR, "connection refused")


def test_ids_are_given_to_one_span_and_random_for_all_others() -> None:
    with tracing() as made:
        made.traces.record("given", NOW_NS, NOW_NS, {}, trace_id=5, span_id=6)
        for _ in range(2):
            made.traces.record("random", NOW_NS, NOW_NS, {})
        made.traces.record("half", NOW_NS, NOW_NS, {}, trace_id=5)
        ids = [(int.from_bytes(span.trace_id, "big"), int.from_bytes(span.span_id, "big")) for span in made.spans()]
    assert ids[0] == (5, 6)
    assert len(set(ids)) == 4
    assert [trace for trace, _ in ids].count(5) == 2


def test_a_parent_is_named_and_decides_whether_a_span_is_kept() -> None:
    with tracing() as made:
        for number, flags in ((1, TraceFlags.SAMPLED), (2, TraceFlags.DEFAULT)):
            parent = SpanContext(number, 9, is_remote=False, trace_flags=TraceFlags(flags))
            made.traces.record("x", NOW_NS, NOW_NS, {}, parent=parent)
        (span,) = made.spans()
    assert (int.from_bytes(span.trace_id, "big"), int.from_bytes(span.parent_span_id, "big")) == (1, 9)


@each_of(
    ("sampler", "ratio", "kept"),
    [
        ("always_on", 1.0, [True, True]),
        ("always_off", 1.0, [False, False]),
        ("traceidratio", 0.5, [True, False]),
        ("traceidratio", 0.0, [False, False]),
        ("parentbased_always_on", 1.0, [True, True]),
        ("parentbased_always_off", 1.0, [False, False]),
        ("parentbased_traceidratio", 0.5, [True, False]),
    ],
)
def test_the_sampler_decides_by_the_trace_id(sampler: str, ratio: float, kept: list[bool]) -> None:
    """The ids are one below and one at half of what the ratio is of."""
    ids = ((1 << 63) - 1, 1 << 63)
    with tracing(sampler=sampler, ratio=ratio) as made:
        for trace_id in ids:
            made.traces.record("x", NOW_NS, NOW_NS, {}, trace_id=trace_id)
        assert [made.traces.takes(trace_id, "x") for trace_id in ids] == kept
        found = {int.from_bytes(span.trace_id, "big") for span in made.spans()}
    assert [trace_id in found for trace_id in ids] == kept


def test_the_queue_is_bounded_and_what_finds_no_room_is_counted() -> None:
    with tracing(queue=3, size=1, delay_ms=1) as made:
        made.receiver.hold.clear()
        for number in range(5):
            made.traces.record(f"x{number}", NOW_NS, NOW_NS, {})
        assert made.account.dropped["traces"] == 2
        made.receiver.hold.set()
        made.receiver.wait(lambda: len(made.receiver.spans) == 3)
        until(lambda: not made.traces._room.used)  # its exports are over
        made.traces.record("again", NOW_NS, NOW_NS, {})
        assert {span.name for span in made.spans()} == {"x0", "x1", "x2", "again"}
        assert made.account.dropped["traces"] == 2


def test_a_collector_that_hangs_does_not_hold_up_the_end() -> None:
    with tracing() as made:
        made.receiver.hold.clear()
        made.traces.record("x", NOW_NS, NOW_NS, {})
        began = time.monotonic()
        made.traces.stop(0.2)
        assert time.monotonic() - began < 1.5
        made.receiver.hold.set()


def test_the_current_span_is_known_until_it_ends() -> None:
    """Tasks that a call began outlive its span: their rows are no part of it."""
    with tracing() as made:
        assert (current_span(), trace_fields()) == (None, {})
        span = made.traces.begin("x", SpanKind.SERVER, {}, Context())
        with use_span(span, end_on_exit=False):
            found = span.get_span_context()
            assert current_span() == found
            assert trace_fields() == {"trace_id": f"{found.trace_id:032x}", "span_id": f"{found.span_id:016x}"}
            span.end()
            assert (current_span(), trace_fields()) == (None, {})


def test_nothing_of_spans_or_log_records_is_loaded_with_metrics() -> None:
    wanted = "('opentelemetry.sdk.trace', 'opentelemetry.sdk._logs')"
    program = f"import sys, framegate.control.service, framegate.control.telemetry; print([name for name in sys.modules if name in {wanted}])"
    done = subprocess.run([sys.executable, "-c", program], env=same_build(), capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


SERVICE = "framegate.control.v1.ChannelService"
MUTE = pb2.MuteChannelsRequest(selector=pb2.ChannelSelector(filter="listener=kafka"), reason="incident 7")
TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
Body = Callable[[Serving], Awaitable[None]]


def listing(*metadata: tuple[str, str | bytes]) -> Body:
    """A call of ListChannels with these headers."""

    async def body(at: Serving) -> None:
        await ChannelServiceStub(at.channel).ListChannels(pb2.ListChannelsRequest(), metadata=metadata)

    return body


def spans_of(body: Body, **settings: Any) -> list[Span]:
    """The spans of the calls of a test."""
    with tracing(**settings) as made:
        run(body, tracer=CallSpans(made.traces))
        return made.spans()


def parent_of(span: Span) -> tuple[str, str]:
    return span.trace_id.hex(), span.parent_span_id.hex()


def test_a_calls_span_lies_beneath_the_callers() -> None:
    (span,) = spans_of(listing(("traceparent", f"00-{TRACE}-{CALLER}-01")))
    assert parent_of(span) == (TRACE, CALLER)
    assert (span.name, span.kind, span.status.code) == (f"{SERVICE}/ListChannels", Span.SPAN_KIND_SERVER, Status.STATUS_CODE_UNSET)
    assert attributes_of(span) == {"rpc.system.name": "grpc", "rpc.method": f"{SERVICE}/ListChannels", "rpc.response.status_code": "OK"}
    assert span.end_time_unix_nano >= span.start_time_unix_nano > 0


@each_of("header", ["", "00-zz-zz-01", f"00-{TRACE}", f"ff-{TRACE}-{CALLER}-01", f"00-{'0' * 32}-{CALLER}-01", "x" * 5_000])
def test_a_caller_without_a_span_or_with_a_damaged_one_begins_a_trace(header: str) -> None:
    (span,) = spans_of(listing(("traceparent", header), ("some-bin", b"\xff\x00"), ("baggage", "=,;=" * 50)))
    assert span.parent_span_id == b""
    assert span.trace_id.hex() != TRACE


@each_of("other", [f"00-{'1' * 32}-{CALLER}-01", f"00-{TRACE}-{CALLER}-01"])
def test_a_caller_that_names_two_spans_begins_a_trace(other: str) -> None:
    """Also when both are the same. Over a real connection gRPC's core keeps only the last of them."""
    with tracing() as made:
        CallSpans(made.traces).begin("a.B/C", (("traceparent", other), ("traceparent", f"00-{TRACE}-{CALLER}-01")), current=False).end("OK")
        (span,) = made.spans()
    assert span.parent_span_id == b""


@each_of(("flags", "sampler", "kept"), [("01", "parentbased_always_off", 1), ("00", "parentbased_always_on", 0), ("00", "always_on", 1)])
def test_a_parent_based_sampler_follows_the_caller(flags: str, sampler: str, kept: int) -> None:
    assert len(spans_of(listing(("traceparent", f"00-{TRACE}-{CALLER}-{flags}")), sampler=sampler)) == kept


@each_of(
    ("failure", "code", "fault"),
    [
        (AbortedError("processor 1 was silent", reason="PROCESSOR_SILENT"), "ABORTED", False),
        (UnavailableError("not now", reason="AUDIT_BLOCKED"), "UNAVAILABLE", True),
        (ZeroDivisionError("secret"), "INTERNAL", True),
    ],
)
def test_a_call_that_fails_says_how_and_is_an_error_where_the_fault_is_ours(failure: Exception, code: str, fault: bool) -> None:
    async def body(at: Serving) -> None:
        at.plane.failure = failure
        with pytest.raises(grpc.aio.AioRpcError):
            await ChannelServiceStub(at.channel).MuteChannels(MUTE)

    (span,) = spans_of(body)
    found = attributes_of(span)
    assert found["rpc.response.status_code"] == code
    assert found.get("framegate.reason") == (failure.reason if isinstance(failure, ControlError) else None)
    assert (found.get("error.type"), span.status.code) == ((code, Status.STATUS_CODE_ERROR) if fault else (None, Status.STATUS_CODE_UNSET))
    assert "secret" not in str(span)


UNKNOWN = {"rpc.method": "_OTHER", "framegate.reason": "METHOD_UNKNOWN", "error.type": "UNIMPLEMENTED"}


@each_of(
    ("method", "code", "found"),
    [
        (f"{SERVICE}/MuteChannels", "INVALID_ARGUMENT", {"rpc.method": f"{SERVICE}/MuteChannels", "framegate.reason": "REQUEST_MALFORMED"}),
        ("a.B/C", "UNIMPLEMENTED", {**UNKNOWN, "rpc.method_original": "a.B/C", "error.type": "UNIMPLEMENTED"}),
        ("a.B/" + "x" * 400, "UNIMPLEMENTED", {**UNKNOWN, "rpc.method_original": "a.B/" + "x" * 252, "error.type": "UNIMPLEMENTED"}),
    ],
)
def test_damaged_requests_and_unknown_methods_have_spans(method: str, code: str, found: dict[str, str]) -> None:
    async def body(at: Serving) -> None:
        with pytest.raises(grpc.aio.AioRpcError):
            await at.channel.unary_unary(f"/{method}")(b"\xff\xff\xff", metadata=(("traceparent", f"00-{TRACE}-{CALLER}-01"),))

    (span,) = spans_of(body)
    assert (span.name, parent_of(span)) == (found["rpc.method"], (TRACE, CALLER))
    assert attributes_of(span) == {"rpc.system.name": "grpc", "rpc.response.status_code": code, **found}


@each_of("by", ["cancel", "deadline"])
def test_a_call_that_ends_before_its_answer_has_a_span_that_says_so(by: str) -> None:
    began = asyncio.Event()
    ended = asyncio.Event()

    async def body(at: Serving) -> None:
        async def stands(*args: Any, **kwargs: Any) -> None:
            began.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        at.plane.parts.channels.act = stands  # type: ignore[method-assign, assignment]
        call = ChannelServiceStub(at.channel).MuteChannels(MUTE, timeout=0.2 if by == "deadline" else None)
        await began.wait()
        if by == "cancel":
            call.cancel()
        with pytest.raises((asyncio.CancelledError, grpc.aio.AioRpcError)):
            await call
        await asyncio.wait_for(ended.wait(), 5)

    (span,) = spans_of(body)
    assert attributes_of(span)["rpc.response.status_code"] == "CANCELLED"


def test_what_a_call_does_belongs_to_its_span_and_its_audit_row_says_which() -> None:
    inside: list[dict[str, str]] = []

    async def body(at: Serving) -> None:
        at.plane.add(channel_row("0-1-7"))
        mute = at.plane.parts.channels.act

        async def watched(*args: Any, **kwargs: Any) -> Any:
            inside.append(trace_fields())
            return await mute(*args, **kwargs)

        at.plane.parts.channels.act = watched  # type: ignore[method-assign]
        await ChannelServiceStub(at.channel).MuteChannels(MUTE)
        (row,) = at.plane.audits
        inside.append({key: row[key] for key in ("trace_id", "span_id")})
        assert trace_fields() == {}

    (span,) = spans_of(body)
    assert inside == [{"trace_id": span.trace_id.hex(), "span_id": span.span_id.hex()}] * 2


MADE_NS = 1_790_000_000_000_000_000
SEGMENT = Segment("n.0.b", "/x/n.0.b/512.seg", 512, True, 9_000, MADE_NS)
SEAL = Seal(end=4_608, blocks=2, request_frames=5, response_frames=4, lost_frames=1, sealed_ns=MADE_NS + 9, flags=SEAL_CUT)


def ids(span: Span) -> tuple[int, int]:
    return int.from_bytes(span.trace_id, "big"), int.from_bytes(span.span_id, "big")


def test_a_sealed_segment_is_a_span_with_what_it_holds_and_the_ids_that_anybody_can_make() -> None:
    with tracing() as made:
        record_segment(made.traces, SEGMENT, MADE_NS, SEAL)
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


def test_a_segment_that_began_has_a_span_below_that_of_the_sealed_segment() -> None:
    with tracing() as made:
        record_segment(made.traces, SEGMENT, MADE_NS, None)
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
        watch = SegmentWatch(functools.partial(record_segment, made.traces), lambda error: pytest.fail(error))
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
