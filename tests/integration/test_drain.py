"""SIGTERM: no new connections, answers under way arrive, everything ends in order; the deadline and a second signal end it anyway."""

import contextlib
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.framegate import Framegate, Row
from tests.fakes.upstream import ScriptedUpstream, frame, read_frame


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
    upstream = ScriptedUpstream(script)
    try:
        with Framegate(folder, {**config, "upstreams": [{"name": "echo", "endpoints": [upstream.address]}], **changes}) as proxy:
            yield proxy
    finally:
        upstream.close()


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
        proxy.wait_row(event("draining"))
        with pytest.raises(ConnectionRefusedError):
            proxy.connect("plain")
        assert read_frame(client) == b"question"
        assert client.recv(1) == b""
        client.close()
        assert proxy.wait() == 0
        (closed,) = [row for row in proxy.rows if row["event"] == "closed"]
        assert closed["cause"] == "drained"
        assert closed["frames"] == {"request": 1, "response": 1}
        assert proxy.rows[-1]["event"] == "stopped"


@pytest.mark.slow
def test_what_is_never_quiet_ends_at_the_deadline(tmp_path: Path, plain: dict[str, Any]) -> None:
    with before(push, plain, tmp_path, drain={"timeout": "500ms", "quiet": "200ms"}) as proxy, proxy.connect("plain") as client:
        client.sendall(frame(b"go"))
        assert read_frame(client) == b"news"
        began = time.monotonic()
        proxy.process.send_signal(signal.SIGTERM)
        while client.recv(65536):
            pass
        client.close()
        assert proxy.wait() == 0
        assert 0.4 < time.monotonic() - began < 5
        assert [row["cause"] for row in proxy.rows if row["event"] == "closed"] == ["drain_timeout"]


@pytest.mark.slow
def test_a_second_signal_ends_at_once(tmp_path: Path, plain: dict[str, Any]) -> None:
    with before(push, plain, tmp_path, drain={"timeout": "1m", "quiet": "1s"}) as proxy, proxy.connect("plain") as client:
        client.sendall(frame(b"go"))
        assert read_frame(client) == b"news"
        proxy.process.send_signal(signal.SIGTERM)
        proxy.wait_row(event("draining"))
        began = time.monotonic()
        proxy.process.send_signal(signal.SIGINT)
        assert proxy.wait() == 1
        assert time.monotonic() - began < 20


def test_a_signal_during_the_start_ends_it(tmp_path: Path, plain: dict[str, Any]) -> None:
    proxy = Framegate(tmp_path, plain, wait=False)
    time.sleep(0.25)
    assert proxy.stop() in (0, -signal.SIGTERM)
    assert "Traceback" not in proxy.errors
    assert [row for row in proxy.rows if row["level"] == "error"] == []


@pytest.mark.slow
def test_drain_over_the_api_leaves_the_process_up(tmp_path: Path, plain: dict[str, Any]) -> None:
    with Framegate(tmp_path, plain) as proxy, proxy.connect("plain") as client:
        client.sendall(frame(b"hello"))
        assert read_frame(client) == b"hello"
        drained = proxy.cli("drain")
        assert drained.returncode == 0, drained.stderr
        assert client.recv(1) == b""
        assert proxy.closed_row(client)["cause"] == "drained"
        assert proxy.process.poll() is None
        with pytest.raises(ConnectionRefusedError):
            proxy.connect("plain")
