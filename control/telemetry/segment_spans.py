"""Spans of the tap's segments, to which the Spark job's batches link: their ids follow from stream and base (``framegate.proxy.tap.trace_ids``).

A segment has its span, ``framegate.tap.segment``, once it is sealed. So that a link to it leads to something before, ``framegate.tap.segment.open``
is beneath it, without length, as soon as the segment is seen.
"""

from opentelemetry.trace import SpanContext, TraceFlags
from opentelemetry.util.types import AnyValue

from framegate.control.telemetry.traces import Traces
from framegate.proxy.tap.headers import Seal
from framegate.proxy.tap.log_reader import Segment
from framegate.proxy.tap.record import SEAL_CUT
from framegate.proxy.tap.trace_ids import BASE_OFFSET, SEGMENT_SPAN, STREAM, segment_trace

__all__ = ["SegmentSpans"]


class SegmentSpans:
    """Makes them; the tap's keeper tells (``framegate.control.tap.segment_watch``)."""

    def __init__(self, traces: Traces) -> None:
        self._traces = traces

    def told(self, segment: Segment, created_ns: int, seal: Seal | None) -> None:
        """A segment began, or ended with this seal."""
        trace_id, span_id = segment_trace(segment.stream, segment.base)
        if not self._traces.takes(trace_id, SEGMENT_SPAN):
            return
        attributes: dict[str, AnyValue] = {STREAM: segment.stream, BASE_OFFSET: segment.base}
        if seal is None:
            parent = SpanContext(trace_id, span_id, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
            self._traces.record(f"{SEGMENT_SPAN}.open", created_ns, created_ns, attributes, parent=parent)
            return
        attributes |= {
            "framegate.tap.end_offset": seal.end,
            "framegate.tap.bytes": seal.end - segment.base,
            "framegate.tap.blocks": seal.blocks,
            "framegate.tap.frames": seal.request_frames + seal.response_frames,
            "framegate.tap.frames.lost": seal.lost_frames,
            "framegate.tap.cut": bool(seal.flags & SEAL_CUT),
        }
        self._traces.record(SEGMENT_SPAN, created_ns, seal.sealed_ns, attributes, trace_id=trace_id, span_id=span_id)
