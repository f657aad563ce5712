"""Spans: one TracerProvider for the whole framegate, in the control process. Loaded where spans are exported, and nowhere else.

Most spans are made when they are over, with the times at which things happened. They wait in one bounded queue; an export that takes long, or none at
all, costs spans, which are counted, and nobody's time.
"""

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, cast

from opentelemetry.context import Context
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode, get_current_span, set_span_in_context
from opentelemetry.util.types import AnyValue

from framegate.control.telemetry.account import Account
from framegate.control.telemetry.environment import Target
from framegate.control.telemetry.exporters import Counted, otlp_exporter
from framegate.control.telemetry.room import Room, queue_size

__all__ = ["Traces", "current_span", "trace_fields"]

SCOPE: Final = "framegate"
_NO_METERS: Final = NoOpMeterProvider()
"""What the SDK would count of itself: ``Account`` does. Without one the SDK asks for the program's own, which OTEL_PYTHON_METER_PROVIDER may name."""


class Traces:
    """What makes spans, from ``__init__`` to ``stop``. Any thread may make some.

    Args:
        target: the collector.
        resource: who exports.
        version: ours.
        account: gets what was dropped.

    Sampler, limits and queue are those of the environment, which the SDK reads.
    """

    def __init__(self, target: Target, resource: Resource, version: str, account: Account) -> None:
        self._room = room = Room(queue_size("BSP"), lambda count: account.drop("traces", count))
        self._ids = _Ids()
        self._exporter = Counted(otlp_exporter(target), target, account, room.free)
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False, id_generator=self._ids, meter_provider=_NO_METERS)
        waiting = BatchSpanProcessor(cast(SpanExporter, self._exporter), meter_provider=_NO_METERS)
        self._provider.add_span_processor(_Bounded(waiting, room))
        self._tracer = self._provider.get_tracer(SCOPE, version)

    def begin(self, name: str, kind: SpanKind, attributes: Mapping[str, AnyValue], parent: Context) -> Span:
        """Begin a span now; whoever does ends it."""
        return self._tracer.start_span(name, parent, kind, attributes)

    def draw(self, name: str, kind: SpanKind) -> int | None:
        """The trace id of a span to come that has no parent; None: the sampler does not take it, and nothing needs to be found out for it."""
        trace_id = self._ids.generate_trace_id()
        return trace_id if self.takes(trace_id, name, kind) else None

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
    ) -> None:
        """Make a span of something that is over.

        Args:
            name: of the span.
            start_ns, end_ns: of the wall clock. One that was set back meanwhile makes a span of no length, never of a negative one.
            attributes: those without a value (None, "") are left out.
            kind: whose side of what it is.
            error: for ``error.type``, of a closed list; empty: it went well.
            detail: of an error, for people.
            parent: what it belongs to; None: it begins a trace.
            trace_id, span_id: of one without a parent, where they are known; None: random ones.
            events: name, time and attributes of what happened in between.
        """
        known = {key: value for key, value in attributes.items() if value is not None and value != ""}
        if error:
            known["error.type"] = error
        context = Context() if parent is None else set_span_in_context(NonRecordingSpan(parent), Context())
        with self._ids.given(trace_id, span_id):
            span = self._tracer.start_span(name, context, kind, known, start_time=start_ns)
        for event, at_ns, told in events:
            span.add_event(event, told, at_ns)
        if error:
            span.set_status(Status(StatusCode.ERROR, detail or None))
        span.end(max(start_ns, end_ns))

    def stop(self, timeout_s: float = 2.0) -> None:
        """Export what waits, and end. Blocks for ``timeout_s`` and a moment; what a collector did not take by then is lost."""
        ending = threading.Thread(target=self._provider.shutdown, name="framegate-spans-end", daemon=True)
        ending.start()
        ending.join(timeout_s)
        if ending.is_alive():
            self._exporter.shutdown()  # ends the export that hangs; those behind it are tried no more


def current_span() -> SpanContext | None:
    """The span in which this runs; None: there is none, it is over, or nobody exports it. A task that a call began outlives the call's span."""
    span = get_current_span()
    return span.get_span_context() if span.is_recording() else None


def trace_fields() -> dict[str, str]:
    """The same, as rows have it; empty for none."""
    found = current_span()
    return {} if found is None else {"trace_id": f"{found.trace_id:032x}", "span_id": f"{found.span_id:016x}"}


class _Ids(RandomIdGenerator):
    """Random ids, or those that are given for the next span of this thread."""

    def __init__(self) -> None:
        self._given = threading.local()

    @contextlib.contextmanager
    def given(self, trace_id: int | None, span_id: int | None) -> Iterator[None]:
        """Give ids to the spans that this thread begins meanwhile; None: a random one."""
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
    """Lets spans through to where they wait, as far as there is room."""

    def __init__(self, waiting: SpanProcessor, room: Room) -> None:
        self._waiting = waiting
        self._room = room

    def on_end(self, span: ReadableSpan) -> None:
        if span.context is not None and span.context.trace_flags.sampled and self._room.take():
            self._waiting.on_end(span)

    def shutdown(self) -> None:
        self._waiting.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._waiting.force_flush(timeout_millis)
