"""The programs that make the load: started, listened to, and ended whatever happens."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["VoidRoundError", "event", "started"]


class VoidRoundError(Exception):
    """A round whose figures mean nothing: bytes came back changed, were lost, or were not counted."""


@contextmanager
def started(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A program of `native/`; it must end well by itself, soon after what it does inside is done.

    Raises:
        VoidRoundError: it did not.
    """
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
