"""One export carried to real servers that take it, are slow, refuse it, lie, or are not there."""

import http.server
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from control.errors import StartError
from control.telemetry.environment import Target, judge
from control.telemetry.transport import Carrier, Outcome, transport
from proxy.config.model import OtlpConfig, TelemetryConfig
from tests.fakes.certificates import Authority
from tests.fakes.receivers import GrpcReceiver, HttpReceiver

REQUEST = ExportTraceServiceRequest(resource_spans=[{}]).SerializeToString()  # type: ignore[list-item]
Handler = http.server.BaseHTTPRequestHandler


def target(endpoint: str, **environ: str) -> Target:
    if endpoint.endswith("http"):
        environ["OTEL_EXPORTER_OTLP_PROTOCOL"] = "http/protobuf"
    traces = judge(TelemetryConfig(otlp=OtlpConfig(endpoint=endpoint.removesuffix("+http"))), environ).traces
    assert traces is not None
    return traces.target


def once(endpoint: str, timeout_s: float = 5.0, **environ: str) -> Outcome:
    way = transport(target(endpoint, **environ))
    try:
        return way.send(REQUEST, timeout_s)
    finally:
        way.close()


def grpc_error(code: grpc.StatusCode, details: bytes | None = None) -> Callable[[grpc.ServicerContext], bytes]:
    def answer(context: grpc.ServicerContext) -> bytes:
        if details is not None:
            context.set_trailing_metadata((("grpc-status-details-bin", details),))
        context.abort(code, "because")

    return answer


def asks_to_wait(seconds: float) -> bytes:
    detail = AnyMessage()
    detail.Pack(RetryInfo(retry_delay=Duration(nanos=int(seconds * 1e9))))
    message: bytes = Status(code=8, details=[detail]).SerializeToString()
    return message


CODES = [
    (grpc.StatusCode.UNAVAILABLE, "unavailable", True),
    (grpc.StatusCode.ABORTED, "unavailable", True),
    (grpc.StatusCode.DEADLINE_EXCEEDED, "timeout", True),
    (grpc.StatusCode.RESOURCE_EXHAUSTED, "refused", False),
    (grpc.StatusCode.UNAUTHENTICATED, "refused", False),
    (grpc.StatusCode.PERMISSION_DENIED, "refused", False),
    (grpc.StatusCode.UNIMPLEMENTED, "refused", False),
    (grpc.StatusCode.INTERNAL, "other", False),
]


@pytest.mark.parametrize(("code", "end", "again"), CODES)
def test_each_status_of_grpc_has_its_end(code: grpc.StatusCode, end: str, again: bool) -> None:
    with GrpcReceiver(grpc_error(code)) as receiver:
        outcome = once(receiver.endpoint)
    assert (outcome.end, outcome.again, outcome.pause_s) == (end, again, None)
    assert outcome.text == f"{code.name}: because"


def test_a_collector_that_is_full_says_when_to_come_again() -> None:
    with GrpcReceiver(grpc_error(grpc.StatusCode.RESOURCE_EXHAUSTED, asks_to_wait(0.25))) as receiver:
        outcome = once(receiver.endpoint)
    assert (outcome.end, outcome.again, outcome.pause_s) == ("unavailable", True, 0.25)
    with GrpcReceiver(grpc_error(grpc.StatusCode.RESOURCE_EXHAUSTED, b"\xff\xff")) as receiver:
        assert once(receiver.endpoint).end == "refused"


def http_status(status: int, **headers: str) -> Callable[[Handler], None]:
    def answer(handler: Handler) -> None:
        handler.send_response(status)
        for key, value in headers.items():
            handler.send_header(key.replace("_", "-"), value)
        handler.end_headers()

    return answer


