"""What ``framegate init`` prints works as it is printed: the proxy starts, a frame passes and its answer is shown, the proxy ends."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.framegate import ROOT


def run(folder: Path, *command: str) -> "subprocess.CompletedProcess[str]":
    """In a shell that finds this framegate and this Python by the names that are printed."""
    names = folder / "bin"
    names.mkdir(exist_ok=True)
    for name, line in {"framegate": "-P -m framegate.control.cli", "python3": ""}.items():
        (names / name).write_text(f'#!/bin/sh\nexec {sys.executable} {line} "$@"\n')
        (names / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{names}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.slow
def test_the_commands_that_are_printed_lead_to_a_frame_that_passes(tmp_path: Path) -> None:
    made = run(tmp_path, "framegate", "init", "demo")
    assert (made.returncode, made.stderr) == (0, "")
    done = run(tmp_path, "bash", "-c", f"{made.stdout}wait")
    assert (done.returncode, done.stdout, done.stderr) == (0, "hello\n", "")
    rows = [json.loads(line) for line in (tmp_path / "demo/framegate.log").read_text().splitlines()]
    closed = [row for row in rows if row["event"] == "closed"]
    assert [(row["principal"], row["listener"]) for row in closed] == [("CN=framegate demo client", "clients")]
    assert (rows[-1]["level"], [row for row in rows if row["level"] in ("warning", "error")]) == ("info", [])
