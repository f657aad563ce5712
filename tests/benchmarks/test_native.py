"""The load generator notices what a figure must not hide: a byte changed, a frame lost; and what it counts is what was sent."""

import json
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import native
import pytest
from processes import Process

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("cc") is None or not Path("/usr/include/openssl/ssl.h").exists(),
        reason="needs a C compiler and OpenSSL's headers (Debian: apt-get install gcc libssl-dev)",
    ),
]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("native")


@pytest.fixture
def echo(cache: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[int]:
    """The port of an echo server; it speaks TLS when the test asks for it."""
    certificate = native.make_certificate(tmp_path)
    tls = ["--tls", "--certificate", str(certificate.certificate), "--key", str(certificate.key)] if getattr(request, "param", False) else []
    process = Process("echo", [str(native.build("loadgen", cache)), "--echo", "--listen", "127.0.0.1:0", *tls], [0], tmp_path)
    yield int(process.wait_for_row("port")["port"])
    process.stop()


def drive(cache: Path, port: int, *options: str) -> subprocess.CompletedProcess[str]:
    command = [str(native.build("loadgen", cache)), "--connect", f"127.0.0.1:{port}", "--warm-up", "0.05", "--seconds", "0.15", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def rows(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, float]]:
    assert done.returncode == 0, done.stderr
    return {row["event"]: row for row in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("echo", [False, True], indirect=True, ids=["plain", "tls"])
@pytest.mark.parametrize(("size", "in_flight", "connections"), [(12, 1, 3), (100, 64, 5), (70_000, 4, 2), (1 << 20, 2, 2)])
def test_every_frame_comes_back_and_is_counted(
    cache: Path, echo: int, request: pytest.FixtureRequest, size: int, in_flight: int, connections: int
) -> None:
    tls = ["--tls"] if "tls" in request.node.callspec.id else []
    done = drive(cache, echo, "--size", str(size), "--in-flight", str(in_flight), "--connections", str(connections), *tls)
    row = rows(done)
    assert row["measured"]["frames"] > 0
    assert row["done"]["sent"] == row["done"]["received"] >= row["measured"]["frames"]
    assert 0 < row["measured"]["p50_us"] <= row["measured"]["p99_us"] <= row["measured"]["p999_us"]


def test_an_open_loop_keeps_its_rate(cache: Path, echo: int) -> None:
    row = rows(drive(cache, echo, "--rate", "2000", "--in-flight", "64", "--connections", "4"))
    assert row["measured"]["frames"] == pytest.approx(2000 * 0.15, rel=0.2)


def test_the_relay_passes_everything_on(cache: Path, echo: int, tmp_path: Path) -> None:
    relay = Process("relay", [str(native.build("relay", cache)), "--listen", "127.0.0.1:0", "--connect", f"127.0.0.1:{echo}"], [0], tmp_path)
    try:
        port = int(relay.wait_for_row("port")["port"])
        for size in ("100", "300000"):
            row = rows(drive(cache, port, "--size", size, "--in-flight", "8", "--connections", "4"))
            assert row["done"]["sent"] == row["done"]["received"]
    finally:
        relay.stop()


def test_requests_of_kafka_come_back_as_answers(cache: Path, tmp_path: Path) -> None:
    """Every request begins with an api key and a version that its correlation id repeats."""
    bodies: list[bytes] = []

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            while data := connection.recv(65536):
                bodies.extend(data[at + 4 : at + 18] for at in range(0, len(data) - len(data) % 104, 104))
                connection.sendall(data)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        done = drive(cache, listener.getsockname()[1], "--size", "100", "--kafka")
        thread.join()
    assert rows(done)["measured"]["frames"] > 0
    assert all(body[:4] == body[4:8] for body in bodies)
    assert {int.from_bytes(body[:2], "big") for body in bodies} == {0, 1}
    assert {int.from_bytes(body[2:4], "big") for body in bodies} == set(range(9))


def opened(cache: Path, port: int, *options: str, commands: str = "") -> subprocess.CompletedProcess[str]:
    command = [str(native.build("opener", cache)), "--connect", f"127.0.0.1:{port}", "--warm-up", "0.05", "--seconds", "0.15", *options]
    return subprocess.run(command, input=commands, capture_output=True, text=True, timeout=30, check=False)


@pytest.mark.parametrize("echo", [False, True], indirect=True, ids=["plain", "tls"])
def test_connections_are_opened_used_and_closed(cache: Path, echo: int, request: pytest.FixtureRequest) -> None:
    tls = ["--tls"] if "tls" in request.node.callspec.id else []
    row = rows(opened(cache, echo, "--slots", "4", *tls))
    assert 0 < row["measured"]["connections"] <= row["done"]["opened"]
    assert 0 < row["measured"]["p50_us"] <= row["measured"]["p99_us"] <= row["measured"]["max_us"]


def test_connections_fall_due_at_a_rate(cache: Path, echo: int) -> None:
    row = rows(opened(cache, echo, "--rate", "200"))
    assert row["measured"]["connections"] == pytest.approx(200 * 0.15, abs=8)


@pytest.mark.parametrize("echo", [False, True], indirect=True, ids=["plain", "tls"])
def test_held_connections_stay_and_obey(cache: Path, echo: int, request: pytest.FixtureRequest) -> None:
    tls = ["--tls"] if "tls" in request.node.callspec.id else []
    done = opened(cache, echo, "--hold", "20", *tls, commands="burst 300000 10\n")
    assert rows(done) == {"open": {"event": "open", "connections": 20}, "burst": {"event": "burst"}}


def test_an_opener_whose_frame_comes_back_changed_fails(cache: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=tampering_echo, args=(listener, b"\x01", 50))
        thread.start()
        done = opened(cache, listener.getsockname()[1], "--slots", "1")
        thread.join()
    assert done.returncode == 1
    assert "came back changed" in done.stderr


def tampering_echo(listener: socket.socket, tamper: bytes, after: int) -> None:
    """An echo of one connection that changes one byte late in the stream, or ends it (no tamper)."""
    connection, _ = listener.accept()
    seen = 0
    with connection:
        while data := connection.recv(65536):
            start, seen = seen, seen + len(data)
            if start <= after < seen:
                if not tamper:
                    return
                position = after - start
                data = data[:position] + bytes([data[position] ^ tamper[0]]) + data[position + 1 :]
            try:
                connection.sendall(data)
            except OSError:
                return


@pytest.mark.parametrize(
    ("tamper", "words"),
    [(b"\x01", "came back changed"), (b"", "closed by the other side")],
    ids=["a bit flips", "the stream ends"],
)
def test_a_difference_ends_the_run(cache: Path, tamper: bytes, words: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=tampering_echo, args=(listener, tamper, 5000))
        thread.start()
        done = drive(cache, listener.getsockname()[1], "--size", "100", "--in-flight", "4")
        thread.join()
    assert done.returncode == 1
    assert words in done.stderr
