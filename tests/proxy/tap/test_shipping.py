"""The shipper's process: messages, back-off, the end."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from framegate.proxy.tap import shipping
from framegate.proxy.tap.consumer import claim_consumer
from framegate.proxy.tap.ledger import read_ledger
from framegate.proxy.tap.shipping import Shipping
from tests.fakes.kept_tap import in_segments
from tests.fakes.shipped import ShippedTap


class Control:
    """Control's end of the socket."""

    def __init__(self) -> None:
        self.socket, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(10)

    def tell(self, **streams: tuple[int, int]) -> None:
        facts = {name.replace("_", "."): list(told) for name, told in streams.items()}
        self.socket.send(json.dumps({"at_ns": time.time_ns(), "at_s": time.monotonic(), "streams": facts}).encode())

    def heard(self) -> str:
        data = self.socket.recv(10_000)
        return str(json.loads(data)["error"])

    def close(self) -> None:
        self.socket.close()
        self.theirs.close()


@pytest.fixture
def control() -> Iterator[Control]:
    made = Control()
    yield made
    made.close()


def options(edge: ShippedTap, **others: Any) -> dict[str, Any]:
    return {"directory": str(edge.folder), "url": edge.root, "interval_ms": 1000, "bandwidth": 0, **others}


def test_the_process_ships_until_control_has_gone_and_then_what_is_left(edge: ShippedTap, control: Control) -> None:
    processor = in_segments(edge.tap, 3)
    control.socket.send(json.dumps(options(edge)).encode())
    command = [sys.executable, "-P", "-m", "framegate.proxy.tap.shipping"]
    with subprocess.Popen(command, stdin=control.theirs.fileno()) as process:
        assert control.heard() == ""
        assert read_ledger(edge.root).shipped is not None
        assert os.getpriority(os.PRIO_PROCESS, process.pid) >= 10
        edge.tap.end(processor)
        edge.leave()
        control.theirs.close()
        control.socket.close()
        assert process.wait(10) == 0
    assert edge.shipped.stopped
    assert edge.shipped.streams[processor.stream][0] == read_ledger(str(edge.folder)).streams[processor.stream].end


def test_without_control_s_first_message_it_ends(control: Control) -> None:
    control.socket.close()
    assert subprocess.run([sys.executable, "-P", "-m", "framegate.proxy.tap.shipping"], stdin=control.theirs.fileno(), check=False).returncode == 0


def test_a_failure_is_said_once_and_tried_again_later_and_later(
    edge: ShippedTap, control: Control, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    waits: list[float] = []
    now = [1000.0]
    monkeypatch.setattr(shipping.time, "monotonic", lambda: now[-1])
    made = Shipping(control.theirs, options(edge, url=f"file://{tmp_path}/file/below"))

    def receive(wait_s: float) -> None:
        waits.append(round(wait_s))
        now.append(now[-1] + wait_s)
        made._ended = len(waits) == 8

    monkeypatch.setattr(made, "_receive", receive)
    monkeypatch.setattr(shipping, "LAST_S", 0.0)
    made.run()
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]
    assert "Not a directory" in control.heard()
    control.socket.setblocking(False)
    with pytest.raises(BlockingIOError):
        control.heard()


def test_another_shipper_of_the_directory_is_waited_for(edge: ShippedTap, control: Control) -> None:
    made = Shipping(control.theirs, options(edge))
    with claim_consumer(str(edge.folder), "ship"):
        assert not made._attempt(last=False)
    assert "another process reads under the name ship" in control.heard()
    assert made._attempt(last=False)
    assert control.heard() == "", "it works again"
    made._claim.close()


def test_only_the_last_message_counts_and_the_first_wakes_it(edge: ShippedTap, control: Control) -> None:
    made = Shipping(control.theirs, options(edge))
    control.tell(edge_0_b0=(1, 0))
    control.tell(edge_0_b0=(2, 3))
    made._receive(60)
    assert made._told is not None
    assert made._told.streams["edge.0.b0"] == (2, 3)
    threading.Timer(0.05, control.socket.close).start()
    made._receive(0)
    assert made._ended
