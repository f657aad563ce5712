"""Spans of what happens, from the bus to a receiver of the protocol."""

import contextlib
import json
import os
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry.context import Context
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.trace import SpanKind, use_span

from framegate.control.events import Bus, Row
from framegate.control.logs import RowCopy, RowLog
from framegate.control.logs.forms import as_json
from framegate.control.telemetry import event_spans
from framegate.control.telemetry.connection_traces import RATE
from framegate.control.telemetry.event_spans import SLOW_NS, EventSpans
from framegate.proxy.network.connection_id import format_connection_id
from framegate.proxy.network.tls_failure import describe, handshake_error
from tests.fakes.cases import each_of
from tests.fakes.clock import FakeClock
from tests.fakes.otlp_receiver import attributes_of
from tests.fakes.rows import CHANNEL, OPENED_NS, request_span_row
from tests.fakes.tracing import Tracing, tracing

MS = 1_000_000
BEGAN_NS = OPENED_NS + 5 * MS
PARTS = {"attempt_started_ns": BEGAN_NS + MS, "tcp_ns": MS, "tls_ns": 0, "login_ns": 0}
WAY = {"handshake_ns": 3 * MS, "connect_ns": 4 * MS, "connect_started_ns": BEGAN_NS, "attempts": 1, **PARTS}
NOWHERE = {"connect_ns": None, "connect_started_ns": None, "attempts": 0, "attempt_started_ns": None}


class Bench:
    """A bus whose events become spans; ``spans`` ends it all."""

    def __init__(self, made: Tracing, clock: Callable[[], float]) -> None:
        self.tracing = made
        self.failures: list[Exception] = []
        self.bus = Bus(on_failure=self.failures.append)
        self.events = EventSpans(made.traces, ("kafka",), made.account, self.failures.append, clock)
        self.bus.attach(self.events)

    def lines(self, name: str, *rows: Row, level: str = "info") -> None:
        """Connections, as ``framegate.control.fleet.connections`` publishes them."""
        texts = [as_json({**row, "id": format_connection_id(row["id"])}) for row in rows]
        read = dict(zip(texts, rows, strict=True))
        self.bus.publish_lines(name, texts, lambda _, text: {"event": name, **read[text]}, subjects=[row["id"] for row in rows], level=level)

    def spans(self) -> list[Span]:
        self.events.stop(5)
        return self.tracing.spans()


@contextlib.contextmanager
def bench(clock: Callable[[], float] = time.monotonic, **settings: Any) -> Iterator[Bench]:
    with tracing(**settings) as made:
        yield Bench(made, clock)


def spans_of(name: str, *rows: Row, level: str = "info") -> list[Span]:
    """The spans of connections."""
    with bench() as at:
        at.lines(name, *rows, level=level)
        spans = at.spans()
    assert at.failures == []
    return spans


def named(spans: list[Span], name: str) -> Span:
    """The only span of that name."""
    (span,) = [span for span in spans if span.name == name]
    return span


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
    spans = spans_of("opened", opened(attempts=2))
    span = named(spans, "framegate.upstream.connect")
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
    tcp = named(spans, "framegate.upstream.tcp")
    assert (tcp.parent_span_id, times(tcp)) == (span.span_id, (BEGAN_NS + MS, BEGAN_NS + 2 * MS))
    assert len(spans) == 2, "without TLS and login there is no more"


