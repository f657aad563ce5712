"""Spans: one TracerProvider for the whole framegate, in the control process, and the spans of calls and of the tap's segments. Loaded only if spans
are exported.

Most spans are made when they are over, with the times at which things happened. They wait in one bounded queue; if exports are slow or fail, spans
are dropped and counted, and nothing waits for them.
"""

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import Token
from typing import Final, cast

from opentelemetry import context as contexts
from opentelemetry import propagate
from opentelemetry.context import Context
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.util.types import AnyValue

from framegate.control.telemetry.exporters import Account, Counted, Room, queue_size
from framegate.proxy.cells.standard_metrics import RPC_STATUS
from framegate.proxy.tap.headers import Seal
from framegate.proxy.tap.log_reader import Segment
from framegate.proxy.tap.record import SEAL_CUT
from framegate.proxy.tap.trace_ids import BASE_OFFSET, SEGMENT_SPAN, STREAM, segment_trace

_SCOPE: Final = "framegate"
_NO_METERS: Final = NoOpMeterProvider()
"""``Account`` counts instead of the SDK. Without a provider the SDK uses the program's, which OTEL_PYTHON_METER_PROVIDER may name."""
_FAULTS: Final = frozenset({"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"})
"""The codes that are errors of the server in the conventions for spans of gRPC servers; the others are errors of the caller."""


class Traces:
    """Makes spans, until ``stop``. Any thread. ``exporter``: sends them (``exporters.otlp_exporter``). The SDK reads sampler, limits and queue from
    the environment.
    """

    def __init__(self, exporter: object, resource: Resource, version: str, account: Account) -> None:
        self._room = room = Room(queue_size("BSP"), lambda count: account.drop("traces", count))
        self._ids = _Ids()
        self._exporter = Counted(exporter, "traces", account, room.free)
        self.exchange = self._exporter.exchange
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False, id_generator=self._ids, meter_provider=_NO_METERS)
        batches = BatchSpanProcessor(cast(SpanExporter, self._exporter), meter_provider=_NO_METERS)
        self._provider.add_span_processor(_Bounded(batches, room))
        self._tracer = self._provider.get_tracer(_SCOPE, version)

    def begin(self, name: str, kind: SpanKind, attributes: Mapping[str, AnyValue], parent: Context) -> Span:
        """Begin a span now; the caller ends it."""
        return self._tracer.start_span(name, parent, kind, attributes)

    def draw(self, name: str, kind: SpanKind) -> SpanContext | None:
        """The ids of a later span without a parent; None: the sampler does not take it, so its attributes need not be determined."""
        trace_id = self._ids.generate_trace_id()
        return own_context(trace_id, self._ids.generate_span_id()) if self.takes(trace_id, name, kind) else None

    def takes(self, trace_id: int, name: str, kind: SpanKind = SpanKind.INTERNAL) -> bool:
        """Whether the sampler takes a span without a parent."""
        return self._provider.sampler.should_sample(Context(), trace_id, name, kind).decision is Decision.RECORD_AND_SAMPLE

    def record(
        self,
        name: str,
        start_ns: int,
        end_ns: int,
        attributes: Mapping[str, AnyValue],
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        error: str = "",
        detail: str = "",
        parent: SpanContext | None = None,
        trace_id: int | None = None,
        span_id: int | None = None,
        events: Iterable[tuple[str, int, Mapping[str, AnyValue]]] = (),
        links: Sequence[Link] = (),
    ) -> SpanContext:
        """Make a span of something that is over, and return its ids.

        Args:
            start_ns, end_ns: wall clock. If the clock was set back in between, the span has length 0.
            attributes: those without a value (None, "") are left out.
            error: for ``error.type``, of a closed list; empty: no error.
            parent: the parent span; None: a new trace begins.
            trace_id, span_id: of a span without a parent; None: random.
            events: name, time and attributes of what happened in between.
        """
        known = {key: value for key, value in attributes.items() if value is not None and value != ""}
        if error:
            known["error.type"] = error
        context = Context() if parent is None else set_span_in_context(NonRecordingSpan(parent), Context())
        with self._ids.given(trace_id, span_id):
            span = self._tracer.start_span(name, context, kind, known, links, start_time=start_ns)
        for event, at_ns, fields in events:
            span.add_event(event, fields, at_ns)
        if error:
            span.set_status(Status(StatusCode.ERROR, detail or None))
        span.end(max(start_ns, end_ns))
        return span.get_span_context()

    def stop(self, timeout_s: float = 2.0) -> None:
        """Export the waiting spans and end. Blocks for ``timeout_s`` and a moment; spans that the collector did not accept by then are lost."""
        ending = threading.Thread(target=self._provider.shutdown, name="framegate-spans-end", daemon=True)
        ending.start()
        ending.join(timeout_s)
        if ending.is_alive():
            self._exporter.shutdown()  # ends the export that hangs; the exports behind it are not tried


def current_span() -> SpanContext | None:
    """The span in which this code runs; None: there is none, it has ended, or it is not exported. A task may outlive the call that began it."""
    span = get_current_span()
    return span.get_span_context() if span.is_recording() else None


