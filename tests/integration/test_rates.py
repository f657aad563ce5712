"""One rate, kept to by two processors of a whole framegate together: while both are busy, and when one dies. Margins are wide: a rate to within 5 %
is what the benchmark shows, and the tests on a stepped clock.
"""

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.framegate import Framegate, config_before
from tests.fakes.upstream import ScriptedUpstream, frame

RATE = 1_000_000
BODY = 2_000


class Sinks:
    """Clients that send as much as goes to an upstream that counts what comes."""

    def __init__(self) -> None:
        self.received = 0
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.upstream = ScriptedUpstream(self._swallow)

    def _swallow(self, sock: socket.socket) -> None:
        while data := sock.recv(1 << 16):
            with self._lock:
                self.received += len(data)

    def send(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 15)
        sock.settimeout(None)
        self._sockets.append(sock)
        self._threads.append(threading.Thread(target=self._pump, args=(sock,)))
        self._threads[-1].start()

    def _pump(self, sock: socket.socket) -> None:
        data = frame(bytes(BODY)) * 4
        with contextlib.suppress(OSError):
            while True:
                sock.sendall(data)

    def rate(self, seconds: float) -> float:
        """Bytes a second, measured for so long."""
        begin, before = time.monotonic(), self.received
        time.sleep(seconds)
        return (self.received - before) / (time.monotonic() - begin)

    def close(self) -> None:
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        for thread in self._threads:
            thread.join(10)
        self.upstream.close()


@pytest.fixture
def sinks() -> Iterator[Sinks]:
    with contextlib.closing(Sinks()) as made:
        yield made


@pytest.mark.slow  # what passes is measured for seconds, from two seconds after a change of demand
@pytest.mark.extended
@pytest.mark.parametrize("where", ["node", "listener", "rule", "address"])
def test_two_processors_keep_to_one_rate_and_one_that_dies_leaves_its_part(tmp_path: Path, sinks: Sinks, where: str) -> None:
    rate = {"request_bytes_rate": RATE}
    own = {"listener": rate, "rule": {"rules": [{"name": "r", "networks": ["127.0.0.0/8"], **rate}]}}.get(where)
    config = {
        **config_before(sinks.upstream.address, **({} if own is None else {"limits": own})),
        "memory_pool": {"size": "256MiB"},
        "processors": 2,
        "limits": rate if where == "node" else {"per_address": rate} if where == "address" else {},
    }
    with Framegate(tmp_path, config) as proxy:
        for _ in range(6):
            sinks.send(proxy.connect("plain"))
        time.sleep(2)
        assert 0.8 * RATE <= sinks.rate(3) <= 1.2 * RATE
        assert proxy.metric("framegate_throttle_time_seconds_total", framegate_side="downstream") > 1
        assert proxy.metric("framegate_rate_throttled", framegate_rate_level=where) >= 1
        if where in ("node", "listener"):
            name = "framegate_rate_node_io_limit_bytes_per_second" if where == "node" else "framegate_rate_io_limit_bytes_per_second"
            shown = [value for key, value in proxy.metrics().items() if key.startswith(name) and 'framegate_direction="request"' in key]
            assert [round(sum(shown) / RATE, 1)] == [1.0]
        os.kill(proxy.processors[0], signal.SIGKILL)
        proxy.wait_row(lambda row: row["event"] == "processor_died")
        time.sleep(2)
        assert 0.8 * RATE <= sinks.rate(3) <= 1.2 * RATE, "the other has all of it"
