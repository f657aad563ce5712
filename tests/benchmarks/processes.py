"""Processes: started on cores, measured with their children, and ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Memory", "Process", "free_port", "wait_for_port"]

START_SECONDS = 20.0


def free_port() -> int:
    """A free port, for programs that do not report which one they took."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def wait_for_port(port: int, process: Process) -> None:
    """Wait until the process accepts connections. Raises RuntimeError: it ended, or did not listen in time."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        process.check()
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError(f"{process.name} does not listen on {port}: {process.words()}")


class Memory(NamedTuple):
    """MiB: resident, and proportional (what processes share is counted once)."""

    rss: float
    pss: float


class Process:
    """A program pinned to cores, its output in a file.

    Args:
        name: for messages and the output's file.
        command: what is run.
        cores: where it, and whatever it starts, may run.
        folder: where its output goes.
        environment: added to ours.
    """

    def __init__(self, name: str, command: Sequence[str], cores: Sequence[int], folder: Path, environment: dict[str, str] | None = None) -> None:
        self.name = name
        self.output = folder / f"{name}.log"
        pinned = ["taskset", "-c", ",".join(map(str, cores)), *command]
        with self.output.open("wb") as log:
            self._process = subprocess.Popen(
                pinned,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Of the program itself."""
        return self._process.pid

    def words(self) -> str:
        """The end of its output."""
        return self.output.read_text(errors="replace")[-2000:]

    def check(self) -> None:
        """Raises RuntimeError when it has ended."""
        if self._process.poll() is not None:
            raise RuntimeError(f"{self.name} ended with {self._process.returncode}: {self.words()}")

    def wait_for_row(self, key: str) -> dict[str, Any]:
        """The first JSON line of its output that has this key."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            self.check()
            for line in self.output.read_text(errors="replace").splitlines(keepends=True):
                row = json.loads(line) if line.startswith("{") and line.endswith("}\n") else {}
                if key in row:
                    return dict(row)
            time.sleep(0.02)
        raise RuntimeError(f"{self.name} never said {key}: {self.words()}")

    def tree(self) -> list[int]:
        """Its process and every descendant, as they are now."""
        parents: dict[int, list[int]] = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents.setdefault(int(fields[1]), []).append(int(path.parent.name))
        found = [self.pid]
        for pid in found:
            found += parents.get(pid, [])
        return found

    def cpu_ns(self) -> int:
        """Processor time of the whole tree, threads that ended included (CLOCK_PROCESS_CPUTIME_ID of each process)."""
        total = 0
        for pid in self.tree():
            with contextlib.suppress(OSError):  # it ended meanwhile
                total += time.clock_gettime_ns(((~pid) << 3) | 2)
        return total

    def memory(self) -> dict[str, Memory]:
        """Of each process of the tree, by pid and name."""
        result: dict[str, Memory] = {}
        for pid in self.tree():
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            except OSError:
                continue  # it ended meanwhile
            sizes = {line.partition(":")[0]: int(line.split()[1]) / 1024 for line in lines[1:]}
            result[f"{pid} {words[:60].strip()}"] = Memory(sizes.get("Rss", 0.0), sizes.get("Pss", 0.0))
        return result

    def total_memory(self) -> Memory:
        """Of the whole tree."""
        found = self.memory().values()
        return Memory(sum(item.rss for item in found), sum(item.pss for item in found))

    def stop(self) -> None:
        """SIGTERM, and after three seconds SIGKILL, to it and to what it started."""
        tree = self.tree()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(3)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for pid in tree[1:]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
