"""Spans and log records of a whole framegate, as a receiver of the protocol gets them."""

import os
import signal
import socket
import ssl
from collections.abc import Iterator
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
from tests.fakes.otlp_receiver import OtlpReceiver, attributes_of
from tests.fakes.upstream import frame, read_frame

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

ENVIRONMENT = {"OTEL_BSP_SCHEDULE_DELAY": "50", "OTEL_BLRP_SCHEDULE_DELAY": "50", "OTEL_RESOURCE_ATTRIBUTES": "k8s.pod.name=p-0"}
TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = (("traceparent", f"00-{TRACE}-{CALLER}-01"),)


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as made:
        yield made


def started(folder: Path, config: Row, receiver: OtlpReceiver, *signals: str, **environment: str) -> Framegate:
    otlp = {"endpoint": receiver.endpoint, **({"signals": list(signals)} if signals else {})}
    telemetry = {"otlp": otlp, "prometheus": {"address": "127.0.0.1:0"}}
    return Framegate(folder, {**config, "telemetry": telemetry}, environment={**ENVIRONMENT, **environment})


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


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
            client.sendall(frame(b"hello"))
            assert read_frame(client) == b"hello"
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
            client.sendall(frame(b"hello"))
            assert read_frame(client) == b"hello"
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
def test_without_spans_nothing_is_made_for_them(tmp_path: Path, plain: Row, receiver: OtlpReceiver) -> None:
    with started(tmp_path, plain, receiver, "metrics") as proxy:
        with proxy.connect("plain") as client:
            client.sendall(frame(b"hello"))
            assert read_frame(client) == b"hello"
        with proxy.api() as channel:
            ChannelServiceStub(channel).ListChannels(channel_service_pb2.ListChannelsRequest(), metadata=PARENT, timeout=10)
        assert proxy.stop() == 0
        assert not any("trace_id" in row or row["event"] == "opened" for row in proxy.rows)
    assert receiver.spans == []


@pytest.mark.extended
@pytest.mark.parametrize("trouble", ["hangs", "gone"])
def test_a_collector_in_trouble_holds_up_neither_traffic_nor_the_end(tmp_path: Path, plain: Row, receiver: OtlpReceiver, trouble: str) -> None:
    """The end takes what telemetry has for it, and no longer: two seconds for metrics, and two for spans and rows."""
    if trouble == "hangs":
        receiver.hold.clear()
    else:
        receiver.__exit__(None, None, None)
    with started(tmp_path, plain, receiver, "metrics", "traces", "logs") as proxy:
        for _ in range(20):
            with proxy.connect("plain") as client:
                client.sendall(frame(b"hello"))
                assert read_frame(client) == b"hello"
        assert proxy.stop(timeout=12) == 0
        receiver.hold.set()


@pytest.mark.extended
def test_the_sampler_of_the_environment_holds(tmp_path: Path, plain: Row, receiver: OtlpReceiver) -> None:
    with started(tmp_path, plain, receiver, "traces", OTEL_TRACES_SAMPLER="parentbased_always_off") as proxy:
        with proxy.connect("plain") as client:
            client.sendall(frame(b"hello"))
            assert read_frame(client) == b"hello"
        with proxy.api() as channel:
            stub = ChannelServiceStub(channel)
            stub.ListChannels(channel_service_pb2.ListChannelsRequest(), timeout=10)
            stub.ListChannels(channel_service_pb2.ListChannelsRequest(), metadata=PARENT, timeout=10)
        assert proxy.stop() == 0
    assert [(span.name.rpartition("/")[2], span.trace_id.hex()) for span in receiver.spans] == [("ListChannels", TRACE)]


def test_a_variable_that_cannot_be_is_no_start(tmp_path: Path, plain: Row, receiver: OtlpReceiver) -> None:
    telemetry = {"otlp": {"endpoint": receiver.endpoint}}
    proxy = Framegate(tmp_path, {**plain, "telemetry": telemetry}, environment={"OTEL_TRACES_SAMPLER": "sometimes"}, wait=False)
    assert proxy.wait() == 1
    assert "OTEL_TRACES_SAMPLER" in proxy.errors
