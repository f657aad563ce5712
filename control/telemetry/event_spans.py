"""Spans of events: made from the events of the bus after they are over, with the times at which they happened.

    framegate.connection         a client's connection, made when it is over; the next three are below it
    framegate.upstream.connect   connecting to its upstream, also if that failed; below it, of the last attempt, ``framegate.upstream.tcp``,
                                 ``framegate.upstream.tls`` and ``framegate.upstream.login``
    framegate.tls.handshake      of a client's handshake that failed, or that took ``SLOW_NS`` or longer
    API TOPIC                    a Kafka request (``request_spans``), with a link to its connection
    framegate.upstream.outage    an endpoint that was left out, from its first failure until it was used again
    framegate.processor.restart  from the end of a processor until the next one is ready; ``framegate.handler.restart`` likewise
    framegate.drain              from the first request to drain until the last connection is gone
    framegate.reload             replaced files, from when they were noticed until they were accepted or refused
    framegate.change             a change whose call has ended already, or that no call requested

The bus only puts events into a bounded queue; a thread of its own makes the spans. Which connections have spans is decided when their first event
comes (``connection_traces``), before the log writes its row. Connections beyond its rate, and events that the queue has no room for, are counted as
skipped: unlike dropped spans they never reached an exporter.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from opentelemetry.trace import SpanContext, SpanKind
from opentelemetry.util.types import AnyValue

from framegate.control.events import Event, Row, Subscriber
from framegate.control.telemetry.connection_traces import SPAN, ConnectionTraces
from framegate.control.telemetry.exporters import Account
from framegate.control.telemetry.request_spans import address, record_request
from framegate.control.telemetry.traces import Traces, current_span
from framegate.proxy.cause import Cause
from framegate.proxy.errors import TlsError
from framegate.proxy.network.connection_id import format_connection_id
from framegate.proxy.network.tls_failure import handshake_error
from framegate.proxy.server.rows import RequestSpanRow

SLOW_NS: Final = 1_000_000_000  # The shortest slow handshake: TLS and login together. Mostly the other side is slow.
_QUEUE: Final = 4_096
_PAUSE_S: Final = 0.05  # between two rounds, so that events that come fast are taken together
_HANDSHAKING: Final = '"state":"handshaking"'
_CONNECTING: Final = '"state":"connecting_upstream"'
"""In the text of a ``closed`` row of a connection that never was open. No string value can contain this text, because its quotes are escaped."""
_HANDSHAKE_FAILURES: Final = frozenset({"tls_failed", "handshake_timeout", "peer_closed", "peer_reset"})
_VERDICTS: Final = {
    "certificate has expired": "certificate_expired",
    "certificate revoked": "certificate_revoked",
    "issuer certificate": "unknown_authority",
    "unable to verify the first certificate": "unknown_authority",
    "self-signed certificate": "unknown_authority",
    "self signed certificate": "unknown_authority",
    "certificate not trusted": "unknown_authority",
}  # OpenSSL's messages about a certificate (``X509_verify_cert_error_string``) that have a name among ``TLS_ERRORS``
_OPEN_ENDS: Final = 1_000  # the most outages that may wait for their end

Attributes = dict[str, AnyValue]


@dataclass(slots=True)
class _Begun:
    """Something that has begun and not ended."""

    name: str
    at_ns: int
    attributes: Attributes
    error: str = ""
    detail: str = ""
    parent: SpanContext | None = None
    events: list[tuple[str, int, Attributes]] = field(default_factory=list)


class EventSpans(Subscriber):
    """Makes spans of events, until ``stop``.

    Args:
        tls: the names of the listeners whose clients use TLS; an attribute, too.
        failed: called with the exception if no span can be made of an event.
        clock: monotonic, in seconds.
    """

    def __init__(
        self, traces: Traces, tls: Collection[str], account: Account, failed: Callable[[Exception], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._traces = traces
        self.tls = frozenset(tls)
        self.connections = ConnectionTraces(traces, account.skip, clock)  # those that have spans
        self._account = account
        self._failed = failed
        self._queue: deque[tuple[Event | RequestSpanRow, SpanContext | None]] = deque()
        self._begun: dict[tuple[object, ...], _Begun] = {}
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._handlers: dict[str, Callable[[Event, SpanContext | None], None]] = {
            "opened": self._opened,
            "closed": self._closed,
            "endpoint_down": self._endpoint_down,
            "endpoint_up": self._endpoint_up,
            "processor_died": self._died,
            "handler_died": self._died,
            "processor_ready": self._ready,
            "handler_ready": self._ready,
            "drain_began": self._drain_began,
            "drain_ended": self._drain_ended,
            "files_replaced": self._reloaded,
            "files_refused": self._reloaded,
            "container_resized": self._changed,
            "change_settled": self._changed,
            "tap_rule_off": self._changed,
        }
        self._thread = threading.Thread(target=self._run, name="framegate-spans", daemon=True)
        self._thread.start()

    # --- called by the bus: any thread, with its lock held ----------------------------------------------------------------------------

    def offer(self, event: Event, line: Row | str, size: int) -> None:
        """See ``Subscriber``. Single rows of closed connections are those of a processor that died."""
        if event.name == "opened":
            self._begin_connection(event)
        elif event.name == "closed":
            self._end_connection(event, self.connections.end(_subject(event)))
        elif event.name in self._handlers:
            self._put(event, current_span())

    def offer_lines(self, events: Sequence[Event], lines: Sequence[str]) -> None:
        if events[0].name == "opened":
            for event in events:
                self._begin_connection(event)
        elif events[0].name == "closed":
            for event, line in zip(events, lines, strict=True):
                found = self.connections.end(event.subject)
                if found is None and (_HANDSHAKING in line or _CONNECTING in line):  # it was never open
                    self.connections.begin(event.subject)
                    found = self.connections.end(event.subject)
                self._end_connection(event, found)

    def _begin_connection(self, event: Event) -> None:
        found = self.connections.begin(_subject(event))
        if found is not None:
            self._put(event, found)

    def _end_connection(self, event: Event, found: SpanContext | None) -> None:
        if found is not None:
            self._put(event, found)

    def take_requests(self, rows: Sequence[RequestSpanRow], skipped: int) -> None:
        """Kafka requests that have a span, and the number of those that a processor skipped. Any thread."""
        if skipped:
            self._account.skip(skipped)
        for row in rows:
            self._put(row, self.connections.of(row["id"]))

    def _put(self, event: Event | RequestSpanRow, parent: SpanContext | None) -> None:
        if len(self._queue) >= _QUEUE:
            self._account.skip(1)
            return
        self._queue.append((event, parent))
        self._wake.set()

    # --- the thread ---------------------------------------------------------------------------------------------------------------

    def stop(self, timeout_s: float = 1.0) -> None:
        """Make spans of all queued events, and of everything that has not ended. Call it before ``Traces.stop``."""
        self._stopping.set()
        self._wake.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.wait()
            self._wake.clear()
            self._take_all()
            self._stopping.wait(_PAUSE_S)
        self._take_all()
        now_ns = time.time_ns()
        for key in list(self._begun):
            self._end(key, now_ns, {"framegate.unfinished": True})

    def _take_all(self) -> None:
        while self._queue:
            event, parent = self._queue.popleft()
            try:
                if isinstance(event, Event):
                    self._handlers[event.name](event, parent)
                else:
                    record_request(self._traces, event, parent)
            except Exception as error:
                self._failed(error)

    # --- connections --------------------------------------------------------------------------------------------------------------

    def _opened(self, event: Event, parent: SpanContext | None) -> None:
        row = event.row
        self._connect(row, parent, "")
        if row["tls"] is not None and (row["handshake_ns"] or 0) >= SLOW_NS:
            self._handshake(row, parent, "")

    def _closed(self, event: Event, parent: SpanContext | None) -> None:
        row = event.row
        cause, state = row["cause"], row["state"]
        if state in ("handshaking", "connecting_upstream") and (row["side"] == "upstream" or cause.startswith("upstream_")):
            self._connect(row, parent, cause)
        elif state == "handshaking" and row["listener"] in self.tls and row["tls"] is None and cause in _HANDSHAKE_FAILURES:
            self._handshake(row, parent, _tls_error(cause, row.get("detail") or ""))
        assert parent is not None, "its ids are known"
        attributes: Attributes = {
            **self._of_connection(row),
            **address(row["peer"], "client"),
            **address(row["endpoint"] or "", "server"),
            "framegate.upstream": row["upstream"],
            "framegate.principal": row["principal"],
            "messaging.client.id": row.get("client_id"),
            "framegate.cause": cause,
        }
        for direction in ("request", "response"):
            attributes[f"framegate.{direction}.frames"] = row["frames"][direction]
            attributes[f"framegate.{direction}.bytes"] = row["bytes"][direction]
        self._traces.record(
            SPAN,
            row["opened_ns"],
            row["closed_ns"],
            attributes,
            kind=SpanKind.SERVER,
            error="" if event.level == "info" else cause,
            detail=row["detail"],
            trace_id=parent.trace_id,
            span_id=parent.span_id,
        )

    def _connect(self, row: Row, parent: SpanContext | None, error: str) -> None:
        start_ns, took_ns = row["connect_started_ns"], row["connect_ns"]
        if start_ns is None:  # a handler answers, or the upstream has no address
            if not error:
                return
            start_ns = row["closed_ns"]
        attributes: Attributes = {
            **address(row["endpoint"] or "", "network.peer"),
            **address(row["endpoint"] or "", "server"),
            "framegate.upstream": row["upstream"],
            **self._of_connection(row),
            "framegate.connect.attempts": row["attempts"],
        }
        end_ns = row["closed_ns"] if took_ns is None else start_ns + took_ns
        made = self._record("framegate.upstream.connect", SpanKind.CLIENT, start_ns, end_ns, row, attributes, parent, error)
        at_ns = row["attempt_started_ns"]
        for part in ("tcp", "tls", "login") if at_ns is not None else ():
            part_ns = row[f"{part}_ns"]
            if part_ns is None:
                if error:
                    self._record(f"framegate.upstream.{part}", SpanKind.CLIENT, at_ns, end_ns, row, attributes, made, error)
                return
            if part_ns or part == "tcp":
                self._record(f"framegate.upstream.{part}", SpanKind.CLIENT, at_ns, at_ns + part_ns, row, attributes, made, "")
            at_ns += part_ns

    def _handshake(self, row: Row, parent: SpanContext | None, error: str) -> None:
        tls, start_ns = row["tls"], row["opened_ns"]
        attributes: Attributes = {
            **address(row["peer"], "network.peer"),
            **self._of_connection(row),
            **({} if tls is None else {"tls.protocol.version": tls["version"].removeprefix("TLSv"), "tls.cipher": tls["cipher"]}),
        }
        took_ns = row["handshake_ns"]
        end_ns = row["closed_ns"] if took_ns is None else start_ns + took_ns
        self._record("framegate.tls.handshake", SpanKind.SERVER, start_ns, end_ns, row, attributes, parent, error)

    def _of_connection(self, row: Row) -> Attributes:
        return {"framegate.listener": row["listener"], "framegate.connection": format_connection_id(row["id"])}

    def _record(
        self, name: str, kind: SpanKind, start_ns: int, end_ns: int, row: Row, attributes: Attributes, parent: SpanContext | None, error: str
    ) -> SpanContext:
        """Make a span of a part of a connection."""
        detail = row.get("detail", "") if error else ""
        return self._traces.record(name, start_ns, end_ns, attributes, kind=kind, error=error, detail=detail, parent=parent)

    # --- events that begin and end something ------------------------------------------------------------------------------------------

    def _begin(self, key: tuple[object, ...], begun: _Begun) -> None:
        """Remember a beginning; a repeated one is ignored."""
        if key not in self._begun and len(self._begun) < _OPEN_ENDS:
            self._begun[key] = begun

    def _end(self, key: tuple[object, ...], at_ns: int, more: Attributes) -> None:
        begun = self._begun.pop(key, None)
        if begun is not None:
            attributes = {**begun.attributes, **more}
            self._traces.record(
                begun.name, begun.at_ns, at_ns, attributes, error=begun.error, detail=begun.detail, parent=begun.parent, events=begun.events
            )

    def _endpoint_down(self, event: Event, parent: SpanContext | None) -> None:
        row = event.row
        attributes: Attributes = {
            **address(row["endpoint"], "network.peer"),
            **address(row["endpoint"], "server"),
            **({"server.address": row["server_name"]} if row.get("server_name") else {}),
            "framegate.upstream": row["upstream"],
            "framegate.worker": str(row["slot"]),
        }
        self._begin(_outage(row), _Begun("framegate.upstream.outage", event.time_ns, attributes, row["reason"], row["detail"]))

    def _endpoint_up(self, event: Event, parent: SpanContext | None) -> None:
        row = event.row
        self._end(_outage(row), event.time_ns, {"framegate.failures": row["failures"]})

    def _died(self, event: Event, parent: SpanContext | None) -> None:
        row, word = event.row, event.name.removesuffix("_died")
        attributes: Attributes = {
            "framegate.worker": str(row["slot"]),
            "process.pid": row["pid"],
            "process.exit.code": row["exit_code"],
            "framegate.connections": row.get("connections"),
        }
        self._begin((word, row["slot"]), _Begun(f"framegate.{word}.restart", event.time_ns, attributes, row["reason"]))

    def _ready(self, event: Event, parent: SpanContext | None) -> None:
        self._end((event.name.removesuffix("_ready"), event.row["slot"]), event.time_ns, {})

    def _drain_began(self, event: Event, parent: SpanContext | None) -> None:
        row = event.row
        request: Attributes = {
            "framegate.drain.accept": row["accept"],
            "framegate.drain.by": row["by"] or "",
            "framegate.drain.reason": row["reason"] or "",
        }
        begun = self._begun.get(("drain",))
        if begun is not None:  # preStop began it, and the signal continues it
            begun.events.append((row["accept"], event.time_ns, request))
            return
        attributes: Attributes = {**request, "framegate.drain.connections": row["connections"]}
        self._begin(("drain",), _Begun("framegate.drain", event.time_ns, attributes, parent=parent))

    def _drain_ended(self, event: Event, parent: SpanContext | None) -> None:
        self._end(("drain",), event.time_ns, {"framegate.drain.left": event.row["connections"]})

    # --- changes ------------------------------------------------------------------------------------------------------------------

    def _reloaded(self, event: Event, parent: SpanContext | None) -> None:
        row = event.row
        refused = event.name == "files_refused"
        attributes: Attributes = {
            "framegate.file.owner": row["owner"],
            "framegate.file.kind": row["kind"],
            "file.path": [row["file"]] if refused else list(row["files"]),
        }
        error, detail = ("refused", row["reason"]) if refused else ("", "")
        start_ns = event.time_ns - row.get("took_ns", 0)
        self._traces.record("framegate.reload", start_ns, event.time_ns, attributes, error=error, detail=detail, parent=parent)

    def _changed(self, event: Event, parent: SpanContext | None) -> None:
        row = event.row
        failed = row.get("result") == "failed" or bool(row.get("refused"))
        attributes: Attributes = {
            "framegate.change": row.get("change", event.name),
            "framegate.change.result": row.get("result") or ("refused" if failed else "made"),
            "framegate.change.subject": row.get("rule"),
        }
        detail = str(row.get("refused") or row.get("error") or "")
        error = ("refused" if row.get("refused") else "failed") if failed else ""
        self._traces.record("framegate.change", event.time_ns, event.time_ns, attributes, error=error, detail=detail if failed else "", parent=parent)


def _tls_error(cause: str, detail: str) -> str:
    """Why a handshake failed, as one of ``TLS_ERRORS``. The row has text only: OpenSSL's reason in brackets at its end, and before it the verdict
    about a certificate that we refuse.
    """
    text, _, reason = detail.rstrip(")").rpartition(" (")
    if cause != Cause.TLS_FAILED or not reason:
        return handshake_error(Cause(cause), None)
    if reason == "certificate_verify_failed":
        return next((error for words, error in _VERDICTS.items() if words in text), "certificate_refused")
    return handshake_error(None, TlsError(detail, reason=reason))


def _subject(event: Event) -> int:
    return event.subject or int(event.row["id"])


def _outage(row: Row) -> tuple[object, ...]:
    return "outage", row["slot"], row["generation"], row["upstream"], row["endpoint"], row.get("server_name")
