"""One export carried to real servers, by either way: again, for as long as it may, and no longer than we live."""

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from control.errors import StartError
from control.telemetry.attempt import Outcome
from control.telemetry.transport import Carrier, transport
from tests.fakes.carrying import REQUEST, once, target
from tests.fakes.certificates import Authority
from tests.fakes.receivers import GrpcReceiver, HttpReceiver


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


@pytest.mark.parametrize("scheme", ["", "+http"])
def test_a_certificate_that_is_none_keeps_from_starting(tmp_path: Path, scheme: str) -> None:
    """One that was good when the variables were judged."""
    path = Authority(tmp_path).path
    found = target(f"https://127.0.0.1:1{scheme}", OTEL_EXPORTER_OTLP_CERTIFICATE=str(path))
    path.write_text("no certificate")
    with pytest.raises(StartError) as caught:
        transport(found)
    assert caught.value.reason == "TELEMETRY_CERTIFICATE_UNUSABLE"


@pytest.mark.parametrize(
    ("scheme", "loaded", "not_loaded"), [("", "grpc_transport", "http_transport"), ("+http", "http_transport", "grpc_transport")]
)
def test_only_the_way_that_is_asked_for_is_loaded(scheme: str, loaded: str, not_loaded: str) -> None:
    script = f"""
import sys
from control.telemetry.environment import judge
from control.telemetry.transport import transport
from proxy.config.model import OtlpConfig, TelemetryConfig
protocol = "http/protobuf" if {scheme!r} else "grpc"
transport(judge(TelemetryConfig(otlp=OtlpConfig(protocol=protocol)), {{}}).traces.target)
assert "control.telemetry.{loaded}" in sys.modules
assert "control.telemetry.{not_loaded}" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=30)
