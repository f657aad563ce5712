"""Spans of Kafka requests and of their connections: a real producer with a header ``traceparent``, a real broker, and a receiver of OTLP."""

import time
from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

from confluent_kafka import Producer

from tests.demo import broker, kafka
from tests.fakes.framegate import Framegate, config_before
from tests.fakes.otlp_receiver import OtlpReceiver, attributes_of
from tests.fakes.real_kafka import REAL_KAFKA
from tests.fakes.record_batches import context

pytestmark = REAL_KAFKA

TRACES = {"none": 0xA1, "gzip": 0xA2, "lz4": 0xA3, "snappy": 0xA4, "zstd": 0xA5}
UNPACKED = ("none", "gzip")
CALLER = 0xB7


@pytest.mark.extended
def test_requests_are_in_the_producers_trace_and_linked_to_their_connection(tmp_path: Path) -> None:
    with OtlpReceiver() as receiver, broker.Broker(tmp_path / "broker", {}) as real:
        config = config_before(f"127.0.0.1:{real.ports['PLAIN']}", protocol="kafka")
        config["telemetry"] = {"otlp": {"endpoint": receiver.endpoint, "signals": ["traces", "logs"]}, "request_sample": 1.0}
        (listener,) = (each["name"] for each in config["listeners"])
        environment = {"OTEL_BSP_SCHEDULE_DELAY": "50", "OTEL_BLRP_SCHEDULE_DELAY": "50"}
        with Framegate(tmp_path, config, environment=environment) as proxy:
            port = proxy.address(listener)[1]
            real.start({"PLAIN": port})
            kafka.prepare_topics(real.internal_address, {"demo": 1})
            began_ns = time.time_ns()
            for codec, trace in TRACES.items():
                producer = Producer({"bootstrap.servers": f"127.0.0.1:{port}", "client.id": f"orders-{codec}", "compression.type": codec})
                producer.produce("demo", b"x" * 2_000, headers=[("traceparent", context(trace, CALLER))])
                assert producer.flush(30) == 0
                del producer
            ended_ns = time.time_ns()
            receiver.wait(lambda: len(receiver.named("Produce demo")) == len(TRACES))
            assert proxy.stop() == 0
            closed = [row for row in proxy.rows if row["event"] == "closed"]
    connections = {span.span_id: span for span in receiver.named("framegate.connection")}
    for span in receiver.named("Produce demo"):
        found = attributes_of(span)
        codec = str(found["messaging.client.id"]).removeprefix("orders-")
        if codec in UNPACKED:
            assert (int.from_bytes(span.trace_id, "big"), int.from_bytes(span.parent_span_id, "big")) == (TRACES[codec], CALLER)
        else:
            assert span.parent_span_id == b""
        assert began_ns <= span.start_time_unix_nano < span.end_time_unix_nano <= ended_ns
        (link,) = span.links
        connection = connections[link.span_id]
        assert connection.trace_id == link.trace_id
        assert connection.start_time_unix_nano < span.start_time_unix_nano
        assert span.end_time_unix_nano <= connection.end_time_unix_nano
        assert attributes_of(connection)["framegate.connection"] == found["framegate.connection"]
        expected = {
            "messaging.system": "kafka",
            "messaging.operation.name": "Produce",
            "messaging.operation.type": "send",
            "messaging.destination.name": "demo",
            "messaging.destination.partition.id": "0",
            "messaging.batch.message_count": 1,
            "server.port": real.ports["PLAIN"],
        }
        assert {key: found.get(key) for key in expected} == expected
    assert {"ApiVersions", "Metadata"} <= {span.name for span in receiver.spans}
    ids = {connection.trace_id.hex(): connection.span_id.hex() for connection in connections.values()}
    assert {row["trace_id"]: row["span_id"] for row in closed} == ids
    logged = {record.trace_id.hex(): record.span_id.hex() for record in receiver.logs if record.event_name == "framegate.closed"}
    assert logged == ids
    parents = {span.span_id: span for span in receiver.spans}
    for name, above in (("framegate.upstream.connect", "framegate.connection"), ("framegate.upstream.tcp", "framegate.upstream.connect")):
        spans = receiver.named(name)
        assert spans
        for span in spans:
            parent = parents[span.parent_span_id]
            assert (parent.name, parent.trace_id) == (above, span.trace_id)
            assert parent.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano <= parent.end_time_unix_nano
