"""Processes of the candidates and of the load: started on cores, measured with their children, and ended in any case."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

START_SECONDS = 20.0
SAMPLE_SECONDS = 0.05
FORGET_PEAK = "5"  # Written to clear_refs: the kernel's own mark of the highest resident size begins anew


def free_port() -> int:
    """A free port, for programs that do not report which one they took."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def wait_for_port(port: int, process: "Process") -> None:
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


@dataclass(slots=True)
class Peak:
    """MiB of all processes of a candidate together; known when watching ends."""

    resident: float = 0.0  # the sum of the highest resident sizes by the kernel's own mark: at least what was resident at any moment
    proportional: float = 0.0  # the highest of proportional sizes (what processes share counts once), looked at twenty times a second


@contextlib.contextmanager
def watched(process: Process) -> Iterator[Peak]:
    """Watch a candidate until the block ends; it neither starts nor ends processes meanwhile."""
    pids = process.tree()
    for pid in pids:
        Path(f"/proc/{pid}/clear_refs").write_text(FORGET_PEAK)
    peak = Peak(proportional=process.total_memory().pss)
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(SAMPLE_SECONDS):
            peak.proportional = max(peak.proportional, process.total_memory().pss)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield peak
    finally:
        stop.set()
        thread.join()
    peak.resident = sum(_highest(pid) for pid in pids)


def _highest(pid: int) -> float:
    """MiB; 0 when the process has ended."""
    try:
        words = Path(f"/proc/{pid}/status").read_text().split()
    except OSError:
        return 0.0
    return int(words[words.index("VmHWM:") + 1]) / 1024


# --- the programs that make the load ---


def load_command(program: Path, core: int, port: int, options: Mapping[str, object], *more: str) -> list[str]:
    """The command that runs a program of `native/` on a core against a port: `options` by name, with `_` for `-`."""
    words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    return ["taskset", "-c", str(core), str(program), "--connect", f"127.0.0.1:{port}", *words, *more]


class VoidRoundError(Exception):
    """A round whose figures mean nothing: bytes came back changed, were lost, or were not counted."""


@contextlib.contextmanager
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
