"""One round: a load against one candidate, with its processor time in the time in which frames are counted."""

import time
from dataclasses import dataclass
from pathlib import Path

from candidates import Candidate
from processes import VoidRoundError, load_command, measured
from shapes import Load

OPEN_LOOP_QUEUE_BYTES = 16 << 20


@dataclass(slots=True)
class Round:
    # candidate, protocol, shape: names
    candidate: str
    protocol: str
    shape: str
    number: int  # of the round, from 0
    rate: float  # frames offered per second; 0 for the closed loop
    frames: int  # whole frames that came back, checked, while it was measured
    seconds: float  # how long it was measured
    cpu_us_per_frame: float  # processor time of every process of the candidate, per echoed frame
    busy: float  # share of its core that the candidate used
    # p50_us, p99_us, p999_us, max_us: of the time from due (closed loop: sent) to back
    p50_us: float
    p99_us: float
    p999_us: float
    max_us: float = 0.0

    @property
    def frames_per_second(self) -> float:
        return self.frames / self.seconds


@dataclass(frozen=True, slots=True)
class Generator:
    program: Path  # the compiled C program
    core: int  # where it runs
    warm_up: float  # seconds before frames count
    seconds: float  # in which they count

    def run(self, candidate: Candidate, load: Load, number: int, rate: float = 0.0) -> Round:
        """Drive one candidate for one round. Raises VoidRoundError: the generator found a difference, or the candidate's own counters disagree."""
        shape = load.shape
        in_flight = shape.in_flight if rate == 0 else max(shape.in_flight, OPEN_LOOP_QUEUE_BYTES // (shape.size + 4) // shape.connections)
        options = {"size": shape.size, "connections": shape.connections, "in_flight": in_flight}
        times = {"warm_up": self.warm_up, "seconds": self.seconds, "rate": rate}
        command = load_command(self.program, self.core, candidate.port, {**options, **times}, *["--tls"] * load.downstream_tls)
        before = candidate.frames()
        row, done, busy = measured(candidate.process, command)
        compare_counters(candidate, before, int(done["sent"]))
        frames, seconds = row["frames"], row["seconds"]
        if not frames:
            raise VoidRoundError(f"{candidate.name}: no frame came back in {seconds} s")
        found = (row["p50_us"], row["p99_us"], row["p999_us"], row["max_us"])
        cpu_us = busy * seconds * 1e6 / frames
        return Round(candidate.name, load.protocol, shape.name, number, rate, frames, seconds, cpu_us, busy, *found)


def compare_counters(candidate: Candidate, before: int | None, sent: int) -> None:
    """Compare the candidate's counters, if it has some, with what was sent. They may be a moment late. Raises VoidRoundError: they are not exact."""
    if before is None:
        return
    deadline = time.monotonic() + 2
    while (counted := (candidate.frames() or 0) - before) != sent:
        if time.monotonic() > deadline:
            raise VoidRoundError(f"{candidate.name}: {sent} frames were sent, its counters say {counted}")
        time.sleep(0.05)
