"""systemd's notification protocol, against a datagram socket as the manager has one, and a whole framegate that speaks it."""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from framegate.control.notify import STOP_MARGIN_MS, Notifier
from tests.fakes.cases import each_of
from tests.fakes.framegate import Framegate


class Manager:
    """The manager's socket."""

    def __init__(self, address: str) -> None:
        self.name = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self._socket.settimeout(0)

    def told(self, timeout: float = 0) -> dict[str, str]:
        """The next datagram, as names and values; nothing when none is there in time."""
        self._socket.settimeout(timeout)
        try:
            data = self._socket.recv(4096)
        except (BlockingIOError, TimeoutError):
            return {}
        pairs = [line.partition("=") for line in data.decode().splitlines()]
        return {name: value for name, _, value in pairs}

    def fill(self) -> None:
        """Take all room that its queue has."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.connect("\0" + self.name[1:] if self.name.startswith("@") else self.name)
            with contextlib.suppress(BlockingIOError):
                while True:
                    sock.send(b"X=1")

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    made = Manager(str(tmp_path / "notify") if request.param == "path" else f"@framegate-test-{os.getpid()}-{time.monotonic_ns()}")
    yield made
    made.close()


def notifier(failures: list[str] | None = None, **environment: str) -> Notifier:
    return Notifier(environment, (failures if failures is not None else []).append)


def alive() -> bool:
    return True


def test_ready_reload_and_stop_are_told_in_the_protocols_words(manager: Manager) -> None:
    speaks = notifier(NOTIFY_SOCKET=manager.name)
    speaks.ready("serving 2 listeners", alive)
    assert manager.told() == {"READY": "1", "STATUS": "serving 2 listeners"}
    before = time.monotonic_ns() // 1000
    with speaks.reloading():
        told = manager.told()
        assert told.pop("RELOADING") == "1"
        assert before <= int(told.pop("MONOTONIC_USEC")) <= time.monotonic_ns() // 1000
        assert (told, manager.told()) == ({}, {})
    assert manager.told() == {"READY": "1"}
    speaks.stopping(30_000)
    assert manager.told() == {"STOPPING": "1", "STATUS": "draining", "EXTEND_TIMEOUT_USEC": str((30_000 + STOP_MARGIN_MS) * 1000)}


def test_a_reload_that_fails_is_over_all_the_same(manager: Manager) -> None:
    speaks = notifier(NOTIFY_SOCKET=manager.name)
    with pytest.raises(ValueError, match="no"), speaks.reloading():
        raise ValueError("no")
    assert "RELOADING" in manager.told()
    assert manager.told() == {"READY": "1"}


def test_a_stop_is_not_followed_by_ready(manager: Manager) -> None:
    speaks = notifier(NOTIFY_SOCKET=manager.name)
    with speaks.reloading():
        manager.told()
        speaks.stopping(0)
        manager.told()
    assert manager.told() == {}
    with speaks.reloading():
        assert manager.told() == {}
    assert manager.told() == {}


def test_without_a_manager_nothing_is_sent_and_nothing_fails() -> None:
    failures: list[str] = []
    speaks = notifier(failures, WATCHDOG_USEC="2000000")
    speaks.ready("serving", alive)
    with speaks.reloading():
        speaks.stopping(1)
    assert (failures, speaks.interval_s) == ([], 0.0)


def test_the_variables_leave_the_environment() -> None:
    environment = {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid()), "HOME": "/"}
    assert Notifier(environment, [].append).interval_s == 1.5
    assert environment == {"HOME": "/"}


@each_of(
    ("usec", "pid", "expected"),
    [("1", "", 5e-7), ("0", "", 0.0), ("", "", 0.0), ("-5", "", 0.0), ("soon", "", 0.0), ("2000000", "1", 0.0), ("2000000", "x", 0.0)],
)
def test_keep_alive_messages_are_sent_if_they_are_asked_of_this_process(usec: str, pid: str, expected: float) -> None:
    assert notifier(NOTIFY_SOCKET="/x", WATCHDOG_USEC=usec, WATCHDOG_PID=pid).interval_s == expected


def test_keep_alive_messages_are_sent_while_framegate_is_alive(manager: Manager) -> None:
    async def scenario() -> None:
        speaks = notifier(NOTIFY_SOCKET=manager.name, WATCHDOG_USEC="10000")
        lives, asked = [True], [0]

        def is_alive() -> bool:
            asked[0] += 1
            return lives[0]

        async def look(times: int) -> None:
            until = asked[0] + times
            async with asyncio.timeout(5):
                while asked[0] < until:
                    await asyncio.sleep(0.001)

        speaks.ready("serving", is_alive)
        assert "READY" in manager.told()
        await look(3)
        assert manager.told() == {"WATCHDOG": "1"}
        lives[0] = False
        while manager.told():
            pass
        await look(3)
        assert manager.told() == {}
        lives[0] = True
        await look(2)
        assert manager.told() == {"WATCHDOG": "1"}
        speaks.ready("serving", is_alive)  # a second one starts no second row of signs
        while manager.told():
            pass
        before = asked[0]
        await look(2)
        assert len([None for _ in range(50) if manager.told()]) <= asked[0] - before + 1

    asyncio.run(scenario())


@each_of(("address", "words"), [("/nowhere/notify", "No such file"), ("vsock:2:9", "neither a path"), ("@" + "x" * 200, "too long")])
def test_a_manager_that_cannot_be_reached_is_reported_once(address: str, words: str) -> None:
    failures: list[str] = []
    speaks = notifier(failures, NOTIFY_SOCKET=address)
    speaks.ready("serving", alive)
    speaks.stopping(0)
    assert len(failures) == 1
    assert failures[0].startswith("READY=1 could not be told to ")
    assert words in failures[0]


def test_a_manager_that_does_not_read_blocks_for_a_bounded_time_and_is_reported_again_later(tmp_path: Path) -> None:
    failures: list[str] = []
    manager = Manager(str(tmp_path / "notify"))
    speaks = notifier(failures, NOTIFY_SOCKET=manager.name)
    manager.fill()
    begun = time.monotonic()
    speaks.stopping(0)
    assert time.monotonic() - begun < 2
    assert len(failures) == 1
    while manager.told():
        pass
    speaks.stopping(0)
    assert "STOPPING" in manager.told()
    manager.close()
    speaks.stopping(0)
    assert len(failures) == 2


@pytest.mark.skipif(shutil.which("systemd-notify") is None, reason="systemd-notify is not installed")
def test_systemds_own_program_says_the_same(manager: Manager) -> None:
    environment = {**os.environ, "NOTIFY_SOCKET": manager.name}
    subprocess.run(["systemd-notify", "--no-block", "--ready", "--status=serving"], env=environment, timeout=10, check=True)
    theirs = manager.told(5)
    notifier(NOTIFY_SOCKET=manager.name).ready("serving", alive)
    assert theirs == manager.told(5) == {"READY": "1", "STATUS": "serving"}


CONFIG: dict[str, Any] = {"listeners": [{"name": "plain", "address": "127.0.0.1:0", "upstream": "echo"}]}


@pytest.mark.slow
def test_a_framegate_tells_its_manager_how_it_is(tmp_path: Path) -> None:
    """Up to serving, a reload, and down: a whole start and stop."""
    manager = Manager(str(tmp_path / "notify"))
    config = {**CONFIG, "upstreams": [{"name": "echo", "endpoints": ["127.0.0.1:1"]}]}
    environment = {"NOTIFY_SOCKET": manager.name, "WATCHDOG_USEC": "200000"}
    with Framegate(tmp_path / "run", config, environment=environment) as framegate:
        assert manager.told(5) == {"READY": "1", "STATUS": "serving plain"}
        assert manager.told(5) == {"WATCHDOG": "1"}
        (child,) = Path(f"/proc/{framegate.process.pid}/task/{framegate.process.pid}/children").read_text().split()[:1]
        assert b"NOTIFY_SOCKET" not in Path(f"/proc/{child}/environ").read_bytes()
        framegate.process.send_signal(signal.SIGHUP)
        framegate.wait_row(lambda row: row["event"] == "reloaded")
        words: list[str] = []
        while len(words) < 2:
            words += [name for name in manager.told(5) if name in ("RELOADING", "READY")]
        assert words == ["RELOADING", "READY"]
        framegate.process.send_signal(signal.SIGTERM)
        while (told := manager.told(5)) == {"WATCHDOG": "1"}:
            pass
        assert told == {"STOPPING": "1", "STATUS": "draining", "EXTEND_TIMEOUT_USEC": str((2_000 + STOP_MARGIN_MS) * 1000)}
        assert framegate.process.wait(10) == 0
    manager.close()
