"""framegate.control.post_start, as the kubelet runs it."""

import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from framegate.control.service.probes import answer_probe
from framegate.control.status import Health
from tests.fakes.framegate import ROOT

HOOK = [sys.executable, "-P", "-m", "framegate.control.post_start"]
MOST_CPU_S = 0.05
STARTING = Health(started=False, alive=True, ready=False, problems=("framegate is starting",))
STARTED = Health(started=True, alive=True, ready=False, problems=("no endpoint of the upstream app passes its checks",))


def hook(host: str, port: int, seconds: int) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*HOOK, host, str(port), str(seconds)], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


@contextmanager
def serving(host: str, answers: Sequence[Health | None]) -> Iterator[int]:
    """The port of a server that answers one request after the other; None: it closes the connection."""
    with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as server:

        def serve() -> None:
            for health in answers:
                client, _ = server.accept()
                with client:
                    head = client.recv(4096)
                    if health is not None:
                        client.sendall(answer_probe(head, health))

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        thread.join(10.0)
        assert not thread.is_alive(), "each answer was asked for"


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_it_ends_when_framegate_has_started_though_it_is_not_ready_and_is_cheap(host: str) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with serving(host, [None, *[STARTING] * 8, STARTED]) as port:
        result = hook(host, port, 60)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < MOST_CPU_S


@pytest.mark.parametrize(
    ("answer", "reason"), [(STARTING, "not started: framegate is starting"), (None, "the connection was closed without an answer")]
)
def test_when_its_time_is_over_it_fails_with_the_last_reason(answer: Health | None, reason: str) -> None:
    with serving("127.0.0.1", [answer]) as port:
        result = hook("127.0.0.1", port, 0)
    assert (result.returncode, result.stderr) == (1, f"framegate does not serve after 0 s: 127.0.0.1 port {port}: {reason}\n")


def test_a_port_on_which_nobody_listens_is_asked_until_the_time_is_over() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    result = hook("127.0.0.1", port, 1)
    assert (result.returncode, "Connection refused" in result.stderr) == (1, True)
