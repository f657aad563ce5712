"""framegate.proxy.network.pipe: bytes go through it in order, and none stay."""

import os
import socket
from collections.abc import Iterator

import pytest

from framegate.proxy.errors import TransportError
from framegate.proxy.network.pipe import CAPACITY, Pipe
from tests.fakes.network import reset, tcp_pair


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.close()


@pytest.fixture(params=["tcp", "unix"])
def sockets(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, socket.socket, socket.socket, socket.socket]]:
    """A source with its peer, and a target with its peer; ours do not block."""
    make = tcp_pair if request.param == "tcp" else socket.socketpair
    source, feeder = make()
    target, reader = make()
    source.setblocking(False)
    target.setblocking(False)
    yield source, feeder, target, reader
    for sock in (source, feeder, target, reader):
        sock.close()


def test_bytes_go_through_in_order(pipe: Pipe, sockets: tuple[socket.socket, ...]) -> None:
    source, feeder, target, reader = sockets
    data = os.urandom(50_000)
    feeder.sendall(data)
    seen = b""
    while len(seen) < len(data):
        size = pipe.fill(source.fileno(), 7000)
        assert 0 < size <= 7000
        assert pipe.empty(target.fileno(), size) == size
        seen += reader.recv(1 << 20)
    assert seen == data
    assert pipe.fill(source.fileno(), 7000) == -1
    feeder.close()
    assert pipe.fill(source.fileno(), 7000) == 0


def test_what_a_socket_does_not_take_is_read_out(pipe: Pipe, sockets: tuple[socket.socket, ...]) -> None:
    source, feeder, target, reader = sockets
    while True:
        try:
            target.send(b"x" * 65_536)
        except BlockingIOError:
            break
    data = os.urandom(20_000)
    feeder.sendall(data)
    size = pipe.fill(source.fileno(), 1 << 20)
    taken = pipe.empty(target.fileno(), size)
    rest = pipe.read_out(size - taken)
    assert rest == data[taken:size]
    reader.close()


def test_a_failing_source_or_target_is_an_error_of_the_network(pipe: Pipe) -> None:
    source, feeder = tcp_pair()
    target, reader = tcp_pair()
    feeder.sendall(b"abc")
    assert pipe.fill(source.fileno(), 10) == 3
    reset(reader)
    with pytest.raises(TransportError, match="write failed"):
        pipe.empty(target.fileno(), 3)
    reset(feeder)
    with pytest.raises(TransportError, match="read failed"):
        pipe.fill(source.fileno(), 10)
    source.close()
    target.close()


def test_no_more_is_taken_than_there_is_room_for(pipe: Pipe) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        feeder = socket.create_connection(server.getsockname())
        source, _ = server.accept()
    feeder.setblocking(False)
    try:
        feeder.send(b"x" * (4 * CAPACITY))
    except BlockingIOError:
        pytest.fail("a fresh connection takes something")
    size = pipe.fill(source.fileno(), 1 << 30)
    assert 0 < size <= CAPACITY
    assert len(pipe.read_out(size)) == size
    source.close()
    feeder.close()