@pytest.mark.parametrize(
    ("answer", "end", "again", "pause_s"),
    [
        (http_status(429, Retry_After="3"), "unavailable", True, 3.0),
        (http_status(503, Retry_After="Wed, 21 Oct 2026 07:28:00 GMT"), "unavailable", True, None),
        (http_status(502), "unavailable", True, None),
        (http_status(500), "other", False, None),
        (http_status(501), "other", False, None),
        (http_status(400), "refused", False, None),
        (http_status(401), "refused", False, None),
        (http_status(307, Location="http://127.0.0.1:1/"), "refused", False, None),
    ],
)
def test_each_status_of_http_has_its_end(answer: Callable[[Handler], None], end: str, again: bool, pause_s: float | None) -> None:
    with HttpReceiver(answer) as receiver:
        outcome = once(f"{receiver.endpoint}+http")
    assert (outcome.end, outcome.again, outcome.pause_s) == (end, again, pause_s)


def raw(data: bytes, forever: bytes = b"") -> Callable[[Handler], None]:
    def answer(handler: Handler) -> None:
        handler.wfile.write(data)
        while forever:
            try:
                handler.wfile.write(forever)
            except OSError:
                break
        handler.close_connection = True

    return answer


@pytest.mark.parametrize(
    ("data", "forever"),
    [
        (b"SMTP ready\r\n", b""),
        (b"HTTP/1.1 200 OK\r\n", b"x: y\r\n"),
        (b"HTTP/1.1 200 OK\r\n\r\n", b"\0" * 65_536),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9999999999\r\n\r\n", b"\0" * 65_536),
        (b"", b"x" * 65_536),
    ],
)
def test_an_answer_that_is_none_or_has_no_end_costs_a_bound(data: bytes, forever: bytes) -> None:
    with HttpReceiver(raw(data, forever)) as receiver:
        outcome = once(f"{receiver.endpoint}+http")
    assert (outcome.end, outcome.again, len(outcome.answer)) == ("other", False, 0)


def test_a_collector_that_sends_a_byte_now_and_then_is_late_all_the_same() -> None:
    def answer(handler: Handler) -> None:
        for byte in b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100:
            try:
                handler.wfile.write(bytes([byte]))
            except OSError:
                return
            time.sleep(0.02)

    with HttpReceiver(answer) as receiver:
        started = time.monotonic()
        outcome = once(f"{receiver.endpoint}+http", 0.2)
    assert (outcome.end, outcome.again) == ("timeout", True)
    assert time.monotonic() - started < 1.5


