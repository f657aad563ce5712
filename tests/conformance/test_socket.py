"""What a transport relies on, of a non-blocking stream socket: the system's, and the one in memory."""

import array
import errno
import fcntl
import socket
import termios
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import pytest

from tests.fakes.conformance import Kind
from tests.fakes.network import reset, tcp_pair
from tests.fakes.transport import MemorySocket, as_socket, memory_sockets

INTERFACE: Final = object  # no class of ours: as much of ``socket.socket`` as transports use


class Given(NamedTuple):
    """Two connected ends, and how to have the peer's go with a reset."""

    ours: socket.socket
    peer: socket.socket
    reset: Callable[[], None]


def real() -> Iterator[Given]:
    ours, peer = tcp_pair()
    for sock in (ours, peer):
        sock.setblocking(False)
    yield Given(ours, peer, lambda: reset(peer))
    ours.close()
    peer.close()


def memory() -> Iterator[Given]:
    ours, peer = memory_sockets()

    def reset_memory() -> None:
        ours.errors["recv"].append(errno.ECONNRESET)
        ours.errors["send"].append(errno.EPIPE)

    yield Given(as_socket(ours), as_socket(peer), reset_memory)


KINDS: Final = {"system": Kind(socket.socket, real), "memory": Kind(MemorySocket, memory)}


@pytest.fixture(params=KINDS)
def given(request: pytest.FixtureRequest) -> Iterator[Given]:
    yield from KINDS[request.param].make()


def arrived(sock: socket.socket) -> int:
    size = array.array("i", [0])
    fcntl.ioctl(sock.fileno(), termios.FIONREAD, size)
    return size[0]


def receive(sock: socket.socket, size: int, flags: int = 0) -> bytes:
    """What comes on the loopback, which may take a moment."""
    for _ in range(100_000):
        try:
            return sock.recv(size, flags)
        except BlockingIOError:
            continue
    raise AssertionError("nothing came")


def fill(sock: socket.socket) -> int:
    """Send until the socket takes no more; how many bytes that were."""
    total = 0
    while True:
        try:
            total += sock.send(b"x" * 100_000)
        except BlockingIOError:
            return total


def test_nothing_has_come_is_told_as_such(given: Given) -> None:
    with pytest.raises(BlockingIOError) as caught:
        given.ours.recv(10)
    assert (caught.value.errno, arrived(given.ours)) == (errno.EAGAIN, 0)


def test_bytes_come_in_order_and_no_more_than_were_asked_for(given: Given) -> None:
    assert given.peer.send(b"onetwo") == 6
    assert given.peer.sendmsg([b"three", b"", memoryview(b"xfour")[1:]]) == 9
    seen = b""
    while len(seen) < 15:
        piece = receive(given.ours, 4)
        assert 0 < len(piece) <= 4
        seen += piece
    assert seen == b"onetwothreefour"
    with pytest.raises(BlockingIOError):
        given.ours.recv(1)


def test_a_look_leaves_the_bytes_and_the_system_says_how_many_there_are(given: Given) -> None:
    given.peer.send(b"0123456789")
    assert receive(given.ours, 4, socket.MSG_PEEK) == b"0123"
    assert given.ours.recv(100, socket.MSG_PEEK) == b"0123456789"
    assert arrived(given.ours) == 10
    assert given.ours.recv(3) == b"012"
    assert arrived(given.ours) == 7


def test_a_full_socket_takes_part_then_nothing_and_goes_on_when_it_was_read(given: Given) -> None:
    sent = fill(given.ours)
    with pytest.raises(BlockingIOError) as caught:
        given.ours.sendmsg([b"y", b"z"])
    assert caught.value.errno == errno.EAGAIN
    seen = 0
    while seen < sent:
        seen += len(receive(given.peer, 1 << 20))
    assert seen == sent
    assert given.ours.send(b"y") == 1
    assert receive(given.peer, 10) == b"y"


def test_the_end_comes_after_the_bytes_stays_and_leaves_the_other_direction(given: Given) -> None:
    given.peer.send(b"last")
    given.peer.shutdown(socket.SHUT_WR)
    assert [receive(given.ours, 10), receive(given.ours, 10), receive(given.ours, 10)] == [b"last", b"", b""]
    assert given.ours.send(b"answer") == 6
    assert receive(given.peer, 10) == b"answer"


def test_a_socket_that_is_closed_has_ended(given: Given) -> None:
    given.peer.close()
    assert receive(given.ours, 10) == b""


def test_a_reset_is_an_error_of_reading_and_of_writing(given: Given) -> None:
    given.reset()
    with pytest.raises(ConnectionResetError):
        receive(given.ours, 10)
    with pytest.raises(BrokenPipeError):
        given.ours.send(b"x")
