"""The HTTP server behind a scrape, and what it says."""

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricsData
from opentelemetry.sdk.resources import Resource

from control.telemetry.exposition import Server, families


def measured() -> MetricsData:
    reader = InMemoryMetricReader()
    meter = MeterProvider([reader], Resource({"service.name": "x"}), shutdown_on_exit=False).get_meter("m")
    meter.create_counter("frames.sent", "{frame}").add(3)
    meter.create_up_down_counter("open").add(2)
    meter.create_histogram("wait", "s", explicit_bucket_boundaries_advisory=[0.5, 1.0]).record(0.7)
    data = reader.get_metrics_data()
    assert data is not None
    return data


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock


def scrape(server: Server, sock: socket.socket) -> str:
    with socket.create_connection(sock.getsockname(), 10) as client:
        client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        server.handle_request()
        return b"".join(iter(lambda: client.recv(65536), b"")).decode()


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


def test_it_answers_on_the_socket_it_was_given_with_what_there_is_at_that_moment(listening: socket.socket) -> None:
    answers: list[MetricsData | None] = [measured(), None]
    server = Server(listening, lambda: answers.pop())
    assert scrape(server, listening).partition("\r\n\r\n")[2] == ""
    assert "frames_sent_total 3.0" in scrape(server, listening)


def test_a_client_that_says_nothing_keeps_nobody_waiting(listening: socket.socket) -> None:
    server = Server(listening, lambda: None)
    with socket.create_connection(listening.getsockname(), 10):
        server.handle_request()
        assert "200" in scrape(server, listening).splitlines()[0]
    for thread in threading.enumerate():
        if thread.name.startswith("Thread-") and thread.daemon:
            thread.join(10)


def test_nothing_of_it_is_loaded_before_somebody_scrapes() -> None:
    code = "import sys, control.telemetry.prometheus; print(sorted({'prometheus_client', 'http.server'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
