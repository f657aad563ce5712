"""The demo's upstream: whole frames come back, in order, counted."""

import os
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from control.demo.upstream import Upstream


@pytest.fixture
def running() -> Iterator[tuple[Upstream, tuple[str, int]]]:
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    reader, writer = os.pipe()
    upstream = Upstream(listener, reader)
    thread = threading.Thread(target=upstream.run)
    thread.start()
    yield upstream, address
    os.close(writer)
    thread.join(10)
    upstream.close()
    os.close(reader)


def read_exactly(client: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        data += client.recv(count - len(data))
    return data


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def test_frames_come_back_whole_however_they_are_cut(running: tuple[Upstream, tuple[str, int]]) -> None:
    upstream, address = running
    sent = frame(b"") + frame(b"x" * 1000) + frame(b"last")
    with socket.create_connection(address, timeout=5) as client:
        for byte in sent[:1010]:
            client.sendall(bytes([byte]))
        client.sendall(sent[1010:])
        assert read_exactly(client, len(sent)) == sent
    assert (upstream.frame_count, upstream.byte_count) == (3, len(sent))


def test_a_slow_reader_gets_everything_after_its_own_end_of_stream(running: tuple[Upstream, tuple[str, int]]) -> None:
    _, address = running
    sent = frame(bytes(3_000_000)) * 2
    with socket.create_connection(address, timeout=10) as client:
        writer = threading.Thread(target=client.sendall, args=(sent,))
        writer.start()
        received = read_exactly(client, len(sent) // 2)
        writer.join()
        client.shutdown(socket.SHUT_WR)
        while data := client.recv(1 << 20):
            received += data
    assert received == sent


def test_a_negative_size_ends_that_connection_only(running: tuple[Upstream, tuple[str, int]]) -> None:
    _, address = running
    with socket.create_connection(address, timeout=5) as good, socket.create_connection(address, timeout=5) as bad:
        bad.sendall(b"\xff\xff\xff\xff")
        assert bad.recv(1) == b""
        good.sendall(frame(b"hello"))
        assert read_exactly(good, 9) == frame(b"hello")
