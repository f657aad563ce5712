"""Spans of calls of the control plane: a real gRPC client and server, and a real receiver of the protocol."""

import asyncio
from typing import Any

import grpc
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from framegate.control.errors import AbortedError, ControlError, UnavailableError
from framegate.control.telemetry.calls import CallSpans
from framegate.control.telemetry.traces import trace_fields
from framegate.control.v1 import channel_service_pb2 as pb2
from framegate.control.v1.channel_service_pb2_grpc import ChannelServiceStub
from tests.fakes.otlp_receiver import attributes_of
from tests.fakes.plane import channel_row
from tests.fakes.serving import Serving, run
from tests.fakes.tracing import tracing

SERVICE = "framegate.control.v1.ChannelService"
MUTE = pb2.MuteChannelsRequest(selector=pb2.ChannelSelector(listener="kafka"), reason="incident 7")
TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def parent_of(span: Span) -> tuple[str, str]:
    return span.trace_id.hex(), span.parent_span_id.hex()


def test_a_calls_span_lies_beneath_the_callers() -> None:
    async def body(at: Serving) -> None:
        await ChannelServiceStub(at.channel).ListChannels(pb2.ListChannelsRequest(), metadata=(("traceparent", f"00-{TRACE}-{CALLER}-01"),))

    with tracing() as made:
        run(body, tracer=CallSpans(made.traces))
        (span,) = made.spans()
    assert parent_of(span) == (TRACE, CALLER)
    assert (span.name, span.kind, span.status.code) == (f"{SERVICE}/ListChannels", Span.SPAN_KIND_SERVER, Status.STATUS_CODE_UNSET)
    assert attributes_of(span) == {"rpc.system.name": "grpc", "rpc.method": f"{SERVICE}/ListChannels", "rpc.response.status_code": "OK"}
    assert span.end_time_unix_nano >= span.start_time_unix_nano > 0


@pytest.mark.parametrize("header", ["", "00-zz-zz-01", f"00-{TRACE}", f"ff-{TRACE}-{CALLER}-01", f"00-{'0' * 32}-{CALLER}-01", "x" * 5_000])
def test_a_caller_without_a_span_or_with_a_damaged_one_begins_a_trace(header: str) -> None:
    async def body(at: Serving) -> None:
        metadata = (("traceparent", header), ("some-bin", b"\xff\x00"), ("baggage", "=,;=" * 50))
        await ChannelServiceStub(at.channel).ListChannels(pb2.ListChannelsRequest(), metadata=metadata)

    with tracing() as made:
        run(body, tracer=CallSpans(made.traces))
        (span,) = made.spans()
    assert span.parent_span_id == b""
    assert span.trace_id.hex() != TRACE


@pytest.mark.parametrize("other", [f"00-{'1' * 32}-{CALLER}-01", f"00-{TRACE}-{CALLER}-01"])
def test_a_caller_that_names_two_spans_begins_a_trace(other: str) -> None:
    """Also when both are the same. Over a real connection gRPC's core keeps the last of them, and nobody learns of the other."""
    with tracing() as made:
        CallSpans(made.traces).begin("a.B/C", (("traceparent", other), ("traceparent", f"00-{TRACE}-{CALLER}-01")), current=False).end("OK")
        (span,) = made.spans()
    assert span.parent_span_id == b""


@pytest.mark.parametrize(
    ("flags", "sampler", "kept"), [("01", "parentbased_always_off", 1), ("00", "parentbased_always_on", 0), ("00", "always_on", 1)]
)
def test_whether_it_is_kept_the_caller_decides_where_the_sampler_says_so(flags: str, sampler: str, kept: int) -> None:
    async def body(at: Serving) -> None:
        await ChannelServiceStub(at.channel).ListChannels(pb2.ListChannelsRequest(), metadata=(("traceparent", f"00-{TRACE}-{CALLER}-{flags}"),))

    with tracing(sampler=sampler) as made:
        run(body, tracer=CallSpans(made.traces))
        assert len(made.spans()) == kept


