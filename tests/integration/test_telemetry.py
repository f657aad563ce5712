"""Telemetry of a whole framegate, as a receiver of OTLP gets it: spans, log records and metrics; a collector in trouble, and wrong variables."""

import os
import signal
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from framegate.control.v1 import channel_service_pb2, proxy_service_pb2
from framegate.control.v1.channel_service_pb2_grpc import ChannelServiceStub
from framegate.control.v1.proxy_service_pb2_grpc import ProxyServiceStub
from framegate.proxy.tap.log_reader import segments, streams
from framegate.proxy.tap.trace_ids import segment_trace
from tests.fakes.certificates import Authority
from tests.fakes.framegate import Framegate, Row
from tests.fakes.otlp_receiver import GrpcReceiver, HttpReceiver, OtlpReceiver, attributes_of
from tests.fakes.ports import free_port
from tests.fakes.upstream import ask
from tests.integration.test_config import write

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

ENVIRONMENT = {"OTEL_BSP_SCHEDULE_DELAY": "50", "OTEL_BLRP_SCHEDULE_DELAY": "50", "OTEL_RESOURCE_ATTRIBUTES": "k8s.pod.name=p-0"}
SIGNALS = ["metrics", "traces", "logs"]
TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = (("traceparent", f"00-{TRACE}-{CALLER}-01"),)


def started(folder: Path, config: Row, receiver: OtlpReceiver, *signals: str, **environment: str) -> Framegate:
    otlp = {"endpoint": receiver.endpoint, **({"signals": list(signals)} if signals else {})}
    telemetry = {"otlp": otlp, "prometheus": {"address": "127.0.0.1:0"}}
    return Framegate(folder, {**config, "telemetry": telemetry}, environment={**ENVIRONMENT, **environment})


def connects(receiver: OtlpReceiver, **wanted: Any) -> list[Span]:
    found = receiver.named("framegate.upstream.connect")
    return [span for span in found if wanted.items() <= attributes_of(span).items()]


def test_a_life_from_the_first_connection_to_the_drain(tmp_path: Path, plain: Row, receiver: OtlpReceiver) -> None:
    """A connection that is open, one that does not reach its upstream, a TLS handshake that fails, a processor that dies, calls, a drain."""
    authority = Authority(tmp_path)
    certificate, key = authority.leaf("server")
    nowhere = f"127.0.0.1:{free_port()}"
    config = {
        **plain,
        "listeners": [
            *plain["listeners"],
            {"name": "lost", "address": "127.0.0.1:0", "upstream": "nowhere", "max_receive_size": "1MiB"},
            {**plain["listeners"][0], "name": "tls", "tls": {"certificate": certificate, "key": key}},
        ],
        "upstreams": [*plain["upstreams"], {"name": "nowhere", "endpoints": [nowhere]}],
        "tap": {"directory": str(tmp_path / "tap"), "rules": [{"name": "all", "capture": "full"}]},
    }
    with started(tmp_path, config, receiver) as proxy:
        with proxy.connect("plain") as client:
            assert ask(client, b"hello") == b"hello"
            (span,) = receiver.wait(lambda: connects(receiver, **{"framegate.listener": "plain"}))
            assert span.status.code == Status.STATUS_CODE_UNSET
            assert 0 <= span.end_time_unix_nano - span.start_time_unix_nano < 5_000_000_000
            assert attributes_of(span)["framegate.connect.attempts"] == 1
        proxy.wait_row(lambda row: row["event"] == "closed" and row["listener"] == "plain")
        with proxy.connect("lost") as client:
            assert client.recv(1) == b""
        (span,) = receiver.wait(lambda: connects(receiver, **{"framegate.listener": "lost"}))
        assert (span.status.code, attributes_of(span)["error.type"]) == (Status.STATUS_CODE_ERROR, "upstream_refused")
        assert attributes_of(span)["server.port"] == int(nowhere.rpartition(":")[2])
        with pytest.raises(ssl.SSLError):
            proxy.connect("tls", ssl.create_default_context())  # which does not know the authority
        span = receiver.span("framegate.tls.handshake")
        assert (span.status.code, attributes_of(span)["error.type"]) == (Status.STATUS_CODE_ERROR, "peer_alert")
        with proxy.api() as channel:
            ChannelServiceStub(channel).ListChannels(channel_service_pb2.ListChannelsRequest(), metadata=PARENT, timeout=10)
        span = receiver.span("framegate.control.v1.ChannelService/ListChannels")
        assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, CALLER)
        os.kill(proxy.processors[0], signal.SIGKILL)
        span = receiver.span("framegate.processor.restart")
        assert (attributes_of(span)["process.exit.code"], span.status.code) == (-signal.SIGKILL, Status.STATUS_CODE_ERROR)
        assert span.end_time_unix_nano > span.start_time_unix_nano
        with proxy.api() as channel:
            ProxyServiceStub(channel).DrainProxy(proxy_service_pb2.DrainProxyRequest(), metadata=PARENT, timeout=20)
        audit = proxy.wait_row(lambda row: row["event"] == "audit")
        began = proxy.wait_row(lambda row: row["event"] == "drain_began")
        assert proxy.stop() == 0
        call, drain = receiver.span("framegate.control.v1.ProxyService/DrainProxy"), receiver.span("framegate.drain")
        assert {row["trace_id"] for row in (audit, began)} == {TRACE}
        assert audit["span_id"] == began["span_id"] == call.span_id.hex() == drain.parent_span_id.hex()
        assert drain.end_time_unix_nano > drain.start_time_unix_nano >= call.start_time_unix_nano
        assert attributes_of(drain)["framegate.drain.left"] == 0
        assert not [row for row in proxy.rows if row["event"] in ("task_failed", "subscriber_failed", "library_log", "stop_failed")]
    root = str(tmp_path / "tap")
    there = {(stream, segment.base) for stream in streams(root) for segment in segments(root, stream)}
    sealed = {(span.trace_id, span.span_id) for span in receiver.named("framegate.tap.segment")}
    assert there
    assert sealed == {(ids.trace_id.to_bytes(16, "big"), ids.span_id.to_bytes(8, "big")) for ids in (segment_trace(*name) for name in there)}
    assert all(span.end_time_unix_nano >= span.start_time_unix_nano > 0 for span in receiver.spans)
    traced = [resource for resource in receiver.resources if "service.name" in resource]
    assert {(item["service.name"], item["k8s.pod.name"], item["service.instance.id"]) for item in traced} == {("framegate", "p-0", "test")}


