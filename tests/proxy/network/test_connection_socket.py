"""framegate.proxy.network.connection_socket: sockets of the plain type that can what connections need."""

import errno
import os
import socket

import pytest

from framegate.proxy.network.connection_socket import adopt_socket, open_socket
from tests.fakes.cases import each_of


@each_of("family", [socket.AF_INET, socket.AF_INET6, socket.AF_UNIX])
def test_a_new_one_neither_blocks_nor_is_inherited(family: int) -> None:
    sock = open_socket(int(family))
    try:
        assert type(sock) is not socket.socket
        assert (sock.family, sock.gettimeout()) == (family, 0.0)
        assert not os.get_inheritable(sock.fileno())
        assert not os.get_blocking(sock.fileno())
    finally:
        sock.close()
    assert sock.fileno() == -1


def test_a_family_that_the_system_does_not_know_is_an_error() -> None:
    with pytest.raises(OSError) as caught:  # noqa: PT011 -- the number says which
        open_socket(9999)
    assert caught.value.errno == errno.EAFNOSUPPORT


def test_one_that_was_accepted_belongs_to_it_from_then_on() -> None:
    ours, theirs = socket.socketpair()
    sock = adopt_socket(int(socket.AF_UNIX), theirs.detach())
    ours.sendall(b"there")
    assert sock.recv(100) == b"there"
    sock.setblocking(False)
    with pytest.raises(BlockingIOError):
        sock.recv(1)
    sock.sendall(b"back")
    sock.shutdown(socket.SHUT_WR)
    assert ours.recv(100) + ours.recv(100) == b"back"
    sock.close()
    sock.close()
    with pytest.raises(BrokenPipeError):
        ours.sendall(b"x")
    ours.close()


def test_what_is_no_socket_stays_the_callers() -> None:
    descriptor = os.open(os.devnull, os.O_RDONLY)
    with pytest.raises(OSError) as caught:  # noqa: PT011 -- the number says which
        adopt_socket(int(socket.AF_INET), descriptor)
    assert caught.value.errno == errno.ENOTSOCK
    os.close(descriptor)
