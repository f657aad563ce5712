"""framegate.proxy.network.socket_buffers: what the kernel says of a socket's buffers is what it does."""

import contextlib
import select
import socket
from collections.abc import Callable, Iterator

import pytest

from framegate.proxy.network import socket_buffers
from tests.fakes.cases import each_of
from tests.fakes.network import tcp_pair


@pytest.fixture(params=["tcp", "unix"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, peer = tcp_pair() if request.param == "tcp" else socket.socketpair()
    ours.setblocking(False)
    with ours, peer:
        yield ours, peer


def is_ready(sock: socket.socket, events: int, timeout: float = 0) -> bool:
    with select.epoll() as epoll:
        epoll.register(sock, events)
        return any(found & events for _, found in epoll.poll(timeout))


def fill(sock: socket.socket) -> int:
    sent = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            sent += sock.send(b"x" * 65536)
    return sent


def wait_for(condition: Callable[[], object]) -> None:
    """What the other side's kernel does takes a moment."""
    for _ in range(5000):
        if condition():
            return
        select.select([], [], [], 0.001)
    raise AssertionError("it does not happen")


def test_what_lies_in_the_socket_is_counted(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, peer = pair
    assert socket_buffers.queued(ours) == 0
    for size in (1, 9_999):
        peer.sendall(b"x" * size)
    wait_for(lambda: socket_buffers.queued(ours) == 10_000)
    ours.recv(1)
    assert socket_buffers.queued(ours) == 9_999


def test_as_much_as_there_is_room_for_is_taken_at_once(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, _ = pair
    for _ in range(8):
        size, _ = socket_buffers.room(ours)
        if size == 0:
            break
        assert ours.send(b"x" * int(size)) == size
    else:
        raise AssertionError("it is never full")


def test_there_is_no_room_exactly_while_epoll_says_so_too(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, peer = pair
    size, empty = socket_buffers.room(ours)
    assert size > 0
    assert empty
    sent = fill(ours)
    assert socket_buffers.room(ours) == (0, False)
    peer.setblocking(False)
    while sent > 0:
        size, empty = socket_buffers.room(ours)
        assert (size != 0) == is_ready(ours, select.EPOLLOUT)
        with contextlib.suppress(BlockingIOError):
            sent -= len(peer.recv(30_000))
    wait_for(lambda: socket_buffers.room(ours)[1])


def test_what_the_peer_has_not_taken_is_counted_where_the_kernel_says_it() -> None:
    ours, peer = tcp_pair()
    with ours, peer:
        ours.setblocking(False)
        sent = fill(ours)
        wait_for(lambda: 0 < socket_buffers.unsent(ours) < sent)
        peer.settimeout(5)
        while sent:
            sent -= len(peer.recv(1 << 20))
        wait_for(lambda: socket_buffers.unsent(ours) == 0)
    ours, peer = socket.socketpair()
    with ours, peer:
        ours.send(b"x")
        assert socket_buffers.unsent(ours) == 0


@each_of("size", [2, 1000, 65_536])
def test_a_threshold_is_told_at_its_last_byte_or_at_the_end(size: int) -> None:
    ours, peer = tcp_pair()
    with ours, peer:
        assert socket_buffers.is_tcp(ours)
        socket_buffers.set_threshold(ours, size)
        peer.sendall(b"x" * (size - 1))
        wait_for(lambda: socket_buffers.queued(ours) == size - 1)
        assert not is_ready(ours, select.EPOLLIN)
        peer.sendall(b"x")
        assert is_ready(ours, select.EPOLLIN, 5)
        ours.recv(1)
        assert not is_ready(ours, select.EPOLLIN)
        socket_buffers.set_threshold(ours, 1)
        assert is_ready(ours, select.EPOLLIN)
        socket_buffers.set_threshold(ours, size)
        peer.shutdown(socket.SHUT_WR)
        assert is_ready(ours, select.EPOLLIN | select.EPOLLRDHUP, 5)


def test_a_unix_socket_has_no_threshold() -> None:
    ours, peer = socket.socketpair()
    with ours, peer:
        assert not socket_buffers.is_tcp(ours)


def test_a_partial_segment_is_kept_while_corked(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, peer = pair
    if socket_buffers.is_tcp(ours):
        socket_buffers.cork(ours, corked=True)
        ours.send(b"x")
        assert not is_ready(peer, select.EPOLLIN)
        socket_buffers.cork(ours, corked=False)
        assert peer.recv(1) == b"x"
    assert (0 < socket_buffers.round_trip_ns(ours) < 10**9) is socket_buffers.is_tcp(ours)
