"""One export over gRPC: what each end of a call means, and TLS."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]

from control.telemetry import grpc_transport
from control.telemetry.attempt import Outcome
from tests.fakes.carrying import once
from tests.fakes.certificates import Authority
from tests.fakes.jobs import environment
from tests.fakes.receivers import GrpcReceiver


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
    (grpc.StatusCode.CANCELLED, "unavailable", True),
    (grpc.StatusCode.DEADLINE_EXCEEDED, "timeout", True),
    (grpc.StatusCode.RESOURCE_EXHAUSTED, "refused", False),
    (grpc.StatusCode.UNAUTHENTICATED, "refused", False),
    (grpc.StatusCode.PERMISSION_DENIED, "refused", False),
    (grpc.StatusCode.UNIMPLEMENTED, "refused", False),
    (grpc.StatusCode.INTERNAL, "other", False),
]


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


def test_certificates_prove_who_both_are(tls: tuple[GrpcReceiver, dict[str, str]]) -> None:
    receiver, environ = tls
    assert once(receiver.endpoint, **environ) == Outcome("")
    assert once(receiver.endpoint, OTEL_EXPORTER_OTLP_CERTIFICATE=environ["OTEL_EXPORTER_OTLP_CERTIFICATE"]).end == "unavailable"
    found = once(receiver.endpoint)
    assert (found.end, found.again, found.text) == ("refused", False, "its certificate: unable to get local issuer certificate")


def test_a_collector_with_anothers_certificate_is_refused(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = (Path(path).read_bytes() for path in authority.leaf("elsewhere", hosts=("elsewhere",), addresses=()))
    with GrpcReceiver(credentials=grpc.ssl_server_credentials([(key, certificate)])) as receiver:
        found = once(receiver.endpoint, OTEL_EXPORTER_OTLP_CERTIFICATE=str(authority.path))
    assert (found.end, found.again, found.text) == ("refused", False, "its certificate: Hostname Verification Check failed")


def test_the_certificate_is_told_where_another_address_of_the_host_does_not_answer(
    tls: tuple[GrpcReceiver, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """gRPC says what came of the last address only, so here it says nothing of the certificate."""
    receiver, environ = tls
    monkeypatch.setattr(grpc_transport, "_verdict", lambda details: "")
    found = once(receiver.endpoint)
    assert (found.end, found.again, found.text) == ("refused", False, "its certificate: unable to get local issuer certificate")
    assert once("https://127.0.0.1:1", OTEL_EXPORTER_OTLP_CERTIFICATE=environ["OTEL_EXPORTER_OTLP_CERTIFICATE"]).end == "unavailable"


def test_grpcs_core_writes_no_lines_beside_our_rows(tls: tuple[GrpcReceiver, dict[str, str]]) -> None:
    """In a process of its own, since it is decided when gRPC is loaded."""
    receiver, _ = tls
    script = f"""
import sys, types, control.serve
control.serve._load_servers(types.SimpleNamespace(wanted=False))
sys.path.append({str(Path(__file__).resolve().parents[3])!r})
from tests.fakes.carrying import once
print(once({receiver.endpoint!r}).end)
"""
    environ = {name: value for name, value in environment().items() if name != "GRPC_VERBOSITY"}
    done = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == ("refused", "")
