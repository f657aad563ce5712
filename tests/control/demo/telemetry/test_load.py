"""Kafka's clients in miniature."""

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from control.demo.telemetry.load import KafkaClients, Visitors, request
from control.demo.upstream import KafkaUpstream
from proxy.handler import Context
from tests.fakes.upstream import read_frame


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[bytes], bytes]], tuple[str, int]]]:
    """Starts a server that answers frames as a function says; one connection at a time."""
    listener = socket.create_server(("127.0.0.1", 0))

    def start(answer: Callable[[bytes], bytes]) -> tuple[str, int]:
        def run() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                    with connection:
                        while (frame := read_frame(connection)) is not None:
                            reply = answer(frame)
                            connection.sendall(struct.pack(">i", len(reply)) + reply)
                except (OSError, EOFError, AssertionError):
                    if listener.fileno() < 0:
                        return

        threading.Thread(target=run, daemon=True).start()
        host, port = listener.getsockname()
        return host, port

    yield start
    listener.close()


def until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_request_has_kafkas_header() -> None:
    assert request(3, 1, 7, 2) == struct.pack(">ihhih", 26, 3, 1, 7, 14) + b"framegate-demo\0\0"


def test_every_answer_is_waited_for_and_is_that_of_its_request(serve: Callable[..., tuple[str, int]]) -> None:
    with KafkaClients(serve(lambda frame: KafkaUpstream().handle(frame, Context)), 1) as clients:  # type: ignore[arg-type]
        until(lambda: clients.answered >= 8)
    assert (clients.wrong, clients.cut_off) == (0, 0)


def test_an_answer_to_another_request_is_wrong(serve: Callable[..., tuple[str, int]]) -> None:
    with KafkaClients(serve(lambda frame: b"\0\0\0\0"), 1) as clients:
        until(lambda: clients.answered >= 2)
    assert clients.wrong == clients.answered


def test_a_client_that_nobody_answers_tries_again_and_ends_when_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        address = gone.getsockname()
    with KafkaClients(address, 2) as clients:
        until(lambda: clients.cut_off >= 2)
    assert clients.answered == 0


@pytest.mark.slow  # visitors come every half second
def test_visitors_come_again_and_again_and_who_is_refused_is_counted(serve: Callable[..., tuple[str, int]]) -> None:
    address = serve(lambda frame: frame)
    with Visitors(lambda: socket.create_connection(address, timeout=10)) as visitors:
        until(lambda: visitors.answered >= 2)
    assert visitors.refused == 0
    with socket.create_server(("127.0.0.1", 0)) as gone:
        nobody = gone.getsockname()
    with Visitors(lambda: socket.create_connection(nobody, timeout=10)) as visitors:
        until(lambda: visitors.refused >= 1)
    assert visitors.answered == 0


@pytest.mark.parametrize(("key", "size"), [(0, 44), (1, 20_004), (99, 24)])
def test_the_upstream_answers_with_the_correlation_id_and_as_much_as_the_api_gives(key: int, size: int) -> None:
    answer = KafkaUpstream().handle(request(key, 0, 77, 10)[4:], Context)  # type: ignore[arg-type]
    assert (answer[:4], len(answer)) == (b"\0\0\0\x4d", size)
