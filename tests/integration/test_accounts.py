"""What the proxy counts is what its log has: frames, or gaps that say how many."""

import socket
import threading
from pathlib import Path
from typing import Any

from proxy.tap import log_reader
from tests.fakes.framegate import Framegate
from tests.fakes.upstream import ScriptedUpstream, frame, read_frame, reset


def test_answers_that_come_after_the_clients_reset_are_in_the_log_as_a_gap(tmp_path: Path) -> None:
    gone = threading.Event()

    def slow(sock: socket.socket) -> None:
        for _ in range(10):
            read_frame(sock)
        sock.sendall(frame(b"in time"))
        assert gone.wait(10)
        for _ in range(9):
            sock.sendall(frame(b"too late"))

    upstream = ScriptedUpstream(slow)
    config: dict[str, Any] = {
        "memory_pool": {"size": "8MiB"},
        "listeners": [{"name": "plain", "address": "127.0.0.1:0", "upstream": "slow", "max_receive_size": "1MiB"}],
        "upstreams": [{"name": "slow", "endpoints": [upstream.address]}],
        "tap": {"directory": "tap", "rules": [{"name": "all"}]},
    }
    with Framegate(tmp_path, config) as proxy:
        client = proxy.connect("plain")
        name = "{}:{}".format(*client.getsockname()[:2])
        client.sendall(frame(b"question") * 10)
        assert read_frame(client) == b"in time"
        reset(client)
        gone.set()
        row = proxy.closed_row(name)
    upstream.close()
    (stream,) = log_reader.streams(str(tmp_path / "tap"))
    totals = log_reader.stream_totals(str(tmp_path / "tap"), stream)
    assert row["frames"] == {direction: totals.stored[direction] + totals.missing[direction] for direction in ("request", "response")}
    assert row["frames"]["request"] == totals.stored["request"] == 10
    undelivered = [gap for gap in log_reader.read_gaps(str(tmp_path / "tap")) if gap.frames]
    assert {(gap.reason, gap.direction) for gap in undelivered} == {("undelivered", "response")}
    assert sum(gap.frames for gap in undelivered) == totals.missing["response"] >= 1
