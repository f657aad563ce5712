"""The load generator, as a process, against an upstream that sends every frame back and counts them."""

import json
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from framegate.control.demo.generator import main
from framegate.control.demo.processes import Child
from tests.fakes.upstream import ScriptedUpstream, frame, read_frame

pytestmark = pytest.mark.slow


class Echo(ScriptedUpstream):
    """Counts what it sends back."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        super().__init__(self._echo)

    def _echo(self, sock: socket.socket) -> None:
        while True:
            data = frame(read_frame(sock))
            self.sizes.append(len(data))
            sock.sendall(data)


@pytest.fixture
def upstream() -> Iterator[Echo]:
    made = Echo()
    yield made
    made.close()


def started(folder: Path, on_row: Callable[[dict[str, Any]], None] | None = None, **options: Any) -> Child:
    command = [sys.executable, "-P", "-m", "framegate.control.demo.generator", json.dumps(options)]
    return Child("generator", command, folder / "generator.log", on_row=on_row)


@pytest.fixture
def generator(upstream: Echo, tmp_path: Path) -> Iterator[Child]:
    child = started(tmp_path, port=upstream.port, rate=2000, connections=4)
    yield child
    child.close_input()
    assert child.wait(10) == 0


def test_a_trickle_comes_before_the_load_and_in_no_histogram_of_it(upstream: Echo, tmp_path: Path) -> None:
    stats: list[dict[str, Any]] = []
    child = started(tmp_path, on_row=stats.append, port=upstream.port, rate=4000, first_rate=100, connections=2)
    deadline = time.monotonic() + 10
    while not (stats and stats[-1].get("sent", 0) >= 20) and time.monotonic() < deadline:
        time.sleep(0.01)
    trickled = stats[-1]["sent"]
    assert child.ask("load")["event"] == "reply"
    while stats[-1]["sent"] < trickled + 400 and time.monotonic() < deadline:
        time.sleep(0.01)
    child.ask("stop")
    final = child.wait_for_event("final", 20)
    assert child.wait(10) == 0
    assert final["sent"] == final["answered"] > final["paced"] >= 400
    times = final["latency"]
    trickle = final["sent"] - final["paced"]
    # what is under way on either connection when the load begins is answered in its time
    assert times["starting"]["frames"] in range(trickle - 2, trickle + 1)
    assert times["steady"]["frames"] > 0


def test_with_a_time_it_needs_no_commands_and_its_exit_code_says_whether_every_frame_was_answered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def once(sock: socket.socket) -> None:
        read_frame(sock)
        sock.close()

    for upstream, code in ((Echo(), 0), (ScriptedUpstream(once), 1)):
        with open("/dev/null") as nothing:
            monkeypatch.setattr(sys, "stdin", nothing)
            options = {"host": "localhost", "port": upstream.port, "rate": 500, "connections": 2, "seconds": 0.3}
            assert main([json.dumps(options)]) == code
        upstream.close()
        final = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert (final["event"], final["sent"] > 0) == ("final", True)
        assert (final["sent"] == final["answered"]) == (code == 0)
