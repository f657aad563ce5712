"""The demo's frames, its histogram of times, its connections and its upstream."""

import random
import select
import socket
import struct
import zlib
from collections.abc import Iterator

import pytest

from framegate.control.demo.load import BODY_HEADER_SIZE, FRAME_HEADER, Client, Latency, Payloads, frame
from tests.fakes.upstream import frame as framed
from tests.fakes.upstream import read_frame


def test_frames_say_where_they_belong_and_are_what_the_receiver_expects() -> None:
    whole = frame(7, 2**40, b"payload")
    assert FRAME_HEADER.unpack_from(whole) == (len(whole) - 4, 7, 2**40, zlib.crc32(b"payload"))
    assert whole[4 + BODY_HEADER_SIZE :] == b"payload"
    payloads, same = Payloads(), Payloads()
    assert payloads.frames(3, 10, 5) == b"".join(frame(3, sequence, same.of(3, sequence)) for sequence in range(10, 15))


def test_quantiles_are_exact_to_two_digits() -> None:
    source = random.Random(5)
    latency, times = Latency(), sorted(source.randrange(50, 500_000) for _ in range(2000))
    assert latency.figures() == {"frames": 0, "p50_us": 0, "p99_us": 0}
    for time_us in times:
        latency.add(time_us * 1000, 1)
    figures = latency.figures()
    assert figures["frames"] == 2000
    for share, found in ((0.5, figures["p50_us"]), (0.99, figures["p99_us"])):
        true = times[int(share * 2000) - 1]
        assert abs(found - true) <= 0.051 * true


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
    frames = [framed(read_frame(peer)), framed(read_frame(peer))]
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
    first, second, third = (framed(read_frame(peer)) for _ in range(3))
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


def test_an_end_waits_for_the_peers_and_the_peers_end_is_named(pair: Pair) -> None:
    client, peer = pair
    client.shut()
    assert client.closed is None
    assert peer.recv(1) == b""
    peer.shutdown(socket.SHUT_WR)
    wait_readable(client)
    assert client.closed == "client"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        other = Client(6, listener.getsockname(), None, PAYLOADS, Latency())
        listener.accept()[0].close()
    wait_readable(other)
    assert other.closed == "end of stream"
