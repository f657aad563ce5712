"""The HTTP server of ports that anybody may reach: it answers, whoever else is there, and nobody stays for longer than is allowed."""

import asyncio
import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus

import pytest

from framegate.control import web
from framegate.control.web import MAX_CONNECTIONS, Server, bind, response
from tests.fakes.cases import each_of
from tests.fakes.upstream import read_to_end
from tests.fakes.waiting import until

REQUEST = b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n"


class Serving:
    """A server on a loop in a thread of its own; ``answer`` gives what it says."""

    def __init__(self, address: str = "127.0.0.1:0", body_limit: int = 0) -> None:
        self.answer: Callable[[bytes], bytes] = lambda head: response(HTTPStatus.OK, head.split()[1] + b"\n")
        self.sock = bind(address)
        self.address = self.sock.getsockname()
        self.clients: list[socket.socket] = []
        self.server = Server(self.sock, lambda request: self.answer(request), body_limit=body_limit)
        self.loop = asyncio.new_event_loop()
        self.end = asyncio.Event()
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self) -> None:
        async def until_end() -> None:
            await self.server.start()
            await self.end.wait()
            self.server.stop()

        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.run(until_end())

    def connect(self) -> socket.socket:
        client = socket.create_connection(self.address[:2], 10)
        self.clients.append(client)
        return client

    def ask(self, request: bytes = REQUEST) -> str:
        with self.connect() as client:
            client.sendall(request)
            return read_to_end(client).decode()

    def stop(self) -> None:
        with contextlib.suppress(RuntimeError):  # it has ended already
            self.loop.call_soon_threadsafe(self.end.set)
        self.thread.join(10)
        assert not self.thread.is_alive()

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self.stop()


@pytest.fixture
def at() -> Iterator[Serving]:
    serving = Serving()
    yield serving
    serving.close()


def test_an_answer_says_its_length_and_that_the_connection_ends() -> None:
    whole = b"HTTP/1.0 404 Not Found\r\nA: b\r\nContent-Length: 3\r\nConnection: close\r\n\r\nno\n"
    assert response(HTTPStatus.NOT_FOUND, b"no\n", (("A", "b"),)) == whole
    assert response(HTTPStatus.NOT_FOUND, b"no\n", (("A", "b"),), head_only=True) == whole[:-3]


@each_of("address", ["127.0.0.1:0", "[::1]:0", "localhost:0"])
def test_it_answers_over_both_kinds_of_address(address: str) -> None:
    serving = Serving(address)
    try:
        assert serving.ask().endswith("\r\n\r\n/x\n")
    finally:
        serving.close()


def test_an_address_that_is_taken_is_an_error_and_leaves_no_socket(at: Serving) -> None:
    with pytest.raises(OSError, match="in use"):
        bind(f"127.0.0.1:{at.address[1]}")


def test_a_request_may_come_in_pieces(at: Serving) -> None:
    with at.connect() as client:
        for index in range(len(REQUEST)):
            client.sendall(REQUEST[index : index + 1])
        assert read_to_end(client).decode().endswith("/x\n")
    assert at.server.refused == 0


def test_of_requests_that_come_together_the_first_is_answered_and_then_the_connection_ends(at: Serving) -> None:
    assert at.ask(REQUEST + REQUEST.replace(b"/x", b"/y") * 20).count("HTTP/1.0 ") == 1
    assert at.ask().startswith("HTTP/1.0 200")


@pytest.mark.parametrize(("more", "status"), [(-1, "200"), (0, "200"), (1, "431")])
def test_a_head_has_at_most_8_kib(at: Serving, more: int, status: str) -> None:
    head = b"GET /x HTTP/1.1\r\nx: "
    room = 8192 + more - len(head)
    with at.connect() as client:
        client.sendall(head + b"y" * room + b"\r\n\r\n")  # what ends it is not counted
        assert client.recv(4096).split()[1] == status.encode()
    assert at.ask().startswith("HTTP/1.0 200")


