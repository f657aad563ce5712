"""The echo servers of part `handlers` do what they are compared for: whole frames, in order, sizes judged, and who does not read waits."""

import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import Process
from servers import PROGRAM

pytestmark = pytest.mark.slow


@pytest.fixture(params=["streams", "protocol"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[socket.socket]:
    """A connection to one of them."""
    process = Process(request.param, [sys.executable, "-I", str(PROGRAM), request.param], [0], tmp_path)
    with socket.create_connection(("127.0.0.1", int(process.wait_for_row("port")["port"])), timeout=10) as client:
        yield client
    process.stop()


def frames() -> bytes:
    return b"".join(struct.pack(">i", size) + bytes([size % 251]) * size for size in (0, 1, 100, 70_000, 3, 0, 300_000, 5))


@pytest.mark.parametrize("step", [1 << 20, 99_991, 7_919])
def test_frames_come_back_however_they_are_cut(server: socket.socket, step: int) -> None:
    data = frames()
    back = b""
    for at in range(0, len(data), step):
        server.sendall(data[at : at + step])
    while len(back) < len(data):
        back += server.recv(1 << 20)
    assert back == data


@pytest.mark.parametrize("size", [-1, (100 << 20) + 1])
def test_a_size_that_is_not_taken_ends_the_connection(server: socket.socket, size: int) -> None:
    server.sendall(struct.pack(">i", 2) + b"ok" + struct.pack(">i", size))
    answer = b""
    while chunk := server.recv(100):
        answer += chunk
    assert answer in (struct.pack(">i", 2) + b"ok", b""), "the answers of the same read may be gone with it"


def test_who_does_not_read_is_not_read(server: socket.socket) -> None:
    server.settimeout(0.5)
    with pytest.raises(TimeoutError):
        server.sendall((struct.pack(">i", 60_000) + bytes(60_000)) * 1_200)  # 72 MB: the kernel's buffers do not take it
