"""framegate.control.pre_stop, as the kubelet runs it."""

import os
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.framegate import ROOT

HOOK = [sys.executable, "-P", "-m", "framegate.control.pre_stop"]
MOST_CPU_S = 0.05


def hook(path: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*HOOK, str(path)], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)


def test_the_process_that_listens_gets_the_signal_and_the_hook_is_cheap(tmp_path: Path) -> None:
    before, came = resource.getrusage(resource.RUSAGE_CHILDREN), []
    former = signal.signal(signal.SIGUSR1, lambda number, _: came.append(number))
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(tmp_path / "admin.sock"))
            server.listen()
            results = [hook(tmp_path / "admin.sock") for _ in range(3)]
    finally:
        signal.signal(signal.SIGUSR1, former)
    assert [(result.returncode, result.stderr) for result in results] == [(0, "")] * 3
    assert came == [signal.SIGUSR1] * 3
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / 3 < MOST_CPU_S


@pytest.mark.parametrize("kind", ["absent", "nobody listens"])
def test_where_nobody_listens_the_hook_fails_with_the_path(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "admin.sock"
    if kind != "absent":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
    result = hook(path)
    assert (result.returncode, os.fspath(path) in result.stderr) == (1, True)
    assert result.stderr.startswith("framegate is not told to drain: ")
