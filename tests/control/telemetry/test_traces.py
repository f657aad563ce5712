"""Spans, as a receiver of the protocol gets them."""

import subprocess
import sys
import time

import pytest
from opentelemetry.context import Context
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags, use_span

from framegate.control.telemetry.traces import current_span, trace_fields
from tests.fakes.jobs import environment as same_build
from tests.fakes.otlp_receiver import attributes_of
from tests.fakes.tracing import tracing

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


@pytest.mark.parametrize(
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
        assert made.account.dropped("traces") == 2
        made.receiver.hold.set()
        made.receiver.wait(lambda: len(made.receiver.spans) == 3)
        deadline = time.monotonic() + 5
        while made.traces._room.used and time.monotonic() < deadline:
            time.sleep(0.005)  # its exports are over
        made.traces.record("again", NOW_NS, NOW_NS, {})
        assert {span.name for span in made.spans()} == {"x0", "x1", "x2", "again"}
        assert made.account.dropped("traces") == 2


def test_a_collector_that_hangs_does_not_hold_up_the_end() -> None:
    with tracing() as made:
        made.receiver.hold.clear()
        made.traces.record("x", NOW_NS, NOW_NS, {})
        began = time.monotonic()
        made.traces.stop(0.2)
        assert time.monotonic() - began < 1.5
        made.receiver.hold.set()


def test_the_current_span_is_told_while_it_lasts_and_no_longer() -> None:
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