def own_context(trace_id: int, span_id: int) -> SpanContext:
    """The context of a span of ours that is exported."""
    return SpanContext(trace_id, span_id, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def fields_of(found: SpanContext | None) -> dict[str, str]:
    """The ids of a span, as rows have them; empty if there is none."""
    return {} if found is None else {"trace_id": f"{found.trace_id:032x}", "span_id": f"{found.span_id:016x}"}


def trace_fields() -> dict[str, str]:
    """The ids of the current span, as rows have them; empty if there is none."""
    return fields_of(current_span())


class _Ids(RandomIdGenerator):
    """Random ids, or those that are given for the next span of this thread."""

    def __init__(self) -> None:
        self._given = threading.local()

    @contextlib.contextmanager
    def given(self, trace_id: int | None, span_id: int | None) -> Iterator[None]:
        """Give ids to the span that this thread begins within the block; None: a random one."""
        self._given.trace_id, self._given.span_id = trace_id, span_id
        try:
            yield
        finally:
            self._given.trace_id = self._given.span_id = None

    def generate_trace_id(self) -> int:
        return getattr(self._given, "trace_id", None) or super().generate_trace_id()

    def generate_span_id(self) -> int:
        return getattr(self._given, "span_id", None) or super().generate_span_id()


class _Bounded(SpanProcessor):
    """Passes spans on to the batch processor as long as there is room."""

    def __init__(self, batches: SpanProcessor, room: Room) -> None:
        self._room = room
        self._batches = batches
        self.shutdown = batches.shutdown  # type: ignore[method-assign]
        self.force_flush = batches.force_flush  # type: ignore[method-assign]

    def on_end(self, span: ReadableSpan) -> None:
        if span.context is not None and span.context.trace_flags.sampled and self._room.take():
            self._batches.on_end(span)


# --- calls of the control plane ---------------------------------------------------------------------------------------------------------


class CallSpan:
    """The span of one call."""

    def __init__(self, span: Span, *, current: bool) -> None:
        # its ids, as rows have them; empty if it is not exported
        self.fields: Final = fields_of(span.get_span_context() if span.is_recording() else None)
        self._span = span
        self._token: Token[Context] | None = contexts.attach(set_span_in_context(span)) if current else None

    def end(self, code: str, reason: str = "") -> None:
        """End the span. ``code``: the name of the call's gRPC code. ``reason``: of an error, from its ErrorInfo."""
        if self._token is not None:
            contexts.detach(self._token)
        self._span.set_attribute(RPC_STATUS, code)
        if reason:
            self._span.set_attribute("framegate.reason", reason)
        if code in _FAULTS:
            self._span.set_attribute("error.type", code)
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()


class CallSpans:
    """Makes a span for each call, below the caller's span. Used by ``framegate.control.service.interceptor``."""

    def __init__(self, traces: Traces) -> None:
        self._traces = traces

    def begin(self, method: str, metadata: Sequence[tuple[str, str | bytes]], *, current: bool, original: str = "") -> CallSpan:
        """Begin the span of a call.

        Args:
            method: ``package.Service/Method``.
            metadata: of the caller; has the caller's span. Damaged values are ignored.
            current: whether the span is the current one of this task until it ends.
            original: the method that the caller asked for, if ``method`` stands for all unknown ones.
        """
        parent = propagate.extract(_carrier(metadata), Context())
        attributes: dict[str, AnyValue] = {"rpc.system.name": "grpc", "rpc.method": method}
        if original:
            attributes["rpc.method_original"] = original
        return CallSpan(self._traces.begin(method, SpanKind.SERVER, attributes, parent), current=current)


def _carrier(metadata: Sequence[tuple[str, str | bytes]]) -> dict[str, str]:
    """The caller's headers. Repeated ones are joined with commas, as in HTTP, so that two ``traceparent`` count as none (today gRPC's core shows only
    the last).
    """
    found: dict[str, str] = {}
    for key, value in metadata:
        if isinstance(value, str):
            found[key] = f"{found[key]},{value}" if key in found else value
    return found


# --- segments of the tap ----------------------------------------------------------------------------------------------------------------


def record_segment(traces: Traces, segment: Segment, created_ns: int, seal: Seal | None) -> None:
    """Make a span of a segment of the tap that began, or that was sealed. The batches of the Spark job link to these spans, whose ids follow from
    stream and base (``framegate.proxy.tap.trace_ids``). The span ``framegate.tap.segment`` is made when the segment is sealed. So that a link leads
    somewhere before, a span ``framegate.tap.segment.open`` of length 0 is made below it when the segment begins.
    """
    trace_id, span_id = segment_trace(segment.stream, segment.base)
    if not traces.takes(trace_id, SEGMENT_SPAN):
        return
    attributes: dict[str, AnyValue] = {STREAM: segment.stream, BASE_OFFSET: segment.base}
    if seal is None:
        parent = own_context(trace_id, span_id)
        traces.record(f"{SEGMENT_SPAN}.open", created_ns, created_ns, attributes, parent=parent)
        return
    attributes |= {
        "framegate.tap.end_offset": seal.end,
        "framegate.tap.bytes": seal.end - segment.base,
        "framegate.tap.blocks": seal.blocks,
        "framegate.tap.frames": seal.request_frames + seal.response_frames,
        "framegate.tap.frames.lost": seal.lost_frames,
        "framegate.tap.cut": bool(seal.flags & SEAL_CUT),
    }
    traces.record(SEGMENT_SPAN, created_ns, seal.sealed_ns, attributes, trace_id=trace_id, span_id=span_id)
