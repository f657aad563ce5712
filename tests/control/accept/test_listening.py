"""The listening sockets: what they are told, when they are open, and what waits in them."""

import contextlib
import dataclasses
import errno
import socket
from typing import Any

import pytest

from framegate.control.accept.listening import Listening, rebound
from framegate.proxy.config.model import KeepAlive, SocketConfig
from framegate.proxy.server.link import receive_handovers
from tests.control.accept.test_acceptor import Rig, listening
from tests.fakes.cases import each_of
from tests.fakes.waiting import until


def port_of(bound: Listening) -> tuple[str, int]:
    host, _, port = bound.address.rpartition(":")
    return host, int(port)


@each_of("address", ["127.0.0.1:0", "[::1]:0"])
def test_what_is_accepted_has_the_listeners_socket_options(address: str) -> None:
    options = SocketConfig(receive_buffer=20_000, send_buffer=30_000, keep_alive=KeepAlive(idle_ms=9_000, interval_ms=3_000, probes=4))
    rig = Rig(listening(address, socket=options))
    rig.acceptor.start()
    try:
        rig.connect()
        received: list[tuple[Any, int]] = []

        def taken() -> bool:
            received.extend(receive_handovers(rig.pairs[0][1]) or receive_handovers(rig.pairs[1][1]))
            return bool(received)

        until(taken)
        with socket.socket(fileno=received[0][1]) as accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 40_000
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 60_000
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            tcp = (socket.TCP_NODELAY, socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
            assert [accepted.getsockopt(socket.IPPROTO_TCP, name) for name in tcp] == [1, 9, 3, 4]
    finally:
        rig.close()


def test_a_port_is_taken_at_once_and_open_with_the_start() -> None:
    """Nobody is let in who would wait for a proxy that does not come up: bound, and refusing."""
    bound = listening()
    with contextlib.closing(bound.sock):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(port_of(bound), timeout=5)
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(port_of(bound))
        bound.listen()
        socket.create_connection(port_of(bound), timeout=5).close()


def test_of_several_listeners_with_port_zero_one_gets_the_socket_of_a_listener_that_goes() -> None:
    was = listening()
    made = rebound({"a": was}, {}, [dataclasses.replace(was.config, name=name) for name in "bcd"])
    try:
        assert len({item.address for item in made.values()} | {was.address}) == 3
    finally:
        for item in (was, *made.values()):
            item.close()


def test_as_many_clients_wait_as_the_backlog_says() -> None:
    """128 connect although nobody accepts."""
    bound = listening(backlog=128)
    bound.listen()
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.closing(bound.sock))
        for _ in range(128):
            client = stack.enter_context(socket.socket())
            client.settimeout(5)
            assert client.connect_ex(port_of(bound)) == 0


def test_a_stop_before_the_start_closes_every_listener() -> None:
    """And hangs for nothing: the thread never ran."""
    rig = Rig(listening())
    assert rig.listening.sock.fileno() >= 0
    rig.close()
    assert rig.listening.sock.fileno() == -1
    with socket.socket() as client:
        assert client.connect_ex(port_of(rig.listening)) == errno.ECONNREFUSED