@pytest.fixture
def silent() -> Iterator[int]:
    """A port whose connections the kernel takes and nobody ever answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize("scheme", ["", "+http"])
def test_a_collector_that_never_answers_is_late(silent: int, scheme: str) -> None:
    outcome = once(f"http://127.0.0.1:{silent}{scheme}", 0.2)
    assert (outcome.end, outcome.again) == ("timeout", True)


@pytest.mark.parametrize("scheme", ["", "+http"])
def test_a_collector_that_is_not_there_is_unavailable(scheme: str) -> None:
    outcome = once(f"http://127.0.0.1:1{scheme}")
    assert (outcome.end, outcome.again) == ("unavailable", True)


@pytest.mark.parametrize("scheme", ["", "+http"])
def test_closing_ends_what_is_under_way(silent: int, scheme: str) -> None:
    carrier = Carrier(transport(target(f"http://127.0.0.1:{silent}{scheme}")), 60.0)
    ends: list[Outcome] = []
    thread = threading.Thread(target=lambda: ends.append(carrier.carry(REQUEST)))
    thread.start()
    time.sleep(0.2)  # the request is out; were it not, closing would end it as well
    started = time.monotonic()
    carrier.close()
    thread.join(5)
    assert time.monotonic() - started < 1
    assert ends[0].end in ("other", "unavailable", "timeout")
    assert carrier.carry(REQUEST).end == "other"


@pytest.mark.parametrize("receiver", [GrpcReceiver, HttpReceiver])
@pytest.mark.parametrize("compression", ["gzip", "none"])
def test_what_is_sent_arrives_with_its_headers(receiver: Any, compression: str) -> None:
    with receiver() as there:
        suffix = "+http" if receiver is HttpReceiver else ""
        environ = {"OTEL_EXPORTER_OTLP_HEADERS": "Authorization=Bearer%20s3", "OTEL_EXPORTER_OTLP_COMPRESSION": compression}
        assert once(f"{there.endpoint}{suffix}", **environ) == Outcome("")
        received = there.wait()
    assert (received.signal, received.request.SerializeToString(), received.headers["authorization"]) == ("trace", REQUEST, "Bearer s3")
    if suffix:
        assert (received.path, received.headers["content-type"]) == ("/v1/traces", "application/x-protobuf")
        assert received.headers.get("content-encoding", "none") == compression


class Scripted:
    """Ends as it is told, one after the other, the last for ever."""

    def __init__(self, *ends: Outcome) -> None:
        self.ends = list(ends)
        self.timeouts: list[float] = []

    def send(self, request: bytes, timeout_s: float) -> Outcome:
        self.timeouts.append(timeout_s)
        return self.ends.pop(0) if len(self.ends) > 1 else self.ends[0]

    def close(self) -> None:
        pass


AGAIN = Outcome("unavailable", again=True, pause_s=0.01)


def test_what_passes_is_tried_again_and_what_does_not_is_not() -> None:
    script = Scripted(AGAIN, AGAIN, Outcome(""))
    assert Carrier(script, 5.0).carry(b"").end == ""
    assert len(script.timeouts) == 3
    script = Scripted(Outcome("refused"), Outcome(""))
    assert Carrier(script, 5.0).carry(b"").end == "refused"


def test_all_attempts_together_take_no_longer_than_one_export_may() -> None:
    moments = iter([0.0, 0.0, 9.0, 9.0, 9.995])
    script = Scripted(AGAIN)
    assert Carrier(script, 10.0, lambda: next(moments)).carry(b"") == AGAIN
    assert script.timeouts == pytest.approx([10.0, 1.0])


def test_a_collector_that_asks_to_come_in_an_hour_is_not_waited_for() -> None:
    script = Scripted(Outcome("unavailable", again=True, pause_s=3_600.0))
    started = time.monotonic()
    assert Carrier(script, 10.0).carry(b"").end == "unavailable"
    assert time.monotonic() - started < 1


@pytest.fixture
def tls(tmp_path: Path) -> Iterator[tuple[GrpcReceiver, dict[str, str]]]:
    """A collector that asks for certificates, and the variables of a client that has one."""
    authority = Authority(tmp_path)
    certificate, key = (Path(path).read_bytes() for path in authority.leaf("127.0.0.1"))
    client, client_key = authority.leaf("client")
    roots = authority.path.read_bytes()
    credentials = grpc.ssl_server_credentials([(key, certificate)], roots, require_client_auth=True)
    environ = {
        "OTEL_EXPORTER_OTLP_CERTIFICATE": str(authority.path),
        "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": client,
        "OTEL_EXPORTER_OTLP_CLIENT_KEY": client_key,
    }
    with GrpcReceiver(credentials=credentials) as receiver:
        yield receiver, environ


def test_certificates_prove_who_both_are(tls: tuple[GrpcReceiver, dict[str, str]]) -> None:
    receiver, environ = tls
    assert once(receiver.endpoint, **environ) == Outcome("")
    assert once(receiver.endpoint, OTEL_EXPORTER_OTLP_CERTIFICATE=environ["OTEL_EXPORTER_OTLP_CERTIFICATE"]).end == "unavailable"
    assert once(receiver.endpoint).end == "unavailable"


@pytest.mark.parametrize("scheme", ["", "+http"])
def test_a_certificate_that_is_none_keeps_from_starting(tmp_path: Path, scheme: str) -> None:
    nonsense = tmp_path / "ca.pem"
    nonsense.write_text("no certificate")
    with pytest.raises(StartError) as caught:
        transport(target(f"https://127.0.0.1:1{scheme}", OTEL_EXPORTER_OTLP_CERTIFICATE=str(nonsense)))
    assert caught.value.reason == "TELEMETRY_CERTIFICATE_UNUSABLE"
