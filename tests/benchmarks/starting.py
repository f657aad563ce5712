"""Part `start`: from the start of the process to the first frame that comes back."""

from __future__ import annotations

import socket
import statistics
import time
from dataclasses import asdict, dataclass

from candidates import UnavailableError
from processes import Process, free_port
from shapes import SHAPES, Load
from stage import Stage
from variants import CANDIDATES

__all__ = ["run"]

ROUNDS = 5
BOUND_MS = 500.0
PATIENCE_SECONDS = 20.0
FRAME = (100).to_bytes(4, "big") + bytes(range(100))


@dataclass(frozen=True, slots=True)
class Started:
    """One start."""

    candidate: str
    cores: int
    number: int
    milliseconds: float


def run(stage: Stage) -> dict[str, object]:
    """Every candidate on its one core, and framegate where it may use all of them, as in a pod without a limit."""
    rows = []
    for number in range(ROUNDS):
        for name in stage.names:
            rows += _start(stage, name, number)
        rows += _start(stage.on_all_cores(), "framegate", number)
    lines = []
    for name, cores in dict.fromkeys((row.candidate, row.cores) for row in rows):
        times = [row.milliseconds for row in rows if (row.candidate, row.cores) == (name, cores)]
        judged = ("≤ 500 ms" if statistics.median(times) <= BOUND_MS else "ABOVE 500 ms") if name == "framegate" else ""
        lines.append((name, str(cores), f"{statistics.median(times):.0f}", f"{min(times):.0f} – {max(times):.0f}", judged))
    stage.table("process start to the first frame that came back, ms", ("candidate", "cores", "median", "low – high", "bound"), lines)
    return {"rounds": [asdict(row) for row in rows]}


def _start(stage: Stage, name: str, number: int) -> list[Started]:
    """One start; nothing for a candidate that cannot run here."""
    candidate = CANDIDATES[name](stage.place, Load(SHAPES[0]), free_port())
    begun = time.monotonic_ns()
    try:
        candidate.launch()
    except UnavailableError:
        return []
    try:
        _first_frame(candidate.wanted_port, candidate.process)
        taken = time.monotonic_ns() - begun
    finally:
        candidate.stop()
    return [Started(name, len(stage.place.cores), number, taken / 1e6)]


def _first_frame(port: int, process: Process) -> None:
    """Connect as soon as that is possible, and have one frame echoed.

    Raises:
        RuntimeError: nothing came back in time, or the process ended.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=5) as sock:
                sock.sendall(FRAME)
                if _received(sock) == FRAME:
                    return
        except OSError:
            process.check()
            time.sleep(0.001)
    raise RuntimeError(f"no frame came back from {process.name}: {process.words()}")


def _received(sock: socket.socket) -> bytes:
    data = b""
    while len(data) < len(FRAME) and (more := sock.recv(len(FRAME) - len(data))):
        data += more
    return data
