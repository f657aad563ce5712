"""framegate.proxy.network.connection_socket: sockets of the plain type that can what connections need."""

import contextlib
import errno
import os
import socket
from collections.abc import Iterator

import pytest

from framegate.proxy.cause import Cause
from framegate.proxy.config.model import KeepAlive, SocketConfig
from framegate.proxy.network.connection_socket import adopt_socket, open_socket, set_socket_options
from framegate.proxy.network.memory_pool import PENDING
from framegate.proxy.network.options import ChannelOptions
from framegate.proxy.network.receive import ReceiveLimit
from framegate.proxy.network.stats import SideStats
from tests.fakes.cases import each_of
from tests.fakes.network import NetBench, frame


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


ALL = SocketConfig(receive_buffer=20_000, send_buffer=30_000, keep_alive=KeepAlive(idle_ms=7_001, interval_ms=2_000, probes=3))


def buffers(sock: socket.socket) -> tuple[int, int]:
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF), sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)


def keep_alive(sock: socket.socket) -> tuple[int, ...]:
    tcp = (sock.getsockopt(socket.IPPROTO_TCP, name) for name in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT))
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE), *tcp


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.socket() as sock:
        yield sock


def test_what_is_not_set_is_left_to_the_kernel(server: socket.socket) -> None:
    with socket.socket() as other:
        set_socket_options(server, SocketConfig())
        assert (buffers(server), keep_alive(server)) == (buffers(other), keep_alive(other))


def test_a_socket_has_what_it_was_told_and_whole_seconds_rounded_up(server: socket.socket) -> None:
    set_socket_options(server, ALL)
    assert (buffers(server), keep_alive(server)) == ((40_000, 60_000), (1, 8, 2, 3))


def test_what_a_listening_socket_was_told_holds_for_what_it_accepts(server: socket.socket) -> None:
    set_socket_options(server, ALL)
    server.bind(("127.0.0.1", 0))
    server.listen()
    with socket.create_connection(server.getsockname()):
        accepted, _ = server.accept()
        with accepted:
            assert (buffers(accepted), keep_alive(accepted)) == ((40_000, 60_000), (1, 8, 2, 3))


def test_a_unix_socket_has_buffers_and_nothing_of_tcp(net: NetBench) -> None:
    """It inherits nothing, so it is told when it is taken over."""
    ours, peer = socket.socketpair()
    with peer:
        channel = net.register(ours, 1, options(ALL))
        assert buffers(ours) == (40_000, 60_000)
        net.poll()
        peer.send(frame(9))
        net.poll()
        assert channel.frames_received == 1
        peer.close()
        net.poll()


@pytest.mark.parametrize("config", [None, ALL])
def test_a_socket_towards_an_upstream_is_told_before_it_connects(net: NetBench, server: socket.socket, config: SocketConfig | None) -> None:
    server.bind(("127.0.0.1", 0))
    server.listen()
    channel = net.connect(socket.AF_INET, server.getsockname(), 1, options(config, side="upstream"))
    ours = socket.socket(fileno=channel.fd)
    try:
        assert (keep_alive(ours)[0], ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)) == (1 if config else 0, 1)
        if config:
            assert (buffers(ours), keep_alive(ours)) == ((40_000, 60_000), (1, 8, 2, 3))
    finally:
        ours.detach()


@pytest.mark.parametrize("size", [0, 8_192, 100_000, 1 << 20])
@pytest.mark.parametrize("body", [1_000, 60_000, 250_000])
def test_frames_pass_while_memory_is_short_however_large_the_receive_buffer_is(net: NetBench, server: socket.socket, size: int, body: int) -> None:
    """A buffer that was set grows no more, whatever room the kernel is asked for; a frame that it cannot hold whole takes its turn."""
    set_socket_options(server, SocketConfig(receive_buffer=size))
    server.bind(("127.0.0.1", 0))
    server.listen()
    held = int(net.pool.line)
    with socket.create_connection(server.getsockname()) as peer:
        ours, _ = server.accept()
        net.pool.set_largest(300_000, 0)
        channel = net.register(ours, 1, options(None))
        net.poll()
        net.pool.common.charge(PENDING, held)
        peer.setblocking(False)
        data = memoryview(frame(body) * 3)

        def arrived() -> bool:
            nonlocal data
            with contextlib.suppress(BlockingIOError):
                data = data[peer.send(data) :] if data else data
            return channel.frames_received == 3

        net.poll_until(arrived, step_ms=1)
        net.pool.common.release(PENDING, held)
        assert net.listener.data[channel] == frame(body) * 3
        channel.close(Cause.ADMIN)
        net.poll()


def options(config: SocketConfig | None, side: str = "downstream") -> ChannelOptions:
    return ChannelOptions(side="upstream" if side == "upstream" else "downstream", limit=ReceiveLimit(-1), stats=SideStats(), socket=config)
