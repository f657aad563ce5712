"""The programs that make the load: started, read, and ended in any case."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from processes import Process

__all__ = ["VoidRoundError", "event", "measured", "started"]


class VoidRoundError(Exception):
    """A round whose figures mean nothing: bytes came back changed, were lost, or were not counted."""


@contextmanager
def started(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A program of `native/`, which must end with success soon after the block. Raises VoidRoundError: it did not."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
        assert process.stdin is not None
        process.stdin.close()
        if process.wait(30) != 0:
            raise VoidRoundError(f"the load generator ended with {process.returncode}: {process.stderr.read() if process.stderr else ''}")
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def event(process: subprocess.Popen[str], name: str) -> dict[str, Any]:
    """The next line of the program, which must be this event."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise VoidRoundError(f"the load generator ended before it was {name}: {process.stderr.read() if process.stderr else ''}")
    row: dict[str, Any] = json.loads(line)
    if row["event"] != name:
        raise VoidRoundError(f"the load generator said {line}")
    return row


def measured(candidate: Process, command: list[str]) -> tuple[dict[str, Any], dict[str, Any], float]:
    """Run a program of `native/` against a candidate: its rows `measured` and `done`, and the share of a core that the candidate used meanwhile."""
    with started(command) as process:
        event(process, "measuring")
        cpu_ns, wall_ns = candidate.cpu_ns(), time.monotonic_ns()
        row = event(process, "measured")
        busy = (candidate.cpu_ns() - cpu_ns) / (time.monotonic_ns() - wall_ns)
        done = event(process, "done")
    candidate.check()
    return row, done, busy