def test_rows_go_to_the_collector_up_to_the_last_one(tmp_path: Path, plain: Row, receiver: OtlpReceiver) -> None:
    with started(tmp_path, plain, receiver, "logs") as proxy:
        with proxy.connect("plain") as client:
            assert ask(client, b"hello") == b"hello"
        assert proxy.cli("pool", "set", "--size", "9MiB").returncode == 0
        assert proxy.stop() == 0
        printed = [f"framegate.{row['event']}" for row in proxy.rows]
    names = [record.event_name for record in receiver.logs]
    assert sorted(names) == sorted(printed)
    assert {"framegate.serving", "framegate.closed", "framegate.audit", "framegate.drain_began", "framegate.stopped"} <= set(names)
    (closed,) = [record for record in receiver.logs if record.event_name == "framegate.closed"]
    assert attributes_of(closed)["framegate.listener"] == "plain"
    assert (receiver.spans, receiver.metrics) == ([], {})


@pytest.mark.extended
@pytest.mark.parametrize(("trouble", "signals", "most_s"), [("hangs", ["metrics"], 5), ("hangs", SIGNALS, 12), ("gone", SIGNALS, 12)])
def test_a_collector_in_trouble_holds_up_neither_traffic_nor_the_end(
    tmp_path: Path, plain: Row, receiver: OtlpReceiver, trouble: str, signals: list[str], most_s: float
) -> None:
    """The end takes what telemetry has for it, and no longer: two seconds for metrics, and two for spans and rows."""
    if trouble == "hangs":
        receiver.hold.clear()
    else:
        receiver.__exit__(None, None, None)
    with started(tmp_path, plain, receiver, *signals, OTEL_METRIC_EXPORT_INTERVAL="100") as proxy:
        for _ in range(20):
            with proxy.connect("plain") as client:
                assert ask(client, b"hello") == b"hello"
        assert proxy.stop(timeout=most_s) == 0
        receiver.hold.set()


def test_variables_that_cannot_be_used_are_named_before_anything_starts(tmp_path: Path, plain: dict[str, Any]) -> None:
    environment = {"OTEL_EXPORTER_OTLP_HEADERS": "authorization=hunter2,hunter2", "OTEL_TRACES_SAMPLER": "xray"}
    with Framegate(tmp_path, plain, environment=environment, wait=False) as proxy:
        assert proxy.wait() == 1
    (row,) = [row for row in proxy.rows if row["level"] == "error"]
    assert (row["event"], row["reason"]) == ("start_failed", "TELEMETRY_ENVIRONMENT_INVALID")
    assert "OTEL_EXPORTER_OTLP_HEADERS" in row["error"]
    assert "OTEL_TRACES_SAMPLER='xray'" in row["error"]
    assert "hunter2" not in proxy.errors + repr(proxy.rows)
    assert not [row for row in proxy.rows if row["event"].startswith("processor_")]


