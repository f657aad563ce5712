"""SIGTERM: no new connections, answers under way arrive, everything ends in order; the deadline and a second signal end it anyway."""

import contextlib
import os
import pwd
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.certificates import Authority
from tests.fakes.framegate import Framegate, Row, run_cli
from tests.fakes.sasl_frames import log_in
from tests.fakes.tap_files import stored
from tests.fakes.tap_read import read_gaps
from tests.fakes.upstream import ScriptedUpstream, ask, frame, peer_name, read_frame
from tests.fakes.waiting import until


def slow_echo(sock: socket.socket) -> None:
    while True:
        body = read_frame(sock)
        time.sleep(0.3)
        sock.sendall(frame(body))


def push(sock: socket.socket) -> None:
    """Sends frames for ever."""
    read_frame(sock)
    while True:
        sock.sendall(frame(b"news"))
        time.sleep(0.01)


@contextlib.contextmanager
def before(script: Any, config: dict[str, Any], folder: Path, **changes: Any) -> Iterator[Framegate]:
    with (
        ScriptedUpstream(script) as upstream,
        Framegate(folder, {**config, "upstreams": [{"name": "echo", "endpoints": [upstream.address]}], **changes}) as proxy,
    ):
        yield proxy


def event(name: str) -> Any:
    def matches(row: Row) -> bool:
        return bool(row["event"] == name)

    return matches


@pytest.mark.slow
def test_sigterm_lets_answers_under_way_arrive_and_takes_no_new_connections(tmp_path: Path, plain: dict[str, Any]) -> None:
    drain = {"timeout": "10s", "quiet": "500ms"}
    with before(slow_echo, plain, tmp_path, drain=drain) as proxy, proxy.connect("plain") as client:
        client.sendall(frame(b"question"))
        time.sleep(0.1)
        proxy.process.send_signal(signal.SIGTERM)
        proxy.wait_row(event("drain_began"))
        with pytest.raises(ConnectionRefusedError):
            proxy.connect("plain")
        assert read_frame(client) == b"question"
        assert client.recv(1) == b""
        client.close()
        assert proxy.wait() == 0
        (closed,) = proxy.events("closed")
        assert closed["cause"] == "drained"
        assert closed["frames"] == {"request": 1, "response": 1}
        assert proxy.rows[-1]["event"] == "stopped"


class Asker:
    """A client that numbers its questions and never pauses, until it sees the end of its stream; then it stops. ``window``: questions that it leaves
    unanswered.
    """

    def __init__(self, sock: socket.socket, client: int, window: int) -> None:
        self.name = peer_name(sock)  # its address, as rows have it
        self.asked = 0  # how many questions it began to send
        self.answered: list[int] = []  # the numbers of the answers
        self.failure: OSError | None = None  # what it met instead of an end
        self._sock = sock
        self._client = client
        self._window = threading.Semaphore(window)
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._ask), threading.Thread(target=self._hear)]
        for thread in self._threads:
            thread.start()

    def _ask(self) -> None:
        while not self._over.is_set():
            if self._window.acquire(timeout=0.1):
                self.asked += 1
                try:
                    self._sock.sendall(frame(struct.pack(">hhiih", 3, 9, self.asked, self._client, -1) + bytes(2000)))
                except OSError:  # what became of its answers is what counts
                    return

    def _hear(self) -> None:
        try:
            while True:
                body = read_frame(self._sock)
                self.answered.append(struct.unpack_from(">i", body)[0])
                self._window.release()
        except EOFError:
            pass
        except OSError as error:
            self.failure = error
        self._over.set()

    def finish(self) -> None:
        for thread in self._threads:
            thread.join(20)
        self._sock.close()


