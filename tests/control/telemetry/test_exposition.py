"""What a scrape gets, over HTTP."""

import socket
import threading
from collections.abc import Callable, Iterator

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricsData
from opentelemetry.sdk.resources import Resource

from framegate.control.telemetry.exposition import Scrapes, families
from tests.fakes.upstream import read_to_end


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
        self.server = Scrapes(self.sock, lambda: self.collect())
        self.thread = threading.Thread(target=self.server.serve)
        self.thread.start()

    def connect(self) -> socket.socket:
        client = socket.create_connection(self.address, 10)
        self.clients.append(client)
        return client

    def ask(self, request: bytes = b"GET /metrics HTTP/1.0\r\n\r\n") -> str:
        with self.connect() as client:
            client.sendall(request)
            return read_to_end(client).decode()

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self.server.stop()
        self.thread.join(10)
        assert not self.thread.is_alive()
        self.sock.close()


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


def test_a_request_may_ask_for_a_format(at: Serving) -> None:
    at.answers = [measured()]
    answer = at.ask(b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: application/openmetrics-text; version=1.0.0\r\n\r\n")
    assert answer.startswith("HTTP/1.0 200 OK")
    assert "application/openmetrics-text" in answer
    assert answer.endswith("# EOF\n")


@pytest.mark.parametrize(("request_", "status"), [(b"rubbish\r\n\r\n", "400"), (b"GET /metrics HTTP/9.9\r\n\r\n", "505")])
def test_what_is_no_request_gets_a_status(at: Serving, request_: bytes, status: str) -> None:
    with at.connect() as client:
        client.sendall(request_)
        assert client.recv(4096).split()[1] == status.encode()
    assert "200" in at.ask().splitlines()[0]


def test_head_is_get_without_its_body(at: Serving) -> None:
    at.answers = [measured(), measured()]
    head, _, body = at.ask(b"HEAD /metrics HTTP/1.0\r\n\r\n").partition("\r\n\r\n")
    same, _, whole = at.ask().partition("\r\n\r\n")
    assert (head.splitlines()[0].split()[1], body) == ("200", "")
    assert f"Content-Length: {len(whole)}" in head
    assert [line for line in head.splitlines() if line.startswith("Content-Type")] == [
        line for line in same.splitlines() if line.startswith("Content-Type")
    ]


@pytest.mark.parametrize(
    ("accepted", "compressed"),
    [("gzip", True), ("gzip;q=1", True), ("gzip;q=0.1", True), ("gzip;q=0", False), ("gzip; q=0.000", False), ("br, gzip;q=0", False), ("", False)],
)
def test_an_answer_is_compressed_where_that_is_wanted(at: Serving, accepted: str, compressed: bool) -> None:
    at.answers = [measured()]
    with at.connect() as client:
        client.sendall(f"GET /metrics HTTP/1.0\r\nAccept-Encoding: {accepted}\r\n\r\n".encode())
        answer = read_to_end(client)
    assert (b"Content-Encoding: gzip" in answer, b"frames_sent_total 3.0" in answer) == (compressed, not compressed)