@pytest.mark.parametrize(("receiver", "protocol"), [(GrpcReceiver, "grpc"), (HttpReceiver, "http/protobuf")])
def test_the_environment_alone_is_enough(tmp_path: Path, plain: dict[str, Any], receiver: Any, protocol: str) -> None:
    with receiver() as collector:
        environment = {
            "OTEL_METRICS_EXPORTER": "otlp",
            "OTEL_TRACES_EXPORTER": "none",
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint,
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
            "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20x",
            "OTEL_METRIC_EXPORT_INTERVAL": "100",
            "OTEL_SERVICE_NAME": "orders",
        }
        with Framegate(tmp_path, {**plain, "telemetry": {}}, environment=environment) as proxy:
            received = collector.nth(2)
        assert proxy.process.returncode == 0
    assert received.headers["authorization"] == "Bearer x"
    resource = {item.key: item.value.string_value for item in received.request.resource_metrics[0].resource.attributes}
    assert (resource["service.name"], resource["service.instance.id"]) == ("orders", "test")
    names = {metric.name for scope in received.request.resource_metrics[0].scope_metrics for metric in scope.metrics}
    assert {"framegate.connection.active", "framegate.ready", "framegate.telemetry.exports", "cpython.gc.collections"} <= names


def test_targets_change_while_framegate_runs(tmp_path: Path, plain: Row, receiver: OtlpReceiver) -> None:
    path = tmp_path / "framegate.yaml"
    with Framegate(tmp_path, {**plain, "telemetry": {}}, environment=ENVIRONMENT) as proxy, GrpcReceiver() as other:

        def applied(**telemetry: Any) -> str:
            write(path, {**proxy.config, "telemetry": telemetry})
            return proxy.reload()

        def spans(collector: Any, listener: str = "plain") -> list[Span]:
            found = [span for received in collector.received for span in received.items("trace") if span.name == "framegate.upstream.connect"]
            return [span for span in found if attributes_of(span)["framegate.listener"] == listener]

        def talk() -> None:
            with proxy.connect("plain") as client:
                assert ask(client, b"hello") == b"hello"

        talk()
        otlp = {"signals": SIGNALS, "interval": "100ms"}
        assert applied(otlp={**otlp, "endpoint": receiver.endpoint}) == "applied, 1 value changed"
        talk()
        receiver.wait(lambda: len(spans(receiver)) == 1 and receiver.metrics)
        receiver.wait(lambda: "framegate.configuration_applied" in [row.event_name for row in receiver.logs])
        assert applied(otlp={**otlp, "endpoint": other.endpoint}) == "applied, 1 value changed"
        other.nth()
        former = len(receiver.received)
        talk()
        other.wait(lambda: len(spans(other)) == 1)
        with socket.create_server(("127.0.0.1", 0)) as used:
            taken = f"127.0.0.1:{used.getsockname()[1]}"
            assert applied(otlp=otlp, prometheus={"address": taken}).startswith("refused: ")
        count = len(other.received)
        other.nth(count + 2)
        address = f"127.0.0.1:{free_port()}"
        assert applied(prometheus={"address": address}) == "applied, 2 values changed"
        proxy.serving["prometheus"] = address
        assert proxy.metric("framegate_connection_accepted_total") == 3
        assert len(receiver.received) == former
        talk()
        assert proxy.stop() == 0
        assert (len(spans(receiver)), len(spans(other))) == (1, 1)
        assert not [row for row in proxy.rows if row["event"] in ("task_failed", "subscriber_failed", "library_log", "stop_failed")]


@pytest.mark.parametrize("exchanged", [True, False])
def test_a_drain_is_told_to_the_collector_in_force(tmp_path: Path, plain: Row, receiver: OtlpReceiver, exchanged: bool) -> None:
    """The target changes just before the drain; or during it, which is refused."""
    config = {**plain, "drain": {"timeout": "5s", "quiet": "50ms", "accept": "refuse"}}
    with GrpcReceiver() as other, started(tmp_path, config, receiver, *SIGNALS) as proxy:
        with proxy.connect("plain") as client:
            assert ask(client, b"hello") == b"hello"
            otlp = {"endpoint": other.endpoint, "signals": SIGNALS}
            write(tmp_path / "framegate.yaml", {**proxy.config, "telemetry": {**proxy.config["telemetry"], "otlp": otlp}})
            assert not exchanged or proxy.reload() == "applied, 1 value changed"
            assert proxy.cli("drain", "--no-wait").returncode == 0
            proxy.ended_row(client)
            assert proxy.reload() == "refused: the proxy drains"
        assert proxy.stop() == 0
        printed = [f"framegate.{row['event']}" for row in proxy.rows]
    former, latter = ([record.event_name for received in collector.received for record in received.items("logs")] for collector in (receiver, other))
    assert sorted(former + latter) == sorted(printed)
    assert {"framegate.drain_began", "framegate.drain_ended", "framegate.closed", "framegate.stopped"} <= set(latter if exchanged else former)
    assert bool(other.received) is exchanged
