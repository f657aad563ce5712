"""Spans of what happens, from the bus to a receiver of the protocol."""

import contextlib
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry.context import Context
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.trace import SpanKind, use_span

from framegate.control.events import Bus, Line, Row
from framegate.control.telemetry import event_spans
from framegate.control.telemetry.event_spans import RATE, SLOW_NS, EventSpans
from framegate.proxy.network.connection_id import format_connection_id
from framegate.proxy.network.tls_failure import describe, handshake_error
from tests.fakes.cases import each_of
from tests.fakes.clock import FakeClock
from tests.fakes.otlp_receiver import attributes_of
from tests.fakes.rows import CHANNEL, OPENED_NS
from tests.fakes.tracing import Tracing, tracing

MS = 1_000_000
BEGAN_NS = OPENED_NS + 5 * MS
WAY = {"handshake_ns": 3 * MS, "connect_ns": 4 * MS, "connect_started_ns": BEGAN_NS, "attempts": 1}
NOWHERE = {"connect_ns": None, "connect_started_ns": None, "attempts": 0}


class Bench:
    """A bus whose events become spans; ``spans`` ends it all."""

    def __init__(self, made: Tracing, clock: Callable[[], float]) -> None:
        self.tracing = made
        self.failures: list[Exception] = []
        self.bus = Bus(on_failure=self.failures.append)
        self.events = EventSpans(made.traces, ("kafka",), made.account, self.failures.append, clock)
        self.bus.attach(self.events)

    def lines(self, name: str, *rows: Row) -> None:
        """Connections, as ``framegate.control.fleet.connections`` publishes them."""
        lines: list[Line] = []
        for row in rows:
            shown = {**row, "id": format_connection_id(row["id"])}
            lines.append((row["id"], json.dumps(shown), lambda row=row: {"event": name, **row}))  # type: ignore[misc]
        self.bus.publish_lines(name, lines)

    def spans(self) -> list[Span]:
        self.events.stop(5)
        return self.tracing.spans()


@contextlib.contextmanager
def bench(clock: Callable[[], float] = time.monotonic, **settings: Any) -> Iterator[Bench]:
    with tracing(**settings) as made:
        yield Bench(made, clock)


def spans_of(name: str, *rows: Row) -> list[Span]:
    """The spans of connections."""
    with bench() as at:
        at.lines(name, *rows)
        spans = at.spans()
    assert at.failures == []
    return spans


def published(*rows: Row) -> tuple[list[Span], list[int]]:
    """The spans of events, and the times at which they were published."""
    with bench() as at:
        for row in rows:
            at.bus.publish(row)
        return at.spans(), [event.time_ns for event, _ in at.bus._history]


def opened(**changes: Any) -> Row:
    return {**CHANNEL, **WAY, **changes}


def closed(**changes: Any) -> Row:
    ended = {"cause": "peer_closed", "detail": "said the peer", "side": "downstream", "state": "open", "closed_ns": OPENED_NS + 50 * MS}
    return {**CHANNEL, **WAY, **ended, **changes}


def times(span: Span) -> tuple[int, int]:
    return span.start_time_unix_nano, span.end_time_unix_nano


# --- connections ------------------------------------------------------------------------------------------------------------------


def test_a_connection_that_is_open_has_a_span_of_its_way_to_the_upstream() -> None:
    (span,) = spans_of("opened", opened(attempts=2))
    assert (span.name, span.kind, times(span)) == ("framegate.upstream.connect", Span.SPAN_KIND_CLIENT, (BEGAN_NS, BEGAN_NS + 4 * MS))
    assert attributes_of(span) == {
        "server.address": "10.1.0.1",
        "server.port": 9092,
        "network.peer.address": "10.1.0.1",
        "network.peer.port": 9092,
        "framegate.upstream": "brokers",
        "framegate.listener": "kafka",
        "framegate.connection": format_connection_id(CHANNEL["id"]),
        "framegate.connect.attempts": 2,
    }
    assert span.status.code == Status.STATUS_CODE_UNSET