def serve_questions(served: dict[int, list[int]]) -> Any:
    """An upstream that answers each question, as Kafka would, and notes it by client."""

    def script(sock: socket.socket) -> None:
        while True:
            number, client = struct.unpack_from(">ii", read_frame(sock), 4)
            served.setdefault(client, []).append(number)
            sock.sendall(frame(struct.pack(">i", number) + bytes(100)))

    return script


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["framed", "kafka"])
def test_of_clients_that_never_pause_whatever_was_read_is_answered(tmp_path: Path, plain: dict[str, Any], protocol: str) -> None:
    """First when a processor goes, then at SIGTERM. What a client does not see answered, nobody has taken."""
    served: dict[int, list[int]] = {}
    changes: dict[str, Any] = {
        "processors": 2,
        "listeners": [{**plain["listeners"][0], "protocol": protocol}],
        "drain": {"timeout": "2s", "quiet": "200ms"},
        "tap": {"directory": "tap", "rules": [{"name": "all", "on_full": "mute"}]},
    }
    windows = (1, 1, 8, 8, 100, 100)
    with before(serve_questions(served), plain, tmp_path, **changes) as proxy:
        askers = [Asker(proxy.connect("plain"), number, window) for number, window in enumerate(windows)]
        assert proxy.cli("pool", "set", "--processors", "1").returncode == 0
        proxy.process.send_signal(signal.SIGTERM)
        for asker in askers:
            asker.finish()
        assert proxy.wait() == 0
        closed = {row["peer"]: row for row in proxy.events("closed")}
    for number, (asker, window) in enumerate(zip(askers, windows, strict=True)):
        count = len(asker.answered)
        assert asker.failure is None
        assert asker.answered == served[number] == list(range(1, count + 1))
        assert 0 <= asker.asked - count <= window
        row = closed[asker.name]
        assert (row["cause"], row["frames"], row["lost"]["bytes"]) == ("drained", {"request": count, "response": count}, 0)
    assert list(read_gaps(str(tmp_path / "tap"))) == []
    assert stored(tmp_path / "tap")["request"] == sum(len(asker.answered) for asker in askers)


def test_a_signal_during_the_start_ends_it(tmp_path: Path, plain: dict[str, Any]) -> None:
    proxy = Framegate(tmp_path, plain, wait=False)
    time.sleep(0.25)
    assert proxy.stop() in (0, -signal.SIGTERM)
    assert "Traceback" not in proxy.errors
    assert [row for row in proxy.rows if row["level"] == "error"] == []


APPLICATION = """
import signal, socket, sys
address = (sys.argv[1], int(sys.argv[2]))

def ask(sock, text):
    sock.sendall(len(text).to_bytes(4, "big") + text)
    answer = b""
    while len(answer) < 4 + len(text):
        answer += sock.recv(65536) or sys.exit("the connection ended")
    assert answer[4:] == text

def end(*signal):
    ask(kept, b"the connection that it has")
    for number in range(3):
        with socket.create_connection(address, 5) as sock:
            ask(sock, b"a new one %d" % number)
    kept.close()
    sys.exit(0)

signal.signal(signal.SIGTERM, end)
kept = socket.create_connection(address, 5)
ask(kept, b"up")
print("up", flush=True)
while True:
    signal.pause()
"""  # what a pod's application does: it holds a connection, and for its own end it needs that and new ones


@contextlib.contextmanager
def application(proxy: Framegate) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-c", APPLICATION, *map(str, proxy.address("plain"))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
            yield process
        finally:
            process.kill()


