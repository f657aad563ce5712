"""The C programs do what they say, and notice what a figure must not hide: a byte changed, a frame lost."""

import contextlib
import json
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import native
import pytest
from processes import Process

from tests.fakes.cases import each_of
from tests.fakes.certificates import Authority

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
    certificate = native.make_certificate(Authority(tmp_path), "server")
    tls = ["--tls", "--certificate", str(certificate.certificate), "--key", str(certificate.key)] if getattr(request, "param", False) else []
    process = Process("echo", [str(native.build("loadgen", cache)), "--echo", "--listen", "127.0.0.1:0", *tls], [0], tmp_path)
    yield int(process.wait_for_row("port")["port"])
    process.stop()


@pytest.fixture
def asked(cache: Path, tmp_path: Path) -> Iterator[int]:
    """The port of the upstream that answers as it is asked."""
    process = Process("asked", [str(native.build("asked", cache)), "--listen", "127.0.0.1:0"], [0], tmp_path)
    yield int(process.wait_for_row("port")["port"])
    process.stop()


def drive(cache: Path, port: int, *options: str, program: str = "loadgen", commands: str = "") -> subprocess.CompletedProcess[str]:
    times = ["--warm-up", "0.05", "--seconds", "0.15"]
    command = [str(native.build(program, cache)), "--connect", f"127.0.0.1:{port}", *times, *options]
    return subprocess.run(command, input=commands, capture_output=True, text=True, timeout=30, check=False)


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


def tampering(listener: socket.socket, tamper: int, after: int, upstream: int = 0) -> None:
    """An echo of one connection, or a relay of its answers, that changes one byte late in the stream, or ends it there (tamper 0)."""
    client, _ = listener.accept()
    seen = 0
    with client, contextlib.ExitStack() as stack:
        source = client
        if upstream:
            source = stack.enter_context(socket.create_connection(("127.0.0.1", upstream)))
            source.sendall(client.recv(65536))
        while data := source.recv(65536):
            start, seen = seen, seen + len(data)
            if start <= after < seen:
                if not tamper:
                    return
                at = after - start
                data = data[:at] + bytes([data[at] ^ tamper]) + data[at + 1 :]
            try:
                client.sendall(data)
            except OSError:
                return
            if upstream and seen >= ANSWER + 4:
                return


@contextlib.contextmanager
def in_thread(work: Callable[..., None], *arguments: int) -> Iterator[int]:
    """A server in a thread; its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=work, args=(listener, *arguments))
        thread.start()
        yield int(listener.getsockname()[1])
        thread.join()


ANSWER = 1_000_000


@each_of(
    ("program", "options", "tamper", "after", "words"),
    [
        ("loadgen", ("--size", "100", "--in-flight", "4"), 1, 5000, "came back changed"),
        ("loadgen", ("--size", "100", "--in-flight", "4"), 0, 5000, "closed by the other side"),
        ("opener", ("--slots", "1"), 1, 50, "came back changed"),
        ("fetch", ("--answer", str(ANSWER), "--count", "1"), 1, 2, "the head of answer 0 came changed"),
        ("fetch", ("--answer", str(ANSWER), "--count", "1"), 1, 27, "the head of"),
        ("fetch", ("--answer", str(ANSWER), "--count", "1"), 128, 900_000, "answer 0 came changed"),
        ("fetch", ("--answer", str(ANSWER), "--count", "1"), 0, 500_000, "closed by the other side"),
    ],
)
def test_a_difference_ends_the_run(cache: Path, asked: int, program: str, options: tuple[str, ...], tamper: int, after: int, words: str) -> None:
    with in_thread(tampering, tamper, after, asked if program == "fetch" else 0) as port:
        done = drive(cache, port, *options, program=program)
    assert done.returncode == 1
    assert words in done.stderr


@pytest.mark.parametrize(
    ("request_size", "answer", "connections", "in_flight"),
    [(24, 24, 1, 1), (24, 3_000_000, 3, 1), (24, 1 << 20, 4, 2), (24, 0, 2, 8), (600_000, 0, 3, 2), (1000, 300_000, 2, 4)],
)
def test_every_answer_comes_and_is_counted(cache: Path, asked: int, request_size: int, answer: int, connections: int, in_flight: int) -> None:
    sizes = ("--request", str(request_size), "--answer", str(answer))
    row = rows(drive(cache, asked, *sizes, "--connections", str(connections), "--in-flight", str(in_flight), "--count", "5", program="fetch"))
    size = (answer or request_size) + 4
    assert (row["measured"]["answers"], row["measured"]["bytes"]) == (5 * connections, 5 * connections * size)
    assert row["done"]["sent"] == row["done"]["received"] == 5 * connections
    assert (row["measured"]["first_p99_us"] > 0) == (answer > 0)
    assert 0 < row["measured"]["whole_p50_us"] <= row["measured"]["whole_p99_us"]
