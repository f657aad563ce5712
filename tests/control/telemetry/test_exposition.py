"""The HTTP server behind a scrape, and what it says."""

import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricsData
from opentelemetry.sdk.resources import Resource

from control.telemetry import exposition
from control.telemetry.exposition import MAX_CONNECTIONS, Server, families


def measured() -> MetricsData:
    reader = InMemoryMetricReader()
    meter = MeterProvider([reader], Resource({"service.name": "x"}), shutdown_on_exit=False).get_meter("m")
    meter.create_counter("frames.sent", "{frame}").add(3)
    meter.create_up_down_counter("open").add(2)
    meter.create_histogram("wait", "s", explicit_bucket_boundaries_advisory=[0.5, 1.0]).record(0.7)
    data = reader.get_metrics_data()
    assert data is not None
    return data


class Serving:
    """A server in a thread of its own. ``answers`` are given by ``collect``, last first; without any, nothing has been measured."""

    def __init__(self) -> None:
        self.answers: list[MetricsData | None] = []
        self.collect: Callable[[], MetricsData | None] = lambda: self.answers.pop() if self.answers else None
        self.sock = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.address = self.sock.getsockname()
        self.clients: list[socket.socket] = []
        self.server = Server(self.sock, lambda: self.collect())
        self.thread = threading.Thread(target=self.server.serve)
        self.thread.start()

    def connect(self) -> socket.socket:
        client = socket.create_connection(self.address, 10)
        self.clients.append(client)
        return client

    def ask(self, request: bytes = b"GET /metrics HTTP/1.0\r\n\r\n") -> str:
        with self.connect() as client:
            client.sendall(request)
            return everything(client)

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < deadline, "it did not come to that"
            time.sleep(0.005)

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self.server.stop()
        self.thread.join(10)
        assert not self.thread.is_alive()
        self.sock.close()


def everything(client: socket.socket) -> str:
    return b"".join(iter(lambda: client.recv(65536), b"")).decode()


@pytest.fixture
def at() -> Iterator[Serving]:
    serving = Serving()
    yield serving
    serving.close()


def test_each_kind_of_instrument_becomes_its_family() -> None:
    found = {family.name: family for family in families(measured())}
    assert {name: family.type for name, family in found.items()} == {
        "target": "info",
        "frames_sent": "counter",
        "open": "gauge",
        "wait_seconds": "histogram",
    }
    samples = {(sample.name, sample.labels.get("le")): sample.value for family in found.values() for sample in family.samples}
    assert samples["frames_sent_total", None] == 3
    assert samples["open", None] == 2
    assert [samples["wait_seconds_bucket", bound] for bound in ("0.5", "1.0", "+Inf")] == [0, 1, 1]
    assert (samples["wait_seconds_count", None], samples["wait_seconds_sum", None]) == (1, 0.7)


def test_it_answers_on_the_socket_it_was_given_with_what_there_is_at_that_moment(at: Serving) -> None:
    at.answers = [measured(), None]
    assert at.ask().partition("\r\n\r\n")[2] == ""
    assert "frames_sent_total 3.0" in at.ask()
    assert at.server.refused == 0


def test_a_request_may_come_in_pieces_and_ask_for_a_format(at: Serving) -> None:
    at.answers = [measured()]
    with at.connect() as client:
        for part in (b"GET /metrics HT", b"TP/1.1\r\nHost: x\r\nAccept: application/openmetrics-text; version=1.0.0\r\n", b"\r\n"):
            client.sendall(part)
            time.sleep(0.01)
        answer = everything(client)
    assert answer.startswith("HTTP/1.0 200 OK")
    assert "application/openmetrics-text" in answer
    assert answer.endswith("# EOF\n")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"rubbish\r\n\r\n", "400"),
        (b"GET /metrics HTTP/9.9\r\n\r\n", "505"),
        (b"GET / HTTP/1.0\r\n" + b"x: " + b"y" * 20_000 + b"\r\n\r\n", "431"),
    ],
)
def test_what_is_no_request_gets_a_status(at: Serving, request_: bytes, status: str) -> None:
    with at.connect() as client:
        client.sendall(request_)
        assert client.recv(4096).split()[1] == status.encode()
    assert "200" in at.ask().splitlines()[0]


def test_a_scrape_that_fails_is_500_and_logged(at: Serving, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> MetricsData | None:
        raise ValueError("our bug")

    at.collect = fail
    assert at.ask().startswith("HTTP/1.0 500")
    assert "our bug" in caplog.text
    at.collect = measured
    assert "frames_sent_total 3.0" in at.ask()


def test_a_thousand_idle_connections_cost_no_threads_and_no_scrape(at: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "TIME_LIMIT_S", 60)
    threads = threading.active_count()
    idle: list[socket.socket] = []
    for number in range(1000):
        idle.append(at.connect())
        if number % 250 == 0:
            at.answers = [measured()]
            began = time.monotonic()
            assert "frames_sent_total 3.0" in at.ask()
            assert time.monotonic() - began < 5
    assert threading.active_count() <= threads  # a thread of another test may end meanwhile
    at.until(lambda: at.server.refused >= 1000 - MAX_CONNECTIONS)
    assert len(at.server._open) <= MAX_CONNECTIONS
    assert everything(idle[0]).startswith("HTTP/1.0 503 Service Unavailable")
    for client in idle:
        client.close()
    at.until(lambda: not at.server._open)


def test_a_request_that_comes_byte_by_byte_is_closed_in_time(at: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "TIME_LIMIT_S", 0.3)
    with at.connect() as slow:
        slow.settimeout(0.02)
        answer = b""
        deadline = time.monotonic() + 10
        while not answer:
            assert time.monotonic() < deadline
            with contextlib.suppress(TimeoutError):
                slow.sendall(b"G")
                answer = slow.recv(4096)
        assert answer.startswith(b"HTTP/1.0 408 Request Timeout")
    assert at.server.refused == 1


def test_a_client_that_does_not_take_its_answer_is_closed_in_time(at: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "TIME_LIMIT_S", 0.3)
    monkeypatch.setattr(exposition._Site, "get_app", lambda site: large)
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(at.address)
        slow.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        at.until(lambda: at.server.refused == 1)
        at.until(lambda: not at.server._open)
    monkeypatch.setattr(exposition, "TIME_LIMIT_S", 30)
    assert len(at.ask()) > 20_000_000


def large(environ: object, start_response: Callable[..., Any]) -> list[bytes]:
    start_response("200 OK", [])
    return [b"x" * 20_000_000]


def test_its_end_waits_for_nobody(at: Serving) -> None:
    with at.connect() as idle:
        at.until(lambda: len(at.server._open) == 1)
        began = time.monotonic()
        at.server.stop()
        at.thread.join(10)
        assert time.monotonic() - began < 2
        with contextlib.suppress(ConnectionResetError):
            assert idle.recv(1) == b""


def test_it_may_be_stopped_before_it_serves() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        server = Server(sock, lambda: None)
        server.stop()
        server.serve()


def test_nothing_of_it_is_loaded_before_somebody_scrapes() -> None:
    code = "import sys, control.telemetry.prometheus; print(sorted({'prometheus_client', 'http.server'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
