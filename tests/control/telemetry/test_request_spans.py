"""Spans of Kafka requests, as a collector gets them."""

import importlib
import pkgutil
from typing import Any

import opentelemetry.semconv._incubating.attributes as conventions
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.semconv import attributes as stable

from framegate.control.telemetry.request_spans import record_request
from framegate.control.telemetry.traces import own_context
from framegate.proxy.network.connection_id import format_connection_id
from tests.fakes.cases import each_of
from tests.fakes.otlp_receiver import attributes_of
from tests.fakes.rows import CHANNEL, OPENED_NS, request_span_row
from tests.fakes.tracing import tracing

CONNECTION = own_context(0xABC, 0xDEF)
ONE = f"00-{0x1234:032x}-{0x56:016x}-01"
TWO = f"00-{0x789:032x}-{0x9A:016x}-01"


def span_of(*, connection: Any = None, settings: dict[str, Any] | None = None, **changes: Any) -> list[Span]:
    with tracing(**(settings or {})) as made:
        record_request(made.traces, request_span_row(**changes), connection)
        return made.spans()


def test_a_request_has_the_attributes_of_the_conventions_and_its_true_times() -> None:
    (span,) = span_of(connection=CONNECTION)
    assert (span.name, span.kind, span.parent_span_id) == ("Produce orders", Span.SPAN_KIND_SERVER, b"")
    assert (span.start_time_unix_nano, span.end_time_unix_nano) == (OPENED_NS, OPENED_NS + 5_000_000)
    assert attributes_of(span) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "Produce",
        "messaging.operation.type": "send",
        "messaging.client.id": "billing-7",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "2",
        "messaging.batch.message_count": 3,
        "server.address": "10.1.0.1",
        "server.port": 9092,
        "client.address": "10.0.0.9",
        "client.port": 51000,
        "framegate.listener": "kafka",
        "framegate.upstream": "brokers",
        "framegate.connection": format_connection_id(CHANNEL["id"]),
        "framegate.principal": "CN=client",
        "framegate.kafka.api": "Produce",
        "framegate.kafka.api.version": 9,
        "framegate.kafka.correlation_id": 77,
        "framegate.request.size": 300,
        "framegate.response.size": 40,
    }
    known = {
        value
        for package in (conventions, stable)
        for module in pkgutil.iter_modules(package.__path__)
        for value in vars(importlib.import_module(f"{package.__name__}.{module.name}")).values()
        if isinstance(value, str)
    }
    assert {name for name in attributes_of(span) if not name.startswith("framegate.")} <= known
    (link,) = span.links
    assert (int.from_bytes(link.trace_id, "big"), int.from_bytes(link.span_id, "big")) == (0xABC, 0xDEF)


def test_it_is_a_child_of_the_first_context_of_its_records_and_has_links_to_the_others() -> None:
    (span,) = span_of(parents=[ONE, TWO], connection=CONNECTION)
    assert (int.from_bytes(span.trace_id, "big"), int.from_bytes(span.parent_span_id, "big")) == (0x1234, 0x56)
    assert [int.from_bytes(link.trace_id, "big") for link in span.links] == [0x789, 0xABC]


def test_the_parents_decision_is_followed_also_where_a_smaller_share_begins_traces() -> None:
    off = {"sampler": "parentbased_always_off"}
    assert span_of(settings=off) == []
    assert len(span_of(settings=off, parents=[ONE])) == 1


@each_of(
    ("changes", "name", "error", "others"),
    [
        ({"code": 16, "key": 11, "topic": ""}, "JoinGroup", "not_coordinator", {"framegate.kafka.error_code": 16}),
        ({"code": 999}, "Produce orders", "other", {"framegate.kafka.error_code": 999}),
        ({"failure": "unanswered", "answer_size": -1}, "Produce orders", "unanswered", {"framegate.response.size": None}),
        ({"failure": "refused", "code": 29}, "Produce orders", "refused", {}),
        ({"key": 1, "topic": "", "partition": -1, "records": -1}, "Fetch", None, {"messaging.operation.type": "receive"}),
        ({"key": 3, "topic": "", "records": -1}, "Metadata", None, {"messaging.operation.type": None, "messaging.batch.message_count": None}),
        ({"key": 12345, "topic": ""}, "12345", None, {}),
        ({"endpoint": "unix:/run/k", "peer": ""}, "Produce orders", None, {"server.address": "/run/k", "client.address": None}),
        ({"endpoint": "[::1]:9"}, "Produce orders", None, {"server.address": "::1", "server.port": 9}),
    ],
)
def test_other_requests(changes: dict[str, Any], name: str, error: str | None, others: dict[str, Any]) -> None:
    (span,) = span_of(**changes)
    found = attributes_of(span)
    assert (span.name, found.get("error.type")) == (name, error)
    assert {key: found.get(key) for key in others} == others
