"""framegate.proxy.network.plaintext: what is the socket's own; the rest is in tests/conformance/test_transport.py."""

import socket

from framegate.proxy.network.plaintext import MAX_PIECES, PlaintextTransport
from framegate.proxy.network.transport import DONE
from tests.fakes.transport import as_socket, memory_sockets


def test_plaintext_has_no_handshake_and_no_identity() -> None:
    sock, _ = memory_sockets()
    transport = PlaintextTransport(as_socket(sock))
    assert transport.handshake() == DONE
    assert (transport.identity().subject, transport.identity().version) == (None, "")
    assert sock.calls == []


def test_what_is_known_of_one_is_known_of_no_other() -> None:
    first, second = (PlaintextTransport(as_socket(memory_sockets()[0])).identity() for _ in range(2))
    first.mechanism = "PLAIN"
    assert second.mechanism == ""


def test_one_call_of_the_socket_for_each_call() -> None:
    sock, peer = memory_sockets()
    transport = PlaintextTransport(as_socket(sock))
    transport.write(b"a")
    transport.write_gather([b"b"])
    transport.write_gather([b"c", b"d"])
    peer.send(b"x" * 10)
    transport.read(4)
    assert sock.calls == ["send", "send", "sendmsg", "recv"]


def test_a_gathering_write_offers_no_more_pieces_than_the_system_takes() -> None:
    ours, peer = socket.socketpair()
    with ours, peer:
        transport = PlaintextTransport(ours)
        assert transport.write_gather([b"x"] * 2000) == MAX_PIECES