@each_of(
    ("parts", "cause", "expected"),
    [
        ({"tcp_ns": MS, "tls_ns": 2 * MS, "login_ns": 0}, "", [("tcp", 1, 2), ("tls", 2, 4)]),
        ({"tcp_ns": 0, "tls_ns": MS, "login_ns": MS}, "", [("tcp", 1, 1), ("tls", 1, 2), ("login", 2, 3)]),
        ({"tcp_ns": None, "tls_ns": None, "login_ns": None}, "upstream_timeout", [("tcp!", 1, 4)]),
        ({"tcp_ns": MS, "tls_ns": None, "login_ns": None}, "tls_failed", [("tcp", 1, 2), ("tls!", 2, 4)]),
        ({"tcp_ns": MS, "tls_ns": 0, "login_ns": None}, "auth_failed", [("tcp", 1, 2), ("login!", 2, 4)]),
    ],
)
def test_the_parts_of_the_last_attempt_are_spans_and_the_one_that_failed_has_the_error(
    parts: Row, cause: str, expected: list[tuple[str, int, int]]
) -> None:
    if cause:
        spans = spans_of("closed", closed(**parts, state="connecting_upstream", cause=cause, side="upstream"), level="warning")
    else:
        spans = spans_of("opened", opened(**parts))
    found = []
    for span in spans:
        word, failed = span.name.rpartition(".")[2], span.status.code == Status.STATUS_CODE_ERROR
        if span.name.startswith("framegate.upstream.") and word != "connect":
            assert span.parent_span_id == named(spans, "framegate.upstream.connect").span_id
            found.append((f"{word}!" if failed else word, *((at_ns - BEGAN_NS) // MS for at_ns in times(span))))
    assert found == expected


@each_of(("level", "error"), [("info", None), ("warning", "peer_reset")])
def test_a_connection_that_is_over_is_a_span_above_those_of_its_way(level: str, error: str | None) -> None:
    with bench() as at:
        at.lines("opened", opened())
        fields = at.events.connections.fields(CHANNEL["id"])
        at.lines("closed", closed(cause="peer_reset", client_id="billing-7"), level=level)
        spans = at.spans()
    span = named(spans, "framegate.connection")
    assert (span.kind, times(span), span.parent_span_id) == (Span.SPAN_KIND_SERVER, (OPENED_NS, OPENED_NS + 50 * MS), b"")
    assert {"trace_id": span.trace_id.hex(), "span_id": span.span_id.hex()} == fields
    assert named(spans, "framegate.upstream.connect").parent_span_id == span.span_id
    assert len({each.trace_id for each in spans}) == 1
    assert attributes_of(span) == {
        "client.address": "10.0.0.9",
        "client.port": 51000,
        "server.address": "10.1.0.1",
        "server.port": 9092,
        "messaging.client.id": "billing-7",
        "framegate.listener": "kafka",
        "framegate.upstream": "brokers",
        "framegate.connection": format_connection_id(CHANNEL["id"]),
        "framegate.principal": "CN=client",
        "framegate.cause": "peer_reset",
        "framegate.request.frames": 3,
        "framegate.response.frames": 2,
        "framegate.request.bytes": 300,
        "framegate.response.bytes": 200,
        **({} if error is None else {"error.type": error}),
    }


def test_a_connection_whose_processor_died_ends_its_span() -> None:
    gone = {"connect_ns": None, "connect_started_ns": None, "attempts": None, "endpoint": None, "state": "", "cause": "processor_died"}
    nothing = {"request": None, "response": None}
    with bench() as at:
        at.lines("opened", opened())
        at.bus.publish({"event": "closed", **closed(**gone, frames=nothing, bytes=nothing)}, level="error")
        span = named(at.spans(), "framegate.connection")
    assert attributes_of(span)["error.type"] == "processor_died"


def test_rows_of_a_connection_have_the_ids_of_its_span() -> None:
    """In whatever order the log and the spans subscribe: the ids are known before the log writes the row."""
    rows: list[RowCopy] = []
    log = RowLog(os.open(os.devnull, os.O_WRONLY))
    with tracing() as made:
        bus = Bus((log,), on_failure=lambda error: None)
        events = EventSpans(made.traces, ("kafka",), made.account, lambda error: None)
        bus.attach(events)
        log.copy_to, log.connection_fields = rows.append, events.connections.fields
        number = CHANNEL["id"]
        for name, row in (("opened", opened()), ("access", opened()), ("closed", closed())):
            text = as_json({**row, "id": format_connection_id(number), "lost": {"bytes": 1}})
            bus.publish_lines(name, [text], lambda number, text, name=name, row=row: {"event": name, **row}, subjects=[number])  # type: ignore[misc]
        bus.publish({"event": "handler_raised", "connection": format_connection_id(number)}, level="error")
        bus.publish({"event": "handler_raised", "connection": "none"}, level="error")
        bus.publish_lines("access", ["{}"], lambda number, text: {}, subjects=[number + 1])
        events.stop()
        ids = events.connections.fields(number)
        span = named(made.spans(), "framegate.connection")
    log.close()
    contents = [json.loads(row.content[0]) if not isinstance(row.content, dict) else row.content for row in rows]
    assert [{key: row.get(key) for key in ids} for row in contents] == [ids] * 4 + [dict.fromkeys(ids)] * 2
    assert ids["span_id"] == span.span_id.hex()


def test_kafka_requests_are_spans_with_a_link_to_their_connection() -> None:
    with bench() as at:
        at.lines("opened", opened())
        at.events.take_requests([request_span_row(), request_span_row(id=5)], 3)
        spans = at.spans()
        known = at.events.connections.of(CHANNEL["id"])
    first, second = [span for span in spans if span.name == "Produce orders"]
    assert known is not None
    assert [int.from_bytes(link.span_id, "big") for link in first.links] == [known.span_id]
    assert (list(second.links), at.tracing.account.skipped) == ([], 3)


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
        ("closed", closed()),  # it was open before there were spans
        ("closed", closed(state="half_closed", cause="upstream_closed", side="upstream")),
        ("closed", closed(detail='"state":"handshaking"')),
        ("access", opened()),
    ],
)
def test_connections_without_a_span(name: str, row: Row) -> None:
    assert spans_of(name, row) == []


def test_a_client_that_left_before_its_upstream_was_there_has_the_span_of_its_connection_alone() -> None:
    assert [span.name for span in spans_of("closed", closed(state="connecting_upstream", cause="peer_closed"))] == ["framegate.connection"]


@each_of("cause", ["upstream_refused", "upstream_timeout", "tls_failed", "auth_failed"])
def test_one_that_did_not_reach_its_upstream_has_a_span_with_the_cause(cause: str) -> None:
    spans = spans_of("closed", closed(state="connecting_upstream", cause=cause, side="upstream", detail="no route"))
    span = named(spans, "framegate.upstream.connect")
    assert times(span) == (BEGAN_NS, BEGAN_NS + 4 * MS)
    assert (span.status.code, span.status.message, attributes_of(span)["error.type"]) == (Status.STATUS_CODE_ERROR, "no route", cause)


def test_an_upstream_without_an_address_is_an_error_without_length() -> None:
    spans = spans_of("closed", closed(**{**NOWHERE, "endpoint": None}, state="connecting_upstream", cause="upstream_refused", side="upstream"))
    span = named(spans, "framegate.upstream.connect")
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
    assert [span.name for span in spans] == ["framegate.tls.handshake"] * (error is not None) + ["framegate.connection"]
    for span in spans[:-1]:
        assert span.parent_span_id == spans[-1].span_id
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
    spans = spans_of("closed", closed(**{**NOWHERE, "handshake_ns": 1, "tls": None}, state="handshaking", cause="tls_failed", detail=str(told)))
    span = named(spans, "framegate.tls.handshake")
    assert (attributes_of(span)["error.type"], span.status.message) == (error, str(told))


def test_a_row_that_cannot_be_read_has_no_span_and_its_error_is_reported() -> None:
    def broken(number: int, text: str) -> Row:
        raise ValueError("no row")

    with bench() as at:
        at.bus.publish_lines("opened", ["{}"], broken, subjects=[1])
        at.lines("opened", opened())
        assert len(at.spans()) == 2
    assert [str(error) for error in at.failures] == ["no row"]


def test_spans_of_connections_are_bounded_in_a_second_and_the_rest_is_counted() -> None:
    clock = FakeClock()
    with bench(clock=lambda: clock.now_ns() / 1e9) as at:
        at.lines("opened", *[opened()] * (RATE + 3))
        clock.advance_ms(10)  # a hundredth of a second: two more
        at.lines("opened", *[opened()] * 5)
        assert len(at.spans()) == 2 * (RATE + 2)
    assert (at.tracing.account.skipped, at.tracing.account.dropped["traces"]) == (6, 0)


def test_what_the_sampler_does_not_take_is_neither_read_nor_counted() -> None:
    read: list[int] = []

    def reading(number: int, text: str) -> Row:
        read.append(1)
        return opened()

    with bench(sampler="always_off") as at:
        at.bus.publish_lines("opened", ["{}"] * 10, reading, subjects=[1] * 10)
        assert at.spans() == []
    assert (read, at.tracing.account.skipped) == ([], 0)


def test_the_queue_is_bounded_and_the_bus_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_spans, "_QUEUE", 4)
    began, goes_on = threading.Event(), threading.Event()

    def stands(number: int, text: str) -> Row:
        began.set()
        assert goes_on.wait(10)
        return opened()

    with bench() as at:
        at.bus.publish_lines("opened", ["{}"], stands, subjects=[1])
        assert began.wait(10)  # it is taken, and what comes now waits
        at.lines("opened", *[opened()] * 6)
        assert (at.tracing.account.skipped, at.tracing.account.dropped["traces"]) == (2, 0)
        goes_on.set()
        assert len(at.spans()) == 2 * 5


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