@each_of(("took_ns", "slow"), [(SLOW_NS - 1, False), (SLOW_NS, True), (SLOW_NS + 1, True)])
def test_a_handshake_that_took_long_has_a_span(took_ns: int, slow: bool) -> None:
    spans = spans_of("opened", opened(handshake_ns=took_ns))
    found = [span for span in spans if span.name == "framegate.tls.handshake"]
    assert len({span.trace_id for span in spans}) == 1, "a connection has one trace"
    assert len(found) == slow
    if slow:
        assert times(found[0]) == (OPENED_NS, OPENED_NS + took_ns)
        assert (found[0].kind, found[0].status.code) == (Span.SPAN_KIND_SERVER, Status.STATUS_CODE_UNSET)
        shown = attributes_of(found[0])
        assert (shown["tls.protocol.version"], shown["tls.cipher"], shown["network.peer.address"]) == ("1.3", "TLS_AES_256_GCM_SHA384", "10.0.0.9")
        assert "detail" not in shown


@each_of(
    ("name", "row"),
    [
        ("opened", opened(**NOWHERE, upstream="", endpoint=None)),  # a handler answers
        ("closed", closed()),  # it was open, and has had its span
        ("closed", closed(state="half_closed", cause="upstream_closed", side="upstream")),
        ("closed", closed(detail='"state": "handshaking"')),
        ("closed", closed(state="connecting_upstream", cause="peer_closed")),  # the client left before its upstream was there
    ],
)
def test_connections_without_a_span(name: str, row: Row) -> None:
    assert spans_of(name, row) == []


@each_of("cause", ["upstream_refused", "upstream_timeout", "tls_failed", "auth_failed"])
def test_one_that_did_not_reach_its_upstream_has_a_span_with_the_cause(cause: str) -> None:
    (span,) = spans_of("closed", closed(state="connecting_upstream", cause=cause, side="upstream", detail="no route"))
    assert (span.name, times(span)) == ("framegate.upstream.connect", (BEGAN_NS, BEGAN_NS + 4 * MS))
    assert (span.status.code, span.status.message, attributes_of(span)["error.type"]) == (Status.STATUS_CODE_ERROR, "no route", cause)


def test_an_upstream_without_an_address_is_an_error_without_length() -> None:
    (span,) = spans_of("closed", closed(**NOWHERE, endpoint=None, state="connecting_upstream", cause="upstream_refused", side="upstream"))
    assert times(span) == (OPENED_NS + 50 * MS,) * 2


@each_of(
    ("changes", "error"),
    [
        ({"cause": "tls_failed"}, "other"),
        ({"cause": "handshake_timeout"}, "handshake_timeout"),
        ({"cause": "peer_closed"}, "closed"),
        ({"cause": "peer_reset"}, "closed"),
        ({"cause": "no_data"}, None),  # a probe of a port
        ({"cause": "drained"}, None),
        ({"cause": "handshake_timeout", "listener": "plain"}, None),
        ({"cause": "handshake_timeout", "tls": CHANNEL["tls"]}, None),  # TLS was done: it is the login
    ],
)
def test_a_handshake_that_fails_has_a_span_with_the_cause(changes: Row, error: str | None) -> None:
    spans = spans_of("closed", closed(**{**NOWHERE, "state": "handshaking", "handshake_ns": 7 * MS, "tls": None, "detail": "unknown ca", **changes}))
    assert [span.name for span in spans] == ["framegate.tls.handshake"] * (error is not None)
    for span in spans:
        assert times(span) == (OPENED_NS, OPENED_NS + 7 * MS)
        assert (span.status.code, span.status.message, attributes_of(span)["error.type"]) == (Status.STATUS_CODE_ERROR, "unknown ca", error)


class Refused(ssl.SSLCertVerificationError):
    """As OpenSSL says it, by its number."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(1, "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed")
        self.reason, self.verify_code, self.verify_message = "CERTIFICATE_VERIFY_FAILED", code, words


def alert(word: str) -> ssl.SSLError:
    error = ssl.SSLError(1, word)
    error.reason = word
    return error


@each_of(
    ("failure", "error"),
    [
        (alert("TLSV1_ALERT_UNKNOWN_CA"), "peer_alert"),
        (alert("WRONG_VERSION_NUMBER"), "not_tls"),
        (alert("PEER_DID_NOT_RETURN_A_CERTIFICATE"), "certificate_missing"),
        (alert("NO_SHARED_CIPHER"), "cipher"),
        (alert("UNSUPPORTED_PROTOCOL"), "version"),
        (Refused(2, "unable to get issuer certificate"), "unknown_authority"),
        (Refused(10, "certificate has expired"), "certificate_expired"),
        (Refused(18, "self-signed certificate"), "unknown_authority"),
        (Refused(19, "self-signed certificate in certificate chain"), "unknown_authority"),
        (Refused(20, "unable to get local issuer certificate"), "unknown_authority"),
        (Refused(21, "unable to verify the first certificate"), "unknown_authority"),
        (Refused(23, "certificate revoked"), "certificate_revoked"),
        (Refused(27, "certificate not trusted"), "unknown_authority"),
        (Refused(9, "certificate is not yet valid"), "certificate_refused"),
    ],
)
def test_a_failed_handshake_is_called_what_its_metric_calls_it(failure: ssl.SSLError, error: str) -> None:
    """The metric has OpenSSL's error, the row its words."""
    told = describe(failure, "client")
    assert handshake_error(None, told) == error
    (span,) = spans_of("closed", closed(**NOWHERE, state="handshaking", handshake_ns=1, tls=None, cause="tls_failed", detail=str(told)))
    assert (attributes_of(span)["error.type"], span.status.message) == (error, str(told))