def http_status(proxy: Framegate, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://{proxy.serving['health_http']}{path}", timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


HEALTH = {"address": "127.0.0.1:0", "http_address": "127.0.0.1:0"}


def test_an_application_ends_in_order_between_pre_stop_and_sigterm(tmp_path: Path, plain: dict[str, Any]) -> None:
    """As in a pod with a native sidecar: preStop of both, the application's end, and only then SIGTERM."""
    with Framegate(tmp_path, {**plain, "health": HEALTH}) as proxy, application(proxy) as process:
        proxy.cli("drain", "--no-wait", "--reason", "preStop")
        assert (http_status(proxy, "/ready"), http_status(proxy, "/healthz")) == (503, 200)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0, process.stderr and process.stderr.read()
        proxy.process.send_signal(signal.SIGTERM)
        assert proxy.wait() == 0
    causes = {row["cause"] for row in proxy.events("closed")}
    assert causes == {"peer_closed"}
    first, second, end = [row for row in proxy.rows if row["event"].startswith("drain")]
    assert (first["event"], first["accept"], first["reason"], first["connections"]) == ("drain_began", "until_stop", "preStop", 1)
    assert first["by"] == pwd.getpwuid(os.getuid()).pw_name
    assert (second["event"], second["accept"], second["by"], second["timeout_ms"]) == ("drain_began", "refuse", "signal", 2000)
    assert (end["event"], end["connections"]) == ("drain_ended", 0)


@pytest.mark.slow
def test_before_the_stop_of_a_pod_a_processor_that_starts_anew_ends_its_connections_too_and_while_control_is_stopped(
    tmp_path: Path, plain: dict[str, Any]
) -> None:
    plain["listeners"][0]["address"] = "0.0.0.0:0"  # other pods reach it
    with Framegate(tmp_path, {**plain, "drain": {"delay": "3s", "timeout": "2s", "quiet": "50ms"}}) as proxy:
        assert proxy.cli("drain", "--no-wait", "--reason", "preStop").returncode == 0
        os.kill(next(iter(proxy.processors)), signal.SIGKILL)
        until(lambda: len(proxy.events("processor_ready")) == 2, "the processor is replaced")
        with proxy.connect("plain") as client:
            assert ask(client, b"x") == b"x"
            proxy.process.send_signal(signal.SIGSTOP)
            try:
                client.settimeout(10)
                assert client.recv(1) == b""
            finally:
                proxy.process.send_signal(signal.SIGCONT)
        proxy.process.send_signal(signal.SIGTERM)
        assert proxy.wait() == 0
    assert [row["cause"] for row in proxy.events("closed")] == ["drained"]


@pytest.mark.extended
@pytest.mark.slow
def test_sigterm_during_a_drain_does_not_begin_its_time_anew(tmp_path: Path, plain: dict[str, Any]) -> None:
    """It lasts as long as a drain that is never quiet: 6 s, so that a busy machine can tell it from another one behind it."""
    with before(push, plain, tmp_path, drain={"timeout": "6s", "quiet": "200ms", "accept": "refuse"}) as proxy, proxy.connect("plain") as client:
        assert ask(client, b"go") == b"news"
        assert proxy.cli("drain", "--no-wait").returncode == 0
        proxy.wait_row(event("drain_began"))
        began = time.monotonic()
        while time.monotonic() < began + 5.0:
            client.recv(65536)
        proxy.process.send_signal(signal.SIGTERM)
        while client.recv(65536):
            pass
        client.close()
        assert proxy.wait() == 0
        assert time.monotonic() - began < 9.0, "a new 6 s from SIGTERM on would end it after 11"
        assert [row["event"] for row in proxy.rows if row["event"].startswith("drain_")] == ["drain_began", "drain_asked_again", "drain_ended"]


@pytest.mark.slow
def test_who_is_revoked_during_a_drain_ends_at_once_and_others_get_their_answers(tmp_path: Path) -> None:
    authority, go, came = Authority(tmp_path), threading.Event(), threading.Semaphore(0)
    leaves = {name: authority.leaf(name) for name in ("localhost", "alice", "bob")}
    crl = Path(authority.revocations())
    asked = struct.pack(">hhi", 16, 0, 7) + b"\0\1x"

    def hold(sock: socket.socket) -> None:
        while True:
            body = read_frame(sock)
            came.release()
            go.wait(30)
            sock.sendall(frame(body[4:8] + b"ok"))

    def client(proxy: Framegate, name: str, listener: str) -> socket.socket:
        context = ssl.create_default_context(cafile=str(authority.path))
        context.load_cert_chain(*leaves[name])
        sock = proxy.connect(listener, context if listener == "tls" else None)
        assert listener == "tls" or log_in(sock, name, "x")
        sock.sendall(frame(asked))
        assert came.acquire(timeout=20)
        return sock

    for name in ("alice", "bob"):
        run_cli("users", "add", name, "--file", str(tmp_path / "users"), text="x\n")
    tls = {"client_auth": "required", "client_ca": str(authority.path), "crl": [str(crl)]}
    common = {"address": "127.0.0.1:0", "upstream": "echo", "max_receive_size": "1MiB", "protocol": "kafka"}
    listeners = [
        {"name": "sasl", **common, "sasl": {"mechanisms": ["PLAIN"], "users": str(tmp_path / "users")}},
        {"name": "tls", **common, "tls": {**dict(zip(("certificate", "key"), leaves["localhost"], strict=True)), **tls}},
    ]
    config = {"listeners": listeners, "processors": 2, "memory_pool": {"size": "16MiB"}, "rotation": {"poll": "1h"}}
    with before(hold, config, tmp_path / "proxy", drain={"timeout": "30s", "quiet": "50ms", "accept": "refuse"}) as proxy:
        clients = {(name, listener): client(proxy, name, listener) for name in ("alice", "bob") for listener in ("sasl", "tls")}
        assert proxy.cli("drain", "--no-wait").returncode == 0
        assert proxy.cli("users", "remove", "alice", "--listener", "sasl").returncode == 0
        crl.write_bytes(Path(authority.revocations(leaves["alice"][0])).read_bytes())
        assert proxy.cli("certificates", "reload").returncode == 0
        causes = {which: proxy.ended_row(sock)["cause"] for which, sock in clients.items() if which[0] == "alice"}
        go.set()
        answers = {which: read_frame(sock) for which, sock in clients.items() if which[0] == "bob"}
        causes |= {which: proxy.ended_row(clients[which])["cause"] for which in answers}
        assert causes == {which: "session_expired" if which[0] == "alice" else "drained" for which in clients}
        assert set(answers.values()) == {asked[4:8] + b"ok"}
        assert proxy.stop() == 0
        (end,) = proxy.events("drain_ended")
        assert end["connections"] == 0