@pytest.mark.parametrize(
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

    with tracing() as made:
        run(body, tracer=CallSpans(made.traces))
        (span,) = made.spans()
    found = attributes_of(span)
    assert found["rpc.response.status_code"] == code
    assert found.get("framegate.reason") == (failure.reason if isinstance(failure, ControlError) else None)
    assert (found.get("error.type"), span.status.code) == ((code, Status.STATUS_CODE_ERROR) if fault else (None, Status.STATUS_CODE_UNSET))
    assert "secret" not in str(span)


@pytest.mark.parametrize(
    ("method", "code", "found"),
    [
        (f"{SERVICE}/MuteChannels", "INVALID_ARGUMENT", {"rpc.method": f"{SERVICE}/MuteChannels", "framegate.reason": "REQUEST_MALFORMED"}),
        ("a.B/C", "UNIMPLEMENTED", {"rpc.method": "_OTHER", "rpc.method_original": "a.B/C", "error.type": "UNIMPLEMENTED"}),
        ("a.B/" + "x" * 400, "UNIMPLEMENTED", {"rpc.method": "_OTHER", "rpc.method_original": "a.B/" + "x" * 252, "error.type": "UNIMPLEMENTED"}),
    ],
)
def test_what_is_no_request_or_for_nobody_has_a_span_too(method: str, code: str, found: dict[str, str]) -> None:
    async def body(at: Serving) -> None:
        with pytest.raises(grpc.aio.AioRpcError):
            await at.channel.unary_unary(f"/{method}")(b"\xff\xff\xff", metadata=(("traceparent", f"00-{TRACE}-{CALLER}-01"),))

    with tracing() as made:
        run(body, tracer=CallSpans(made.traces))
        (span,) = made.spans()
    assert (span.name, parent_of(span)) == (found["rpc.method"], (TRACE, CALLER))
    assert attributes_of(span) == {"rpc.system.name": "grpc", "rpc.response.status_code": code, **found}


def test_a_call_that_is_refused_because_it_cannot_be_audited_has_a_span() -> None:
    async def body(at: Serving) -> None:
        at.plane.audit_failure = UnavailableError("stdout is not read", reason="AUDIT_BLOCKED")
        with pytest.raises(grpc.aio.AioRpcError):
            await ChannelServiceStub(at.channel).MuteChannels(MUTE)

    with tracing() as made:
        run(body, tracer=CallSpans(made.traces))
        (span,) = made.spans()
    assert attributes_of(span)["framegate.reason"] == "AUDIT_BLOCKED"


@pytest.mark.parametrize("by", ["cancel", "deadline"])
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

    with tracing() as made:
        run(body, tracer=CallSpans(made.traces))
        (span,) = made.spans()
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

    with tracing() as made:
        run(body, tracer=CallSpans(made.traces))
        (span,) = made.spans()
    assert inside == [{"trace_id": span.trace_id.hex(), "span_id": span.span_id.hex()}] * 2


def test_the_time_of_a_call_has_its_span_as_an_exemplar() -> None:
    """What ``Telemetry.record_call`` does with the instrument, in the reader's own words."""
    reader = InMemoryMetricReader()
    meters = MeterProvider([reader], shutdown_on_exit=False)
    calls = meters.get_meter("x").create_histogram("rpc.server.call.duration")

    async def body(at: Serving) -> None:
        await ChannelServiceStub(at.channel).ListChannels(pb2.ListChannelsRequest())

    with tracing() as made:
        run(body, lambda method, code, seconds: calls.record(seconds), tracer=CallSpans(made.traces))
        (span,) = made.spans()
    data: Any = reader.get_metrics_data()
    (point,) = data.resource_metrics[0].scope_metrics[0].metrics[0].data.data_points
    assert [(f"{item.trace_id:032x}", f"{item.span_id:016x}") for item in point.exemplars] == [(span.trace_id.hex(), span.span_id.hex())]
    meters.shutdown()