def test_a_body_is_read_up_to_its_limit_and_only_where_there_is_one(at: Serving) -> None:
    with_bodies = Serving(body_limit=100_000)
    try:
        for serving in (at, with_bodies):
            serving.answer = lambda request: response(HTTPStatus.OK, b"%d bytes" % len(request.partition(b"\r\n\r\n")[2]))
        for size, said in ((0, "\r\n0 bytes"), (1, "\r\n1 bytes"), (100_000, "\r\n100000 bytes"), (100_001, "HTTP/1.0 413 ")):
            assert said in with_bodies.ask(b"POST /x HTTP/1.1\r\ncontent-LENGTH: %d\r\n\r\n" % size + b"x" * min(size, 100_000))
        assert at.ask(b"POST /x HTTP/1.1\r\nContent-Length: 1\r\n\r\n").endswith("\r\n0 bytes")
        with with_bodies.connect() as client:
            client.sendall(b"POST /x HTTP/1.1\r\nContent-Length: 2\r\n\r\nx")
            client.shutdown(socket.SHUT_WR)
            assert read_to_end(client).decode().startswith("HTTP/1.0 400")
    finally:
        with_bodies.close()


def test_half_a_request_is_400_and_a_reset_does_not_affect_others(at: Serving) -> None:
    with at.connect() as client:
        client.sendall(REQUEST[:-1])
        client.shutdown(socket.SHUT_WR)
        assert read_to_end(client).decode().startswith("HTTP/1.0 400")
    with at.connect() as client:
        client.sendall(REQUEST[:-1])
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    until(lambda: at.server.refused == 2)
    assert at.ask().startswith("HTTP/1.0 200")


def test_an_answer_that_fails_is_500_and_logged(at: Serving, caplog: pytest.LogCaptureFixture) -> None:
    def fail(head: bytes) -> bytes:
        raise ValueError("our bug")

    good, at.answer = at.answer, fail
    assert at.ask().startswith("HTTP/1.0 500")
    assert "our bug" in caplog.text
    at.answer = good
    assert at.ask().startswith("HTTP/1.0 200")


def test_a_thousand_idle_connections_cost_no_threads_and_no_answer(at: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "TIME_LIMIT_S", 60)
    threads = threading.active_count()
    idle: list[socket.socket] = []
    for number in range(1000):
        idle.append(at.connect())
        if number % 250 == 0:
            began = time.monotonic()
            assert at.ask().startswith("HTTP/1.0 200")
            assert time.monotonic() - began < 5
    assert threading.active_count() <= threads  # a thread of another test may end meanwhile
    until(lambda: at.server.refused >= 1000 - MAX_CONNECTIONS)
    assert len(at.server._open) <= MAX_CONNECTIONS
    assert read_to_end(idle[0]).decode().startswith("HTTP/1.0 503 Service Unavailable")
    for client in idle:
        client.close()
    until(lambda: not at.server._open)


def test_a_request_that_comes_byte_by_byte_is_closed_in_time(at: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "TIME_LIMIT_S", 0.3)
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
    monkeypatch.setattr(web, "TIME_LIMIT_S", 0.3)
    at.answer = lambda head: response(HTTPStatus.OK, b"x" * 20_000_000)
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(at.address)
        slow.sendall(REQUEST)
        until(lambda: at.server.refused == 1)
        until(lambda: not at.server._open)
    monkeypatch.setattr(web, "TIME_LIMIT_S", 30)
    assert len(at.ask()) > 20_000_000


def test_a_stop_does_not_wait_and_frees_the_port(at: Serving) -> None:
    with at.connect() as idle:
        until(lambda: len(at.server._open) == 1)
        began = time.monotonic()
        at.stop()
        assert time.monotonic() - began < 2
        with contextlib.suppress(ConnectionResetError):
            assert idle.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        at.connect()