def test_a_row_that_cannot_be_read_has_no_span_and_its_error_is_reported() -> None:
    def broken() -> Row:
        raise ValueError("no row")

    with bench() as at:
        at.bus.publish_lines("opened", [(1, "{}", broken)])
        at.lines("opened", opened())
        assert len(at.spans()) == 1
    assert [str(error) for error in at.failures] == ["no row"]


def test_spans_of_connections_are_bounded_in_a_second_and_the_rest_is_counted() -> None:
    clock = FakeClock()
    with bench(clock=lambda: clock.now_ns() / 1e9) as at:
        at.lines("opened", *[opened()] * (RATE + 3))
        deadline = time.monotonic() + 10
        while at.tracing.account.skipped < 3 and time.monotonic() < deadline:
            time.sleep(0.002)
        clock.advance_ms(10)  # a hundredth of a second: two more
        at.lines("opened", *[opened()] * 5)
        assert len(at.spans()) == RATE + 2
    assert (at.tracing.account.skipped, at.tracing.account.dropped("traces")) == (6, 0)


def test_what_the_sampler_does_not_take_is_neither_read_nor_counted() -> None:
    read: list[int] = []

    def reading() -> Row:
        read.append(1)
        return opened()

    with bench(sampler="always_off") as at:
        at.bus.publish_lines("opened", [(1, "{}", reading)] * 10)
        assert at.spans() == []
    assert (read, at.tracing.account.skipped) == ([], 0)


def test_the_queue_is_bounded_and_the_bus_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_spans, "_QUEUE", 4)
    began, goes_on = threading.Event(), threading.Event()

    def stands() -> Row:
        began.set()
        assert goes_on.wait(10)
        return opened()

    with bench() as at:
        at.bus.publish_lines("opened", [(1, "{}", stands)])
        assert began.wait(10)  # it is taken, and what comes now waits
        at.lines("opened", *[opened()] * 6)
        assert (at.tracing.account.skipped, at.tracing.account.dropped("traces")) == (2, 0)
        goes_on.set()
        assert len(at.spans()) == 5


# --- what begins and ends ---------------------------------------------------------------------------------------------------------


ENDPOINT = {"slot": 1, "generation": 3, "upstream": "brokers", "endpoint": "10.1.0.1:9092"}
DOWN = {"event": "endpoint_down", **ENDPOINT, "failures": 1, "reason": "refused", "detail": "no", "backoff_ms": 1}
UP = {"event": "endpoint_up", **ENDPOINT, "failures": 4, "reason": "refused", "down_ms": 9}


def test_an_endpoint_that_was_left_out_has_one_span_from_the_first_failure_to_its_return() -> None:
    (span,), (first, _, last) = published(DOWN, {**DOWN, "failures": 2}, UP)
    assert (span.name, times(span)) == ("framegate.upstream.outage", (first, last))
    found = attributes_of(span)
    assert (found["error.type"], found["framegate.failures"], found["framegate.worker"], found["network.peer.port"]) == ("refused", 4, "1", 9092)
    assert span.status.code == Status.STATUS_CODE_ERROR


def test_what_has_not_ended_when_framegate_stops_has_an_unfinished_span() -> None:
    spans, _ = published(DOWN, {**DOWN, "slot": 2})
    assert [attributes_of(span)["framegate.unfinished"] for span in spans] == [True, True]


