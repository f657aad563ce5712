"""framegate.proxy.network.tls_wire: the socket's side; with a TLS connection above it in test_tls.py."""

import errno

import pytest

from framegate.proxy.errors import TransportError
from framegate.proxy.network.memory_pool import MemoryPool
from framegate.proxy.network.tls import TlsTransport
from framegate.proxy.network.tls_bio import BioPair
from framegate.proxy.network.transport import DONE
from tests.fakes.clock import FakeClock
from tests.fakes.tls import TlsWorld
from tests.fakes.transport import as_socket, memory_sockets


def test_ciphertext_that_the_socket_does_not_take_is_booked_and_given_back(tls_world: TlsWorld) -> None:
    pool = MemoryPool(1 << 30, FakeClock().now_ns)
    ours, theirs = memory_sockets(8192)
    bios = BioPair()
    server = TlsTransport(as_socket(ours), tls_world.server_settings(), pool.common, bios)
    client = TlsTransport(as_socket(theirs), tls_world.client_settings(), pool.common, bios)
    while (server.handshake(), client.handshake()) != (DONE, DONE):
        pass
    client.read(100)
    server.write(b"x" * 20_000)
    assert pool.used >= server.pending_write > 0
    got = b""
    while len(got) < 20_000:
        got += client.read(1 << 16) or b""
        server.flush()
    assert (pool.used, server.pending_write, got) == (0, 0, b"x" * 20_000)


def test_errors_of_the_socket_are_told_with_their_number(tls_world: TlsWorld) -> None:
    pool = MemoryPool(1 << 30, FakeClock().now_ns)
    ours, _ = memory_sockets(8192)
    transport = TlsTransport(as_socket(ours), tls_world.client_settings(), pool.common, BioPair())
    ours.errors["send"].append(errno.EPIPE)
    with pytest.raises(TransportError, match="write failed") as caught:
        transport.handshake()
    assert caught.value.errno == errno.EPIPE
    transport.close()
