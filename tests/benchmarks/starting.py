"""Part `start`: from the start of the process to the first frame that comes back."""

import contextlib
import socket
import statistics
import time

from candidates import UnavailableError
from processes import Process, free_port
from shapes import SHAPES, Load
from stage import Stage
from variants import CANDIDATES

ROUNDS = 5
BOUND_MS = 500.0
PATIENCE_SECONDS = 20.0
FRAME = (100).to_bytes(4, "big") + bytes(range(100))


def run(stage: Stage) -> dict[str, object]:
    """Every candidate on its one core, and framegate where it may use all of them, as in a pod without a limit."""
    found: dict[tuple[str, int], list[float]] = {}
    wide = stage.on_all_cores()
    for _ in range(ROUNDS):
        for where, name in [*((stage, name) for name in stage.names), (wide, "framegate")]:
            with contextlib.suppress(UnavailableError):
                found.setdefault((name, len(where.place.cores)), []).append(_start(where, name))
    lines = []
    for (name, cores), times in found.items():
        judged = ("≤ 500 ms" if statistics.median(times) <= BOUND_MS else "ABOVE 500 ms") if name == "framegate" else ""
        lines.append((name, str(cores), f"{statistics.median(times):.0f}", f"{min(times):.0f} – {max(times):.0f}", judged))
    stage.table("process start to the first frame that came back, ms", ("candidate", "cores", "median", "low – high", "bound"), lines)
    return {"milliseconds": [{"candidate": name, "cores": cores, "rounds": times} for (name, cores), times in found.items()]}


def _start(stage: Stage, name: str) -> float:
    """Milliseconds of one start. Raises UnavailableError: the candidate cannot run here."""
    candidate = CANDIDATES[name](stage.place, Load(SHAPES[0]), free_port())
    begun = time.monotonic_ns()
    candidate.launch()
    try:
        _first_frame(candidate.wanted_port, candidate.process)
        return (time.monotonic_ns() - begun) / 1e6
    finally:
        candidate.stop()


def _first_frame(port: int, process: Process) -> None:
    """Connect as soon as possible, and have one frame echoed. Raises RuntimeError: none came back in time, or the process ended."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=5) as sock:
                sock.sendall(FRAME)
                data = b""
                while len(data) < len(FRAME) and (more := sock.recv(len(FRAME) - len(data))):
                    data += more
                if data == FRAME:
                    return
        except OSError:
            process.check()
            time.sleep(0.001)
    raise RuntimeError(f"no frame came back from {process.name}: {process.words()}")
