"""Exports the job's batches over OTLP: a span of each batch, linked to the segments of the tap that it read, and counters.

This is the only module of the pipeline that imports OpenTelemetry; ``run`` imports it only where it is wanted (``settings.wants_telemetry``). The SDK
reads exporters, sampler, limits, queues and resource from the OTEL_* variables; the endpoint may be given instead. No batch waits for an export:
threads of the SDK send spans and metrics, through bounded queues.
"""

import importlib
import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from opentelemetry.context import Context
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExporter, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.util.types import AnyValue

from framegate.proxy.cells import PIPELINE_METRICS
from framegate.proxy.pipeline.report import BatchFacts
from framegate.proxy.tap.trace_ids import BASE_OFFSET, SEGMENT_SPAN, STREAM, segment_trace

SERVICE: Final = "framegate-pipeline"
BATCH_SPAN: Final = "framegate.pipeline.batch"
MAX_LINKS: Final = 128  # segments that a batch's span links to, the oldest of each stream first; ``framegate.tap.segments`` has their number
_log = logging.getLogger("opentelemetry")


class Telemetry:
    """The exporters, from ``__init__`` to ``close``. ``endpoint``: ``http://host:port`` or ``https://host:port`` of a collector; "": from the OTEL_*
    variables. ``failed``: is called with a text, once for each kind of failure of the collector in a row, in any thread. Raises ImportError: an
    exporter is not installed; ValueError: an OTEL_* variable has a wrong value.
    """

    def __init__(self, endpoint: str, failed: Callable[[str], None]) -> None:
        resource = Resource.create({"service.name": SERVICE}).merge(OTELResourceDetector().detect())
        self._complaints = _Complaints(failed)
        _log.addHandler(self._complaints)
        self._exporters: list[SpanExporter | MetricExporter] = []
        self._tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
        readers = []
        for signal in ("trace", "metric"):
            if "otlp" not in os.environ.get(f"OTEL_{signal.upper()}S_EXPORTER", "otlp").split(","):
                continue
            exporter = _exporter(signal, endpoint)
            self._exporters.append(exporter)
            if signal == "trace":
                self._tracers.add_span_processor(BatchSpanProcessor(exporter))
            else:
                readers.append(PeriodicExportingMetricReader(exporter))
        self._meters = MeterProvider(readers, resource, shutdown_on_exit=False)
        self._tracer = self._tracers.get_tracer(SERVICE)
        meter = self._meters.get_meter(SERVICE)
        duration, frames, minutes = PIPELINE_METRICS
        self._durations = meter.create_histogram(
            duration.name, duration.unit, duration.description, explicit_bucket_boundaries_advisory=duration.bounds
        )
        self._frames = meter.create_counter(frames.name, frames.unit, frames.description)
        self._minutes = meter.create_counter(minutes.name, minutes.unit, minutes.description)
        (self._state, _) = minutes.attributes[0]

    def batch(self, facts: BatchFacts) -> None:
        """Export a batch that is committed."""
        attributes: dict[str, AnyValue] = {
            "framegate.pipeline.batch.id": facts.batch,
            "framegate.pipeline.consumer": facts.consumer,
            "framegate.pipeline.frames": facts.frames,
            "framegate.pipeline.bytes": facts.bytes,
            "framegate.tap.segments": len(facts.segments),
            **{f"framegate.pipeline.step.{name}": seconds for name, seconds in facts.steps_s.items()},
        }
        start_ns, end_ns = facts.started_ns, facts.started_ns + max(0, facts.duration_ns)
        span = self._tracer.start_span(
            BATCH_SPAN, kind=SpanKind.CONSUMER, attributes=attributes, links=self._links(facts.segments), start_time=start_ns
        )
        span.end(end_ns)
        self._durations.record(max(0, facts.duration_ns) / 1e9)
        self._frames.add(facts.frames)
        for state, count in facts.minutes.items():
            self._minutes.add(count, {self._state: state})

    def failed(self, batch: int, reason: str, at_ns: int) -> None:
        """Export the batch that ended the job. Only its end is known."""
        attributes: dict[str, AnyValue] = {"framegate.pipeline.batch.id": batch, "error.type": "batch_failed"}
        span = self._tracer.start_span(BATCH_SPAN, kind=SpanKind.CONSUMER, attributes=attributes, start_time=at_ns)
        span.set_status(Status(StatusCode.ERROR, reason))
        span.end(at_ns)

    def close(self, timeout_s: float = 2.0) -> None:
        """Export what waits, and end. What the collector has not taken within ``timeout_s`` is lost."""
        work = [self._tracers.shutdown, self._meters.shutdown]
        ending = threading.Thread(target=lambda: [end() for end in work], name="framegate-telemetry-end", daemon=True)
        ending.start()
        ending.join(timeout_s)
        if ending.is_alive():  # an exporter that is shut down does not retry
            for exporter in self._exporters:
                threading.Thread(target=exporter.shutdown, args=(1,), name="framegate-telemetry-end", daemon=True).start()
        _log.removeHandler(self._complaints)

    def _links(self, segments: Sequence[tuple[str, int]]) -> list[Link]:
        """Links to the spans that the control process makes of segments, if the sampler takes them; both processes must have the same sampler."""
        links: list[Link] = []
        for stream, base in segments:
            trace_id, span_id = segment_trace(stream, base)
            if (
                len(links) < MAX_LINKS
                and self._tracers.sampler.should_sample(Context(), trace_id, SEGMENT_SPAN).decision is Decision.RECORD_AND_SAMPLE
            ):
                context = SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
                links.append(Link(context, {STREAM: stream, BASE_OFFSET: base}))
        return links


class _Complaints(logging.Handler):
    """Passes on what the SDK logs, but not the same message again: the SDK logs each attempt. Nothing goes to standard error."""

    def __init__(self, failed: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._failed = failed
        self._last = ""

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg != self._last:
            self._last = record.msg
            self._failed(record.getMessage())


def _exporter(signal: str, endpoint: str) -> Any:
    """The OTLP exporter of ``trace`` or ``metric``, for the protocol that the environment names. No other is loaded."""
    upper = f"{signal.upper()}S"
    protocol = os.environ.get(f"OTEL_EXPORTER_OTLP_{upper}_PROTOCOL") or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL") or "grpc"
    if protocol not in ("grpc", "http/protobuf"):
        raise ValueError(f"OTEL_EXPORTER_OTLP_PROTOCOL: grpc or http/protobuf, not {protocol}")
    module = importlib.import_module(f"opentelemetry.exporter.otlp.proto.{protocol.partition('/')[0]}.{signal}_exporter")
    place = f"{endpoint.rstrip('/')}/v1/{signal}s" if endpoint and protocol != "grpc" else endpoint
    return getattr(module, "OTLPSpanExporter" if signal == "trace" else "OTLPMetricExporter")(endpoint=place or None)
