"""One connection of the load over a socket pair's other end: what it writes, what it accepts as an answer, how it ends."""

import select
import socket
import struct
from collections.abc import Iterator

import pytest

from control.demo.client import Client
from control.demo.load import FRAME_HEADER, Latency, Payloads

PAYLOADS = Payloads()


@pytest.fixture
def pair() -> Iterator[tuple[Client, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = Client(5, listener.getsockname(), None, PAYLOADS, Latency())
        peer, _ = listener.accept()
    with peer:
        peer.settimeout(5.0)
        yield client, peer
        client.close()


def read_frame(peer: socket.socket) -> bytes:
    data = b""
    while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
        data += peer.recv(1 if len(data) < 4 else 4 + int.from_bytes(data[:4], "big") - len(data))
    return data


def wait_readable(client: Client) -> None:
    select.select([client], [], [], 5.0)
    client.on_ready(select.EPOLLIN)


def test_frames_are_numbered_and_answers_are_taken_in_order(pair: tuple[Client, socket.socket]) -> None:
    client, peer = pair
    client.submit(2)
    frames = [read_frame(peer), read_frame(peer)]
    assert [FRAME_HEADER.unpack_from(frame)[1:3] for frame in frames] == [(5, 0), (5, 1)]
    peer.sendall(frames[0] + frames[1][:7])
    wait_readable(client)
    assert (client.answered_count, client.in_flight) == (1, 1)
    peer.sendall(frames[1][7:])
    wait_readable(client)
    assert (client.answered_count, client.wrong, client.latency.total()) == (2, [], 2)


def test_a_changed_byte_is_a_wrong_answer(pair: tuple[Client, socket.socket]) -> None:
    client, peer = pair
    client.submit(1)
    frame = bytearray(read_frame(peer))
    frame[-1] ^= 1
    peer.sendall(frame)
    wait_readable(client)
    assert len(client.wrong) == 1


def test_answers_out_of_order_are_wrong(pair: tuple[Client, socket.socket]) -> None:
    client, peer = pair
    client.submit(2)
    first, second = read_frame(peer), read_frame(peer)
    peer.sendall(second + first)
    wait_readable(client)
    assert len(client.wrong) == 2


def test_what_the_socket_does_not_take_is_counted_as_blocked(pair: tuple[Client, socket.socket]) -> None:
    client, _ = pair
    client.submit_sized(64, 1_000_000)
    assert client.outbox_bytes > 0
    assert client.blocked_since_ns > 0
    assert client.wanted & select.EPOLLOUT


def test_the_peers_end_is_named(pair: tuple[Client, socket.socket]) -> None:
    client, peer = pair
    peer.shutdown(socket.SHUT_WR)
    wait_readable(client)
    assert client.closed == "end of stream"


def test_a_reset_in_the_middle_of_a_write_ends_it_once(pair: tuple[Client, socket.socket]) -> None:
    client, peer = pair
    client.submit_sized(64, 1_000_000)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()
    select.select([client], [], [], 5.0)
    client.on_ready(select.EPOLLIN | select.EPOLLOUT | select.EPOLLHUP)
    assert client.closed in ("ConnectionResetError", "BrokenPipeError")
    client.on_ready(select.EPOLLIN)


def test_an_end_in_order_waits_for_the_peers(pair: tuple[Client, socket.socket]) -> None:
    client, peer = pair
    client.shut()
    assert client.closed is None
    assert peer.recv(1) == b""
    peer.shutdown(socket.SHUT_WR)
    wait_readable(client)
    assert client.closed == "client"
