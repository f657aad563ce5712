"""Questions to Prometheus, against a server that answers what it is told."""

import http.server
import json
import threading
import urllib.parse
from collections.abc import Iterator

import pytest

from control.demo.telemetry.prometheus import Prometheus, QueryError


class Server(http.server.ThreadingHTTPServer):
    status = 200
    body = b'{"status": "success", "data": {"resultType": "vector", "result": []}}'
    asked: list[tuple[str, dict[str, list[str]]]]


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.asked.append((self.path, urllib.parse.parse_qs(body)))
        self.answer()

    def answer(self) -> None:
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, *_words: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as running:
        running.asked = []
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def prometheus(server: Server) -> Prometheus:
    return Prometheus("{}:{}".format(*server.server_address[:2]))


def test_a_query_is_asked_at_a_time_or_over_one(server: Server) -> None:
    assert prometheus(server).instant("up", 12.5) == {"resultType": "vector", "result": []}
    prometheus(server).range("up{a='b'}", 1, 2, 0.5)
    assert server.asked == [
        ("/api/v1/query", {"query": ["up"], "time": ["12.500"]}),
        ("/api/v1/query_range", {"query": ["up{a='b'}"], "start": ["1.000"], "end": ["2.000"], "step": ["0.5"]}),
    ]


@pytest.mark.parametrize(
    ("body", "words"), [(json.dumps({"error": "parse error: unclosed left parenthesis"}).encode(), "unclosed left"), (b"<html>", "HTTP Error 400")]
)
def test_a_query_that_is_refused_says_why(server: Server, body: bytes, words: str) -> None:
    server.status, server.body = 400, body
    with pytest.raises(QueryError, match=words):
        prometheus(server).instant("sum(", 1)


def test_ready_is_what_it_says_itself(server: Server) -> None:
    assert prometheus(server).ready()
    server.status = 503
    assert not prometheus(server).ready()


def test_nobody_there_is_not_ready_and_an_error_with_the_address() -> None:
    with Server(("127.0.0.1", 0), Handler) as gone:
        nobody = prometheus(gone)
    assert not nobody.ready()
    with pytest.raises(QueryError, match=rf"^{nobody.address}: .*refused"):
        nobody.instant("up", 1)
