"""One connection of the load over a socket pair's other end: what it writes, what it accepts as an answer, how it ends."""

import select
import socket
import struct
from collections.abc import Iterator

import pytest

from framegate.control.demo.client import Client
from framegate.control.demo.load import FRAME_HEADER, Latency, Payloads
from tests.fakes.upstream import frame, read_frame

PAYLOADS = Payloads()
Pair = tuple[Client, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = Client(5, listener.getsockname(), None, PAYLOADS, Latency())
        peer, _ = listener.accept()
    with peer:
        peer.settimeout(5.0)
        yield client, peer
        client.close()


def wait_readable(client: Client) -> None:
    select.select([client], [], [], 5.0)
    client.on_ready(select.EPOLLIN)


def test_frames_are_numbered_and_answers_are_taken_in_order(pair: Pair) -> None:
    client, peer = pair
    client.submit(2)
    frames = [frame(read_frame(peer)), frame(read_frame(peer))]
    assert [FRAME_HEADER.unpack_from(one)[1:3] for one in frames] == [(5, 0), (5, 1)]
    peer.sendall(frames[0] + frames[1][:7])
    wait_readable(client)
    assert (client.answered_count, client.in_flight) == (1, 1)
    peer.sendall(frames[1][7:])
    wait_readable(client)
    assert (client.answered_count, client.wrong, client.latency.figures()["frames"]) == (2, [], 2)


def test_a_changed_byte_and_another_order_are_wrong_answers(pair: Pair) -> None:
    client, peer = pair
    client.submit(3)
    first, second, third = (frame(read_frame(peer)) for _ in range(3))
    peer.sendall(first[:-1] + bytes([first[-1] ^ 1]))
    wait_readable(client)
    assert len(client.wrong) == 1
    peer.sendall(third + second)
    wait_readable(client)
    assert len(client.wrong) == 3


def test_what_the_socket_does_not_take_is_counted_as_blocked_and_a_reset_ends_it_once(pair: Pair) -> None:
    client, peer = pair
    client.submit_sized(64, 1_000_000)
    assert client.outbox_bytes > 0
    assert client.blocked_since_ns > 0
    assert client.wanted & select.EPOLLOUT
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()
    select.select([client], [], [], 5.0)
    client.on_ready(select.EPOLLIN | select.EPOLLOUT | select.EPOLLHUP)
    assert client.closed in ("ConnectionResetError", "BrokenPipeError")
    client.on_ready(select.EPOLLIN)
    client.submit(1)


def test_an_end_is_the_peers_or_waits_for_it(pair: Pair) -> None:
    client, peer = pair
    client.shut()
    assert client.closed is None
    assert peer.recv(1) == b""
    peer.shutdown(socket.SHUT_WR)
    wait_readable(client)
    assert client.closed == "client"


def test_the_peers_end_is_named(pair: Pair) -> None:
    client, peer = pair
    peer.shutdown(socket.SHUT_WR)
    wait_readable(client)
    assert client.closed == "end of stream"
