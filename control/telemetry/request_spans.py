"""Spans of Kafka requests, with the attributes of the conventions for messaging."""

from typing import Final

from opentelemetry.trace import Link, SpanContext, SpanKind, TraceFlags
from opentelemetry.util.types import AnyValue

from framegate.control.telemetry.traces import Traces
from framegate.proxy.cells import RESPONSE_ERRORS
from framegate.proxy.config.selection import KAFKA_APIS
from framegate.proxy.network.connection_id import format_connection_id
from framegate.proxy.relay.pairing_stats import error_row
from framegate.proxy.server.rows import RequestSpanRow

_TYPES: Final = {
    "Produce": "send",
    "Fetch": "receive",
    "ShareFetch": "receive",
    "OffsetCommit": "settle",
    "TxnOffsetCommit": "settle",
    "ShareAcknowledge": "settle",
}  # ``messaging.operation.type`` by API; the others have none


def address(text: str, side: str) -> dict[str, AnyValue]:
    """``host:port``, ``[v6]:port`` or ``unix:PATH`` as attributes of the conventions: ``SIDE.address`` and ``SIDE.port``."""
    if text.startswith("unix:"):
        return {f"{side}.address": text.removeprefix("unix:"), "network.transport": "unix"}
    host, _, port = text.rpartition(":")
    return {f"{side}.address": host.strip("[]"), f"{side}.port": int(port)} if port.isdigit() else {f"{side}.address": text} if text else {}


def record_request(traces: Traces, row: RequestSpanRow, connection: SpanContext | None) -> None:
    """Make the span of a request: a child of the first context that its records have, else the first of a trace. ``row``: the request.
    ``connection``: the span of its connection, to which it has a link, as to the further contexts; None: there is none.
    """
    name = KAFKA_APIS.get(row["key"], str(row["key"]))
    parents = [_context(text) for text in row["parents"]]
    attributes: dict[str, AnyValue] = {
        "messaging.system": "kafka",
        "messaging.operation.name": name,
        "messaging.operation.type": _TYPES.get(name),
        "messaging.client.id": row["client_id"],
        "messaging.destination.name": row["topic"],
        "messaging.destination.partition.id": str(row["partition"]) if row["partition"] >= 0 else None,
        "messaging.batch.message_count": row["records"] if row["records"] >= 0 else None,
        **address(row["endpoint"], "server"),
        **address(row["peer"], "client"),
        "framegate.listener": row["listener"],
        "framegate.upstream": row["upstream"],
        "framegate.connection": format_connection_id(row["id"]),
        "framegate.principal": row["principal"],
        "framegate.kafka.api": name,
        "framegate.kafka.api.version": row["version"],
        "framegate.kafka.correlation_id": row["correlation_id"],
        "framegate.kafka.error_code": row["code"] or None,
        "framegate.request.size": row["size"],
        "framegate.response.size": row["answer_size"] if row["answer_size"] >= 0 else None,
    }
    links = [Link(parent) for parent in parents[1:]]
    if connection is not None:
        links.append(Link(connection, {"framegate.connection": format_connection_id(row["id"])}))
    traces.record(
        f"{name} {row['topic']}" if row["topic"] else name,
        row["began_ns"],
        row["ended_ns"],
        attributes,
        kind=SpanKind.SERVER,
        error=row["failure"] or (RESPONSE_ERRORS[error_row(row["code"])] if row["code"] else ""),
        parent=parents[0] if parents else None,
        links=links,
    )


def _context(text: str) -> SpanContext:
    """The context in a header ``traceparent`` that was validated (``framegate.proxy.kafka.trace_parents``)."""
    _, trace_id, span_id, flags = text.split("-")
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16)))
