"""The clients, the upstream and the hostages of the large parts do what they say, and notice what a figure must not hide."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import native
import peak
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
def asked(cache: Path, tmp_path: Path) -> Iterator[int]:
    """The port of the upstream that answers as it is asked."""
    process = Process("asked", [str(native.build("asked", cache)), "--listen", "127.0.0.1:0"], [0], tmp_path)
    yield int(process.wait_for_row("port")["port"])
    process.stop()


def fetch(cache: Path, port: int, *options: str) -> subprocess.CompletedProcess[str]:
    command = [str(native.build("fetch", cache)), "--connect", f"127.0.0.1:{port}", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def rows(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, float]]:
    assert done.returncode == 0, done.stderr
    return {row["event"]: row for row in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize(
    ("request_size", "answer", "connections", "in_flight"),
    [(24, 24, 1, 1), (24, 3_000_000, 3, 1), (24, 1 << 20, 4, 2), (24, 0, 2, 8), (600_000, 0, 3, 2), (1000, 300_000, 2, 4)],
)
def test_every_answer_comes_and_is_counted(cache: Path, asked: int, request_size: int, answer: int, connections: int, in_flight: int) -> None:
    sizes = ("--request", str(request_size), "--answer", str(answer))
    row = rows(fetch(cache, asked, *sizes, "--connections", str(connections), "--in-flight", str(in_flight), "--count", "5"))
    size = (answer or request_size) + 4
    assert (row["measured"]["answers"], row["measured"]["bytes"]) == (5 * connections, 5 * connections * size)
    assert row["done"]["sent"] == row["done"]["received"] == 5 * connections
    assert (row["measured"]["first_p99_us"] > 0) == (answer > 0)
    assert 0 < row["measured"]["whole_p50_us"] <= row["measured"]["whole_p99_us"]


def test_an_open_loop_keeps_its_rate(cache: Path, asked: int) -> None:
    row = rows(
        fetch(cache, asked, "--request", "100", "--answer", "0", "--connections", "4", "--per-second", "500", "--warm-up", "0.1", "--seconds", "0.4")
    )
    assert (row["measured"]["answers"], row["measured"]["missing"]) == (200, 0)


ANSWER = 1_000_000


def tampering_relay(listener: socket.socket, upstream: int, tamper: int, after: int) -> None:
    """Passes one answer on; one byte of it changes, or the stream ends there (tamper 0)."""
    client, _ = listener.accept()
    with client, socket.create_connection(("127.0.0.1", upstream)) as server:
        server.sendall(client.recv(65536))
        seen = 0
        while seen < ANSWER + 4 and (data := server.recv(65536)):
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


@pytest.mark.parametrize(
    ("tamper", "after", "words"),
    [
        (1, 2, "the head of answer 0 came changed"),
        (1, 27, "the head of"),
        (128, 900_000, "answer 0 came changed"),
        (0, 500_000, "closed by the other side"),
    ],
    ids=["its size", "its number", "its body", "its end"],
)
def test_a_difference_ends_the_run(cache: Path, asked: int, tamper: int, after: int, words: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=tampering_relay, args=(listener, asked, tamper, after))
        thread.start()
        done = fetch(cache, listener.getsockname()[1], "--answer", str(ANSWER), "--count", "1")
        thread.join()
    assert done.returncode == 1
    assert words in done.stderr


def test_the_upstream_reads_a_whole_frame_before_it_answers(asked: int) -> None:
    frame = (1000).to_bytes(4, "big") + bytes(range(250)) * 4
    with socket.create_connection(("127.0.0.1", asked), timeout=10) as sock:
        sock.sendall(frame[:-1])
        sock.settimeout(0.1)
        with pytest.raises(TimeoutError):
            sock.recv(1)
        sock.settimeout(10)
        sock.sendall(frame[-1:])
        back = b""
        while len(back) < len(frame):
            back += sock.recv(65536)
    assert back == frame


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as found:
        found.settimeout(10)
        yield found


def hostages(cache: Path, port: int, count: int, *options: str) -> subprocess.Popen[str]:
    sizes = ("--announce", "60000000", "--answer", "50000000")
    command = [str(native.build("hostages", cache)), "--connect", f"127.0.0.1:{port}", "--count", str(count), *sizes, *options]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def said(process: subprocess.Popen[str]) -> dict[str, object]:
    assert process.stdout is not None
    row: dict[str, object] = json.loads(process.stdout.readline())
    return row


def ended(process: subprocess.Popen[str]) -> dict[str, object]:
    assert process.stdin is not None
    process.stdin.close()
    row = said(process)
    assert process.wait(10) == 0
    assert process.stdout is not None
    process.stdout.close()
    return row


def take(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = sock.recv(size - len(data))
        assert more, "the hostage went"
        data += more
    return data


def test_each_hostage_does_what_its_kind_does(cache: Path, listener: socket.socket) -> None:
    process = hostages(cache, listener.getsockname()[1], 5)
    connections = [listener.accept()[0] for _ in range(5)]
    for sock in connections:
        sock.settimeout(10)
    assert said(process) == {"event": "open"}
    heads = [take(sock, 4) for sock in connections]
    sizes = sorted(int.from_bytes(head, "big") for head in heads)
    assert sizes == [24, 24, 60_000_000, 60_000_000, 60_000_000]
    asking = [sock for sock, head in zip(connections, heads, strict=True) if head == (24).to_bytes(4, "big")]
    assert [int.from_bytes(take(sock, 24)[8:16], "big") for sock in asking] == [50_000_000] * 2
    silent, trickle, crawl = (sock for sock in connections if sock not in asking)
    take(trickle, 2)
    assert len(take(crawl, 2_048)) == 2_048  # two seconds have passed
    for sock in (silent, *asking):
        sock.settimeout(0.05)
        with pytest.raises(TimeoutError):
            sock.recv(1)
    assert ended(process) == {"event": "done", "standing": 5, "refused": 0, "silent": 0, "trickle": 0, "crawl": 0, "sip": 0, "deaf": 0}
    for sock in connections:
        sock.close()


def test_a_hostage_that_is_closed_comes_back(cache: Path, listener: socket.socket) -> None:
    process = hostages(cache, listener.getsockname()[1], 1)
    first, _ = listener.accept()
    assert said(process) == {"event": "open"}
    first.close()
    second, _ = listener.accept()
    with second:
        second.settimeout(10)
        assert int.from_bytes(take(second, 4), "big") == 60_000_000
        done = ended(process)
    assert (done["silent"], done["standing"]) == (1, 1)


GREEDY = """
import signal, time
def take(number, frame):
    b = bytearray(64 << 20); b[::4096] = b"x" * len(b[::4096]); del b
    print('{"taken": true}', flush=True)
signal.signal(signal.SIGUSR1, take)
print('{"ready": true}', flush=True)
while True: time.sleep(60)
"""


def test_a_peak_between_two_looks_is_not_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peak, "SAMPLE_SECONDS", 60)
    process = Process("greedy", [sys.executable, "-c", GREEDY], [0], tmp_path)
    try:
        process.wait_for_row("ready")
        idle = process.total_memory().rss
        with peak.watched(process) as before:
            pass
        with peak.watched(process) as found:
            os.kill(process.pid, signal.SIGUSR1)
            process.wait_for_row("taken")
        assert before.resident - idle < 8
        assert 60 < found.resident - idle < 80
    finally:
        process.stop()
