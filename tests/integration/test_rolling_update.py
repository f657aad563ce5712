"""A rolling update of two replicas behind endpoints that are late: no request is lost that a client sent before its connection's end was announced.

The clients do not try again. Each looks whether its connection has ended before it sends, as event loops do.
"""

import contextlib
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.framegate import ROOT, Framegate, config_before
from tests.fakes.upstream import ScriptedUpstream, frame, read_frame

DELAY_S, TIMEOUT_S, LATE_S = 0.5, 4.0, 0.8
DRAIN = {"delay": "500ms", "timeout": "4s", "quiet": "300ms"}


def answer_in_order(sock: socket.socket) -> None:
    """Answers each request by its number, as Kafka would, after 2 ms."""
    while True:
        body = read_frame(sock)
        time.sleep(0.002)
        sock.sendall(frame(body[4:8] + bytes(50)))


class Replica:
    """A pod: an application, and framegate in front of it."""

    def __init__(self, folder: Path, protocol: str) -> None:
        self._application = ScriptedUpstream(answer_in_order)
        self._proxy = Framegate(folder, {**config_before(self._application.address, protocol=protocol, address="0.0.0.0:0"), "drain": DRAIN})
        self.address = ("127.0.0.1", self._proxy.address("plain")[1])  # where its clients connect
        self.causes: set[str] = set()  # why its connections ended, once it is over

    def terminate(self) -> None:
        """As the kubelet does: the hooks of both containers, the application's end, framegate's."""
        hook = [sys.executable, "-P", "-m", "framegate.control.pre_stop", str(self._proxy.folder / "admin.sock")]
        subprocess.run(hook, cwd=ROOT, timeout=30, check=True)
        time.sleep(DELAY_S + TIMEOUT_S)
        self.close()

    def close(self) -> None:
        self._application.close()
        self._proxy.process.send_signal(signal.SIGTERM)
        assert self._proxy.wait() == 0
        self.causes = {row["cause"] for row in self._proxy.events("closed")}


class Client:
    """Asks with up to ``window`` open requests, and pauses after each answer.

    Attributes:
        sent, answered, lost: requests; lost ones were not answered when their connection ended.
        ends: how many connections ended.
    """

    def __init__(self, window: int, pause_s: float) -> None:
        self._window, self._pause_s = window, pause_s
        self.sent = self.answered = self.lost = self.ends = 0
        self._sock: socket.socket | None = None
        self._data = b""
        self._not_before = 0.0

    def step(self, addresses: list[tuple[str, int]], selector: selectors.DefaultSelector) -> None:
        """Read what is here, and send what may be sent."""
        if self._sock is None:
            with contextlib.suppress(OSError):  # this replica is gone, as late endpoints do not know yet
                self._sock = socket.create_connection(addresses[self.ends % len(addresses)], 5)
                self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._sock.setblocking(False)
                selector.register(self._sock, selectors.EVENT_READ)
            return
        if self._ended(self._sock):
            selector.unregister(self._sock)
            self._sock.close()
            self.lost += self.sent - self.answered - self.lost
            self.ends += 1
            self._sock, self._data = None, b""
        elif time.monotonic() >= self._not_before:
            for _ in range(self._window - (self.sent - self.answered - self.lost)):
                self.sent += 1
                self._sock.send(frame(struct.pack(">hhiih", 3, 9, self.sent, 0, -1) + bytes(50)))

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()

    def _ended(self, sock: socket.socket) -> bool:
        try:
            while data := sock.recv(1 << 16):
                self._data += data
                while len(self._data) >= 58:
                    self._data = self._data[58:]
                    self.answered += 1
                    self._not_before = time.monotonic() + self._pause_s
        except BlockingIOError:
            return False
        except ConnectionError:
            return True
        return True


@contextlib.contextmanager
def clients(made: list[Client], addresses: list[tuple[str, int]]) -> Iterator[None]:
    """Clients that ask in a thread until the end of the block, and then get what they are owed."""
    over = threading.Event()

    def ask() -> None:
        with selectors.DefaultSelector() as selector:
            while not over.is_set():
                for client in made:
                    client.step(list(addresses), selector)
                selector.select(0.001)
        for client in made:
            client.close()

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(10)


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("protocol", ["kafka", "framed"])
def test_a_rolling_update_loses_no_request(tmp_path: Path, protocol: str) -> None:
    replicas = [Replica(tmp_path / str(number), protocol) for number in range(2)]
    endpoints = [replica.address for replica in replicas]
    made = [Client(window, pause_s) for window in (1, 5) for pause_s in (0.0, 0.01, 0.05)]
    with clients(made, endpoints):
        time.sleep(1)
        for number, old in enumerate(replicas[:2]):
            replicas.append(Replica(tmp_path / str(2 + number), protocol))
            endpoints.append(replicas[-1].address)
            late = threading.Timer(LATE_S, endpoints.remove, [old.address])
            late.start()
            old.terminate()
            late.join()
    for replica in replicas[2:]:
        replica.close()
    assert [(client.lost, client.ends > 0) for client in made] == [(0, True)] * len(made)
    causes = [replica.causes for replica in replicas[:2]]  # by chance, nobody may have been connected to one of them
    assert set().union(*causes) == {"drained"}, causes
