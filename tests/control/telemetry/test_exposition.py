"""What a scrape gets, over HTTP."""

import socket
import threading
from collections.abc import Callable, Iterator

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from framegate.control.telemetry.exposition import Measured, Page, Scrapes
from framegate.proxy.cells import HistogramValue, Metric
from tests.fakes.cases import each_of
from tests.fakes.upstream import read_to_end

FRAMES = Metric(name="frames.sent", kind="counter", unit="{frame}", description="Frames sent.")
OPEN = Metric(name="open", kind="gauge", unit="{connection}", description="Open.")
WAIT = Metric(name="wait", kind="histogram", unit="s", description="Waits.", bounds=(0.5, 1.0))
MEASURED: Measured = [(FRAMES, {(): 3}), (OPEN, {(("a.b", "x"),): 2}), (WAIT, {(): HistogramValue((0, 1, 0), 0.7)})]


class Serving:
    """A server in a thread of its own. ``answers`` are given by ``collect``, last first; without any, nothing has been measured."""

    def __init__(self) -> None:
        self.answers: list[Measured] = []
        self.collect: Callable[[], Measured] = lambda: self.answers.pop() if self.answers else ()
        self.sock = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.address = self.sock.getsockname()
        self.clients: list[socket.socket] = []
        self.server = Scrapes(self.sock, lambda: self.collect(), {"service.name": "x"})
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


@each_of("open_metrics", [False, True])
def test_each_kind_of_metric_becomes_its_family(open_metrics: bool) -> None:
    text = Page({"service.name": "x"}).write(MEASURED, open_metrics=open_metrics).decode()
    families = list((openmetrics_families if open_metrics else text_string_to_metric_families)(text))
    assert [(family.name, family.type, family.documentation) for family in families] == [
        ("target" if open_metrics else "target_info", "info" if open_metrics else "gauge", "What is scraped here."),
        ("frames_sent", "counter", "Frames sent."),
        ("open", "gauge", "Open."),
        ("wait_seconds", "histogram", "Waits."),
    ]
    samples = [(sample.name, sample.labels, sample.value) for family in families for sample in family.samples]
    assert samples == [
        ("target_info", {"service_name": "x"}, 1),
        ("frames_sent_total", {}, 3),
        ("open", {"a_b": "x"}, 2),
        *(("wait_seconds_bucket", {"le": bound}, count) for bound, count in (("0.5", 0), ("1.0", 1), ("+Inf", 1))),
        ("wait_seconds_count", {}, 1),
        ("wait_seconds_sum", {}, 0.7),
    ]


def test_values_of_labels_are_escaped() -> None:
    odd = 'quote " and \\ and \n'
    text = Page({}).write([(OPEN, {(("a", odd),): 1})], open_metrics=False).decode()
    assert [sample.labels for family in text_string_to_metric_families(text) for sample in family.samples if family.name == "open"] == [{"a": odd}]


def test_a_histogram_gets_its_buckets_with_its_first_observation() -> None:
    page = Page({})
    for buckets, lines in (((0,), 3), ((0, 1, 0), 5), ((0, 2, 0), 5)):
        text = page.write([(WAIT, {(("a", "b"),): HistogramValue(buckets, 1.5)})], open_metrics=False).decode()
        assert sum(line.startswith("wait_seconds_") for line in text.splitlines()) == lines
        assert f'wait_seconds_count{{a="b"}} {sum(buckets)}' in text


def test_texts_are_kept_for_the_series_of_the_last_answer_only() -> None:
    page = Page({})
    for number in range(3):
        page.write([(OPEN, {(("a", str(number)),): 1})], open_metrics=False)
    assert list(page._texts) == [("open", (("a", "2"),))]


def test_it_answers_on_the_socket_it_was_given_with_what_there_is_at_that_moment(at: Serving) -> None:
    at.answers = [MEASURED, ()]
    assert "frames_sent_total" not in at.ask()
    assert "frames_sent_total 3.0" in at.ask()
    assert at.server.refused == 0


def test_a_request_may_ask_for_a_format(at: Serving) -> None:
    at.answers = [MEASURED]
    answer = at.ask(b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: application/openmetrics-text; version=1.0.0\r\n\r\n")
    assert answer.startswith("HTTP/1.0 200 OK")
    assert "application/openmetrics-text" in answer
    assert answer.endswith("# EOF\n")


@pytest.mark.parametrize(("request_", "status"), [(b"rubbish", "400"), (b"GET /metrics HTTP/9.9", "505"), (b"POST / HTTP/1.0", "405")])
def test_what_is_no_request_gets_a_status(at: Serving, request_: bytes, status: str) -> None:
    with at.connect() as client:
        client.sendall(request_ + b"\r\n\r\n")
        assert client.recv(4096).split()[1] == status.encode()
    assert "200" in at.ask().splitlines()[0]


def test_head_is_get_without_its_body(at: Serving) -> None:
    at.answers = [MEASURED, MEASURED]
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
    at.answers = [MEASURED]
    with at.connect() as client:
        client.sendall(f"GET /metrics HTTP/1.0\r\nAccept-Encoding: {accepted}\r\n\r\n".encode())
        answer = read_to_end(client)
    assert (b"Content-Encoding: gzip" in answer, b"frames_sent_total 3.0" in answer) == (compressed, not compressed)