@each_of("word", ["processor", "handler"])
def test_a_process_that_dies_and_comes_back_is_a_span(word: str) -> None:
    (span,), (began, _, ended) = published(
        {"event": f"{word}_died", "slot": 2, "pid": 77, "generation": 5, "exit_code": -9, "reason": "heartbeat", "connections": 3},
        {"event": f"{word}_ready", "slot": 1, "pid": 78, "generation": 6},
        {"event": f"{word}_ready", "slot": 2, "pid": 79, "generation": 6},
    )
    assert (span.name, times(span), span.status.code) == (f"framegate.{word}.restart", (began, ended), Status.STATUS_CODE_ERROR)
    assert attributes_of(span) == {
        "framegate.worker": "2",
        "process.pid": 77,
        "process.exit.code": -9,
        "framegate.connections": 3,
        "error.type": "heartbeat",
    }


def test_a_drain_is_one_span_from_its_first_step_to_the_last_connection() -> None:
    (span,), (began, second, ended) = published(
        {"event": "drain_began", "accept": "until_stop", "by": "framegate cli", "reason": "preStop", "connections": 4},
        {"event": "drain_began", "accept": "refuse", "by": "signal", "reason": None, "timeout_ms": 9, "connections": 3},
        {"event": "drain_ended", "connections": 1},
    )
    assert (span.name, times(span)) == ("framegate.drain", (began, ended))
    assert attributes_of(span) == {
        "framegate.drain.accept": "until_stop",
        "framegate.drain.by": "framegate cli",
        "framegate.drain.reason": "preStop",
        "framegate.drain.connections": 4,
        "framegate.drain.left": 1,
    }
    assert [(event.name, event.time_unix_nano) for event in span.events] == [("refuse", second)]


def test_what_happens_in_a_call_lies_beneath_its_span() -> None:
    with bench() as at:
        call = at.tracing.traces.begin("call", SpanKind.SERVER, {}, Context())
        with use_span(call, end_on_exit=True):
            at.bus.publish({"event": "drain_began", "accept": "refuse", "by": "framegate cli", "reason": None, "connections": 0})
        at.bus.publish({"event": "drain_ended", "connections": 0})
        found = {span.name: span for span in at.spans()}
    assert found["framegate.drain"].parent_span_id == found["call"].span_id
    assert found["framegate.drain"].trace_id == found["call"].trace_id


# --- changes ----------------------------------------------------------------------------------------------------------------------


def test_files_that_were_replaced_are_a_span_since_they_were_seen() -> None:
    row = {"event": "files_replaced", "owner": "listener/kafka", "kind": "tls", "files": ["tls.crt", "tls.key"], "took_ns": 30 * MS}
    (span,), (ended,) = published(row)
    assert (span.name, times(span), span.status.code) == ("framegate.reload", (ended - 30 * MS, ended), Status.STATUS_CODE_UNSET)
    assert attributes_of(span) == {"framegate.file.owner": "listener/kafka", "framegate.file.kind": "tls", "file.path": ["tls.crt", "tls.key"]}


@each_of(
    ("row", "change", "result", "error"),
    [
        ({"event": "container_resized", "refused": None}, "container_resized", "made", None),
        ({"event": "container_resized", "refused": "too small"}, "container_resized", "refused", "refused"),
        ({"event": "change_settled", "change": "pool", "result": "taken back"}, "pool", "taken back", None),
        ({"event": "change_settled", "change": "pool", "result": "failed", "error": "silent"}, "pool", "failed", "failed"),
        ({"event": "tap_rule_off", "rule": "debug", "cause": "cpu"}, "tap_rule_off", "made", None),
    ],
)
def test_changes_without_a_call_have_a_span(row: Row, change: str, result: str, error: str | None) -> None:
    ((span,), _) = published(row)
    found = attributes_of(span)
    assert span.name == "framegate.change"
    assert [found.get(key) for key in ("framegate.change", "framegate.change.result", "error.type")] == [change, result, error]
    assert found.get("framegate.change.subject") == row.get("rule")


def test_what_happened_before_it_was_attached_has_its_span_too() -> None:
    with tracing() as made:
        bus = Bus(on_failure=lambda error: None)
        bus.publish({"event": "files_replaced", "owner": "o", "kind": "tls", "files": []})
        events = EventSpans(made.traces, (), made.account, lambda error: None)
        bus.attach(events)
        bus.close()
        bus.publish({"event": "files_replaced", "owner": "p", "kind": "tls", "files": []})
        events.stop()
        assert [attributes_of(span)["framegate.file.owner"] for span in made.spans()] == ["o", "p"]
