"""What the proxy counts is what its log has: frames, or gaps that say how many."""

import os
import signal
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from proxy.tap import log_reader
from tests.fakes.framegate import Framegate, processor_pids
from tests.fakes.tap_files import missing, stored
from tests.fakes.tap_read import read_gaps
from tests.fakes.upstream import ScriptedUpstream, frame, read_frame, reset


@pytest.mark.slow
def test_answers_that_come_after_the_clients_reset_are_in_the_log_as_a_gap(tmp_path: Path) -> None:
    """The processor stands still meanwhile, so that it finds the reset first and the answers with it."""
    read, gone, sent = threading.Event(), threading.Event(), threading.Event()

    def slow(sock: socket.socket) -> None:
        for _ in range(10):
            read_frame(sock)
        sock.sendall(frame(b"in time"))
        read_frame(sock)
        read.set()
        assert gone.wait(10)
        sock.sendall(frame(b"too late") * 9)
        sent.set()

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
        client.sendall(frame(b"one more"))
        assert read.wait(10)
        (processor,) = processor_pids(proxy.process.pid)
        os.kill(processor, signal.SIGSTOP)
        try:
            reset(client)
            gone.set()
            assert sent.wait(10)
        finally:
            os.kill(processor, signal.SIGCONT)
        row = proxy.closed_row(name)
    upstream.close()
    (stream,) = log_reader.streams(str(tmp_path / "tap"))
    assert row["frames"] == {"request": 11, "response": 10}
    assert (stored(tmp_path / "tap", stream), missing(tmp_path / "tap", stream)) == ({"request": 11, "response": 1}, {"request": 0, "response": 9})
    assert {(gap.reason, gap.first_frame) for gap in read_gaps(str(tmp_path / "tap"))} == {("undelivered", 1)}
